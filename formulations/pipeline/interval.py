r"""Interval formulation: one column per complete content of a device group.

Sets
----
device groups ``s = 0..p-1``; policies ``pi`` (a single one, "free", if the instance has none);
columns ``i`` of device group ``s_i`` and policy ``pi_i``, each a complete content: which layers
(:math:`n_i` of them) and the strategy of every layer, so that memory is a filter on columns and
needs no row; boundaries ``j`` before virtual stage ``j >= 1`` with states
:math:`\sigma` = (policy, layers placed before, strategy of the layer before).

Parameters (ticks)
------------------
:math:`\mu_{ir}` the content's ``F' + B'`` (or, for GPipe, ``F'`` and ``B'``) under bottleneck
``r`` of the objective, with weight :math:`W_r`; :math:`\tau_i` its tail, with weight ``w``.

Variables
---------
:math:`\lambda_i \in \{0,1\}` whether content ``i`` is chosen; :math:`z_\pi \in \{0,1\}` the
policy; :math:`C_r \ge 0` bottlenecks; :math:`T \ge 0` largest tail.

Objective
---------
.. math:: \min \sum_i \Big(\sum_r \mu_{ir}\Big) \lambda_i + \sum_r W_r C_r + w T

Constraints
-----------
(1) one policy (``one_policy``): :math:`\sum_\pi z_\pi = 1`.

(2) one content per device group (``one_content``):
    :math:`\sum_{i: s_i = s, \pi_i = \pi} \lambda_i = z_\pi`.

(3) all layers placed (``layers_placed``; only where a range is no more than its size: one class,
    no resharding, ``v = 1``): :math:`\sum_{i: \pi_i = \pi} n_i \lambda_i = L z_\pi`.

(4) contents fit together (``boundary``; elsewhere): for every boundary and state
    :math:`\sum_{i \text{ ends in } \sigma} \lambda_i = \sum_{i \text{ begins in } \sigma}
    \lambda_i`.

(5) bottlenecks (``bottleneck_covers``): :math:`C_r \ge \sum_{i: s_i = s} \mu_{ir} \lambda_i`.

(6) tails (``tail_covers``): :math:`T \ge \sum_{i: s_i = s} \tau_i \lambda_i`.

(7) only what is better than a known solution (``below_cutoff``; where one is known): the objective
    is at most its value less one.

With the columns chosen freely, (2) makes (5) and (6) the convex hull of what one device group can
do, which is why this relaxation is the strongest of the family. Columns that cannot improve a
solution are left out (:mod:`formulations.pipeline.columns`), which keeps at least one optimum.

Source: set-partitioning over intervals as in Alpa's inter-operator pass (Zheng et al., OSDI 2022,
arXiv:2201.12023, there solved by enumeration of the bottleneck and dynamic programming).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from formulations.pipeline.columns import Columns, generate
from formulations.pipeline.layout import Layout
from formulations.pipeline.max_terms import MaxTerms, add_max_terms
from ilp_parallel.problems.pipeline import PipelineSolution
from ilp_parallel.program import ProgramBuilder

if TYPE_CHECKING:
    from collections.abc import Callable

    from formulations.pipeline.labels import IntArray
    from ilp_parallel.problems.pipeline import PipelineInstance
    from ilp_parallel.program import Program


@dataclass(frozen=True, slots=True)
class _Model:
    """What the constraint families see."""

    builder: ProgramBuilder
    layout: Layout
    columns: Columns
    content: IntArray  # [columns]
    policy: IntArray  # [policies]
    maxima: MaxTerms
    cutoff: int | None


def _one_policy(model: _Model) -> None:
    """(1) ``sum_pi z_pi = 1``."""
    row = model.builder.add_rows("one_policy", lower=1, upper=1)
    model.builder.add_entries(row, model.policy, 1)


def _one_content(model: _Model) -> None:
    """(2) The columns of a device group and policy sum to ``z_pi``."""
    instance = model.layout.instance
    shape = (instance.stages, len(model.policy))
    rows = model.builder.add_rows("one_content", shape, lower=0, upper=0)
    columns = model.columns
    model.builder.add_entries(rows[columns.group, columns.policy], model.content, 1)
    model.builder.add_entries(rows, model.policy[None, :], -1)


def _layers_placed(model: _Model) -> None:
    """(3) The sizes under a policy sum to ``L z_pi``."""
    if model.layout.shape != "size":
        return
    rows = model.builder.add_rows("layers_placed", (len(model.policy),), lower=0, upper=0)
    columns = model.columns
    model.builder.add_entries(rows[columns.policy], model.content, columns.stop - columns.start)
    model.builder.add_entries(rows, model.policy, -model.layout.instance.layers)


def _boundary(model: _Model) -> None:
    """(4) What ends in a state equals what begins in it, at every boundary."""
    if model.layout.shape == "size":
        return
    instance, columns = model.layout.instance, model.columns
    states: list[IntArray] = []
    entries: list[tuple[IntArray, int]] = []
    for chunk in range(instance.chunks):
        stage = columns.group + chunk * instance.stages
        for boundary, node, link, sign in (
            (stage, columns.start, columns.links[:, 2 * chunk], -1),
            (stage + 1, columns.stop, columns.links[:, 2 * chunk + 1], 1),
        ):
            place = node if model.layout.shape == "range" else np.zeros_like(node)
            inner = (boundary > 0) & (boundary < instance.virtual_stages)
            states.append(np.column_stack([boundary, columns.policy, place, link])[inner])
            entries.append((model.content[inner], sign))
    distinct, index = np.unique(np.concatenate(states), axis=0, return_inverse=True)
    rows = model.builder.add_rows("boundary", (len(distinct),), lower=0, upper=0)
    ends = np.cumsum([0, *(len(columns) for columns, _ in entries)])
    for (used, sign), start, stop in zip(entries, ends[:-1], ends[1:], strict=True):
        model.builder.add_entries(rows[index.reshape(-1)[start:stop]], used, sign)


def _bottleneck_covers(model: _Model) -> None:
    """(5) ``C_r >= sum mu_ir lambda_i`` over the columns of each device group."""
    shape = (model.layout.instance.stages, len(model.maxima.bottlenecks))
    rows = model.builder.add_rows("bottleneck_covers", shape, lower=0)
    model.builder.add_entries(rows, model.maxima.bottlenecks[None, :], 1)
    columns = model.columns
    model.builder.add_entries(rows[columns.group], model.content[:, None], -columns.measures)


def _tail_covers(model: _Model) -> None:
    """(6) ``T >= sum tau_i lambda_i`` over the columns of each device group."""
    rows = model.builder.add_rows("tail_covers", (model.layout.instance.stages,), lower=0)
    model.builder.add_entries(rows, model.maxima.tail, 1)
    model.builder.add_entries(rows[model.columns.group], model.content, -model.columns.tail)


def _below_cutoff(model: _Model) -> None:
    """(7) The objective stays below the cut-off, if there is one."""
    if model.cutoff is not None:
        model.builder.cap_objective("below_cutoff", model.cutoff - 1)


FAMILIES: dict[int, Callable[[_Model], None]] = {
    1: _one_policy,
    2: _one_content,
    3: _layers_placed,
    4: _boundary,
    5: _bottleneck_covers,
    6: _tail_covers,
    7: _below_cutoff,
}
"""Builder of each numbered constraint family; the row family has the function's name."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Columns per content of a device group."""

    name: str = "interval"
    reference: str = "Alpa inter-operator pass, arXiv:2201.12023, as a set-partitioning program"

    def refuses(self, instance: PipelineInstance) -> str | None:
        """Interleaving needs fixed sizes."""
        if instance.chunks > 1 and bool((instance.min_layers != instance.max_layers).any()):
            return (
                "NEEDS_FIXED_CHUNKS: with several chunks per device group "
                "every virtual stage needs min_layers == max_layers"
            )
        return None

    def build(self, instance: PipelineInstance, cutoff: int | None = None) -> Program:
        """The Program; see :class:`formulations.base.Formulation`."""
        columns = generate(instance, cutoff)
        builder = ProgramBuilder(f"{self.name}-{instance.schedule}")
        count = len(columns.group)
        content = builder.add_columns("content", (count,), cost=columns.ticks)
        names = tuple(f"policy{i}" for i in range(len(instance.policies or (None,))))
        policy = builder.add_columns("policy", (len(names),), axes=(names,))
        spread = np.column_stack([columns.measures, columns.tail])
        lower, upper = _range(columns.group, spread, instance.stages)
        maxima = add_max_terms(builder, instance, lower, upper)
        model = _Model(builder, Layout(instance), columns, content, policy, maxima, cutoff)
        for add in FAMILIES.values():
            add(model)
        return builder.build()

    def decode(
        self, instance: PipelineInstance, values: IntArray, cutoff: int | None = None
    ) -> PipelineSolution:
        """The contents with value 1, put in model order."""
        layout, columns = Layout(instance), generate(instance, cutoff)
        chosen = np.flatnonzero(values[: len(columns.group)] == 1)
        by_group = chosen[np.argsort(columns.group[chosen])].tolist()
        sizes = np.zeros((instance.chunks, instance.stages), dtype=np.int64)
        parts: dict[tuple[int, int], list[int]] = {}
        for i in by_group:
            group, rest = int(columns.group[i]), columns.choices[i].tolist()
            pieces = layout.chunk_layers(group, int(columns.start[i]), int(columns.stop[i]))
            for chunk, layers in enumerate(pieces):
                sizes[chunk, group] = len(layers)
                parts[chunk, group], rest = rest[: len(layers)], rest[len(layers) :]
        return PipelineSolution(
            tuple(sizes.reshape(-1).tolist()),
            tuple(k for key in sorted(parts) for k in parts[key]),
        )


def _range(group: IntArray, values: IntArray, stages: int) -> tuple[IntArray, IntArray]:
    """Lower and upper bound ``[D]`` of the largest of one value per device group."""
    least = np.full((stages, values.shape[1]), np.iinfo(np.int64).max)
    np.minimum.at(least, group, values)
    least[least == np.iinfo(np.int64).max] = 0  # a group without columns: infeasible anyway
    return least.max(axis=0), values.max(axis=0, initial=0)
