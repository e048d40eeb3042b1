"""Zero-bubble orders and split backwards, against the definition and what the papers claim."""

from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ilp_parallel import schedule_bounds as bounds
from ilp_parallel.schedules import BACKWARD, FORWARD, WEIGHT, OperationOrder, placed
from ilp_parallel.simulate import StageTimes, run
from ilp_parallel.zero_bubble import ZERO_BUBBLE, ZeroBubble, zero_bubble_order

seeds = st.integers(0, 2**32 - 1)
schedules = st.sampled_from(ZERO_BUBBLE)


def orders_of(schedule: ZeroBubble, p: int, m: int) -> tuple[OperationOrder, ...]:
    return tuple(zero_bubble_order(schedule, p, m, s) for s in range(p))


def random_times(rng: np.random.Generator, schedule: ZeroBubble) -> StageTimes:
    """Stage times; zeros and dominating delays included."""
    p = int(rng.integers(1, 6))
    virtual = p * (2 if schedule == "zb-v" else 1)
    forward, backward, weight = rng.integers(0, int(rng.choice([1, 3, 30])), (3, virtual))
    cuts = rng.integers(0, int(rng.choice([1, 3, 90])), virtual - 1)
    return StageTimes(p, forward, backward, cuts, weight, "v" if schedule == "zb-v" else "loop")


def even_times(schedule: ZeroBubble, p: int, f: int, b: int, w: int) -> StageTimes:
    virtual = p * (2 if schedule == "zb-v" else 1)
    full = [np.full(virtual, ticks, dtype=np.int64) for ticks in (f, b, w)]
    nothing = np.zeros(virtual - 1, dtype=np.int64)
    return StageTimes(p, full[0], full[1], nothing, full[2], "v" if schedule == "zb-v" else "loop")


def longest_path(times: StageTimes, orders: tuple[OperationOrder, ...]) -> int:
    """Makespan by recursion over the definition of the model."""
    assert times.weight_ticks is not None
    last, cuts = len(times.forward_ticks) - 1, times.cut_ticks
    ticks = (times.forward_ticks, times.backward_ticks, times.weight_ticks)
    where = placed(times.placement, times.stages, times.chunks)
    before: dict[tuple[int, int, int], tuple[int, int, int] | None] = {}
    for s, order in enumerate(orders):
        previous = None
        for kind, i, c in zip(order.kind, order.microbatch, order.chunk, strict=True):
            operation = (int(kind), int(where[s, c]), int(i))
            before[operation], previous = previous, operation

    @cache
    def end(operation: tuple[int, int, int]) -> int:
        kind, j, i = operation
        previous = before[operation]
        start = 0 if previous is None else end(previous)
        if kind == WEIGHT:
            start = max(start, end((BACKWARD, j, i)))
        elif kind == BACKWARD and j == last:
            start = max(start, end((FORWARD, j, i)))
        elif kind == BACKWARD:
            start = max(start, end((BACKWARD, j + 1, i)) + int(cuts[j]))
        elif j > 0:
            start = max(start, end((FORWARD, j - 1, i)) + int(cuts[j - 1]))
        return start + int(ticks[kind][j])

    return max(end(operation) for operation in before)


def makespan(times: StageTimes, m: int, orders: tuple[OperationOrder, ...]) -> int:
    return max(int(line.end_ticks.max()) for line in run(times, m, orders))


@given(schedules, st.integers(1, 8), st.integers(1, 24))
def test_every_operation_once_and_in_the_order_f_b_w(schedule: ZeroBubble, p: int, m: int) -> None:
    chunks = 2 if schedule == "zb-v" else 1
    for order in orders_of(schedule, p, m):
        done: Counter[tuple[int, int]] = Counter()
        for kind, i, c in zip(order.kind, order.microbatch, order.chunk, strict=True):
            assert done[int(i), int(c)] == kind  # forward first, then backward, then weight
            done[int(i), int(c)] += 1
        assert len(done) == chunks * m
        assert set(done.values()) == {3}


@settings(max_examples=200)
@given(seeds, schedules)
def test_makespan_equals_the_definition_and_is_above_its_bound(
    seed: int, schedule: ZeroBubble
) -> None:
    rng = np.random.default_rng(seed)
    times, m = random_times(rng, schedule), int(rng.integers(1, 12))
    orders = orders_of(schedule, times.stages, m)
    length = makespan(times, m, orders)
    assert length == longest_path(times, orders)
    assert bounds.work_bound(times, m) <= length


@settings(max_examples=300)
@given(st.integers(1, 9), st.integers(0, 12), st.lists(st.integers(0, 9), min_size=3, max_size=3))
def test_h1_idles_by_the_formula_of_the_paper(p: int, more: int, parts: list[int]) -> None:
    """``(p - 1)(F + B - W)`` for W <= F, B, with p alive, as many as on 1F1B's first stage."""
    w, f, b = parts[0], parts[0] + parts[1], parts[0] + parts[2]
    m = p + more
    orders = orders_of("zb-h1", p, m)
    length = makespan(even_times("zb-h1", p, f, b, w), m, orders)
    assert length == m * (f + b + w) + (p - 1) * (f + b - w)
    for order in orders:
        alive = np.cumsum(np.choose(order.kind, (1, 0, -1)))
        assert alive.max() == p


@given(st.integers(1, 9), st.integers(0, 20), st.integers(1, 30))
def test_v_has_no_bubble_where_all_three_are_equal(p: int, more: int, ticks: int) -> None:
    m = 2 * p - 1 + more
    times = even_times("zb-v", p, ticks, ticks, ticks)
    for s, line in enumerate(run(times, m, orders_of("zb-v", p, m))):
        assert int(line.start_ticks[0]) == s * ticks
        assert int(line.end_ticks[-1]) == (s + 6 * m) * ticks  # busy all the time between
        alive = np.cumsum(np.choose(line.order.kind, (1, 0, -1)))
        assert alive.max() <= 2 * p


def test_an_order_of_the_wrong_kind_is_refused() -> None:
    orders = orders_of("zb-h1", 2, 2)
    times = even_times("zb-h1", 2, 1, 1, 1)
    whole = StageTimes(2, times.forward_ticks, times.backward_ticks, times.cut_ticks)
    with pytest.raises(ValueError, match="not complete"):
        run(whole, 2, orders)
    with pytest.raises(ValueError, match="two chunks"):
        placed("v", 2, 1)
    with pytest.raises(ValueError, match="group 3 of 2"):
        zero_bubble_order("zb-v", 2, 2, 3)
