"""Operators that share a device merged into groups, with an acyclic order of the forward ones.

A group is the union of colour classes that a chain of devices cannot separate: classes on a cycle
of the forward quotient graph. Contiguity concerns forward operators; a class without any takes its
place by its edges to and from backward operators, turned round.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import networkx as nx

if TYPE_CHECKING:
    from ilp_parallel.problems.placement import PlacementInstance


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups numbered in a topological order of ``after``."""

    members: tuple[tuple[int, ...], ...]
    after: tuple[tuple[int, int], ...]
    """Edges of the acyclic order between groups."""


def group(instance: PlacementInstance) -> Groups:
    """The groups of an instance; merging changes no chain-contiguous placement."""
    label = list(instance.colours)
    while True:
        order = _order(instance, label)
        merged = _merged_cycles(order)
        if not merged:
            break
        label = [merged.get(x, x) for x in label]
    place = {x: i for i, x in enumerate(nx.lexicographical_topological_sort(order))}
    members = defaultdict(list)
    for v, x in enumerate(label):
        members[place[x]].append(v)
    return Groups(
        tuple(tuple(members[i]) for i in range(len(place))),
        tuple(sorted((place[a], place[b]) for a, b in order.edges)),
    )


def _order(instance: PlacementInstance, label: list[int]) -> nx.DiGraph:
    """Forward edges between groups, and mirrored edges of groups that are only backward."""
    order = nx.DiGraph()
    order.add_nodes_from(label)
    forward = {x for x, back in zip(label, instance.backward, strict=True) if not back}
    for u, v in instance.edges:
        a, b = label[u], label[v]
        if a == b:
            continue
        if not instance.backward[u] and not instance.backward[v]:
            order.add_edge(a, b)
        elif instance.backward[u] and not (a in forward and b in forward):
            order.add_edge(b, a)
    return order


def _merged_cycles(order: nx.DiGraph) -> dict[int, int]:
    return {
        x: min(part)
        for part in nx.strongly_connected_components(order)
        if len(part) > 1
        for x in part
    }
