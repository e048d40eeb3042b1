"""CP-SAT (OR-Tools): integer arithmetic throughout, so its answers need no repair."""

from __future__ import annotations

import importlib.metadata
import time
from typing import TYPE_CHECKING

import numpy as np

from ilp_parallel.errors import InputError
from ilp_parallel.program import INFINITY
from ilp_parallel.solvers.outcome import Features, Outcome
from ilp_parallel.solvers.request import Monitor, check_request

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    from ilp_parallel.program import IntArray, Program
    from ilp_parallel.solvers.outcome import SolveOptions, Status, Termination

LARGEST_ACTIVITY = 2**61
"""Row activities and objectives stay below this, so that no sum of two overflows int64."""


class CpSatSolver:
    """Adapter for CP-SAT; see :class:`ilp_parallel.solvers.outcome.Solver`.

    ``cancelled`` is polled from a second thread. Implied columns are integers here.
    """

    name = "cp-sat"
    features = Features(
        warm_start=True,
        seed=True,
        progress=True,
        cancellation=True,
        relaxation=False,
        exact_integers=True,
    )

    def __call__(self, program: Program, options: SolveOptions) -> Outcome:
        """Solve to proven optimality or until a limit.

        Raises
        ------
        InputError
            ``PROGRAM_UNBOUNDED_FOR_CPSAT`` for an unbounded column,
            ``PROGRAM_OVERFLOWS_CPSAT`` if an activity might not fit into 64 bits.
        """
        check_request(self.name, self.features, program, options)
        _require_fitting(program)
        monitor = Monitor(options)
        if program.contradicts_itself:
            return _outcome(program, options, "proven", None, None, 0.0, 0.0)
        if monitor.should_stop() or monitor.out_of_time:
            monitor.raise_pending()
            return _outcome(program, options, _early_end(monitor), None, None, 0.0, 0.0)
        began = time.monotonic()
        model, columns = _model(program, options.warm_start)
        build_s = time.monotonic() - began
        solver, status = _solved(model, program, options, monitor)
        monitor.raise_pending()
        solve_s = time.monotonic() - began - build_s
        termination = _termination(status, monitor)
        values, bound = None, None
        if status in ("OPTIMAL", "FEASIBLE"):
            values = np.array([solver.value(column) for column in columns], dtype=np.int64)
            if program.violated_rows(values).size or not program.within_bounds(values):
                raise RuntimeError(f"CP-SAT returned an infeasible solution of {program.name}")
            bound = solver.best_objective_bound
        return _outcome(program, options, termination, values, bound, build_s, solve_s)

    def relaxation(self, program: Program) -> float | None:
        """Refused: CP-SAT has no linear relaxation to offer."""
        raise InputError(
            "SOLVER_FEATURE_UNSUPPORTED",
            f"solver {self.name} has no relaxation (program {program.name})",
            "use solver highs",
        )


def _require_fitting(program: Program) -> None:
    unbounded = np.flatnonzero((program.lower <= -INFINITY) | (program.upper >= INFINITY))
    if unbounded.size:
        raise InputError(
            "PROGRAM_UNBOUNDED_FOR_CPSAT",
            f"{unbounded.size} columns of {program.name} are unbounded",
            "give them bounds or use solver highs",
        )
    reach = np.maximum(
        np.abs(program.lower.astype(np.float64)), np.abs(program.upper.astype(np.float64))
    )
    terms = np.append(np.abs(program.row_values.astype(np.float64)) * reach[program.row_columns], 0)
    sums = np.add.reduceat(terms, program.row_start[:-1]) if program.row_count else terms
    objective = float(np.abs(program.cost.astype(np.float64)) @ reach) + abs(program.offset)
    largest = max(float(sums.max(initial=0)), objective, float(reach.max(initial=0)))
    if largest >= LARGEST_ACTIVITY:
        raise InputError(
            "PROGRAM_OVERFLOWS_CPSAT",
            f"an activity of {program.name} may reach {largest:.3g}, above 2**61",
            "tighten column bounds or use solver highs",
        )


