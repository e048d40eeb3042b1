"""Forbid strategies and pairs that break the memory limit whatever all others choose.

Every operator uses at least the least of its piece at all times; with that in the base load, a
strategy (or two strategies of neighbours) whose use above the least exceeds the slack at some
instant belongs to no feasible plan. Pieces of one operator have their least at zero after presolve.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from ilp_parallel.problems.sharding import FORBIDDEN, IntArray, ShardingInstance, Timeline

_PIECE_PAIRS = 4_000
"""Edges with more overlapping pieces than this are not looked at (they stay as they are)."""


def filter_memory(instance: ShardingInstance) -> ShardingInstance:
    """The instance without strategies and pairs that no feasible plan can use."""
    timeline = Timeline.of(instance)
    least = np.minimum.reduceat(instance.piece_usage, instance.piece_first[:-1])
    slack = instance.limit - timeline.loads(least)
    tables = _range_minima(slack)
    sizes = np.diff(instance.piece_first)
    above = instance.piece_usage - np.repeat(least, sizes)
    alive = timeline.start < timeline.end
    room = np.full(len(sizes), np.iinfo(np.int64).max)
    room[alive] = _minimum(tables, timeline.start[alive], timeline.end[alive])
    cost = instance.cost.copy()
    cost[instance.usage_cells()[above > np.repeat(room, sizes)]] = FORBIDDEN
    by_operator: list[list[int]] = [[] for _ in range(instance.operators)]
    parts = [above[a:b] for a, b in pairwise(instance.piece_first.tolist())]
    for p in np.flatnonzero(alive & (sizes > 1)).tolist():
        by_operator[instance.piece_operator[p]].append(p)
    edge_cost = instance.edge_cost.copy()
    ends = zip(instance.edge_from.tolist(), instance.edge_to.tolist(), strict=True)
    for e, (u, v) in enumerate(ends):
        ours, theirs = by_operator[u], by_operator[v]
        if 0 < len(ours) * len(theirs) <= _PIECE_PAIRS:
            span = slice(int(instance.edge_first[e]), int(instance.edge_first[e + 1]))
            broken = _broken_pairs(timeline, tables, parts, ours, theirs)
            if broken is not None:
                edge_cost[span][broken.ravel()] = FORBIDDEN
    return replace(instance, cost=cost, edge_cost=edge_cost)


def _broken_pairs(
    timeline: Timeline, tables: list[IntArray], parts: list[IntArray], u: list[int], v: list[int]
) -> np.ndarray | None:
    """[strategies, strategies] pairs that exceed the slack; None if none does."""
    start = np.maximum(timeline.start[u][:, None], timeline.start[v][None, :])
    end = np.minimum(timeline.end[u][:, None], timeline.end[v][None, :])
    most = np.array([parts[p].max() for p in u])[:, None] + np.array([parts[q].max() for q in v])
    i, j = np.nonzero(start < end)
    room = _minimum(tables, start[i, j], end[i, j])
    tight = most[i, j] > room
    broken = np.zeros((len(parts[u[0]]), len(parts[v[0]])), dtype=np.bool_)
    for a, b, left in zip(i[tight].tolist(), j[tight].tolist(), room[tight].tolist(), strict=True):
        broken |= parts[u[a]][:, None] + parts[v[b]][None, :] > left
    return broken if broken.any() else None


def _range_minima(values: IntArray) -> list[IntArray]:
    """Minima of all windows whose length is a power of two."""
    tables = [values]
    width = 1
    while 2 * width <= len(values):
        tables.append(np.minimum(tables[-1][:-width], tables[-1][width:]))
        width *= 2
    return tables


def _minimum(tables: list[IntArray], start: IntArray, end: IntArray) -> IntArray:
    """Minimum of each window ``[start, end)``, none of them empty."""
    result = np.zeros(len(start), dtype=np.int64)
    level = np.frexp((end - start).astype(np.float64))[1] - 1
    for k in np.unique(level).tolist():
        mine = level == k
        result[mine] = np.minimum(tables[k][start[mine]], tables[k][end[mine] - (1 << k)])
    return result
