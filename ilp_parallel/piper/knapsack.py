r"""The modes of one stage, exactly: a multiple-choice knapsack in unbounded integers.

.. math:: \min \sum_v c_{v,k(v)} \quad \text{subject to} \quad \sum_v h_{v,k(v)} \le H

Layers are added one by one and only partial choices are kept that no other one beats in both cost
and memory (Nemhauser and Ullmann 1969). For any multiplier lambda >= 0 a completion costs at least
its part plus the least c + lambda h of every further layer minus lambda H; lambda is the ratio at
which the linear relaxation breaks, and what cannot beat the incumbent is dropped. All comparisons
are between integers: lambda is a fraction and is multiplied out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cmp_to_key
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

Option = tuple[int, int]
"""Cost and memory of one mode."""

_State = tuple[int, int, "_State | None", int]
"""Cost, memory, the state before the last layer, and the option of the last layer."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One option per layer, and what they cost together."""

    cost: int
    picks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Swap:
    """Going from one kept option of a layer to the next: dearer, but smaller."""

    layer: int
    target: int  # option
    cost: int
    saving: int


def cheapest_choice(options: Sequence[Sequence[Option]], limit: int) -> Choice | None:
    """The cheapest choice within the limit, or None if the smallest one exceeds it."""
    kept = [_undominated(layer) for layer in options]
    first = [layer[0] for layer in kept]
    if sum(options[v][k][1] for v, k in enumerate(first)) <= limit:
        return _priced(options, first)
    if sum(options[v][layer[-1]][1] for v, layer in enumerate(kept)) > limit:
        return None
    incumbent, ratio = _rounded_relaxation(options, kept, limit)
    return _pareto_search(options, kept, (limit, ratio), incumbent)


def greedy_choice(options: Sequence[Sequence[Option]], limit: int) -> Choice | None:
    """The choice of the published program, which need not be the cheapest.

    Every layer starts with its cheapest option; swaps that save memory are made by cost per byte
    saved (ties by layer) until all fits, and none is taken back.
    """
    kept = [_undominated(layer) for layer in options]
    picks = [layer[0] for layer in kept]
    excess = sum(options[v][k][1] for v, k in enumerate(picks)) - limit
    if sum(options[v][layer[-1]][1] for v, layer in enumerate(kept)) > limit:
        return None
    for swap in _swaps(options, kept):
        if excess <= 0:
            break
        picks[swap.layer] = swap.target
        excess -= swap.saving
    return _priced(options, picks)


def _priced(options: Sequence[Sequence[Option]], picks: Sequence[int]) -> Choice:
    return Choice(sum(options[v][k][0] for v, k in enumerate(picks)), tuple(picks))


def _undominated(layer: Sequence[Option]) -> list[int]:
    """Options by rising cost and falling memory."""
    kept: list[int] = []
    for k in sorted(range(len(layer)), key=lambda k: layer[k]):
        if not kept or layer[k][1] < layer[kept[-1]][1]:
            kept.append(k)
    return kept


def _swaps(options: Sequence[Sequence[Option]], kept: Sequence[Sequence[int]]) -> list[_Swap]:
    """Steps along the lower convex hull of every layer's options, by cost per saving."""
    swaps: list[_Swap] = []
    for v, layer in enumerate(kept):
        hull: list[int] = []
        for k in layer:
            while len(hull) > 1 and not _convex(options[v], hull[-2], hull[-1], k):
                hull.pop()
            hull.append(k)
        for before, after in pairwise(hull):
            (cost, memory), (dearer, smaller) = options[v][before], options[v][after]
            swaps.append(_Swap(v, after, dearer - cost, memory - smaller))

    def by_ratio(one: _Swap, other: _Swap) -> int:
        return one.cost * other.saving - other.cost * one.saving or one.layer - other.layer

    return sorted(swaps, key=cmp_to_key(by_ratio))


def _convex(layer: Sequence[Option], a: int, b: int, c: int) -> bool:
    """Whether the slope from a to b is below that from b to c."""
    (ca, ha), (cb, hb), (cc, hc) = layer[a], layer[b], layer[c]
    return (cb - ca) * (hb - hc) < (cc - cb) * (ha - hb)


def _rounded_relaxation(
    options: Sequence[Sequence[Option]], kept: Sequence[Sequence[int]], limit: int
) -> tuple[Choice, Option]:
    """Swaps until all fits, those not needed in the end taken back; and the last ratio."""
    picks = [layer[0] for layer in kept]
    excess = sum(options[v][k][1] for v, k in enumerate(picks)) - limit
    made: list[tuple[_Swap, int]] = []
    for swap in _swaps(options, kept):
        made.append((swap, picks[swap.layer]))
        picks[swap.layer] = swap.target
        excess -= swap.saving
        if excess <= 0:
            break
    ratio = (made[-1][0].cost, made[-1][0].saving)
    for swap, before in sorted(made, key=lambda item: -item[0].cost):
        if picks[swap.layer] == swap.target and excess + swap.saving <= 0:
            picks[swap.layer] = before
            excess += swap.saving
    return _priced(options, picks), ratio


def _pareto_search(
    options: Sequence[Sequence[Option]],
    kept: Sequence[Sequence[int]],
    bound: tuple[int, Option],
    incumbent: Choice,
) -> Choice:
    limit, (rise, run) = bound  # lambda = rise / run
    order = sorted(range(len(kept)), key=lambda v: len(kept[v]) == 1)
    least_memory, least_priced = [0], [0]  # of the layers from each position on
    for v in reversed(order):
        least_memory.append(least_memory[-1] + options[v][kept[v][-1]][1])
        priced = min(run * options[v][k][0] + rise * options[v][k][1] for k in kept[v])
        least_priced.append(least_priced[-1] + priced)
    states: list[_State] = [(0, 0, None, -1)]
    for position, v in enumerate(order):
        left = len(order) - position - 1
        room = limit - least_memory[left]
        ceiling = run * incumbent.cost + rise * limit - least_priced[left]
        grown = [
            (cost + options[v][k][0], memory + options[v][k][1], state, k)
            for state in states
            for cost, memory in [state[:2]]
            for k in kept[v]
        ]
        grown.sort(key=lambda state: state[:2])
        states = []
        smallest = room + 1
        for state in grown:
            if state[1] < smallest and run * state[0] + rise * state[1] < ceiling:
                states.append(state)
                smallest = state[1]
    if not states or states[0][0] >= incumbent.cost:
        return incumbent
    return _unwound(options, order, states[0])


def _unwound(options: Sequence[Sequence[Option]], order: Sequence[int], last: _State) -> Choice:
    picks = [0] * len(order)
    state: _State | None = last
    for v in reversed(order):
        assert state is not None
        picks[v] = state[3]
        state = state[2]
    return _priced(options, picks)
