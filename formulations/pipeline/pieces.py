r"""What may be useful: bounds on the contents of device groups, before any column is made.

A *piece* is a device group with the layers it may hold, seen as a step from one node to another
of a line of boundaries; a plan is a path of pieces, one per device group.

1. Knapsack bound. With multiplier :math:`\lambda \ge 0` on memory row ``i`` every score ``z`` (see
   :mod:`formulations.pipeline.labels`) has
   :math:`z \ge \sum_{layers} \min_k (z_k + \lambda m_{ki}) - \lambda (capacity - \min transient)`.
   The dual is concave and piecewise linear, so its maximum is at one of the slopes
   :math:`(x_a - x_b)/(m_b - m_a)`.
2. A greedy filling that fits, for an upper bound.
3. Paths of knapsack bounds give, for each piece, the least ``sum X`` of all other pieces, and the
   least possible ``max X``; with a cutoff on the numerator they cap the ``X`` of the piece.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from formulations.pipeline.labels import FloatArray, IntArray, Options

_NUDGE = 1e-6  # relative; decides ties between the two options of a knapsack bound
_PROHIBITIVE = 1e6  # ticks per byte; any tick is given for a byte
_ROUNDS = 2  # improvements tried after the bound's own exchange
_MARGIN = 1e-9  # relative; float64 sums of this kind err by less than 1e-14


@dataclass(frozen=True, slots=True)
class Fixed:
    """What a device group costs before it holds any layer."""

    measures: IntArray  # [D] ticks
    tail_ticks: int
    memory: IntArray  # [R] bytes
    capacity_bytes: int
    tail_weight: int

    def score(self, theta: float) -> float:
        """``(1 - theta) X + theta V`` of the fixed part."""
        return self.ticks + theta * self.tail_weight * self.tail_ticks

    @property
    def ticks(self) -> int:
        """Fixed part of F' + B'."""
        return int(self.measures.sum())


@dataclass(frozen=True, slots=True)
class Filling:
    """A feasible content of a piece: measures ``[D]`` and tail, fixed parts included."""

    measures: IntArray
    tail_ticks: int

    @property
    def ticks(self) -> int:
        """F' + B'."""
        return int(self.measures.sum())


def knapsack_bounds(
    fixed: Fixed, options: Sequence[Options], counts: IntArray, theta: float
) -> tuple[FloatArray, FloatArray]:
    """Lower bounds ``[pieces]`` on a score (infinite: cannot fit), multipliers ``[pieces, R]``.

    ``counts`` is ``[pieces, kinds]``: how many slots of each kind a piece has.
    """
    lower = np.full(len(counts), fixed.score(theta))
    multipliers = np.zeros((len(counts), len(fixed.memory)))
    used = [kind for kind in range(len(options)) if counts[:, kind].any()]
    if not used or any(not len(options[kind].strategies) for kind in used):
        return np.full(len(counts), math.inf), multipliers
    counts = counts[:, used]
    chosen = [options[kind] for kind in used]
    transient = min(int(o.transient.min()) for o in chosen)
    for row, base in enumerate(fixed.memory.tolist()):
        budget = fixed.capacity_bytes - base - transient
        rates = _slopes(chosen, row, theta)
        reduced = np.stack(
            [
                (o.score(theta)[:, None] + o.memory[:, row][:, None] * rates[None, :]).min(axis=0)
                for o in chosen
            ]
        )
        dual = counts @ reduced - budget * rates[None, :]
        best = dual.argmax(axis=1)
        value = dual[np.arange(len(counts)), best] + fixed.score(theta)
        scale = 1.0 + np.abs(value) + rates[best] * fixed.capacity_bytes
        lower = np.maximum(lower, value - _MARGIN * scale)
        multipliers[:, row] = rates[best]
        lightest = np.array([int(o.memory[:, row].min()) for o in chosen])
        lower[counts @ lightest > budget] = math.inf
    return lower, multipliers


def tail_bounds(
    fixed: Fixed, options: Sequence[Options], counts: IntArray, most_ticks: FloatArray
) -> FloatArray:
    r"""Lower bounds ``[pieces]`` on the tail of contents whose X is at most ``most_ticks``.

    For every rate :math:`\eta \ge 0` (tail ticks per tick of X),
    :math:`tail \ge fixed + \sum_{layers} \min_k (tail_k + \eta x_k) - \eta (most - fixed\,X)`.
    Infinite where ``most_ticks`` is minus infinity: no such content is wanted.
    """
    tails = [(o.value - o.ticks) / fixed.tail_weight for o in options]
    rates = [np.zeros(1)]
    for o, tail in zip(options, tails, strict=True):
        slower = o.ticks[:, None] - o.ticks[None, :]
        shorter = tail[None, :] - tail[:, None]
        a, b = np.nonzero((slower > 0) & (shorter > 0))
        rates.append(shorter[a, b] / slower[a, b])
    rate = np.unique(np.concatenate(rates))
    per_layer = np.stack(
        [
            (tail[:, None] + o.ticks[:, None] * rate).min(axis=0, initial=math.inf)
            for o, tail in zip(options, tails, strict=True)
        ]
    )
    per_layer = np.where(np.isfinite(per_layer), per_layer, 0.0)
    room = np.where(np.isfinite(most_ticks), most_ticks - fixed.ticks, 0.0)
    bound = fixed.tail_ticks + counts @ per_layer - room[:, None] * rate
    scale = 1.0 + np.abs(bound) + np.abs(room)[:, None] * rate
    plain = fixed.tail_ticks + counts @ per_layer[:, 0]
    best = np.where(np.isposinf(most_ticks), plain, (bound - _MARGIN * scale).max(axis=1))
    return np.where(np.isneginf(most_ticks), math.inf, np.maximum(np.ceil(best), 0.0))


def _slopes(options: Sequence[Options], row: int, theta: float) -> FloatArray:
    """All exchange rates (ticks per byte) between two options of a kind, and 0."""
    parts = [np.zeros(1)]
    for option in options:
        score, memory = option.score(theta), option.memory[:, row]
        slower = score[:, None] - score[None, :]
        lighter = memory[None, :] - memory[:, None]
        a, b = np.nonzero((slower > 0) & (lighter > 0))
        parts.append(slower[a, b] / lighter[a, b])
    return np.unique(np.concatenate(parts))


def greedy_filling(
    fixed: Fixed,
    options: Sequence[Options],
    counts: IntArray,
    multiplier: FloatArray,
    theta: float,
) -> Filling | None:
    """A content that fits: the bound's choice, made lighter if need be, then made better.

    ``counts`` is ``[kinds]``; None where even the lightest choice of each kind does not fit.
    """
    kinds = np.flatnonzero(counts).tolist()
    start = _light_start(fixed, options, counts, multiplier, theta)
    if start is None:
        return None
    memory = fixed.memory + sum(options[q].memory[start[q]] * counts[q] for q in kinds)
    transient = max(int(options[q].transient[start[q]]) for q in kinds)
    measures, value = fixed.measures, fixed.score(1.0)
    for q in kinds:
        o, base, left = options[q], start[q], int(counts[q])
        for rates in (multiplier * (1 - _NUDGE), *(np.zeros_like(multiplier),) * _ROUNDS):
            times = _times(o, base, left, fixed.capacity_bytes - memory, transient)
            fits = np.flatnonzero(times)
            score = (o.score(theta) + o.memory @ rates)[fits]
            best = int(fits[np.lexsort((o.value[fits], score))[0]]) if left else base
            moved = 0 if best == base else int(times[best])
            left -= moved
            memory = memory + moved * (o.memory[best] - o.memory[base])
            transient = max(transient, int(o.transient[best])) if moved else transient
            measures = measures + moved * o.measures[best]
            value += moved * int(o.value[best])
        measures = measures + left * o.measures[base]
        value += left * int(o.value[base])
    return Filling(measures, (round(value) - int(measures.sum())) // fixed.tail_weight)


def _light_start(
    fixed: Fixed,
    options: Sequence[Options],
    counts: IntArray,
    multiplier: FloatArray,
    theta: float,
) -> dict[int, int] | None:
    """Per kind one option for all its slots that fits: the bound's lighter choice, or lightest."""
    kinds = np.flatnonzero(counts).tolist()
    for rates in (multiplier * (1 + _NUDGE), np.full_like(multiplier, _PROHIBITIVE)):
        start = {
            q: int(
                np.lexsort(
                    (
                        options[q].memory.sum(axis=1),
                        options[q].score(theta) + options[q].memory @ rates,
                    )
                )[0]
            )
            for q in kinds
        }
        memory = fixed.memory + sum(options[q].memory[k] * counts[q] for q, k in start.items())
        transient = max(int(options[q].transient[k]) for q, k in start.items())
        if int(memory.max()) + transient <= fixed.capacity_bytes:
            return start
    return None


