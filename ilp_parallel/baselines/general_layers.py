"""Contents of stages for layers of any classes, with resharding, by layer-wise labels."""

from __future__ import annotations

from functools import cached_property
from itertools import product

import numpy as np

from ilp_parallel.baselines.stage_labels import Frontier, GroupLabels
from ilp_parallel.problems.pipeline import (
    PipelineInstance,
    PipelineSolution,
    objective_numerator,
)


class GeneralLayers:
    """Frontiers of all contiguous ranges, on demand; one chunk per device group."""

    def __init__(self, instance: PipelineInstance) -> None:
        self._instance = instance
        self._known: dict[tuple[int, int, int | None], dict[int, dict[int | None, Frontier]]] = {}

    def frontiers(
        self, stage: int, start: int, entry: int | None
    ) -> dict[int, dict[int | None, Frontier]]:
        """Contents of stage ``stage`` from layer ``start`` on, by size and last strategy."""
        key = (stage, start, entry)
        if key not in self._known:
            self._known[key] = self._ranges(stage, start, entry)
        return self._known[key]

    def _ranges(
        self, stage: int, start: int, entry: int | None
    ) -> dict[int, dict[int | None, Frontier]]:
        instance = self._instance
        labels = GroupLabels(instance, stage, entry)
        by_size: dict[int, dict[int | None, Frontier]] = {}
        longest = min(int(instance.max_layers[stage]), self._room_after(stage) - start)
        for size in range(1, longest + 1):
            labels.extend((start + size - 1, 0))
            frontiers = labels.frontiers()
            if not frontiers:
                break
            if size >= int(instance.min_layers[stage]):
                by_size[size] = frontiers
        return by_size

    def _room_after(self, stage: int) -> int:
        """The boundary that leaves every later stage its smallest size."""
        return self._instance.layers - int(self._instance.min_layers[stage + 1 :].sum())

    @cached_property
    def _suffix(self) -> list[tuple[int, int, int]]:
        """Per stage: least sum, maximum and tail that the fixed parts from it on impose."""
        instance = self._instance
        forward, backward = instance.stage_forward_ticks, instance.stage_backward_ticks
        joint = len(instance.objective.bottlenecks) == 1
        largest = forward + backward if joint else np.zeros_like(forward)
        suffix = [(0, 0, 0)]
        for s in reversed(range(instance.stages)):
            total, bottleneck, tail = suffix[0]
            suffix.insert(
                0,
                (
                    total + int(forward[s] + backward[s]),
                    max(bottleneck, int(largest[s])),
                    max(tail, int(instance.fixed_tail_ticks[s])),
                ),
            )
        return suffix

    def completion_bound(self, stage: int, boundary: int) -> tuple[int, int, int]:
        """What the later stages cost at least, their layers not counted."""
        del boundary
        return self._suffix[stage]


def fixed_chunks_optimum(
    instance: PipelineInstance, cutoff: int | None
) -> tuple[int, PipelineSolution] | None:
    """Several chunks of fixed sizes per device group: groups are independent but for the maxima."""
    sizes = tuple(int(size) for size in instance.min_layers)
    if sum(sizes) != instance.layers:
        return None
    ranges = PipelineSolution(sizes, (0,) * instance.layers).stage_ranges()
    members = [
        [
            (layer, chunk)
            for chunk, layers in enumerate(ranges[group :: instance.stages])
            for layer in layers
        ]
        for group in range(instance.stages)
    ]
    frontiers = []
    for group in range(instance.stages):
        labels = GroupLabels(instance, group, None)
        for member in members[group]:
            labels.extend(member)
        found = labels.frontiers()
        if not found:
            return None
        frontiers.append(found[None])
    best: tuple[int, PipelineSolution] | None = None
    for rows in product(*(range(len(frontier.points)) for frontier in frontiers)):
        points = [frontier.points[row] for frontier, row in zip(frontiers, rows, strict=True)]
        value = objective_numerator(
            instance.objective,
            tuple(int(point[0]) for point in points),
            (0,) * len(points),
            tuple(int(point[-1]) for point in points),
        )
        if (cutoff is None or value < cutoff) and (best is None or value < best[0]):
            contents = [frontier.contents[r] for frontier, r in zip(frontiers, rows, strict=True)]
            best = value, PipelineSolution(sizes, _spread(instance, members, contents))
    return best


def _spread(
    instance: PipelineInstance,
    members: list[list[tuple[int, int]]],
    contents: list[np.ndarray[tuple[int, ...], np.dtype[np.int64]]],
) -> tuple[int, ...]:
    """Strategies of the groups' layers in model order."""
    strategies = [0] * instance.layers
    for group, content in zip(members, contents, strict=True):
        for (layer, _), k in zip(group, content.tolist(), strict=True):
            strategies[layer] = k
    return tuple(strategies)
