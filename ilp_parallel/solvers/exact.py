r"""Exact answers from floating-point solvers.

A float solver is run in rounds. After each round

1. its point is rounded; where that breaks a row and the Program has implied columns, the other
   columns are fixed and the implied ones solved for once more, as integers;
2. the rounded point is judged by the Program itself, in integers. If it keeps every row it becomes
   the incumbent, with its exact objective;
3. the objective is an integer, so a dual bound ``b`` is worth ``ceil(b - slack)``; see
   :func:`closes`. If that reaches the incumbent, the run is over: ``optimal``;
4. if a row is broken although the solver accepted it (its tolerance), an exact cut excludes the
   point (:mod:`ilp_parallel.solvers.cuts`) and the next round begins, with the tightest tolerances;
   likewise, once, if the point is sound but the gap is open although the solver says it is closed.

Bounds stay valid throughout, since a cut removes no integer point of the Program.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

from ilp_parallel.program import INFINITY
from ilp_parallel.solvers.cuts import with_cut
from ilp_parallel.solvers.outcome import Outcome
from ilp_parallel.solvers.request import Monitor, check_request

if TYPE_CHECKING:
    from ilp_parallel.program import IntArray, Program
    from ilp_parallel.solvers.outcome import Features, SolveOptions, Status, Termination
    from ilp_parallel.solvers.scaling import FloatArray

BOUND_SLACK = 1e-6
"""Relative error granted to a float solver's dual bound."""


@dataclass(frozen=True, slots=True)
class Request:
    """One round: how to run the solver on one Program."""

    options: SolveOptions
    monitor: Monitor
    warm_start: IntArray | None  # of the first columns; columns of cuts follow
    precise: bool  # tightest tolerances

    @property
    def time_left_s(self) -> float | None:
        """Seconds left for this round; None without a limit."""
        return self.monitor.time_left_s


@dataclass(frozen=True, slots=True)
class Round:
    """What a float solver says. ``bound`` and ``point`` are None unless the solver has them."""

    claim: Literal["optimal", "infeasible", "time_limit", "cancelled", "solver_limit"]
    point: FloatArray | None
    bound: float | None  # in the Program's units, offset included
    build_s: float
    solve_s: float
    messages: tuple[str, ...] = field(default=())


class RunRound(Protocol):
    """A float solver."""

    def __call__(self, program: Program, request: Request) -> Round:
        """Run once."""
        ...


def closes(bound: float | None, objective: int) -> bool:
    """Whether a dual bound proves an integer objective, granting the bound some error.

    The bound is lowered by ``min(1/2, 1e-6 * max(1, |bound|))`` and rounded up: every feasible
    objective is an integer. The half unit caps what is granted for large objectives.
    """
    if bound is None or math.isnan(bound):
        return False
    if math.isinf(bound):
        return bound > 0
    return math.ceil(bound - min(0.5, BOUND_SLACK * max(1.0, abs(bound)))) >= objective


def bounded_by_columns(program: Program) -> bool:
    """Whether column bounds alone keep the objective from falling without end."""
    costly = np.where(program.cost > 0, program.lower, program.upper)[program.cost != 0]
    return bool(np.all(np.abs(costly) < INFINITY))


def solve_exactly(
    name: str,
    version: str,
    features: Features,
    run: RunRound,
    program: Program,
    options: SolveOptions,
) -> Outcome:
    """Run a float solver in rounds until its answer is exact or a limit is met."""
    check_request(name, features, program, options)
    search = _Search(program, run, options)
    termination = search.rounds()
    search.monitor.raise_pending()
    values = search.incumbent
    objective = None if values is None else program.objective(values)
    bound = search.bound
    status: Status = "unknown" if values is None else "feasible"
    if termination == "proven":
        status = "infeasible" if values is None else "optimal"
        bound = None if objective is None else float(objective)
    elif bound is not None and objective is not None:
        bound = min(bound, float(objective))
    return Outcome(
        status=status,
        termination=termination,
        objective=objective,
        bound=bound,
        values=values,
        solver=name,
        version=version,
        seed=options.seed,
        build_s=search.build_s,
        solve_s=search.solve_s,
        cuts_added=search.cuts_added,
        messages=tuple(search.messages),
    )


