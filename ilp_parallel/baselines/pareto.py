"""Pareto filtering of integer points; all columns are minimised."""

from __future__ import annotations

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
    return _pareto_sweep(points, order)


def _pareto_plane(points: IntArray, order: IntArray) -> IntArray:
    """Two columns: after sorting by the first, the second must strictly fall."""
    second = points[order, 1]
    best_before = np.minimum.accumulate(np.append(np.iinfo(np.int64).max, second[:-1]))
    kept: IntArray = order[second < best_before]
    return kept


def _pareto_sweep(points: IntArray, order: IntArray) -> IntArray:
    """Any number of columns: the lexicographically smallest row left is never dominated."""
    kept = []
    while len(order):
        first = order[0]
        kept.append(first)
        rest = order[1:]
        order = rest[(points[rest] < points[first]).any(axis=1)]
    return np.array(kept, dtype=np.int64)
