"""Local search on a core, compiled: one operator at a time changes its strategy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

if TYPE_CHECKING:
    from ilp_parallel.problems.sharding import IntArray


@njit(cache=True)
def descend(
    order: IntArray,
    chosen: IntArray,
    load: IntArray,
    price: float,
    first: IntArray,
    cost: IntArray,
    ends: IntArray,
    edge_first: IntArray,
    edge_cost: IntArray,
    near_first: IntArray,
    near: IntArray,
    own_first: IntArray,
    own: IntArray,
    start: IntArray,
    end: IntArray,
    piece_first: IntArray,
    usage: IntArray,
) -> int:
    """Visit operators in the order given; ``chosen`` and ``load`` change in place.

    ``load`` [segments] is memory above the limit (negative: free), one unit of which costs
    ``price`` in each segment. Returns the number of changes.
    """
    changes = 0
    over = False
    for t in range(len(load)):
        over = over or load[t] > 0
    change = np.zeros(len(load) + 1, dtype=np.int64)
    for v in order:
        k = first[v + 1] - first[v]
        was = chosen[v]
        value = np.zeros(k)
        for a in range(k):
            value[a] = cost[first[v] + a]
        for i in range(near_first[v], near_first[v + 1]):
            e = near[i]
            side = 0 if ends[e, 0] == v else 1
            u = ends[e, 1 - side]
            ku = first[u + 1] - first[u]
            for a in range(k):
                place = a * ku + chosen[u] if side == 0 else chosen[u] * k + a
                value[a] += edge_cost[edge_first[e] + place]
        best, least = was, value[was]
        for a in range(k):
            if a == was or (not over and value[a] >= least):  # nothing to win
                continue
            low, high = len(load), 0
            for i in range(own_first[v], own_first[v + 1]):
                p = own[i]
                moved = usage[piece_first[p] + a] - usage[piece_first[p] + was]
                if moved != 0 and start[p] < end[p]:
                    change[start[p]] += moved
                    change[end[p]] -= moved
                    low, high = min(low, start[p]), max(high, end[p])
            running, excess = 0, 0.0
            for t in range(low, high):
                running += change[t]
                change[t] = 0
                excess += max(0, load[t] + running) - max(0, load[t])
            if high < len(change):
                change[high] = 0
            total = value[a] + price * excess
            if total < least:
                best, least = a, total
        if best != was:
            changes += 1
            chosen[v] = best
            for i in range(own_first[v], own_first[v + 1]):
                p = own[i]
                moved = usage[piece_first[p] + best] - usage[piece_first[p] + was]
                if moved != 0:
                    for t in range(start[p], end[p]):
                        load[t] += moved
    return changes
