r"""Assignment formulation: a stage and a strategy for every layer.

Sets
----
layers ``l = 0..L-1``; virtual stages ``j = 0..V-1`` on device groups ``s = j mod p`` as chunk
``c_j``; strategies ``k``; rows ``i`` of ``in_flight`` of a device group, with :math:`r_{ic}`
microbatches alive in chunk ``c``.

Parameters
----------
:math:`\mu_{lkr}` ticks of a layer under bottleneck ``r`` (weight :math:`W_r`) and
:math:`\rho_{kk'r}` ticks of resharding; :math:`\tau_{lk}` tail (ticks, weight ``w``);
:math:`a_{lk}, b_{lk}, h_{lk}` bytes of states, activations of a microbatch, transient;
:math:`f_{sr}, \tau^0_s, m_s` fixed parts; :math:`M_s` capacity; :math:`\ell_j, u_j` sizes.

Variables
---------
:math:`g_{lj} \in \{0,1\}` layer ``l`` lies on virtual stage ``j`` or later
(:math:`g_{l0} = 1, g_{lV} = 0`), so that :math:`x_{lj} = g_{lj} - g_{l,j+1}` is "on ``j``";
:math:`y_{lk} \in \{0,1\}` strategy; :math:`w_{ljk} \in \{0,1\}` both;
:math:`e_{ljkk'} \in \{0,1\}` layers ``l-1`` and ``l`` use ``k, k'`` and ``l`` is on ``j`` (only if
resharding matters; ``w`` and ``e`` would be integral with ``g`` and ``y`` alone); :math:`C_r, T`
bottlenecks and largest tail; :math:`H_s = \sum_i \delta_{si} t_{si}` largest transient, with
:math:`t_{si} \in \{0,1\}` for the ``i``-th of the values it can have, :math:`\delta_{si}` bytes
above the value before.

Objective
---------
.. math:: \min \sum_{sr} f_{sr} + \sum_{ljkr} \mu_{lkr} w_{ljk} + \sum_{ljkk'r} \rho_{kk'r}
          e_{ljkk'} + \sum_r W_r C_r + w T

Constraints
-----------
(1) layers in order (``layer_order``): :math:`g_{l+1,j} \ge g_{lj}`; with (2), which makes
    :math:`g_{lj} \ge g_{l,j+1}`, virtual stages are contiguous and in order.

(2) stage marginal (``stage_marginal``): :math:`\sum_k w_{ljk} = g_{lj} - g_{l,j+1}`.

(3) strategy marginal (``strategy_marginal``): :math:`\sum_j w_{ljk} = y_{lk}`.

(4) sizes (``stage_size``): :math:`\ell_j \le \sum_{lk} w_{ljk} \le u_j`.

(5) equal layers sorted (``equal_layers_sorted``; no resharding, ``l`` and ``l+1`` of one class): on
    one stage strategies do not decrease,
    :math:`\sum_{k \ge \kappa} w_{ljk} \le \sum_{k \ge \kappa} w_{l+1,jk} + g_{l+1,j+1}`.

(6) resharding from (``reshard_from``): :math:`\sum_{jk'} e_{ljkk'} = y_{l-1,k}`.

(7) resharding to (``reshard_to``): :math:`\sum_k e_{ljkk'} = w_{ljk'}`.

(8) memory (``memory``): :math:`\sum (a_{lk} + r_{ic_j} b_{lk}) w_{ljk} + H_s \le M_s - m_s`.

(9) transients (``transient_covers``): :math:`H_s \ge \sum_{j \equiv s, k} h_{lk} w_{ljk}` for each
    layer.

(10) bottlenecks (``bottleneck_covers``): :math:`C_r \ge f_{sr} + \sum_{j \equiv s} (\mu w + \rho
    e)`.

(11) tails (``tail_covers``): :math:`T \ge \tau^0_s + \sum_{j \equiv s} \tau_{lk} w_{ljk}`.

Products of stage and strategy are written as joint variables with both marginals, which is
tighter than one inequality pair per product.

Source: the quadratic program of UniAP (Lin et al., arXiv:2307.16375), made linear.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from formulations.pipeline.cells import (
    Cells,
    Transients,
    add_bottleneck_rows,
    add_free_max_terms,
    add_layer_transient_rows,
    add_memory_rows,
    add_size_rows,
    add_tail_rows,
    add_transient_columns,
    decode_layer_cells,
    fixed_ticks,
    free_strategies_only,
    layer_cells,
)
from formulations.pipeline.layout import Layout
from ilp_parallel.program import ProgramBuilder

if TYPE_CHECKING:
    from collections.abc import Callable

    from formulations.pipeline.labels import IntArray
    from formulations.pipeline.max_terms import MaxTerms
    from ilp_parallel.problems.pipeline import PipelineInstance, PipelineSolution
    from ilp_parallel.program import Program


@dataclass(frozen=True, slots=True)
class _Edges:
    """Resharding columns: the cell of the later layer, the strategy before, their column."""

    cell: IntArray  # [E]
    before: IntArray  # [E]
    column: IntArray  # [E]


@dataclass(frozen=True, slots=True)
class _Model:
    """What the constraint families see."""

    builder: ProgramBuilder
    layout: Layout
    cells: Cells
    later: IntArray  # [L, V + 1] column of g; -1 where g is a constant
    strategy: IntArray  # [L, K]
    cell: IntArray  # [cells]
    edges: _Edges
    transient: Transients
    maxima: MaxTerms

    @property
    def instance(self) -> PipelineInstance:
        """The instance."""
        return self.layout.instance


def _layer_order(model: _Model) -> None:
    """(1) ``g[l + 1, j] >= g[l, j]``."""
    g = model.later[:, 1:-1]
    rows = model.builder.add_rows("layer_order", g[1:].shape, lower=0)
    model.builder.add_entries(rows, g[1:], 1)
    model.builder.add_entries(rows, g[:-1], -1)


def _stage_marginal(model: _Model) -> None:
    """(2) ``sum_k w[l, j, k] = g[l, j] - g[l, j + 1]``."""
    shape = (model.instance.layers, model.instance.virtual_stages)
    first = np.zeros(shape, dtype=np.int64)
    first[:, 0] = 1  # g[l, 0] is the constant 1
    rows = model.builder.add_rows("stage_marginal", shape, lower=first, upper=first)
    model.builder.add_entries(rows[model.cells.layer, model.cells.stage], model.cell, 1)
    model.builder.add_entries(rows[:, 1:], model.later[:, 1:-1], -1)
    model.builder.add_entries(rows[:, :-1], model.later[:, 1:-1], 1)


def _strategy_marginal(model: _Model) -> None:
    """(3) ``sum_j w[l, j, k] = y[l, k]``."""
    rows = model.builder.add_rows("strategy_marginal", model.strategy.shape, lower=0, upper=0)
    model.builder.add_entries(rows[model.cells.layer, model.cells.strategy], model.cell, 1)
    model.builder.add_entries(rows, model.strategy, -1)


def _stage_size(model: _Model) -> None:
    """(4) Sizes of the virtual stages."""
    add_size_rows(model.builder, model.layout, model.cells, model.cell)


def _equal_layers_sorted(model: _Model) -> None:
    """(5) On one stage equal layers are sorted by strategy."""
    instance, cells = model.instance, model.cells
    if model.layout.reshard is not None:
        return
    equal = np.flatnonzero(np.diff(instance.layer_class) == 0)
    shape = (len(equal), instance.virtual_stages, instance.strategies - 1)
    rows = model.builder.add_rows("equal_layers_sorted", shape, upper=0)
    place = np.full(instance.layers + 1, -1)
    place[equal] = np.arange(len(equal))
    for offset, sign in ((0, 1), (1, -1)):  # the earlier layer, then the later one
        at = place[cells.layer - offset]
        for kappa in range(1, instance.strategies):
            used = (at >= 0) & (cells.strategy >= kappa)
            row = rows[at[used], cells.stage[used], kappa - 1]
            model.builder.add_entries(row, model.cell[used], sign)
    g = model.later[equal + 1, 1:-1]
    model.builder.add_entries(rows[:, :-1, :], g[:, :, None], -1)


def _reshard_from(model: _Model) -> None:
    """(6) Edges out of a layer's strategy sum to ``y``."""
    if model.layout.reshard is None:
        return
    shape = (model.instance.layers - 1, model.instance.strategies)
    rows = model.builder.add_rows("reshard_from", shape, lower=0, upper=0)
    edges = model.edges
    model.builder.add_entries(
        rows[model.cells.layer[edges.cell] - 1, edges.before], edges.column, 1
    )
    model.builder.add_entries(rows, model.strategy[:-1], -1)


