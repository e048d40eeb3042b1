"""Plans of a core: repair and local search, and the part that an exact sub-model may change."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from ilp_parallel.problems.sharding import (
    FORBIDDEN,
    IntArray,
    ShardingInstance,
    Timeline,
    chosen_usage,
    evaluate,
    offsets,
    runs,
)
from ilp_parallel.sharding.descent import descend
from ilp_parallel.sharding.network import added

if TYPE_CHECKING:
    from ilp_parallel.sharding.dual import Dual

_BARRED_PRICE = 2**55
"""Price of a forbidden choice in the local search: dearer than any plan, few enough to add up."""

_PASSES = 30
_PAIRS_OF_A_START = 50
"""What the first operator of a part counts, so that isolated operators end the search too."""


class LocalSearch:
    """Descent on one instance, from any plan."""

    def __init__(self, dual: Dual) -> None:
        self.instance = i = dual.instance
        self.dual = dual
        owner = np.argsort(i.piece_operator, kind="stable")
        own_first = np.searchsorted(i.piece_operator[owner], np.arange(i.operators + 1))
        self._tables = (
            i.first,
            np.where(i.cost >= FORBIDDEN, _BARRED_PRICE, i.cost),
            dual.ends,
            i.edge_first,
            np.where(i.edge_cost >= FORBIDDEN, _BARRED_PRICE, i.edge_cost),
            dual.near_first,
            dual.near,
            own_first,
            owner,
            dual.timeline.start,
            dual.timeline.end,
            i.piece_first,
            i.piece_usage,
        )

    def improve(self, plan: IntArray, random: np.random.Generator, deadline: float) -> IntArray:
        """A plan at least as good; feasible where descent finds the way."""
        chosen = plan.copy()
        load = self.dual.excess(chosen)
        price = max(1e-3, float(self.dual.multipliers.max(initial=0)) / 2**self.dual.shift)
        for _ in range(_PASSES):
            order = random.permutation(self.instance.operators)
            changes = descend(order, chosen, load, price, *self._tables)
            if time.monotonic() > deadline:
                break
            if load.max(initial=0) > 0:
                price *= 4
            elif not changes:
                break
            else:
                price = 1e30
        return chosen


def least_memory(instance: ShardingInstance) -> IntArray:
    """[operators] the strategies with the least memory summed over their life."""
    sizes = np.diff(instance.piece_first)
    life = np.maximum(instance.piece_end - instance.piece_start, 0).astype(np.float64)
    weight = np.zeros(len(instance.cost))
    np.add.at(weight, instance.usage_cells(), instance.piece_usage * np.repeat(life, sizes))
    pairs = zip(instance.first[:-1].tolist(), instance.first[1:].tolist(), strict=True)
    return np.array([int(weight[a:b].argmin()) for a, b in pairs], dtype=np.int64)


def neighbourhood(
    instance: ShardingInstance, dual: Dual, pairs: int, random: np.random.Generator
) -> IntArray:
    """Operators to free: a random connected part, or several, of about ``pairs`` pairs."""
    width = np.diff(instance.edge_first)
    if instance.operators < 2:
        return np.zeros(0, dtype=np.int64)
    seen: set[int] = set()
    waiting: list[int] = []
    while pairs > 0 and len(seen) < instance.operators - 1:
        if not waiting:
            waiting.append(int(random.integers(1, instance.operators)))
            seen.add(waiting[0])
            pairs -= _PAIRS_OF_A_START
        v = waiting.pop(int(random.integers(len(waiting))))
        edges = dual.near[dual.near_first[v] : dual.near_first[v + 1]]
        for e in random.permutation(edges)[:12].tolist():
            u = int(dual.ends[e].sum() - v)
            if u not in seen and u != 0:
                seen.add(u)
                waiting.append(u)
                pairs -= int(width[e])
    return np.array(sorted(seen), dtype=np.int64)


def sub_instance(
    instance: ShardingInstance, timeline: Timeline, plan: IntArray, free: IntArray
) -> ShardingInstance:
    """The instance in which only some operators may change; operator 0 carries all others."""
    place = np.zeros(instance.operators, dtype=np.int64)
    place[free] = np.arange(1, len(free) + 1)
    sizes = instance.sizes()[free]
    first = offsets([1, *sizes.tolist()])
    cost = np.concatenate([[0], instance.cost[runs(instance.first[free], sizes)]])
    inner: list[int] = []
    touching = (place[instance.edge_from] > 0) | (place[instance.edge_to] > 0)
    for e in np.flatnonzero(touching).tolist():
        u, v = int(instance.edge_from[e]), int(instance.edge_to[e])
        if place[u] and place[v]:
            inner.append(e)
            continue
        matrix = instance.edge_matrix(e)
        column = matrix[:, plan[v]] if place[u] else matrix[plan[u]]
        at = int(first[place[u] or place[v]])
        summed = added(cost[at : at + len(column)], column, FORBIDDEN)
        cost[at : at + len(column)] = summed
    usage = chosen_usage(instance, plan)
    moves = place[instance.piece_operator] > 0
    base = timeline.loads(np.where(moves, 0, usage))
    mine = np.flatnonzero(moves)
    lengths = instance.sizes()[instance.piece_operator[mine]]
    edges = np.array(inner, dtype=np.int64)
    pairs = np.diff(instance.edge_first)[edges]
    segments = np.arange(timeline.segments, dtype=np.int64)
    one_each = np.ones(len(base), dtype=np.int64)
    return ShardingInstance(
        name=instance.name,
        limit=instance.limit,
        first=first,
        cost=cost,
        edge_from=place[instance.edge_from[edges]],
        edge_to=place[instance.edge_to[edges]],
        edge_first=offsets(pairs),
        edge_cost=instance.edge_cost[runs(instance.edge_first[edges], pairs)],
        piece_operator=np.concatenate(
            [np.zeros(len(base), dtype=np.int64), place[instance.piece_operator[mine]]]
        ),
        piece_start=np.concatenate([segments, timeline.start[mine]]),
        piece_end=np.concatenate([segments + 1, timeline.end[mine]]),
        piece_first=offsets(np.concatenate([one_each, lengths])),
        piece_usage=np.concatenate(
            [base, instance.piece_usage[runs(instance.piece_first[mine], lengths)]]
        ),
    )


def price(instance: ShardingInstance, plan: IntArray) -> int | None:
    """Cost of a plan; None if it breaks a rule."""
    verdict = evaluate(instance, plan)
    return verdict.objective if verdict.feasible else None
