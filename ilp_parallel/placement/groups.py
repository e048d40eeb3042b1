"""Operators that share a device merged into groups, with an acyclic order of the forward ones.

A group is the union of colour classes that a chain of devices cannot separate: classes on a cycle
of the forward quotient graph. A class without a forward operator is a group outside the forward
order, as published: contiguity concerns forward operators, so it goes to any device of the chain;
the published program orders it by mirrored edges, and so does this one.
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


def group(instance: PlacementInstance, reduce_free: bool) -> Groups:
    """Groups of an instance.

    With ``reduce_free`` a forward group without time that has one forward neighbour and no
    backward edge is merged into that neighbour, the published reduction; with transfers of
    its own, sizes or CPU-only neighbours that can cost optimality.
    """
    label = list(instance.colours)
    while True:
        order = _order(instance, label)
        merged = _merged_cycles(order)
        if not merged and reduce_free:
            merged = _merged_free(instance, order, label)
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


def _merged_free(
    instance: PlacementInstance, order: nx.DiGraph, label: list[int]
) -> dict[int, int]:
    """One group without time and the neighbour it joins, or nothing."""
    busy = {
        x
        for v, x in enumerate(label)
        if instance.cpu_ticks[v] or instance.accelerator_ticks[v]
    }
    for u, v in instance.edges:
        if instance.backward[v] and not instance.backward[u]:
            busy.add(label[u])
    merged: dict[int, int] = {}
    taken: set[int] = set()
    for x in order:
        near = set(order.predecessors(x)) | set(order.successors(x))
        if x not in busy and len(near) == 1 and not (near | {x}) & taken:
            merged[x] = near.copy().pop()
            taken |= near | {x}
    return merged
