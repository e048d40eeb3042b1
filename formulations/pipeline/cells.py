r"""What the layer-wise formulations share: cells, and the rows for memory and ``max`` terms.

A *cell* is a column of a program that puts one layer (``assignment``, ``flow``) or any number of
equal layers (``counts``) on a virtual stage with a strategy. Cells that cannot be part of a
solution are not made: strategies that are not allowed, strategies another one can always replace
(see :mod:`formulations.pipeline.labels`), and virtual stages a layer cannot reach.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from formulations.pipeline.layout import Layout
from formulations.pipeline.max_terms import add_max_terms
from ilp_parallel.problems.pipeline import PipelineSolution

if TYPE_CHECKING:
    from formulations.pipeline.labels import BoolArray, IntArray
    from formulations.pipeline.max_terms import MaxTerms
    from ilp_parallel.problems.pipeline import PipelineInstance
    from ilp_parallel.program import ProgramBuilder


@dataclass(frozen=True, slots=True)
class Cells:
    """Parallel arrays, one entry per cell."""

    layer: IntArray  # [N]; 0 where layers are counted
    stage: IntArray  # [N] virtual stage
    group: IntArray  # [N] device group
    strategy: IntArray  # [N]
    measures: IntArray  # [N, D] ticks of one layer per bottleneck
    tail: IntArray  # [N] ticks of one layer
    memory: tuple[IntArray, ...]  # per device group [its cells, R] bytes of one layer
    transient: IntArray  # [N] bytes

    @property
    def ticks(self) -> IntArray:
        """[N] F' + B' of one layer."""
        total: IntArray = self.measures.sum(axis=1)
        return total


def layer_windows(instance: PipelineInstance) -> BoolArray:
    """``[L, V]``: whether the sizes allow a layer on a virtual stage."""
    low, high, layers = instance.min_layers, instance.max_layers, instance.layers
    layer = np.arange(layers)[:, None]
    before, after = np.cumsum(low) - low, low[::-1].cumsum()[::-1] - low
    most_to_here, most_from_here = np.cumsum(high), high[::-1].cumsum()[::-1]
    reach: BoolArray = (
        (layer >= before)
        & (layer < layers - after)
        & (layer < most_to_here)
        & (layer >= layers - most_from_here)
    )
    return reach


def layer_cells(layout: Layout) -> Cells:
    """A cell for every layer, virtual stage it can reach, and strategy worth considering."""
    places = np.argwhere(layer_windows(layout.instance)).tolist()
    return _cells(layout, [(layer, stage) for layer, stage in places])


def decode_layer_cells(instance: PipelineInstance, values: IntArray) -> PipelineSolution:
    """The solution whose cells, the first columns of a program, are the ones at 1."""
    cells = layer_cells(Layout(instance))
    chosen = np.flatnonzero(values[: len(cells.layer)] == 1)
    return PipelineSolution(
        tuple(np.bincount(cells.stage[chosen], minlength=instance.virtual_stages).tolist()),
        tuple(cells.strategy[chosen].tolist()),  # cells are in the order of layers
    )


def stage_cells(layout: Layout) -> Cells:
    """A cell for every virtual stage and strategy; for instances with one class."""
    return _cells(layout, [(0, stage) for stage in range(layout.instance.virtual_stages)])


def _cells(layout: Layout, places: list[tuple[int, int]]) -> Cells:
    """Cells of the given (layer, virtual stage) pairs."""
    instance = layout.instance
    options = [layout.options(group) for group in range(instance.stages)]
    empty = np.zeros(0, dtype=np.int64)
    bottlenecks = len(instance.objective.bottlenecks)
    columns: list[list[IntArray]] = [[empty] for _ in range(7)]
    columns[4] = [np.zeros((0, bottlenecks), dtype=np.int64)]
    memory: list[list[IntArray]] = [
        [np.zeros((0, len(rows)), dtype=np.int64)] for rows in instance.in_flight
    ]
    for layer, stage in places:
        group, chunk = stage % instance.stages, stage // instance.stages
        q = int(instance.layer_class[layer])
        option = options[group][q * instance.chunks + chunk]
        count = len(option.strategies)
        fields = (
            *(np.full(count, value, dtype=np.int64) for value in (layer, stage, group)),
            option.strategies,
            option.measures,
            instance.tail_ticks[q, option.strategies],
            option.transient,
        )
        for parts, values in zip(columns, fields, strict=True):
            parts.append(values)
        memory[group].append(option.memory)
    layer_, stage_, group_, strategy, measures, tail, transient = (
        np.concatenate(parts) for parts in columns
    )
    stacked = tuple(np.concatenate(parts) for parts in memory)
    return Cells(layer_, stage_, group_, strategy, measures, tail, stacked, transient)


@dataclass(frozen=True, slots=True)
class Transients:
    """``H_s``, the largest transient of each device group, as a sum of 0/1 columns.

    One column per value a cell of the group can have, in rising order, worth the ``step`` from the
    value before. One column of bytes per group would say the same, but its span of 1e10 next to a
    coefficient of 1 is beyond the tolerances of float solvers: HiGHS 1.16.0 cut off optima.
    """

    group: IntArray  # [T] device group
    step: IntArray  # [T] bytes
    column: IntArray  # [T]

    def add_to(self, builder: ProgramBuilder, rows: IntArray, groups: IntArray) -> None:
        """Add ``H_s`` to each row, ``s`` being the row's entry of ``groups``."""
        row, level = np.nonzero(groups[:, None] == self.group[None, :])
        builder.add_entries(rows[row], self.column[level], self.step[level])


