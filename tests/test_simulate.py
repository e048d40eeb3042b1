"""The simulator against the definition, and the proven bounds against the simulator."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ilp_parallel import schedule_bounds as bounds
from ilp_parallel.problems.pipeline import PipelineSolution, evaluate
from ilp_parallel.schedules import OperationOrder, in_flight_rows, operation_order
from ilp_parallel.simulate import StageTimes, run, simulate, stage_times
from tests.strategies import random_instance

if TYPE_CHECKING:
    from ilp_parallel.problems.pipeline import PipelineInstance, Schedule
    from ilp_parallel.simulate import Timeline

seeds = st.integers(0, 2**32 - 1)


def random_times(rng: np.random.Generator, *, chunks: int = 1) -> tuple[StageTimes, int]:
    """Stage times and a number of microbatches; zeros and dominating delays included."""
    p = int(rng.integers(1, 7))
    m = p * int(rng.integers(1, 5)) if chunks > 1 else int(rng.integers(1, 20))
    work, delay = int(rng.choice([1, 3, 10, 100])), int(rng.choice([1, 3, 30, 300]))
    forward = rng.integers(0, work, p * chunks)
    backward = rng.integers(0, 2 * work, p * chunks)
    return StageTimes(p, forward, backward, rng.integers(0, delay, p * chunks - 1)), m


def orders_of(
    schedule: Schedule, times: StageTimes, microbatches: int
) -> tuple[OperationOrder, ...]:
    p, v = times.stages, times.chunks
    return tuple(operation_order(schedule, p, v, microbatches, s) for s in range(p))


def makespan(timelines: tuple[Timeline, ...]) -> int:
    return max(int(line.end_ticks[-1]) for line in timelines)


def simulated(schedule: Schedule, times: StageTimes, microbatches: int) -> int:
    return makespan(run(times, microbatches, orders_of(schedule, times, microbatches)))


def random_order(
    rng: np.random.Generator, p: int, m: int, in_flight: list[int]
) -> tuple[OperationOrder, ...]:
    """Some order without deadlock (one chunk) that respects limits on microbatches in flight."""
    did: list[list[tuple[bool, int]]] = [[] for _ in range(p)]
    done: set[tuple[bool, int, int]] = set()
    while len(done) < 2 * p * m:
        ready = [
            (False, s, i)
            for s in range(p)
            for i in range(m)
            if (False, s, i) not in done
            and (s == 0 or (False, s - 1, i) in done)
            and sum(1 if not b else -1 for b, _ in did[s]) < in_flight[s]
        ] + [
            (True, s, i)
            for s in range(p)
            for i in range(m)
            if (True, s, i) not in done
            and ((True, s + 1, i) in done if s < p - 1 else (False, s, i) in done)
        ]
        backward, s, i = ready[int(rng.integers(len(ready)))]
        done.add((backward, s, i))
        did[s].append((backward, i))
    return tuple(
        OperationOrder(
            np.array([b for b, _ in lane]),
            np.array([i for _, i in lane]),
            np.zeros(2 * m, dtype=np.int64),
        )
        for lane in did
    )


def random_plan(rng: np.random.Generator) -> tuple[PipelineInstance, PipelineSolution]:
    """A random instance whose in-flight tables are those of its schedule, and a random solution."""
    drawn = random_instance(rng)
    rows = in_flight_rows(drawn.schedule, drawn.stages, drawn.chunks, drawn.microbatches)
    instance = dataclasses.replace(drawn, in_flight=rows)
    bars = rng.choice(np.arange(1, instance.layers), instance.virtual_stages - 1, replace=False)
    sizes = np.diff([0, *sorted(bars.tolist()), instance.layers]).tolist()
    chosen = rng.integers(0, instance.strategies, instance.layers).tolist()
    return instance, PipelineSolution(tuple(sizes), tuple(chosen))


# --- the simulator ---------------------------------------------------------------------------


def reference_makespan(
    times: StageTimes, microbatches: int, orders: tuple[OperationOrder, ...]
) -> int:
    """Longest path by recursion over the definition of the model."""
    last, cuts = len(times.forward_ticks) - 1, times.cut_ticks
    before: dict[tuple[bool, int, int], tuple[bool, int, int] | None] = {}
    for s, order in enumerate(orders):
        previous = None
        for b, i, c in zip(order.backward, order.microbatch, order.chunk, strict=True):
            operation = (bool(b), int(c) * times.stages + s, int(i))
            before[operation], previous = previous, operation

    @cache
    def end(operation: tuple[bool, int, int]) -> int:
        backward, j, i = operation
        previous = before[operation]
        start = 0 if previous is None else end(previous)
        if backward and j == last:
            start = max(start, end((False, j, i)))
        elif backward:
            start = max(start, end((True, j + 1, i)) + int(cuts[j]))
        elif j > 0:
            start = max(start, end((False, j - 1, i)) + int(cuts[j - 1]))
        return start + int((times.backward_ticks if backward else times.forward_ticks)[j])

    return max(end((True, j, i)) for j in range(last + 1) for i in range(microbatches))


@settings(max_examples=200)
@given(seeds, st.sampled_from(["1f1b", "gpipe", "interleaved"]))
def test_makespan_equals_the_definition(seed: int, schedule: Schedule) -> None:
    rng = np.random.default_rng(seed)
    chunks = int(rng.integers(2, 4)) if schedule == "interleaved" else 1
    times, m = random_times(rng, chunks=chunks)
    orders = orders_of(schedule, times, m)
    assert makespan(run(times, m, orders)) == reference_makespan(times, m, orders)


@settings(max_examples=200)
@given(seeds)
def test_makespan_of_random_orders_equals_the_definition(seed: int) -> None:
    rng = np.random.default_rng(seed)
    times, _ = random_times(rng)
    m = int(rng.integers(1, 6))
    orders = random_order(rng, times.stages, m, [m] * times.stages)
    assert makespan(run(times, m, orders)) == reference_makespan(times, m, orders)


@settings(max_examples=300)
@given(seeds)
def test_stage_times_are_those_of_the_evaluation(seed: int) -> None:
    instance, solution = random_plan(np.random.default_rng(seed))
    times, evaluation = stage_times(instance, solution), evaluate(instance, solution)
    p = instance.stages
    out, into = np.append(instance.cut_ticks, 0), np.concatenate(([0], instance.cut_ticks))
    for s in range(p):
        assert (times.forward_ticks + out)[s::p].sum() == evaluation.forward_ticks[s]
        assert (times.backward_ticks + into)[s::p].sum() == evaluation.backward_ticks[s]


@settings(max_examples=300)
@given(seeds)
def test_memory_curve_stays_below_the_evaluation(seed: int) -> None:
    instance, solution = random_plan(np.random.default_rng(seed))
    evaluation, simulation = evaluate(instance, solution), simulate(instance, solution)
    for s, curve in enumerate(simulation.memory):
        assert curve.peak_bytes <= evaluation.memory_bytes[s]
        assert np.all(np.diff(curve.times_ticks) >= 0)
        standing = evaluation.state_bytes[s] + int(instance.fixed_bytes[s])
        assert curve.bytes_held[-1] == standing
    without = dataclasses.replace(instance, transient_bytes=0 * instance.transient_bytes)
    for s, curve in enumerate(simulate(without, solution).memory):
        assert curve.peak_bytes == evaluate(without, solution).memory_bytes[s]


@settings(max_examples=300)
@given(seeds)
def test_operations_do_not_overlap_and_tails_follow(seed: int) -> None:
    instance, solution = random_plan(np.random.default_rng(seed))
    simulation, evaluation = simulate(instance, solution), evaluate(instance, solution)
    for line in simulation.timelines:
        assert np.all(line.start_ticks[1:] >= line.end_ticks[:-1])
        assert np.all(line.start_ticks <= line.end_ticks)
        assert line.start_ticks[0] >= 0
    assert simulation.tail_ticks == evaluation.tail_ticks
    assert simulation.makespan_ticks == simulation.finish_ticks[0]
    assert simulation.step_ticks <= simulation.serial_step_ticks


@settings(max_examples=300)
@given(seeds)
def test_objective_covers_the_simulation(seed: int) -> None:
    """GPipe always; 1F1B but for delta. Interleaved: the objective is an estimate."""
    instance, solution = random_plan(np.random.default_rng(seed))
    objective = evaluate(instance, solution).objective_ticks
    simulation, times = simulate(instance, solution), stage_times(instance, solution)
    if instance.schedule == "gpipe":
        assert simulation.serial_step_ticks <= objective
    elif instance.schedule == "1f1b":
        tail = max(simulation.tail_ticks)
        upper = bounds.one_f_one_b_upper_bound(times, instance.microbatches)
        assert simulation.serial_step_ticks <= upper + tail
        assert upper + tail >= objective


def test_long_pipeline_is_simulated_whole() -> None:
    times = StageTimes(64, np.full(64, 3), np.full(64, 6), np.zeros(63, dtype=np.int64))
    assert simulated("1f1b", times, 1536) == (1536 + 63) * 9


def test_bad_orders_are_refused() -> None:
    times = StageTimes(2, np.array([1, 1]), np.array([1, 1]), np.array([0]))
    first, second = orders_of("1f1b", times, 2)
    backwards_first = OperationOrder(~second.backward, second.microbatch, second.chunk)
    with pytest.raises(ValueError, match="deadlock"):
        run(times, 2, (first, backwards_first))
    twice = OperationOrder(first.backward, np.zeros(4, dtype=np.int64), first.chunk)
    with pytest.raises(ValueError, match="group 0 is not complete"):
        run(times, 2, (twice, second))
    with pytest.raises(ValueError, match="1 orders for 2"):
        run(times, 2, (first,))


def test_bad_shapes_are_refused() -> None:
    instance, solution = random_plan(np.random.default_rng(1))
    with pytest.raises(ValueError, match="virtual stages"):
        simulate(instance, PipelineSolution((*solution.sizes, 1), solution.strategies))
    with pytest.raises(ValueError, match="layers"):
        simulate(instance, PipelineSolution(solution.sizes, solution.strategies[1:]))


# --- the bounds ------------------------------------------------------------------------------


@settings(max_examples=3000)
@given(seeds)
def test_1f1b_lies_between_its_bounds(seed: int) -> None:
    times, m = random_times(np.random.default_rng(seed))
    upper = bounds.one_f_one_b_upper_bound(times, m)
    assert bounds.lower_bound(times, "1f1b", m) <= simulated("1f1b", times, m) <= upper


@settings(max_examples=500)
@given(seeds)
def test_gpipe_is_exact(seed: int) -> None:
    times, m = random_times(np.random.default_rng(seed))
    assert simulated("gpipe", times, m) == bounds.gpipe_makespan(times, m)
    assert bounds.work_bound(times, m) <= bounds.lower_bound(times, "gpipe", m)


@settings(max_examples=500)
@given(seeds)
def test_interleaved_is_at_least_the_work_bound(seed: int) -> None:
    rng = np.random.default_rng(seed)
    times, m = random_times(rng, chunks=int(rng.integers(2, 4)))
    assert bounds.lower_bound(times, "interleaved", m) <= simulated("interleaved", times, m)


@settings(max_examples=400)
@given(seeds)
def test_general_bounds_hold_for_any_order(seed: int) -> None:
    """Random orders within random limits on microbatches in flight."""
    rng = np.random.default_rng(seed)
    times, _ = random_times(rng)
    m = int(rng.integers(1, 7))
    in_flight = rng.integers(1, m + 1, times.stages).tolist()
    length = makespan(run(times, m, random_order(rng, times.stages, m, in_flight)))
    assert bounds.work_bound(times, m) <= length
    assert bounds.in_flight_bound(times, m, in_flight) <= length


@settings(max_examples=300)
@given(seeds)
def test_even_pipeline_meets_both_bounds(seed: int) -> None:
    """Equal stages, no delay: lower and upper bound coincide with (m + p - 1)(F + B)."""
    rng = np.random.default_rng(seed)
    p, m = int(rng.integers(1, 9)), int(rng.integers(1, 30))
    f, b = rng.integers(0, 50, 2).tolist()
    times = StageTimes(p, np.full(p, f), np.full(p, b), np.zeros(p - 1, dtype=np.int64))
    exact = (m + p - 1) * (f + b)
    assert bounds.lower_bound(times, "1f1b", m) == exact
    assert bounds.one_f_one_b_upper_bound(times, m) == exact == simulated("1f1b", times, m)


def test_zigzag_pays_delays_that_the_other_bounds_miss() -> None:
    """A slow first link: one period of two microbatches costs its round trip."""
    times = StageTimes(4, np.full(4, 1), np.full(4, 2), np.array([50, 0, 0]))
    m, in_flight = 400, [4, 3, 2, 1]
    others = max(bounds.work_bound(times, m), bounds.in_flight_bound(times, m, in_flight))
    exact = simulated("1f1b", times, m)
    assert 0.99 * exact < bounds.zigzag_bound(times, m) <= exact
    assert others < 0.6 * exact


def test_zigzag_is_no_bound_for_other_orders() -> None:
    """With the same limits in flight another order beats 1F1B, so the bound is 1F1B's alone."""
    times = StageTimes(3, np.array([0, 1, 0]), np.array([0, 1, 0]), np.array([100, 0]))
    m, nothing = 30, np.zeros(60, dtype=np.int64)
    eager = OperationOrder(np.tile([False, True], m), np.repeat(np.arange(m), 2), nothing)
    first = operation_order("1f1b", 3, 1, m, 0)
    length = makespan(run(times, m, (first, eager, eager)))
    assert length < bounds.zigzag_bound(times, m) <= simulated("1f1b", times, m)


