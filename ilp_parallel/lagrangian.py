"""Arrays behind the Lagrangian bound of :mod:`ilp_parallel.bounds`, in exact integers.

Strategies that another one matches in time, tail, memory (with the fewest and the most microbatches
alive, hence with any number) and transient are left out, and with them the levels of transients
that only they have: put the other one in its place, and any solution stays feasible and costs no
more, so a bound for the solutions that are left is a bound for all.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from ilp_parallel.problems.pipeline import IntArray, Objective, PipelineInstance

FloatArray = npt.NDArray[np.float64]
PRODUCT_LIMIT = 2**61
_MANY = 2**40


def weights(objective: Objective) -> tuple[int, int]:
    """Weight of X and of the tail of any one device group in the objective's maxima."""
    forward = sum(term.weight for term in objective.bottlenecks if term.forward)
    backward = sum(term.weight for term in objective.bottlenecks if term.backward)
    return min(forward, backward), objective.tail_weight


def fixed_time(instance: PipelineInstance) -> IntArray:
    """[p] fixed part of X of each device group."""
    per_stage = instance.stage_forward_ticks + instance.stage_backward_ticks
    per_group: IntArray = per_stage.reshape(instance.chunks, instance.stages).sum(axis=0)
    return per_group


class LagrangianTables:
    """Arrays [p, levels] of one instance with one layer class and one chunk per device group.

    Strategies ``[K]`` are the undominated ones in the order of their transients.
    """

    def __init__(self, instance: PipelineInstance) -> None:
        self._instance = instance
        self._weight, tail_weight = weights(instance.objective)
        keep = np.flatnonzero(instance.allowed[0])
        time = (instance.forward_ticks + instance.backward_ticks)[0, keep]
        tail, transient = instance.tail_ticks[0, keep], instance.transient_bytes[0, keep]
        alive = np.array([int(rows.max()) for rows in instance.in_flight], dtype=np.int64)
        state, activation = instance.state_bytes[0, keep], instance.activation_bytes[0, keep]
        # memory is linear in the number alive, so the least and the largest number decide
        light, heavy = (state + int(n) * activation for n in (alive.min(), alive.max()))
        chosen = _undominated(np.stack([transient, time, tail, light, heavy]))
        self.time: IntArray = time[chosen]
        self.joint: IntArray = self._weight * self.time + tail_weight * tail[chosen]
        self._memory: IntArray = state[chosen] + alive[:, None] * activation[chosen]
        transient = transient[chosen]
        last = np.append(np.flatnonzero(np.diff(transient)), len(transient) - 1)
        self._last = last  # [levels] index of the last strategy of each level
        self._within = np.arange(len(transient)) <= last[:, None]  # [levels, K]
        available = instance.capacity_bytes - instance.fixed_bytes
        self._room: IntArray = available[:, None] - transient[last]
        self.combined: IntArray = instance.stages * self.time + self.joint
        fixed = fixed_time(instance)
        self._fixed_joint = self._weight * fixed + tail_weight * instance.fixed_tail_ticks
        self.fixed_time_sum = int(fixed.sum())
        self.fixed_combined_sum = int((instance.stages * fixed + self._fixed_joint).sum())

    @property
    def shape(self) -> tuple[int, int]:
        """Device groups and levels of transients."""
        return self._room.shape[0], self._room.shape[1]

    @cached_property
    def _limits(self) -> IntArray:
        """[p, levels] most layers that fit when no transient exceeds the level."""
        lightest = np.minimum.accumulate(self._memory, axis=1)[:, self._last]
        fit = np.where(lightest > 0, self._room // np.maximum(lightest, 1), _MANY)
        return np.where(self._room >= 0, np.minimum(fit, self._instance.layers), 0)

    @cached_property
    def _largest_memory(self) -> int:
        """No sum of layer memory or room exceeds it."""
        return int(max(self._memory.max(), abs(self._room).max(), 1)) * self._instance.layers

    @cached_property
    def memory_limit(self) -> IntArray:
        """[p] most layers that fit at all."""
        most: IntArray = self._limits.max(axis=1)
        return most

    # --- multipliers -------------------------------------------------------------------------

    def best_multipliers(self, cost: IntArray, sizes: IntArray) -> tuple[int, IntArray]:
        """Denominator and numerators [p, levels] that are best for stages of the given sizes.

        Floating point only chooses: any multipliers give a valid bound.
        """
        chosen = self._best_slopes(cost, np.minimum(sizes, np.maximum(self.memory_limit, 1)))
        # the sum's denominator is this many times larger
        largest_cost = max(int(cost.max()), self._weight) * self._instance.layers + 1
        denominator = max(1, PRODUCT_LIMIT // (4 * largest_cost))
        if chosen.max() > 0:
            scale = PRODUCT_LIMIT // (4 * self._largest_memory) / chosen.max()
            denominator = max(1, min(denominator, int(scale)))
        denominator = 1 << (denominator.bit_length() - 1)
        return denominator, np.floor(chosen * denominator).astype(np.int64)

    def _best_slopes(self, cost: IntArray, sizes: IntArray) -> FloatArray:
        """[p, levels] where the concave dual of ``sizes`` layers on a level is largest.

        Between a strategy ``a`` that is too heavy and a light one ``b`` the best multiplier lies at
        or above the slope from ``a`` to ``b``; a strategy below that line replaces one of them,
        until there is none (each step takes a corner of the lower convex hull).
        """
        memory = self._memory.astype(np.float64)
        costs = np.where(self._within, cost.astype(np.float64), np.inf)  # [levels, K]
        groups = np.arange(self.shape[0])[:, None]
        masses = np.where(self._within, memory[:, None, :], np.inf)  # [p, levels, K]
        heavy = np.broadcast_to(costs.argmin(axis=1), self.shape).copy()
        light = masses.argmin(axis=2)
        room = self._room / sizes[:, None]
        active = memory[groups, heavy] > room
        slopes = np.zeros(self.shape)
        plain = cost.astype(np.float64)
        for _ in range(len(cost)):
            run = memory[groups, heavy] - memory[groups, light]
            active &= run > 0
            if not active.any():
                break
            rise = plain[light] - plain[heavy]
            slopes = np.where(active, np.maximum(rise, 0.0) / np.where(run > 0, run, 1.0), slopes)
            price = costs + slopes[:, :, None] * memory[:, None, :]
            below = price.argmin(axis=2)
            line = plain[heavy] + slopes * memory[groups, heavy]
            found = np.take_along_axis(price, below[:, :, None], axis=2)[:, :, 0]
            active &= found < line * (1 - 1e-12)
            over = memory[groups, below] > room
            heavy = np.where(active & over, below, heavy)
            light = np.where(active & ~over, below, light)
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

    # --- bounds ------------------------------------------------------------------------------

    def stage_costs(self, cost: IntArray, denominator: int, multipliers: IntArray) -> IntArray:
        """[p, n] lower bounds ``g_s(n)`` for n = 0..most layers of any stage; not rising beyond.

        Sizes that do not fit cost ``PRODUCT_LIMIT``.
        """
        instance = self._instance
        cheapest = np.minimum.accumulate(cost)[self._last]
        price = denominator * cost + multipliers[:, :, None] * self._memory[:, None, :]
        reduced = np.where(self._within, price, np.iinfo(np.int64).max).min(axis=2)
        most = int(np.minimum(self.memory_limit, instance.max_layers).max())
        sizes = np.arange(most + 1)
        plain = sizes * cheapest[:, None]  # [levels, n]
        priced = (multipliers * self._room)[:, :, None] - sizes * reduced[:, :, None]
        shift = denominator.bit_length() - 1
        if denominator == 1 << shift:  # rounding down, as // does, but quickly
            priced >>= shift
        else:
            priced //= denominator
        bounds = np.maximum(plain, -priced)
        fits = sizes <= self._limits[:, :, None]
        costs: IntArray = np.where(fits, bounds, PRODUCT_LIMIT).min(axis=1)
        costs[sizes[None, :] > instance.max_layers[:, None]] = PRODUCT_LIMIT
        return costs

    def joint_costs(self, denominator: int, multipliers: IntArray) -> IntArray:
        """[p, n] lower bounds on ``w X + gamma tail``, fixed parts included."""
        costs = self.stage_costs(self.joint, denominator, multipliers)
        whole: IntArray = np.minimum(costs + self._fixed_joint[:, None], PRODUCT_LIMIT)
        return whole

    def most_layers(self, joint_costs: IntArray, limit: int) -> IntArray:
        """[p] largest size whose joint cost is bounded by at most ``limit``."""
        most: IntArray = np.maximum((joint_costs <= limit).sum(axis=1) - 1, 0)
        return most

    def least_peak(self, joint_costs: IntArray) -> int:
        """``Y_0``: the smallest limit under which the possible sizes sum to L.

        Costs rise with the size, so this is the L-th smallest entry of all stages' tables, or what
        the smallest sizes cost.
        """
        instance = self._instance
        entries = joint_costs[:, 1:].ravel()
        if len(entries) < instance.layers or int(instance.min_layers.max()) >= joint_costs.shape[1]:
            return PRODUCT_LIMIT
        smallest = joint_costs[np.arange(instance.stages), instance.min_layers].max()
        return int(max(np.partition(entries, instance.layers - 1)[instance.layers - 1], smallest))

    def layer_price(self, cost: IntArray, costs: IntArray) -> int:
        """A good price per layer for :meth:`least_sum`: the L-th smallest cost of one more.

        ``costs`` [p, n] are the :meth:`stage_costs` of the per-layer ``cost``.
        """
        if costs.shape[1] == 1:  # no stage has room for a layer
            return 0
        steps = np.where(costs[:, 1:] < PRODUCT_LIMIT, np.diff(costs, axis=1), PRODUCT_LIMIT)
        place = min(self._instance.layers, steps.size) - 1
        price = int(np.partition(steps.ravel(), place)[place])
        return min(price, int(cost.max()) * self._instance.layers, self.largest_price)

    @property
    def largest_price(self) -> int:
        """Largest price per layer whose products with any size stay within 64 bits."""
        return PRODUCT_LIMIT // (self._instance.layers + 1)

    def least_sum(self, costs: IntArray, layer_price: int) -> int:
        """``S_0`` without fixed parts: each stage at its cheapest size, layers priced out."""
        instance = self._instance
        sizes = np.arange(costs.shape[1])
        usable = (sizes >= instance.min_layers[:, None]) & (costs < PRODUCT_LIMIT)
        paid = np.where(usable, costs - layer_price * sizes, PRODUCT_LIMIT).min(axis=1)
        total = layer_price * instance.layers + sum(paid.tolist())
        return min(int(total), PRODUCT_LIMIT)


def _undominated(measures: IntArray) -> IntArray:
    """Columns of ``measures`` [n, K] that no other one matches, in the order of the first row."""
    order = np.lexsort(measures[::-1])
    sorted_ = measures[:, order]
    no_worse = (sorted_[:, :, None] <= sorted_[:, None, :]).all(axis=0)
    # in lexicographic order only an earlier column can match a later one
    beaten = np.triu(no_worse, 1).any(axis=0)
    kept: IntArray = order[~beaten]
    return kept
