"""Bounds never exceed an optimum, whatever the multipliers, and refute no feasible instance."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ilp_parallel.bounds import (
    Multipliers,
    best_combined_bound,
    best_lagrangian_bound,
    lagrangian_bound,
    lagrangian_multipliers,
    memory_shortfall,
    work_bound,
    work_floor,
)
from ilp_parallel.configuration import Configuration
from ilp_parallel.costs.model import CostModel
from ilp_parallel.instances import InstanceBuilder
from ilp_parallel.problems.pipeline import Policy
from ilp_parallel.spaces import Pins, enumerate_configurations, get_space
from tests.bruteforce import brute_force
from tests.costs.cases import gpt
from tests.small_jobs import LONG_JOB, node_with
from tests.strategies import random_instance

if TYPE_CHECKING:
    from ilp_parallel.problems.pipeline import PipelineInstance, Schedule

KINDS = ["1f1b", "gpipe", "interleaved", "folded"]


def sample(rng: np.random.Generator, kind: str, *, classes: int = 1) -> PipelineInstance:
    """A random instance of the kind; some have one microbatch, or times of zero."""
    schedule = "1f1b" if kind == "folded" else kind
    drawn = random_instance(rng, schedule=schedule, classes=classes)
    if kind == "folded":
        drawn = replace(drawn, schedule="interleaved", fold=3)
    if kind != "interleaved" and rng.random() < 0.2:
        drawn = replace(drawn, microbatches=1)
    if rng.random() < 0.2:
        drawn = replace(drawn, forward_ticks=drawn.forward_ticks * 0)
        drawn = replace(drawn, backward_ticks=drawn.backward_ticks * 0)
    if rng.random() < 0.2:
        drawn = replace(drawn, tail_ticks=drawn.tail_ticks * 50)
    return drawn


def random_multipliers(rng: np.random.Generator, good: Multipliers) -> Multipliers:
    """Any multipliers of the same shape, zeros and far too large ones among them."""
    shape = len(good.peak_part), len(good.peak_part[0])

    def rows() -> tuple[tuple[int, ...], ...]:
        high = int(rng.choice([1, 10, 10_000]))
        drawn = rng.integers(0, high + 1, shape)
        return tuple(tuple(row) for row in drawn.tolist())

    price = int(rng.integers(-20, 200))
    return Multipliers(int(rng.integers(1, 50)), rows(), price, int(rng.integers(1, 50)), rows())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("classes", [1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_work_bound(kind: str, classes: int, seed: int) -> None:
    rng = np.random.default_rng([1, seed, classes, KINDS.index(kind)])
    feasible = 0
    for _ in range(40):
        instance = sample(rng, kind, classes=classes)
        optimum = brute_force(instance)
        if optimum is not None:
            assert work_bound(instance) <= optimum
            feasible += 1
    assert feasible


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("classes", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_lagrangian_bound_and_shortfall(kind: str, classes: int, seed: int) -> None:
    rng = np.random.default_rng([2, seed, KINDS.index(kind), classes])
    applied = 0
    for _ in range(50):
        instance = sample(rng, kind, classes=classes)
        good = lagrangian_multipliers(instance)
        if good is None:
            assert instance.chunks > 1 or not instance.allowed.any(axis=1).all()
            continue
        optimum = brute_force(instance)
        if optimum is None:
            continue
        applied += 1
        assert memory_shortfall(instance) is None
        assert best_lagrangian_bound(instance) == (lagrangian_bound(instance, good), good)
        assert lagrangian_bound(instance, good) <= optimum
        combined = best_combined_bound(instance)
        assert combined is not None
        assert combined[0] == lagrangian_bound(instance, combined[1]) <= optimum
        for _ in range(4):
            drawn = random_multipliers(rng, good)
            assert lagrangian_bound(instance, drawn) <= optimum
            assert lagrangian_bound(instance, replace(drawn, peak_part=())) <= optimum
    assert applied or kind == "interleaved"


def test_memory_makes_the_lagrangian_bound_better() -> None:
    """Where memory binds it sees what the work bound does not."""
    rng = np.random.default_rng(5)
    gains = 0
    for _ in range(200):
        instance = random_instance(rng, classes=1, reshard=False, policies=False, schedule="1f1b")
        multipliers = lagrangian_multipliers(instance)
        if multipliers is not None and memory_shortfall(instance) is None:
            gains += lagrangian_bound(instance, multipliers) > work_bound(instance)
    assert gains > 20


def test_one_microbatch_makes_the_combined_bound_better() -> None:
    """Where a layer is either quick or without a tail, least time and least tail never meet."""
    rng = np.random.default_rng(11)
    gains = losses = 0
    for _ in range(200):
        drawn = random_instance(rng, classes=1, reshard=False, policies=False, schedule="1f1b")
        instance = replace(
            drawn, microbatches=1, tail_ticks=drawn.forward_ticks.max() * 2 - drawn.forward_ticks
        )
        separate, combined = best_lagrangian_bound(instance), best_combined_bound(instance)
        if separate is not None and combined is not None:
            gains += combined[0] > separate[0]
            losses += combined[0] < separate[0]
    assert gains > 20
    assert losses  # neither replaces the other


def heavy(capacity: int = 23) -> PipelineInstance:
    """Six layers of 10 bytes and one transient of 3 on three stages; the capacity decides."""
    drawn = random_instance(
        np.random.default_rng(0), classes=1, reshard=False, policies=False, schedule="1f1b"
    )
    groups, menu = 3, drawn.strategies
    zeros = np.zeros((1, menu), dtype=np.int64)
    return replace(
        drawn,
        stages=groups,
        layer_class=np.zeros(6, dtype=np.int64),
        allowed=np.ones((1, menu), dtype=np.bool_),
        state_bytes=zeros + 10,
        activation_bytes=zeros,
        transient_bytes=zeros + 3,
        fixed_forward_ticks=np.zeros(groups, dtype=np.int64),
        fixed_backward_ticks=np.zeros(groups, dtype=np.int64),
        fixed_tail_ticks=np.zeros(groups, dtype=np.int64),
        fixed_bytes=np.zeros(groups, dtype=np.int64),
        cut_ticks=np.zeros(groups - 1, dtype=np.int64),
        capacity_bytes=np.full(groups, capacity),
        min_layers=np.ones(groups, dtype=np.int64),
        max_layers=np.full(groups, 4),
        in_flight=(np.array([[1]]),) * groups,
    )


def test_shortfall_says_how_many_layers_fit() -> None:
    assert memory_shortfall(heavy()) is None
    short = memory_shortfall(replace(heavy(), capacity_bytes=np.array([23, 22, 23])))
    assert short is not None
    assert short.placeable == (2, 1, 2)
    assert short.layers == 6


def test_where_not_even_one_layer_fits() -> None:
    """The bound says so as well: it is far above any numerator."""
    instance = heavy(capacity=12)
    multipliers = lagrangian_multipliers(instance)
    assert multipliers is not None
    assert lagrangian_bound(instance, multipliers) > 2**60
    assert memory_shortfall(instance) is not None


def test_shortfall_only_where_nothing_fits() -> None:
    """Capacities cut at random: the witness is right whenever it is given, and often given."""
    rng = np.random.default_rng(8)
    refuted = 0
    for _ in range(150):
        drawn = sample(rng, str(rng.choice(["1f1b", "gpipe", "folded"])))
        tight = replace(drawn, capacity_bytes=drawn.capacity_bytes // int(rng.integers(1, 5)))
        if memory_shortfall(tight) is not None:
            assert brute_force(tight) is None
            refuted += 1
    assert refuted > 10


@pytest.mark.parametrize("seed", range(10))
def test_lagrangian_bound_is_exact_on_one_stage_with_room(seed: int) -> None:
    """Without tails and with memory to spare nothing is lost."""
    one = replace(heavy(), layer_class=np.zeros(4, dtype=np.int64))
    menu = np.random.default_rng(seed).integers(0, 50, (2, 1, one.strategies))
    single = replace(
        one,
        stages=1,
        forward_ticks=menu[0],
        backward_ticks=menu[1],
        tail_ticks=menu[0] * 0,
        fixed_forward_ticks=np.array([seed]),
        fixed_backward_ticks=np.array([3]),
        fixed_tail_ticks=np.array([0]),
        fixed_bytes=np.array([0]),
        cut_ticks=np.zeros(0, dtype=np.int64),
        capacity_bytes=np.array([10**6]),
        min_layers=np.array([4]),
        max_layers=np.array([4]),
        in_flight=(np.array([[1]]),),
    )
    multipliers = lagrangian_multipliers(single)
    assert multipliers is not None
    assert lagrangian_bound(single, multipliers) == brute_force(single)


@st.composite
def priced_configurations(
    draw: st.DrawFn,
) -> tuple[InstanceBuilder, Configuration]:
    """A configuration of a small job with long sequences; most have context ranks.

    Few strategies are left to choose from, so that brute force sees all their mixes.
    """
    model = replace(
        gpt(layers=draw(st.integers(2, 4)), hidden=1024, heads=draw(st.sampled_from([2, 4]))),
        learned_positions=0,
    )
    node = node_with(draw(st.sampled_from([2.0, 2.6, 3.0, 4.0, 80.0])))
    cluster = replace(
        node, nodes=draw(st.sampled_from([1, 2])), devices_per_node=draw(st.sampled_from([2, 4]))
    )
    length = draw(st.sampled_from([2048, 4096, 8192]))
    job = replace(LONG_JOB, global_batch=draw(st.sampled_from([1, 2, 4])), sequence_length=length)
    recompute = draw(st.sampled_from(["none", "core_attn+layernorm", "mlp", "full"]))
    zeros = draw(st.sampled_from([("0", "1"), ("1", "3-regather"), ("2-scatter", "3-keep")]))
    fixed = [*(f"zero={zero}" for zero in ("0", *zeros)), "recompute=none"]
    pins = Pins.parse((*fixed, f"recompute={recompute}"), ())
    space = get_space(draw(st.sampled_from(["megatron", "mixed"])))
    schedules = draw(st.sampled_from([("1f1b", "interleaved"), ("gpipe",)]))
    found = enumerate_configurations(model, cluster, job, space, pins, schedules)
    kept = [item for item in found if isinstance(item, Configuration)]
    split = [item for item in kept if item.context > 1]
    builder = InstanceBuilder(CostModel(model, cluster, job), space, pins)
    return builder, draw(st.sampled_from(draw(st.sampled_from([split or kept, kept]))))


@given(priced=priced_configurations())
@settings(max_examples=150, deadline=None)
def test_bounds_of_real_configurations_against_brute_force(
    priced: tuple[InstanceBuilder, Configuration],
) -> None:
    """Floor, work and Lagrangian bound of configurations with context ranks, in that order."""
    builder, configuration = priced
    instance = builder.build(configuration)
    floor = builder.work_floor(configuration)
    assert (floor is None) == (not instance.allowed.any())
    if floor is None:
        return
    work = work_bound(instance)
    assert floor <= instance.objective.ticks(work)
    found = best_lagrangian_bound(instance)
    assert found is not None
    optimum = brute_force(only_allowed(instance))
    if optimum is None:
        return
    assert memory_shortfall(instance) is None
    assert work <= optimum
    assert found[0] <= optimum
    assert lagrangian_bound(instance, found[1]) == found[0]
    combined = best_combined_bound(instance)
    assert combined is not None
    assert combined[0] == lagrangian_bound(instance, combined[1]) <= optimum


def only_allowed(instance: PipelineInstance) -> PipelineInstance:
    """The same with the allowed strategies alone, so that there are few to try."""
    keep = np.flatnonzero(instance.allowed[0])
    tables = ("allowed", "forward_ticks", "backward_ticks", "tail_ticks")
    sizes = ("state_bytes", "activation_bytes", "transient_bytes")
    place = {int(k): i for i, k in enumerate(keep)}
    policies = instance.policies and tuple(
        Policy(place[p.prefix], p.prefix_layers, place[p.rest])
        for p in instance.policies
        if p.prefix in place and p.rest in place
    )
    return replace(
        instance,
        **{name: getattr(instance, name)[:, keep] for name in (*tables, *sizes)},
        strategy_names=tuple(instance.strategy_names[k] for k in keep),
        policies=policies,
    )


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "interleaved"])
def test_floor_is_the_work_bound_without_cuts_and_fixed_tails(schedule: Schedule) -> None:
    """Equal where nothing but layers takes time; below it where anything else does."""
    rng = np.random.default_rng([9, KINDS.index(schedule)])
    for _ in range(60):
        drawn = sample(rng, "folded" if schedule == "interleaved" else schedule)
        zeros = {
            name: getattr(drawn, name) * 0
            for name in ("fixed_forward_ticks", "fixed_backward_ticks", "fixed_tail_ticks")
        }
        bare = replace(drawn, **zeros, cut_ticks=drawn.cut_ticks * 0)
        if not bare.allowed.any():
            continue
        time = (bare.forward_ticks + bare.backward_ticks)[bare.allowed]
        choices = list(zip(time.tolist(), bare.tail_ticks[bare.allowed].tolist(), strict=True))
        floor = work_floor(bare.objective, [(bare.layers, choices)], bare.stages, 0)
        assert floor == work_bound(bare)
        assert floor <= work_bound(drawn)


@pytest.mark.parametrize("factor", [0, 1])
@pytest.mark.parametrize(
    "change",
    [
        {"layer_price": 2**61},
        {"layer_price": -(2**62)},
        {"layer_price": 10**30},
        {"sum_denominator": 2**70},
        {"peak_denominator": 2**70},
        {"sum_denominator": 0},
        {"peak_denominator": -1},
        {"sum_part": ()},
        {"sum_part": ((0,), (0,))},
        {"peak_part": ((0, 0),) * 3},
        {"peak_part": ((2**62,), (0,), (0,))},
        {"peak_part": ((0,), (-1,), (0,))},
    ],
)
def test_unusable_multipliers_are_refused(change: dict[str, object], factor: int) -> None:
    """Nothing that a forged certificate may state overflows into a wrong bound."""
    instance = heavy(capacity=43)
    instance = replace(
        instance,
        forward_ticks=instance.forward_ticks * factor,
        backward_ticks=instance.backward_ticks * factor,
        tail_ticks=instance.tail_ticks * factor,
    )
    good = lagrangian_multipliers(instance)
    assert good is not None
    with pytest.raises(ValueError, match="multiplier"):
        lagrangian_bound(instance, replace(good, **change))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["1f1b", "gpipe", "folded"])
@pytest.mark.parametrize(("ticks", "size"), [(10**9, 10**11), (10**12, 10**13)])
def test_large_numbers_stay_exact(kind: str, ticks: int, size: int) -> None:
    """Real magnitudes and beyond: the bounds of a scaled instance are below its optimum."""
    rng = np.random.default_rng([6, KINDS.index(kind)])
    times = ("forward_ticks", "backward_ticks", "tail_ticks")
    fixed = ("fixed_forward_ticks", "fixed_backward_ticks", "fixed_tail_ticks", "cut_ticks")
    sizes = ("state_bytes", "activation_bytes", "transient_bytes", "fixed_bytes", "capacity_bytes")
    for _ in range(40):
        small = replace(sample(rng, kind), reshard_forward_ticks=None, reshard_backward_ticks=None)
        large = replace(
            small,
            **{name: getattr(small, name) * ticks for name in (*times, *fixed)},
            **{name: getattr(small, name) * size for name in sizes},
        )
        optimum = brute_force(small)
        if optimum is None:
            continue
        assert work_bound(large) <= optimum * ticks
        assert memory_shortfall(large) is None
        for best in (best_lagrangian_bound, best_combined_bound):
            found = best(large)
            if found is not None:
                assert lagrangian_bound(large, found[1]) == found[0] <= optimum * ticks
