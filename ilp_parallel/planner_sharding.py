"""The ``sharding`` family solved: presolve, messages, fixing, exact core, large neighbourhoods."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from formulations.sharding import marginal
from ilp_parallel.errors import InputError
from ilp_parallel.problems.sharding import (
    IntArray,
    ShardingInstance,
    Timeline,
    chosen_usage,
    evaluate,
)
from ilp_parallel.sharding.memory_filter import filter_memory
from ilp_parallel.sharding.network import Infeasible
from ilp_parallel.sharding.presolve import Report, presolve

if TYPE_CHECKING:
    from collections.abc import Callable

    from ilp_parallel.sharding.dual import Dual
    from ilp_parallel.sharding.network import Core

_ROWS_AT_A_TIME = 20
_EXACT_PAIRS = 250_000
"""Cores with more pairs are left to large neighbourhoods first."""
_SUB_MODEL_PAIRS = 25_000
"""Pairs of strategies that the first sub-model frees; the number follows the time it takes."""
_LARGEST_PART_PAIRS = 1_000_000
_TURNS_BETWEEN_FIXING = 20
_PART_SECONDS = 6.0
_WIDE_GAP_SHARE, _NARROW_GAP_SHARE = 0.2, 0.1
_LAST_SHARE = 0.35
"""In this last share of the time no new round of messages begins: it could not be finished."""
_DESCENT_SHARE = 0.3
"""Share of the time for messages that local search may take."""


@dataclass(slots=True)
class ShardingResult:
    """What is known about an instance: plan, cost, bound, and what the bound rests on."""

    status: Literal["optimal", "feasible", "infeasible", "unknown"] = "unknown"
    proof: Literal["exact", "solver"] | None = None
    objective: int | None = None
    bound: int | None = None
    strategies: IntArray | None = None
    presolve: Report = field(default_factory=Report)


class ShardingPlanner:
    """One run on one instance; the plan and the bound only ever improve."""

    def __init__(
        self,
        instance: ShardingInstance,
        deadline: float,
        threads: int = 1,
        report: Callable[[str, int | None, int | None], None] = lambda *_: None,
    ) -> None:
        self.instance = instance
        self.began = time.monotonic()
        self.deadline = deadline
        self.threads = threads
        self.report = report
        self.result = ShardingResult()
        self.random = np.random.default_rng(0)
        self.cores: list[Core] = []
        self.duals: dict[int, Dual] = {}  # by number of the core
        self.best: tuple[int, IntArray] | None = None

    def run(self) -> ShardingResult:
        """Solve until proven or out of time."""
        result = self.result
        try:
            self._search()
        except Infeasible:
            if result.objective is None:
                result.status, result.proof = "infeasible", "exact"
                return result
            self._raise_bound(result.objective, "exact")
        if result.objective is not None:
            closed = result.bound is not None and result.bound >= result.objective
            result.status = "optimal" if closed else "feasible"
        return result

    def _left(self) -> float:
        return self.deadline - time.monotonic()

    def _search(self) -> None:
        core, self.result.presolve = presolve(self.instance, time.monotonic() + 0.4 * self._left())
        self.cores = [core]
        for _ in range(3):
            before = len(core.instance.edge_cost)
            core, _ = presolve(filter_memory(core.instance), time.monotonic() + 0.2 * self._left())
            self.cores.append(core)
            if len(core.instance.edge_cost) > 0.9 * before:
                break
        self._say(f"presolve to {core.instance.operators} operators")
        multipliers: dict[int, float] = {}
        total = self._left()
        while not self._closed() and self._left() > 0 and self.result.status != "infeasible":
            if self.best is not None and self._left() < _LAST_SHARE * total:
                self._neighbourhoods(self.deadline)
                return
            core = self._bound_and_fix(core, multipliers, total)
            if not self._closed() and len(core.instance.edge_cost) <= _EXACT_PAIRS:
                self._exact(core, self._left())
            if not self._closed():
                self._neighbourhoods(min(self.deadline, time.monotonic() + 0.25 * total))

    def _bound_and_fix(self, core: Core, multipliers: dict[int, float], total: float) -> Core:
        """Messages, then fixing, again while fixing removes much."""
        while not self._closed() and self._left() > 0:
            before = len(core.instance.edge_cost)
            until = min(self.deadline, time.monotonic() + self._share() * total)
            dual = self._bound(core, multipliers, until)
            if self._closed() or self.result.objective is None or self._left() < 0.2 * total:
                break
            core = self._fix(dual, core)
            if len(core.instance.edge_cost) > 0.8 * before:
                break
        return core

    def _share(self) -> float:
        """Share of the time for the next messages: more while the gap is wide."""
        r = self.result
        if r.objective is None or r.bound is None or r.objective - r.bound > r.objective // 100:
            return _WIDE_GAP_SHARE
        return _NARROW_GAP_SHARE

    def _closed(self) -> bool:
        r = self.result
        return r.objective is not None and r.bound is not None and r.bound >= r.objective

    def _say(self, stage: str) -> None:
        self.report(stage, self.result.objective, self.result.bound)

    def _raise_bound(self, bound: int, proof: Literal["exact", "solver"]) -> None:
        """Take a bound on all plans cheaper than the incumbent: itself capped by it."""
        if self.result.objective is not None:
            bound = min(bound, self.result.objective)
        if self.result.bound is None or bound > self.result.bound:
            self.result.bound, self.result.proof = bound, proof

    def _offer(self, core_plan: IntArray, depth: int | None = None) -> bool:
        """Take a plan of core ``depth`` (by default the last) if feasible and cheaper."""
        plan = core_plan
        depth = len(self.cores) - 1 if depth is None else depth
        for core in reversed(self.cores[: depth + 1]):
            plan = core.restore(plan)
        verdict = evaluate(self.instance, plan)
        better = verdict.feasible and verdict.objective is not None
        if better and verdict.objective is not None:
            known = self.result.objective
            better = known is None or verdict.objective < known
        if better:
            self.result.objective, self.result.strategies = verdict.objective, plan
            self.best = (depth, core_plan)
            self._say("plan")
        return better

    def _fix(self, dual: Dual, core: Core) -> Core:
        from ilp_parallel.sharding.fixing import fixed

        assert self.result.objective is not None
        core, _ = presolve(
            filter_memory(fixed(dual, self.result.objective)),
            time.monotonic() + 0.15 * self._left(),
        )
        self.cores.append(core)
        self._say(
            f"fixed to {core.instance.operators} operators, {len(core.instance.edge_cost)} pairs"
        )
        return core

    def _bound(self, core: Core, multipliers: dict[int, float], until: float) -> Dual:
        """Messages and multipliers; plans from their roundings."""
        from ilp_parallel.sharding.dual import Dual
        from ilp_parallel.sharding.primal import LocalSearch, least_memory, price

        dual = Dual(core.instance)
        self.duals = {
            d: known for d, known in self.duals.items() if self.best and d == self.best[0]
        }
        self.duals[len(self.cores) - 1] = dual
        search = LocalSearch(dual)
        y = np.zeros(dual.timeline.segments)
        for instant, value in multipliers.items():
            at = int(np.searchsorted(dual.timeline.times, instant, side="right")) - 1
            y[max(at, 0)] += value * 2.0**dual.shift
        dual.set_multipliers(y)
        best, best_y, direction, step = -math.inf, y, np.zeros(len(y)), 1.0
        cheapest: int | None = None
        stale, descending, entered = 0, 0.0, time.monotonic()
        for turn in range(100_000):
            bound = dual.improve()
            plan = dual.rounded()
            excess = dual.excess(plan).astype(np.float64)
            if bound > best:
                best, best_y, stale = bound, y, 0
                step = min(1.0, step * 1.1)
                self._raise_bound(bound, "exact")
            else:
                step = max(0.005, step * 0.9)
                stale += 1
            allowed = _DESCENT_SHARE * (time.monotonic() - entered)
            if turn % 20 == 0 and descending <= allowed:
                began = time.monotonic()
                lost = turn > 0 and self.result.objective is None
                start = least_memory(core.instance) if lost else plan
                found = search.improve(start, self.random, min(until, self.deadline))
                descending += time.monotonic() - began
                cost = price(core.instance, found)
                if cost is not None and (cheapest is None or cost < cheapest):
                    cheapest = cost
                    self._offer(found)
            if time.monotonic() > until or self._closed() or stale > 120:
                break
            if stale % 20 == 19:
                y, direction = best_y, np.zeros(len(y))
                dual.set_multipliers(y)
            elif turn % 2:
                y, direction = self._step(dual, excess, direction, bound, step)
        dual.set_multipliers(best_y)
        self._raise_bound(max(dual.improve() for _ in range(5)), "exact")
        multipliers.clear()
        for s in np.flatnonzero(best_y):
            multipliers[int(dual.timeline.times[s])] = float(best_y[s]) / 2.0**dual.shift
        self._say("messages")
        return dual

    def _step(
        self, dual: Dual, excess: np.ndarray, direction: np.ndarray, bound: int, step: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """A Polyak step along the active rows and the worst one."""
        y = dual.multipliers.copy()
        active = y > 0
        if excess.max(initial=0) > 0:
            active[int(excess.argmax())] = True
        g = np.where(active, excess, 0.0)
        direction = g + 0.5 * np.where(active, direction, 0.0)
        norm = float((direction**2).sum())
        if norm > 0:
            aim = self.result.objective
            gap = abs(bound) // 20 + 1
            if aim is not None:
                gap = max(1, min(gap, aim - bound))
            y = np.maximum(0.0, y + step * gap * 2.0**dual.shift / norm * direction)
            dual.set_multipliers(y)
        return y, direction

    def _exact(self, core: Core, limit_s: float) -> None:
        """The core by branch and bound."""
        plan, bound, complete = solve_marginal(core.instance, limit_s, self.threads)
        if plan is not None:
            self._offer(plan)
        known = self.result.objective
        least = None if plan is None else evaluate(core.instance, plan).objective
        if complete and least is not None:
            self._raise_bound(least, "solver")
        elif complete and known is not None:  # nothing cheaper is left
            self._raise_bound(known, "solver")
        elif complete:
            self.result.status, self.result.proof = "infeasible", "solver"
        elif bound is not None:
            self._raise_bound(bound, "solver")
        self._say("exact core")

    def _neighbourhoods(self, until: float) -> None:
        """Free a part of the best plan, solve it exactly, keep what is better.

        Works in the core in which that plan was found: later cores have no room for it.
        """
        from ilp_parallel.sharding.dual import Dual
        from ilp_parallel.sharding.fixing import fixed
        from ilp_parallel.sharding.primal import neighbourhood, price, sub_instance

        if self.best is None:
            return
        depth, plan = self.best
        instance = self.cores[depth].instance
        dual = self.duals.get(depth) or Dual(instance)
        cost = price(instance, plan)
        size, fresh = _SUB_MODEL_PAIRS, True
        while cost is not None and not self._closed():
            if fresh:
                improving, fresh, turns = fixed(dual, cost), False, 0
            began = time.monotonic()
            if until - began < 0.2:
                return
            free = neighbourhood(instance, dual, size, self.random)
            part = sub_instance(improving, dual.timeline, plan, free)
            found = self._solve_part(part, until)
            spent, turns = time.monotonic() - began, turns + 1
            size = int(size * (1.15 if spent < 1.0 else 0.7 if spent > 4.0 else 1.0))
            size = min(max(size, 2_000), _LARGEST_PART_PAIRS)
            if found is None:
                continue
            trial = plan.copy()
            trial[free] = found[1:]
            new = price(instance, trial)
            if new is not None and new < cost:
                cost, plan, fresh = new, trial, turns > _TURNS_BETWEEN_FIXING
                self._offer(plan, depth)

    def _solve_part(self, part: ShardingInstance, until: float) -> IntArray | None:
        """The best plan of a sub-model that is found in a few seconds."""
        stop = min(until, time.monotonic() + _PART_SECONDS)
        try:
            core, _ = presolve(filter_memory(part), stop)
        except Infeasible:
            return None
        found, _, _ = solve_marginal(core.instance, stop - time.monotonic(), self.threads)
        return None if found is None else core.restore(found)


def solve_marginal(
    instance: ShardingInstance, limit_s: float, threads: int
) -> tuple[IntArray | None, int | None, bool]:
    """Plan, bound and whether the search was complete, with memory rows added where broken."""
    from ilp_parallel.solvers.highs import HighsSolver
    from ilp_parallel.solvers.outcome import SolveOptions

    until = time.monotonic() + limit_s
    timeline = Timeline.of(instance)
    rows: set[int] = set()
    bound: int | None = None
    while (left := until - time.monotonic()) > 0:
        program = marginal.build(instance, np.array(sorted(rows), dtype=np.int64))
        try:
            outcome = HighsSolver()(program, SolveOptions(time_limit_s=left, threads=threads))
        except InputError:  # numbers too large for floating point: no help from this solver
            break
        if outcome.status == "infeasible":
            return None, None, True
        if outcome.bound is not None and math.isfinite(outcome.bound):
            bound = max(bound or 0, math.ceil(outcome.bound - 0.5))
        if outcome.values is None:
            break
        plan = marginal.decode(instance, outcome.values)
        load = timeline.loads(chosen_usage(instance, plan))
        if load.max(initial=0) <= instance.limit:
            return plan, bound, outcome.status == "optimal"
        rows.update(_peaks(load, instance.limit))
        if outcome.status != "optimal":
            break
    return None, bound, False


def _peaks(load: IntArray, limit: int) -> list[int]:
    """The worst broken segments, local maxima only."""
    padded = np.concatenate([[-1], load, [-1]])
    peak = (load > limit) & (load >= padded[:-2]) & (load > padded[2:])
    places = np.flatnonzero(peak)
    worst = places[np.argsort(-load[places], kind="stable")[:_ROWS_AT_A_TIME]]
    return [int(s) for s in worst]
