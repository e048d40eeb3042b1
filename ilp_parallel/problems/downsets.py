"""Downsets of a directed acyclic graph: the sets of nodes that are closed under successors.

A pipeline's last stages together always form such a set, so an ordered partition into stages is a
strictly growing chain of downsets from the empty one to all nodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ilp_parallel.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MAX_DOWNSETS = 100_000
"""Most downsets enumerated (chosen): their pairs, the steps of a chain, grow with the square."""


def downsets(nodes: int, edges: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    """All downsets as bit masks (bit v: node v), by number of nodes, then by mask.

    Raises
    ------
    InputError
        ``TOO_MANY_DOWNSETS`` beyond ``MAX_DOWNSETS``.
    """
    successors = [0] * nodes
    predecessors: list[list[int]] = [[] for _ in range(nodes)]
    for u, v in edges:
        successors[u] |= 1 << v
        predecessors[v].append(u)
    sinks = tuple(v for v in range(nodes) if not successors[v])
    layer: dict[int, frozenset[int]] = {0: frozenset(sinks)}
    found: list[int] = []
    while layer:
        found.extend(sorted(layer))
        if len(found) > MAX_DOWNSETS:
            raise InputError(
                "TOO_MANY_DOWNSETS",
                f"the graph has more than {MAX_DOWNSETS} downsets",
                "merge layers that belong together",
            )
        larger: dict[int, frozenset[int]] = {}
        for mask, addable in layer.items():
            for v in addable:
                grown = mask | 1 << v
                if grown not in larger:
                    fresh = (u for u in predecessors[v] if successors[u] & ~grown == 0)
                    larger[grown] = addable - {v} | frozenset(fresh)
        layer = larger
    return tuple(found)


def topological_order(nodes: int, edges: Sequence[tuple[int, int]]) -> tuple[int, ...] | None:
    """Nodes with every edge forwards, the last node that became free first; None for a cycle."""
    waiting = [0] * nodes
    successors: list[list[int]] = [[] for _ in range(nodes)]
    for u, v in edges:
        waiting[v] += 1
        successors[u].append(v)
    free = [v for v in range(nodes) if not waiting[v]]
    order: list[int] = []
    while free:
        u = free.pop()
        order.append(u)
        for v in successors[u]:
            waiting[v] -= 1
            if not waiting[v]:
                free.append(v)
    return tuple(order) if len(order) == nodes else None
