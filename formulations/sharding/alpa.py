r"""Alpa's formulation of operator sharding: one pair per edge, consistent with both ends.

Sets, parameters and variables as in :mod:`formulations.sharding.marginal`.

Objective
---------
.. math:: \min \sum c_{va} x_{va} + \sum c_{uvab} e_{uvab}

Constraints
-----------
(1) one strategy (``one_strategy``): :math:`\sum_a x_{va} = 1`.

(2) one pair (``one_pair``): :math:`\sum_{ab} e_{uvab} = 1`.

(3) source covers (``source_covers``): :math:`\sum_b e_{uvab} \le x_{ua}`.

(4) target covers (``target_covers``): :math:`\sum_a e_{uvab} \le x_{vb}`.

(5) memory (``memory``): :math:`\sum h_{vat} x_{va} \le H` for the instants given.

Source: Zheng et al., "Alpa", OSDI 2022, and its solver. With (1) and (2), the inequalities (3) and
(4) hold with equality, so that the relaxation is that of ``marginal``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from formulations.sharding.marginal import (
    add_marginal,
    cells_of_pairs,
    memory,
    one_strategy,
    pair_columns,
    strategy_columns,
)
from ilp_parallel.program import INFINITY, Program, ProgramBuilder

if TYPE_CHECKING:
    from ilp_parallel.problems.sharding import IntArray, ShardingInstance


def build(instance: ShardingInstance, instants: IntArray) -> Program:
    """The program with memory rows at the segments ``instants`` of the instance's Timeline."""
    builder = ProgramBuilder(f"{instance.name}:alpa")
    x = strategy_columns(builder, instance)
    one_strategy(builder, instance, x)
    e, pairs = pair_columns(builder, instance)
    one_pair(builder, instance, e, pairs)
    source_covers(builder, instance, x, e, pairs)
    target_covers(builder, instance, x, e, pairs)
    memory(builder, instance, x, instants)
    return builder.build()


def one_pair(
    builder: ProgramBuilder, instance: ShardingInstance, e: IntArray, pairs: IntArray
) -> None:
    """(2) sum_ab e[uv,a,b] = 1."""
    rows = builder.add_rows("one_pair", (instance.edges,), lower=1, upper=1)
    builder.add_entries(rows[cells_of_pairs(instance, pairs)[0]], e, 1)


def source_covers(
    builder: ProgramBuilder, instance: ShardingInstance, x: IntArray, e: IntArray, pairs: IntArray
) -> None:
    """(3) sum_b e[uv,a,b] <= x[u,a]."""
    edge, a, _ = cells_of_pairs(instance, pairs)
    place = ("source_covers", -INFINITY)
    add_marginal(builder, place, instance, instance.edge_from, x, (edge, a, e))


def target_covers(
    builder: ProgramBuilder, instance: ShardingInstance, x: IntArray, e: IntArray, pairs: IntArray
) -> None:
    """(4) sum_a e[uv,a,b] <= x[v,b]."""
    edge, _, b = cells_of_pairs(instance, pairs)
    place = ("target_covers", -INFINITY)
    add_marginal(builder, place, instance, instance.edge_to, x, (edge, b, e))
