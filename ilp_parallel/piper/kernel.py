"""Many stages at once, compiled: whether their modes can be chosen below a cost and within memory.

Floating point with a margin on both sides. YES and NO are certain: the answer would be the same
for any values within the margins. UNCLEAR is left to exact arithmetic. At most two modes per layer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
    Ints = npt.NDArray[np.int64]

NO, YES, UNCLEAR, DOMINATED = 0, 1, 2, 3

_STATES = 1 << 15
"""Partial choices kept at most (chosen); what needs more is left to exact arithmetic."""


@njit(cache=True)
def judge(
    members: npt.NDArray[np.uint8],  # [downsets, layers]
    high: int,
    low: Ints,  # [rows]
    labels: Ints,  # [rows, 2] devices and replicas of the label that the row would give
    degree: Ints,  # [rows] data degree
    in_flight: Ints,  # [rows]
    crossing: Floats,  # [rows] cost of edges that cross the boundary
    modes: Floats,  # [4, layers, 2] time, resync, activation, fixed
    limits: Floats,  # cost limit, memory limit, cost margin, memory margin, memory margin by y
    frontier: Ints,  # [devices + 1] fewest replicas of a label with at most so many devices
    greedy: bool,
) -> npt.NDArray[np.int8]:
    """Verdict of every row; accepted rows enter the frontier, rows it beats are not looked at."""
    rows, layers = len(low), members.shape[1]
    verdict = np.empty(rows, dtype=np.int8)
    priced, items = np.empty((5, layers)), np.empty((2, layers))
    order = np.arange(layers)
    parts, sums = np.empty((2, 2, _STATES)), np.empty((2, layers + 1))
    last = (-1, -1)
    for row in range(rows):
        devices, replicas = labels[row]
        if frontier[devices] <= replicas:
            verdict[row] = DOMINATED
            continue
        d, y = degree[row], in_flight[row]
        if last != (d, y):
            last = (d, y)
            _price(modes, d, y, priced)
            order = np.argsort(priced[4], kind="mergesort")
        cost, memory, count = _gather(members, high, low[row], order, priced, items)
        room, excess = limits[0] * d - cost - crossing[row], memory - limits[1]
        rise, saving = items[0, :count], items[1, :count]
        margins = (limits[2], limits[3] + limits[4] * y)
        if greedy:
            answer = _greedy(rise, saving, room, excess, margins)
        else:
            answer = _decide(rise, saving, room, excess, margins, sums, parts)
        verdict[row] = answer
        if answer == YES:
            for k in range(devices, len(frontier)):
                frontier[k] = min(frontier[k], replicas)
    return verdict


@njit(cache=True)
def _price(modes, d, y, priced):  # type: ignore[no-untyped-def]
    """Cost and memory of every layer's cheaper mode; rise, saving and their ratio by the other."""
    for v in range(modes.shape[1]):
        first = modes[0, v, 0] + (d - 1) * modes[1, v, 0]
        second = modes[0, v, 1] + (d - 1) * modes[1, v, 1]
        first_memory = modes[2, v, 0] * y + modes[3, v, 0]
        second_memory = modes[2, v, 1] * y + modes[3, v, 1]
        if second < first or (second == first and second_memory < first_memory):
            first, second = second, first
            first_memory, second_memory = second_memory, first_memory
        priced[0, v], priced[1, v] = first, first_memory
        priced[2, v], priced[3, v] = second - first, first_memory - second_memory
        priced[4, v] = priced[2, v] / priced[3, v] if priced[3, v] > 0 else np.inf


@njit(cache=True)
def _gather(members, high, low, order, priced, items):  # type: ignore[no-untyped-def]
    """Cost and memory of a stage with cheaper modes, and its swaps that save memory, in order."""
    cost, memory, count = 0.0, 0.0, 0
    for v in order:
        if members[high, v] and not members[low, v]:
            cost += priced[0, v]
            memory += priced[1, v]
            if priced[3, v] > 0:
                items[0, count], items[1, count] = priced[2, v], priced[3, v]
                count += 1
    return cost, memory, count


@njit(cache=True)
def _greedy(rise, saving, room, excess, margins):  # type: ignore[no-untyped-def]
    """The published rule: swaps in order until all fits."""
    for i in range(len(rise) + 1):
        if abs(excess) <= margins[1]:
            return UNCLEAR
        if excess < 0:
            break
        if i == len(rise):
            return NO
        room -= rise[i]
        excess -= saving[i]
    if abs(room) <= margins[0]:
        return UNCLEAR
    return YES if room > 0 else NO


