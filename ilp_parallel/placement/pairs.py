"""The compiled loop over nested pairs of ideals."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numba
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

INFINITE = 2**62
"""Stands for no plan; above every load."""


@numba.njit(cache=True)
def transfers(
    small: NDArray[np.uint64],
    large: NDArray[np.uint64],
    first: NDArray[np.int64],
    touching: NDArray[np.int64],
    readers: NDArray[np.uint64],
    made: NDArray[np.int64],
    room: int,
) -> int:
    """Transfer ticks of an accelerator with the groups of large minus small; stops above room."""
    total = 0
    for w in range(len(large)):
        left = large[w] & ~small[w]
        while left:
            low = left & (~left + np.uint64(1))
            left ^= low
            bit = 0
            probe = low
            while probe > np.uint64(1):
                probe >>= np.uint64(1)
                bit += 1
            g = 64 * w + bit
            for t in range(first[g], first[g + 1]):
                p = touching[t]
                at = made[p, 0]
                if at == g:
                    for x in range(len(large)):
                        if readers[p, x] & ~(large[x] & ~small[x]):
                            total += made[p, 1]
                            break
                    continue
                here = large[at // 64] & ~small[at // 64]
                if here >> np.uint64(at % 64) & np.uint64(1):
                    continue
                counted = bool(readers[p, w] & (large[w] & ~small[w]) & (low - np.uint64(1)))
                for x in range(w):
                    counted = counted or bool(readers[p, x] & large[x] & ~small[x])
                if not counted:
                    total += made[p, 1]
            if total > room:
                return total
    return total


@numba.njit(cache=True)
def sweep(
    words: NDArray[np.uint64],
    totals: NDArray[np.int64],
    first: NDArray[np.int64],
    touching: NDArray[np.int64],
    readers: NDArray[np.uint64],
    made: NDArray[np.int64],
    shape: tuple[int, int],
    cutoff: int,
    limit: int,
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int8]]:
    """Best values, smaller ideal and kind of the last device (0 accelerator, 1 CPU).

    Ideals come sorted by least time, then size, so that a subset comes before its supersets.
    """
    number, width = words.shape
    best = np.full((shape[0], shape[1], number), INFINITE, dtype=np.int64)
    parent = np.zeros((shape[0], shape[1], number), dtype=np.int32)
    kind = np.zeros((shape[0], shape[1], number), dtype=np.int8)
    most_c, most_f = shape[0] - 1, shape[1] - 1
    best[:, :, 0] = 0
    kind[1:, 0, 0] = 1
    for i in range(1, number):
        for c in range(shape[0]):
            for f in range(shape[1]):
                if f and best[c, f - 1, i] < best[c, f, i]:
                    best[c, f, i], parent[c, f, i], kind[c, f, i] = best[c, f - 1, i], i, 0
        for j in range(i - 1, -1, -1):
            if totals[i, 0] - totals[j, 0] > cutoff:
                break
            if best[most_c, most_f, j] > cutoff:
                continue
            inside = True
            for w in range(width):
                if words[j, w] & ~words[i, w]:
                    inside = False
                    break
            if not inside:
                continue
            slow = totals[i, 1] - totals[j, 1]
            load = totals[i, 2] - totals[j, 2]
            if load <= cutoff and totals[i, 3] - totals[j, 3] <= limit:
                if totals[i, 4] == totals[j, 4]:
                    room = cutoff - load
                    load += transfers(words[j], words[i], first, touching, readers, made, room)
                else:
                    load = INFINITE
            else:
                load = INFINITE
            for c in range(shape[0]):
                for f in range(shape[1]):
                    if f and load <= cutoff:
                        value = max(load, best[c, f - 1, j])
                        if value < best[c, f, i]:
                            best[c, f, i], parent[c, f, i], kind[c, f, i] = value, j, 0
                    if c and slow <= cutoff:
                        value = max(slow, best[c - 1, f, j])
                        if value < best[c, f, i]:
                            best[c, f, i], parent[c, f, i], kind[c, f, i] = value, j, 1
        for c in range(shape[0]):
            for f in range(shape[1]):
                if f and best[c, f - 1, i] < best[c, f, i]:
                    best[c, f, i], parent[c, f, i], kind[c, f, i] = best[c, f - 1, i], i, 0
                if c and best[c - 1, f, i] < best[c, f, i]:
                    best[c, f, i], parent[c, f, i], kind[c, f, i] = best[c - 1, f, i], i, 1
    return best, parent, kind
