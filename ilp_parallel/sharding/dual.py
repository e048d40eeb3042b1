"""Lagrangian bound of a core: multipliers on the memory limit, messages for the rest.

For multipliers ``y_t >= 0`` on the limit H at every instant t, each feasible plan costs at least

    min_x [ cost(x) + sum_t y_t (usage_t(x) - H) ]

and any messages bound that minimum from below. Costs are scaled by a power of two, multipliers are
integers over another, penalties are rounded down and ``sum y_t H`` up: the bound is exact.
"""

from __future__ import annotations

import numpy as np

from ilp_parallel.problems.sharding import (
    FORBIDDEN,
    IntArray,
    ShardingInstance,
    Timeline,
    chosen_usage,
    exact_sum,
)
from ilp_parallel.sharding.sweeps import BARRED, round_forward, sum_of_minima, sweep

_Tables = tuple[IntArray, IntArray, IntArray, IntArray, IntArray, IntArray, IntArray]


class Dual:
    """Messages and multipliers of one instance; they improve with every :meth:`improve`."""

    def __init__(self, instance: ShardingInstance) -> None:
        self.instance = instance
        self.timeline = Timeline.of(instance)
        allowed = exact_sum(instance.cost[instance.cost < FORBIDDEN])
        widest = instance.edge_cost[instance.edge_cost < FORBIDDEN]
        largest = allowed + instance.edges * int(widest.max(initial=0))
        self.shift = max(0, min(16, 54 - largest.bit_length()))
        barred = instance.cost >= FORBIDDEN
        self.theta = np.where(barred, BARRED, np.where(barred, 0, instance.cost) << self.shift)
        cost = np.where(instance.edge_cost >= FORBIDDEN, 0, instance.edge_cost) << self.shift
        self.edge_cost = np.where(instance.edge_cost >= FORBIDDEN, BARRED, cost)
        self.ends = np.stack([instance.edge_from, instance.edge_to], axis=1)
        sides = instance.sizes()[self.ends]
        self.side_first = np.cumsum(sides.ravel()).reshape(sides.shape) - sides
        self.phi = np.zeros(int(sides.sum()), dtype=np.int64)
        owner = self.ends.ravel()
        order = np.argsort(owner, kind="stable")
        self.near = order // 2
        self.near_first = np.searchsorted(owner[order], np.arange(instance.operators + 1))
        self.least_of_edge = np.zeros(instance.edges, dtype=np.int64)
        self.penalty = np.zeros(len(instance.cost), dtype=np.int64)
        self.charge = 0  # scaled cost units, sum y_t H rounded up
        self.multipliers = np.zeros(self.timeline.segments)

    def _tables(self) -> _Tables:
        """Costs and messages as the compiled passes take them."""
        i = self.instance
        costs = (i.first, self.theta, self.ends, i.edge_first, self.edge_cost)
        return (*costs, self.side_first, self.phi)

    def improve(self) -> int:
        """A pass forward and back; returns the bound, in cost units of the file."""
        near = (self.near_first, self.near)
        sweep(True, *self._tables(), *near)
        sweep(False, *self._tables(), *near)
        return -((-self.scaled_bound()) >> self.shift)

    def scaled_bound(self) -> int:
        """The bound as it stands, in scaled cost units; fills ``least_of_edge``."""
        return int(sum_of_minima(*self._tables(), self.least_of_edge)) - self.charge

    def rounded(self) -> IntArray:
        """[operators] a plan near the minimum, perhaps infeasible."""
        chosen: IntArray = round_forward(*self._tables(), self.near_first, self.near)
        return chosen

    def excess(self, strategies: IntArray) -> IntArray:
        """[segments] memory of a plan above the limit."""
        usage = chosen_usage(self.instance, strategies)
        return self.timeline.loads(usage) - self.instance.limit

    def set_multipliers(self, multipliers: np.ndarray) -> None:
        """Replace the multipliers, [segments] scaled cost per unit of memory."""
        i, total = self.instance, float(multipliers.sum())
        heaviest = max(1, int(i.piece_usage.max(initial=1)))
        bits = 61 - heaviest.bit_length() - int(np.ceil(np.log2(total + 1e-30)))
        bits = max(0, min(60, bits))
        whole = np.floor(np.ldexp(multipliers, bits)).astype(np.int64)
        upto = np.concatenate([[0], np.cumsum(whole)])
        end = np.maximum(self.timeline.start, self.timeline.end)
        weight = upto[end] - upto[self.timeline.start]
        products = (i.piece_usage * np.repeat(weight, np.diff(i.piece_first))) >> bits
        penalty = np.zeros(len(i.cost), dtype=np.int64)
        np.add.at(penalty, i.usage_cells(), products)
        self.theta += np.where(self.theta >= BARRED, 0, penalty - self.penalty)
        self.penalty, self.multipliers = penalty, multipliers
        self.charge = -((-int(upto[-1]) * i.limit) >> bits)