def _reshard_to(model: _Model) -> None:
    """(7) Edges into a cell sum to ``w``."""
    if model.layout.reshard is None:
        return
    later = np.flatnonzero(model.cells.layer > 0)
    place = np.full(len(model.cell), -1)
    place[later] = np.arange(len(later))
    rows = model.builder.add_rows("reshard_to", later.shape, lower=0, upper=0)
    model.builder.add_entries(rows[place[model.edges.cell]], model.edges.column, 1)
    model.builder.add_entries(rows, model.cell[later], -1)


def _memory(model: _Model) -> None:
    """(8) States, activations in flight and the largest transient fit."""
    add_memory_rows(model.builder, model.layout, model.cells, model.cell, model.transient)


def _transient_covers(model: _Model) -> None:
    """(9) The largest transient is at least that of every layer."""
    add_layer_transient_rows(model.builder, model.cells, model.cell, model.transient)


def _bottleneck_covers(model: _Model) -> None:
    """(10) Bottlenecks, resharding on the device group of the later layer."""
    rows = add_bottleneck_rows(model.builder, model.layout, model.cells, model.cell, model.maxima)
    if model.layout.reshard is not None:
        edges, cells = model.edges, model.cells
        cost = model.layout.reshard[edges.before, cells.strategy[edges.cell]]
        model.builder.add_entries(rows[cells.group[edges.cell]], edges.column[:, None], -cost)


