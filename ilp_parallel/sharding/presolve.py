"""Exact presolve: each step keeps an optimal plan and can be undone.

docs/sharding.md holds the proofs. The steps, in the order in which they are tried:

* ``consistency``: a strategy without an allowed partner at some edge goes.
* ``fixed``: an operator with one strategy left becomes a constant.
* ``separable``: an edge cost ``a_i + b_j`` (the zero edge is one) moves into the operators.
* ``determined``: an operator with one allowed partner per strategy of a neighbour follows it.
* ``eliminated``: an operator without memory and with at most two neighbours is minimised out.
* ``dominated``: a strategy that another replaces at no more cost and memory, whatever the
  neighbours do, goes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ilp_parallel.sharding.network import BARRED, Core, Network, Pieces

if TYPE_CHECKING:
    from ilp_parallel.problems.sharding import IntArray, ShardingInstance

_ELIMINATION_CELLS = 200_000
"""Largest table of an elimination of an operator between two others."""

_ADDED_PAIRS = 4
"""An elimination may leave this many times the pairs that it removes."""


@dataclass(slots=True)
class Report:
    """How many operators, edges or strategies each step removed, and in what time."""

    removed: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    def count(self, step: str, number: int = 1) -> None:
        """Add to a step's count."""
        self.removed[step] = self.removed.get(step, 0) + number


def presolve(instance: ShardingInstance, deadline: float = float("inf")) -> tuple[Core, Report]:
    """Contract, remove dominated strategies, and again until nothing changes.

    ``deadline`` (``time.monotonic``) ends it early with what is reached by then.

    Raises
    ------
    Infeasible
        If forbidden choices leave no plan.
    """
    began = time.monotonic()
    report = Report()
    network = Network(instance)
    touched = set(network.cost)
    while touched and time.monotonic() < deadline:
        _contract(network, report)
        touched = _remove_dominated(network, touched, report, deadline)
        touched |= network.changed
        touched |= {v for edge in network.changed_edges for v in edge}
    _contract(network, report)
    report.seconds = time.monotonic() - began
    return network.core(), report


def _contract(network: Network, report: Report) -> None:
    """Run the steps that look at one operator or one edge until none applies."""
    while network.changed or network.changed_edges:
        edges, network.changed_edges = network.changed_edges, {}
        for v, u in edges:
            if u in network.near.get(v, {}):
                _visit_edge(network, v, u, report)
        if network.changed_edges:
            continue
        waiting, network.changed = sorted(network.changed), set()
        for v in waiting:
            if v in network.cost:
                _visit(network, v, report)


def _visit(network: Network, v: int, report: Report) -> None:
    before = len(network.cost[v])
    if network.keep_only(v, network.cost[v] < BARRED):
        report.count("consistency", before - len(network.cost[v]))
    if len(network.cost[v]) == 1:
        network.settle(v, 0)
        report.count("fixed")
    elif not network.pieces[v] and len(network.near[v]) <= 2:
        _eliminate(network, v, report)


def _eliminate(network: Network, v: int, report: Report) -> None:
    neighbours = list(network.near[v])
    if not neighbours:
        network.settle(v, int(network.cost[v].argmin()))
    else:
        sizes = [len(network.cost[u]) for u in neighbours]
        new = int(np.prod(sizes)) if len(sizes) == 2 else 0
        own = len(network.cost[v])
        if new * own > _ELIMINATION_CELLS or new > _ADDED_PAIRS * own * sum(sizes):
            return
        network.eliminate(v)
    report.count("eliminated")


def _visit_edge(network: Network, v: int, u: int, report: Report) -> None:
    """Consistency, determined operators and separability at one edge."""
    matrix = network.near[v][u]
    allowed = matrix < BARRED
    rows, columns = allowed.sum(axis=1), allowed.sum(axis=0)
    dead = int((rows == 0).sum() + (columns == 0).sum())
    if dead:
        network.keep_only(v, rows > 0)
        network.keep_only(u, columns > 0)
        report.count("consistency", dead)
        return
    follows, leads = (rows == 1).all(), (columns == 1).all()
    if follows and not (leads and network.weight(v) < network.weight(u)):
        network.fold(u, v, allowed.argmax(axis=1))
        report.count("determined")
    elif leads:
        network.fold(v, u, allowed.argmax(axis=0))
        report.count("determined")
    elif allowed.all() and _is_separable(matrix):
        network.add_cost(v, matrix[:, 0])
        network.add_cost(u, matrix[0] - matrix[0, 0])
        network.drop_edge(v, u)
        report.count("separable")


def _is_separable(matrix: IntArray) -> bool:
    return bool((matrix - matrix[:, :1] == matrix[:1] - matrix[0, 0]).all())


def _remove_dominated(
    network: Network, touched: set[int], report: Report, deadline: float
) -> set[int]:
    """Try the operators named; returns those whose strategies or edges changed."""
    changed: set[int] = set()
    for v in sorted(touched):
        if time.monotonic() > deadline:
            return changed
        if v not in network.cost or len(network.cost[v]) < 2:
            continue
        keep = ~dominated(network.cost[v], network.near[v], profile(network.pieces[v]))
        if not keep.all():
            report.count("dominated", int((~keep).sum()))
            network.keep_only(v, keep)
            changed.add(v)
            changed.update(network.near[v])
    return changed


def profile(pieces: Pieces) -> IntArray:
    """[instants, strategies] usage of an operator over time, equal instants once."""
    if not pieces:
        return np.zeros((0, 0), dtype=np.int64)
    times = np.unique(np.array(list(pieces)))
    spans = np.searchsorted(times, np.array(list(pieces)))
    usage = np.zeros((len(times), len(next(iter(pieces.values())))), dtype=np.int64)
    for (start, end), row in zip(spans.tolist(), pieces.values(), strict=True):
        usage[start] += row
        usage[end] -= row
    return np.unique(np.cumsum(usage, axis=0)[:-1], axis=0)


def dominated(cost: IntArray, near: dict[int, IntArray], usage: IntArray) -> np.ndarray:
    """[strategies] which may go.

    Strategy a makes b superfluous if it uses no more memory at any time and
    ``cost[a] - cost[b] + sum over edges max_j (matrix[a, j] - matrix[b, j]) <= 0``, where j with
    ``matrix[b, j]`` forbidden do not count: exchanging b for a then never costs more.
    """
    size = len(cost)
    worst = cost[:, None] - cost[None, :]
    for row in usage:
        worst[row[:, None] > row[None, :]] = BARRED
    for matrix in near.values():
        for a in np.flatnonzero((worst < BARRED).sum(axis=1) > 1):
            difference = matrix[a] - matrix
            barred_a, barred_b = matrix[a] >= BARRED, matrix >= BARRED
            difference = np.where(barred_a, BARRED, difference)
            difference = np.where(barred_b, -BARRED, difference)
            worse = difference.max(axis=1)
            lost = (worst[a] >= BARRED) | (worse >= BARRED)
            worst[a] = np.where(lost, BARRED, worst[a] + worse)
    gone = np.zeros(size, dtype=np.bool_)
    for b in range(size):
        better = (worst[:, b] <= 0) & ~gone
        better[b] = False
        gone[b] = better.any()
    return gone
