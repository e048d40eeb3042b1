r"""Flow formulation: a path through (layer, virtual stage, strategy).

Sets
----
nodes ``(l, j, k)`` as in :mod:`formulations.pipeline.assignment`; arcs from layer ``l`` to ``l+1``
that keep the virtual stage or go to the next one. If resharding matters, an arc joins two nodes
(keys :math:`\kappa(k) = k`); otherwise the strategies at its ends are not told apart
(:math:`\kappa(k) = 0`), which keeps the graph small.

Variables
---------
:math:`w_{ljk} \in \{0,1\}` whether the path visits a node; :math:`\phi_a \in \{0,1\}` flow on arc
``a`` (it would be integral with ``w`` alone); :math:`C_r, T, H_s` as in assignment.

Objective
---------
That of assignment, resharding being the cost of arcs.

Constraints
-----------
(1) source (``source``): :math:`\sum_k w_{00k} = 1`.

(2) leaving (``leave``): for ``l < L-1``, stage ``j`` and key :math:`\kappa`, the flow on arcs out
    of :math:`(l, j, \kappa)` is :math:`\sum_{k: \kappa(k) = \kappa} w_{ljk}`.

(3) entering (``enter``): the same for arcs into :math:`(l, j, \kappa)`, ``l > 0``. Virtual stages
    are reached in order, and the last layer can only be on the last one, so a path is a plan.

(4) sizes (``stage_size``): :math:`\ell_j \le \sum_{lk} w_{ljk} \le u_j`.

(5) memory (``memory``), (6) transients (``transient_covers``), (7) bottlenecks
(``bottleneck_covers``), (8) tails (``tail_covers``): as (8) to (11) of assignment.

Source: our own; layered graphs of this kind underlie the dynamic programs of Piper (Tarnawski et
al., NeurIPS 2021) and Galvatron (Miao et al., arXiv:2211.13878).
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

    from formulations.pipeline.labels import BoolArray, IntArray
    from formulations.pipeline.max_terms import MaxTerms
    from ilp_parallel.problems.pipeline import PipelineInstance, PipelineSolution
    from ilp_parallel.program import Program


@dataclass(frozen=True, slots=True)
class _Ports:
    """The places arcs join: (layer, virtual stage, key), sorted by layer."""

    layer: IntArray  # [P]
    stage: IntArray  # [P]
    key: IntArray  # [P]
    of_cell: IntArray  # [cells] port of each cell


@dataclass(frozen=True, slots=True)
class _Arcs:
    """Arcs between ports and their columns."""

    tail: IntArray  # [A] port left
    head: IntArray  # [A] port entered
    column: IntArray  # [A]


@dataclass(frozen=True, slots=True)
class _Model:
    """What the constraint families see."""

    builder: ProgramBuilder
    layout: Layout
    cells: Cells
    cell: IntArray  # [cells]
    ports: _Ports
    arcs: _Arcs
    transient: Transients
    maxima: MaxTerms


def _source(model: _Model) -> None:
    """(1) The path begins with the first layer on the first virtual stage."""
    row = model.builder.add_rows("source", lower=1, upper=1)
    model.builder.add_entries(row, model.cell[model.cells.layer == 0], 1)


def _leave(model: _Model) -> None:
    """(2) What visits a port leaves it."""
    last = model.layout.instance.layers - 1
    _balance(model, "leave", model.arcs.tail, model.ports.layer < last)


def _enter(model: _Model) -> None:
    """(3) What visits a port has entered it."""
    _balance(model, "enter", model.arcs.head, model.ports.layer > 0)


def _balance(model: _Model, name: str, port_of_arc: IntArray, inner: BoolArray) -> None:
    """Arcs at a port carry what its cells do."""
    place = np.cumsum(inner) - 1
    rows = model.builder.add_rows(name, (int(inner.sum()),), lower=0, upper=0)
    model.builder.add_entries(rows[place[port_of_arc]], model.arcs.column, 1)
    at = model.ports.of_cell
    used = inner[at]
    model.builder.add_entries(rows[place[at[used]]], model.cell[used], -1)


def _stage_size(model: _Model) -> None:
    """(4) Sizes of the virtual stages."""
    add_size_rows(model.builder, model.layout, model.cells, model.cell)


def _memory(model: _Model) -> None:
    """(5) States, activations in flight and the largest transient fit."""
    add_memory_rows(model.builder, model.layout, model.cells, model.cell, model.transient)


def _transient_covers(model: _Model) -> None:
    """(6) The largest transient is at least that of every layer."""
    add_layer_transient_rows(model.builder, model.cells, model.cell, model.transient)


def _bottleneck_covers(model: _Model) -> None:
    """(7) Bottlenecks, arcs counting with the device group they enter."""
    rows = add_bottleneck_rows(model.builder, model.layout, model.cells, model.cell, model.maxima)
    reshard = model.layout.reshard
    if reshard is not None:
        arcs, ports = model.arcs, model.ports
        cost = reshard[ports.key[arcs.tail], ports.key[arcs.head]]
        group = ports.stage[arcs.head] % model.layout.instance.stages
        model.builder.add_entries(rows[group], arcs.column[:, None], -cost)


def _tail_covers(model: _Model) -> None:
    """(8) The largest tail."""
    add_tail_rows(model.builder, model.layout, model.cells, model.cell, model.maxima)


FAMILIES: dict[int, Callable[[_Model], None]] = {
    1: _source,
    2: _leave,
    3: _enter,
    4: _stage_size,
    5: _memory,
    6: _transient_covers,
    7: _bottleneck_covers,
    8: _tail_covers,
}
"""Builder of each numbered constraint family; the row family has the function's name."""


