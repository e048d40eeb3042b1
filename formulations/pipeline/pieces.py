r"""What may be useful: bounds on the contents of device groups, before any column is made.

A *piece* is a device group with the layers it may hold, seen as a step from one node to another
of a line of boundaries; a plan is a path of pieces, one per device group.

1. Knapsack bound. With multiplier :math:`\lambda \ge 0` on memory row ``i``,
   :math:`X \ge \sum_{layers} \min_k (x_k + \lambda m_{ki}) - \lambda (capacity - \min transient)`.
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

_MARGIN = 1e-9  # relative; float64 sums of this kind err by less than 1e-14


@dataclass(frozen=True, slots=True)
class Fixed:
    """What a device group costs before it holds any layer."""

    measures: IntArray  # [D] ticks
    tail_ticks: int
    memory: IntArray  # [R] bytes
    capacity_bytes: int

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
    fixed: Fixed, options: Sequence[Options], counts: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Lower bounds ``[pieces]`` on X (infinite: cannot fit) and best multipliers ``[pieces, R]``.

    ``counts`` is ``[pieces, kinds]``: how many slots of each kind a piece has.
    """
    lower = np.full(len(counts), float(fixed.ticks))
    multipliers = np.zeros((len(counts), len(fixed.memory)))
    used = [kind for kind in range(len(options)) if counts[:, kind].any()]
    if not used or any(not len(options[kind].strategies) for kind in used):
        return np.full(len(counts), math.inf), multipliers
    counts = counts[:, used]
    chosen = [options[kind] for kind in used]
    transient = min(int(o.transient.min()) for o in chosen)
    for row, base in enumerate(fixed.memory.tolist()):
        budget = fixed.capacity_bytes - base - transient
        rates = _slopes(chosen, row)
        reduced = np.stack(
            [
                (o.ticks[:, None] + o.memory[:, row][:, None] * rates[None, :]).min(axis=0)
                for o in chosen
            ]
        )
        dual = counts @ reduced - budget * rates[None, :]
        best = dual.argmax(axis=1)
        value = dual[np.arange(len(counts)), best] + fixed.ticks
        lower = np.maximum(lower, np.ceil(value - _MARGIN * (1.0 + np.abs(value))))
        multipliers[:, row] = rates[best]
        lightest = np.array([int(o.memory[:, row].min()) for o in chosen])
        lower[counts @ lightest > budget] = math.inf
    return lower, multipliers


def _slopes(options: Sequence[Options], row: int) -> FloatArray:
    """All exchange rates (ticks per byte) between two options of a kind, and 0."""
    parts = [np.zeros(1)]
    for option in options:
        ticks, memory = option.ticks, option.memory[:, row]
        slower = ticks[:, None] - ticks[None, :]
        lighter = memory[None, :] - memory[:, None]
        a, b = np.nonzero((slower > 0) & (lighter > 0))
        parts.append(slower[a, b] / lighter[a, b])
    return np.unique(np.concatenate(parts))


def greedy_filling(
    fixed: Fixed,
    options: Sequence[Options],
    counts: IntArray,
    multiplier: FloatArray,
    tail_weight: int,
) -> Filling | None:
    """A content that fits: the bound's choice, made lighter if need be, then sped up slot by slot.

    ``counts`` is ``[kinds]``; None where even the lightest choice of each kind does not fit.
    """
    kinds = [kind for kind, count in enumerate(counts.tolist()) for _ in range(count)]
    for rates in (multiplier, np.full_like(multiplier, 1e6)):
        start = {
            kind: int(
                np.lexsort((o.memory.sum(axis=1), o.ticks + (o.memory * rates).sum(axis=1)))[0]
            )
            for kind, o in enumerate(options)
            if counts[kind]
        }
        choice = [start[kind] for kind in kinds]
        memory = fixed.memory + sum(
            (options[kind].memory[k] for kind, k in zip(kinds, choice, strict=True)),
            np.zeros_like(fixed.memory),
        )
        transient = max(int(options[kind].transient[k]) for kind, k in start.items())
        if int(memory.max()) + transient <= fixed.capacity_bytes:
            break
    else:
        return None
    measures, value = fixed.measures.copy(), 0
    for kind, k in zip(kinds, choice, strict=True):
        o = options[kind]
        peak = (memory - o.memory[k] + o.memory).max(axis=1) + np.maximum(transient, o.transient)
        fits = np.flatnonzero(peak <= fixed.capacity_bytes)
        best = int(fits[np.lexsort((o.value[fits], o.ticks[fits]))[0]])
        memory = memory - o.memory[k] + o.memory[best]
        transient = max(transient, int(o.transient[best]))
        measures = measures + o.measures[best]
        value += int(o.value[best])
    layers = int(measures.sum()) - fixed.ticks
    return Filling(measures, fixed.tail_ticks + (value - layers) // tail_weight)


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


def caps(lower: FloatArray, cutoff: int | None, tail_part: int, weight: int) -> FloatArray:
    """``[p, nodes, nodes]`` largest X of each piece in a solution below the cutoff.

    From ``X + others + weight * max(X, bottleneck) + tail_part <= cutoff - 1``; minus infinity
    where the piece is on no path or its own bound exceeds the cap.
    """
    others = other_pieces(lower)
    usable = np.isfinite(others)
    if cutoff is None:
        return np.where(usable, math.inf, -math.inf)
    bottleneck = least_bottleneck(lower)
    if not math.isfinite(bottleneck):
        return np.full(lower.shape, -math.inf)
    room = np.where(usable, cutoff - 1 - tail_part - np.where(usable, others, 0.0), -math.inf)
    cap = np.where(
        room >= (1 + weight) * bottleneck, np.floor(room / (1 + weight)), room - weight * bottleneck
    )
    return np.where(lower <= cap, cap, -math.inf)
