r"""Partial contents of a device group, grown layer by layer and kept only where they may matter.

A *label* is a choice of strategies for the first few layers (slots) of a device group. It carries

* the measures :math:`\mu_r`, one per bottleneck of the objective (``F' + B'``, or ``F'`` and
  ``B'`` apart for GPipe), whose sum is ``X = F' + B'``;
* the value :math:`V = X + w \cdot \text{tail}` with the objective's tail weight ``w``;
* memory, one number per row of ``in_flight``, and the largest transient.

Dominance
---------
If label ``a`` is nowhere larger than label ``b`` in measures, value, memory rows and transient
(and equal in the strategies that resharding sees), ``b`` is not needed: exchange ``b`` by ``a``
in any solution. No bottleneck grows, ``X_a <= X_b``, and what the largest tail gains, at most
:math:`\max(0, tail_a - tail_b)`, is paid for: ``V_a <= V_b`` says
:math:`w (tail_a - tail_b) \le X_b - X_a`. The argument survives equal extensions of both.

Bound
-----
With the score :math:`z = (1-\theta) X + \theta V`, :math:`0 \le \theta \le 1`, any multiplier
:math:`\lambda \ge 0` (ticks per byte) and memory row ``i`` a completed label has

.. math::
    z \ge z_{now} + \lambda (M_i + transient) - \lambda\,capacity
      + \sum_{\text{slots to come}} \min_k (z_k + \lambda m_{ki}).

What is useful is a union of corners ``X <= a and V <= b``; a label is dropped if for each corner
some score of :data:`SCORES` must exceed the corner's own. This is evaluated in floating point with
a relative margin of 1e-9, far above the error of a few additions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Sequence

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]

SCORES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Weights theta of the value in the scores that bounds use; multiples of 1/4 are exact."""

_BLOCK = 256  # points compared at once by pareto
_MARGIN = 1e-9  # relative; float64 sums of this kind err by less than 1e-14


@dataclass(frozen=True, slots=True)
class Options:
    """Strategies one kind of slot may use; measures and value per layer."""

    strategies: IntArray  # [k]
    measures: IntArray  # [k, D] ticks
    value: IntArray  # [k] ticks
    memory: IntArray  # [k, R] bytes
    transient: IntArray  # [k] bytes

    @property
    def ticks(self) -> IntArray:
        """[k] forward plus backward time."""
        total: IntArray = self.measures.sum(axis=1)
        return total

    def score(self, theta: float) -> FloatArray:
        """[k] ``(1 - theta) X + theta V``."""
        result: FloatArray = (1.0 - theta) * self.ticks + theta * self.value
        return result

    def take(self, index: IntArray) -> Options:
        """The options at the given positions."""
        return Options(
            self.strategies[index],
            self.measures[index],
            self.value[index],
            self.memory[index],
            self.transient[index],
        )

    def undominated(self) -> Options:
        """Without options that another one can always replace."""
        points = np.column_stack([self.measures, self.value, self.memory, self.transient])
        return self.take(np.sort(pareto(points)))


@dataclass(frozen=True, slots=True)
class Labels:
    """Many labels of the same slots, as parallel arrays."""

    measures: IntArray  # [N, D] ticks
    value: IntArray  # [N] ticks
    memory: IntArray  # [N, R] bytes
    transient: IntArray  # [N] bytes
    links: IntArray  # [N, 2 v] entry and last strategy of each chunk so far; -1: not there
    choices: IntArray  # [N, slots so far] strategies

    @property
    def ticks(self) -> IntArray:
        """[N] forward plus backward time."""
        total: IntArray = self.measures.sum(axis=1)
        return total

    def take(self, index: IntArray | BoolArray) -> Labels:
        """The labels at the given positions."""
        return Labels(
            self.measures[index],
            self.value[index],
            self.memory[index],
            self.transient[index],
            self.links[index],
            self.choices[index],
        )

    def undominated(self) -> Labels:
        """Without labels that another one can always replace."""
        points = np.column_stack([self.measures, self.value, self.memory, self.transient])
        return self.take(pareto(points, link_keys(self.links)))