class _Search:
    """State of :func:`solve_exactly`: incumbent, bound, the Program with its cuts."""

    def __init__(self, program: Program, run: RunRound, options: SolveOptions) -> None:
        self.original = program
        self.program = program
        self.options = options
        self.run = run
        self.monitor = Monitor(options)
        self.incumbent: IntArray | None = None
        self.bound: float | None = None
        self.cuts_added = 0
        self.build_s = 0.0
        self.solve_s = 0.0
        self.messages: list[str] = []
        start = options.warm_start
        if start is not None and not self._accept(start.astype(np.int64)):
            self.messages.append("warm start is not feasible")

    def rounds(self) -> Termination:
        """Run rounds until one of them ends the search."""
        precise = False
        if self.original.contradicts_itself:
            return "proven"
        while True:
            if self.monitor.should_stop():
                return "cancelled"
            if self.monitor.out_of_time:
                return "time_limit"
            answer = self._round(self.program, precise=precise)
            if answer.bound is not None:
                self.bound = answer.bound if self.bound is None else max(self.bound, answer.bound)
            broken = None if answer.point is None else self._judge(answer.point)
            if self._closed():
                return "proven"
            if answer.claim == "infeasible":
                return self._refuted()
            if answer.claim != "optimal":
                return answer.claim
            if broken is None:
                if precise:
                    self.messages.append("solver's bound and exact objective differ")
                    return "solver_limit"
            elif not self._cut(*broken):
                return "solver_limit"
            precise = True

    def _closed(self) -> bool:
        return self.incumbent is not None and closes(
            self.bound, self.original.objective(self.incumbent)
        )

    def _refuted(self) -> Termination:
        """The solver says infeasible; an exact incumbent knows better."""
        if self.incumbent is None:
            return "proven"
        self.messages.append("solver calls the program infeasible, an exact solution refutes it")
        return "solver_limit"

    def _round(self, program: Program, *, precise: bool) -> Round:
        answer = self.run(program, Request(self.options, self.monitor, self.incumbent, precise))
        self.build_s += answer.build_s
        self.solve_s += answer.solve_s
        self.messages.extend(m for m in answer.messages if m not in self.messages)
        return answer

    def _accept(self, values: IntArray) -> bool:
        """Whether a vector of the original columns is feasible; the best one is kept."""
        if not self.original.within_bounds(values) or self.original.violated_rows(values).size:
            return False
        if self.incumbent is None or self.original.objective(values) < self.original.objective(
            self.incumbent
        ):
            self.incumbent = values
        return True

    def _judge(self, point: FloatArray) -> tuple[int, IntArray] | None:
        """Take the point as incumbent, or return a row it breaks and the rounded point."""
        rounded = self._rounded(point)
        if self._accept(rounded[: self.original.column_count]):
            return None
        if self.original.implied.any():
            repaired = self._repaired(rounded)
            if repaired is not None and self._accept(repaired[: self.original.column_count]):
                return None
        row = int(self.original.violated_rows(rounded[: self.original.column_count])[0])
        return row, rounded

    def _rounded(self, point: FloatArray) -> IntArray:
        nearest = np.rint(np.clip(point, -(2.0**62), 2.0**62)).astype(np.int64)
        return np.clip(nearest, self.program.lower, self.program.upper)

    def _repaired(self, rounded: IntArray) -> IntArray | None:
        """Solve for the implied columns, as integers, with all others fixed."""
        free = self.program.implied
        fixed = replace(
            self.program,
            lower=np.where(free, self.program.lower, rounded),
            upper=np.where(free, self.program.upper, rounded),
            implied=np.zeros_like(free),
        )
        point = self._round(fixed, precise=True).point
        return None if point is None else self._rounded(point)

    def _cut(self, row: int, rounded: IntArray) -> bool:
        """Exclude the rounded point; False if that is impossible or was done before."""
        if self.program is not self.original and self.program.violated_rows(rounded).max() >= (
            self.original.row_count
        ):
            self.messages.append("solver keeps breaking an exact cut within its tolerance")
            return False
        longer = with_cut(self.program, row, rounded)
        if longer is None:
            self.messages.append("a row is broken within tolerance and has an unbounded column")
            return False
        self.program = longer
        self.cuts_added += 1
        return True
