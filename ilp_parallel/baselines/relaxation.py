"""Linear relaxation of the knapsack of one device group, in exact integers.

Of the items of each kind only the lower convex hull of (memory, time) matters; from the fastest
items on, time is exchanged for memory along the cheapest edges of all hulls until the rest fits.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ilp_parallel.baselines.pareto import pareto_rows

IntArray = npt.NDArray[np.int64]
FINE = 1024
"""Reduced costs are in 1/1024 ticks."""

LARGEST_REDUCED = 2**48
"""Largest reduced cost in ticks; a smaller one than the true one only lets more through."""


@dataclass(frozen=True, slots=True)
class Items:
    """What layers of one device group may do; arrays [K], kinds rising."""

    kind: IntArray
    time: IntArray
    tail: IntArray
    memory: IntArray
    transient: IntArray


@dataclass(frozen=True, slots=True)
class Relaxation:
    """Linear relaxation of one knapsack at its optimal multiplier.

    ``value`` is a lower bound on the time, rounded up; ``base`` has an item for every kind (-1
    where no layer is of it); ``slow`` is the lighter basic item of a kind that mixes two, or None
    if the memory row does not bind.
    """

    value: int
    base: tuple[int, ...]
    slow: int | None
    reduced: IntArray  # [K] in 1/1024 ticks, rounded down


def drop_dominated(items: Items, usable: IntArray) -> IntArray:
    """Indices of the items worth considering among ``usable``."""
    points = np.stack([items.time, items.tail, items.memory, items.transient], axis=1)
    kinds = items.kind[usable]
    kept = [
        mine[pareto_rows(points[mine])] for mine in (usable[kinds == q] for q in np.unique(kinds))
    ]
    return np.sort(np.concatenate(kept)) if kept else usable


def relax(items: Items, usable: IntArray, need: IntArray, room: int) -> Relaxation | None:
    """Linear relaxation with ``usable`` items; None if even that is infeasible.

    ``need`` [Q] is the number of layers of each kind.
    """
    kinds = items.kind[usable]
    base = [-1] * len(need)
    hulls: dict[int, list[int]] = {}
    excess = -room
    for q in np.flatnonzero(need).tolist():
        mine = usable[kinds == q]
        if not len(mine):
            return None
        hulls[q] = [int(mine[i]) for i in _hull(items.time[mine], items.memory[mine])]
        base[q] = hulls[q][-1]
        excess += int(need[q]) * int(items.memory[base[q]])
    if excess <= 0:
        value = sum(int(need[q]) * int(items.time[base[q]]) for q in hulls)
        reduced = (items.time - items.time[base][items.kind]) * FINE
        return Relaxation(value, tuple(base), None, reduced)
    slow = _descend(items, hulls, need, base, excess)
    return None if slow is None else _at_edge(items, usable, need, room, tuple(base), slow)


def _descend(
    items: Items, hulls: dict[int, list[int]], need: IntArray, base: list[int], excess: int
) -> int | None:
    """Exchange the cheapest time for memory, kind by kind, until the excess is gone.

    ``base`` becomes the items before the last exchange, which goes to the item that is returned.
    """
    time, memory = items.time.tolist(), items.memory.tolist()
    edges = sorted(
        ((time[light] - time[heavy]) / (memory[heavy] - memory[light]), -place, q, light)
        for q, hull in hulls.items()
        for place, (light, heavy) in enumerate(itertools.pairwise(hull))
    )
    for _, _, q, light in edges:
        saved = int(need[q]) * (memory[base[q]] - memory[light])
        if saved >= excess:
            return light
        excess -= saved
        base[q] = light
    return None


def _at_edge(
    items: Items, usable: IntArray, need: IntArray, room: int, base: tuple[int, ...], slow: int
) -> Relaxation:
    """The relaxation whose multiplier makes ``slow`` and the base of its kind equally good."""
    fast = base[int(items.kind[slow])]
    rise = int(items.time[slow] - items.time[fast])
    run = int(items.memory[fast] - items.memory[slow])
    price = [
        run * t + rise * u for t, u in zip(items.time.tolist(), items.memory.tolist(), strict=True)
    ]
    least = [0] * len(need)
    for q in np.flatnonzero(need).tolist():
        least[q] = min(price[k] for k in usable[items.kind[usable] == q].tolist())
    exact = [
        min((cost - least[q]) * FINE // run, LARGEST_REDUCED)
        for cost, q in zip(price, items.kind.tolist(), strict=True)
    ]
    total = sum(int(n) * cost for n, cost in zip(need, least, strict=True))
    value = -(-(total - rise * room) // run)
    return Relaxation(value, base, slow, np.array(exact, dtype=np.int64))


def _hull(time: IntArray, memory: IntArray) -> list[int]:
    """Lower convex hull of (memory, time), the lightest first, the fastest last."""
    order = np.lexsort((time, memory))
    hull: list[int] = []
    for i in order.tolist():
        if hull and time[i] >= time[hull[-1]]:
            continue
        while len(hull) > 1 and _not_convex(time, memory, hull[-2], hull[-1], i):
            hull.pop()
        hull.append(i)
    return hull


def _not_convex(time: IntArray, memory: IntArray, a: int, b: int, c: int) -> bool:
    """Whether b lies on or above the segment from a to c."""
    left = (int(time[b]) - int(time[a])) * (int(memory[c]) - int(memory[a]))
    right = (int(time[c]) - int(time[a])) * (int(memory[b]) - int(memory[a]))
    return left >= right


def round_up(items: Items, relaxation: Relaxation, need: IntArray, room: int) -> tuple[int, int]:
    """Time and tail of a feasible content near the relaxation."""
    counts = np.zeros(len(items.time), dtype=np.int64)
    used = np.flatnonzero(need)
    base = np.array(relaxation.base)[used]
    counts[base] = need[used]
    slow = relaxation.slow
    if slow is not None:
        fast = relaxation.base[int(items.kind[slow])]
        saved = int(items.memory[fast] - items.memory[slow])
        moved = -((room - int(counts @ items.memory)) // saved)
        counts[fast] -= moved
        counts[slow] += moved
    return int(counts @ items.time), int(counts @ items.tail)


def transient_levels(items: Items, usable: IntArray, capacity: int) -> list[tuple[IntArray, int]]:
    """(items, room for the sum of memory) for every possible largest transient."""
    levels = np.unique(items.transient[usable]).tolist()
    return [(usable[items.transient[usable] <= level], capacity - level) for level in levels]