@njit(cache=True)
def _decide(rise, saving, room, excess, margins, sums, parts):  # type: ignore[no-untyped-def]
    """Whether items saving at least ``excess`` cost less than ``room``."""
    count = len(rise)
    loose_room, loose_excess = room + margins[0], excess - margins[1]
    if loose_room < 0:
        return NO
    if loose_excess <= 0:
        certain = room > margins[0] and excess <= -margins[1]
        return YES if certain else UNCLEAR
    sums[0, 0] = sums[1, 0] = 0.0
    for i in range(count):
        sums[0, i + 1] = sums[0, i] + rise[i]
        sums[1, i + 1] = sums[1, i] + saving[i]
    if sums[1, count] < loose_excess:
        return NO
    if _relaxed(rise, saving, sums, 0, loose_excess) > loose_room:
        return NO
    strict_room, strict_excess = room - margins[0], excess + margins[1]
    reachable = sums[1, count] >= strict_excess
    if reachable and _rounded(rise, saving, sums, strict_excess) < strict_room:
        return YES
    limits = (loose_room, loose_excess, strict_room, strict_excess)
    return _search(rise, saving, sums, limits, parts[0], parts[1])


@njit(cache=True)
def _relaxed(rise, saving, sums, start, excess):  # type: ignore[no-untyped-def]
    """Least cost of saving ``excess`` with fractions of the items from ``start`` on."""
    if excess <= 0:
        return 0.0
    target = sums[1, start] + excess
    last = len(rise)
    if sums[1, last] < target:
        return np.inf
    low, high = start, last
    while low < high:
        middle = (low + high) // 2
        if sums[1, middle] >= target:
            high = middle
        else:
            low = middle + 1
    whole = low - 1
    part = (target - sums[1, whole]) / saving[whole]
    return sums[0, whole] - sums[0, start] + part * rise[whole]


@njit(cache=True)
def _rounded(rise, saving, sums, excess):  # type: ignore[no-untyped-def]
    """Cost of a choice: whole items in order, the last one replaced or early ones taken back."""
    last = 0
    while sums[1, last + 1] < excess:
        last += 1
    best = np.inf
    short = excess - sums[1, last]
    for i in range(last, len(rise)):
        if saving[i] >= short and sums[0, last] + rise[i] < best:
            best = sums[0, last] + rise[i]
    spare, cost = sums[1, last + 1] - excess, sums[0, last + 1]
    while True:
        chosen = -1
        for i in range(last):
            if saving[i] <= spare and (chosen < 0 or rise[i] > rise[chosen]):
                chosen = i
        if chosen < 0 or rise[chosen] <= 0:
            break
        cost -= rise[chosen]
        spare -= saving[chosen]
        last = chosen  # only items before it may follow, so that none is taken back twice
    return min(best, cost)


@njit(cache=True)
def _search(rise, saving, sums, limits, cost_parts, memory_parts):  # type: ignore[no-untyped-def]
    """Partial choices that no other beats, pruned by the relaxation of the items left."""
    loose_room, loose_excess, strict_room, strict_excess = limits
    now, size = 0, 1
    cost_parts[0, 0] = memory_parts[0, 0] = 0.0
    for i in range(len(rise)):
        fresh = 1 - now
        a = b = kept = 0
        while a < size or b < size:
            take = b >= size
            if a < size and b < size:
                take = cost_parts[now, a] <= cost_parts[now, b] + rise[i]
            if take:
                cost, memory = cost_parts[now, a], memory_parts[now, a]
                a += 1
            else:
                cost, memory = cost_parts[now, b] + rise[i], memory_parts[now, b] + saving[i]
                b += 1
                if memory >= loose_excess and cost <= loose_room:
                    certain = memory >= strict_excess and cost < strict_room
                    return YES if certain else UNCLEAR
            if kept and memory_parts[fresh, kept - 1] >= memory:
                continue
            left = _relaxed(rise, saving, sums, i + 1, loose_excess - memory)
            if cost + left > loose_room:
                continue
            if kept == cost_parts.shape[1]:
                return UNCLEAR
            cost_parts[fresh, kept], memory_parts[fresh, kept] = cost, memory
            kept += 1
        now, size = fresh, kept
        if not size:
            return NO
    return NO
