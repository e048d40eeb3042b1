"""Plans of the heuristics are feasible, priced right, and never better than the proven optimum."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ilp_parallel.baselines.heuristics import HEURISTICS, run_heuristic
from ilp_parallel.costs.model import CostModel
from ilp_parallel.errors import InputError
from ilp_parallel.plan_files import check_plan
from ilp_parallel.planner import SearchOptions, search
from ilp_parallel.specs.cluster import ClusterSpec
from ilp_parallel.specs.job import JobSpec
from ilp_parallel.specs.model import ModelSpec
from tests.costs.cases import gpt
from tests.small_jobs import JOB, MODEL, node_with

Small = tuple[ModelSpec, ClusterSpec, JobSpec]


@st.composite
def small_jobs(draw: st.DrawFn) -> Small:
    model = gpt(layers=draw(st.integers(1, 6)), hidden=1024, heads=draw(st.sampled_from([4, 6, 8])))
    cluster = replace(
        node_with(draw(st.sampled_from([1.5, 2.0, 3.0, 80.0]))),
        nodes=draw(st.sampled_from([1, 2])),
        devices_per_node=draw(st.sampled_from([1, 2, 4])),
    )
    batch, length = draw(st.sampled_from([(4, 1024), (6, 1024), (8, 1024), (2, 4096), (1, 8192)]))
    job = replace(JOB, global_batch=batch, sequence_length=length)
    return replace(model, learned_positions=0), cluster, job


def optimum_in(space: str, costs: CostModel) -> int | None:
    """The proven optimum; None where nothing fits or the rules leave no configuration."""
    try:
        found = search(costs.model, costs.cluster, costs.job, SearchOptions(space=space), costs)
    except InputError:
        return None
    return found.certificate.objective_ticks


@given(job=small_jobs())
@settings(max_examples=60, deadline=None)
def test_no_space_and_no_heuristic_beats_mixed(job: Small) -> None:
    costs = CostModel(*job)
    optimum = optimum_in("mixed", costs)
    for space in ("uniform", "megatron"):
        value = optimum_in(space, costs)
        assert value is None or (optimum is not None and value >= optimum)
    for name in HEURISTICS:
        found = run_heuristic(name, costs)
        assert (found.plan is None) == (found.objective_ticks is None)
        if found.plan is not None and found.objective_ticks is not None:
            check_plan(found.plan)
            assert costs.terms(found.plan).fits
            assert optimum is not None
            assert found.objective_ticks >= optimum


@pytest.mark.parametrize("memory_gib", [1.3, 2.6, 3.2, 80.0])
def test_uniform_sweep_is_the_optimum_of_its_space(memory_gib: float) -> None:
    cluster = node_with(memory_gib)
    options = SearchOptions(space="uniform", schedules=("1f1b", "interleaved"))
    expected = search(MODEL, cluster, JOB, options).certificate.objective_ticks
    found = run_heuristic("uniform_sweep", CostModel(MODEL, cluster, JOB))
    assert found.objective_ticks == expected


def test_megatron_rules_use_the_node_first_and_recompute_last() -> None:
    roomy = run_heuristic("megatron_rules", CostModel(MODEL, node_with(80.0), JOB)).plan
    assert roomy is not None
    g = roomy.configuration
    assert (g.tensor, g.pipeline, g.data) == (4, 1, 1)
    assert {strategy.recompute for strategy in roomy.strategies} == {()}
    assert run_heuristic("megatron_rules", CostModel(MODEL, node_with(1.01), JOB)).plan is None


def test_megatron_rules_split_sequences_only_where_nothing_else_fits() -> None:
    """Heads for two tensor ranks only; memory falls until one sequence of 16,384 is too much."""
    model = replace(gpt(layers=2, hidden=1024, heads=2), learned_positions=0)
    job = replace(JOB, global_batch=1, sequence_length=16384)
    contexts = []
    for memory_gib in (80.0, 8.0, 3.0, 2.8):
        found = run_heuristic("megatron_rules", CostModel(model, node_with(memory_gib), job)).plan
        contexts.append(None if found is None else found.configuration.context)
    assert contexts == [1, 1, 2, None]
