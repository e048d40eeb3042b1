"""CBC, through PuLP: a separate process that reads a file."""

from __future__ import annotations

import importlib.metadata
import re
import tempfile
import time
import warnings
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from ilp_parallel.errors import InputError
from ilp_parallel.solvers.exact import Round, solve_exactly
from ilp_parallel.solvers.outcome import Features
from ilp_parallel.solvers.scaling import scale

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pulp

    from ilp_parallel.program import Program
    from ilp_parallel.solvers.exact import Request
    from ilp_parallel.solvers.outcome import Outcome, SolveOptions
    from ilp_parallel.solvers.scaling import FloatArray, ScaledModel

PRECISE_TOLERANCE = 1e-9
"""Primal and integrality tolerances after a point that the usual ones accepted in error."""

PREPROCESS_OFF = "preprocess off"
"""CBC 2.10.3 with its integer preprocessing called -14 optimal where -15 is (4 columns,
small boxes, row ``1 <= -5 a + 8 b + 2 c + 6 d <= 3`` as two rows; the test suite holds it).
Without it CBC crashes on some infeasible programs: then an
infeasible claim with preprocessing is believed.
"""

HEURISTICS_OFF = "heuristicsOnOff off"
"""See ROW_MAXIMUM."""

CRASHED = "CBC crashed"

ROW_MAXIMUM = 2**10
"""Largest coefficient left in a row.

CBC 2.10.3 was seen to lose solutions of programs with large coefficients: a point passes one of its
tolerances, fails a later check, and its node is dropped, whereupon a feasible program was called
infeasible or a worse point optimal. Tried on knapsacks with 8 columns, coefficients of 1e5 to 1e12
and a limit one unit below an attractive point: with the usual settings 9 of 360 answers were wrong,
with heuristics off 1 of 1,680, and none of 1,200 with what is done here. Where a coefficient
exceeds DELICATE, heuristics are off and the claim must survive a second run with rows scaled to
COARSE_ROW_MAXIMUM: the lower optimum of the two is taken.
"""

DELICATE = 2**20
"""See ROW_MAXIMUM."""

COARSE_ROW_MAXIMUM = 1
"""See ROW_MAXIMUM."""

OVERRUN_S = 1.0
"""CBC looks at its clock only now and then; a larger overrun of the limit is noted."""

_BOUND = re.compile(r"^(?:Lower bound|Best possible):?\s+(\S+)", re.MULTILINE)
_STOPPED_ON_TIME = re.compile(r"^Result - Stopped on time|Exiting on maximum time", re.MULTILINE)


class CbcSolver:
    """Adapter for CBC; see :class:`ilp_parallel.solvers.outcome.Solver`.

    PuLP waits for the process, so there is neither progress nor cancellation. The time limit is
    CBC's own, in wall-clock time; it may overrun, which is then noted in the messages.
    """

    name = "cbc"
    features = Features(
        warm_start=True,
        seed=True,
        progress=False,
        cancellation=False,
        relaxation=True,
        exact_integers=False,
    )

    def __call__(self, program: Program, options: SolveOptions) -> Outcome:
        """Solve to proven optimality or until a limit.

        Raises
        ------
        InputError
            ``SOLVER_NOT_AVAILABLE`` if PuLP brings no CBC for this machine.
        """
        _require_cbc()
        version = importlib.metadata.version("pulp")
        return solve_exactly(self.name, version, self.features, _run, program, options)

    def relaxation(self, program: Program) -> float | None:
        """Value of the linear relaxation; None if infeasible, ``-inf`` if unbounded."""
        import pulp

        _require_cbc()
        if program.contradicts_itself:
            return None
        scaled = scale(program)
        with tempfile.TemporaryDirectory() as folder, _quiet():
            problem, columns = _problem(program, scaled)
            solver = _cbc(Path(folder), mip=False)
            problem.solve(solver)
        if problem.sol_status == pulp.LpSolutionInfeasible:
            return None
        if problem.sol_status == pulp.LpSolutionUnbounded:
            return -np.inf
        if problem.sol_status != pulp.LpSolutionOptimal:
            raise RuntimeError(f"CBC left a relaxation with {problem.sol_status}")
        return scaled.unscaled(float(scaled.cost @ _point(columns, scaled)))


