r"""Arrays behind the Lagrangian bound where layers are of several kinds, in exact integers.

A stage is a range ``[i, j)`` of the chain of layers. With multipliers
:math:`\lambda_{s\theta} \ge 0` on the memory row of group ``s`` when no transient exceeds
:math:`\theta`, layers of cost ``y`` cost

.. math::
    g_s(i, j) \ge \min_\theta \max\Big( \sum_{l=i}^{j-1} \min_{k: \theta_{lk} \le \theta} y_{lk}, \;
    \sum_{l=i}^{j-1} \min_{k: \theta_{lk} \le \theta} (y_{lk} + \lambda_{s\theta} \mu_{slk})
    - \lambda_{s\theta} (A_s - \theta) \Big)

with the notation of :mod:`ilp_parallel.bounds`. A range is priced by how many layers of each kind
it has, so ranges that have as many of each (its *contents*) are priced once. The least sum of a
plan is a shortest path through the boundaries, the least peak a path whose largest step is least.

Levels :math:`\theta` that are many are gathered into a few: a level then stands for all transients
of an interval, its strategies being those up to the largest and its room what the smallest leaves,
which only weakens the bound.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ilp_parallel.lagrangian import PRODUCT_LIMIT, fixed_time, weights

if TYPE_CHECKING:
    from ilp_parallel.problems.pipeline import IntArray, PipelineInstance

FloatArray = npt.NDArray[np.float64]
MOST_LEVELS = 8
"""Levels of transients kept apart (chosen: more cost time and bring little)."""


class ChainTables:
    """Arrays of one instance with one chunk per device group.

    Axes: ``[p]`` device groups, ``[W]`` levels, ``[Q]`` kinds, ``[I]`` items (a strategy of a kind
    that no other strategy of it matches in everything), ``[U]`` contents, ``[L + 1]`` boundaries.
    """

    def __init__(self, instance: PipelineInstance) -> None:
        self._instance = instance
        self._contents, self._content_of = _contents(tuple(instance.layer_class.tolist()))
        self.weight, self.tail_weight = weights(instance.objective)
        alive = np.array([int(rows.max()) for rows in instance.in_flight], dtype=np.int64)
        kind, strategy = _undominated(instance, int(alive.min()), int(alive.max()))
        self._kind = kind  # [I] rising
        self.time: IntArray = (instance.forward_ticks + instance.backward_ticks)[kind, strategy]
        self.joint: IntArray = (
            self.weight * self.time + self.tail_weight * instance.tail_ticks[kind, strategy]
        )
        self.combined: IntArray = instance.stages * self.time + self.joint
        state = instance.state_bytes[kind, strategy]
        self._memory = state + alive[:, None] * instance.activation_bytes[kind, strategy]  # [p, I]
        transient = instance.transient_bytes[kind, strategy]
        low, high = _levels(transient)
        self._within = transient <= high[:, None]  # [W, I]
        available = instance.capacity_bytes - instance.fixed_bytes
        self._room: IntArray = available[:, None] - low  # [p, W]
        fixed = fixed_time(instance)
        self._fixed_joint = self.weight * fixed + self.tail_weight * instance.fixed_tail_ticks
        self.fixed_time_sum = int(fixed.sum())
        self.fixed_combined_sum = int((instance.stages * fixed + self._fixed_joint).sum())

    @property
    def shape(self) -> tuple[int, int]:
        """Device groups and levels."""
        return self._room.shape[0], self._room.shape[1]

    # --- sums over ranges ----------------------------------------------------------------------

    def _least_per_kind(self, values: IntArray) -> IntArray:
        """[..., Q] least of values [..., I] per kind; ``_NEVER`` where there is no other."""
        starts = np.searchsorted(self._kind, np.arange(self._kinds))
        least: IntArray = np.minimum.reduceat(values, starts, axis=-1)
        return least

    @property
    def _kinds(self) -> int:
        return int(self._kind[-1]) + 1

    def _sums(self, per_kind: IntArray) -> IntArray:
        """[..., U] sums over the layers of all contents, from values [..., Q]."""
        sums: IntArray = per_kind @ self._contents.T
        return sums

    def _prefix(self, per_kind: IntArray) -> IntArray:
        """[..., L + 1] sums over the first layers."""
        layers = per_kind[..., self._instance.layer_class]
        start = np.zeros((*layers.shape[:-1], 1), dtype=np.int64)
        return np.concatenate([start, np.cumsum(layers, axis=-1)], axis=-1)

    def _least_within(self, values: IntArray) -> IntArray:
        """[W, p, U] sums of the least values [p, I] or [W, p, I] per level and kind.

        0 where a kind has no item of the level; :attr:`fits` leaves such contents out.
        """
        within = np.where(self._within[:, None, :], values, _NEVER)
        least = self._least_per_kind(within)
        return self._sums(np.where(least < _NEVER, least, 0))

    @cached_property
    def fits(self) -> npt.NDArray[np.bool_]:
        """[W, p, U] contents that fit when no transient exceeds a level."""
        instance = self._instance
        size = self._contents.sum(axis=1)
        least, most = instance.min_layers[:, None], instance.max_layers[:, None]
        sized = (size >= least) & (size <= most)
        missing = self._least_per_kind(
            (~self._within).astype(np.int64)
        )  # [W, Q] no item of a level
        covered = self._sums(missing) < 1
        needed = self._least_within(self._memory)
        enough = (needed <= self._room.T[:, :, None]) | (size == 0)
        fits: npt.NDArray[np.bool_] = enough & sized & covered[:, None, :]
        return fits

    def placeable(self) -> tuple[int, ...]:
        """Layers by which each device group can push the furthest boundary, memory alone seen."""
        fits: npt.NDArray[np.bool_] = np.any(self.fits, axis=0)
        nothing = np.zeros((*fits.shape[:1], 1), dtype=np.bool_)
        fits = np.concatenate([fits, nothing], axis=1)[:, self._content_of]
        reached: npt.NDArray[np.bool_] = np.zeros(self._instance.layers + 1, dtype=np.bool_)
        reached[0] = True
        furthest = [0]
        for group in range(self.shape[0]):
            reached = np.any(fits[group][reached], axis=0)
            furthest.append(int(np.flatnonzero(reached).max(initial=furthest[-1])))
        if not reached[-1]:
            furthest[-1] = min(furthest[-1], self._instance.layers - 1)
        return tuple(np.diff(furthest).tolist())

    def stage_costs(self, cost: IntArray, denominator: int, multipliers: IntArray) -> IntArray:
        """[p, U] lower bounds ``g_s``; ``PRODUCT_LIMIT`` where nothing fits."""
        plain = self._least_within(cost[None, :])
        price = denominator * cost + multipliers.T[:, :, None] * self._memory
        paid = (multipliers * self._room).T[:, :, None]
        bounds = np.maximum(plain, -((paid - self._least_within(price)) // denominator))
        best: IntArray = np.where(self.fits, bounds, PRODUCT_LIMIT).min(axis=0)
        return best

    def joint_costs(self, denominator: int, multipliers: IntArray) -> IntArray:
        """[p, U] lower bounds on ``w X + gamma tail``, fixed parts included."""
        costs = self.stage_costs(self.joint, denominator, multipliers)
        return np.minimum(costs + self._fixed_joint[:, None], PRODUCT_LIMIT)

    # --- paths ---------------------------------------------------------------------------------

    def least_sum(self, costs: IntArray) -> int:
        """Least sum of steps over all partitions; ``PRODUCT_LIMIT`` if there is none."""
        length = self._origin()
        for step in self.by_range(costs):
            length = np.minimum((length[:, None] + step).min(axis=0), PRODUCT_LIMIT)
        return int(length[-1])

    def least_peak(self, costs: IntArray) -> int:
        """Least largest step over all partitions."""
        largest = self._origin()
        for step in self.by_range(costs):
            largest = np.maximum(largest[:, None], step).min(axis=0)
        return int(largest[-1])

    def by_range(self, costs: IntArray) -> IntArray:
        """[p, L + 1, L + 1] costs of ranges, from those [p, U] of their contents."""
        nowhere = np.full((len(costs), 1), PRODUCT_LIMIT, dtype=np.int64)
        steps: IntArray = np.concatenate([costs, nowhere], axis=1)[:, self._content_of]
        return steps

    def _origin(self) -> IntArray:
        start = np.full(self._instance.layers + 1, PRODUCT_LIMIT, dtype=np.int64)
        start[0] = 0
        return start

    # --- multipliers ---------------------------------------------------------------------------

    def best_multipliers(self, cost: IntArray) -> tuple[int, IntArray]:
        """Denominator and numerators [p, W] that are best for stages of about equal work.

        Floating point only chooses: any multipliers give a valid bound.
        """
        slopes = self._best_slopes(cost)
        largest_cost = max(int(cost.max()), self.weight) * self._instance.layers + 1
        denominator = max(1, PRODUCT_LIMIT // (4 * largest_cost))
        if slopes.max() > 0:
            scale = PRODUCT_LIMIT // (4 * self._largest_memory) / slopes.max()
            denominator = max(1, min(denominator, int(scale)))
        return denominator, np.floor(slopes * denominator).astype(np.int64)

    @cached_property
    def _largest_memory(self) -> int:
        """No sum of layer memory or room exceeds it."""
        return int(max(self._memory.max(), abs(self._room).max(), 1)) * self._instance.layers

    @cached_property
    def _balanced_counts(self) -> FloatArray:
        """[p, Q] layers of each kind on stages of about equal least time."""
        instance = self._instance
        ends = self._prefix(self._least_per_kind(self.time)).astype(np.float64)
        even = ends[-1] * np.arange(instance.stages + 1) / instance.stages
        places = np.rint(np.interp(even, ends, np.arange(instance.layers + 1))).astype(np.int64)
        one_each = np.eye(self._kinds)[instance.layer_class]
        below = np.concatenate([np.zeros((1, self._kinds)), np.cumsum(one_each, axis=0)])
        return np.diff(below[places], axis=0)

    def _best_slopes(self, cost: IntArray) -> FloatArray:
        """[p, W] where the concave dual of the balanced counts is largest.

        A choice of one item per kind has a cost and a memory. Between a choice that is too heavy
        and a light one the best multiplier lies at or above the slope from one to the other; a
        choice below that line replaces one of them, until there is none.
        """
        counts = self._balanced_counts
        costs = np.where(self._within, cost.astype(np.float64), np.inf)  # [W, I]
        masses = self._memory.astype(np.float64)  # [p, I]
        room = self._room.astype(np.float64)

        def totals(price: FloatArray) -> tuple[FloatArray, FloatArray]:
            """Cost and memory [p, W] of the choice that is least at prices [p, W, I]."""
            total_cost, total_mass = np.zeros(self.shape), np.zeros(self.shape)
            for q in range(self._kinds):
                mine = np.flatnonzero(self._kind == q)
                item = mine[price[..., mine].argmin(axis=2)]
                groups = np.arange(self.shape[0])[:, None]
                total_cost += counts[:, q, None] * cost[item]
                total_mass += counts[:, q, None] * masses[groups, item]
            return total_cost, total_mass

        tie = 1e-9 * (1 + costs[np.isfinite(costs)].max()) / (1 + masses.max())
        heavy_cost, heavy_mass = totals(costs + tie * masses[:, None, :])
        masked = np.where(self._within, masses[:, None, :], np.inf)
        light_cost, light_mass = totals(masked)
        active = heavy_mass > room
        slopes = np.zeros(self.shape)
        for _ in range(len(cost) * self._kinds):
            run = heavy_mass - light_mass
            active &= run > 0
            if not active.any():
                break
            rise = np.maximum(light_cost - heavy_cost, 0.0)
            slopes = np.where(active, rise / np.where(run > 0, run, 1.0), slopes)
            found_cost, found_mass = totals(costs + slopes[:, :, None] * masses[:, None, :])
            line = heavy_cost + slopes * heavy_mass
            active &= found_cost + slopes * found_mass < line * (1 - 1e-12)
            over = found_mass > room
            heavy_cost = np.where(active & over, found_cost, heavy_cost)
            heavy_mass = np.where(active & over, found_mass, heavy_mass)
            light_cost = np.where(active & ~over, found_cost, light_cost)
            light_mass = np.where(active & ~over, found_mass, light_mass)
        return slopes

    def checked(
        self, cost: IntArray, rows: tuple[tuple[int, ...], ...], denominator: int
    ) -> IntArray:
        """Multipliers as an array, refused where shape, sign or size would break the bound."""
        groups, levels = self.shape
        if len(rows) != groups or any(len(row) != levels for row in rows) or denominator < 1:
            raise ValueError("multipliers do not have the shape of the instance")
        largest = max(max(row) for row in rows)
        if min(min(row) for row in rows) < 0:
            raise ValueError("a multiplier is negative")
        products = largest * self._largest_memory
        products += denominator * max(int(cost.max()) * self._instance.layers, 1)
        if products >= 2 * PRODUCT_LIMIT:
            raise ValueError("multipliers too large for 64-bit arithmetic")
        return np.array(rows, dtype=np.int64)


_NEVER = np.iinfo(np.int64).max


@lru_cache(maxsize=64)
def _contents(layer_class: tuple[int, ...]) -> tuple[IntArray, IntArray]:
    """[U, Q] distinct contents of ranges, and which one each range [L + 1, L + 1] has.

    Ranges that end before they begin have the content ``U``, which there is not.
    """
    one_each = np.eye(max(layer_class) + 1, dtype=np.int64)[list(layer_class)]
    below = np.concatenate([np.zeros((1, one_each.shape[1]), np.int64), one_each.cumsum(axis=0)])
    first, last = np.triu_indices(len(below))
    contents, which = np.unique(below[last] - below[first], axis=0, return_inverse=True)
    content_of = np.full((len(below), len(below)), len(contents), dtype=np.int64)
    content_of[first, last] = which.ravel()
    return contents, content_of


def _undominated(instance: PipelineInstance, fewest: int, most: int) -> tuple[IntArray, IntArray]:
    """Kind and strategy of every item, kinds rising."""
    kinds, strategies = [], []
    for q in range(len(instance.forward_ticks)):
        keep = np.flatnonzero(instance.allowed[q])
        measures = np.stack(
            [
                (instance.forward_ticks + instance.backward_ticks)[q, keep],
                instance.tail_ticks[q, keep],
                # linear in the number alive, so the least and the largest number decide
                *(
                    instance.state_bytes[q, keep] + n * instance.activation_bytes[q, keep]
                    for n in (fewest, most)
                ),
                instance.transient_bytes[q, keep],
            ]
        )
        order = np.lexsort(measures[::-1])
        ordered = measures[:, order]
        no_worse = (ordered[:, :, None] <= ordered[:, None, :]).all(axis=0)
        chosen = keep[order[~np.triu(no_worse, 1).any(axis=0)]]
        kinds.append(np.full(len(chosen), q, dtype=np.int64))
        strategies.append(chosen)
    return np.concatenate(kinds), np.concatenate(strategies)


def _levels(transient: IntArray) -> tuple[IntArray, IntArray]:
    """[W] least and largest transient of each level."""
    distinct = np.unique(transient)
    parts = np.array_split(distinct, min(MOST_LEVELS, len(distinct)))
    return np.array([part[0] for part in parts]), np.array([part[-1] for part in parts])
