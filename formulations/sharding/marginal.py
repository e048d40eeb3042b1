r"""Marginal formulation of operator sharding: pairs are integral once strategies are.

Sets
----
operators ``v`` with strategies ``a``; edges ``uv`` with allowed pairs ``(a, b)``; instants ``t``
at which the memory limit is written down (a subset of all; the caller adds what a plan breaks).

Parameters
----------
:math:`c_{va}, c_{uvab}` costs (units of the file); :math:`h_{vat}` memory in use at ``t``;
:math:`H` limit (memory units of the file).

Variables
---------
:math:`x_{va} \in \{0,1\}` strategy; :math:`e_{uvab} \in [0,1]` pair, for allowed pairs only.

Objective
---------
.. math:: \min \sum c_{va} x_{va} + \sum c_{uvab} e_{uvab}

Constraints
-----------
(1) one strategy (``one_strategy``): :math:`\sum_a x_{va} = 1`.

(2) source marginal (``source_marginal``): :math:`\sum_b e_{uvab} = x_{ua}`.

(3) target marginal (``target_marginal``): :math:`\sum_a e_{uvab} = x_{vb}`.

(4) memory (``memory``): :math:`\sum h_{vat} x_{va} \le H` for the instants given.

Source: marginal polytope of a pairwise model; Alpa's edge variables have the same relaxation.
"""

from __future__ import annotations

import numpy as np

from ilp_parallel.problems.sharding import (
    FORBIDDEN,
    IntArray,
    ShardingInstance,
    Timeline,
    offsets,
    runs,
)
from ilp_parallel.program import Program, ProgramBuilder


def build(instance: ShardingInstance, instants: IntArray) -> Program:
    """The program with memory rows at the segments ``instants`` of the instance's Timeline."""
    builder = ProgramBuilder(f"{instance.name}:marginal")
    x = strategy_columns(builder, instance)
    one_strategy(builder, instance, x)
    e, pairs = pair_columns(builder, instance)
    source_marginal(builder, instance, x, e, pairs)
    target_marginal(builder, instance, x, e, pairs)
    memory(builder, instance, x, instants)
    return builder.build()


def strategy_columns(builder: ProgramBuilder, instance: ShardingInstance) -> IntArray:
    """Columns x, [cells]; forbidden strategies are fixed at 0 and carry no price."""
    barred = instance.cost >= FORBIDDEN
    cost = np.where(barred, 0, instance.cost)
    shape = (len(instance.cost),)
    return builder.add_columns("x", shape, cost=cost, upper=np.where(barred, 0, 1))


def pair_columns(builder: ProgramBuilder, instance: ShardingInstance) -> tuple[IntArray, IntArray]:
    """Columns e of the allowed pairs, and the pairs' places in ``edge_cost``."""
    pairs = np.flatnonzero(instance.edge_cost < FORBIDDEN)
    costs = instance.edge_cost[pairs]
    return builder.add_columns("e", (len(pairs),), cost=costs, implied=True), pairs


def decode(instance: ShardingInstance, values: IntArray) -> IntArray:
    """[operators] strategies of a solution vector."""
    cells = np.flatnonzero(values[: len(instance.cost)])
    owner = np.searchsorted(instance.first, cells, side="right") - 1
    strategies = np.zeros(instance.operators, dtype=np.int64)
    strategies[owner] = cells - instance.first[owner]
    return strategies


def one_strategy(builder: ProgramBuilder, instance: ShardingInstance, x: IntArray) -> None:
    """(1) sum_a x[v,a] = 1."""
    rows = builder.add_rows("one_strategy", (instance.operators,), lower=1, upper=1)
    builder.add_entries(np.repeat(rows, instance.sizes()), x, 1)


def cells_of_pairs(instance: ShardingInstance, pairs: IntArray) -> tuple[IntArray, ...]:
    """Edge of each pair, and its strategies at either end."""
    edge = np.searchsorted(instance.edge_first, pairs, side="right") - 1
    width = instance.sizes()[instance.edge_to[edge]]
    a, b = np.divmod(pairs - instance.edge_first[edge], width)
    return edge, a, b


def source_marginal(
    builder: ProgramBuilder, instance: ShardingInstance, x: IntArray, e: IntArray, pairs: IntArray
) -> None:
    """(2) sum_b e[uv,a,b] = x[u,a]."""
    edge, a, _ = cells_of_pairs(instance, pairs)
    add_marginal(builder, ("source_marginal", 0), instance, instance.edge_from, x, (edge, a, e))


def target_marginal(
    builder: ProgramBuilder, instance: ShardingInstance, x: IntArray, e: IntArray, pairs: IntArray
) -> None:
    """(3) sum_a e[uv,a,b] = x[v,b]."""
    edge, _, b = cells_of_pairs(instance, pairs)
    add_marginal(builder, ("target_marginal", 0), instance, instance.edge_to, x, (edge, b, e))


def add_marginal(
    builder: ProgramBuilder,
    place: tuple[str, int],
    instance: ShardingInstance,
    ends: IntArray,
    x: IntArray,
    entries: tuple[IntArray, IntArray, IntArray],
) -> None:
    """Rows ``lower <= sum of pairs - x <= 0`` at one end of all edges; place: name and lower."""
    name, lower = place
    sizes = instance.sizes()[ends]
    offset = offsets(sizes)
    rows = builder.add_rows(name, (int(offset[-1]),), lower=lower, upper=0)
    builder.add_entries(rows, x[runs(instance.first[ends], sizes)], -1)
    edge, strategy, columns = entries
    builder.add_entries(rows[offset[edge] + strategy], columns, 1)


def memory(
    builder: ProgramBuilder, instance: ShardingInstance, x: IntArray, instants: IntArray
) -> None:
    """(4) sum h[v,a,t] x[v,a] <= H at the instants given."""
    rows = builder.add_rows("memory", (len(instants),), upper=instance.limit)
    timeline = Timeline.of(instance)
    sizes = np.diff(instance.piece_first)
    for row, t in zip(rows, instants.tolist(), strict=True):
        alive = np.flatnonzero((timeline.start <= t) & (t < timeline.end))
        many = sizes[alive]
        cells = runs(instance.first[instance.piece_operator[alive]], many)
        usage = instance.piece_usage[runs(instance.piece_first[alive], many)]
        builder.add_entries(row, x[cells], usage)
