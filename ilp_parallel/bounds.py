r"""Lower bounds on the numerator of a pipeline instance, re-derivable in integers.

Notation as in :mod:`ilp_parallel.problems.pipeline`: ``x_k = forward + backward`` time of one layer
with strategy ``k``, :math:`\tau_k` its tail, :math:`\mu_{sk}` its memory on device group ``s``
(state + in flight * activations), :math:`\theta_k` its transient, :math:`w` the sum of the
bottleneck weights and :math:`\gamma` the tail weight. For every device group ``s``

.. math::
    T \ge S + Y, \quad S = \sum_s X_s, \quad
    Y \ge w X_s + \gamma \tau_s ,

because each maximum is at least the value of any one group (for gpipe, ``max F' + max B' >= X_s``).
So ``T >= S_0 + Y_0``: the least sum, plus the least possible maximum over ``s`` of
``w X_s + gamma tail_s``, each over all partitions of the layers.

*Work bound*: memory ignored, every layer at its cheapest.

*Lagrangian bound* (one layer class): with multipliers :math:`\lambda_{s\theta} \ge 0` on the memory
row of group ``s`` when no transient exceeds :math:`\theta`, ``n`` layers of cost ``y_k`` cost

.. math::
    g_s(n) \ge \min_\theta \max\Big( n \min_{k: \theta_k \le \theta} y_k, \;
    n \min_{k: \theta_k \le \theta} (y_k + \lambda_{s\theta} \mu_{sk})
    - \lambda_{s\theta} (A_s - \theta) \Big)

with :math:`A_s` = capacity - fixed memory. This holds for any multipliers; those of the linear
relaxation make it tight. With a price :math:`\nu` per layer, :math:`S_0 = \nu L + \sum_s \min_n
(g_s(n) - \nu n)` for ``y = x``; ``Y_0`` is the smallest ``Y`` for which the sizes with
:math:`g_s(n) \le Y` for ``y = w x + gamma tau`` can sum to ``L``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from ilp_parallel.problems.pipeline import IntArray, PipelineInstance

FloatArray = npt.NDArray[np.float64]
_PRODUCT_LIMIT = 2**61
_MANY = 2**40


@dataclass(frozen=True, slots=True)
class Multipliers:
    """Memory multipliers ``numerators / denominator``, per device group and transient level.

    ``sum_part`` belongs to the sum of times, ``peak_part`` to the largest of ``w X + gamma tail``;
    ``layer_price`` (ticks) is the multiplier of "all layers are placed" in the sum.
    """

    sum_denominator: int
    sum_part: tuple[tuple[int, ...], ...]
    layer_price: int
    peak_denominator: int
    peak_part: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class MemoryShortfall:
    """Proof that the layers do not fit: the most layers that each device group can hold."""

    placeable: tuple[int, ...]
    layers: int


def work_bound(instance: PipelineInstance) -> int:
    """Numerator of the ideal in which memory is no concern. Any instance."""
    weight, tail_weight = _weights(instance)
    time = _masked(instance, instance.forward_ticks + instance.backward_ticks)
    joint = weight * time + tail_weight * _masked(instance, instance.tail_ticks)
    fixed_time = _fixed_time(instance)
    fixed = weight * fixed_time + tail_weight * instance.fixed_tail_ticks
    per_layer = joint.min(axis=1)[instance.layer_class]
    total = int(time.min(axis=1)[instance.layer_class].sum()) + int(fixed_time.sum())
    average = -(-(int(per_layer.sum()) + int(fixed.sum())) // instance.stages)
    crowded = -(-instance.layers // instance.stages) * int(per_layer.min()) + int(fixed.min())
    return total + max(average, crowded, int(fixed.max() + per_layer.min()))


def memory_shortfall(instance: PipelineInstance) -> MemoryShortfall | None:
    """Witness that no partition fits the memory; None if there is no such simple witness."""
    if not _one_class(instance) or not instance.allowed.any():
        return None
    most = np.minimum(_LagrangianTables(instance).memory_limit, instance.max_layers)
    if (most >= instance.min_layers).all() and int(most.sum()) >= instance.layers:
        return None
    return MemoryShortfall(tuple(most.tolist()), instance.layers)


def lagrangian_multipliers(instance: PipelineInstance) -> Multipliers | None:
    """Good multipliers for :func:`lagrangian_bound`; None where it does not apply."""
    if not _one_class(instance) or not instance.allowed.any():
        return None
    tables = _LagrangianTables(instance)
    even = -(-instance.layers // instance.stages)
    balanced: IntArray = np.clip(even, instance.min_layers, instance.max_layers)
    denominator, peak = tables.best_multipliers(tables.joint, balanced)
    if (instance.min_layers < instance.max_layers).any():
        limit = tables.least_peak(denominator, peak)
        critical = tables.most_layers(limit - 1, denominator, peak) + 1
        refined_denominator, refined = tables.best_multipliers(tables.joint, critical)
        if tables.least_peak(refined_denominator, refined) > limit:
            denominator, peak = refined_denominator, refined
    weight = _weights(instance)[0]
    sums = denominator * weight, peak
    if weight == 0:
        sums = tables.best_multipliers(tables.time, balanced)
    price = tables.layer_price(*sums)
    return Multipliers(sums[0], _rows(sums[1]), price, denominator, _rows(peak))


def lagrangian_bound(instance: PipelineInstance, multipliers: Multipliers) -> int:
    """Bound on the numerator with the given multipliers, in exact integers.

    Raises
    ------
    ValueError
        If the multipliers do not have the shape of the instance or are negative.
    """
    tables = _LagrangianTables(instance)
    if abs(multipliers.layer_price) > tables.largest_price:
        raise ValueError("multiplier of the number of layers too large for 64-bit arithmetic")
    sums = tables.checked(tables.time, multipliers.sum_part, multipliers.sum_denominator)
    peak = tables.checked(tables.joint, multipliers.peak_part, multipliers.peak_denominator)
    least_sum = tables.least_sum(multipliers.sum_denominator, sums, multipliers.layer_price)
    return least_sum + tables.least_peak(multipliers.peak_denominator, peak)


class _LagrangianTables:
    """Arrays [p, levels] of one instance with one layer class and one chunk per device group."""

    def __init__(self, instance: PipelineInstance) -> None:
        self._instance = instance
        keep = np.flatnonzero(instance.allowed[0])
        weight, tail_weight = _weights(instance)
        self.time: IntArray = (instance.forward_ticks + instance.backward_ticks)[0, keep]
        self.joint: IntArray = weight * self.time + tail_weight * instance.tail_ticks[0, keep]
        alive = np.array([int(rows.max()) for rows in instance.in_flight], dtype=np.int64)
        self._memory = (
            instance.state_bytes[0, keep] + alive[:, None] * instance.activation_bytes[0, keep]
        )
        self._extremes = self._memory[[int(alive.argmin()), int(alive.argmax())]]
        self._transient = instance.transient_bytes[0, keep]
        levels = np.unique(self._transient)
        self._within = self._transient[None, :] <= levels[:, None]  # [levels, K]
        self._room = (instance.capacity_bytes - instance.fixed_bytes)[:, None] - levels[None, :]
        self._fixed_time = _fixed_time(instance)
        self._fixed_joint = weight * self._fixed_time + tail_weight * instance.fixed_tail_ticks

    @cached_property
    def _limits(self) -> IntArray:
        """[p, levels] most layers that fit when no transient exceeds the level."""
        order = np.argsort(self._transient, kind="stable")
        ends = np.cumsum(np.unique(self._transient, return_counts=True)[1]) - 1
        lightest = np.minimum.accumulate(self._memory[:, order], axis=1)[:, ends]
        fit = _quotient(self._room, lightest)
        return np.where(self._room >= 0, np.minimum(fit, self._instance.layers), 0)

    @cached_property
    def _largest_memory(self) -> int:
        """No sum of layer memory or room exceeds it."""
        return int(max(self._memory.max(), abs(self._room).max(), 1)) * self._instance.layers

    @property
    def memory_limit(self) -> IntArray:
        """[p] most layers that fit at all."""
        most: IntArray = self._limits.max(axis=1)
        return most

    def best_multipliers(self, cost: IntArray, sizes: IntArray) -> tuple[int, IntArray]:
        """Denominator and numerators [p, levels] that are best for stages of the given sizes.

        The dual function is piecewise linear and concave, its breakpoints are slopes between two
        strategies; floating point only chooses among them, any choice gives a valid bound.
        """
        keep = self._undominated(cost)
        memory = self._memory[:, keep]
        slopes = _slopes(cost[keep], memory)  # [p, C]
        price = slopes[:, :, None] * memory[:, None, :] + cost[keep]  # [p, C, kept]
        chosen = np.zeros(self._room.shape)
        for level, within in enumerate(self._within):
            if within[keep].any():
                reduced = price[:, :, within[keep]].min(axis=2)
                dual = sizes[:, None] * reduced - slopes * self._room[:, level : level + 1]
                chosen[:, level] = slopes[np.arange(len(slopes)), dual.argmax(axis=1)]
        weight = _weights(self._instance)[0]  # the sum's denominator is this many times larger
        largest_cost = max(int(cost.max()), weight) * self._instance.layers + 1
        denominator = max(1, _PRODUCT_LIMIT // (4 * largest_cost))
        if chosen.max() > 0:
            scale = _PRODUCT_LIMIT // (4 * self._largest_memory) / chosen.max()
            denominator = max(1, min(denominator, int(scale)))
        denominator = 1 << (denominator.bit_length() - 1)
        return denominator, np.floor(chosen * denominator).astype(np.int64)

    def _undominated(self, cost: IntArray) -> IntArray:
        """Strategies that no other one matches in cost, memory and transient.

        Memory is linear in the number alive, so the least and the largest number decide.
        """
        measures = np.column_stack([cost, self._extremes.T, self._transient])
        no_worse = (measures[:, None, :] <= measures[None, :, :]).all(axis=2)
        first = np.arange(len(cost))[:, None] < np.arange(len(cost))[None, :]
        beaten = no_worse & (~no_worse.T | first)
        return np.flatnonzero(~beaten.any(axis=0))

    def checked(
        self, cost: IntArray, rows: tuple[tuple[int, ...], ...], denominator: int
    ) -> IntArray:
        """Multipliers as an array, refused where shape, sign or size would break the bound."""
        shape = self._room.shape
        if len(rows) != shape[0] or any(len(row) != shape[1] for row in rows) or denominator < 1:
            raise ValueError("multipliers do not have the shape of the instance")
        largest = max(max(row) for row in rows)
        if min(min(row) for row in rows) < 0:
            raise ValueError("a multiplier is negative")
        products = largest * self._largest_memory
        products += denominator * max(int(cost.max()) * self._instance.layers, 1)
        if products >= 2 * _PRODUCT_LIMIT:
            raise ValueError("multipliers too large for 64-bit arithmetic")
        return np.array(rows, dtype=np.int64)

    def _stage_costs(self, cost: IntArray, denominator: int, multipliers: IntArray) -> IntArray:
        """[p, n] lower bounds ``g_s(n)`` for n = 0..most layers of any stage; not rising beyond.

        Sizes that do not fit cost ``_PRODUCT_LIMIT``.
        """
        cheapest = np.array([cost[within].min() for within in self._within])
        price = denominator * cost + multipliers[:, :, None] * self._memory[:, None, :]
        reduced = np.stack(
            [price[:, i, within].min(axis=1) for i, within in enumerate(self._within)], axis=1
        )
        most = int(np.minimum(self.memory_limit, self._instance.max_layers).max())
        sizes = np.arange(most + 1)
        plain = sizes * cheapest[:, None]  # [levels, n]
        priced = -((multipliers * self._room)[:, :, None] - sizes * reduced[:, :, None])
        bounds = np.maximum(plain, -(-priced // denominator))
        fits = sizes <= self._limits[:, :, None]
        costs: IntArray = np.where(fits, bounds, _PRODUCT_LIMIT).min(axis=1)
        costs[sizes[None, :] > self._instance.max_layers[:, None]] = _PRODUCT_LIMIT
        return costs

    def most_layers(self, limit: int, denominator: int, multipliers: IntArray) -> IntArray:
        """[p] largest size whose joint cost is bounded by at most ``limit``."""
        costs = self._stage_costs(self.joint, denominator, multipliers)
        within = costs + self._fixed_joint[:, None] <= limit
        most: IntArray = np.maximum(within.sum(axis=1) - 1, 0)
        return most

    def least_peak(self, denominator: int, multipliers: IntArray) -> int:
        """``Y_0``: the smallest limit under which the possible sizes sum to L.

        Costs rise with the size, so this is the L-th smallest entry of all stages' tables, or what
        the smallest sizes cost.
        """
        instance = self._instance
        costs = self._stage_costs(self.joint, denominator, multipliers)
        costs = np.minimum(costs + self._fixed_joint[:, None], _PRODUCT_LIMIT)
        entries = costs[:, 1:].ravel()
        if len(entries) < instance.layers or int(instance.min_layers.max()) >= costs.shape[1]:
            return _PRODUCT_LIMIT
        smallest = costs[np.arange(instance.stages), instance.min_layers].max()
        return int(max(np.partition(entries, instance.layers - 1)[instance.layers - 1], smallest))

    def layer_price(self, denominator: int, multipliers: IntArray) -> int:
        """A good price per layer for :meth:`least_sum`: the L-th smallest cost of one more."""
        costs = self._stage_costs(self.time, denominator, multipliers)
        if costs.shape[1] == 1:  # no stage has room for a layer
            return 0
        steps = np.where(costs[:, 1:] < _PRODUCT_LIMIT, np.diff(costs, axis=1), _PRODUCT_LIMIT)
        place = min(self._instance.layers, steps.size) - 1
        price = int(np.partition(steps.ravel(), place)[place])
        return min(price, int(self.time.max()) * self._instance.layers, self.largest_price)

    @property
    def largest_price(self) -> int:
        """Largest price per layer whose products with any size stay within 64 bits."""
        return _PRODUCT_LIMIT // (self._instance.layers + 1)

    def least_sum(self, denominator: int, multipliers: IntArray, layer_price: int) -> int:
        """``S_0``: the number of layers priced out, each stage at its cheapest size."""
        instance = self._instance
        costs = self._stage_costs(self.time, denominator, multipliers)
        sizes = np.arange(costs.shape[1])
        usable = (sizes >= instance.min_layers[:, None]) & (costs < _PRODUCT_LIMIT)
        paid = np.where(usable, costs - layer_price * sizes, _PRODUCT_LIMIT).min(axis=1)
        total = layer_price * instance.layers + sum(paid.tolist())
        return min(int(total), _PRODUCT_LIMIT) + int(self._fixed_time.sum())


def _slopes(cost: IntArray, memory: IntArray) -> FloatArray:
    """[p, C] candidate multipliers: cost per byte between any two strategies; 0 among them."""
    first, second = np.triu_indices(len(cost), 1)
    rise = (cost[second] - cost[first]).astype(np.float64)
    run = (memory[:, first] - memory[:, second]).astype(np.float64)
    slopes = np.where(run != 0, rise / np.where(run == 0, 1.0, run), 0.0)
    zero = np.zeros((len(slopes), 1))
    return np.concatenate([zero, np.maximum(slopes, 0.0)], axis=1)


def _quotient(amount: IntArray, cost: IntArray) -> IntArray:
    """How many units of a cost fit into an amount, rounded down; very many where they are free."""
    return np.where(cost > 0, amount // np.maximum(cost, 1), _MANY)


def _weights(instance: PipelineInstance) -> tuple[int, int]:
    """Weight of X and of the tail of any one device group in the objective's maxima."""
    terms = instance.objective.bottlenecks
    forward = sum(term.weight for term in terms if term.forward)
    backward = sum(term.weight for term in terms if term.backward)
    return min(forward, backward), instance.objective.tail_weight


def _fixed_time(instance: PipelineInstance) -> IntArray:
    """[p] fixed part of X of each device group."""
    per_stage = instance.stage_forward_ticks + instance.stage_backward_ticks
    per_group: IntArray = per_stage.reshape(instance.chunks, instance.stages).sum(axis=0)
    return per_group


def _masked(instance: PipelineInstance, table: IntArray) -> IntArray:
    """Table with forbidden strategies priced out of every minimum."""
    return np.where(instance.allowed, table, _MANY)


def _one_class(instance: PipelineInstance) -> bool:
    """Whether the tables per device group and size describe the instance."""
    return len(instance.forward_ticks) == 1 and instance.chunks == 1


def _rows(array: IntArray) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(row) for row in array.tolist())
