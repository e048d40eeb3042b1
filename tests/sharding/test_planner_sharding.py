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


def test_infeasible_by_search_does_not_wait_for_the_limit() -> None:
    """Four operators of which no two may be alike, with three strategies each: no step sees it."""
    from ilp_parallel.planner_sharding import ShardingPlanner
    from ilp_parallel.problems.sharding import FORBIDDEN, ShardingInstance

    pairs = [(u, v) for u in range(4) for v in range(u)]
    first = np.arange(0, 13, 3)
    instance = ShardingInstance(
        name="colouring",
        limit=100,
        first=first,
        cost=np.zeros(12, dtype=np.int64),
        edge_from=np.array([u for u, _ in pairs]),
        edge_to=np.array([v for _, v in pairs]),
        edge_first=np.arange(0, 9 * 6 + 1, 9),
        edge_cost=np.tile((np.eye(3, dtype=np.int64) * FORBIDDEN).ravel(), 6),
        piece_operator=np.arange(4),
        piece_start=np.zeros(4, dtype=np.int64),
        piece_end=np.ones(4, dtype=np.int64),
        piece_first=first,
        piece_usage=np.tile(np.array([1, 2, 3]), 4),
    )
    began = time.monotonic()
    result = ShardingPlanner(instance, began + 40).run()
    assert result.status == "infeasible"
    assert time.monotonic() - began < 30
