r"""Contents of stages for layers of several kinds, with everything that keeps the search small.

Applies to free resharding, one chunk per device group, one bottleneck and free choice per layer. A
stage is a range of the chain of layers; its content is a knapsack over the layers that the range
has of each kind. Lower bounds on the time of every range (:mod:`ilp_parallel.chain_tables`, with
multipliers of this instance) tell which ranges a solution below the cutoff may have: the least sum
and the least bottleneck of what comes before and after a range are shortest paths.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ilp_parallel.baselines.relaxation import (
    Items,
    drop_dominated,
    relax,
    round_up,
    transient_levels,
)
from ilp_parallel.baselines.stage_knapsack import Window, stage_frontier
from ilp_parallel.baselines.stage_labels import Frontier, split_directions
from ilp_parallel.chain_tables import ChainTables

if TYPE_CHECKING:
    from ilp_parallel.problems.pipeline import PipelineInstance

IntArray = npt.NDArray[np.int64]
_NEVER = 2**60


class KindLayers:
    """First-level tables of one instance; build with :meth:`prepare`."""

    cutoff: int
    """Only numerators strictly below it are of interest; at most one above a known solution."""

    def __init__(self, instance: PipelineInstance) -> None:
        self._instance = instance
        self._fixed_time = instance.stage_forward_ticks + instance.stage_backward_ticks
        self._room = (instance.capacity_bytes - instance.fixed_bytes).tolist()
        kinds, strategies = instance.allowed.shape
        self._kind = np.repeat(np.arange(kinds), strategies)
        self._items = [self._stage_items(s) for s in range(instance.stages)]
        everything = np.flatnonzero(instance.allowed.ravel())
        self._usable = [drop_dominated(items, everything) for items in self._items]
        one_each = np.eye(kinds, dtype=np.int64)[instance.layer_class]
        start = np.zeros((1, kinds), dtype=np.int64)
        self._before = np.concatenate([start, np.cumsum(one_each, axis=0)])  # [L + 1, Q]
        self._contents: dict[tuple[int, tuple[int, ...]], tuple[IntArray, IntArray]] = {}
        objective = instance.objective
        self._weight = objective.bottlenecks[0].weight
        self._tail_weight = objective.tail_weight
        self._bound_ranges()

    @staticmethod
    def applies(instance: PipelineInstance) -> bool:
        """Whether contents are knapsacks and one bottleneck counts."""
        return (
            instance.reshard_forward_ticks is None
            and instance.chunks == 1
            and instance.policies is None
            and not split_directions(instance)
        )

    @classmethod
    def prepare(cls, instance: PipelineInstance, cutoff: int | None) -> KindLayers | None:
        """Tables for all solutions below the cutoff; None proves that there is none."""
        if not instance.allowed.any(axis=1).all():
            return None
        tables = cls(instance)
        known = tables._some_solution()
        if known is None:
            return None
        tables.cutoff = known + 1 if cutoff is None else min(cutoff, known + 1)
        return tables if tables._limit_ranges() else None

    def _stage_items(self, stage: int) -> Items:
        instance = self._instance
        alive = int(instance.in_flight[stage].max())
        memory = instance.state_bytes + alive * instance.activation_bytes
        time = instance.forward_ticks + instance.backward_ticks
        return Items(
            self._kind,
            time.ravel(),
            instance.tail_ticks.ravel(),
            memory.ravel(),
            instance.transient_bytes.ravel(),
        )

    # --- bounds on ranges ------------------------------------------------------------------------

    def _bound_ranges(self) -> None:
        """[p, L + 1, L + 1] bounds on X, on tails and on ``w X + gamma tail`` of every range."""
        instance = self._instance
        chain = ChainTables(instance)
        costs = chain.by_range(chain.stage_costs(chain.time, *chain.best_multipliers(chain.time)))
        self._bounds = np.minimum(costs + self._fixed_time[:, None, None], _NEVER)
        joint = chain.by_range(chain.joint_costs(*chain.best_multipliers(chain.joint)))
        self._peaks = np.minimum(joint, _NEVER)
        least = np.where(instance.allowed, instance.tail_ticks, _NEVER).min(axis=1)
        ends = np.append(0, np.cumsum(least[instance.layer_class]))
        tails = (ends[None, :] - ends[:, None])[None] + instance.fixed_tail_ticks[:, None, None]
        self._tail_floor = _path(np.where(self._bounds < _NEVER, tails, _NEVER), np.maximum)

    def _some_solution(self) -> int | None:
        """Numerator of a solution along a path of the least peak; None if there is no path.

        A value above all if rounding fails.
        """
        instance = self._instance
        peak = _path(self._peaks, np.maximum)
        if peak >= _NEVER:
            return None
        after = _suffixes(np.where(self._peaks <= peak, self._bounds, _NEVER), np.add)
        boundary, times, tails = 0, [], []
        for s in range(instance.stages):
            step = self._bounds[s, boundary] + after[s + 1]
            step = np.where(self._peaks[s, boundary] <= peak, step, _NEVER)
            end = int(step.argmin())
            need = self._before[end] - self._before[boundary]
            rounded = self._rounded(s, need)
            if rounded is None:
                return _NEVER
            times.append(rounded[0] + int(self._fixed_time[s]))
            tails.append(rounded[1] + int(instance.fixed_tail_ticks[s]))
            boundary = end
        return sum(times) + self._weight * max(times) + self._tail_weight * max(tails)

    def _rounded(self, stage: int, need: IntArray) -> tuple[int, int] | None:
        """Time and tail of some content."""
        if not need.any():
            return 0, 0
        items = self._items[stage]
        found = [
            round_up(items, relaxation, need, room)
            for usable, room in transient_levels(items, self._usable[stage], self._room[stage])
            if (relaxation := relax(items, usable, need, room)) is not None
        ]
        return min(found, default=None)

    def _limit_ranges(self) -> bool:
        """Drop ranges that no solution below the cutoff has; false if none are left."""
        weight, bounds = self._weight, self._bounds
        floor = self._tail_weight * self._tail_floor
        self._after_sum = _suffixes(bounds, np.add)
        self._after_peak = _suffixes(bounds, np.maximum)
        before_sum = _prefixes(bounds, np.add)
        before_peak = _prefixes(bounds, np.maximum)
        total = before_sum[:-1, :, None] + bounds + self._after_sum[1:, None, :]
        peak = np.maximum(np.maximum(before_peak[:-1, :, None], bounds), self._after_peak[1:, None])
        least_sum = int(self._after_sum[0, 0])
        useful = (
            np.minimum(total, _NEVER) + weight * np.minimum(peak, _NEVER // (weight + 1)) + floor
            < self.cutoff
        )
        useful &= least_sum + self._peaks < self.cutoff
        useful &= total < _NEVER
        self._useful = useful
        spare = self.cutoff - 1 - least_sum - floor
        self._most_time = spare // weight if weight else self.cutoff
        return bool(useful.any())

    # --- interface to the second level -----------------------------------------------------------

    def completion_bound(self, stage: int, boundary: int) -> tuple[int, int, int]:
        """Least sum and maximum of X from ``stage`` on, and the tail floor."""
        after = int(self._after_sum[stage, boundary]), int(self._after_peak[stage, boundary])
        return *after, self._tail_floor

    def frontiers(
        self, stage: int, start: int, entry: int | None
    ) -> dict[int, dict[int | None, Frontier]]:
        """Contents of a stage by size; sizes that lead nowhere are left out."""
        del entry
        result: dict[int, dict[int | None, Frontier]] = {}
        for end in np.flatnonzero(self._useful[stage, start]).tolist():
            points, counts = self._content(stage, self._before[end] - self._before[start])
            if len(points):
                contents = self._in_order(counts, start, end)
                result[end - start] = {None: Frontier(points, contents)}
        return result

    def _content(self, stage: int, need: IntArray) -> tuple[IntArray, IntArray]:
        """Points [n, 2], fixed parts included, and counts [n, items] of what a stage may hold."""
        instance = self._instance
        key = (stage, tuple(need.tolist()))
        if key not in self._contents:
            fixed = np.array([self._fixed_time[stage], instance.fixed_tail_ticks[stage]])
            alone = instance.stages == 1
            if need.any():
                points, counts = stage_frontier(
                    self._items[stage],
                    self._usable[stage],
                    need,
                    self._room[stage],
                    Window(
                        most_time=self._most_time - int(fixed[0]),
                        free_tail=self._tail_floor - int(fixed[1]),
                        tail_weight=self._tail_weight,
                        time_weight=1 + self._weight if alone else 1,
                        alone=alone,
                    ),
                )
            else:
                points = np.zeros((1, 2), dtype=np.int64)
                counts = np.zeros((1, len(self._kind)), dtype=np.int64)
            self._contents[key] = points + fixed, counts
        return self._contents[key]

    def _in_order(self, counts: IntArray, start: int, end: int) -> IntArray:
        """[n, layers] strategies of the layers of a range; those of a kind in rising order."""
        instance = self._instance
        kinds = instance.layer_class[start:end]
        contents = np.zeros((len(counts), end - start), dtype=np.int64)
        per_kind = counts.reshape(len(counts), -1, instance.strategies)
        strategies = np.arange(instance.strategies)
        for q in np.unique(kinds).tolist():
            rows = [np.repeat(strategies, row) for row in per_kind[:, q]]
            contents[:, kinds == q] = np.array(rows, dtype=np.int64)
        return contents


def _prefixes(steps: IntArray, join: np.ufunc) -> IntArray:
    """[p + 1, L + 1] least joined steps from the first boundary to each, by stages passed."""
    reached = np.full(steps.shape[1], _NEVER, dtype=np.int64)
    reached[0] = 0
    rows = [reached]
    for step in steps:
        reached = np.minimum(join(reached[:, None], step).min(axis=0), _NEVER)
        rows.append(reached)
    return np.stack(rows)


def _suffixes(steps: IntArray, join: np.ufunc) -> IntArray:
    """[p + 1, L + 1] least joined steps from each boundary to the last, by the stage to come."""
    return _prefixes(steps[::-1, ::-1, ::-1].transpose(0, 2, 1), join)[::-1, ::-1]


def _path(steps: IntArray, join: np.ufunc) -> int:
    """Least joined steps of a whole path."""
    return int(_prefixes(steps, join)[-1, -1])
