"""The mutable form of an instance on which presolve works: operators, matrices, pieces."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ilp_parallel.problems.sharding import FORBIDDEN, IntArray, ShardingInstance, offsets

BARRED = 2**60
"""Stands for every forbidden cost; allowed costs, also of merged operators, stay below 2**58."""

Pieces = dict[tuple[int, int], IntArray]
"""Usage per strategy by live interval."""


class Infeasible(Exception):
    """No plan avoids every forbidden choice."""


@dataclass(frozen=True, slots=True)
class Step:
    """How an operator that was taken away follows from those that decided it.

    ``table`` has one axis per entry of ``by``, indexed by their strategies in the file.
    """

    operator: int
    by: tuple[int, ...]
    table: IntArray


class Network:
    """An instance taken apart. Every change keeps at least one optimal plan.

    ``kept[v]`` holds the file's strategy numbers of the strategies that are left.
    """

    def __init__(self, instance: ShardingInstance) -> None:
        self.instance = instance
        sizes = instance.sizes()
        first = instance.first.tolist()
        self.sizes = sizes.tolist()
        costs = np.where(instance.cost >= FORBIDDEN, BARRED, instance.cost)
        self.cost = {v: costs[a:b] for v, (a, b) in enumerate(pairwise(first))}
        self.kept = {v: np.arange(b - a) for v, (a, b) in enumerate(pairwise(first))}
        self.near: dict[int, dict[int, IntArray]] = {v: {} for v in self.cost}
        self.pieces: dict[int, Pieces] = {v: {} for v in self.cost}
        self.base: dict[tuple[int, int], int] = {}
        self.constant = 0
        self.steps: list[Step] = []
        self.changed: set[int] = set()
        self.changed_edges: dict[tuple[int, int], None] = {}
        self._add_edges()
        self._add_pieces()
        for v, cost in list(self.cost.items()):
            self.keep_only(v, cost < BARRED)

    def _add_edges(self) -> None:
        i = self.instance
        costs = np.where(i.edge_cost >= FORBIDDEN, BARRED, i.edge_cost)
        ends = zip(i.edge_from.tolist(), i.edge_to.tolist(), strict=True)
        for (u, v), (a, b) in zip(ends, pairwise(i.edge_first.tolist()), strict=True):
            self.add_edge(u, v, costs[a:b].reshape(self.sizes[u], self.sizes[v]))

    def _add_pieces(self) -> None:
        i = self.instance
        times = zip(
            i.piece_operator.tolist(), i.piece_start.tolist(), i.piece_end.tolist(), strict=True
        )
        for (v, start, end), (a, b) in zip(times, pairwise(i.piece_first.tolist()), strict=True):
            self.add_piece(v, (start, end), i.piece_usage[a:b])

    def add_edge(self, u: int, v: int, matrix: IntArray) -> None:
        """Add costs [strategies of u, strategies of v]; parallel edges become one."""
        if v in self.near[u]:
            matrix = added(self.near[u][v], matrix)
        self._set_edge(u, v, matrix)

    def _set_edge(self, u: int, v: int, matrix: IntArray) -> None:
        self.near[u][v] = matrix
        self.near[v][u] = matrix.T
        self.changed_edges[min(u, v), max(u, v)] = None

    def drop_edge(self, u: int, v: int) -> None:
        """Take an edge away."""
        del self.near[u][v], self.near[v][u]
        self.changed.update((u, v))

    def add_cost(self, v: int, cost: IntArray) -> None:
        """Add to the costs of an operator."""
        self.cost[v] = added(self.cost[v], cost)
        self.changed.add(v)

    def add_piece(self, v: int, span: tuple[int, int], usage: IntArray) -> None:
        """Add usage; what every strategy uses goes into the base load."""
        if span[0] >= span[1]:
            return
        if span in self.pieces[v]:
            usage = usage + self.pieces[v].pop(span)
        least = int(usage.min())
        if least:
            self.base[span] = self.base.get(span, 0) + least
            usage = usage - least
        if usage.any():
            self.pieces[v][span] = usage

    def keep_only(self, v: int, keep: np.ndarray) -> bool:
        """Keep the strategies marked true; whether any went.

        Raises
        ------
        Infeasible
            If none is left.
        """
        if keep.all():
            return False
        if not keep.any():
            raise Infeasible(f"operator {v} has no strategy left")
        self.cost[v], self.kept[v] = self.cost[v][keep], self.kept[v][keep]
        for u, matrix in list(self.near[v].items()):
            self._set_edge(v, u, matrix[keep])
        pieces, self.pieces[v] = self.pieces[v], {}
        for span, usage in pieces.items():
            self.add_piece(v, span, usage[keep])
        self.changed.add(v)
        return True

    def fold(self, v: int, u: int, choice: IntArray) -> None:
        """Make v follow its neighbour u: strategy ``choice[a]`` where u takes a."""
        matrix = self.near[u][v]
        self.drop_edge(u, v)
        self.add_cost(u, np.minimum(matrix[np.arange(len(choice)), choice], BARRED))
        self.add_cost(u, self.cost[v][choice])
        for w, further in list(self.near[v].items()):
            self.drop_edge(v, w)
            self.add_edge(u, w, further[choice])
        for span, usage in self.pieces[v].items():
            self.add_piece(u, span, usage[choice])
        table = np.full(self.sizes[u], -1, dtype=np.int64)
        table[self.kept[u]] = self.kept[v][choice]
        self._retire(v, (u,), table)

    def weight(self, v: int) -> int:
        """What folding v into another moves: its edges and pieces."""
        return len(self.near[v]) + len(self.pieces[v])

    def settle(self, v: int, strategy: int) -> None:
        """Give v a strategy for good; neighbours take over its edge costs."""
        self.keep_only(v, np.arange(len(self.cost[v])) == strategy)
        self.constant += int(self.cost[v][0])
        for w, matrix in list(self.near[v].items()):
            self.drop_edge(v, w)
            self.add_cost(w, matrix[0])
        self._retire(v, (), self.kept[v][0])

    def eliminate(self, v: int) -> None:
        """Minimise a memory-free operator with one or two neighbours out."""
        neighbours = tuple(self.near[v])
        matrices = [self.near[u][v] for u in neighbours]
        for u in neighbours:
            self.drop_edge(u, v)
        if len(neighbours) == 1:
            total = added(matrices[0], self.cost[v])
        else:
            total = added(matrices[0][:, None, :], added(matrices[1], self.cost[v])[None, :, :])
        best = total.argmin(axis=-1)
        least = total.min(axis=-1)
        if len(neighbours) == 1:
            self.add_cost(neighbours[0], least)
        else:
            self.add_edge(neighbours[0], neighbours[1], least)
        table = np.full([self.sizes[u] for u in neighbours], -1, dtype=np.int64)
        table[np.ix_(*(self.kept[u] for u in neighbours))] = self.kept[v][best]
        self._retire(v, neighbours, table)

    def _retire(self, v: int, by: tuple[int, ...], table: IntArray) -> None:
        self.steps.append(Step(v, by, table))
        del self.cost[v], self.near[v], self.pieces[v], self.kept[v]
        self.changed.discard(v)

    def core(self) -> Core:
        """What is left as an instance; its operator 0 carries the constant and the base load."""
        order = list(self.cost)
        place = {v: i + 1 for i, v in enumerate(order)}
        edges = [(v, w) for v in order for w in self.near[v] if place[v] < place[w]]
        pieces = [(v, span, usage) for v in order for span, usage in self.pieces[v].items()]
        one = np.ones(1, dtype=np.int64)
        spans = [*self.base, *(span for _, span, _ in pieces)]
        usages = [*(one * load for load in self.base.values()), *(u for _, _, u in pieces)]
        instance = ShardingInstance(
            name=self.instance.name,
            limit=self.instance.limit,
            first=offsets([1, *(len(self.cost[v]) for v in order)]),
            cost=flat([one * self.constant, *(_barred(self.cost[v]) for v in order)]),
            edge_from=_integers([place[v] for v, _ in edges]),
            edge_to=_integers([place[w] for _, w in edges]),
            edge_first=offsets([self.near[v][w].size for v, w in edges]),
            edge_cost=_barred(flat([self.near[v][w].ravel() for v, w in edges])),
            piece_operator=_integers([0] * len(self.base) + [place[v] for v, _, _ in pieces]),
            piece_start=_integers([start for start, _ in spans]),
            piece_end=_integers([end for _, end in spans]),
            piece_first=offsets([len(usage) for usage in usages]),
            piece_usage=flat(usages),
        )
        return Core(instance, tuple(order), tuple(self.kept[v] for v in order), self)


@dataclass(frozen=True, slots=True, eq=False)
class Core:
    """The instance that presolve left, with the way back."""

    instance: ShardingInstance
    order: tuple[int, ...]
    kept: tuple[IntArray, ...]
    network: Network

    def restore(self, strategies: IntArray) -> IntArray:
        """The plan of the file's instance that a plan of the core stands for, at equal cost."""
        plan = np.full(len(self.network.sizes), -1, dtype=np.int64)
        for v, kept, k in zip(self.order, self.kept, strategies[1:].tolist(), strict=True):
            plan[v] = kept[k]
        for step in reversed(self.network.steps):
            plan[step.operator] = step.table[tuple(plan[u] for u in step.by)]
        return plan


def added(a: IntArray, b: IntArray, barred: int = BARRED) -> IntArray:
    """Sum of costs; what is forbidden stays so, whatever is added (costs may be negative)."""
    return np.where((a >= barred) | (b >= barred), barred, a + b)


def _barred(cost: IntArray) -> IntArray:
    return np.where(cost >= BARRED, FORBIDDEN, cost)


def _integers(values: list[int]) -> IntArray:
    return np.array(values, dtype=np.int64)


def flat(parts: list[IntArray]) -> IntArray:
    """All parts in one array; there may be none."""
    return np.concatenate([np.zeros(0, dtype=np.int64), *parts])