def add_free_max_terms(builder: ProgramBuilder, layout: Layout) -> MaxTerms:
    """``max`` columns from 0 to what a device group can take at the slowest strategies."""
    instance = layout.instance
    held = instance.max_layers.reshape(instance.chunks, instance.stages).sum(axis=0)
    held = np.minimum(held, instance.layers)
    slowest = layout.measures.max(axis=(0, 1))
    if layout.reshard is not None:
        slowest = slowest + layout.reshard.max(axis=(0, 1))
    fixed = np.stack([layout.fixed(s).measures for s in range(instance.stages)])
    measures = (fixed + held[:, None] * slowest[None, :]).max(axis=0)
    tail = (instance.fixed_tail_ticks + held * instance.tail_ticks.max()).max()
    upper = np.append(measures, tail)
    return add_max_terms(builder, instance, np.zeros_like(upper), upper)


def add_size_rows(builder: ProgramBuilder, layout: Layout, cells: Cells, columns: IntArray) -> None:
    """``stage_size``: each virtual stage holds as many layers as it may."""
    low, high = layout.instance.min_layers, layout.instance.max_layers
    rows = builder.add_rows("stage_size", low.shape, lower=low, upper=high)
    builder.add_entries(rows[cells.stage], columns, 1)


def add_memory_rows(
    builder: ProgramBuilder, layout: Layout, cells: Cells, columns: IntArray, transient: Transients
) -> None:
    """``memory``: per device group and row of ``in_flight``, cells + transient fit."""
    fixed = [layout.fixed(group) for group in range(layout.instance.stages)]
    room = np.concatenate([f.capacity_bytes - f.memory for f in fixed])
    rows = builder.add_rows("memory", room.shape, upper=room)
    first = 0
    for group, weights in enumerate(cells.memory):
        own = rows[first : first + weights.shape[1]]
        first += weights.shape[1]
        builder.add_entries(own[None, :], columns[cells.group == group][:, None], weights)
        transient.add_to(builder, own, np.full(own.shape, group))


def add_bottleneck_rows(
    builder: ProgramBuilder, layout: Layout, cells: Cells, columns: IntArray, maxima: MaxTerms
) -> IntArray:
    """``bottleneck_covers``: each bottleneck is at least what each device group takes."""
    fixed = np.stack([layout.fixed(s).measures for s in range(layout.instance.stages)])
    rows = builder.add_rows("bottleneck_covers", fixed.shape, lower=fixed)
    builder.add_entries(rows, maxima.bottlenecks[None, :], 1)
    builder.add_entries(rows[cells.group], columns[:, None], -cells.measures)
    return rows


def add_tail_rows(
    builder: ProgramBuilder, layout: Layout, cells: Cells, columns: IntArray, maxima: MaxTerms
) -> None:
    """``tail_covers``: the largest tail is at least the tail of each device group."""
    fixed = layout.instance.fixed_tail_ticks
    rows = builder.add_rows("tail_covers", fixed.shape, lower=fixed)
    builder.add_entries(rows, maxima.tail, 1)
    builder.add_entries(rows[cells.group], columns, -cells.tail)


def add_layer_transient_rows(
    builder: ProgramBuilder, cells: Cells, columns: IntArray, transient: Transients
) -> None:
    """``transient_covers``: per device group and layer, tighter than one row per cell."""
    places = np.column_stack([cells.group, cells.layer])
    distinct, index = np.unique(places, axis=0, return_inverse=True)
    rows = builder.add_rows("transient_covers", (len(distinct),), lower=0)
    transient.add_to(builder, rows, distinct[:, 0])
    builder.add_entries(rows[index.reshape(-1)], columns, -cells.transient)


def add_transient_columns(builder: ProgramBuilder, cells: Cells) -> Transients:
    """``transient``: a column per device group and value its largest transient can have."""
    values = np.column_stack([cells.group, cells.transient])[cells.transient > 0]
    group, level = np.unique(values, axis=0).T
    same = np.append(-1, group[:-1])[: len(group)] == group
    before = np.where(same, np.append(0, level[:-1])[: len(level)], 0)
    return Transients(group, level - before, builder.add_columns("transient", level.shape))


def fixed_ticks(layout: Layout) -> int:
    """Sum of the fixed parts of F' + B'."""
    return sum(layout.fixed(group).ticks for group in range(layout.instance.stages))


def free_strategies_only(instance: PipelineInstance) -> str | None:
    """Refusal shared by the formulations in which every layer chooses freely."""
    if instance.policies is not None:
        return "NEEDS_FREE_STRATEGIES: policies tie the strategies of all layers; use interval"
    return None