def _model(
    program: Program, warm_start: IntArray | None
) -> tuple[cp_model.CpModel, list[cp_model.IntVar]]:
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    bounds = zip(program.lower.tolist(), program.upper.tolist(), strict=True)
    columns = [model.new_int_var(low, high, "") for low, high in bounds]
    ends, indices, values = (
        array.tolist() for array in (program.row_start, program.row_columns, program.row_values)
    )
    row_lower = np.maximum(program.row_lower, cp_model.INT_MIN).tolist()
    row_upper = np.minimum(program.row_upper, cp_model.INT_MAX).tolist()
    for row in range(program.row_count):
        begin, end = ends[row], ends[row + 1]
        terms = cp_model.LinearExpr.weighted_sum(
            [columns[i] for i in indices[begin:end]], values[begin:end]
        )
        model.add_linear_constraint(terms, row_lower[row], row_upper[row])
    model.minimize(
        cp_model.LinearExpr.weighted_sum(columns, program.cost.tolist()) + program.offset
    )
    if warm_start is not None:
        for column, value in zip(columns, warm_start.tolist(), strict=True):
            model.add_hint(column, value)
    return model, columns


def _solved(
    model: cp_model.CpModel, program: Program, options: SolveOptions, monitor: Monitor
) -> tuple[cp_model.CpSolver, str]:
    """The solver after its run, and its status by name."""
    from ortools.sat.python import cp_model

    class Watch(cp_model.CpSolverSolutionCallback):
        """Reports each new solution, and stops where the caller asks for it."""

        def on_solution_callback(self) -> None:
            monitor.report(round(self.objective_value), self.best_objective_bound)
            if monitor.should_stop():
                self.stop_search()

    solver = cp_model.CpSolver()
    solver.parameters.num_workers = options.threads
    solver.parameters.random_seed = options.seed
    solver.parameters.relative_gap_limit = 0.0
    solver.parameters.absolute_gap_limit = 0.0
    # With these steps of its presolve, OR-Tools 9.15 claims false optima of knapsacks with
    # coefficients of 1e9 (57 of 36,000 tried; none without either of them, so both are off).
    solver.parameters.keep_all_feasible_solutions_in_presolve = True
    solver.parameters.presolve_inclusion_work_limit = 0
    if monitor.time_left_s is not None:
        solver.parameters.max_time_in_seconds = max(monitor.time_left_s, 1e-6)
    watched = monitor.watches_progress or monitor.watches_cancellation
    with monitor.polling(solver.stop_search):
        status = solver.solve(model, Watch() if watched else None)
    return solver, str(solver.status_name(status))


def _early_end(monitor: Monitor) -> Termination:
    return "cancelled" if monitor.was_cancelled else "time_limit"


def _termination(status: str, monitor: Monitor) -> Termination:
    if status in ("OPTIMAL", "INFEASIBLE"):
        return "proven"
    if status in ("FEASIBLE", "UNKNOWN"):
        if monitor.was_cancelled:
            return "cancelled"
        return "solver_limit" if monitor.time_left_s is None else "time_limit"
    raise RuntimeError(f"CP-SAT ended with status {status}")


def _outcome(
    program: Program,
    options: SolveOptions,
    termination: Termination,
    values: IntArray | None,
    bound: float | None,
    build_s: float,
    solve_s: float,
) -> Outcome:
    """The Outcome; a feasible warm start stands in where the solver found nothing."""
    messages: tuple[str, ...] = ()
    start = options.warm_start
    if start is not None:
        if not program.within_bounds(start) or program.violated_rows(start).size:
            messages = ("warm start is not feasible",)
        elif values is None and termination != "proven":
            values = start.astype(np.int64)
    objective = None if values is None else program.objective(values)
    status: Status = "unknown" if values is None else "feasible"
    if termination == "proven":
        status = "infeasible" if values is None else "optimal"
        bound = None if objective is None else float(objective)
    return Outcome(
        status=status,
        termination=termination,
        objective=objective,
        bound=bound,
        values=values,
        solver=CpSatSolver.name,
        version=importlib.metadata.version("ortools"),
        seed=options.seed,
        build_s=build_s,
        solve_s=solve_s,
        messages=messages,
    )
