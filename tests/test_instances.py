"""Folding is exact and rounding is bounded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ilp_parallel.configuration import Configuration
from ilp_parallel.costs.model import CostModel
from ilp_parallel.instances import InstanceBuilder, fold, rounding_ticks, unfold
from ilp_parallel.planner import SearchOptions
from ilp_parallel.problems.pipeline import PipelineSolution, evaluate
from ilp_parallel.spaces import Pins, enumerate_configurations, get_space
from tests.small_jobs import JOB, MODEL, NODE
from tests.strategies import random_instance


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=200, deadline=None)
def test_folded_and_unfolded_solutions_cost_the_same(seed: int) -> None:
    rng = np.random.default_rng(seed)
    whole = random_instance(
        rng, schedule="interleaved", classes=1, reshard=False, policies=False, max_layers=12
    )
    folded = fold(whole)
    solution = PipelineSolution(
        tuple(folded.min_layers.tolist()),
        tuple(rng.integers(0, whole.strategies, folded.layers).tolist()),
    )
    one = evaluate(folded, solution)
    other = evaluate(whole, unfold(solution, whole.chunks))
    assert one.numerator == other.numerator
    assert one.objective_ticks == other.objective_ticks
    assert one.memory_bytes == other.memory_bytes
    assert one.feasible == other.feasible


@pytest.mark.parametrize("space", ["uniform", "mixed"])
def test_rounding_is_bounded(space: str) -> None:
    """Ticks of a millisecond against those of a microsecond, close to the real objective."""
    coarse_ns, fine = 1_000_000, 1000  # ticks of a millisecond and of a microsecond
    builders = [
        InstanceBuilder(
            CostModel(MODEL, NODE, replace(JOB, tick_ns=tick)), get_space(space), Pins()
        )
        for tick in (coarse_ns, fine)
    ]
    schedules = SearchOptions().schedules
    for item in enumerate_configurations(MODEL, NODE, JOB, get_space(space), Pins(), schedules):
        if not isinstance(item, Configuration):
            continue
        coarse, exact = (builder.build(item) for builder in builders)
        size = np.full(coarse.stages, coarse.layers // coarse.stages)
        size[-1] += coarse.layers - size.sum()
        solution = PipelineSolution(tuple(size.tolist()), (0,) * coarse.layers)
        long = evaluate(coarse, solution).objective_ticks * coarse_ns
        short = evaluate(exact, solution).objective_ticks * fine
        assert long - short <= rounding_ticks(coarse) * coarse_ns
        assert long - short >= -rounding_ticks(exact) * fine
        assert rounding_ticks(coarse) > 0
