"""Bounds on the simulated step time against every plan of small instances, played through."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ilp_parallel.configuration import Configuration
from ilp_parallel.instances import fold, unfold
from ilp_parallel.problems.pipeline import PipelineInstance, PipelineSolution, Schedule, evaluate
from ilp_parallel.schedules import in_flight_rows
from ilp_parallel.simulate import simulate
from ilp_parallel.simulation.bounding import (
    simulated_bound,
    simulated_floor,
    simulated_multipliers,
)
from tests.bruteforce import all_solutions
from tests.strategies import random_instance

seeds = st.integers(0, 2**32 - 1)
schedules = st.sampled_from(["1f1b", "gpipe", "interleaved"])


def drawn(seed: int, schedule: Schedule) -> PipelineInstance:
    """At least two stages; no resharding; in flight as the schedule has it; any delays."""
    rng = np.random.default_rng(seed)
    classes = 1 if schedule == "interleaved" else None
    while True:
        found = random_instance(
            rng, schedule=schedule, reshard=False, classes=classes, max_layers=5, max_strategies=2
        )
        if found.stages > 1 and found.allowed.any(axis=1).all():
            break
    p, v = found.stages, found.chunks
    m = p * int(rng.integers(1, 5)) if v > 1 else int(rng.integers(1, 12))
    cuts = rng.integers(0, int(rng.choice([2, 30, 3000])), p * v - 1)
    rows = in_flight_rows(schedule, p, v, m)
    return dataclasses.replace(found, microbatches=m, in_flight=rows, cut_ticks=cuts)


def quickest(instance: PipelineInstance) -> int | None:
    """Least simulated step time of all plans that fit, with equal chunks where there are some."""
    v = instance.chunks
    base = fold(instance) if v > 1 else instance
    found = []
    for solution in all_solutions(base):
        whole = unfold(solution, v)
        if evaluate(instance, whole).feasible:
            found.append(simulate(instance, whole).step_ticks)
    return min(found, default=None)


@settings(max_examples=300)
@given(seeds, schedules)
def test_no_plan_beats_the_bounds(seed: int, schedule: Schedule) -> None:
    instance = drawn(seed, schedule)
    optimum = quickest(instance)
    if optimum is None:
        return
    bounds = [simulated_bound(instance, None)]
    multipliers = simulated_multipliers(instance)
    if multipliers is not None:
        bounds.append(simulated_bound(instance, multipliers))
        bounds.append(simulated_bound(instance, multipliers, exact_stages=True))
        assert bounds[1] <= bounds[2]
    assert max(bounds) <= optimum


@settings(max_examples=300)
@given(seeds, schedules)
def test_no_plan_beats_the_floor(seed: int, schedule: Schedule) -> None:
    instance = drawn(seed, schedule)
    optimum = quickest(instance)
    if optimum is None:
        return
    time = instance.forward_ticks + instance.backward_ticks
    counts = np.bincount(instance.layer_class, minlength=len(time)).tolist()
    choices = tuple(
        (n, tuple(zip(time[q][ok].tolist(), instance.tail_ticks[q][ok].tolist(), strict=True)))
        for q, (n, ok) in enumerate(zip(counts, instance.allowed, strict=True))
        if n
    )
    ends = int((instance.fixed_forward_ticks + instance.fixed_backward_ticks).sum())
    numbers = (instance.stages, 1, 1, 1, instance.microbatches, instance.chunks)
    configuration = Configuration(*numbers, False, schedule)
    assert simulated_floor(configuration, choices, ends) <= optimum


def even(schedule: Schedule, p: int, m: int, v: int, tail: int) -> PipelineInstance:
    """Equal layers, one strategy, no delays, memory for all."""
    layers, nothing = 2 * p * v, np.zeros(p * v, dtype=np.int64)
    one = np.ones((1, 1), dtype=np.int64)
    return PipelineInstance(
        stages=p,
        chunks=v,
        microbatches=m,
        schedule=schedule,
        layer_class=np.zeros(layers, dtype=np.int64),
        strategy_names=("only",),
        allowed=one > 0,
        forward_ticks=30 * one,
        backward_ticks=60 * one,
        tail_ticks=tail * one,
        state_bytes=one,
        activation_bytes=one,
        transient_bytes=one,
        fixed_forward_ticks=nothing,
        fixed_backward_ticks=nothing,
        fixed_tail_ticks=nothing[:p],
        fixed_bytes=nothing[:p],
        cut_ticks=nothing[1:],
        capacity_bytes=np.full(p, 10**6, dtype=np.int64),
        min_layers=np.full(p * v, 2 if v > 1 else 1, dtype=np.int64),
        max_layers=np.full(p * v, 2 if v > 1 else layers, dtype=np.int64),
        in_flight=in_flight_rows(schedule, p, v, m),
    )


@pytest.mark.parametrize("p", [2, 3, 8])
@pytest.mark.parametrize(("schedule", "v"), [("1f1b", 1), ("gpipe", 1), ("interleaved", 3)])
def test_bounds_meet_the_simulation_of_even_plans(schedule: Schedule, v: int, p: int) -> None:
    """With whole cycles of microbatches the bound is what the even plan takes."""
    m = 4 * p if v > 1 else 4 * p + 1
    instance = even(schedule, p, m, v, tail=5)
    solution = PipelineSolution((2,) * (p * v), (0,) * instance.layers)
    played = simulate(instance, solution).step_ticks
    assert simulated_bound(instance, simulated_multipliers(instance)) == played


def test_multipliers_of_another_shape_are_refused() -> None:
    multipliers = simulated_multipliers(even("1f1b", 2, 4, 1, 0))
    assert multipliers is not None
    with pytest.raises(ValueError, match="shape"):
        simulated_bound(even("1f1b", 3, 4, 1, 0), multipliers)
