"""Every formulation finds what brute force finds, and says infeasible where there is nothing."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from formulations import PIPELINE, PIPELINE_CHOICE
from formulations.pipeline.interval import Interval
from formulations.pipeline.monolithic import common_divisor
from ilp_parallel.problems.pipeline import PipelineInstance, evaluate
from ilp_parallel.solvers.outcome import SolveOptions
from ilp_parallel.solvers.registry import SOLVERS, get_solver
from tests.bruteforce import brute_force
from tests.strategies import instances, random_instance

HIGHS = get_solver("highs")


def check(name: str, instance: PipelineInstance, optimum: int | None) -> None:
    """The formulation's optimum, decoded and evaluated, is the given one."""
    formulation = PIPELINE[name]
    outcome = HIGHS(formulation.build(instance), SolveOptions())
    assert outcome.status == ("infeasible" if optimum is None else "optimal")
    assert outcome.objective == optimum
    if outcome.values is not None:
        evaluation = evaluate(instance, formulation.decode(instance, outcome.values))
        assert evaluation.feasible
        assert evaluation.numerator == optimum


@given(instances)
@settings(max_examples=60, deadline=None)
def test_every_formulation_equals_brute_force(instance: PipelineInstance) -> None:
    optimum = brute_force(instance)
    for name, formulation in PIPELINE.items():
        if formulation.refuses(instance) is None:
            check(name, instance, optimum)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "interleaved"])
@pytest.mark.parametrize("classes", [1, 2])
@pytest.mark.parametrize("reshard", [False, True])
@pytest.mark.parametrize("policies", [False, True])
def test_interval_on_every_kind(schedule: str, classes: int, reshard: bool, policies: bool) -> None:
    rng = np.random.default_rng([len(schedule), classes, reshard, policies])
    seen = 0
    for _ in range(12):
        instance = random_instance(
            rng, schedule=schedule, classes=classes, reshard=reshard, policies=policies
        )
        optimum = brute_force(instance)
        check("interval", instance, optimum)
        seen += optimum is not None
    assert seen  # not only infeasible ones


@pytest.mark.parametrize("seed", range(15))
def test_folded_chunks(seed: int) -> None:
    """An interleaved schedule with equal chunks folded into one has other weights only."""
    plain = random_instance(np.random.default_rng(seed), schedule="1f1b")
    folded = replace(plain, schedule="interleaved", fold=3)
    optimum = brute_force(folded)
    for name, formulation in PIPELINE.items():
        if formulation.refuses(folded) is None:
            check(name, folded, optimum)


@pytest.mark.parametrize("seed", range(80))
def test_memory_in_bytes(seed: int) -> None:
    """Realistic magnitudes, on which float solvers have cut off optima of weaker models."""
    rng = np.random.default_rng(seed)
    plain = random_instance(rng, policies=False)
    unit = int(rng.integers(10**6, 10**9))
    instance = replace(
        plain,
        state_bytes=plain.state_bytes * unit,
        activation_bytes=plain.activation_bytes * unit,
        transient_bytes=plain.transient_bytes * unit,
        fixed_bytes=plain.fixed_bytes * unit,
        capacity_bytes=plain.capacity_bytes * unit + int(rng.integers(0, unit)),
    )
    optimum = brute_force(instance)
    for name, formulation in PIPELINE.items():
        if formulation.refuses(instance) is None:
            check(name, instance, optimum)


@given(instances)
@settings(max_examples=60, deadline=None)
def test_cutoff_keeps_exactly_what_is_below_it(instance: PipelineInstance) -> None:
    optimum = brute_force(instance)
    if optimum is None:
        return
    interval = PIPELINE["interval"]
    above = HIGHS(interval.build(instance, optimum + 1), SolveOptions())
    assert above.objective == optimum
    assert above.values is not None
    decoded = interval.decode(instance, above.values, optimum + 1)
    assert evaluate(instance, decoded).numerator == optimum
    at = HIGHS(interval.build(instance, optimum), SolveOptions())
    assert at.objective is None or at.objective >= optimum


BATCH = 10


@pytest.mark.parametrize("batch", range(20))
def test_every_formulation_on_every_solver(batch: int) -> None:
    """200 instances: every pair of formulation and solver finds what brute force finds."""
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        instance = random_instance(np.random.default_rng(seed), policies=seed % 5 == 0)
        optimum = brute_force(instance)
        for formulation in PIPELINE.values():
            if formulation.refuses(instance) is None:
                program = formulation.build(instance)
                for name in SOLVERS:
                    outcome = get_solver(name)(program, SolveOptions())
                    where = f"seed {seed}: {formulation.name} on {name}"
                    assert outcome.status == ("infeasible" if optimum is None else "optimal"), where
                    assert outcome.objective == optimum, where


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("base", ["interval", "flow"])
def test_monolithic_is_the_best_of_its_parts(seed: int, base: str) -> None:
    rng = np.random.default_rng(seed)
    parts = [
        random_instance(rng, schedule=schedule, policies=False)
        for schedule in ("1f1b", "gpipe", "interleaved")
    ]
    formulation = type(PIPELINE_CHOICE["monolithic"])(PIPELINE[base])
    common = common_divisor(parts)
    optima = [brute_force(part) for part in parts]
    scaled = [
        value * common // part.objective.divisor
        for value, part in zip(optima, parts, strict=True)
        if value is not None
    ]
    outcome = HIGHS(formulation.build(parts), SolveOptions())
    assert outcome.objective == min(scaled, default=None)
    if outcome.values is not None:
        index, solution = formulation.decode(parts, outcome.values)
        assert evaluate(parts[index], solution).numerator == optima[index]


def test_refusals_carry_a_code() -> None:
    rng = np.random.default_rng(0)
    tied = random_instance(rng, policies=True)
    mixed = random_instance(rng, classes=2, policies=False, reshard=False, schedule="1f1b")
    resharded = random_instance(rng, classes=1, policies=False, reshard=True, schedule="1f1b")
    for name, instance, code in (
        ("assignment", tied, "NEEDS_FREE_STRATEGIES"),
        ("flow", tied, "NEEDS_FREE_STRATEGIES"),
        ("counts", mixed, "NEEDS_ONE_CLASS"),
        ("counts", resharded, "NEEDS_NO_RESHARDING"),
    ):
        reason = PIPELINE[name].refuses(instance)
        assert reason is not None
        assert reason.split(": ")[0] == code
    assert PIPELINE_CHOICE["monolithic"].refuses([mixed, tied]) is None


def test_interval_refuses_free_chunk_sizes() -> None:
    fixed = random_instance(np.random.default_rng(1), schedule="interleaved", policies=False)
    assert Interval().refuses(fixed) is None
    free = replace(fixed, max_layers=fixed.max_layers + 1)
    reason = Interval().refuses(free)
    assert reason is not None
    assert reason.startswith("NEEDS_FIXED_CHUNKS")


def test_columns_have_bounds_and_names_are_distinct() -> None:
    instance = random_instance(np.random.default_rng(3), policies=False, classes=1, reshard=False)
    for formulation in PIPELINE.values():
        program = formulation.build(instance)
        assert np.all(program.upper < 2**40)
        assert np.all(program.lower <= program.upper)
        names = [family.name for family in itertools.chain(program.columns, program.rows)]
        assert len(names) == len(set(names))
