"""The whole planner against every plan tried; its bounds never exceed the optimum."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from ilp_parallel.problems.sharding import evaluate
from tests.sharding.instances import best_cost, random_sharding, seeds

pytest.importorskip("numba")

DATA = Path(os.environ.get("IOPDDL_DATA", Path(__file__).parents[3] / "shared/data/iopddl"))


@settings(max_examples=25, deadline=None)
@given(seeds)
def test_planner_finds_the_optimum(seed: int) -> None:
    from ilp_parallel.planner_sharding import ShardingPlanner

    instance = random_sharding(seed)
    result = ShardingPlanner(instance, time.monotonic() + 20).run()
    assert result.objective == best_cost(instance)
    assert result.status == ("infeasible" if result.objective is None else "optimal")
    if result.strategies is not None:
        assert evaluate(instance, result.strategies).objective == result.objective


@settings(max_examples=40, deadline=None)
@given(seeds)
def test_dual_bound_and_fixing_with_any_multipliers(seed: int) -> None:
    from ilp_parallel.sharding.dual import Dual
    from ilp_parallel.sharding.fixing import fixed

    instance = random_sharding(seed)
    optimum = best_cost(instance)
    dual = Dual(instance)
    rng = np.random.default_rng(seed)
    for _ in range(4):
        dual.set_multipliers(rng.exponential(1.0, dual.timeline.segments) * 2.0**dual.shift)
        bound = dual.improve()
        if optimum is not None:
            assert bound <= optimum
    if optimum is not None:
        assert best_cost(fixed(dual, optimum + 1)) == optimum


@settings(max_examples=40, deadline=None)
@given(seeds)
def test_marginal_program_with_all_memory_rows(seed: int) -> None:
    from ilp_parallel.planner_sharding import solve_marginal

    instance = random_sharding(seed)
    plan, bound, complete = solve_marginal(instance, 20.0, 1)
    assert complete
    optimum = best_cost(instance)
    assert (plan is None) == (optimum is None)
    if plan is not None:
        assert evaluate(instance, plan).objective == optimum == bound


def test_contest_instance() -> None:
    from ilp_parallel.imports.sharding_instance import read_sharding_instance
    from ilp_parallel.planner_sharding import ShardingPlanner

    path = DATA / "B.json.gz"
    if not path.exists():
        pytest.skip("needs the contest's files; set IOPDDL_DATA")
    instance = read_sharding_instance(str(path))
    result = ShardingPlanner(instance, time.monotonic() + 60).run()
    assert (result.status, result.objective, result.bound) == ("optimal", 532843, 532843)
