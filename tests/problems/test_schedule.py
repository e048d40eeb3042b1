"""The rules of the schedule family: each with a schedule that keeps it and one that breaks it."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ilp_parallel.problems.schedule import (
    B,
    DeadlockError,
    F,
    ScheduleSolution,
    W,
    device_orders,
    evaluate,
    replay,
)
from ilp_parallel.schedules import placed
from ilp_parallel.scheduling.placements import PlacementClass, StageNumbers, instance_of
from ilp_parallel.simulate import DeadlockError as SimulatedDeadlockError
from ilp_parallel.simulate import StageTimes, run
from ilp_parallel.zero_bubble import order_of

RANDOM_SCHEDULES = int(os.environ.get("SCHEDULES_TO_COMPARE", "300"))
"""``make check-schedules`` sets 10,000."""

TWO = instance_of(StageNumbers(2, 3, 4, 1), 2, 1, 2)
"""One microbatch on two stages: F 0-2, 3-5, B 5-8, 9-12, W 8-12 and 12-16."""
STARTS = np.array([[0, 3], [9, 5], [12, 8]])


def broken(solution: ScheduleSolution, instance: object = TWO) -> set[str]:
    found = evaluate(instance, solution)  # type: ignore[arg-type]
    return {check.name for check in found.checks if not check.passed}


def moved(kind: int, pair: int, start: int) -> ScheduleSolution:
    starts = STARTS.copy()
    starts[kind, pair] = start
    return ScheduleSolution(starts)


def test_a_right_schedule_passes_and_is_priced() -> None:
    found = evaluate(TWO, ScheduleSolution(STARTS))
    assert found.feasible
    assert found.makespan_ticks == 16
    assert [use.peak for use in found.memory] == [2, 2]


@pytest.mark.parametrize(
    ("solution", "rule"),
    [
        (ScheduleSolution(STARTS[:2]), "every_operation_once"),
        (moved(F, 0, -1), "starts_at_zero"),
        (moved(F, 1, 2), "data_dependences"),
        (moved(B, 0, 8), "data_dependences"),
        (moved(B, 1, 4), "data_dependences"),
        (moved(W, 0, 11), "data_dependences"),
    ],
)
def test_one_wrong_start_breaks_its_rule(solution: ScheduleSolution, rule: str) -> None:
    assert rule in broken(solution)


def test_two_operations_at_once_are_seen() -> None:
    instance = instance_of(StageNumbers(2, 3, 4), 1, 2, 100)
    good = ScheduleSolution(np.array([[0, 2], [4, 7], [10, 14]]))
    assert broken(good, instance) == set()
    assert broken(replace(good, start_ticks=good.start_ticks - [[0, 1], [0, 0], [0, 0]]), instance)


def test_memory_counts_from_start_to_end() -> None:
    instance = instance_of(StageNumbers(2, 3, 4), 1, 2, 3)
    one_by_one = ScheduleSolution(np.array([[0, 9], [2, 11], [5, 14]]))
    assert broken(one_by_one, instance) == set()
    together = ScheduleSolution(np.array([[0, 2], [4, 7], [10, 14]]))
    assert broken(together, instance) == {"memory"}
    # after B of the first one unit is left: F of the second fits into three
    between = ScheduleSolution(np.array([[0, 5], [2, 11], [7, 14]]))
    assert broken(between, instance) == set()


def test_offload_frees_memory_and_the_link_carries_one_transfer_at_a_time() -> None:
    numbers = StageNumbers(1, 1, 1)
    ones = np.ones(1, dtype=np.int64)
    instance = replace(
        instance_of(numbers, 1, 2, 3),
        offload_memory=2 * ones,
        offload_ticks=ones,
        reload_ticks=ones,
    )
    starts = np.array([[0, 2], [6, 3], [7, 4]])
    out, back = np.array([1, -1]), np.array([5, -1])
    good = ScheduleSolution(starts, None, out, back)
    assert broken(good, instance) == set()
    assert broken(ScheduleSolution(starts), instance) == {"memory"}
    early = replace(good, offload_start=np.array([0, -1]))
    assert broken(early, instance) == {"away_and_back_between_f_and_b"}
    late = replace(good, reload_start=np.array([6, -1]))
    assert broken(late, instance) >= {"away_and_back_between_f_and_b"}
    both = ScheduleSolution(
        np.array([[0, 1], [8, 9], [10, 11]]), None, np.array([2, 2]), np.array([5, 6])
    )
    assert "one_transfer_at_a_time" in broken(both, replace(instance, capacity=9 * ones))
    assert "offload_is_offered" in broken(good, replace(instance, offload_memory=0 * ones))


def test_recomputation_holds_less_and_takes_longer() -> None:
    ones = np.ones(1, dtype=np.int64)
    instance = replace(
        instance_of(StageNumbers(1, 1, 1), 1, 2, 3), recompute_memory=ones, recompute_ticks=2 * ones
    )
    starts = np.array([[0, 1], [2, 6], [5, 7]])
    again = np.array([True, False])
    assert broken(ScheduleSolution(starts), instance) == {"memory"}
    assert broken(ScheduleSolution(starts, again), instance) == {"memory"}
    both = ScheduleSolution(np.array([[0, 1], [2, 6], [5, 9]]), ~np.array([False, False]))
    assert broken(both, instance) == set()
    short = ScheduleSolution(np.array([[0, 1], [2, 4], [5, 9]]), ~np.array([False, False]))
    assert "one_at_a_time" in broken(short, instance)


@st.composite
def random_schedules(draw: st.DrawFn):
    """Stage times, a placement, and an order per device, mostly without a deadlock."""
    p, m = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    kinds: tuple[PlacementClass, ...] = ("plain", "loop", "v")
    placement = draw(st.sampled_from(kinds))
    chunks = 1 if placement == "plain" else 2
    v = p * chunks
    seed = draw(st.integers(0, 2**32 - 1))
    split = draw(st.booleans())
    return p, m, placement, chunks, v, seed, split


@settings(max_examples=RANDOM_SCHEDULES, deadline=None)
@given(random_schedules())
def test_the_event_simulator_agrees_to_the_tick(drawn) -> None:
    p, m, placement, chunks, v, seed, split = drawn
    random = np.random.default_rng(seed)
    f, b, w = random.integers(0, 9, (3, v))
    cut = random.integers(0, 5, v - 1)
    numbers = StageNumbers(f, b, w if split else None, cut)
    instance = instance_of(numbers, p, m, 10**6, placement, chunks)
    kinds, pairs = instance.kinds, instance.pairs
    by_group = placed("v" if placement == "v" else "loop", p, chunks)
    # a random topological order of the data dependences, now and then one that may deadlock
    rank = random.random((kinds, pairs)) + np.arange(kinds)[:, None] * (seed % 7 > 0)
    stage = instance.pair_stage
    if seed % 7 > 1:
        rank[F] += stage / v
        rank[B] += (v - stage) / v
    lists, given_orders = [], []
    for d in range(p):
        mine = np.flatnonzero(instance.stage_device[stage] == d)
        ops = [(kind, pair) for kind in range(kinds) for pair in mine.tolist()]
        ops.sort(key=lambda op: rank[op])
        lists.append([kind * pairs + pair for kind, pair in ops])
        chunk = {int(j): c for c, j in enumerate(by_group[d])}
        first = instance.first_pair
        given_orders.append(
            order_of(
                (k, pair - int(first[stage[pair]]), chunk[int(stage[pair])]) for k, pair in ops
            )
        )
    times = StageTimes(p, f, b, cut, w if split else None, "v" if placement == "v" else "loop")
    try:
        lines = run(times, m, tuple(given_orders))
    except SimulatedDeadlockError:
        with pytest.raises(DeadlockError):
            replay(instance, lists)
        return
    solution = replay(instance, lists)
    for d, line in enumerate(lines):
        ours = [int(solution.start_ticks.ravel()[op]) for op in lists[d]]
        assert ours == line.start_ticks.tolist()
    found = evaluate(instance, solution)
    assert found.feasible
    assert found.makespan_ticks == max(int(line.end_ticks[-1]) for line in lines)
    held = np.array([2, -1, -1]) if split else np.array([2, -2])
    for d in range(p):
        walk = np.cumsum([held[op // pairs] for op in lists[d]])
        assert found.memory[d].peak <= walk.max()
        if min(int(f.min()), int(b.min()), int(w.min())) > 0:
            assert found.memory[d].peak == walk.max()
            assert device_orders(instance, solution)[d] == lists[d]


def test_incomplete_and_deadlocked_orders_are_refused() -> None:
    instance = instance_of(StageNumbers(1, 1, None), 2, 1, 2)
    with pytest.raises(ValueError, match="missing"):
        replay(instance, [[0], [1, 3]])
    with pytest.raises(ValueError, match="another device"):
        replay(instance, [[0, 3], [1, 2]])
    with pytest.raises(DeadlockError):
        replay(instance, [[2, 0], [1, 3]])
