r"""Exact Pareto knapsack of one device group that holds so many layers of each kind.

Where resharding is free and the objective has one bottleneck, the content of a device group is a
multiset of items: strategies of a kind of layer. With :math:`x_k` time, :math:`\tau_k` tail,
:math:`\mu_k` memory and :math:`\theta_k` transient of item ``k``, :math:`I_q` the items of kind
``q`` and :math:`N_q` its layers, wanted are the contents

.. math::
    \min \Big(\sum_k n_k x_k, \; \sum_k n_k \tau_k\Big), \quad
    \sum_{k \in I_q} n_k = N_q, \quad \sum_k n_k \mu_k + \max_{n_k > 0} \theta_k \le A

that no other content dominates *in the plan*. With the floor :math:`\phi` (every plan of interest
has a maximal tail at least this large) and the joint value
:math:`v(c) = \omega X_c + \gamma \max(\tau_c, \phi)`, a content ``c`` is useless if some content
``g`` has :math:`X_g \le X_c` and :math:`v(g) \le v(c)`: swapping ``g`` in saves at least
:math:`\omega (X_c - X_g)` of time and adds at most
:math:`\gamma \max(0, \tau_g - \max(\tau_c, \phi))` of tail. (:math:`\omega = 1`, for the sum of
times; with a single stage its time is the bottleneck too and :math:`\omega = 1 + w`.) So beyond the
time of a known content only contents with a smaller joint value are wanted.

For each value of the transient limit, the linear relaxation in the memory row has a multiplier
:math:`\lambda`, a base item for every kind and reduced costs :math:`r_k \ge 0`; of one kind it
mixes the base with a lighter, slower item. Contents are enumerated item by item and cut off where
the reduced costs alone exceed the window. The items of the relaxation's basis come last, in closed
form. Reduced costs are rounded down to 1/1024 tick, which only weakens
the cut-off.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ilp_parallel.baselines.pareto import pareto_rows
from ilp_parallel.baselines.relaxation import (
    FINE,
    LARGEST_REDUCED,
    Items,
    Relaxation,
    drop_dominated,
    relax,
    round_up,
    transient_levels,
)

IntArray = npt.NDArray[np.int64]
_FILTER_ABOVE = 1024
_UNLIMITED = 2**60
_UNLIMITED_JOINT = 2**60
_SCORES = 4


@dataclass(frozen=True, slots=True)
class Window:
    """Which contents can be part of a better plan.

    ``most_time`` is the largest time a stage may take; a tail up to ``free_tail`` costs nothing
    (the plan's tail floor less the fixed tail).
    """

    most_time: int
    free_tail: int
    tail_weight: int
    time_weight: int
    alone: bool = False  # the only stage: its joint value is the objective

    def joint(self, time: int, tail: int) -> int:
        """The joint value of a content."""
        return self.time_weight * time + self.tail_weight * max(tail, self.free_tail)


@dataclass(frozen=True, slots=True)
class Level:
    """Contents whose largest transient is at most one value: strategies, room, relaxations.

    There is one relaxation per score ``((S - a) time + a joint)``, a = 0..S, S = :data:`_SCORES`.
    """

    usable: IntArray
    room: int
    relaxations: tuple[Relaxation, ...]

    @property
    def reduced(self) -> IntArray:
        """[K, S + 1] reduced costs of every score."""
        return np.stack([relaxation.reduced for relaxation in self.relaxations], axis=1)

    def gaps(self, corners: IntArray) -> IntArray:
        """[corners, S + 1] what reduced costs may add up to inside each corner."""
        values = np.array([relaxation.value for relaxation in self.relaxations])
        time, joint = corners[:, :1], corners[:, 1:]
        a = np.arange(_SCORES + 1)
        limits = (_SCORES - a) * time + a * joint
        gaps: IntArray = np.minimum(limits - values + 1, LARGEST_REDUCED) * FINE
        gaps[:, 1:][corners[:, 1] >= _UNLIMITED_JOINT] = LARGEST_REDUCED * FINE
        return gaps


def stage_frontier(
    items: Items, usable: IntArray, need: IntArray, capacity: int, window: Window
) -> tuple[IntArray, IntArray]:
    """Undominated contents in the window: points [n, 2] = (time, tail) and counts [n, K]."""
    if window.alone:
        counts = _cheapest_alone(items, usable, need, capacity, window)
        return np.stack([counts @ items.time, counts @ items.tail], axis=1), counts
    usable = _without_idle_savings(items, usable, need, capacity)
    joint = window.time_weight * items.time + window.tail_weight * items.tail
    levels = _levels(items, joint, usable, need, capacity)
    known = _near_relaxations(items, need, window, levels)
    found = []
    # The most promising level first: what is found there leaves less to look for elsewhere.
    for level in sorted(levels, key=lambda level: sum(r.value for r in level.relaxations)):
        corners = _corners(known, window)
        if _level_matters(items, level, corners):
            points, counts = _enumerate(items, joint, level, need, corners)
            found.append((points, counts))
            known |= {(time, window.joint(time, tail)) for time, tail in points.tolist()}
    if not found:
        return np.zeros((0, 2), dtype=np.int64), np.zeros((0, len(items.time)), dtype=np.int64)
    points = np.concatenate([points for points, _ in found])
    counts = np.concatenate([counts for _, counts in found])
    best = pareto_rows(points)
    return points[best], counts[best]


def _levels(
    items: Items, joint: IntArray, usable: IntArray, need: IntArray, capacity: int
) -> list[Level]:
    """All transient levels at which the layers fit, with their relaxations."""
    scored = [
        replace(items, time=(_SCORES - a) * items.time + a * joint) for a in range(_SCORES + 1)
    ]
    levels = []
    for keep, room in transient_levels(items, usable, capacity):
        relaxations = [relax(score, keep, need, room) for score in scored]
        if all(relaxation is not None for relaxation in relaxations):
            known = tuple(relaxation for relaxation in relaxations if relaxation is not None)
            levels.append(Level(keep, room, known))
    return levels


def _cheapest_alone(
    items: Items, usable: IntArray, need: IntArray, capacity: int, window: Window
) -> IntArray:
    """[at most 1, K] content of the least joint value, which is all that a single stage needs."""
    joint = window.time_weight * items.time + window.tail_weight * items.tail
    nothing = np.zeros_like(joint)
    alone = replace(items, time=joint, tail=nothing)
    unlimited = Window(_UNLIMITED, 0, tail_weight=0, time_weight=1, alone=False)
    keep = drop_dominated(alone, usable)
    return stage_frontier(alone, keep, need, capacity, unlimited)[1]


def _without_idle_savings(
    items: Items, usable: IntArray, need: IntArray, capacity: int
) -> IntArray:
    """Drop items that only save memory, if the others fit whatever their mix."""
    points = np.stack([items.time, items.tail], axis=1)
    best, heaviest = [], 0
    for q in np.flatnonzero(need).tolist():
        mine = usable[items.kind[usable] == q]
        if len(mine):
            best.append(mine[pareto_rows(points[mine])])
            heaviest += int(need[q]) * int(items.memory[best[-1]].max())
    if not best:
        return usable
    kept = np.sort(np.concatenate(best))
    return kept if heaviest + int(items.transient[kept].max()) <= capacity else usable


def _near_relaxations(
    items: Items, need: IntArray, window: Window, levels: list[Level]
) -> set[tuple[int, int]]:
    """(time, joint value) of contents near the relaxations, and near what lies between two.

    Between neighbouring relaxations some layers follow one and the others the other, each with its
    share of the room: without these the steps between known contents, and so what must be
    enumerated, would be as wide as the scores are apart. (With one kind of layer only.)
    """
    known = set()
    for level in levels:
        rounded = [round_up(items, r, need, level.room) for r in level.relaxations]
        known |= {(time, window.joint(time, tail)) for time, tail in rounded}
        if len(need) > 1:
            continue
        layers = int(need[0])
        some = np.arange(layers + 1)
        mixes = [_mix(items, r, some, layers, level.room) for r in level.relaxations]
        for first, second in itertools.pairwise(mixes):
            known |= {(t, window.joint(t, u)) for t, u in (first + second[:, ::-1]).T.tolist()}
    return known


def _mix(items: Items, relaxation: Relaxation, some: IntArray, layers: int, room: int) -> IntArray:
    """[2, n] time and tail of ``some`` of the layers near a relaxation, in their share of room."""
    fast, slow = relaxation.base[0], relaxation.slow
    if slow is None:
        return np.stack([some * items.time[fast], some * items.tail[fast]])
    share = np.array([room * s // layers for s in some.tolist()], dtype=np.int64)
    saved = items.memory[fast] - items.memory[slow]
    fast_layers = np.minimum((share - some * items.memory[slow]) // saved, some)
    return np.stack(
        [
            fast_layers * items.time[fast] + (some - fast_layers) * items.time[slow],
            fast_layers * items.tail[fast] + (some - fast_layers) * items.tail[slow],
        ]
    )


def _corners(known: set[tuple[int, int]], window: Window) -> IntArray:
    """[corners, 2] largest (time, joint value) of contents that no known content can replace.

    In the order of rising time and falling joint value of the known ones, a wanted content is no
    slower than the first, or, for some known one, at least as fast as the next and of a smaller
    joint value.
    """
    stairs: list[tuple[int, int]] = []
    for time, joint in sorted(known):
        if not stairs or joint < stairs[-1][1]:
            stairs.append((time, joint))
    if not stairs:
        return np.zeros((0, 2), dtype=np.int64)
    corners = [(min(stairs[0][0], window.most_time), _UNLIMITED_JOINT)]
    ends = [time for time, _ in stairs[1:]] + [window.most_time]
    for (_, joint), end in zip(stairs, ends, strict=True):
        by_joint = (joint - 1 - window.tail_weight * window.free_tail) // window.time_weight
        corners.append((min(end, window.most_time, by_joint), joint - 1))
    return np.array(corners, dtype=np.int64)


def _inside(values: IntArray, limits: IntArray) -> npt.NDArray[np.bool_]:
    """[n] whether the values [n, w] are within all limits of some corner [corners, w]."""
    within = values[:, None, :] <= limits[None, :, :]
    return np.asarray(np.any(np.all(within, axis=2), axis=1))


def _level_matters(items: Items, level: Level, corners: IntArray) -> bool:
    """Whether a wanted content can have the largest transient of this level.

    Contents with smaller transients are found at their own level, where there is more room.
    """
    transient = items.transient[level.usable]
    largest = level.usable[transient == transient.max()]
    return bool(_inside(level.reduced[largest], level.gaps(corners)).any())


def _enumerate(
    items: Items, joint: IntArray, level: Level, need: IntArray, corners: IntArray
) -> tuple[IntArray, IntArray]:
    """All contents within the corners, dominated ones dropped where they would be many."""
    gaps, every = level.gaps(corners), level.reduced
    first = level.relaxations[0]
    reduced, gap = first.reduced, int(gaps[:, 0].max())
    basis = {*first.base, first.slow}
    wanted = level.usable[need[items.kind[level.usable]] > 0]
    others = [int(k) for k in wanted[_inside(every[wanted], gaps)] if int(k) not in basis]
    others.sort(key=lambda k: -int(reduced[k]))
    fill = _Fill(items, need, level)
    counts: IntArray = np.zeros((1, len(items.time)), dtype=np.int64)
    for k in others:
        spare = gap - counts @ reduced
        most = fill.left(counts)[:, items.kind[k]]
        if reduced[k] > 0:
            most = np.minimum(most, spare // reduced[k])
        counts = _repeat_with(counts, k, most + 1)
        counts = counts[_inside(counts @ every, gaps)]
        counts = fill.thinned(counts)
    counts = fill.completed(counts, first, int(corners[:, 0].max()))
    points = np.stack([counts @ items.time, counts @ items.tail], axis=1)
    values = np.stack([points[:, 0], counts @ joint], axis=1)
    good = _inside(values, corners)
    good &= counts @ items.memory <= level.room
    return points[good], counts[good]


def _repeat_with(counts: IntArray, k: int, options: IntArray) -> IntArray:
    """Every row ``options`` times, with 0, 1, 2, ... more layers of strategy ``k``."""
    repeated = np.repeat(counts, options, axis=0)
    first = np.repeat(np.cumsum(options) - options, options)
    repeated[:, k] += np.arange(len(repeated)) - first
    return repeated


class _Fill:
    """Partial contents [n, K] of one level, and what is left to fill."""

    def __init__(self, items: Items, need: IntArray, level: Level) -> None:
        self._items = items
        self._need = need
        self._room = level.room
        self._of_kind = (items.kind[:, None] == np.arange(len(need))).astype(np.int64)  # [K, Q]
        usable = level.usable
        self._lightest = np.array(  # [Q]
            [
                int(items.memory[usable[items.kind[usable] == q]].min()) if n else 0
                for q, n in enumerate(need.tolist())
            ]
        )

    def left(self, counts: IntArray) -> IntArray:
        """[n, Q] layers without an item."""
        left: IntArray = self._need - counts @ self._of_kind
        return left

    def thinned(self, counts: IntArray) -> IntArray:
        """Drop prefixes that cannot fit any more; where they are many, dominated ones too."""
        items, left = self._items, self.left(counts)
        counts = counts[counts @ items.memory + left @ self._lightest <= self._room]
        if len(counts) <= _FILTER_ABOVE:
            return counts
        points = np.stack([counts @ items.time, counts @ items.tail, counts @ items.memory], axis=1)
        _, group = np.unique(self.left(counts), axis=0, return_inverse=True)
        group = group.reshape(-1)
        kept = [
            rows[pareto_rows(points[rows])]
            for rows in (np.flatnonzero(group == g) for g in range(int(group.max()) + 1))
        ]
        return counts[np.concatenate(kept)]

    def completed(self, counts: IntArray, relaxation: Relaxation, limit: int) -> IntArray:
        """Fill up with the basis.

        Of the kind that mixes two, as few slow layers as fit, and more only where that cuts the
        tail; ``limit`` is the largest time.
        """
        items, counts, left = self._items, counts.copy(), self.left(counts)
        slow = relaxation.slow
        mixed = -1 if slow is None else int(items.kind[slow])
        for q, base in enumerate(relaxation.base):
            if base >= 0 and q != mixed:
                counts[:, base] += left[:, q]
        if slow is not None:
            counts = self._with_slow(counts, left[:, mixed], relaxation.base[mixed], slow, limit)
            counts[:, relaxation.base[mixed]] += self.left(counts)[:, mixed]
        return counts

    def _with_slow(
        self, counts: IntArray, left: IntArray, fast: int, slow: int, limit: int
    ) -> IntArray:
        """Every choice of the number of slow layers."""
        items = self._items
        saved = items.memory[fast] - items.memory[slow]
        excess = counts @ items.memory + left * items.memory[fast] - self._room
        fewest = np.maximum(0, -(-excess // saved))
        possible = fewest <= left
        counts, left, fewest = counts[possible], left[possible], fewest[possible]
        options = np.ones(len(counts), dtype=np.int64)
        if items.tail[slow] < items.tail[fast]:
            cost = items.time[slow] - items.time[fast]
            time = counts @ items.time + fewest * cost + left * items.time[fast]
            extra = np.maximum(0, limit - time) // cost
            options += np.minimum(extra, left - fewest)
        counts[:, slow] += fewest
        return _repeat_with(counts, slow, options)
