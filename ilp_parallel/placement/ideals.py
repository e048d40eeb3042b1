"""Ideals (predecessor-closed sets) of an acyclic order, as sets of bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ilp_parallel.placement.groups import Groups


def ideals(groups: Groups, most: int) -> list[int] | None:
    """Every ideal as a Python integer (bit i is group i), or None beyond ``most`` of them."""
    before = [0] * len(groups.members)
    following: list[list[int]] = [[] for _ in groups.members]
    for a, b in groups.after:
        before[b] |= 1 << a
        following[a].append(b)
    start = sum(1 << i for i, needed in enumerate(before) if not needed)
    open_to = {0: start}
    waiting = [0]
    while waiting:
        ideal = waiting.pop()
        ready = open_to[ideal]
        left = ready
        while left:
            bit = left & -left
            left ^= bit
            grown = ideal | bit
            if grown in open_to:
                continue
            further = ready ^ bit
            for b in following[bit.bit_length() - 1]:
                if before[b] & ~grown == 0:
                    further |= 1 << b
            open_to[grown] = further
            waiting.append(grown)
            if len(open_to) > most:
                return None
    return list(open_to)


def chain_ideals(groups: Groups) -> list[int]:
    """The ideals of the groups' own topological order, taken as a chain."""
    return [(1 << i) - 1 for i in range(len(groups.members) + 1)]


def as_words(sets: list[int], groups: int) -> NDArray[np.uint64]:
    """Rows of 64-bit words, lowest groups first."""
    words = max(1, -(-groups // 64))
    raw = b"".join(ideal.to_bytes(8 * words, "little") for ideal in sets)
    return np.frombuffer(raw, dtype="<u8").reshape(len(sets), words).astype(np.uint64)
