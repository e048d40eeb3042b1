r"""Contents of stages whose layers are all alike, with everything that keeps the search small.

Applies to one layer class, free resharding, one chunk per device group, one bottleneck term and
free choice per layer. Before any knapsack is solved exactly, its linear relaxation bounds the time
``X_s(n)`` of stage ``s`` with ``n`` layers from below; from these bounds follow

* ``least_bottleneck``: no partition has a smaller maximum of X;
* a first solution, whose numerator becomes the cutoff if it beats the given one;
* the largest X that a better solution may have, hence the range of sizes of every stage;
* ``tail_floor``: the maximal tail that every better solution has at least.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ilp_parallel.baselines.pareto import pareto_rows
from ilp_parallel.baselines.relaxation import (
    Items,
    drop_dominated,
    relax,
    round_up,
    transient_levels,
)
from ilp_parallel.baselines.stage_knapsack import Window, stage_frontier
from ilp_parallel.baselines.stage_labels import Frontier, split_directions

if TYPE_CHECKING:
    from ilp_parallel.problems.pipeline import PipelineInstance

IntArray = npt.NDArray[np.int64]
_NEVER = 2**60


class EqualLayers:
    """First-level tables of one instance; build with :meth:`prepare`."""

    cutoff: int
    """Only numerators strictly below it are of interest; at most one above a known solution."""

    def __init__(self, instance: PipelineInstance) -> None:
        self._instance = instance
        self._time = (instance.forward_ticks + instance.backward_ticks)[0]
        self._tail = instance.tail_ticks[0]
        self._fixed_time = instance.stage_forward_ticks + instance.stage_backward_ticks
        self._fixed_tail = instance.fixed_tail_ticks
        self._room = (instance.capacity_bytes - instance.fixed_bytes).tolist()
        self._items = [self._stage_items(s) for s in range(instance.stages)]
        everything = np.flatnonzero(instance.allowed[0])
        self._usable = [drop_dominated(items, everything) for items in self._items]
        self._bounds: dict[tuple[int, int], int | None] = {}
        self._frontiers: dict[tuple[int, int], Frontier] = {}
        self._low = instance.min_layers.tolist()
        self._high = instance.max_layers.tolist()
        self._tail_floor = int(self._fixed_tail.max())
        self._most_time = _NEVER

    @property
    def _bottleneck_weight(self) -> int:
        return self._instance.objective.bottlenecks[0].weight

    @staticmethod
    def applies(instance: PipelineInstance) -> bool:
        """Whether layers are interchangeable and one bottleneck counts."""
        return (
            len(instance.forward_ticks) == 1
            and instance.reshard_forward_ticks is None
            and instance.chunks == 1
            and instance.policies is None
            and not split_directions(instance)
        )

    @classmethod
    def prepare(cls, instance: PipelineInstance, cutoff: int | None) -> EqualLayers | None:
        """Tables for all solutions below the cutoff; None proves that there is none."""
        if not instance.allowed.any():
            return None
        tables = cls(instance)
        if not tables._limit_sizes_by_memory():
            return None
        sizes = tables._balanced_sizes()
        if sizes is None:
            return None
        known = tables._round_up(sizes) + 1
        tables.cutoff = known if cutoff is None else min(cutoff, known)
        if not tables._limit_sizes_by_cutoff():
            return None
        return tables

    def _stage_items(self, stage: int) -> Items:
        instance = self._instance
        alive = int(instance.in_flight[stage].max())
        memory = instance.state_bytes[0] + alive * instance.activation_bytes[0]
        kind = np.zeros_like(memory)
        return Items(kind, self._time, self._tail, memory, instance.transient_bytes[0])

    # --- bounds on the time of a stage -------------------------------------------------------

    def _bound(self, stage: int, size: int) -> int | None:
        """Lower bound on X of a stage of that size; None if it cannot fit."""
        key = (stage, size)
        if key not in self._bounds:
            levels = transient_levels(self._items[stage], self._usable[stage], self._room[stage])
            values = [
                relaxation.value
                for usable, room in levels
                if (relaxation := relax(self._items[stage], usable, np.array([size]), room))
                is not None
            ]
            fixed = int(self._fixed_time[stage])
            self._bounds[key] = min(values) + fixed if values else None
        return self._bounds[key]

    def _limit_sizes_by_memory(self) -> bool:
        """Lower the largest sizes to what fits at all; false if the layers do not fit."""
        instance = self._instance
        for s, (items, usable) in enumerate(zip(self._items, self._usable, strict=True)):
            most = 0
            for keep, room in transient_levels(items, usable, self._room[s]):
                if room >= 0:
                    lightest = int(items.memory[keep].min())
                    most = max(most, room // lightest if lightest else instance.layers)
            others = instance.layers - sum(self._low) + self._low[s]
            self._high[s] = min(self._high[s], most, others)
        return all(low <= high for low, high in zip(self._low, self._high, strict=True)) and sum(
            self._low
        ) <= instance.layers <= sum(self._high)

    def _most_layers(self, stage: int, limit: int) -> int:
        """Largest size whose bound is at most ``limit``; one below the smallest size if none."""
        low, high = int(self._low[stage]) - 1, int(self._high[stage])
        while low < high:
            middle = (low + high + 1) // 2
            bound = self._bound(stage, middle)
            if bound is not None and bound <= limit:
                low = middle
            else:
                high = middle - 1
        return low

    def _fits(self, limit: int) -> bool:
        most = [self._most_layers(s, limit) for s in range(self._instance.stages)]
        if any(n < low for n, low in zip(most, self._low, strict=True)):
            return False
        return sum(most) >= self._instance.layers

    @cached_property
    def _least_bottleneck(self) -> int:
        """The smallest maximum of X that the bounds allow."""
        slowest = int(self._time[self._instance.allowed[0]].max()) * self._instance.layers
        low, high = 0, slowest + int(self._fixed_time.max())
        while low < high:
            middle = (low + high) // 2
            if self._fits(middle):
                high = middle
            else:
                low = middle + 1
        return low

    def _balanced_sizes(self) -> list[int] | None:
        """Sizes that reach the least bottleneck of the bounds, trimmed where X is largest."""
        limit = self._least_bottleneck
        if not self._fits(limit):
            return None
        sizes = [self._most_layers(s, limit) for s in range(self._instance.stages)]
        while sum(sizes) > self._instance.layers:
            trimmable = [s for s, n in enumerate(sizes) if n > self._low[s]]
            largest = max(trimmable, key=lambda s: self._bound(s, sizes[s]) or 0)
            sizes[largest] -= 1
        return sizes

    def _round_up(self, sizes: list[int]) -> int:
        """Numerator of a solution with these sizes, or a value above all if rounding fails."""
        times, tails = [], []
        for s, size in enumerate(sizes):
            items = self._items[s]
            rounded = [
                round_up(items, relaxation, np.array([size]), room)
                for usable, room in transient_levels(items, self._usable[s], self._room[s])
                if (relaxation := relax(items, usable, np.array([size]), room)) is not None
            ]
            time, tail = min(rounded)
            times.append(time + int(self._fixed_time[s]))
            tails.append(tail + int(self._fixed_tail[s]))
        objective = self._instance.objective
        weight = self._bottleneck_weight
        return sum(times) + weight * max(times) + objective.tail_weight * max(tails)

    # --- limits that follow from the cutoff ----------------------------------------------------

    def _limit_sizes_by_cutoff(self) -> bool:
        """Narrow sizes to what a better solution can have; false if there is none.

        A higher tail floor leaves less time, less time narrows the sizes, and narrower sizes raise
        the tail floor: repeated until nothing changes.
        """
        lowest_tail = int(self._tail[self._instance.allowed[0]].min())
        smallest = self._fixed_tail + lowest_tail * np.array(self._low)
        self._tail_floor = max(self._tail_floor, int(smallest.max()))
        while True:
            before = self._tail_floor, list(self._low), list(self._high)
            if not self._limit_sizes_once():
                return False
            self._tail_floor = max(self._tail_floor, self._tail_of_better_solutions())
            if before == (self._tail_floor, self._low, self._high):
                return True

    def _limit_sizes_once(self) -> bool:
        instance, objective = self._instance, self._instance.objective
        weight = self._bottleneck_weight
        fastest = int(self._time[instance.allowed[0]].min())
        total = int(self._fixed_time.sum()) + instance.layers * fastest
        spare = self.cutoff - 1 - total - objective.tail_weight * self._tail_floor
        if spare < weight * self._least_bottleneck:
            return False
        self._most_time = spare // weight if weight else self.cutoff
        self._high = [self._most_layers(s, self._most_time) for s in range(instance.stages)]
        excess = sum(self._high) - instance.layers
        self._low = [
            max(low, high - excess) for low, high in zip(self._low, self._high, strict=True)
        ]
        return excess >= 0 and all(n <= h for n, h in zip(self._low, self._high, strict=True))

    def _tail_of_better_solutions(self) -> int:
        r"""Lower bound on the maximal tail of solutions with no X above the largest allowed.

        For any rate :math:`\eta \ge 0`, ``n`` layers have a tail of at least
        :math:`n \min_k (\tau_k + \eta x_k) - \eta X`. Used for every stage at its smallest size,
        for some stage with at least ``L / p`` layers, and for the average over all stages.
        """
        instance = self._instance
        allowed = np.flatnonzero(instance.allowed[0])
        pairs = np.stack([self._time[allowed], self._tail[allowed]], axis=1)
        time, tail = pairs[pareto_rows(pairs)].T.tolist()  # the others are no minimum at any rate
        crowded = -(-instance.layers // instance.stages)
        bottleneck = self._bottleneck_weight * self._least_bottleneck
        most_time = self._most_time
        all_time = min(instance.stages * most_time, self.cutoff - 1 - bottleneck)
        all_time -= int(self._fixed_time.sum())
        best = 0
        for rise, run in _rates(time, tail):
            per_layer = min(run * u + rise * x for x, u in zip(time, tail, strict=True))
            empty = [
                run * int(fixed_tail) - rise * (most_time - int(fixed_time))
                for fixed_tail, fixed_time in zip(self._fixed_tail, self._fixed_time, strict=True)
            ]
            every = max(e + per_layer * n for e, n in zip(empty, self._low, strict=True))
            some = min(
                e + per_layer * crowded
                for e, high in zip(empty, self._high, strict=True)
                if high >= crowded
            )
            average = (
                run * int(self._fixed_tail.sum()) + instance.layers * per_layer - rise * all_time
            )
            best = max(best, -(-max(every, some) // run), -(-average // (run * instance.stages)))
        return best

    @cached_property
    def _suffixes(self) -> tuple[list[dict[int, int]], list[dict[int, int]]]:
        """Per stage and boundary: least sum and least maximum of X from there to the end."""
        instance = self._instance
        sums: list[dict[int, int]] = [{instance.layers: 0}]
        maxima: list[dict[int, int]] = [{instance.layers: 0}]
        for s in reversed(range(instance.stages)):
            total: dict[int, int] = {}
            largest: dict[int, int] = {}
            for size in range(self._low[s], self._high[s] + 1):
                bound = self._bound(s, size)
                if bound is None:
                    continue
                for boundary, rest in sums[0].items():
                    start = boundary - size
                    if start >= 0:
                        total[start] = min(total.get(start, _NEVER), rest + bound)
                        worst = max(bound, maxima[0][boundary])
                        largest[start] = min(largest.get(start, _NEVER), worst)
            sums.insert(0, total)
            maxima.insert(0, largest)
        return sums, maxima

    # --- interface to the second level -----------------------------------------------------------

    def completion_bound(self, stage: int, boundary: int) -> tuple[int, int, int]:
        """Least sum and maximum of X from ``stage`` on, and the tail floor."""
        sums, maxima = self._suffixes
        return sums[stage][boundary], maxima[stage][boundary], self._tail_floor

    def frontiers(
        self, stage: int, start: int, entry: int | None
    ) -> dict[int, dict[int | None, Frontier]]:
        """Contents of a stage by size; sizes that lead nowhere are left out."""
        del entry
        reachable = self._suffixes[0][stage + 1]
        result: dict[int, dict[int | None, Frontier]] = {}
        for size in range(self._low[stage], self._high[stage] + 1):
            if start + size in reachable and self._bound(stage, size) is not None:
                frontier = self._frontier(stage, size)
                if len(frontier.points):
                    result[size] = {None: frontier}
        return result

    def _frontier(self, stage: int, size: int) -> Frontier:
        key = (stage, size)
        if key not in self._frontiers:
            alone = self._instance.stages == 1
            points, counts = stage_frontier(
                self._items[stage],
                self._usable[stage],
                np.array([size]),
                self._room[stage],
                Window(
                    most_time=self._most_time - int(self._fixed_time[stage]),
                    free_tail=self._tail_floor - int(self._fixed_tail[stage]),
                    tail_weight=self._instance.objective.tail_weight,
                    time_weight=1 + self._bottleneck_weight if alone else 1,
                    alone=alone,
                ),
            )
            fixed = np.array([self._fixed_time[stage], self._fixed_tail[stage]])
            strategies = np.arange(counts.shape[1])
            contents = np.array(
                [np.repeat(strategies, row) for row in counts], dtype=np.int64
            ).reshape(len(counts), size)
            self._frontiers[key] = Frontier(points + fixed, contents)
        return self._frontiers[key]


def _rates(time: list[int], tail: list[int]) -> list[tuple[int, int]]:
    """Exchange rates (rise, run) between tail and time at which the cheapest strategy changes."""
    rates = {(0, 1)}
    for slow, low in zip(time, tail, strict=True):
        for fast, high in zip(time, tail, strict=True):
            if slow > fast and low < high:
                rates.add((high - low, slow - fast))
    return sorted(rates)
