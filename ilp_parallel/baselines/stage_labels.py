"""Pareto labels of one device group, layer by layer: the general first level of the exact DP.

A label is one choice of strategies for the layers of a device group. Its point has the columns
``[F' or X = F' + B', B' (gpipe only), tail, memory rows ..., largest transient]``; labels are
compared only at equal last strategy, and only where resharding makes it matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ilp_parallel.baselines.pareto import pareto_rows

if TYPE_CHECKING:
    from ilp_parallel.problems.pipeline import PipelineInstance

IntArray = npt.NDArray[np.int64]
Member = tuple[int, int]
"""A layer and the chunk it lies in."""


@dataclass(frozen=True, slots=True)
class Frontier:
    """Undominated contents of a device group.

    ``points`` [n, D + 1] are the bottleneck columns (D of them) and the tail, fixed parts
    included; ``contents`` [n, layers] the strategy of every layer, in order.
    """

    points: IntArray
    contents: IntArray


def split_directions(instance: PipelineInstance) -> bool:
    """Whether the objective has separate maxima over F' and B'."""
    return len(instance.objective.bottlenecks) > 1


def strategy_points(instance: PipelineInstance, group: int) -> IntArray:
    """[Q, K, chunks, D + 1 + rows + 1] what one layer adds to a label's point."""
    forward, backward = instance.forward_ticks, instance.backward_ticks
    times = [forward, backward] if split_directions(instance) else [forward + backward]
    rows = instance.in_flight[group]
    per_chunk = [
        np.stack(
            [
                *times,
                instance.tail_ticks,
                *(
                    instance.state_bytes + int(alive) * instance.activation_bytes
                    for alive in rows[:, chunk]
                ),
                instance.transient_bytes,
            ],
            axis=-1,
        )
        for chunk in range(instance.chunks)
    ]
    return np.stack(per_chunk, axis=2)


def fixed_point(instance: PipelineInstance, group: int) -> IntArray:
    """[D + 1 + rows + 1] what a device group holds before any layer."""
    mine = slice(group, None, instance.stages)
    forward = int(instance.stage_forward_ticks[mine].sum())
    backward = int(instance.stage_backward_ticks[mine].sum())
    times = [forward, backward] if split_directions(instance) else [forward + backward]
    memory = [int(instance.fixed_bytes[group])] * len(instance.in_flight[group])
    return np.array([*times, int(instance.fixed_tail_ticks[group]), *memory, 0], dtype=np.int64)


class GroupLabels:
    """Extends the labels of one device group layer by layer, each prefix being a valid content."""

    def __init__(self, instance: PipelineInstance, group: int, entry: int | None) -> None:
        self._instance = instance
        self._group = group
        self._added = strategy_points(instance, group)
        self._rows = len(instance.in_flight[group])
        self._entry = entry
        self._points: IntArray = fixed_point(instance, group)[None, :]
        self._contents: IntArray = np.zeros((1, 0), dtype=np.int64)
        self._last_matters = instance.reshard_forward_ticks is not None
        self._ordered = not self._last_matters and self._added.shape[0] == 1

    def extend(self, member: Member) -> None:
        """Append a layer with each of its allowed strategies."""
        layer, chunk = member
        instance = self._instance
        q = int(instance.layer_class[layer])
        parts = []
        for k in np.flatnonzero(instance.allowed[q]):
            eligible = self._eligible(int(k), chunk)
            points = self._points[eligible] + self._added[q, k, chunk]
            points[:, -1] = np.maximum(self._points[eligible, -1], self._added[q, k, chunk, -1])
            self._add_resharding(points, eligible, int(k), layer)
            contents = np.column_stack(
                [self._contents[eligible], np.full(len(points), k, dtype=np.int64)]
            )
            parts.append((points, contents))
        if not parts:
            self._points, self._contents = self._points[:0], np.zeros((0, 1), dtype=np.int64)
            return
        self._points = np.concatenate([points for points, _ in parts])
        self._contents = np.concatenate([contents for _, contents in parts])
        self._drop_useless()

    def _eligible(self, strategy: int, chunk: int) -> npt.NDArray[np.bool_]:
        """Equal layers of one chunk are interchangeable: list their strategies in rising order."""
        everything = np.ones(len(self._points), dtype=np.bool_)
        if not self._ordered or chunk > 0 or not self._contents.shape[1]:
            return everything
        return self._contents[:, -1] <= strategy

    def _add_resharding(
        self, points: IntArray, eligible: npt.NDArray[np.bool_], strategy: int, layer: int
    ) -> None:
        instance = self._instance
        forward, backward = instance.reshard_forward_ticks, instance.reshard_backward_ticks
        if forward is None or backward is None or layer == 0:
            return
        if self._contents.shape[1]:
            before = self._contents[eligible, -1]
        else:
            before = np.full(len(points), self._entry, dtype=np.int64)
        if split_directions(instance):
            points[:, 0] += forward[before, strategy]
            points[:, 1] += backward[before, strategy]
        else:
            points[:, 0] += forward[before, strategy] + backward[before, strategy]

    def _drop_useless(self) -> None:
        """Drop what exceeds the memory and what is dominated at equal last strategy."""
        memory = self._points[:, -1 - self._rows : -1] + self._points[:, -1:]
        fits = (memory <= int(self._instance.capacity_bytes[self._group])).all(axis=1)
        self._points, self._contents = self._points[fits], self._contents[fits]
        keys = self._contents[:, -1] if self._compare_last else np.zeros(len(self._points))
        kept = [
            rows[pareto_rows(self._points[rows])]
            for rows in (np.flatnonzero(keys == key) for key in np.unique(keys))
        ]
        chosen = np.concatenate(kept) if kept else np.zeros(0, dtype=np.int64)
        self._points, self._contents = self._points[chosen], self._contents[chosen]

    @property
    def _compare_last(self) -> bool:
        return self._last_matters or self._ordered

    def frontiers(self) -> dict[int | None, Frontier]:
        """Undominated contents so far by last strategy (None where it does not matter)."""
        head = self._points.shape[1] - self._rows - 1
        if not self._last_matters:
            return self._pareto({None: np.arange(len(self._points))}, head)
        last = self._contents[:, -1]
        return self._pareto({int(k): np.flatnonzero(last == k) for k in np.unique(last)}, head)

    def _pareto(self, rows_of: dict[int | None, IntArray], head: int) -> dict[int | None, Frontier]:
        result = {}
        for key, rows in rows_of.items():
            if len(rows):
                best = rows[pareto_rows(self._points[rows][:, :head])]
                result[key] = Frontier(self._points[best][:, :head], self._contents[best])
        return result