@contextmanager
def _quiet() -> Iterator[None]:
    """PuLP 3 announces with every call what version 4 will rename."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def _require_cbc() -> None:
    import pulp

    with _quiet():
        available = pulp.PULP_CBC_CMD(msg=False).available()
    if not available:
        raise InputError("SOLVER_NOT_AVAILABLE", "PuLP has no CBC here", "use solver highs")


def _run(program: Program, request: Request) -> Round:
    """One round of CBC; with delicate rows its claim is put to the test (see ROW_MAXIMUM)."""
    delicate = bool(np.abs(program.row_values).max(initial=0) > DELICATE)
    options = (PREPROCESS_OFF, HEURISTICS_OFF) if delicate else (PREPROCESS_OFF,)
    answer = _run_scaled(program, request, ROW_MAXIMUM, options)
    if CRASHED in answer.messages:
        second = _run_scaled(program, request, ROW_MAXIMUM, ())
        return second if second.claim == "infeasible" else answer
    if not delicate or answer.claim not in ("optimal", "infeasible"):
        return answer
    second = _run_scaled(program, request, COARSE_ROW_MAXIMUM, options)
    if second.claim not in ("optimal", "infeasible"):
        return replace(answer, claim=second.claim, bound=second.bound, messages=second.messages)
    return min(answer, second, key=lambda each: np.inf if each.bound is None else each.bound)


def _run_scaled(
    program: Program, request: Request, row_maximum: int, options: tuple[str, ...]
) -> Round:
    import pulp

    began = time.monotonic()
    scaled = scale(program, row_maximum)
    with _quiet():
        problem, columns = _problem(program, scaled)
    if request.warm_start is not None:
        start = scaled.start(request.warm_start).tolist()
        for column, value in zip(columns, start, strict=False):
            column.setInitialValue(value, check=False)
    built = time.monotonic()
    limit_s = request.time_left_s
    with tempfile.TemporaryDirectory() as folder, _quiet():
        log = Path(folder) / "cbc.log"
        solver = _cbc(Path(folder), mip=True, log=log, request=request)
        solver.options.extend(options)
        crashed = False
        try:
            problem.solve(solver)
        except pulp.PulpSolverError:
            crashed = True
        text = log.read_text(errors="replace") if log.exists() else ""
    solve_s = time.monotonic() - built
    claim, found, messages = _claim(problem, text)
    if crashed:
        claim, found, messages = "solver_limit", False, (CRASHED,)
    if limit_s is not None and solve_s > limit_s + OVERRUN_S:
        messages = (*messages, f"CBC took {solve_s:.1f} s of {limit_s:.1f} s allowed")
    point = _point(columns, scaled) if found else None
    return Round(
        claim=claim,
        point=None if point is None else scaled.point(point),
        bound=_bound(claim, point, text, scaled),
        build_s=built - began,
        solve_s=solve_s,
        messages=messages,
    )


def _problem(program: Program, scaled: ScaledModel) -> tuple[pulp.LpProblem, list[pulp.LpVariable]]:
    """The PuLP problem, offset left out; a row with two finite ends becomes two constraints."""
    import pulp

    problem = pulp.LpProblem("program", pulp.LpMinimize)
    columns = [
        pulp.LpVariable(
            f"x{i}",
            low if np.isfinite(low) else None,
            high if np.isfinite(high) else None,
            pulp.LpContinuous if implied else pulp.LpInteger,
        )
        for i, (low, high, implied) in enumerate(
            zip(scaled.lower.tolist(), scaled.upper.tolist(), program.implied.tolist(), strict=True)
        )
    ]
    problem.addVariables(columns)
    problem.setObjective(pulp.LpAffineExpression(zip(columns, scaled.cost.tolist(), strict=True)))
    for row in range(program.row_count):
        place = slice(int(program.row_start[row]), int(program.row_start[row + 1]))
        terms = [columns[i] for i in program.row_columns[place].tolist()]
        entries = list(zip(terms, scaled.row_values[place].tolist(), strict=True))
        for sense, limit in _sides(float(scaled.row_lower[row]), float(scaled.row_upper[row])):
            problem.addConstraint(
                pulp.LpConstraint(pulp.LpAffineExpression(entries), sense, rhs=limit)
            )
    return problem, columns


def _sides(lower: float, upper: float) -> list[tuple[int, float]]:
    """PuLP's sense (-1: <=, 0: =, 1: >=) and right-hand side of each finite end."""
    if lower == upper:
        return [(0, lower)]
    ends = [(-1, upper), (1, lower)]
    return [(sense, end) for sense, end in ends if np.isfinite(end)]


def _cbc(
    folder: Path, *, mip: bool, log: Path | None = None, request: Request | None = None
) -> pulp.PULP_CBC_CMD:
    """A silent CBC whose files live in ``folder``."""
    import pulp

    options = []
    if request is not None:
        seed = request.options.seed + 1  # CBC takes 0 for the time of day
        options = [f"randomSeed {seed}", f"randomCbcSeed {seed}"]
        if request.precise:
            options += [f"{kind}Tolerance {PRECISE_TOLERANCE}" for kind in ("primal", "integer")]
    solver = pulp.PULP_CBC_CMD(
        mip=mip,
        msg=False,
        gapRel=0.0,
        gapAbs=0.0,
        options=options,
        logPath=None if log is None else str(log),
        timeLimit=None if request is None else request.time_left_s,
        threads=request.options.threads if request and request.options.threads > 1 else None,
        warmStart=request is not None and request.warm_start is not None,
    )
    solver.tmpDir = str(folder)
    return solver


def _point(columns: list[pulp.LpVariable], scaled: ScaledModel) -> FloatArray:
    values = [column.varValue for column in columns]
    missing = np.clip(0.0, scaled.lower, scaled.upper)
    return np.array(
        [gap if value is None else value for value, gap in zip(values, missing, strict=True)]
    )


_Claim = Literal["optimal", "infeasible", "time_limit", "cancelled", "solver_limit"]


def _claim(problem: pulp.LpProblem, text: str) -> tuple[_Claim, bool, tuple[str, ...]]:
    """The claim, whether there is a point, and messages.

    ``LpProblem.status`` says "optimal" for any incumbent; ``sol_status`` tells them apart. Neither
    is trusted to tell infeasible from stopped, which the log does.
    """
    import pulp

    stopped = bool(_STOPPED_ON_TIME.search(text))
    found = problem.sol_status in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible)
    if stopped:
        return "time_limit", found, ()
    if problem.sol_status == pulp.LpSolutionOptimal:
        return "optimal", True, ()
    if problem.status == pulp.LpStatusInfeasible:
        return "infeasible", False, ()
    return "solver_limit", found, (f"CBC: {pulp.LpStatus[problem.status]}",)


def _bound(claim: _Claim, point: FloatArray | None, text: str, scaled: ScaledModel) -> float | None:
    """The optimum where it is claimed; otherwise what the log says, if anything."""
    if claim == "optimal" and point is not None:
        return scaled.unscaled(float(scaled.cost @ point))
    found = _BOUND.findall(text)
    return scaled.unscaled(float(found[-1])) if found else None
