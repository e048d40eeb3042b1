"""HiGHS, in process (highspy)."""

from __future__ import annotations

import importlib.metadata
import time
from typing import TYPE_CHECKING, Literal

import numpy as np

from ilp_parallel.solvers.exact import Round, bounded_by_columns, solve_exactly
from ilp_parallel.solvers.outcome import Features
from ilp_parallel.solvers.scaling import scale

if TYPE_CHECKING:
    import highspy

    from ilp_parallel.program import Program
    from ilp_parallel.solvers.exact import Request
    from ilp_parallel.solvers.outcome import Outcome, SolveOptions
    from ilp_parallel.solvers.scaling import ScaledModel

ABSOLUTE_GAP = 0.25
"""``mip_abs_gap`` in units of the objective: below 1/2, so that rounding the bound up closes it."""

PRECISE_TOLERANCE = 1e-9
"""Feasibility tolerances after a point that the usual ones (1e-6) accepted in error."""


class HighsSolver:
    """Adapter for HiGHS; see :class:`ilp_parallel.solvers.outcome.Solver`."""

    name = "highs"
    features = Features(
        warm_start=True,
        seed=True,
        progress=True,
        cancellation=True,
        relaxation=True,
        exact_integers=False,
    )

    def __call__(self, program: Program, options: SolveOptions) -> Outcome:
        """Solve to proven optimality or until a limit."""
        version = importlib.metadata.version("highspy")
        return solve_exactly(self.name, version, self.features, _run, program, options)

    def relaxation(self, program: Program) -> float | None:
        """Value of the linear relaxation; None if infeasible, ``-inf`` if unbounded."""
        import highspy

        if program.contradicts_itself:
            return None
        model = scale(program)
        solver = _loaded(program, model, integer=False)
        solver.run()
        status = solver.getModelStatus()
        codes = highspy.HighsModelStatus
        if status == codes.kUnboundedOrInfeasible:
            solver.setOptionValue("presolve", "off")
            solver.run()
            status = solver.getModelStatus()
        if status == codes.kInfeasible:
            return None
        if status == codes.kUnbounded:
            return -np.inf
        if status not in (codes.kOptimal, codes.kModelEmpty):
            raise RuntimeError(f"HiGHS left a relaxation with status {status}")
        return model.unscaled(solver.getInfo().objective_function_value)


def _run(program: Program, request: Request) -> Round:
    """One round of HiGHS."""
    began = time.monotonic()
    model = scale(program)
    solver = _loaded(program, model, integer=True)
    _set_options(solver, model, request)
    _subscribe(solver, model, request)
    if request.warm_start is not None:
        indices = np.arange(len(request.warm_start), dtype=np.int32)
        solver.setSolution(len(indices), indices, model.start(request.warm_start))
    built = time.monotonic()
    _run_with_threads(solver, request.options.threads)
    claim, messages = _claim(solver, program, request)
    info = solver.getInfo()
    found = info.primal_solution_status == 2  # kSolutionStatusFeasible
    if not program.column_count:
        found = claim == "optimal"
    bound: float | None = info.mip_dual_bound
    if np.all(program.implied):  # a linear program: its optimum is its bound
        bound = info.objective_function_value if claim == "optimal" else None
    return Round(
        claim=claim,
        point=model.point(np.array(solver.getSolution().col_value)) if found else None,
        bound=model.unscaled(bound) if bound is not None and np.isfinite(bound) else None,
        build_s=built - began,
        solve_s=time.monotonic() - built,
        messages=messages,
    )