@dataclass(frozen=True, slots=True)
class Slot:
    """One layer to fill: its kind of options, and the chunk it opens or continues."""

    kind: int
    chunk: int
    entries: tuple[int, ...] = ()  # strategies the layer before may have, if it matters


@dataclass(frozen=True, slots=True)
class Target:
    """A number of slots that makes a column, and what is useful there, fixed parts included."""

    size: int
    corners: FloatArray  # [corners, 2] ticks: X and V at most; may be infinite
    multipliers: FloatArray  # [scores, R] ticks per byte

    @property
    def score_limits(self) -> FloatArray:
        """[corners, scores] score of each corner."""
        limits = [
            self.corners[:, round(theta)]
            if theta in (0.0, 1.0)  # keeps 0 * infinity out
            else self.corners @ np.array([1.0 - theta, theta])
            for theta in SCORES
        ]
        return np.stack(limits, axis=1)


def link_keys(links: IntArray) -> IntArray | None:
    """One number per distinct row; None if all rows are equal."""
    if len(links) == 0 or bool(np.all(links == links[0])):
        return None
    return np.unique(links, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)


def pareto(points: IntArray, key: IntArray | None = None) -> IntArray:
    """Positions of the points with no other point of equal key nowhere larger.

    Of equal points the first stays. After a lexicographic sort a point can only be dominated by
    an earlier one, so the first coordinate needs no comparison.
    """
    order = np.lexsort(points.T[::-1])
    keep = np.zeros(0, dtype=np.int64)
    for start in range(0, len(order), _BLOCK):
        block = order[start : start + _BLOCK]
        if len(keep):
            block = block[~_dominates(points, key, keep, block).any(axis=0)]
        inside = np.triu(_dominates(points, key, block, block), 1).any(axis=0)
        keep = np.concatenate([keep, block[~inside]])
    return keep


def _dominates(points: IntArray, key: IntArray | None, a: IntArray, b: IntArray) -> BoolArray:
    """[a, b] whether a dominates b, given that a comes no later in lexicographic order."""
    result = np.ones((len(a), len(b)), dtype=np.bool_)
    for coordinate in range(1, points.shape[1]):
        column = points[:, coordinate]
        result &= column[a][:, None] <= column[b][None, :]
    if key is not None:
        result &= key[a][:, None] == key[b][None, :]
    return result


def grow(
    slots: Sequence[Slot],
    options: Sequence[Options],
    start: Labels,
    targets: Sequence[Target],
    capacity_bytes: int,
    reshard_measures: IntArray | None,
) -> list[Labels]:
    """Undominated labels of every target, in the order of ``targets`` (ascending sizes).

    ``start`` is the single label of the fixed parts; ``reshard_measures`` is ``[K, K, D]``.
    """
    bounds = [_CompletionBound.of(slots, options, target, capacity_bytes) for target in targets]
    found: list[Labels] = []
    labels = start
    for position, slot in enumerate(slots[: targets[-1].size]):
        if slot.entries and reshard_measures is not None:
            labels = _fork(labels, slot)
        labels = _extend(
            labels, slot, options[slot.kind], bounds, position + 1, capacity_bytes, reshard_measures
        )
        if position + 1 == targets[len(found)].size:
            found.append(labels.take(bounds[0].admits(labels, capacity_bytes)))
            bounds = bounds[1:]
    return found


