"""Message passing on the pairwise model of a core, compiled and in integers throughout.

Sequential tree-reweighted messages (TRW-S, Kolmogorov 2006, in the form of SRMP, 2015): costs move
between operators and edges and every plan's total stays the same to the unit, so that the sum of
all minima is a lower bound whatever the messages are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

if TYPE_CHECKING:
    from ilp_parallel.problems.sharding import IntArray

BARRED = 2**60
"""Reparametrised costs from here on are forbidden."""

EMPTY = 2**62


@njit(cache=True)
def sweep(
    forward: bool,
    first: IntArray,
    theta: IntArray,
    ends: IntArray,
    edge_first: IntArray,
    edge_cost: IntArray,
    side_first: IntArray,
    phi: IntArray,
    near_first: IntArray,
    near: IntArray,
) -> None:
    """Visit all operators once; ``theta`` [cells] and ``phi`` [edge sides] change in place.

    At each operator: pull the min-marginals of the edges behind it, then hand an equal share of
    its costs to each edge ahead.
    """
    n = len(first) - 1
    for step in range(n):
        v = step if forward else n - 1 - step
        kv = first[v + 1] - first[v]
        behind, ahead = 0, 0
        for i in range(near_first[v], near_first[v + 1]):
            e = near[i]
            side = 0 if ends[e, 0] == v else 1
            u = ends[e, 1 - side]
            if (u > v) == forward:
                ahead += 1
                continue
            behind += 1
            ku = first[u + 1] - first[u]
            mine, other = side_first[e, side], side_first[e, 1 - side]
            for a in range(kv):
                least = EMPTY
                for b in range(ku):
                    place = a * ku + b if side == 0 else b * kv + a
                    cost = edge_cost[edge_first[e] + place]
                    if cost < BARRED:
                        least = min(least, cost - phi[other + b])
                if least < EMPTY:
                    delta = least - phi[mine + a]
                    phi[mine + a] += delta
                    theta[first[v] + a] += delta
        if ahead == 0:
            continue
        share = max(behind, ahead)
        for a in range(kv):
            if theta[first[v] + a] >= BARRED:
                continue
            part = theta[first[v] + a] // share
            for i in range(near_first[v], near_first[v + 1]):
                e = near[i]
                side = 0 if ends[e, 0] == v else 1
                if (ends[e, 1 - side] > v) == forward:
                    phi[side_first[e, side] + a] -= part
                    theta[first[v] + a] -= part


@njit(cache=True)
def sum_of_minima(
    first: IntArray,
    theta: IntArray,
    ends: IntArray,
    edge_first: IntArray,
    edge_cost: IntArray,
    side_first: IntArray,
    phi: IntArray,
    least_of_edge: IntArray,
) -> int:
    """Lower bound of the pairwise model; fills ``least_of_edge`` [edges]."""
    total = 0
    for v in range(len(first) - 1):
        total += theta[first[v] : first[v + 1]].min()
    for e in range(len(ends)):
        ku = first[ends[e, 0] + 1] - first[ends[e, 0]]
        kv = first[ends[e, 1] + 1] - first[ends[e, 1]]
        least = EMPTY
        for a in range(ku):
            for b in range(kv):
                cost = edge_cost[edge_first[e] + a * kv + b]
                if cost < BARRED:
                    cost -= phi[side_first[e, 0] + a] + phi[side_first[e, 1] + b]
                    least = min(least, cost)
        least_of_edge[e] = least
        total += least
    return total


@njit(cache=True)
def round_forward(
    first: IntArray,
    theta: IntArray,
    ends: IntArray,
    edge_first: IntArray,
    edge_cost: IntArray,
    side_first: IntArray,
    phi: IntArray,
    near_first: IntArray,
    near: IntArray,
) -> IntArray:
    """Strategies chosen one operator after the other, given those before."""
    n = len(first) - 1
    chosen = np.zeros(n, dtype=np.int64)
    for v in range(n):
        kv = first[v + 1] - first[v]
        best, least = 0, np.inf
        for a in range(kv):
            value = float(theta[first[v] + a])
            for i in range(near_first[v], near_first[v + 1]):
                e = near[i]
                side = 0 if ends[e, 0] == v else 1
                u = ends[e, 1 - side]
                if u > v:
                    continue
                b = chosen[u]
                ku = first[u + 1] - first[u]
                place = a * ku + b if side == 0 else b * kv + a
                cost = edge_cost[edge_first[e] + place]
                if cost >= BARRED:
                    value += 1e19
                else:
                    value += cost - phi[side_first[e, side] + a]
            if value < least:
                best, least = a, value
        chosen[v] = best
    return chosen
