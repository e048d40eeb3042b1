"""Compiled verdicts against exact arithmetic, on knapsacks too large for enumeration."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from ilp_parallel.piper.kernel import DOMINATED, NO, UNCLEAR, YES, judge
from ilp_parallel.piper.knapsack import cheapest_choice, greedy_choice

FAR = np.iinfo(np.int64).max


def random_modes(rng: np.random.Generator) -> np.ndarray:
    """[4, layers, 2]: few kinds of saving, or all different; times differ a little."""
    layers = int(rng.integers(1, 26))
    kinds = rng.integers(1, 60, size=(int(rng.integers(1, 8)), 2))
    modes = np.zeros((4, layers, 2))
    modes[0] = rng.integers(5, 40, size=(layers, 2))
    modes[1] = rng.integers(0, 3, size=(layers, 2))
    modes[2] = kinds[rng.integers(0, len(kinds), layers)]
    if rng.random() < 0.5:
        modes[2, :, 1] = modes[2, :, 0] // 3
    modes[3] = rng.integers(0, 20, size=(layers, 2))
    if rng.random() < 0.3:
        modes[:, :, 1] = modes[:, :, 0]
    return modes


def verdict(modes: np.ndarray, theta: float, memory: float, d: int, y: int, greedy: bool) -> int:
    layers = modes.shape[1]
    members = np.zeros((2, layers), dtype=np.uint8)
    members[1] = 1
    one = np.ones(1, dtype=np.int64)
    margins = (1e-9, 1e-9, 1e-9)
    found = judge(
        members, 1, 0 * one, np.array([[1, 1]]), d * one, y * one, np.zeros(1), modes,
        np.array((theta, memory, *margins)), np.full(3, FAR), greedy,
    )  # fmt: skip
    return int(found[0])


@pytest.mark.parametrize("greedy", [False, True])
def test_verdicts(greedy: bool) -> None:
    rng = np.random.default_rng(7)
    seen: Counter[int] = Counter()
    for _ in range(400):
        modes = random_modes(rng)
        d, y = int(rng.integers(1, 4)), int(rng.integers(1, 5))
        cost = (modes[0] + (d - 1) * modes[1]).astype(int)
        memory = (modes[2] * y + modes[3]).astype(int)
        options = [
            list(zip(c, m, strict=True))
            for c, m in zip(cost.tolist(), memory.tolist(), strict=True)
        ]
        low, high = int(memory.min(axis=1).sum()), int(memory.max(axis=1).sum())
        limit = int(rng.integers(low - 1, high + 1))
        exact = (greedy_choice if greedy else cheapest_choice)(options, limit)
        if exact is None:
            assert verdict(modes, 1e9, limit + 0.5, d, y, greedy) == NO
            continue
        for shift in (-1, 0, 1):
            theta = (exact.cost + shift + 0.5) / d
            found = verdict(modes, theta, limit + 0.5, d, y, greedy)
            assert found == (NO if shift < 0 else YES), (modes, limit, exact.cost, shift)
            seen[found] += 1
        assert verdict(modes, exact.cost / d, limit + 0.5, d, y, greedy) == UNCLEAR
    assert min(seen[NO], seen[YES]) > 100


def test_beaten_rows_are_not_looked_at() -> None:
    modes = np.ones((4, 1, 2))
    members = np.array([[0], [1]], dtype=np.uint8)
    labels = np.array([[1, 1], [2, 1], [2, 2]])
    three = np.ones(3, dtype=np.int64)
    frontier = np.full(4, FAR)
    found = judge(
        members, 1, 0 * three, labels, three, three, np.zeros(3), modes,
        np.array((10.0, 10.0, 1e-9, 1e-9, 1e-9)), frontier, False,
    )  # fmt: skip
    assert found.tolist() == [YES, DOMINATED, DOMINATED]
    assert frontier.tolist() == [FAR, 1, 1, 1]
