r"""Columns of the interval formulation: complete contents of device groups.

Three shapes of the same thing, told apart by what must be linked between device groups:

* ``size``: one class, no resharding, ``v = 1``. Which layers a group holds is only a number; the
  line of boundaries of :mod:`formulations.pipeline.pieces` is the number of layers placed so far.
* ``range``: ``v = 1``. A column is a range of layers, and its entry and last strategy where
  resharding matters.
* ``chunks``: ``v > 1`` with fixed sizes. A column fills all chunks of a device group, because
  memory couples them; boundary ``s`` of the line is "``s`` groups are filled".

Free choice of strategies: bounds on the pieces, then :func:`~formulations.pipeline.labels.grow`
for the pieces that may matter, then Pareto in (measures, value), the tail counted only above the
least possible largest tail. Policies leave no choice: each (policy, piece) is one column.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np

from formulations.pipeline.labels import SCORES, Labels, Options, Slot, Target, grow, pareto
from formulations.pipeline.pieces import (
    Filling,
    Fixed,
    caps,
    cheapest_path,
    greedy_filling,
    knapsack_bounds,
    least_bottleneck,
)
from ilp_parallel.problems.pipeline import policy_strategies

if TYPE_CHECKING:
    from collections.abc import Iterator

    from formulations.pipeline.labels import FloatArray, IntArray
    from ilp_parallel.problems.pipeline import Objective, PipelineInstance

_NEAR = 1.25  # fillings are first tried for spans up to this multiple of the least bottleneck

Shape = Literal["size", "range", "chunks"]


@dataclass(frozen=True, slots=True)
class Columns:
    """Parallel arrays, one entry per column; nodes as in :class:`Layout`."""

    group: IntArray  # [N] device group
    policy: IntArray  # [N] index of the policy, 0 without policies
    start: IntArray  # [N] node before
    stop: IntArray  # [N] node after
    links: IntArray  # [N, 2 v] entry and last strategy of each chunk; -1 where nothing is linked
    measures: IntArray  # [N, D] ticks per bottleneck
    tail: IntArray  # [N] ticks
    choices: tuple[IntArray, ...]  # strategies of the layers, chunk after chunk

    @property
    def ticks(self) -> IntArray:
        """[N] F' + B'."""
        total: IntArray = self.measures.sum(axis=1)
        return total


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


@dataclass(frozen=True, slots=True)
class _Pieces:
    """Bounds of the spans of one device group."""

    fixed: Fixed
    options: list[Options]
    counts: IntArray  # [spans, kinds]
    lower: FloatArray  # [spans] least X
    multipliers: FloatArray  # [spans, scores, R]
    fillings: list[list[Filling]]  # [spans][scores], empty where there is none


@lru_cache(maxsize=4)
def generate(instance: PipelineInstance, cutoff: int | None) -> Columns:
    """All columns that may be part of an optimal solution with numerator below the cutoff."""
    layout = Layout(instance)
    pieces = [_bounded(layout, group) for group in range(instance.stages)]
    line = np.stack([layout.on_line(s, piece.lower) for s, piece in enumerate(pieces)])
    if instance.policies is None and layout.reshard is None:
        bottleneck = least_bottleneck(line)
        for reach in (_NEAR * bottleneck, math.inf):
            for piece in pieces:
                _fill(piece, reach)
            known = [_own_cutoff(layout, pieces, score) for score in range(len(SCORES))]
            if any(found is not None for found in known):
                break
        cutoff = min((c for c in (*known, cutoff) if c is not None), default=None)
    objective = instance.objective
    ticks, value = caps(
        line,
        cutoff,
        objective.tail_weight * layout.least_tail,
        min(term.weight for term in objective.bottlenecks),
    )
    make = _free if instance.policies is None else _policy
    batches: list[Columns] = []
    for s, piece in enumerate(pieces):
        limits = np.column_stack([layout.off_line(s, ticks[s]), layout.off_line(s, value[s])])
        batches += make(layout, s, piece, limits)
    return _joined(instance, batches)


def _bounded(layout: Layout, group: int) -> _Pieces:
    """Knapsack bounds of all spans of a device group."""
    spans = layout.spans[group]
    fixed, options = layout.fixed(group), layout.options(group)
    counts = layout.counts(group, len(options))
    bounds = [knapsack_bounds(fixed, options, counts, theta) for theta in SCORES]
    lower, multipliers = np.ceil(bounds[0][0]), np.stack([rates for _, rates in bounds], axis=1)
    return _Pieces(fixed, options, counts, lower, multipliers, [[] for _ in spans])


def _fill(piece: _Pieces, reach: float) -> None:
    """Add greedy fillings to the spans whose least X is within reach and that have none."""
    for i in np.flatnonzero(np.isfinite(piece.lower) & (piece.lower <= reach)).tolist():
        if piece.fillings[i]:
            continue
        for theta, rates in zip(SCORES, piece.multipliers[i], strict=True):
            filling = greedy_filling(piece.fixed, piece.options, piece.counts[i], rates, theta)
            if filling is None:
                piece.fillings[i].clear()
                break
            piece.fillings[i].append(filling)


def _own_cutoff(layout: Layout, pieces: list[_Pieces], score: int) -> int | None:
    """One more than the numerator of a solution made of greedy fillings; None without one."""
    ticks = [
        np.array([float(f[score].ticks) if f else math.inf for f in piece.fillings])
        for piece in pieces
    ]
    line = np.stack([layout.on_line(group, values) for group, values in enumerate(ticks)])
    bottleneck = least_bottleneck(line)
    path = cheapest_path(np.where(line <= bottleneck, line, math.inf))
    if path is None:
        return None
    chosen = []
    for group, (start, stop) in enumerate(path):
        span = (0, stop - start) if layout.shape == "size" else (start, stop)
        chosen.append(pieces[group].fillings[layout.spans[group].index(span)][score])
    objective = layout.instance.objective
    measures = np.stack([filling.measures for filling in chosen])
    weights = np.array([term.weight for term in objective.bottlenecks])
    return (
        1
        + int(measures.sum())
        + int(weights @ measures.max(axis=0))
        + objective.tail_weight * max(filling.tail_ticks for filling in chosen)
    )


def _free(layout: Layout, group: int, piece: _Pieces, limits: FloatArray) -> Iterator[Columns]:
    """Columns of one device group when every layer chooses freely."""
    weight = layout.instance.objective.tail_weight
    wanted = [
        (start, stop, _corners(layout, fillings, limit), rates)
        for (start, stop), limit, rates, lower, fillings in zip(
            layout.spans[group], limits, piece.multipliers, piece.lower, piece.fillings, strict=True
        )
        if math.isfinite(lower) and lower <= limit[0]
    ]
    for start, same in itertools.groupby(wanted, key=lambda span: span[0]):
        ends = list(same)
        targets = [
            Target(len(layout.slots(group, start, stop)), corners, rates)
            for _, stop, corners, rates in ends
        ]
        grown = grow(
            layout.slots(group, start, ends[-1][1]),
            piece.options,
            _origin(layout, piece.fixed),
            targets,
            piece.fixed.capacity_bytes,
            layout.reshard,
        )
        for labels, (_, stop, _, _) in zip(grown, ends, strict=True):
            tail = (labels.value - labels.ticks) // weight
            yield _reduced(layout, _columns(group, 0, start, stop, labels, tail))


def _corners(layout: Layout, fillings: list[Filling], limit: FloatArray) -> FloatArray:
    """``[corners, 2]`` of (X, V): within the limit and not to be exchanged for a filling.

    With one bottleneck a content that is no better than a filling in X and in V (tails below the
    least largest tail counting as that) is not needed; what is left lies in the corners between
    neighbouring fillings.
    """
    if len(layout.instance.objective.bottlenecks) > 1:
        return limit[None, :]
    weight, least = layout.instance.objective.tail_weight, layout.least_tail
    points = sorted({(f.ticks, f.ticks + weight * max(f.tail_ticks, least)) for f in fillings})
    steps = [(-math.inf, float(limit[1]))]
    for ticks, value in points:
        if value < steps[-1][1]:
            steps.append((float(ticks), float(value)))
    rights = [*(ticks for ticks, _ in steps[1:]), float(limit[0])]
    corners = [
        (min(right, float(limit[0])), value)
        for right, (left, value) in zip(rights, steps, strict=True)
        if left <= limit[0]
    ]
    return np.array(corners)


def _origin(layout: Layout, fixed: Fixed) -> Labels:
    """The label of an empty device group."""
    return Labels(
        measures=fixed.measures[None, :],
        value=np.array([fixed.ticks + fixed.tail_weight * fixed.tail_ticks]),
        memory=fixed.memory[None, :],
        transient=np.zeros(1, dtype=np.int64),
        links=np.full((1, 2 * layout.instance.chunks), -1),
        choices=np.zeros((1, 0), dtype=np.int64),
    )


def _columns(
    group: int, policy: int, start: int, stop: int, labels: Labels, tail: IntArray
) -> Columns:
    def repeated(value: int) -> IntArray:
        return np.full(len(tail), value, dtype=np.int64)

    return Columns(
        group=repeated(group),
        policy=repeated(policy),
        start=repeated(start),
        stop=repeated(stop),
        links=labels.links,
        measures=labels.measures,
        tail=tail,
        choices=tuple(labels.choices),
    )


def _reduced(layout: Layout, columns: Columns) -> Columns:
    """Pareto in (measures, F' + B' + weighted tail), tails below the least largest one equal."""
    tail = np.maximum(columns.tail, layout.least_tail)
    value = columns.ticks + layout.instance.objective.tail_weight * tail
    points = np.column_stack([columns.measures, value])
    keys = columns.links if layout.reshard is not None else None
    key = None if keys is None else np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1)
    keep = np.sort(pareto(points, key))
    return Columns(
        columns.group[keep],
        columns.policy[keep],
        columns.start[keep],
        columns.stop[keep],
        columns.links[keep],
        columns.measures[keep],
        columns.tail[keep],
        tuple(columns.choices[i] for i in keep.tolist()),
    )


def _policy(layout: Layout, group: int, piece: _Pieces, limits: FloatArray) -> Iterator[Columns]:
    """Columns of one device group when policies fix all strategies."""
    instance = layout.instance
    for (start, stop), limit in zip(layout.spans[group], limits[:, 0].tolist(), strict=True):
        chunks = layout.chunk_layers(group, start, stop)
        layers = np.concatenate([np.arange(c.start, c.stop) for c in chunks])
        slots = layout.slots(group, start, stop)
        sizes = tuple(len(c) for c in chunks)
        for index, policy in enumerate(instance.policies or ()):
            chosen = np.array(policy_strategies(policy, sizes), dtype=np.int64)
            q = instance.layer_class[layers]
            if not bool(instance.allowed[q, chosen].all()):
                continue
            alive = instance.in_flight[group][:, np.array([slot.chunk for slot in slots])]
            peak = (
                int((alive @ instance.activation_bytes[q, chosen]).max())
                + int(instance.state_bytes[q, chosen].sum() + instance.fixed_bytes[group])
                + int(instance.transient_bytes[q, chosen].max())
            )
            measures = piece.fixed.measures + layout.measures[q, chosen].sum(axis=0)
            if peak > piece.fixed.capacity_bytes or int(measures.sum()) > limit:
                continue
            tail = np.array([piece.fixed.tail_ticks + int(instance.tail_ticks[q, chosen].sum())])
            labels = Labels(
                measures[None, :],
                np.zeros(1, dtype=np.int64),
                np.array([[peak]]),
                np.zeros(1, dtype=np.int64),
                np.full((1, 2 * instance.chunks), -1),
                chosen[None, :],
            )
            for linked in _linked(layout, slots, labels):
                if int(linked.ticks[0]) <= limit:
                    yield _columns(group, index, start, stop, linked, tail)


def _linked(layout: Layout, slots: list[Slot], labels: Labels) -> Iterator[Labels]:
    """A fixed content with every combination of entry strategies, resharding added."""
    if layout.reshard is None:
        yield labels
        return
    chosen = labels.choices[0].tolist()
    chunks = range(layout.instance.chunks)
    first = [next(i for i, slot in enumerate(slots) if slot.chunk == c) for c in chunks]
    last = [max(i for i, slot in enumerate(slots) if slot.chunk == c) for c in chunks]
    inside = sum(
        layout.reshard[chosen[i - 1], chosen[i]] for i in range(1, len(chosen)) if i not in first
    )
    for entries in itertools.product(*(slots[i].entries or (-1,) for i in first)):
        crossing = sum(
            layout.reshard[a, chosen[i]] for a, i in zip(entries, first, strict=True) if a >= 0
        )
        links = [x for a, i in zip(entries, last, strict=True) for x in (a, chosen[i])]
        yield Labels(
            labels.measures + inside + crossing,
            labels.value,
            labels.memory,
            labels.transient,
            np.array([links]),
            labels.choices,
        )


def _joined(instance: PipelineInstance, batches: list[Columns]) -> Columns:
    """All batches as one; shapes are kept when there is none."""
    empty = np.zeros(0, dtype=np.int64)
    links = np.zeros((0, 2 * instance.chunks), dtype=np.int64)
    measures = np.zeros((0, len(instance.objective.bottlenecks)), dtype=np.int64)
    return Columns(
        group=np.concatenate([empty, *(b.group for b in batches)]),
        policy=np.concatenate([empty, *(b.policy for b in batches)]),
        start=np.concatenate([empty, *(b.start for b in batches)]),
        stop=np.concatenate([empty, *(b.stop for b in batches)]),
        links=np.concatenate([links, *(b.links for b in batches)]),
        measures=np.concatenate([measures, *(b.measures for b in batches)]),
        tail=np.concatenate([empty, *(b.tail for b in batches)]),
        choices=tuple(itertools.chain.from_iterable(b.choices for b in batches)),
    )
