"""Exact chain-contiguous placement: dynamic programming over nested ideals.

``best[c, f, I]`` is the least largest load of the groups of ideal I on c CPUs and f accelerators.
The last device takes I minus a smaller ideal J, or nothing. A pair (J, I) is looked at only while
the time of I minus J, on whichever device kind is faster per group, stays within a value that
some plan already has; pairs are never stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ilp_parallel.placement.groups import group
from ilp_parallel.placement.ideals import as_words, chain_ideals, ideals
from ilp_parallel.placement.pairs import INFINITE, sweep

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ilp_parallel.placement.groups import Groups
    from ilp_parallel.problems.placement import PlacementInstance

MOST_IDEALS = 60_000
"""Ideals beyond which the exact program gives up, as the published one does."""


@dataclass(frozen=True, slots=True)
class ChainResult:
    """A placement, or None where no plan exists in the searched space."""

    devices: tuple[int, ...] | None
    objective_ticks: int | None
    ideals: int
    complete: bool
    """Whether every ideal was searched: then the answer is exact for the groups."""


def place_chain(instance: PlacementInstance, most_ideals: int = MOST_IDEALS) -> ChainResult:
    """The best chain-contiguous placement; with too many ideals, the best linearised one."""
    groups = group(instance)
    linear = _search(instance, groups, chain_ideals(groups), INFINITE)
    found = ideals(groups, most_ideals)
    if found is None:
        return ChainResult(*linear, len(groups.members) + 1, False)
    value = INFINITE if linear[1] is None else linear[1]
    exact = _search(instance, groups, found, value)
    return ChainResult(*exact, len(found), True)


def linearised(instance: PlacementInstance) -> ChainResult:
    """The best placement along one topological order: the published fast heuristic."""
    groups = group(instance)
    found = _search(instance, groups, chain_ideals(groups), INFINITE)
    return ChainResult(*found, len(groups.members) + 1, False)


def _search(
    instance: PlacementInstance, groups: Groups, sets: list[int], cutoff: int
) -> tuple[tuple[int, ...] | None, int | None]:
    """Plan and value of the best chain of ideals whose largest load is at most the cut-off."""
    words = as_words(sets, len(groups.members))
    totals = _totals(instance, groups, words)
    sizes = np.bitwise_count(words).sum(axis=1)
    order = np.lexsort((sizes, totals[:, 0]))
    words, totals = np.ascontiguousarray(words[order]), np.ascontiguousarray(totals[order])
    shape = (instance.cpus + 1, instance.accelerators + 1)
    best, parent, kind = sweep(
        words, totals, *_producers(instance, groups), shape, cutoff, instance.limit_bytes
    )
    last = int(np.flatnonzero(np.bitwise_count(words).sum(axis=1) == len(groups.members))[0])
    value = int(best[shape[0] - 1, shape[1] - 1, last])
    if value >= INFINITE:
        return None, None
    return _decode(instance, groups, words, parent, kind, last), value


def _totals(
    instance: PlacementInstance, groups: Groups, words: NDArray[np.uint64]
) -> NDArray[np.int64]:
    """Sums of every ideal: least time, CPU time, accelerator time, bytes, unsupported operators."""
    rows = np.array(
        [
            (
                sum(instance.cpu_ticks[v] for v in part),
                sum(instance.accelerator_ticks[v] for v in part),
                sum(instance.size_bytes[v] for v in part),
                sum(not instance.supported[v] for v in part),
            )
            for part in groups.members
        ],
        dtype=np.int64,
    ).reshape(-1, 4)
    rows = np.column_stack((rows[:, :2].min(axis=1), rows))
    totals = np.zeros((len(words), 5), dtype=np.int64)
    for i, row in enumerate(rows):
        inside = (words[:, i // 64] >> np.uint64(i % 64)) & np.uint64(1)
        totals[inside == 1] += row
    return totals


def _producers(
    instance: PlacementInstance, groups: Groups
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint64], NDArray[np.int64]]:
    """Per group its producers and those it reads: offsets, producer numbers, readers, (home, cost).

    Producers of one group with equal readers are one, their costs added. A producer occurs once
    at home and once at each reading group.
    """
    home = {v: g for g, part in enumerate(groups.members) for v in part}
    readers: dict[int, int] = {}
    for u, v in instance.edges:
        if home[u] != home[v]:
            readers[u] = readers.get(u, 0) | 1 << home[v]
    merged: dict[tuple[int, int], int] = {}
    for u, reading in readers.items():
        key = (home[u], reading)
        merged[key] = merged.get(key, 0) + instance.transfer_ticks[u]
    keys = [key for key, cost in merged.items() if cost]
    touching: list[list[int]] = [[] for _ in groups.members]
    for number, (at, reading) in enumerate(keys):
        touching[at].append(number)
        for g in range(len(groups.members)):
            if reading >> g & 1:
                touching[g].append(number)
    first = np.cumsum([0, *map(len, touching)]).astype(np.int64)
    return (
        first,
        np.array([number for part in touching for number in part], dtype=np.int64),
        as_words([reading for _, reading in keys], len(groups.members)),
        np.array([(at, merged[at, r]) for at, r in keys], dtype=np.int64).reshape(-1, 2),
    )


def _decode(
    instance: PlacementInstance,
    groups: Groups,
    words: NDArray[np.uint64],
    parent: NDArray[np.int32],
    kind: NDArray[np.int8],
    last: int,
) -> tuple[int, ...]:
    c, f, ideal = instance.cpus, instance.accelerators, last
    devices = [-1] * len(instance.names)
    while c or f:
        taken = int(kind[c, f, ideal])
        smaller = int(parent[c, f, ideal])
        is_cpu = taken == 1
        device = instance.accelerators + c - 1 if is_cpu else f - 1
        c, f = (c - 1, f) if is_cpu else (c, f - 1)
        for g, part in enumerate(groups.members):
            bit = np.uint64(1) << np.uint64(g % 64)
            if words[ideal, g // 64] & bit and not words[smaller, g // 64] & bit:
                for v in part:
                    devices[v] = device
        ideal = smaller
    return tuple(devices)