def _times(o: Options, base: int, left: int, room: IntArray, transient: int) -> IntArray:
    """[k] how many of ``left`` slots can change from option ``base`` to each option."""
    heavier = o.memory - o.memory[base]
    free = room[None, :] - np.maximum(transient, o.transient)[:, None]
    times = np.where(heavier > 0, free // np.maximum(heavier, 1), np.where(free < 0, 0, left))
    result: IntArray = np.clip(times.min(axis=1), 0, left)
    return result


def other_pieces(lower: FloatArray) -> FloatArray:
    """``[p, nodes, nodes]``: least sum over all other pieces of a path through each piece."""
    ahead = _prefixes(lower, largest=False)
    behind = _prefixes(lower[::-1, ::-1, ::-1].transpose(0, 2, 1), largest=False)[:, ::-1]
    result: FloatArray = ahead[:-1, :, None] + behind[-2::-1, None, :]
    return np.where(np.isfinite(lower), result, math.inf)


def least_bottleneck(lower: FloatArray) -> float:
    """Least largest piece of any path."""
    return float(_prefixes(lower, largest=True)[-1, -1])


def _prefixes(cost: FloatArray, *, largest: bool) -> FloatArray:
    """``[p + 1, nodes]``: cheapest way from node 0 to each node by the first pieces."""
    groups, nodes, _ = cost.shape
    result = np.full((groups + 1, nodes), math.inf)
    result[0, 0] = 0.0
    for group in range(groups):
        step = (
            np.maximum(result[group][:, None], cost[group])
            if largest
            else result[group][:, None] + cost[group]
        )
        result[group + 1] = step.min(axis=0)
    return result


def cheapest_path(cost: FloatArray) -> list[tuple[int, int]] | None:
    """Nodes (from, to) of the pieces of the path with the least sum; None if there is none."""
    prefixes = _prefixes(cost, largest=False)
    node = cost.shape[1] - 1
    if not math.isfinite(prefixes[-1, node]):
        return None
    path = []
    for group in range(len(cost) - 1, -1, -1):
        before = int(np.argmin(prefixes[group] + cost[group][:, node]))
        path.append((before, node))
        node = before
    return path[::-1]


def caps(
    lower: FloatArray, cutoff: int | None, tail_part: int, weight: int
) -> tuple[FloatArray, FloatArray]:
    """``[p, nodes, nodes]`` each: largest X and V of a piece in a solution below the cutoff.

    From ``X + w * tail + others + weight * max(X, bottleneck) <= cutoff - 1`` with
    ``w * tail >= tail_part``; minus infinity where the piece is on no path or its own bound
    exceeds the cap. Such pieces are taken out and the rest is bounded again until nothing changes.
    """
    while True:
        ticks, value = _caps_once(lower, cutoff, tail_part, weight)
        left = np.where(np.isneginf(ticks), math.inf, lower)
        if np.array_equal(left, lower):
            return ticks, value
        lower = left


def _caps_once(
    lower: FloatArray, cutoff: int | None, tail_part: int, weight: int
) -> tuple[FloatArray, FloatArray]:
    """Caps from the pieces left."""
    others = other_pieces(lower)
    usable = np.isfinite(others)
    if cutoff is None:
        unlimited = np.where(usable, math.inf, -math.inf)
        return unlimited, unlimited
    bottleneck = least_bottleneck(lower)
    if not math.isfinite(bottleneck):
        return np.full(lower.shape, -math.inf), np.full(lower.shape, -math.inf)
    value = np.where(usable, cutoff - 1 - weight * bottleneck - others, -math.inf)
    room = value + weight * bottleneck - tail_part
    ticks = np.where(room >= (1 + weight) * bottleneck, room / (1 + weight), value - tail_part)
    ticks = np.floor(ticks)
    return np.where(lower <= ticks, ticks, -math.inf), value
