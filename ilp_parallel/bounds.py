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
``w X_s + gamma tail_s``, each over all partitions of the layers. And, a maximum being no less than
the average,

.. math::
    p T \ge \sum_s \big((p + w) X_s + \gamma \tau_s\big) ,

which is the better one where time and tail are exchanged for each other (few microbatches: a layer
either keeps whole weights, or gathers them and has no tail).

*Work bound*: memory ignored, every layer at its cheapest. A weaker form of it (*work floor*) needs
no instance and closes most configurations of a search.

*Lagrangian bound* (one layer class; several are in :mod:`ilp_parallel.chain_tables`): with
multipliers :math:`\lambda_{s\theta} \ge 0` on the memory row of group ``s`` when no transient
exceeds :math:`\theta`, ``n`` layers of cost ``y_k`` cost

.. math::
    g_s(n) \ge \min_\theta \max\Big( n \min_{k: \theta_k \le \theta} y_k, \;
    n \min_{k: \theta_k \le \theta} (y_k + \lambda_{s\theta} \mu_{sk})
    - \lambda_{s\theta} (A_s - \theta) \Big)

with :math:`A_s` = capacity - fixed memory. This holds for any multipliers; those of the linear
relaxation make it tight. With a price :math:`\nu` per layer, :math:`S_0 = \nu L + \sum_s \min_n
(g_s(n) - \nu n)` for ``y = x`` (and in the same way the right hand side above, for
``y = (p + w) x + gamma tau``); ``Y_0`` is the smallest ``Y`` for which the sizes with
:math:`g_s(n) \le Y` for ``y = w x + gamma tau`` can sum to ``L``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ilp_parallel.chain_tables import ChainTables
from ilp_parallel.lagrangian import LagrangianTables, weights
from ilp_parallel.lagrangian import fixed_time as group_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ilp_parallel.problems.pipeline import IntArray, Objective, PipelineInstance

_MANY = 2**40


