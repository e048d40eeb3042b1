"""Sharding formulations have the optimum of brute force; marginal is no weaker than pairwise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from formulations.sharding import SHARDING, marginal
from ilp_parallel.problems.sharding import Timeline, evaluate
from ilp_parallel.solvers.highs import HighsSolver
from ilp_parallel.solvers.outcome import SolveOptions
from tests.sharding.instances import best_cost, random_sharding, seeds


@pytest.mark.parametrize("name", SHARDING)
@settings(max_examples=40, deadline=None)
@given(seed=seeds)
def test_optimum(name: str, seed: int) -> None:
    instance = random_sharding(seed)
    program = SHARDING[name](instance, np.arange(Timeline.of(instance).segments))
    outcome = HighsSolver()(program, SolveOptions())
    assert outcome.objective == best_cost(instance)
    if outcome.values is not None:
        plan = marginal.decode(instance, outcome.values)
        assert evaluate(instance, plan).objective == outcome.objective


@settings(max_examples=40, deadline=None)
@given(seeds)
def test_relaxations(seed: int) -> None:
    instance = random_sharding(seed)
    instants = np.arange(Timeline.of(instance).segments)
    value = {
        n: HighsSolver().relaxation(build(instance, instants)) for n, build in SHARDING.items()
    }
    if value["marginal"] is None:
        assert value["alpa"] is None
        return
    assert value["pairwise"] <= value["marginal"] + 1e-6
    assert value["alpa"] == pytest.approx(value["marginal"], abs=1e-6)