def test_delta_is_needed() -> None:
    """A slow forward before fast stages: without delta the upper bound would be wrong."""
    nothing = np.zeros(2, dtype=np.int64)
    times = StageTimes(3, np.array([0, 2, 0]), np.array([1, 0, 0]), nothing)
    assert simulated("1f1b", times, 2) == 6
    objective = int((times.forward_ticks + times.backward_ticks).sum()) + 2
    assert objective < 6 <= bounds.one_f_one_b_upper_bound(times, 2)


@settings(max_examples=60)
@given(seeds)
def test_zigzag_rate_is_exact(seed: int) -> None:
    """Theorem 5: the distance to the simulation does not grow with the microbatches."""
    rng = np.random.default_rng(seed)
    p = int(rng.integers(1, 5))
    forward, backward = rng.integers(0, 30, (2, p))
    times = StageTimes(p, forward, backward, rng.integers(0, 90, p - 1))
    short, long = (
        simulated("1f1b", times, m) - bounds.zigzag_bound(times, m) for m in (100, 100 + 12 * 50)
    )
    one_microbatch = bounds.zigzag_bound(times, 1)
    assert short <= 2 * one_microbatch
    assert long <= 2 * one_microbatch


@given(
    st.integers(1, 5), st.integers(2, 4), st.integers(1, 4), st.integers(0, 9), st.integers(0, 9)
)
def test_interleaved_even_pipeline_is_as_the_objective_says(
    p: int, v: int, rounds: int, f: int, b: int
) -> None:
    times = StageTimes(p, np.full(p * v, f), np.full(p * v, b), np.zeros(p * v - 1, dtype=np.int64))
    assert simulated("interleaved", times, rounds * p) == (rounds * p * v + p - 1) * (f + b)


def test_one_chunk_bounds_refuse_more() -> None:
    times, m = random_times(np.random.default_rng(0), chunks=2)
    for bound in (bounds.zigzag_bound, bounds.gpipe_makespan, bounds.one_f_one_b_upper_bound):
        with pytest.raises(ValueError, match="one chunk"):
            bound(times, m)
