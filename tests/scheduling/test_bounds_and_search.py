"""Bounds never exceed the optimum; heuristics keep the rules; CP-SAT equals enumeration."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from ilp_parallel.planner_schedule import SchedulePlanner
from ilp_parallel.problems.schedule import ScheduleInstance, evaluate
from ilp_parallel.scheduling.bounds import certainly_infeasible, lower_bounds
from ilp_parallel.scheduling.named import named_schedules, placement_of
from ilp_parallel.scheduling.placements import StageNumbers, instance_of
from ilp_parallel.scheduling.search import search
from ilp_parallel.solvers.schedule_cpsat import solve_schedule
from tests.scheduling.instances import best_by_enumeration, folded_instances, instances


@settings(max_examples=40, deadline=None)
@given(instances(((2, 2), (1, 3), (1, 2))))
def test_everything_against_enumeration(instance: ScheduleInstance) -> None:
    best = best_by_enumeration(instance)
    if certainly_infeasible(instance) is not None:
        assert best is None
        return
    result = SchedulePlanner(instance, 10).run()
    exact = solve_schedule(instance, 0, 400, None, 10)
    if best is None:
        assert result.status == "infeasible"
        assert exact.proven
        assert exact.solution is None
        return
    assert all(bound.ticks <= best for bound in lower_bounds(instance))
    assert (result.status, result.objective, result.bound) == ("optimal", best, best)
    assert exact.solution is not None
    assert evaluate(instance, exact.solution).feasible
    assert exact.bound == evaluate(instance, exact.solution).makespan_ticks == best


def test_memory_that_b_takes_counts_where_all_forwards_fit() -> None:
    """The model once left memory out where every F fits, though B took more."""
    numbers = StageNumbers(1, 1, 1, 0, [0, 1], [0, 1], [0, -2])
    instance = instance_of(numbers, 2, 2, 2)
    exact = solve_schedule(instance, 0, 100, None, 10)
    assert exact.solution is not None
    assert exact.proven
    found = evaluate(instance, exact.solution)
    assert found.feasible
    assert found.makespan_ticks == exact.bound == best_by_enumeration(instance)


@settings(max_examples=40, deadline=None)
@given(instances(((2, 4), (3, 3), (3, 5), (4, 4))))
def test_bounds_stay_below_cpsat_and_schedules_keep_the_rules(instance: ScheduleInstance) -> None:
    exact = solve_schedule(instance, 0, 1000, None, 20)
    found = search(instance, 0, time.monotonic() + 0.2)
    if found is not None:
        assert evaluate(instance, found).feasible
    if exact.solution is None:
        assert found is None
        return
    least = evaluate(instance, exact.solution).makespan_ticks
    assert exact.proven
    assert all(bound.ticks <= least for bound in lower_bounds(instance))


@settings(max_examples=30, deadline=None)
@given(folded_instances())
def test_bounds_hold_for_several_stages_per_device(instance: ScheduleInstance) -> None:
    exact = solve_schedule(instance, 0, 1000, None, 20)
    if exact.solution is None:
        return
    found = evaluate(instance, exact.solution)
    assert found.feasible
    assert exact.proven
    assert all(bound.ticks <= (found.makespan_ticks or 0) for bound in lower_bounds(instance))


@pytest.mark.parametrize(
    ("placement", "expected"),
    [
        (
            "plain",
            {
                *("gpipe", "1f1b", "eager-1f1b", "zb-h1", "zb-h2"),
                *("zb-1p", "zb-2p", "zb-greedy"),
            },
        ),
        ("loop", {"interleaved", "zb-greedy"}),
        ("v", {"zb-v", "dualpipe-v", "zb-greedy"}),
        ("bidirectional", {"dualpipe", "zb-greedy"}),
    ],
)
@pytest.mark.parametrize("fused", [False, True])
def test_named_schedules_keep_all_rules_but_perhaps_memory(
    placement: str, expected: set[str], fused: bool
) -> None:
    for p, m in ((2, 4), (4, 16), (6, 24)):
        weight = None if fused else 4
        chunks = 2 if placement == "loop" else 1
        numbers = StageNumbers(5, 6, weight, 1)
        instance = instance_of(numbers, p, m, 10**6, placement, chunks)  # type: ignore[arg-type]
        assert placement_of(instance) == placement
        named = named_schedules(instance)
        assert {result.name for result in named} == expected
        assert all(result.fits for result in named)


def test_published_idle_time_of_zero_bubble_schedules() -> None:
    """(p - 1)(F + B - W) for ZB-H1 and (p - 1)(F + B + W) for 1F1B, and both at p's memory."""
    p, m, f, b, w = 6, 18, 10, 11, 8
    instance = instance_of(StageNumbers(f, b, w), p, m, 2 * p)
    makespan = {r.name: r.evaluation.makespan_ticks for r in named_schedules(instance) if r.fits}
    work = m * (f + b + w)
    assert makespan["1f1b"] == work + (p - 1) * (f + b + w)
    assert makespan["zb-h1"] == work + (p - 1) * (f + b - w)
    assert lower_bounds(instance)[0].ticks == makespan["zb-h1"]


def offloading(instance: ScheduleInstance, amount: int, ticks: int) -> ScheduleInstance:
    every = np.ones(instance.stages, dtype=np.int64)
    return replace(
        instance,
        offload_memory=amount * every,
        offload_ticks=ticks * every,
        reload_ticks=ticks * every,
    )


def test_bounds_hold_where_offload_and_recomputation_are_used() -> None:
    """What CP-SAT finds with either is no shorter than the bounds, and keeps the rules."""
    for capacity in (2, 3, 4, 6):
        plain = instance_of(StageNumbers(2, 3, 2, 1), 3, 4, capacity)
        for instance in (
            offloading(plain, 1, 1),
            offloading(plain, 2, 2),
            replace(
                plain,
                recompute_memory=np.ones(3, dtype=np.int64),
                recompute_ticks=np.full(3, 2, dtype=np.int64),
            ),
        ):
            outcome = solve_schedule(instance, 0, 200, None, 10)
            assert outcome.solution is not None
            assert outcome.bound is None
            found = evaluate(instance, outcome.solution)
            assert found.feasible
            assert found.makespan_ticks >= lower_bounds(instance)[0].ticks
