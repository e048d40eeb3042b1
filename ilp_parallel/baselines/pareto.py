"""Pareto filtering of integer points; all columns are minimised."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]


def pareto_rows(points: IntArray) -> IntArray:
    """Indices of the rows of ``points`` [n, d] that no other row dominates.

    Of equal rows the first is kept. Rows come back in lexicographic order of their points.
    """
    order: IntArray = np.lexsort(points.T[::-1])
    if points.shape[1] == 1:
        return order[:1]
    if points.shape[1] == 2:
        return _pareto_plane(points, order)
    if points.shape[1] == 3:
        return _pareto_space(points, order)
    return _pareto_sweep(points, order)


def _pareto_plane(points: IntArray, order: IntArray) -> IntArray:
    """Two columns: after sorting by the first, the second must strictly fall."""
    second = points[order, 1]
    best_before = np.minimum.accumulate(np.append(np.iinfo(np.int64).max, second[:-1]))
    kept: IntArray = order[second < best_before]
    return kept


def _pareto_space(points: IntArray, order: IntArray) -> IntArray:
    """Three columns: in order of the first, the others must get under a falling staircase."""
    steps: list[int] = []  # second column, rising
    heights: list[int] = []  # least third column up to that step, strictly falling
    kept = []
    for row, (_, step, height) in zip(order.tolist(), points[order].tolist(), strict=True):
        place = bisect_right(steps, step)
        if place and heights[place - 1] <= height:
            continue
        kept.append(row)
        start = place - 1 if place and steps[place - 1] == step else place
        end = start
        while end < len(steps) and heights[end] >= height:
            end += 1
        steps[start:end], heights[start:end] = [step], [height]
    return np.array(kept, dtype=np.int64)


def _pareto_sweep(points: IntArray, order: IntArray) -> IntArray:
    """Any number of columns: the lexicographically smallest row left is never dominated."""
    kept = []
    while len(order):
        first = order[0]
        kept.append(first)
        rest = order[1:]
        order = rest[(points[rest] < points[first]).any(axis=1)]
    return np.array(kept, dtype=np.int64)