@dataclass(frozen=True, slots=True)
class _CompletionBound:
    """What the slots still to come add at least, after each number of slots."""

    target: Target
    reduced: FloatArray  # [size + 1, scores, R] ticks
    memory: IntArray  # [size + 1, R] bytes
    limits: FloatArray  # [corners, scores] ticks, margin included

    @staticmethod
    def of(
        slots: Sequence[Slot], options: Sequence[Options], target: Target, capacity_bytes: int
    ) -> _CompletionBound:
        rates = target.multipliers
        least = [
            np.stack(
                [
                    (o.score(theta)[:, None] + rate * o.memory).min(axis=0, initial=np.inf)
                    for theta, rate in zip(SCORES, rates, strict=True)
                ]
            )
            for o in options
        ]
        lightest = [o.memory.min(axis=0, initial=capacity_bytes + 1) for o in options]
        reduced = np.zeros((target.size + 1, *rates.shape))
        memory = np.zeros((target.size + 1, rates.shape[1]), dtype=np.int64)
        for position in range(target.size - 1, -1, -1):
            kind = slots[position].kind
            reduced[position] = reduced[position + 1] + least[kind]
            memory[position] = memory[position + 1] + lightest[kind]
        reduced -= rates * capacity_bytes
        limits = target.score_limits
        scale = np.abs(limits) + rates.max(axis=1) * capacity_bytes
        return _CompletionBound(target, reduced, memory, limits + _MARGIN * (1.0 + scale))

    def allows(
        self, size: int, ticks: IntArray, value: IntArray, peak: IntArray, capacity_bytes: int
    ) -> BoolArray:
        """Which labels of this size may still become useful; ``peak`` is ``[..., R]`` bytes."""
        fits: BoolArray = np.ones(ticks.shape, dtype=np.bool_)
        for row, least in enumerate(self.memory[size].tolist()):
            np.logical_and(fits, peak[..., row] <= capacity_bytes - least, out=fits)
        useful: BoolArray = np.broadcast_to(fits, (len(self.limits), *ticks.shape)).copy()
        for index, theta in enumerate(SCORES):
            score = (1.0 - theta) * ticks + theta * value
            for row, rate in enumerate(self.target.multipliers[index].tolist()):
                bound = score + rate * peak[..., row] + self.reduced[size, index, row]
                limits = self.limits[:, index].reshape(-1, *(1,) * ticks.ndim)
                np.logical_and(useful, bound <= limits, out=useful)
        result: BoolArray = np.asarray(useful.any(axis=0))
        return result

    def admits(self, labels: Labels, capacity_bytes: int) -> BoolArray:
        """Which labels of full size fit and are useful."""
        peak = labels.memory.max(axis=1) + labels.transient
        corners = self.target.corners
        inside = (labels.ticks[:, None] <= corners[:, 0]) & (labels.value[:, None] <= corners[:, 1])
        result: BoolArray = (peak <= capacity_bytes) & inside.any(axis=1)
        return result


def _fork(labels: Labels, slot: Slot) -> Labels:
    """One copy of every label per strategy the layer before the slot may have."""
    entries = np.asarray(slot.entries, dtype=np.int64)
    copies = labels.take(np.repeat(np.arange(len(labels.value)), len(entries)))
    links = copies.links.copy()
    links[:, 2 * slot.chunk] = links[:, 2 * slot.chunk + 1] = np.tile(entries, len(labels.value))
    return Labels(
        copies.measures, copies.value, copies.memory, copies.transient, links, copies.choices
    )


def _extend(
    labels: Labels,
    slot: Slot,
    options: Options,
    bounds: Sequence[_CompletionBound],
    size: int,
    capacity_bytes: int,
    reshard_measures: IntArray | None,
) -> Labels:
    """Every label with every option, pruned by the bounds and by dominance."""
    ticks = labels.ticks[:, None] + options.ticks[None, :]
    value = labels.value[:, None] + options.value[None, :]
    transient = np.maximum(labels.transient[:, None], options.transient[None, :])
    memory = labels.memory[:, None, :] + options.memory[None, :, :]
    peak = memory + transient[:, :, None]
    wanted = np.zeros(ticks.shape, dtype=np.bool_)
    for bound in bounds:
        wanted |= bound.allows(size, ticks, value, peak, capacity_bytes)
    parent, option = np.nonzero(wanted)
    chosen = options.strategies[option]
    measures = labels.measures[parent] + options.measures[option]
    worth = value[parent, option]
    links = labels.links[parent]
    if reshard_measures is not None:
        last = links[:, 2 * slot.chunk + 1]
        extra = np.where((last >= 0)[:, None], reshard_measures[last, chosen], 0)
        measures = measures + extra
        worth = worth + extra.sum(axis=1)
        links[:, 2 * slot.chunk + 1] = chosen
    return Labels(
        measures,
        worth,
        memory[parent, option],
        transient[parent, option],
        links,
        np.column_stack([labels.choices[parent], chosen]),
    ).undominated()
