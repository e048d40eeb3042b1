"""SCIP, through OR-Tools' MathOpt (GSCIP)."""

from __future__ import annotations

import datetime
import importlib.metadata
import time
from typing import TYPE_CHECKING, Literal

import numpy as np

from ilp_parallel.solvers.exact import Round, bounded_by_columns, solve_exactly
from ilp_parallel.solvers.outcome import Features
from ilp_parallel.solvers.scaling import scale

if TYPE_CHECKING:
    from ortools.math_opt.python import mathopt

    from ilp_parallel.program import Program
    from ilp_parallel.solvers.exact import Request
    from ilp_parallel.solvers.outcome import Outcome, SolveOptions
    from ilp_parallel.solvers.scaling import FloatArray, ScaledModel

ABSOLUTE_GAP = 0.25
"""Absolute gap in units of the objective: below 1/2, so that rounding the bound up closes it."""

PRECISE_TOLERANCE = 1e-9
"""``numerics/feastol`` after a point that the usual 1e-6 accepted in error."""


class ScipSolver:
    """Adapter for SCIP; see :class:`ilp_parallel.solvers.outcome.Solver`.

    ``cancelled`` is polled from a second thread. MathOpt reports no progress of SCIP. With
    ``cancelled`` GSCIP writes two harmless lines about events to stderr (OR-Tools 9.15).
    """

    name = "scip"
    features = Features(
        warm_start=True,
        seed=True,
        progress=False,
        cancellation=True,
        relaxation=True,
        exact_integers=False,
    )

    def __call__(self, program: Program, options: SolveOptions) -> Outcome:
        """Solve to proven optimality or until a limit."""
        version = importlib.metadata.version("ortools")
        return solve_exactly(self.name, version, self.features, _run, program, options)

    def relaxation(self, program: Program) -> float | None:
        """Value of the linear relaxation; None if infeasible, ``-inf`` if unbounded."""
        from ortools.math_opt.python import mathopt

        if program.contradicts_itself:
            return None
        scaled = scale(program)
        model, _ = _model(program, scaled, integer=False)
        result = mathopt.solve(model, mathopt.SolverType.GSCIP)
        reasons = mathopt.TerminationReason
        reason = result.termination.reason
        if reason == reasons.INFEASIBLE or (
            reason == reasons.INFEASIBLE_OR_UNBOUNDED and bounded_by_columns(program)
        ):
            return None
        if reason in (reasons.UNBOUNDED, reasons.INFEASIBLE_OR_UNBOUNDED):
            return -np.inf
        if reason != reasons.OPTIMAL:
            raise RuntimeError(f"SCIP left a relaxation with {reason}")
        return scaled.unscaled(result.objective_value())


def _run(program: Program, request: Request) -> Round:
    """One round of SCIP."""
    from ortools.math_opt.python import mathopt
    from ortools.util.python import solve_interrupter

    began = time.monotonic()
    scaled = scale(program)
    model, columns = _model(program, scaled, integer=True)
    hints = []
    if request.warm_start is not None:
        start = dict(zip(columns, scaled.start(request.warm_start).tolist(), strict=False))
        hints.append(mathopt.SolutionHint(variable_values=start))
    built = time.monotonic()
    interrupter = solve_interrupter.SolveInterrupter()
    watched = request.monitor.watches_cancellation
    with request.monitor.polling(interrupter.interrupt):
        result = mathopt.solve(
            model,
            mathopt.SolverType.GSCIP,
            params=_parameters(scaled, request),
            model_params=mathopt.ModelSolveParameters(solution_hints=hints),
            interrupter=interrupter if watched else None,
        )
    claim, messages = _claim(result, program)
    bound = result.termination.objective_bounds.dual_bound
    found = result.has_primal_feasible_solution()
    return Round(
        claim=claim,
        point=_values(result, columns, scaled) if found else None,
        bound=scaled.unscaled(bound) if np.isfinite(bound) else None,
        build_s=built - began,
        solve_s=time.monotonic() - built,
        messages=messages,
    )


def _values(
    result: mathopt.SolveResult, columns: list[mathopt.Variable], scaled: ScaledModel
) -> FloatArray:
    """Column values in the Program's units."""
    return scaled.point(np.array(result.variable_values(columns), dtype=np.float64))


def _model(
    program: Program, scaled: ScaledModel, *, integer: bool
) -> tuple[mathopt.Model, list[mathopt.Variable]]:
    from ortools.math_opt.python import mathopt

    model = mathopt.Model()
    whole = (~program.implied).tolist()
    columns = [
        model.add_variable(lb=low, ub=high, is_integer=integer and kind)
        for low, high, kind in zip(scaled.lower.tolist(), scaled.upper.tolist(), whole, strict=True)
    ]
    ends, indices, values = (
        array.tolist() for array in (program.row_start, program.row_columns, scaled.row_values)
    )
    for row, (low, high) in enumerate(
        zip(scaled.row_lower.tolist(), scaled.row_upper.tolist(), strict=True)
    ):
        constraint = model.add_linear_constraint(lb=low, ub=high)
        for place in range(ends[row], ends[row + 1]):
            constraint.set_coefficient(columns[indices[place]], values[place])
    for column, cost in zip(columns, scaled.cost.tolist(), strict=True):
        if cost:
            model.objective.set_linear_coefficient(column, cost)
    return model, columns


def _parameters(scaled: ScaledModel, request: Request) -> mathopt.SolveParameters:
    from ortools.math_opt.python import mathopt

    parameters = mathopt.SolveParameters(
        random_seed=request.options.seed,
        relative_gap_tolerance=0.0,
        absolute_gap_tolerance=0.0 if request.precise else ABSOLUTE_GAP * scaled.cost_scale,
    )
    if request.options.threads > 1:
        parameters.threads = request.options.threads
    if request.time_left_s is not None:
        parameters.time_limit = datetime.timedelta(seconds=request.time_left_s)
    if request.precise:
        parameters.gscip.real_params["numerics/feastol"] = PRECISE_TOLERANCE
    return parameters


_Claim = Literal["optimal", "infeasible", "time_limit", "cancelled", "solver_limit"]


def _claim(result: mathopt.SolveResult, program: Program) -> tuple[_Claim, tuple[str, ...]]:
    from ortools.math_opt.python import mathopt

    reasons, limits = mathopt.TerminationReason, mathopt.Limit
    reason, limit = result.termination.reason, result.termination.limit
    if reason == reasons.OPTIMAL:
        return "optimal", ()
    if reason == reasons.INFEASIBLE or (
        reason == reasons.INFEASIBLE_OR_UNBOUNDED and bounded_by_columns(program)
    ):
        return "infeasible", ()
    if limit == limits.TIME:
        return "time_limit", ()
    if limit == limits.INTERRUPTED:
        return "cancelled", ()
    return "solver_limit", (f"SCIP: {result.termination}",)
