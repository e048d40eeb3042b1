r"""A pipeline instance seen as a line of device groups that hold pieces.

Three shapes of the same thing, told apart by what must be linked between device groups:

* ``size``: one class, no resharding, ``v = 1``. Which layers a group holds is only a number; the
  line of boundaries of :mod:`formulations.pipeline.pieces` is the number of layers placed so far.
* ``range``: ``v = 1``. A column is a range of layers, and its entry and last strategy where
  resharding matters.
* ``chunks``: ``v > 1`` with fixed sizes. A column fills all chunks of a device group, because
  memory couples them; boundary ``s`` of the line is "``s`` groups are filled".
"""

from __future__ import annotations

import itertools
import math
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np

from formulations.pipeline.labels import Options, Slot
from formulations.pipeline.pieces import Fixed

if TYPE_CHECKING:
    from formulations.pipeline.labels import FloatArray, IntArray
    from ilp_parallel.problems.pipeline import Objective, PipelineInstance

Shape = Literal["size", "range", "chunks"]


class Layout:
    """The instance seen as device groups that hold pieces."""

    def __init__(self, instance: PipelineInstance) -> None:
        self.instance = instance
        classes = len(instance.allowed)
        if instance.chunks > 1:
            self.shape: Shape = "chunks"
        elif classes == 1 and instance.reshard_forward_ticks is None:
            self.shape = "size"
        else:
            self.shape = "range"
        self.nodes = (instance.stages if self.shape == "chunks" else instance.layers) + 1

    @cached_property
    def measures(self) -> IntArray:
        """[Q, K, D] ticks of a layer per bottleneck."""
        return _measures(
            self.instance.objective, self.instance.forward_ticks, self.instance.backward_ticks
        )

    @cached_property
    def reshard(self) -> IntArray | None:
        """[K, K, D] ticks of a change of strategies per bottleneck."""
        forward, backward = (
            self.instance.reshard_forward_ticks,
            self.instance.reshard_backward_ticks,
        )
        if forward is None or backward is None:
            return None
        return _measures(self.instance.objective, forward, backward)

    def fixed(self, group: int) -> Fixed:
        """Fixed parts of a device group."""
        instance = self.instance
        return Fixed(
            measures=_measures(
                instance.objective,
                instance.stage_forward_ticks[group :: instance.stages].sum(),
                instance.stage_backward_ticks[group :: instance.stages].sum(),
            ),
            tail_ticks=int(instance.fixed_tail_ticks[group]),
            memory=np.full(len(instance.in_flight[group]), int(instance.fixed_bytes[group])),
            capacity_bytes=int(instance.capacity_bytes[group]),
            tail_weight=instance.objective.tail_weight,
        )

    def options(self, group: int) -> list[Options]:
        """Options of each kind of slot; kind = class * chunks + chunk.

        Dominated strategies are left out unless resharding tells strategies apart.
        """
        instance, result = self.instance, []
        for q, chunk in itertools.product(range(len(instance.allowed)), range(instance.chunks)):
            k = np.flatnonzero(instance.allowed[q])
            alive = instance.in_flight[group][:, chunk]
            held = instance.activation_bytes[q, k][:, None] * alive[None, :]
            measures = self.measures[q, k]
            tail = instance.objective.tail_weight * instance.tail_ticks[q, k]
            option = Options(
                strategies=k,
                measures=measures,
                value=measures.sum(axis=1) + tail,
                memory=instance.state_bytes[q, k][:, None] + held,
                transient=instance.transient_bytes[q, k],
            )
            result.append(option if self.reshard is not None else option.undominated())
        return result

    @cached_property
    def spans(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Per device group the pieces (from node, to node) that sizes allow.

        With shape ``size`` every piece starts at node 0 and stands for all its translations.
        """
        instance = self.instance
        if self.shape == "chunks":
            return tuple(((s, s + 1),) for s in range(instance.stages))
        low = instance.min_layers
        high = np.minimum(instance.max_layers, instance.layers - (low.sum() - low))
        result = []
        for s in range(instance.stages):
            first = max(int(low[:s].sum()), instance.layers - int(high[s:].sum()))
            last = min(int(high[:s].sum()), instance.layers - int(low[s:].sum()))
            starts = range(first, last + 1) if self.shape == "range" else (0,)
            result.append(
                tuple(
                    (i, i + n)
                    for i in starts
                    for n in range(int(low[s]), int(high[s]) + 1)
                    if i + n <= instance.layers
                )
            )
        return tuple(result)

    def chunk_layers(self, group: int, start: int, stop: int) -> list[range]:
        """The layers of each chunk of a piece."""
        instance = self.instance
        if self.shape != "chunks":
            return [range(start, stop)]
        ends = np.cumsum(instance.min_layers)
        return [
            range(int(ends[j] - instance.min_layers[j]), int(ends[j]))
            for j in range(group, instance.virtual_stages, instance.stages)
        ]

    def slots(self, group: int, start: int, stop: int) -> list[Slot]:
        """The slots of a piece, chunk after chunk."""
        instance, result = self.instance, []
        for chunk, layers in enumerate(self.chunk_layers(group, start, stop)):
            for layer in layers:
                opens = self.reshard is not None and layer == layers.start and layer > 0
                entries = (
                    np.flatnonzero(instance.allowed[instance.layer_class[layer - 1]]).tolist()
                    if opens
                    else ()
                )
                kind = int(instance.layer_class[layer]) * instance.chunks + chunk
                result.append(Slot(kind, chunk, tuple(entries)))
        return result

    def counts(self, group: int, kinds: int) -> IntArray:
        """[spans, kinds] how many slots of each kind the pieces of a device group have."""
        instance, spans = self.instance, self.spans[group]
        if self.shape == "chunks":
            used = [slot.kind for slot in self.slots(group, *spans[0])]
            return np.bincount(used, minlength=kinds).astype(np.int64)[None, :]
        one_hot = instance.layer_class[:, None] == np.arange(kinds)[None, :]
        before = np.vstack([np.zeros(kinds, dtype=np.int64), one_hot.cumsum(axis=0)])
        ends = np.array(spans, dtype=np.int64).reshape(-1, 2)
        counts: IntArray = before[ends[:, 1]] - before[ends[:, 0]]
        return counts

    def on_line(self, group: int, values: FloatArray) -> FloatArray:
        """``[nodes, nodes]`` of one value per span, infinite elsewhere."""
        matrix = np.full((self.nodes, self.nodes), math.inf)
        for (start, stop), value in zip(self.spans[group], values.tolist(), strict=True):
            if self.shape == "size":
                i = np.arange(self.nodes - stop)
                matrix[i, i + stop] = value
            else:
                matrix[start, stop] = value
        return matrix

    def off_line(self, group: int, matrix: FloatArray) -> FloatArray:
        """One value per span: the largest over the translations a span stands for."""
        if self.shape == "size":
            return np.array([np.diagonal(matrix, stop).max() for _, stop in self.spans[group]])
        return np.array([matrix[span] for span in self.spans[group]])

    @cached_property
    def least_tail(self) -> int:
        """Lower bound on the largest tail: per device group, and on average."""
        instance = self.instance
        fixed = instance.fixed_tail_ticks
        layer = np.array(
            [
                int(tail[allowed].min(initial=2**40))
                for tail, allowed in zip(instance.tail_ticks, instance.allowed, strict=True)
            ]
        )
        held = instance.min_layers.reshape(instance.chunks, instance.stages).sum(axis=0)
        total = int(fixed.sum()) + int(layer[instance.layer_class].sum())
        return max(int((fixed + held * layer.min()).max()), -(-total // instance.stages))


def _measures(
    objective: Objective, forward: IntArray | np.int64, backward: IntArray | np.int64
) -> IntArray:
    """``[..., D]``: forward and backward ticks as the bottlenecks of the objective see them."""
    parts = [
        np.asarray(forward) * term.forward + np.asarray(backward) * term.backward
        for term in objective.bottlenecks
    ]
    return np.stack(parts, axis=-1).astype(np.int64)
