"""The ``schedule`` family solved: bounds, named schedules, list scheduling, then CP-SAT.

What is too large for CP-SAT gets a steady state from :mod:`formulations.schedule.periodic` instead.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from formulations.schedule import periodic
from ilp_parallel.problems.schedule import evaluate, replay
from ilp_parallel.scheduling.bounds import Bound, certainly_infeasible, lower_bounds
from ilp_parallel.scheduling.dispatch import Policy, dispatch
from ilp_parallel.scheduling.named import NamedResult, named_schedules
from ilp_parallel.scheduling.offloading import offload_schedule
from ilp_parallel.scheduling.search import search

if TYPE_CHECKING:
    from collections.abc import Callable

    from ilp_parallel.problems.schedule import Evaluation, ScheduleInstance, ScheduleSolution

_SEARCH_SHARE = 0.3
"""Share of the time for list scheduling before CP-SAT starts (chosen)."""

_LARGEST_MODEL = 8_000
"""Operations up to which CP-SAT is tried (chosen: the model then builds in seconds)."""


@dataclass(frozen=True, slots=True)
class ScheduleResult:
    """What is known about an instance."""

    status: Literal["optimal", "feasible", "infeasible", "unknown"]
    proof: Literal["exact", "solver"] | None
    solution: ScheduleSolution | None
    evaluation: Evaluation | None
    objective: int | None
    bound: int
    bounds: tuple[Bound, ...]  # best first; the solver's own, where it is better
    named: tuple[NamedResult, ...]
    found_by: str
    reason: str = ""  # of infeasibility

    @property
    def gap(self) -> float | None:
        """Distance of objective and bound over the objective; 0 only when equal."""
        return None if self.objective is None else (self.objective - self.bound) / self.objective

    @property
    def best_named(self) -> NamedResult | None:
        """The shortest named schedule that keeps memory."""
        fitting = [result for result in self.named if result.fits]
        return min(fitting, key=lambda r: r.evaluation.makespan_ticks or 0, default=None)


class SchedulePlanner:
    """One run on one instance; the schedule and the bound only ever improve."""

    def __init__(
        self,
        instance: ScheduleInstance,
        time_limit_s: float,
        threads: int = 1,
        seed: int = 0,
        report: Callable[[str, int | None, int], None] = lambda *_: None,
        start: ScheduleSolution | None = None,
    ) -> None:
        self.instance = instance
        self.began = time.monotonic()
        self.deadline = self.began + time_limit_s
        self.threads, self.seed, self.report = threads, seed, report
        self.bounds = list(lower_bounds(instance))
        self.solution: ScheduleSolution | None = None
        self.objective: int | None = None
        self.found_by = ""
        self.named: tuple[NamedResult, ...] = ()
        self.solver_bound = False
        self.exhausted = False
        if start is not None:
            self._offer(start, "given")

    def run(self) -> ScheduleResult:
        """Solve until proven or out of time."""
        reason = certainly_infeasible(self.instance)
        if reason is not None:
            return self._result("infeasible", reason)
        self.named = named_schedules(self.instance)
        for result in self.named:
            self._offer(result.solution, result.name)
        self.report("named schedules", self.objective, self.bound)
        if not self._closed():
            self._lists()
        if not self._closed() and self.instance.kinds * self.instance.pairs <= _LARGEST_MODEL:
            self._exact()
        elif not self._closed() and periodic.refuses(self.instance) is None:
            found = periodic_schedule(self.instance, self.deadline)
            if found is not None:
                self._offer(found, "periodic")
        if self.objective is None:
            if self.exhausted:
                return self._result("infeasible", "no schedule keeps memory (CP-SAT)")
            return self._result("unknown")
        return self._result("optimal" if self._closed() else "feasible")

    @property
    def bound(self) -> int:
        """The best bound so far."""
        return self.bounds[0].ticks

    def _closed(self) -> bool:
        return self.objective is not None and self.objective <= self.bound

    def _offer(self, solution: ScheduleSolution, found_by: str) -> None:
        """Take a schedule if it keeps all rules and is shorter."""
        found = evaluate(self.instance, solution)
        if not found.feasible or found.makespan_ticks is None:
            return
        if self.objective is None or found.makespan_ticks < self.objective:
            self.solution, self.objective = solution, found.makespan_ticks
            self.found_by = found_by

    def _lists(self) -> None:
        until = time.monotonic() + _SEARCH_SHARE * max(0.0, self.deadline - time.monotonic())
        found = search(self.instance, self.bound, until)
        if found is not None:
            self._offer(found, "list scheduling")
        if self.instance.offers_offload and not self._closed():
            until = time.monotonic() + _SEARCH_SHARE * max(0.0, self.deadline - time.monotonic())
            moved = offload_schedule(self.instance, self.bound, until)
            if moved is not None:
                self._offer(moved, "offload heuristic")
        self.report("list scheduling", self.objective, self.bound)

    def _exact(self) -> None:
        from ilp_parallel.solvers.schedule_cpsat import solve_schedule

        left = self.deadline - time.monotonic()
        if left <= 0:
            return
        work = int(self.instance.device_load_ticks().sum())
        delays = int((2 * self.instance.cut_ticks * self.instance.microbatches.max()).sum())
        longest = self.bound + 4 * (work + delays)
        high = longest if self.objective is None else self.objective - 1
        began = self.objective
        outcome = solve_schedule(
            self.instance,
            self.bound,
            high,
            self.solution,
            left,
            self.threads,
            self.seed,
            lambda value, bound: self.report("CP-SAT", value, bound),
        )
        if outcome.solution is not None:
            self._offer(outcome.solution, "CP-SAT")
        if outcome.bound is not None and outcome.bound > self.bound:
            ceiling = outcome.bound if self.objective is None else self.objective
            self.bounds.insert(0, Bound("cp-sat", min(outcome.bound, ceiling), "whole model"))
            self.solver_bound = True
        self.exhausted = outcome.proven and outcome.solution is None and began is None
        self.report("CP-SAT", self.objective, self.bound)

    def _result(
        self, status: Literal["optimal", "feasible", "infeasible", "unknown"], reason: str = ""
    ) -> ScheduleResult:
        evaluation = None if self.solution is None else evaluate(self.instance, self.solution)
        proof: Literal["exact", "solver"] = "solver" if self.solver_bound else "exact"
        if status == "infeasible":
            proof = "solver" if self.exhausted else "exact"
        return ScheduleResult(
            status=status,
            proof=None if status == "unknown" else proof,
            solution=self.solution,
            evaluation=evaluation,
            objective=self.objective,
            bound=self.bound,
            bounds=tuple(self.bounds),
            named=self.named,
            found_by=self.found_by,
            reason=reason,
        )


def periodic_schedule(instance: ScheduleInstance, deadline: float) -> ScheduleSolution | None:
    """The best schedule around the steady state of the shortest period that has a timetable.

    Two ways to fill and drain: in the order of the timetable itself, and with the list scheduler
    kept to as many microbatches in flight as the timetable has on every stage. The instance is one
    that the periodic formulation does not refuse; ``deadline`` is a reading of
    :func:`time.monotonic`.
    """
    from ilp_parallel.solvers.cpsat import CpSatSolver
    from ilp_parallel.solvers.outcome import SolveOptions

    least = int(instance.durations().sum(axis=0).max())
    values = None
    for period in _periods(least):
        left = deadline - time.monotonic()
        if left <= 0 or values is not None:
            break
        program = periodic.build(instance, period)
        values = CpSatSolver()(program, SolveOptions(time_limit_s=min(left, 10.0))).values
        orders = None if values is None else periodic.decode(instance, values, period)
    if values is None or orders is None:
        return None
    found = [replay(instance, orders)]
    alive = periodic.microbatches_alive(instance, values)
    for patience in (0.0, 0.5, 1.0):
        for more in (0, 1):
            limits = tuple(count + more for count in alive)
            listed = dispatch(instance, Policy(limits, weight_patience=patience))
            found += [] if listed is None else [listed]
    kept = [(evaluate(instance, s), i, s) for i, s in enumerate(found)]
    fitting = [(e.makespan_ticks or 0, i, s) for e, i, s in kept if e.feasible]
    return min(fitting)[2] if fitting else None


def _periods(least: int) -> list[int]:
    """Periods to try: the shortest possible one, then about one per cent longer each."""
    found = [least]
    while found[-1] < 20 * least:
        found.append(max(found[-1] + 1, found[-1] * 101 // 100))
    return found