def _loaded(program: Program, model: ScaledModel, *, integer: bool) -> highspy.Highs:
    """A silent solver that holds the model."""
    import highspy

    lp = highspy.HighsLp()
    lp.num_col_ = program.column_count
    lp.num_row_ = program.row_count
    lp.col_cost_ = model.cost
    lp.col_lower_ = model.lower
    lp.col_upper_ = model.upper
    lp.row_lower_ = model.row_lower
    lp.row_upper_ = model.row_upper
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = program.row_start
    lp.a_matrix_.index_ = program.row_columns
    lp.a_matrix_.value_ = model.row_values
    if integer:
        kinds = (highspy.HighsVarType.kInteger, highspy.HighsVarType.kContinuous)
        lp.integrality_ = [kinds[implied] for implied in program.implied.tolist()]
    solver = _silent()
    if solver.passModel(lp) == highspy.HighsStatus.kError:
        raise RuntimeError(f"HiGHS refuses the model {program.name}")
    return solver


def _silent() -> highspy.Highs:
    """A solver that prints nothing, not even the banner of its first callback."""
    import highspy

    class SilentHighs(highspy.Highs):
        def enableCallbacks(self) -> None:
            self.setOptionValue("output_flag", False)
            super().enableCallbacks()  # type: ignore[no-untyped-call]

    solver = SilentHighs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)
    return solver


def _set_options(solver: highspy.Highs, model: ScaledModel, request: Request) -> None:
    solver.setOptionValue("threads", request.options.threads)
    solver.setOptionValue("random_seed", request.options.seed)
    solver.setOptionValue("mip_rel_gap", 0.0)
    solver.setOptionValue("mip_abs_gap", ABSOLUTE_GAP * model.cost_scale)
    if request.time_left_s is not None:
        solver.setOptionValue("time_limit", request.time_left_s)
    if request.precise:
        solver.setOptionValue("mip_abs_gap", 0.0)
        for kind in ("mip_feasibility", "primal_feasibility", "dual_feasibility"):
            solver.setOptionValue(f"{kind}_tolerance", PRECISE_TOLERANCE)


def _subscribe(solver: highspy.Highs, model: ScaledModel, request: Request) -> None:
    """Connect the caller's callbacks."""
    monitor = request.monitor

    def poll(event: highspy.HighsCallbackEvent) -> None:
        if monitor.should_stop() and event.data_in is not None:
            event.data_in.user_interrupt = True

    def report(event: highspy.HighsCallbackEvent) -> None:
        primal, dual = event.data_out.mip_primal_bound, event.data_out.mip_dual_bound
        monitor.report(
            round(model.unscaled(primal)) if np.isfinite(primal) else None,
            model.unscaled(dual) if np.isfinite(dual) else None,
        )

    if monitor.watches_cancellation or monitor.watches_progress:
        for hook in (solver.cbMipInterrupt, solver.cbSimplexInterrupt, solver.cbIpmInterrupt):
            hook.subscribe(poll)
    if monitor.watches_progress:
        solver.cbMipImprovingSolution.subscribe(report)
        solver.cbMipLogging.subscribe(report)


def _run_with_threads(solver: highspy.Highs, threads: int) -> None:
    """Run; HiGHS keeps one global pool of threads, renewed if it has another size."""
    import highspy

    if solver.run() == highspy.HighsStatus.kError:
        highspy.Highs.resetGlobalScheduler(True)
        solver.setOptionValue("threads", threads)
        solver.run()


_Claim = Literal["optimal", "infeasible", "time_limit", "cancelled", "solver_limit"]


def _claim(
    solver: highspy.Highs, program: Program, request: Request
) -> tuple[_Claim, tuple[str, ...]]:
    import highspy

    status = solver.getModelStatus()
    codes = highspy.HighsModelStatus
    known: dict[highspy.HighsModelStatus, _Claim] = {
        codes.kOptimal: "optimal",
        codes.kModelEmpty: "optimal",
        codes.kInfeasible: "infeasible",
        codes.kTimeLimit: "time_limit",
        codes.kInterrupt: "cancelled",
    }
    if status in known:
        return known[status], ()
    if status == codes.kUnboundedOrInfeasible and bounded_by_columns(program):
        return "infeasible", ()
    if request.monitor.was_cancelled:
        return "cancelled", ()
    return "solver_limit", (f"HiGHS: {solver.modelStatusToString(status)}",)
