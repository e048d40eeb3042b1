"""LP values: never above the optimum, and ordered as documented."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from formulations import PIPELINE, PIPELINE_CHOICE
from formulations.pipeline.monolithic import common_divisor
from ilp_parallel.solvers.registry import get_solver
from tests.bruteforce import brute_force
from tests.strategies import random_instance

if TYPE_CHECKING:
    from ilp_parallel.problems.pipeline import PipelineInstance

HIGHS = get_solver("highs")


def relaxation(name: str, instance: PipelineInstance) -> float | None:
    return HIGHS.relaxation(PIPELINE[name].build(instance))


def tolerance(value: float) -> float:
    return 1e-6 * (1 + abs(value))


@pytest.mark.parametrize("seed", range(40))
def test_no_relaxation_exceeds_the_optimum(seed: int) -> None:
    instance = random_instance(np.random.default_rng(seed))
    optimum = brute_force(instance)
    if optimum is None:
        pytest.skip("infeasible")
    for name, formulation in PIPELINE.items():
        if formulation.refuses(instance) is None:
            value = relaxation(name, instance)
            assert value is not None
            assert value <= optimum + tolerance(optimum), name


def _without_transients(seed: int) -> PipelineInstance:
    instance = random_instance(
        np.random.default_rng(seed), classes=1, reshard=False, policies=False
    )
    return replace(instance, transient_bytes=np.zeros_like(instance.transient_bytes))


@pytest.mark.parametrize("seed", range(40))
def test_layerwise_relaxations_coincide_and_interval_is_as_strong(seed: int) -> None:
    """One class, no resharding, no transients: assignment = flow = counts <= interval."""
    instance = _without_transients(seed)
    values = [relaxation(name, instance) for name in ("assignment", "flow", "counts")]
    if values[0] is None:
        assert values == [None] * 3
        return
    assert values == pytest.approx([values[0]] * 3, rel=1e-6)
    interval = relaxation("interval", instance)
    assert interval is None or interval >= values[0] - tolerance(values[0])


@pytest.mark.parametrize("seed", range(30))
def test_interval_is_as_strong_with_resharding_and_classes(seed: int) -> None:
    instance = random_instance(np.random.default_rng(seed), policies=False)
    interval = relaxation("interval", instance)
    for name in ("assignment", "flow"):
        weaker = relaxation(name, instance)
        if weaker is None:
            assert interval is None
        elif interval is not None:
            assert interval >= weaker - tolerance(weaker), name


@pytest.mark.parametrize("seed", range(8))
def test_monolithic_bound_is_the_least_of_the_parts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    parts = [random_instance(rng, policies=False, schedule="1f1b") for _ in range(3)]
    common = common_divisor(parts)
    bounds = [
        value * common / part.objective.divisor
        for part in parts
        if (value := relaxation("interval", part)) is not None
    ]
    value = HIGHS.relaxation(PIPELINE_CHOICE["monolithic"].build(parts))
    assert value == pytest.approx(min(bounds), rel=1e-6) if bounds else value is None