@dataclass(frozen=True, slots=True)
class Flow:
    """A path through (layer, virtual stage, strategy)."""

    name: str = "flow"
    reference: str = "our own; layered graph as in Piper (NeurIPS 2021) and arXiv:2211.13878"

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
        ports = _ports(layout, cells)
        arcs = _add_arcs(builder, layout, ports)
        model = _Model(
            builder,
            layout,
            cells,
            cell,
            ports,
            arcs,
            add_transient_columns(builder, cells),
            add_free_max_terms(builder, layout),
        )
        for add in FAMILIES.values():
            add(model)
        return builder.build()

    def decode(
        self, instance: PipelineInstance, values: IntArray, cutoff: int | None = None
    ) -> PipelineSolution:
        """The node of every layer."""
        return decode_layer_cells(instance, values)


def _ports(layout: Layout, cells: Cells) -> _Ports:
    """Distinct (layer, virtual stage, key) of the cells."""
    key = cells.strategy if layout.reshard is not None else np.zeros_like(cells.strategy)
    places = np.column_stack([cells.layer, cells.stage, key])
    distinct, of_cell = np.unique(places, axis=0, return_inverse=True)
    return _Ports(distinct[:, 0], distinct[:, 1], distinct[:, 2], of_cell.reshape(-1))


def _add_arcs(builder: ProgramBuilder, layout: Layout, ports: _Ports) -> _Arcs:
    """All arcs to the next layer on the same or the next virtual stage."""
    tails: list[IntArray] = [np.zeros(0, dtype=np.int64)]
    heads: list[IntArray] = [np.zeros(0, dtype=np.int64)]
    for layer in range(layout.instance.layers - 1):
        here = np.flatnonzero(ports.layer == layer)
        there = np.flatnonzero(ports.layer == layer + 1)
        step = ports.stage[there][None, :] - ports.stage[here][:, None]
        leave, enter = np.nonzero((step == 0) | (step == 1))
        tails.append(here[leave])
        heads.append(there[enter])
    tail, head = np.concatenate(tails), np.concatenate(heads)
    cost: int | IntArray = 0
    if layout.reshard is not None:
        cost = layout.reshard[ports.key[tail], ports.key[head]].sum(axis=1)
    return _Arcs(tail, head, builder.add_columns("arc", tail.shape, cost=cost))
