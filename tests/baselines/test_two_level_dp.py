"""The dynamic program against brute force and against HiGHS on the interval formulation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from formulations import PIPELINE
from ilp_parallel.baselines.two_level_dp import refuses, two_level_dp
from ilp_parallel.errors import InputError
from ilp_parallel.problems.pipeline import PipelineInstance, evaluate
from ilp_parallel.solvers.outcome import SolveOptions
from ilp_parallel.solvers.registry import get_solver
from tests.bruteforce import brute_force
from tests.strategies import instances, random_instance

HIGHS = get_solver("highs")
INTERVAL = PIPELINE["interval"]


def numerator(instance: PipelineInstance, cutoff: int | None = None) -> int | None:
    """Optimum of the dynamic program, its solution judged by ``evaluate``."""
    found = two_level_dp(instance, cutoff)
    if found is None:
        return None
    evaluation = evaluate(instance, found.solution)
    assert evaluation.feasible
    assert evaluation.numerator == found.numerator
    return found.numerator


def applicable(instance: PipelineInstance) -> bool:
    """Whether both methods accept it."""
    return refuses(instance) is None and INTERVAL.refuses(instance) is None


def test_agreement_on_random_instances(seeds: range) -> None:
    """As many instances as ``--fuzz`` asks for."""
    solved = infeasible = 0
    for seed in seeds:
        instance = random_instance(np.random.default_rng([7, seed]))
        optimum = brute_force(instance)
        if not applicable(instance):
            assert instance.chunks > 1
            continue
        assert numerator(instance) == optimum, seed
        outcome = HIGHS(INTERVAL.build(instance), SolveOptions())
        assert outcome.status == ("infeasible" if optimum is None else "optimal"), seed
        assert outcome.objective == optimum, seed
        solved += optimum is not None
        infeasible += optimum is None
    assert len(seeds) < 50 or (solved and infeasible)


@pytest.mark.parametrize("policies", [False, True])
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_layers_of_several_kinds(seed: int, classes: int, policies: bool) -> None:
    rng = np.random.default_rng([12, seed, classes, policies])
    feasible = 0
    for _ in range(60):
        schedule = str(rng.choice(["1f1b", "gpipe"]))
        instance = random_instance(
            rng, schedule=schedule, classes=classes, policies=policies, reshard=False
        )
        optimum = brute_force(instance)
        assert numerator(instance) == optimum
        if optimum is not None:
            feasible += 1
            assert numerator(instance, optimum + 1) == optimum
            assert numerator(instance, optimum) is None
    assert feasible


@given(instances)
@settings(max_examples=100, deadline=None)
def test_cutoff_keeps_exactly_what_is_strictly_below(instance: PipelineInstance) -> None:
    if refuses(instance) is not None:
        return
    optimum = brute_force(instance)
    if optimum is None:
        assert numerator(instance, 10**9) is None
        return
    assert numerator(instance, optimum + 1) == optimum
    assert numerator(instance, optimum) is None


@pytest.mark.parametrize("policies", [False, True])
@pytest.mark.parametrize("seed", range(25))
def test_folded_weights(seed: int, policies: bool) -> None:
    rng = np.random.default_rng([3, seed])
    plain = random_instance(rng, schedule="1f1b", reshard=False, policies=policies)
    folded = replace(plain, schedule="interleaved", fold=3)
    assert numerator(folded) == brute_force(folded)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("policies", [False, True])
def test_one_microbatch_and_zero_costs(schedule: str, policies: bool) -> None:
    rng = np.random.default_rng([len(schedule), policies])
    for _ in range(15):
        drawn = random_instance(rng, schedule=schedule, policies=policies)
        single = replace(drawn, microbatches=1)
        assert numerator(single) == brute_force(single)
        free = replace(
            drawn,
            forward_ticks=drawn.forward_ticks * 0,
            backward_ticks=drawn.backward_ticks * 0,
            tail_ticks=drawn.tail_ticks * 0,
        )
        assert numerator(free) == brute_force(free)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("policies", [False, True])
def test_large_numbers_stay_exact(schedule: str, policies: bool) -> None:
    """Times and bytes scaled to real sizes scale the optimum, without a rounding."""
    rng = np.random.default_rng([11, len(schedule), policies])
    ticks, size = 10**9 + 7, 10**9 + 9
    compared = 0
    for _ in range(20):
        small = random_instance(rng, schedule=schedule, policies=policies, reshard=False)
        large = replace(
            small,
            **{name: getattr(small, name) * ticks for name in TIMES},
            **{name: getattr(small, name) * size for name in SIZES},
        )
        optimum = brute_force(small)
        assert numerator(large) == (None if optimum is None else optimum * ticks)
        compared += optimum is not None
    assert compared


TIMES = (
    "forward_ticks",
    "backward_ticks",
    "tail_ticks",
    "fixed_forward_ticks",
    "fixed_backward_ticks",
    "fixed_tail_ticks",
    "cut_ticks",
)
SIZES = ("state_bytes", "activation_bytes", "transient_bytes", "fixed_bytes", "capacity_bytes")


def test_refusals_carry_a_code() -> None:
    rng = np.random.default_rng(1)
    chunked = random_instance(rng, schedule="interleaved", reshard=False, policies=False)
    assert refuses(chunked) is None
    free = replace(chunked, max_layers=chunked.max_layers + 1)
    resharded = random_instance(rng, schedule="interleaved", reshard=True, policies=False)
    for instance, code in (
        (free, "CHUNK_SIZES_NOT_FIXED"),
        (resharded, "RESHARDING_BETWEEN_CHUNKS"),
    ):
        with pytest.raises(InputError, match=code):
            two_level_dp(instance)
