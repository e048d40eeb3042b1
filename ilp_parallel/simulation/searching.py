"""The search for the quickest plan when its schedule is played through.

The plan that is best by formula is the first incumbent. Configurations are bounded
(:mod:`ilp_parallel.simulation.bounding`) and looked at from the least bound on. Without a pipeline
a configuration is solved exactly, by the dynamic program. Else plans of it are played: the best one
by formula, and what it becomes when layers move between neighbouring stages. There is no exact
method for these, so a configuration whose bound stays below the incumbent is left open, and the
result is ``feasible`` with its gap unless there is none.
"""

from __future__ import annotations

import heapq
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from msgspec import structs

from ilp_parallel.baselines.two_level_dp import two_level_dp
from ilp_parallel.bounds import (
    Multipliers,
    best_combined_bound,
    best_lagrangian_bound,
    memory_shortfall,
    work_bound,
)
from ilp_parallel.certificate import (
    ChosenPlan,
    Fate,
    NoStrategy,
    Open,
    Solved,
    TooLittleMemory,
    closed_by,
)
from ilp_parallel.instances import InstanceBuilder, fold, plan_of, unfold
from ilp_parallel.planner import SearchProgress, SearchResult, search
from ilp_parallel.problems.pipeline import PipelineSolution, evaluate
from ilp_parallel.schedule_bounds import lower_bound
from ilp_parallel.simulate import stage_times
from ilp_parallel.simulation.bounding import simulated_bound, simulated_multipliers
from ilp_parallel.simulation.verifying import (
    floor_of,
    played_ticks,
    simulated_configurations,
)
from ilp_parallel.spaces import Refusal, get_space

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ilp_parallel.configuration import Configuration
    from ilp_parallel.costs.model import CostModel
    from ilp_parallel.planner import SearchOptions
    from ilp_parallel.problems.pipeline import PipelineInstance

MOST_TRIED = 24
"""Configurations with a pipeline of which plans are played (chosen)."""

MOST_OPERATIONS = 2_000_000
"""Operations that moving layers in one configuration may play (chosen; about two seconds)."""


@dataclass(slots=True)
class _Candidate:
    index: int
    configuration: Configuration
    bound: int
    multipliers: Multipliers | None = None
    looks: int = 0  # how often it was bounded better


@dataclass(frozen=True, slots=True)
class _Incumbent:
    ticks: int
    configuration: Configuration
    solution: PipelineSolution  # folded


def search_simulated(
    options: SearchOptions, costs: CostModel, by_formula: SearchResult | None = None
) -> SearchResult:
    """The quickest plan found when played through, and a bound on all others.

    Parameters
    ----------
    options
        As for :func:`~ilp_parallel.planner.search`.
    costs
        Cost model of model, cluster and job.
    by_formula
        The result of the search by formula for the same options, where it is known.

    Raises
    ------
    InputError
        As :func:`~ilp_parallel.planner.search`.
    """
    started = time.perf_counter()
    first = by_formula or search(costs.model, costs.cluster, costs.job, options, costs)
    return _SimulatedSearch(costs, options, first, started).run()