@dataclass(frozen=True, slots=True)
class Multipliers:
    """Memory multipliers ``numerators / denominator``, per device group and transient level.

    ``sum_part`` belongs to the sum of times, ``peak_part`` to the largest of ``w X + gamma tail``;
    ``layer_price`` (ticks) is the multiplier of "all layers are placed" in the sum. Without a
    ``peak_part`` the sum is that of ``(p + w) X + gamma tail``, which bounds ``p T``.
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
    weight, tail_weight = weights(instance.objective)
    time = _masked(instance, instance.forward_ticks + instance.backward_ticks)
    joint = weight * time + tail_weight * _masked(instance, instance.tail_ticks)
    fixed_time = group_time(instance)
    fixed = weight * fixed_time + tail_weight * instance.fixed_tail_ticks
    least = int(joint.min())
    stages, classes = instance.stages, instance.layer_class
    total = int(time.min(axis=1)[classes].sum()) + int(fixed_time.sum())
    combined = int((stages * time + joint).min(axis=1)[classes].sum())
    combined += int((stages * fixed_time + fixed).sum())
    crowded = -(-instance.layers // stages) * least + int(fixed.min())
    return max(-(-combined // stages), total + max(crowded, int(fixed.max()) + least))


def work_floor(
    objective: Objective,
    groups: Sequence[tuple[int, Sequence[tuple[int, int]]]],
    stages: int,
    ends_ticks: int,
) -> int:
    """The work bound as far as layers and ends of the model decide it, without an instance.

    It is what :func:`work_bound` gives where all layers are alike and neither cuts nor fixed tails
    take time, so never above it: that one only adds to each of the terms here.

    Parameters
    ----------
    objective
        Of the configuration.
    groups
        Of each kind of layer: how many there are, and ``(time, tail)`` of one in ticks under every
        strategy that may be the least in either or in a weighted sum; at least one.
    stages
        Device groups.
    ends_ticks
        At most what the fixed parts of all device groups take per microbatch.
    """
    weight, tail_weight = weights(objective)
    both = weight + stages
    layers, least, total, combined = 0, _MANY, ends_ticks, both * ends_ticks
    for count, choices in groups:
        layers += count
        least = min(least, *(weight * time + tail_weight * tail for time, tail in choices))
        total += count * min(time for time, _ in choices)
        combined += count * min(both * time + tail_weight * tail for time, tail in choices)
    return max(-(-combined // stages), total + -(-layers // stages) * least)


Tables = LagrangianTables | ChainTables
"""Arrays that bounds of one instance share: of one class of layers, or of several."""


def tables_of(instance: PipelineInstance) -> Tables | None:
    """What bounds by memory need, to be made once for several of them; None: none applies."""
    if instance.chunks > 1 or not instance.allowed.any(axis=1).all():
        return None
    one_class = len(instance.forward_ticks) == 1
    return LagrangianTables(instance) if one_class else ChainTables(instance)


def memory_shortfall(
    instance: PipelineInstance, tables: Tables | None = None
) -> MemoryShortfall | None:
    """Witness that no partition fits the memory; None if there is no such simple witness."""
    tables = tables or tables_of(instance)
    if tables is None:
        return None
    if isinstance(tables, ChainTables):
        placeable = tables.placeable()
        short = sum(placeable) < instance.layers
        return MemoryShortfall(placeable, instance.layers) if short else None
    most = np.minimum(tables.memory_limit, instance.max_layers)
    if (most >= instance.min_layers).all() and int(most.sum()) >= instance.layers:
        return None
    return MemoryShortfall(tuple(most.tolist()), instance.layers)


def lagrangian_multipliers(instance: PipelineInstance) -> Multipliers | None:
    """Good multipliers for :func:`lagrangian_bound`; None where it does not apply."""
    found = best_lagrangian_bound(instance)
    return None if found is None else found[1]


def best_lagrangian_bound(
    instance: PipelineInstance, tables: Tables | None = None
) -> tuple[int, Multipliers] | None:
    """Good multipliers, and the bound on the numerator that they give; None where none applies."""
    tables = tables or tables_of(instance)
    if tables is None:
        return None
    if isinstance(tables, ChainTables):
        return _best_chain_bound(tables)
    even = -(-instance.layers // instance.stages)
    balanced: IntArray = np.clip(even, instance.min_layers, instance.max_layers)
    denominator, peak = tables.best_multipliers(tables.joint, balanced)
    joint_costs = tables.joint_costs(denominator, peak)
    limit = tables.least_peak(joint_costs)
    if (instance.min_layers < instance.max_layers).any():
        critical = tables.most_layers(joint_costs, limit - 1) + 1
        refined_denominator, refined = tables.best_multipliers(tables.joint, critical)
        refined_limit = tables.least_peak(tables.joint_costs(refined_denominator, refined))
        if refined_limit > limit:
            denominator, peak, limit = refined_denominator, refined, refined_limit
    weight = weights(instance.objective)[0]
    sums = denominator * weight, peak
    if weight == 0:
        sums = tables.best_multipliers(tables.time, balanced)
    time_costs = tables.stage_costs(tables.time, *sums)
    price = tables.layer_price(tables.time, time_costs)
    bound = tables.least_sum(time_costs, price) + tables.fixed_time_sum + limit
    return bound, Multipliers(sums[0], _rows(sums[1]), price, denominator, _rows(peak))


def best_combined_bound(
    instance: PipelineInstance, tables: Tables | None = None
) -> tuple[int, Multipliers] | None:
    """As :func:`best_lagrangian_bound`, by time and tail together."""
    tables = tables or tables_of(instance)
    if tables is None:
        return None
    if isinstance(tables, ChainTables):
        multipliers = tables.best_multipliers(tables.combined)
        bound = _chain_combined(tables, instance.stages, *multipliers)
        return bound, Multipliers(multipliers[0], _rows(multipliers[1]), 0, 1, ())
    even = -(-instance.layers // instance.stages)
    balanced: IntArray = np.clip(even, instance.min_layers, instance.max_layers)
    denominator, part = tables.best_multipliers(tables.combined, balanced)
    costs = tables.stage_costs(tables.combined, denominator, part)
    price = tables.layer_price(tables.combined, costs)
    bound = _combined_bound(instance, tables, costs, price)
    return bound, Multipliers(denominator, _rows(part), price, 1, ())


def _combined_bound(
    instance: PipelineInstance, tables: LagrangianTables, costs: IntArray, price: int
) -> int:
    return -(-(tables.least_sum(costs, price) + tables.fixed_combined_sum) // instance.stages)


def lagrangian_bound(instance: PipelineInstance, multipliers: Multipliers) -> int:
    """Bound on the numerator with the given multipliers, in exact integers.

    Raises
    ------
    ValueError
        If the multipliers do not have the shape of the instance or are negative.
    """
    tables = tables_of(instance)
    if tables is None:
        raise ValueError("no multipliers apply to the instance")
    if isinstance(tables, ChainTables):
        return _chain_bound(tables, instance.stages, multipliers)
    if abs(multipliers.layer_price) > tables.largest_price:
        raise ValueError("multiplier of the number of layers too large for 64-bit arithmetic")
    if not multipliers.peak_part:
        cost, denominator = tables.combined, multipliers.sum_denominator
        part = tables.checked(cost, multipliers.sum_part, denominator)
        costs = tables.stage_costs(cost, denominator, part)
        return _combined_bound(instance, tables, costs, multipliers.layer_price)
    sums = tables.checked(tables.time, multipliers.sum_part, multipliers.sum_denominator)
    peak = tables.checked(tables.joint, multipliers.peak_part, multipliers.peak_denominator)
    time_costs = tables.stage_costs(tables.time, multipliers.sum_denominator, sums)
    joint_costs = tables.joint_costs(multipliers.peak_denominator, peak)
    least_sum = tables.least_sum(time_costs, multipliers.layer_price) + tables.fixed_time_sum
    return least_sum + tables.least_peak(joint_costs)


def _best_chain_bound(tables: ChainTables) -> tuple[int, Multipliers]:
    """Good multipliers and their bound where layers are of several kinds."""
    denominator, peak = tables.best_multipliers(tables.joint)
    limit = tables.least_peak(tables.joint_costs(denominator, peak))
    sums = denominator * tables.weight, peak
    if tables.weight == 0:
        sums = tables.best_multipliers(tables.time)
    least = tables.least_sum(tables.stage_costs(tables.time, *sums)) + tables.fixed_time_sum
    return least + limit, Multipliers(sums[0], _rows(sums[1]), 0, denominator, _rows(peak))


def _chain_bound(tables: ChainTables, stages: int, multipliers: Multipliers) -> int:
    """:func:`lagrangian_bound` where layers are of several kinds."""
    denominator = multipliers.sum_denominator
    if not multipliers.peak_part:
        part = tables.checked(tables.combined, multipliers.sum_part, denominator)
        return _chain_combined(tables, stages, denominator, part)
    sums = tables.checked(tables.time, multipliers.sum_part, denominator)
    peak = tables.checked(tables.joint, multipliers.peak_part, multipliers.peak_denominator)
    least = tables.least_sum(tables.stage_costs(tables.time, denominator, sums))
    limit = tables.least_peak(tables.joint_costs(multipliers.peak_denominator, peak))
    return least + tables.fixed_time_sum + limit


def _chain_combined(tables: ChainTables, stages: int, denominator: int, part: IntArray) -> int:
    least = tables.least_sum(tables.stage_costs(tables.combined, denominator, part))
    return -(-(least + tables.fixed_combined_sum) // stages)


def _masked(instance: PipelineInstance, table: IntArray) -> IntArray:
    """Table with forbidden strategies priced out of every minimum."""
    return np.where(instance.allowed, table, _MANY)


def _rows(array: IntArray) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(row) for row in array.tolist())
