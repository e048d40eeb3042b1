"""Reduced-cost fixing: forbid what no plan cheaper than the incumbent can use."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ilp_parallel.problems.sharding import FORBIDDEN, ShardingInstance
from ilp_parallel.sharding.sweeps import BARRED

if TYPE_CHECKING:
    from ilp_parallel.sharding.dual import Dual


def fixed(dual: Dual, incumbent: int) -> ShardingInstance:
    """The instance without strategies and pairs that only plans of at least ``incumbent`` use.

    The bound is a sum of minima over operators and edges; a strategy a costs at least the bound
    plus ``theta_v[a] - min theta_v``, a pair likewise for its edge and both ends, in integers.
    """
    i = dual.instance
    room = ((incumbent - 1) << dual.shift) - dual.scaled_bound()
    least = np.minimum.reduceat(dual.theta, i.first[:-1])
    above = dual.theta - np.repeat(least, i.sizes())
    cost = np.where(above > room, FORBIDDEN, i.cost)
    edge_cost = i.edge_cost.copy()
    for e in range(i.edges):
        u, v = int(i.edge_from[e]), int(i.edge_to[e])
        span = slice(int(i.edge_first[e]), int(i.edge_first[e + 1]))
        rows, columns = above[i.first[u] : i.first[u + 1]], above[i.first[v] : i.first[v + 1]]
        a, b = dual.side_first[e]
        phi = dual.phi[a : a + len(rows), None] + dual.phi[None, b : b + len(columns)]
        matrix = dual.edge_cost[span].reshape(len(rows), -1)
        reduced = matrix - phi - dual.least_of_edge[e]
        rows, columns = np.minimum(rows, BARRED), np.minimum(columns, BARRED)
        over = (matrix >= BARRED) | (reduced + rows[:, None] + columns[None, :] > room)
        edge_cost[span] = np.where(over.ravel(), FORBIDDEN, edge_cost[span])
    return replace(i, cost=cost, edge_cost=edge_cost)