class _SimulatedSearch:
    """State of one search."""

    def __init__(
        self, costs: CostModel, options: SearchOptions, first: SearchResult, started: float
    ) -> None:
        self._costs, self._options, self._first, self._started = costs, options, first, started
        self._space = get_space(options.space)
        self._builder = InstanceBuilder(costs, self._space, options.pins)
        self._refusals: list[Refusal] = []
        self._fates: dict[int, Fate] = {}
        self._queue: list[tuple[int, int, _Candidate]] = []
        self._open: list[_Candidate] = []
        self._incumbent: _Incumbent | None = None
        self._tried = 0

    def run(self) -> SearchResult:
        """Bound all, look at them from the least bound on, and sort out what is left."""
        self._enumerate()
        chosen = self._first.certificate.plan
        if chosen is not None and self._first.plan is not None:
            g = self._first.plan.configuration
            self._offer(g, self._builder.unfolded(g), chosen.solution)
        while self._queue and not self._stopped():
            bound, _, candidate = heapq.heappop(self._queue)
            self._report(bound)
            if self._incumbent is not None and bound >= self._incumbent.ticks:
                self._close(candidate)
            elif candidate.looks == 0:
                self._look_at(candidate)
            elif candidate.looks == 1:
                self._look_again(candidate)
            elif self._try_plans(candidate):
                self._open.append(candidate)
        return self._result()

    def _enumerate(self) -> None:
        index = 0
        options = self._options
        for item in simulated_configurations(
            self._costs, self._space, options.pins, options.schedules
        ):
            if isinstance(item, Refusal):
                self._refusals.append(item)
                continue
            bound = floor_of(self._builder, item)
            if bound is None:
                self._fates[index] = NoStrategy(item.name)
            else:
                self._push(_Candidate(index, item, bound))
            index += 1

    def _push(self, candidate: _Candidate) -> None:
        heapq.heappush(self._queue, (candidate.bound, candidate.index, candidate))

    def _look_at(self, candidate: _Candidate) -> None:
        """Refute a configuration by memory, or bound it better; without a pipeline settle it."""
        unfolded = self._builder.unfolded(candidate.configuration)
        folded = fold(unfolded) if unfolded.chunks > 1 else unfolded
        name = candidate.configuration.name
        shortfall = memory_shortfall(folded)
        if shortfall is not None:
            self._fates[candidate.index] = TooLittleMemory(name, shortfall.placeable)
            return
        if unfolded.stages == 1:
            self._settle(candidate, unfolded)
            return
        candidate.looks = 1
        multipliers = simulated_multipliers(unfolded)
        bound = simulated_bound(unfolded, multipliers)
        if bound > candidate.bound:
            candidate.bound, candidate.multipliers = bound, multipliers
        self._push(candidate)

    def _look_again(self, candidate: _Candidate) -> None:
        """Let the contents of stages solved exactly raise the bound."""
        candidate.looks = 2
        unfolded = self._builder.unfolded(candidate.configuration)
        multipliers = simulated_multipliers(unfolded)
        bound = simulated_bound(unfolded, multipliers, exact_stages=True)
        if bound > candidate.bound:
            candidate.bound, candidate.multipliers = bound, multipliers
        self._push(candidate)

    def _settle(self, candidate: _Candidate, instance: PipelineInstance) -> None:
        """Without a pipeline a bound of the formula or the dynamic program closes it."""
        incumbent = self._incumbent
        name = candidate.configuration.name
        found: list[tuple[int, Multipliers | None]] = [(work_bound(instance), None)]
        found += [b for b in (best_lagrangian_bound(instance), best_combined_bound(instance)) if b]
        for bound, multipliers in found:
            if incumbent is not None and bound >= incumbent.ticks:
                self._fates[candidate.index] = closed_by(name, bound, multipliers)
                return
        cutoff = None if incumbent is None else incumbent.ticks
        optimum = two_level_dp(instance, cutoff)
        numerator = None if optimum is None else optimum.numerator
        self._fates[candidate.index] = Solved(name, numerator, cutoff, ("two_level_dp",))
        if optimum is not None:
            self._offer(candidate.configuration, instance, optimum.solution)

    def _close(self, candidate: _Candidate) -> None:
        name = candidate.configuration.name
        fate = closed_by(name, candidate.bound, candidate.multipliers)
        self._fates[candidate.index] = fate

    # --- plans -------------------------------------------------------------------------------

    def _offer(
        self, configuration: Configuration, unfolded: PipelineInstance, solution: PipelineSolution
    ) -> bool:
        """Play a plan that fits; true if it becomes the incumbent."""
        whole = unfold(solution, configuration.chunks)
        if not evaluate(unfolded, whole).feasible:
            return False
        times = stage_times(unfolded, whole)
        best = self._incumbent
        bound = lower_bound(times, unfolded.schedule, unfolded.microbatches)
        if best is not None and bound >= best.ticks:
            return False
        ticks = played_ticks(unfolded, whole)
        if best is not None and ticks >= best.ticks:
            return False
        self._incumbent = _Incumbent(ticks, configuration, solution)
        return True

    def _try_plans(self, candidate: _Candidate) -> bool:
        """Play the best plan by formula and its neighbours; false if no plan fits."""
        if self._tried >= MOST_TRIED and self._incumbent is not None:
            return True
        self._tried += 1
        g = candidate.configuration
        unfolded = self._builder.unfolded(g)
        optimum = two_level_dp(fold(unfolded) if g.chunks > 1 else unfolded)
        if optimum is None:
            self._fates[candidate.index] = Solved(g.name, None, None, ("two_level_dp",))
            return False
        self._offer(g, unfolded, optimum.solution)
        if g.chunks == 1:
            self._move_layers(g, unfolded, optimum.solution)
        return True

    def _move_layers(
        self, g: Configuration, unfolded: PipelineInstance, solution: PipelineSolution
    ) -> None:
        """Move single layers between neighbouring stages while that makes a better incumbent."""
        best = self._incumbent
        if best is not None and best.configuration == g:
            solution = best.solution
        moves = MOST_OPERATIONS // (2 * g.pipeline * g.microbatches)
        while moves > 0:
            better = None
            for other in _moved(solution):
                moves -= 1
                if moves < 0:
                    break
                if self._offer(g, unfolded, other):
                    better = other
            if better is None:
                return
            solution = better

    # --- limits, progress, result ------------------------------------------------------------

    def _elapsed_s(self) -> float:
        return time.perf_counter() - self._started

    def _stopped(self) -> bool:
        limit, cancelled = self._options.time_limit_s, self._options.cancelled
        if limit is not None and self._elapsed_s() >= limit:
            return True
        return cancelled is not None and cancelled()

    def _report(self, bound: int) -> None:
        if self._options.progress is not None:
            incumbent = None if self._incumbent is None else self._incumbent.ticks
            left = len(self._queue) + 1 + len(self._open)
            self._options.progress(SearchProgress(self._elapsed_s(), incumbent, bound, left))

    def _result(self) -> SearchResult:
        best = self._incumbent
        floors: list[int] = []
        for candidate in (*self._open, *(c for _, _, c in self._queue)):
            if best is not None and candidate.bound >= best.ticks:
                self._close(candidate)
                continue
            floors.append(candidate.bound)
            name = candidate.configuration.name
            self._fates[candidate.index] = Open(name, candidate.bound, candidate.multipliers)
        if best is None:
            status = "unknown" if floors else "infeasible"
        else:
            status = "feasible" if floors else "optimal"
        known = [*floors] if best is None else [*floors, best.ticks]
        certificate = structs.replace(
            self._first.certificate,
            status=status,
            objective_ticks=None if best is None else best.ticks,
            bound_ticks=min(known, default=None),
            plan=None if best is None else ChosenPlan(best.configuration.name, best.solution),
            refusals=tuple(self._refusals),
            fates=tuple(fate for _, fate in sorted(self._fates.items())),
            minimised="simulated-step-time",
        )
        plan = instance = None
        if best is not None:
            plan = plan_of(self._costs, self._space, best.configuration, best.solution)
            instance = self._builder.build(best.configuration)
        return replace(
            self._first,
            certificate=certificate,
            plan=plan,
            instance=instance,
            dp_ticks=None,
            rounding_floor_ticks=None,
            search_s=self._elapsed_s(),
        )


def _moved(solution: PipelineSolution) -> Iterator[PipelineSolution]:
    """One layer from a stage to its neighbour, where it does as the layer next to it does."""
    ends = [layers.stop for layers in solution.stage_ranges()]
    for s in range(len(ends) - 1):
        border = ends[s]
        for layer, like, step in ((border - 1, border, -1), (border, border - 1, 1)):
            sizes, strategies = list(solution.sizes), list(solution.strategies)
            sizes[s] += step
            sizes[s + 1] -= step
            strategies[layer] = strategies[like]
            if sizes[s] and sizes[s + 1]:
                yield PipelineSolution(tuple(sizes), tuple(strategies))
