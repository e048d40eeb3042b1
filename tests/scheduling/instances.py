"""Random small instances of the schedule family, and their optimum by enumeration."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import strategies as st

from ilp_parallel.problems.schedule import DeadlockError, ScheduleInstance, evaluate, replay
from ilp_parallel.scheduling.placements import StageNumbers, instance_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ilp_parallel.scheduling.placements import PlacementClass


@st.composite
def instances(draw: st.DrawFn, sizes: tuple[tuple[int, int], ...]) -> ScheduleInstance:
    """Plain instances with unequal stages; memory from too little to plenty."""
    p, m = draw(st.sampled_from(sizes))

    def each(low: int, high: int, count: int = p) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=count, max_size=count))

    w_memory = each(0, 2)
    b_memory = [draw(st.integers(-1 if w else 0, 2)) for w in w_memory]  # -1: B takes memory
    f_memory = [b + w for b, w in zip(b_memory, w_memory, strict=True)]
    numbers = StageNumbers(
        each(1, 4),
        each(1, 4),
        draw(st.one_of(st.none(), st.just(each(1, 4)))),
        each(0, 3, p - 1),
        f_memory,
        [-b for b in b_memory],
        [-w for w in w_memory],
    )
    return instance_of(numbers, p, m, each(2, 8))


def lane_orders(instance: ScheduleInstance, device: int) -> list[tuple[int, ...]]:
    """Every order of a device that keeps F before B before W of each pair."""
    pairs = instance.pairs
    mine = np.flatnonzero(instance.stage_device[instance.pair_stage] == device).tolist()

    def grow(done: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if len(done) == instance.kinds * len(mine):
            yield done
        for pair in mine:
            kind = sum(op % pairs == pair for op in done)
            if kind < instance.kinds:
                yield from grow((*done, kind * pairs + pair))

    return list(grow(()))


def best_by_enumeration(instance: ScheduleInstance) -> int | None:
    """Shortest makespan over all orders of all devices: starts as early as possible are best."""
    best = None
    for orders in product(*(lane_orders(instance, d) for d in range(instance.devices))):
        try:
            found = evaluate(instance, replay(instance, orders))
        except DeadlockError:
            continue
        if found.feasible and (best is None or found.makespan_ticks < best):
            best = found.makespan_ticks
    return best


@st.composite
def folded_instances(draw: st.DrawFn) -> ScheduleInstance:
    """Several stages per device: looped, V-shaped and bidirectional placements, unequal stages."""
    kinds: tuple[PlacementClass, ...] = ("loop", "v", "bidirectional")
    placement = draw(st.sampled_from(kinds))
    p, m = draw(st.sampled_from(((2, 2), (2, 4), (3, 2))))
    length = p if placement == "bidirectional" else 2 * p

    def each(low: int, high: int, count: int) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=count, max_size=count))

    weight = draw(st.one_of(st.none(), st.just(each(1, 4, length))))
    cuts = each(0, 3, length - 1)
    numbers = StageNumbers(each(1, 4, length), each(1, 4, length), weight, cuts)
    return instance_of(numbers, p, m, each(4, 12, p), placement, 2)
