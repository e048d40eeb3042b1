r"""Counts formulation: how many of the equal layers use a strategy on a virtual stage.

Needs equal layers (one class) between which nothing is resharded; then only numbers matter.

Sets, parameters
----------------
As in :mod:`formulations.pipeline.assignment`, without the index ``l``; :math:`u_j` most layers of
a virtual stage.

Variables
---------
:math:`n_{jk} \in \{0..u_j\}` layers on virtual stage ``j`` with strategy ``k``;
:math:`q_{jk} \in \{0,1\}` whether there is any (only where ``k`` has a transient);
:math:`C_r, T` bottlenecks and largest tail; :math:`H_s = \sum_i \delta_{si} t_{si}` largest
transient as in assignment.

Objective
---------
.. math:: \min \sum_{sr} f_{sr} + \sum_{jkr} \mu_{kr} n_{jk} + \sum_r W_r C_r + w T

Constraints
-----------
(1) all layers placed (``layers_placed``): :math:`\sum_{jk} n_{jk} = L`.

(2) sizes (``stage_size``): :math:`\ell_j \le \sum_k n_{jk} \le u_j`.

(3) memory (``memory``): :math:`\sum (a_k + r_{ic_j} b_k) n_{jk} + H_s \le M_s - m_s`.

(4) use (``use_marked``): :math:`n_{jk} \le u_j q_{jk}`.

(5) transients (``transient_covers``): :math:`H_s \ge h_k q_{jk}`.

(6) bottlenecks (``bottleneck_covers``): :math:`C_r \ge f_{sr} + \sum_{j \equiv s, k} \mu_{kr}
    n_{jk}`.

(7) tails (``tail_covers``): :math:`T \ge \tau^0_s + \sum_{j \equiv s, k} \tau_k n_{jk}`.

Equal layers are not told apart, so the symmetry of assignment and flow does not arise.

Source: our own; aggregation of identical layers as in RaNNC (Tanaka et al., IPDPS 2021) and in
Galvatron's layer types.
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
    add_memory_rows,
    add_size_rows,
    add_tail_rows,
    add_transient_columns,
    fixed_ticks,
    free_strategies_only,
    stage_cells,
)
from formulations.pipeline.layout import Layout
from ilp_parallel.problems.pipeline import PipelineSolution
from ilp_parallel.program import ProgramBuilder

if TYPE_CHECKING:
    from collections.abc import Callable

    from formulations.pipeline.labels import IntArray
    from formulations.pipeline.max_terms import MaxTerms
    from ilp_parallel.problems.pipeline import PipelineInstance
    from ilp_parallel.program import Program


@dataclass(frozen=True, slots=True)
class _Model:
    """What the constraint families see."""

    builder: ProgramBuilder
    layout: Layout
    cells: Cells
    count: IntArray  # [cells]
    marked: IntArray  # positions of the cells with a transient
    used: IntArray  # [marked]
    transient: Transients
    maxima: MaxTerms


def _layers_placed(model: _Model) -> None:
    """(1) The counts sum to L."""
    layers = model.layout.instance.layers
    row = model.builder.add_rows("layers_placed", lower=layers, upper=layers)
    model.builder.add_entries(row, model.count, 1)


def _stage_size(model: _Model) -> None:
    """(2) Sizes of the virtual stages."""
    add_size_rows(model.builder, model.layout, model.cells, model.count)


def _memory(model: _Model) -> None:
    """(3) States, activations in flight and the largest transient fit."""
    add_memory_rows(model.builder, model.layout, model.cells, model.count, model.transient)


def _use_marked(model: _Model) -> None:
    """(4) ``n <= u q``."""
    rows = model.builder.add_rows("use_marked", model.marked.shape, upper=0)
    most = _most_layers(model.layout.instance)[model.cells.stage[model.marked]]
    model.builder.add_entries(rows, model.count[model.marked], 1)
    model.builder.add_entries(rows, model.used, -most)


def _transient_covers(model: _Model) -> None:
    """(5) ``H_s >= h_k q``."""
    rows = model.builder.add_rows("transient_covers", model.marked.shape, lower=0)
    model.transient.add_to(model.builder, rows, model.cells.group[model.marked])
    model.builder.add_entries(rows, model.used, -model.cells.transient[model.marked])


def _bottleneck_covers(model: _Model) -> None:
    """(6) Bottlenecks."""
    add_bottleneck_rows(model.builder, model.layout, model.cells, model.count, model.maxima)


def _tail_covers(model: _Model) -> None:
    """(7) The largest tail."""
    add_tail_rows(model.builder, model.layout, model.cells, model.count, model.maxima)


FAMILIES: dict[int, Callable[[_Model], None]] = {
    1: _layers_placed,
    2: _stage_size,
    3: _memory,
    4: _use_marked,
    5: _transient_covers,
    6: _bottleneck_covers,
    7: _tail_covers,
}
"""Builder of each numbered constraint family; the row family has the function's name."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of equal layers per virtual stage and strategy."""

    name: str = "counts"
    reference: str = "our own; identical layers aggregated as in RaNNC (IPDPS 2021)"

    def refuses(self, instance: PipelineInstance) -> str | None:
        """Layers must be equal and free, and strategies mix without resharding."""
        if len(np.unique(instance.layer_class)) > 1:
            return "NEEDS_ONE_CLASS: layers of several classes cannot be counted together"
        if instance.reshard_forward_ticks is not None:
            return "NEEDS_NO_RESHARDING: the order of strategies matters with resharding"
        return free_strategies_only(instance)

    def build(self, instance: PipelineInstance, cutoff: int | None = None) -> Program:
        """The Program; the cutoff is not used. See :class:`formulations.base.Formulation`."""
        layout = Layout(instance)
        builder = ProgramBuilder(f"{self.name}-{instance.schedule}")
        builder.offset = fixed_ticks(layout)
        cells = stage_cells(layout)
        most = _most_layers(instance)[cells.stage]
        count = builder.add_columns("count", most.shape, upper=most, cost=cells.ticks)
        marked = np.flatnonzero(cells.transient > 0)
        used = builder.add_columns("used", marked.shape)
        model = _Model(
            builder,
            layout,
            cells,
            count,
            marked,
            used,
            add_transient_columns(builder, cells),
            add_free_max_terms(builder, layout),
        )
        for add in FAMILIES.values():
            add(model)
        return builder.build()

    def decode(
        self, instance: PipelineInstance, values: IntArray, cutoff: int | None = None
    ) -> PipelineSolution:
        """Equal layers of a virtual stage in the order of strategies."""
        cells = stage_cells(Layout(instance))
        count = values[: len(cells.stage)]
        sizes = np.zeros(instance.virtual_stages, dtype=np.int64)
        np.add.at(sizes, cells.stage, count)
        order = np.lexsort((cells.strategy, cells.stage))
        strategies = np.repeat(cells.strategy[order], count[order])
        return PipelineSolution(tuple(sizes.tolist()), tuple(strategies.tolist()))


def _most_layers(instance: PipelineInstance) -> IntArray:
    """[V] most layers of each virtual stage, given the least of all others."""
    low = instance.min_layers
    spare = max(0, instance.layers - int(low.sum()))
    return np.minimum(instance.max_layers, low + spare)
