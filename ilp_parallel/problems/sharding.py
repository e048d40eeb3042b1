"""Operator sharding: one strategy per operator under one memory limit.

The intra-operator problem of Alpa and of the ASPLOS 2025 contest. Operator ``v`` takes one strategy
``x_v``; the plan costs

    sum_v cost_v[x_v] + sum_(u,v) cost_uv[x_u, x_v]

and at every time ``t`` the usage of the strategies of all operators alive at ``t`` stays within the
limit. Costs from ``FORBIDDEN`` on are no prices: such a strategy or pair may not be used.

An operator has any number of *pieces*: a live interval ``[start, end)`` with one usage per
strategy. A file gives one piece per operator; presolve gathers the pieces of operators that it
folds together, so that what is left is an instance like any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ilp_parallel.problems.check import Check

if TYPE_CHECKING:
    from collections.abc import Sequence

IntArray = npt.NDArray[np.int64]

FORBIDDEN = 10**18
"""Costs from here on (the contest's sentinel and its sums) mean: not allowed."""


@dataclass(frozen=True, slots=True, eq=False)
class ShardingInstance:
    """Operators, edges and pieces as flat integer arrays.

    Strategy ``k`` of operator ``v`` is the cell ``first[v] + k``. Pair ``(a, b)`` of edge ``e`` is
    ``edge_cost[edge_first[e] + a * width + b]``, ``width`` being the strategies of its target.
    """

    name: str
    limit: int  # memory units of the file
    first: IntArray  # [operators + 1]
    cost: IntArray  # [cells], cost units of the file
    edge_from: IntArray  # [edges]
    edge_to: IntArray  # [edges]
    edge_first: IntArray  # [edges + 1]
    edge_cost: IntArray  # [pairs], row by row
    piece_operator: IntArray  # [pieces]
    piece_start: IntArray  # [pieces], first instant alive
    piece_end: IntArray  # [pieces], first instant no longer alive
    piece_first: IntArray  # [pieces + 1]
    piece_usage: IntArray  # [usages], one per strategy of the piece's operator

    @property
    def operators(self) -> int:
        """Number of operators."""
        return len(self.first) - 1

    @property
    def edges(self) -> int:
        """Number of edges."""
        return len(self.edge_from)

    def sizes(self) -> IntArray:
        """[operators] number of strategies."""
        return np.diff(self.first)

    def usage_cells(self) -> IntArray:
        """[usages] the cell of the strategy that each usage belongs to."""
        return runs(self.first[self.piece_operator], np.diff(self.piece_first))

    def edge_matrix(self, edge: int) -> IntArray:
        """Costs of an edge, [strategies of its source, strategies of its target]."""
        rows = self.first[self.edge_from[edge] + 1] - self.first[self.edge_from[edge]]
        flat = self.edge_cost[self.edge_first[edge] : self.edge_first[edge + 1]]
        return flat.reshape(int(rows), -1)


def runs(starts: IntArray, sizes: IntArray) -> IntArray:
    """[sum of sizes] the indices ``start, start + 1, ...`` of every run, run after run."""
    shifts = starts - (np.cumsum(sizes) - sizes)
    indices: IntArray = np.repeat(shifts, sizes) + np.arange(sizes.sum())
    return indices


def offsets(sizes: Sequence[int] | IntArray) -> IntArray:
    """[n + 1] where runs of these sizes begin in one array, and where the last one ends."""
    return np.concatenate([[0], np.cumsum(np.asarray(sizes, dtype=np.int64))]).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Cost of a plan (None if it uses something forbidden) and the verdict of every rule."""

    objective: int | None
    peak_usage: int
    checks: tuple[Check, ...]

    @property
    def feasible(self) -> bool:
        """Whether every rule holds."""
        return all(check.passed for check in self.checks)


def evaluate(instance: ShardingInstance, strategies: IntArray) -> Evaluation:
    """Check a plan, [operators] one strategy each, against every rule and price it exactly."""
    shape = _shape_check(instance, strategies)
    if not shape.passed:
        return Evaluation(None, 0, (shape,))
    nodes = instance.cost[instance.first[:-1] + strategies]
    width = instance.sizes()[instance.edge_to]
    pairs = instance.edge_cost[
        instance.edge_first[:-1]
        + strategies[instance.edge_from] * width
        + strategies[instance.edge_to]
    ]
    forbidden = int((nodes >= FORBIDDEN).sum() + (pairs >= FORBIDDEN).sum())
    peak = peak_usage(instance, strategies)
    checks = (
        shape,
        Check("no_forbidden_choice", forbidden == 0, -forbidden, "choices"),
        Check("memory", peak <= instance.limit, instance.limit - peak, "memory units"),
    )
    price = exact_sum(nodes) + exact_sum(pairs)
    return Evaluation(None if forbidden else price, peak, checks)


def _shape_check(instance: ShardingInstance, strategies: IntArray) -> Check:
    """Whether there is one existing strategy for each operator."""
    wrong = abs(len(strategies) - instance.operators)
    if not wrong:
        wrong = int(((strategies < 0) | (strategies >= instance.sizes())).sum())
    return Check("one_strategy_per_operator", wrong == 0, -wrong, "operators")


def exact_sum(values: IntArray) -> int:
    """Sum as an unbounded integer: halves of 32 bits cannot overflow below 2**31 terms."""
    return (int((values >> 32).sum()) << 32) + int((values & 0xFFFFFFFF).sum())


def peak_usage(instance: ShardingInstance, strategies: IntArray) -> int:
    """Largest memory in use at any time."""
    chosen = instance.piece_usage[instance.piece_first[:-1] + strategies[instance.piece_operator]]
    alive = instance.piece_start < instance.piece_end
    start, end, chosen = instance.piece_start[alive], instance.piece_end[alive], chosen[alive]
    if not len(chosen):
        return 0
    times, place = np.unique(np.concatenate([start, end]), return_inverse=True)
    wide = np.abs(chosen.astype(np.float64)).sum() >= 2**62
    change = np.zeros(len(times), dtype=object if wide else np.int64)
    signed = np.concatenate([chosen, -chosen])
    np.add.at(change, place, signed.astype(change.dtype))
    return max(0, int(np.cumsum(change).max()))


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """The instants at which the set of live pieces changes; segment s lies between two of them."""

    times: IntArray  # [segments] first instant of each
    start: IntArray  # [pieces] first segment
    end: IntArray  # [pieces] first segment no longer alive

    @property
    def segments(self) -> int:
        """Number of segments."""
        return len(self.times)

    @classmethod
    def of(cls, instance: ShardingInstance) -> Timeline:
        """Segments of an instance."""
        both = np.concatenate([instance.piece_start, instance.piece_end])
        times, place = np.unique(both, return_inverse=True)
        half = len(instance.piece_start)
        return cls(times, place[:half].astype(np.int64), place[half:].astype(np.int64))

    def loads(self, usage: IntArray) -> IntArray:
        """[segments] memory in use, given the [pieces] usage."""
        change = np.zeros(self.segments + 1, dtype=np.int64)
        np.add.at(change, self.start, usage)
        np.add.at(change, np.maximum(self.start, self.end), -usage)
        total: IntArray = np.cumsum(change)[:-1]
        return total


def chosen_usage(instance: ShardingInstance, strategies: IntArray) -> IntArray:
    """[pieces] usage of a plan."""
    cells = instance.piece_first[:-1] + strategies[instance.piece_operator]
    usage: IntArray = instance.piece_usage[cells]
    return usage
