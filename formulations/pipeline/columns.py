r"""Columns of the interval formulation: complete contents of device groups.

Which contents there are, and how they are linked, is :mod:`formulations.pipeline.layout`.
Free choice of strategies: bounds on the pieces, then :func:`~formulations.pipeline.labels.grow`
for the pieces that may matter, then Pareto in (measures, value), the tail counted only above the
least possible largest tail. Policies leave no choice: each (policy, piece) is one column.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from formulations.pipeline.labels import SCORES, Labels, Options, Slot, Target, grow, pareto
from formulations.pipeline.layout import Layout
from formulations.pipeline.pieces import (
    Filling,
    Fixed,
    caps,
    cheapest_path,
    greedy_filling,
    knapsack_bounds,
    least_bottleneck,
    tail_bounds,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from formulations.pipeline.labels import FloatArray, IntArray
    from ilp_parallel.problems.pipeline import PipelineInstance

_NEAR = 1.25  # fillings are first tried for spans up to this multiple of the least bottleneck


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
        _, within = _limits(layout, pieces, line, cutoff)
        for reach in (_NEAR * bottleneck, math.inf):
            for piece, limits in zip(pieces, within, strict=True):
                _fill(piece, np.minimum(limits[:, 0], reach))
            known = [_own_cutoff(layout, pieces, score) for score in range(len(SCORES))]
            if any(found is not None for found in known):
                break
        cutoff = min((c for c in (*known, cutoff) if c is not None), default=None)
    least_tail, all_limits = _limits(layout, pieces, line, cutoff)
    make = _free if instance.policies is None else _policy
    batches: list[Columns] = []
    for s, (piece, limits) in enumerate(zip(pieces, all_limits, strict=True)):
        batches += make(layout, s, piece, limits, least_tail)
    return _joined(instance, batches)


def _limits(
    layout: Layout, pieces: list[_Pieces], line: FloatArray, cutoff: int | None
) -> tuple[int, list[FloatArray]]:
    """Least largest tail of any solution below the cutoff; per group ``[spans, 2]`` caps of (X, V).

    The caps leave little time for strategies that trade time for tail, so they raise the least
    largest tail, which in turn lowers the caps: repeated until nothing changes.
    """
    objective = layout.instance.objective
    weight = min(term.weight for term in objective.bottlenecks)
    least_tail = layout.least_tail
    while True:
        ticks, value = caps(line, cutoff, objective.tail_weight * least_tail, weight)
        limits = [
            np.column_stack([layout.off_line(s, ticks[s]), layout.off_line(s, value[s])])
            for s in range(len(pieces))
        ]
        if layout.instance.policies is not None or layout.reshard is not None:
            return least_tail, limits
        tails = [
            layout.on_line(s, tail_bounds(piece.fixed, piece.options, piece.counts, limit[:, 0]))
            for s, (piece, limit) in enumerate(zip(pieces, limits, strict=True))
        ]
        raised = least_bottleneck(np.stack(tails))
        if not least_tail < raised < math.inf:
            return least_tail, limits
        least_tail = int(raised)


def _bounded(layout: Layout, group: int) -> _Pieces:
    """Knapsack bounds of all spans of a device group."""
    spans = layout.spans[group]
    fixed, options = layout.fixed(group), layout.options(group)
    counts = layout.counts(group, len(options))
    bounds = [knapsack_bounds(fixed, options, counts, theta) for theta in SCORES]
    lower, multipliers = np.ceil(bounds[0][0]), np.stack([rates for _, rates in bounds], axis=1)
    return _Pieces(fixed, options, counts, lower, multipliers, [[] for _ in spans])


def _fill(piece: _Pieces, reach: FloatArray) -> None:
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


def _free(
    layout: Layout, group: int, piece: _Pieces, limits: FloatArray, least_tail: int
) -> Iterator[Columns]:
    """Columns of one device group when every layer chooses freely."""
    weight = layout.instance.objective.tail_weight
    wanted = [
        (start, stop, _corners(layout, fillings, limit, least_tail), rates)
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
            yield _reduced(layout, _columns(group, 0, start, stop, labels, tail), least_tail)


def _corners(
    layout: Layout, fillings: list[Filling], limit: FloatArray, least_tail: int
) -> FloatArray:
    """``[corners, 2]`` of (X, V): within the limit and not to be exchanged for a filling.

    With one bottleneck a content that is no better than a filling in X and in V (tails below the
    least largest tail counting as that) is not needed; what is left lies in the corners between
    neighbouring fillings.
    """
    if len(layout.instance.objective.bottlenecks) > 1:
        return limit[None, :]
    weight = layout.instance.objective.tail_weight
    points = sorted({(f.ticks, f.ticks + weight * max(f.tail_ticks, least_tail)) for f in fillings})
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


def _reduced(layout: Layout, columns: Columns, least_tail: int) -> Columns:
    """Pareto in (measures, F' + B' + weighted tail), tails below the least largest one equal."""
    tail = np.maximum(columns.tail, least_tail)
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


def _policy(
    layout: Layout, group: int, piece: _Pieces, limits: FloatArray, least_tail: int
) -> Iterator[Columns]:
    """Columns of one device group when policies fix all strategies; all tails count."""
    del least_tail
    spans = zip(layout.spans[group], limits[:, 0].tolist(), piece.lower.tolist(), strict=True)
    for (start, stop), limit, lower in spans:
        if lower > limit or math.isinf(lower):
            continue
        policy, labels = _policy_contents(layout, group, piece.fixed, start, stop)
        for index, linked in _linked(layout, layout.slots(group, start, stop), policy, labels):
            useful = linked.ticks <= limit
            tail = (linked.value - linked.ticks) // piece.fixed.tail_weight
            found = _columns(group, 0, start, stop, linked.take(useful), tail[useful])
            yield replace(found, policy=index[useful])


def _policy_contents(
    layout: Layout, group: int, fixed: Fixed, start: int, stop: int
) -> tuple[IntArray, Labels]:
    """The policies whose contents are allowed and fit, and these contents without resharding."""
    instance, policies = layout.instance, layout.instance.policies or ()
    chunks = layout.chunk_layers(group, start, stop)
    layer = np.concatenate([np.arange(c.start, c.stop) for c in chunks])
    place = np.concatenate([np.arange(len(c)) for c in chunks])
    chunk = np.repeat(np.arange(len(chunks)), [len(c) for c in chunks])
    prefix, count, rest = (
        np.array([[getattr(policy, name)] for policy in policies], dtype=np.int64)
        for name in ("prefix", "prefix_layers", "rest")
    )
    q, chosen = instance.layer_class[layer], np.where(place < count, prefix, rest)
    policy = np.flatnonzero(instance.allowed[q, chosen].all(axis=1))
    chosen = chosen[policy]
    alive = instance.in_flight[group][:, chunk]
    held = instance.activation_bytes[q, chosen] @ alive.T
    measures = fixed.measures + layout.measures[q, chosen].sum(axis=1)
    tail = fixed.tail_ticks + instance.tail_ticks[q, chosen].sum(axis=1)
    labels = Labels(
        measures=measures,
        value=measures.sum(axis=1) + fixed.tail_weight * tail,
        memory=fixed.memory + instance.state_bytes[q, chosen].sum(axis=1)[:, None] + held,
        transient=instance.transient_bytes[q, chosen].max(axis=1),
        links=np.full((len(policy), 2 * instance.chunks), -1),
        choices=chosen,
    )
    fits = labels.memory.max(axis=1) + labels.transient <= fixed.capacity_bytes
    return policy[fits], labels.take(fits)


def _linked(
    layout: Layout, slots: list[Slot], policy: IntArray, labels: Labels
) -> Iterator[tuple[IntArray, Labels]]:
    """Contents of policies with every combination of entry strategies, resharding added."""
    if layout.reshard is None:
        yield policy, labels
        return
    chosen = labels.choices
    chunk = np.array([slot.chunk for slot in slots])
    opens = np.append(True, chunk[1:] != chunk[:-1])
    first, last = np.flatnonzero(opens), np.flatnonzero(np.roll(opens, -1))
    inside = np.flatnonzero(~opens)
    steps = layout.reshard[chosen[:, inside - 1], chosen[:, inside]].sum(axis=1)
    for entries in itertools.product(*(slots[i].entries or (-1,) for i in first.tolist())):
        entered = np.array([a >= 0 for a in entries])
        before = np.array(entries)[entered]
        extra = steps + layout.reshard[before, chosen[:, first[entered]]].sum(axis=1)
        links = np.full_like(labels.links, -1)
        links[:, 0::2], links[:, 1::2] = np.array(entries), chosen[:, last]
        measures, value = labels.measures + extra, labels.value + extra.sum(axis=1)
        yield policy, replace(labels, measures=measures, value=value, links=links)


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
