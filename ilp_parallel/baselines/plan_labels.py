"""Labels over stages: the second level of the exact DP.

A label of boundary ``i`` after ``s`` stages is one way to place layers ``0..i-1``; its point is
``(sum of F' + B', bottleneck maxima ..., maximal tail)``. Labels are compared only at equal
boundary and, where resharding matters, equal strategy of the last layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from ilp_parallel.baselines.pareto import pareto_rows
from ilp_parallel.problems.pipeline import PipelineSolution

if TYPE_CHECKING:
    from ilp_parallel.baselines.stage_labels import Frontier
    from ilp_parallel.problems.pipeline import Objective, PipelineInstance

IntArray = npt.NDArray[np.int64]
Key = tuple[int, int | None]
"""Boundary and last strategy (None where it does not matter)."""


class StageContents(Protocol):
    """Where the second level gets the contents of stages from."""

    def frontiers(
        self, stage: int, start: int, entry: int | None
    ) -> dict[int, dict[int | None, Frontier]]:
        """Contents of a stage that begins with layer ``start``, by size and last strategy."""
        ...

    def completion_bound(self, stage: int, boundary: int) -> tuple[int, int, int]:
        """Least (sum, maximum over any bottleneck, tail) of the stages from ``stage`` on."""
        ...


@dataclass(frozen=True, slots=True)
class _Step:
    """Labels of one key; row r extends row ``parent_row[r]`` of ``parent[r]`` by a content."""

    points: IntArray
    parents: list[tuple[Key, int, Frontier, int, int]]  # key, row, frontier, its row, size


def place_stages(
    instance: PipelineInstance, contents: StageContents, cutoff: int | None
) -> tuple[int, PipelineSolution] | None:
    """Cheapest numerator strictly below ``cutoff`` and its solution; None if there is none."""
    stages = instance.virtual_stages
    width = 2 + len(instance.objective.bottlenecks)
    layers: list[dict[Key, _Step]] = [{(0, None): _Step(np.zeros((1, width), np.int64), [])}]
    for stage in range(stages):
        step = _extend(instance, contents, cutoff, stage, layers[-1])
        if not step:
            return None
        layers.append(step)
    return _best(instance, layers)


def _extend(
    instance: PipelineInstance,
    contents: StageContents,
    cutoff: int | None,
    stage: int,
    before: dict[Key, _Step],
) -> dict[Key, _Step]:
    """All labels after one more stage, pruned by completion bounds, then by dominance."""
    last_stage = stage == instance.virtual_stages - 1
    gathered: dict[Key, list[tuple[IntArray, Key, Frontier, int]]] = {}
    for key, labels in before.items():
        for size, by_last in contents.frontiers(stage, *key).items():
            boundary = key[0] + size
            if boundary > instance.layers or (last_stage and boundary != instance.layers):
                continue
            for last, frontier in by_last.items():
                points = _append(labels.points, frontier.points)
                gathered.setdefault((boundary, last), []).append((points, key, frontier, size))
    result = {}
    for key, parts in gathered.items():
        bound = (0, 0, 0) if last_stage else contents.completion_bound(stage + 1, key[0])
        reduced = _reduce(instance.objective, parts, bound, cutoff)
        if reduced is not None:
            result[key] = reduced
    return result


def _append(labels: IntArray, points: IntArray) -> IntArray:
    """[n * m, width] every label with every stage content; label index is the slow one."""
    left = np.repeat(labels, len(points), axis=0)
    right = np.tile(points, (len(labels), 1))
    bottlenecks = right.shape[1] - 1
    left[:, 0] += right[:, :bottlenecks].sum(axis=1)
    np.maximum(left[:, 1:], right, out=left[:, 1:])
    return left


def _reduce(
    objective: Objective,
    parts: list[tuple[IntArray, Key, Frontier, int]],
    bound: tuple[int, int, int],
    cutoff: int | None,
) -> _Step | None:
    points = np.concatenate([part[0] for part in parts])
    part_of = np.repeat(np.arange(len(parts)), [len(part[0]) for part in parts])
    row_of = np.concatenate([np.arange(len(part[0])) for part in parts])
    if cutoff is not None:
        alive = np.flatnonzero(_value(objective, points, bound) < cutoff)
        points, part_of, row_of = points[alive], part_of[alive], row_of[alive]
    if not len(points):
        return None
    best = pareto_rows(points)
    parents = []
    for i in best.tolist():
        _, key, frontier, size = parts[int(part_of[i])]
        row, content = divmod(int(row_of[i]), len(frontier.points))
        parents.append((key, row, frontier, content, size))
    return _Step(points[best], parents)


def _value(objective: Objective, points: IntArray, rest: tuple[int, int, int]) -> IntArray:
    """[n] numerator of labels completed at least as cheaply as possible."""
    total: IntArray = points[:, 0] + rest[0]
    total = total + objective.tail_weight * np.maximum(points[:, -1], rest[2])
    for column, term in enumerate(objective.bottlenecks, start=1):
        total = total + term.weight * np.maximum(points[:, column], rest[1])
    return total


def _best(
    instance: PipelineInstance, layers: list[dict[Key, _Step]]
) -> tuple[int, PipelineSolution]:
    """Trace the cheapest final label back to a solution; ties go to the first label."""
    value, key, row = min(
        (int(value), key, row)
        for key, step in layers[-1].items()
        for row, value in enumerate(_value(instance.objective, step.points, (0, 0, 0)))
    )
    sizes: list[int] = []
    strategies: list[int] = []
    for step in reversed(layers[1:]):
        key, row, frontier, content, size = step[key].parents[row]
        sizes.insert(0, size)
        strategies[:0] = frontier.contents[content].tolist()
    return value, PipelineSolution(tuple(sizes), tuple(strategies))