def _tail_covers(model: _Model) -> None:
    """(11) The largest tail."""
    add_tail_rows(model.builder, model.layout, model.cells, model.cell, model.maxima)


FAMILIES: dict[int, Callable[[_Model], None]] = {
    1: _layer_order,
    2: _stage_marginal,
    3: _strategy_marginal,
    4: _stage_size,
    5: _equal_layers_sorted,
    6: _reshard_from,
    7: _reshard_to,
    8: _memory,
    9: _transient_covers,
    10: _bottleneck_covers,
    11: _tail_covers,
}
"""Builder of each numbered constraint family; the row family has the function's name."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """A stage and a strategy for every layer."""

    name: str = "assignment"
    reference: str = "UniAP, arXiv:2307.16375, made linear"

    def refuses(self, instance: PipelineInstance) -> str | None:
        """Policies are not modelled."""
        return free_strategies_only(instance)

    def build(self, instance: PipelineInstance, cutoff: int | None = None) -> Program:
        """The Program; the cutoff is not used. See :class:`formulations.base.Formulation`."""
        layout = Layout(instance)
        builder = ProgramBuilder(f"{self.name}-{instance.schedule}")
        builder.offset = fixed_ticks(layout)
        cells = layer_cells(layout)
        cell = builder.add_columns("cell", cells.layer.shape, cost=cells.ticks)
        later = np.full((instance.layers, instance.virtual_stages + 1), -1)
        later[:, 1:-1] = builder.add_columns("later", later[:, 1:-1].shape)
        shape = (instance.layers, instance.strategies)
        strategy = builder.add_columns("strategy", shape)
        edges = _add_edges(builder, layout, cells)
        model = _Model(
            builder,
            layout,
            cells,
            later,
            strategy,
            cell,
            edges,
            add_transient_columns(builder, cells),
            add_free_max_terms(builder, layout),
        )
        for add in FAMILIES.values():
            add(model)
        return builder.build()

    def decode(
        self, instance: PipelineInstance, values: IntArray, cutoff: int | None = None
    ) -> PipelineSolution:
        """The cell of every layer."""
        return decode_layer_cells(instance, values)


def _add_edges(builder: ProgramBuilder, layout: Layout, cells: Cells) -> _Edges:
    """Columns ``e`` for every later cell and every strategy the layer before may use."""
    if layout.reshard is None:
        empty = np.zeros(0, dtype=np.int64)
        return _Edges(empty, empty, empty)
    instance = layout.instance
    later = np.flatnonzero(cells.layer > 0)
    allowed = instance.allowed[instance.layer_class[cells.layer[later] - 1]]
    place, before = np.nonzero(allowed)
    cell = later[place]
    cost = layout.reshard[before, cells.strategy[cell]].sum(axis=1)
    column = builder.add_columns("edge", cell.shape, cost=cost)
    return _Edges(cell, before.astype(np.int64), column)
