"""Presolve keeps the optimum and its plans come back at equal cost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from ilp_parallel.problems.sharding import evaluate
from ilp_parallel.sharding.network import BARRED, Infeasible, Network
from ilp_parallel.sharding.presolve import dominated, presolve, profile
from tests.sharding.instances import best_cost, random_sharding, seeds


@settings(max_examples=150, deadline=None)
@given(seeds)
def test_presolve_keeps_the_optimum(seed: int) -> None:
    instance = random_sharding(seed)
    try:
        core, _ = presolve(instance)
    except Infeasible:
        assert best_cost(instance) is None
        return
    assert best_cost(core.instance) == best_cost(instance)


@settings(max_examples=100, deadline=None)
@given(seeds)
def test_every_plan_of_the_core_comes_back_at_equal_cost(seed: int) -> None:
    instance = random_sharding(seed)
    try:
        core, _ = presolve(instance)
    except Infeasible:
        return
    rng = np.random.default_rng(seed)
    plan = rng.integers(0, core.instance.sizes())
    restored = core.restore(plan)
    inner, outer = evaluate(core.instance, plan), evaluate(instance, restored)
    assert inner.objective == outer.objective
    assert inner.objective is None or inner.peak_usage == outer.peak_usage


@settings(max_examples=80, deadline=None)
@given(seeds)
def test_dropping_dominated_strategies_alone_keeps_the_optimum(seed: int) -> None:
    instance = random_sharding(seed)
    try:
        network = Network(instance)
        for v in list(network.cost):
            gone = dominated(network.cost[v], network.near[v], profile(network.pieces[v]))
            network.keep_only(v, ~gone)
    except Infeasible:
        assert best_cost(instance) is None
        return
    assert best_cost(network.core().instance) == best_cost(instance)


@settings(max_examples=80, deadline=None)
@given(seeds)
def test_eliminating_a_memory_free_operator_keeps_the_optimum(seed: int) -> None:
    network = Network(random_sharding(seed))
    before = best_cost(network.core().instance)
    for v in list(network.cost):
        if not network.pieces[v] and len(network.near[v]) in (1, 2):
            network.eliminate(v)
            break
    assert best_cost(network.core().instance) == before


@settings(max_examples=80, deadline=None)
@given(seeds)
def test_folding_a_determined_operator_keeps_the_optimum(seed: int) -> None:
    network = Network(random_sharding(seed))
    before = best_cost(network.core().instance)
    found = [
        (v, u, matrix)
        for u in network.near
        for v, matrix in network.near[u].items()
        if ((matrix < BARRED).sum(axis=1) == 1).all()
    ]
    if found:
        v, u, matrix = found[0]
        network.fold(v, u, (matrix < BARRED).argmax(axis=1))
    assert best_cost(network.core().instance) == before


def test_settling_without_a_strategy_is_infeasible() -> None:
    network = Network(random_sharding(1))
    with pytest.raises(Infeasible):
        network.keep_only(0, np.zeros(len(network.cost[0]), dtype=np.bool_))


def test_forbidden_stays_forbidden_when_a_negative_cost_is_added() -> None:
    network = Network(random_sharding(1))
    size = len(network.cost[0])
    network.cost[0] = np.full(size, BARRED)
    network.add_cost(0, np.full(size, -3))
    assert (network.cost[0] >= BARRED).all()
