"""Heuristics: their plans, priced again by themselves, against the proven optimum."""

from __future__ import annotations

import pytest

from ilp_parallel.baselines.heuristics import HEURISTICS, run_heuristic
from ilp_parallel.baselines.two_level_dp import two_level_dp
from ilp_parallel.configuration import Configuration
from ilp_parallel.costs.model import CostModel
from ilp_parallel.instances import InstanceBuilder, rounding_ticks
from ilp_parallel.jobs import JobRequest, complete_job
from ilp_parallel.planner import SearchOptions, search
from ilp_parallel.spaces import Pins, enumerate_configurations, get_space
from tests.small_jobs import JOB, MODEL, node_with

MEMORY_GIB = (2.6, 3.2, 80.0)  # binding everywhere, binding somewhere, never


@pytest.fixture(scope="module", params=MEMORY_GIB)
def costs(request: pytest.FixtureRequest) -> CostModel:
    return CostModel(MODEL, node_with(request.param), JOB)


@pytest.mark.parametrize("name", HEURISTICS)
def test_never_below_the_optimum_of_mixed(name: str, costs: CostModel) -> None:
    found = run_heuristic(name, costs)
    optimum = search(MODEL, costs.cluster, JOB, SearchOptions(space="mixed"))
    assert optimum.status == "optimal"
    assert optimum.certificate.objective_ticks is not None
    assert found.objective_ticks is not None
    assert found.objective_ticks >= optimum.certificate.objective_ticks


@pytest.mark.parametrize("name", HEURISTICS)
def test_plan_has_the_price_it_claims(name: str, costs: CostModel) -> None:
    """Predicted term by term from the specs, without the instance that priced it."""
    found = run_heuristic(name, costs)
    assert found.plan is not None
    assert found.objective_ticks is not None
    prediction = costs.terms(found.plan)
    assert prediction.fits
    builder = InstanceBuilder(costs, get_space("mixed"), Pins())
    rounding = rounding_ticks(builder.build(found.plan.configuration))
    real_ticks = prediction.step_time_s / (JOB.tick_ns * 1e-9)
    assert -1e-3 <= found.objective_ticks - real_ticks <= rounding
    assert sum(found.plan.sizes) == len(found.plan.strategies) == MODEL.layers


@pytest.mark.parametrize("name", HEURISTICS)
def test_same_plan_every_time(name: str, costs: CostModel) -> None:
    first, second = run_heuristic(name, costs), run_heuristic(name, costs)
    assert (first.plan, first.objective_ticks) == (second.plan, second.objective_ticks)


def test_uniform_sweep_is_exact_in_its_grid(costs: CostModel) -> None:
    space, pins = get_space("uniform"), Pins()
    builder = InstanceBuilder(costs, space, pins)
    schedules = SearchOptions().schedules
    values = []
    for item in enumerate_configurations(MODEL, costs.cluster, JOB, space, pins, schedules):
        if isinstance(item, Configuration):
            instance = builder.build(item)
            best = two_level_dp(instance)
            values += [] if best is None else [instance.objective.ticks(best.numerator)]
    assert run_heuristic("uniform_sweep", costs).objective_ticks == min(values)


def test_megatron_rules_follow_the_rules() -> None:
    """As much tensor parallelism as a node has, no deeper pipeline and no more than needed."""
    strategies = []
    for memory_gib in MEMORY_GIB:
        plan = run_heuristic("megatron_rules", CostModel(MODEL, node_with(memory_gib), JOB)).plan
        assert plan is not None
        assert plan.configuration.tensor == plan.cluster.devices_per_node
        assert len(set(plan.strategies)) == 1
        assert max(plan.sizes) - min(plan.sizes) <= 1
        strategies.append(plan.strategies[0].recompute)
    order = [("full",), ("core_attn",), ()]
    ranks = [order.index(modules) for modules in strategies]
    assert ranks == sorted(ranks)  # less recomputation with more memory
    assert strategies[-1] == ()


def test_pipeline_grows_until_it_fits() -> None:
    depths = []
    for cluster in ("a100-80gb:128x8", "a100-40gb:128x8", "v100-32gb:128x8", "v100-16gb:128x8"):
        job = complete_job(JobRequest("gpt3", cluster))
        plan = run_heuristic("megatron_rules", CostModel(job.model, job.cluster, job.job)).plan
        assert plan is not None
        depths.append(plan.configuration.pipeline)
    assert depths == sorted(depths)
    assert depths[0] < depths[-1]


@pytest.mark.parametrize("name", HEURISTICS)
def test_nothing_where_nothing_fits(name: str) -> None:
    found = run_heuristic(name, CostModel(MODEL, node_with(1.01), JOB))
    assert found.plan is None
    assert found.objective_ticks is None
