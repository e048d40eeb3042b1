r"""Pairwise formulation of operator sharding: the product of two choices, one row each; weak.

Sets, parameters and variables as in :mod:`formulations.sharding.marginal`, without pairs that cost
nothing; costs of pairs must not be negative.

Objective
---------
.. math:: \min \sum c_{va} x_{va} + \sum c_{uvab} e_{uvab}

Constraints
-----------
(1) one strategy (``one_strategy``): :math:`\sum_a x_{va} = 1`.

(2) product (``product``): :math:`e_{uvab} \ge x_{ua} + x_{vb} - 1`. At :math:`x = 1/2` all
    pairs are free: this is why the bound is weak.

(3) forbidden pair (``forbidden_pair``): :math:`x_{ua} + x_{vb} \le 1`.

(4) memory (``memory``): :math:`\sum h_{vat} x_{va} \le H` for the instants given.

Source: the textbook linearisation; for comparison and teaching.
"""

from __future__ import annotations

import numpy as np

from formulations.sharding.marginal import cells_of_pairs, memory, one_strategy, strategy_columns
from ilp_parallel.problems.sharding import FORBIDDEN, IntArray, ShardingInstance
from ilp_parallel.program import Program, ProgramBuilder


def build(instance: ShardingInstance, instants: IntArray) -> Program:
    """The program with memory rows at the segments ``instants`` of the instance's Timeline."""
    builder = ProgramBuilder(f"{instance.name}:pairwise")
    x = strategy_columns(builder, instance)
    one_strategy(builder, instance, x)
    product(builder, instance, x)
    forbidden_pair(builder, instance, x)
    memory(builder, instance, x, instants)
    return builder.build()


def product(builder: ProgramBuilder, instance: ShardingInstance, x: IntArray) -> None:
    """(2) e[uv,a,b] >= x[u,a] + x[v,b] - 1."""
    cost = instance.edge_cost
    pairs = np.flatnonzero((cost > 0) & (cost < FORBIDDEN))
    e = builder.add_columns("e", (len(pairs),), cost=cost[pairs], implied=True)
    rows = builder.add_rows("product", (len(pairs),), lower=-1)
    builder.add_entries(rows, e, 1)
    _add_both_ends(builder, instance, x, (rows, pairs), -1)


def forbidden_pair(builder: ProgramBuilder, instance: ShardingInstance, x: IntArray) -> None:
    """(3) x[u,a] + x[v,b] <= 1."""
    pairs = np.flatnonzero(instance.edge_cost >= FORBIDDEN)
    rows = builder.add_rows("forbidden_pair", (len(pairs),), upper=1)
    _add_both_ends(builder, instance, x, (rows, pairs), 1)


def _add_both_ends(
    builder: ProgramBuilder,
    instance: ShardingInstance,
    x: IntArray,
    place: tuple[IntArray, IntArray],
    value: int,
) -> None:
    rows, pairs = place
    edge, a, b = cells_of_pairs(instance, pairs)
    builder.add_entries(rows, x[instance.first[instance.edge_from[edge]] + a], value)
    builder.add_entries(rows, x[instance.first[instance.edge_to[edge]] + b], value)
