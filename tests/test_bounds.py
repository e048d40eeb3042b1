"""Bounds never exceed the optimum, for any multipliers, and never overflow into a wrong one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ilp_parallel.baselines.two_level_dp import two_level_dp
from ilp_parallel.bounds import (
    Multipliers,
    lagrangian_bound,
    lagrangian_multipliers,
    memory_shortfall,
    work_bound,
)
from ilp_parallel.problems.pipeline import PipelineInstance
from tests.bruteforce import brute_force
from tests.strategies import random_instance

SEEDS = st.integers(0, 2**32 - 1)
COSTS = ("forward_ticks", "backward_ticks", "tail_ticks")
FIXED = ("fixed_forward_ticks", "fixed_backward_ticks", "fixed_tail_ticks", "cut_ticks")


def one_class(seed: int, schedule: str | None = None) -> PipelineInstance:
    rng = np.random.default_rng(seed)
    schedule = schedule or str(rng.choice(["1f1b", "gpipe"]))
    return random_instance(rng, classes=1, reshard=False, schedule=schedule)


def random_multipliers(instance: PipelineInstance, rng: np.random.Generator) -> Multipliers:
    levels = len(np.unique(instance.transient_bytes[0, instance.allowed[0]]))

    def rows() -> tuple[tuple[int, ...], ...]:
        drawn = rng.integers(0, int(rng.choice([1, 5, 10**6])), (instance.stages, levels))
        return tuple(tuple(row) for row in drawn.tolist())

    return Multipliers(
        int(rng.integers(1, 100)),
        rows(),
        int(rng.integers(-1000, 3000)),
        int(rng.integers(1, 100)),
        rows(),
    )


def scaled(instance: PipelineInstance, factor: int) -> PipelineInstance:
    """All times multiplied; the optimum is multiplied too."""
    return replace(instance, **{name: getattr(instance, name) * factor for name in COSTS + FIXED})


@given(SEEDS)
@settings(max_examples=200, deadline=None)
def test_any_multipliers_give_a_bound(seed: int) -> None:
    instance = one_class(seed)
    optimum = brute_force(instance)
    if optimum is None:
        return
    rng = np.random.default_rng(seed)
    for _ in range(5):
        assert lagrangian_bound(instance, random_multipliers(instance, rng)) <= optimum


@given(SEEDS)
@settings(max_examples=100, deadline=None)
def test_zero_costs_and_one_microbatch(seed: int) -> None:
    for instance in (replace(one_class(seed), microbatches=1), scaled(one_class(seed), 0)):
        optimum = brute_force(instance)
        if optimum is None:
            continue
        assert work_bound(instance) <= optimum
        assert memory_shortfall(instance) is None
        multipliers = lagrangian_multipliers(instance)
        assert multipliers is not None
        assert lagrangian_bound(instance, multipliers) <= optimum


@given(SEEDS)
@settings(max_examples=100, deadline=None)
def test_shortfall_only_where_nothing_fits(seed: int) -> None:
    rng = np.random.default_rng(seed)
    instance = one_class(seed)
    tight = replace(instance, capacity_bytes=instance.capacity_bytes // int(rng.integers(1, 5)))
    if memory_shortfall(tight) is not None:
        assert brute_force(tight) is None


def test_shortfall_is_found() -> None:
    """Without room for a single layer the witness says so."""
    instance = one_class(0)
    full = replace(
        instance,
        capacity_bytes=instance.fixed_bytes.copy(),
        state_bytes=instance.state_bytes + 1,
    )
    shortfall = memory_shortfall(full)
    assert shortfall is not None
    assert shortfall.placeable == (0,) * instance.stages


@given(SEEDS)
@settings(max_examples=100, deadline=None)
def test_multipliers_help_or_do_no_harm(seed: int) -> None:
    """The Lagrangian bound is exact where memory and tails do not matter on one stage."""
    instance = one_class(seed, "1f1b")
    if instance.stages > 1 or instance.policies is not None:
        return
    free = replace(
        instance,
        capacity_bytes=np.full(1, 10**6),
        tail_ticks=instance.tail_ticks * 0,
        min_layers=np.full(1, instance.layers),
        max_layers=np.full(1, instance.layers),
    )
    multipliers = lagrangian_multipliers(free)
    if multipliers is not None:
        assert lagrangian_bound(free, multipliers) == brute_force(free)


@given(SEEDS)
@settings(max_examples=60, deadline=None)
def test_large_numbers_do_not_overflow(seed: int) -> None:
    """Steps of a thousand years in microseconds, memory of exabytes."""
    factor = 2**34
    instance = scaled(one_class(seed), factor)
    memory = ("state_bytes", "activation_bytes", "transient_bytes", "fixed_bytes", "capacity_bytes")
    instance = replace(instance, **{n: getattr(instance, n) * 2**40 for n in memory})
    optimum = two_level_dp(instance)
    if optimum is None:
        return
    assert 0 <= work_bound(instance) <= optimum.numerator
    assert memory_shortfall(instance) is None
    multipliers = lagrangian_multipliers(instance)
    assert multipliers is not None
    assert 0 <= lagrangian_bound(instance, multipliers) <= optimum.numerator


@pytest.mark.parametrize(
    "change",
    [
        {"layer_price": 2**62},
        {"layer_price": -(2**62)},
        {"layer_price": 2**70},
        {"sum_denominator": 2**70},
        {"peak_denominator": 2**70},
        {"sum_denominator": 0},
        {"peak_denominator": -1},
        {"sum_part": ()},
        {"peak_part": ((2**70,),)},
        {"peak_part": ((-1,),)},
    ],
)
@pytest.mark.parametrize("factor", [0, 1])
def test_unusable_multipliers_are_refused(change: dict[str, object], factor: int) -> None:
    instance = scaled(one_class(3), factor)
    good = lagrangian_multipliers(instance)
    assert good is not None
    with pytest.raises(ValueError, match="multiplier"):
        lagrangian_bound(instance, replace(good, **change))  # type: ignore[arg-type]
