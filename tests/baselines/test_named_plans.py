"""Plans of the named heuristics: feasible, priced right, never better than the proven optimum."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings

from ilp_parallel.baselines.named.merak import recomputed_layers
from ilp_parallel.baselines.named.registry import NAMED, get_heuristics, run_named
from ilp_parallel.baselines.named.workbench import Effort, Workbench
from ilp_parallel.costs.model import CostModel
from ilp_parallel.errors import InputError
from ilp_parallel.instances import InstanceBuilder, rounding_ticks
from ilp_parallel.plan_files import check_plan
from ilp_parallel.spaces import Pins, get_space
from ilp_parallel.specs.readers import load_cluster, load_model
from tests.small_jobs import JOB, LONG_JOB, LONG_MODEL, MODEL, node_with
from tests.test_heuristics import Small, optimum_in, small_jobs

if TYPE_CHECKING:
    from ilp_parallel.specs.cluster import ClusterSpec

MEMORY_GIB = (2.6, 3.2, 80.0)  # binding everywhere, binding somewhere, never
QUICK = Effort(evaluations=300)
SAMPLING = [name for name, heuristic in NAMED.items() if heuristic.random]


@given(job=small_jobs())
@settings(max_examples=40, deadline=None)
def test_none_beats_the_proven_optimum(job: Small) -> None:
    optimum = optimum_in("mixed", CostModel(*job))
    for name in NAMED:
        costs = CostModel(*job)
        try:
            found = run_named(name, costs, Effort(evaluations=60))
        except InputError:
            assert optimum is None
            continue
        if found.plan is None or found.objective_ticks is None:
            continue
        check_plan(found.plan)
        assert costs.terms(found.plan).fits
        own = optimum_in(found.plan.space, costs)
        assert own is not None and found.objective_ticks >= own
        assert optimum is not None and found.objective_ticks >= optimum


@pytest.mark.parametrize("memory_gib", MEMORY_GIB)
@pytest.mark.parametrize("name", NAMED)
def test_plan_has_the_price_it_claims(name: str, memory_gib: float) -> None:
    """Predicted term by term from the specs, without the instance that priced it."""
    costs = CostModel(MODEL, node_with(memory_gib), JOB)
    found = run_named(name, costs, QUICK)
    if found.plan is None or found.objective_ticks is None:
        assert name == "rannc" and memory_gib < 4  # without tensor parallelism nothing fits
        return
    prediction = costs.terms(found.plan)
    assert prediction.fits
    builder = InstanceBuilder(costs, get_space("mixed"), Pins())
    rounding = rounding_ticks(builder.build(found.plan.configuration))
    real_ticks = prediction.step_time_s / (JOB.tick_ns * 1e-9)
    assert -1e-3 <= found.objective_ticks - real_ticks <= rounding
    assert sum(found.plan.sizes) == len(found.plan.strategies) == MODEL.layers


@pytest.mark.parametrize("name", NAMED)
def test_same_effort_same_plan(name: str) -> None:
    costs = CostModel(MODEL, node_with(3.2), JOB)
    first, second = run_named(name, costs, QUICK), run_named(name, costs, QUICK)
    assert (first.plan, first.objective_ticks) == (second.plan, second.objective_ticks)


@pytest.mark.parametrize("name", NAMED)
def test_nothing_where_nothing_fits(name: str) -> None:
    found = run_named(name, CostModel(MODEL, node_with(1.01), JOB), QUICK)
    assert (found.plan, found.objective_ticks) == (None, None)


@pytest.mark.parametrize("name", NAMED)
def test_no_plan_where_the_rules_leave_no_configuration(name: str) -> None:
    model = replace(MODEL, layers=1, heads=1, kv_heads=1)
    costs = CostModel(model, node_with(80.0), replace(JOB, global_batch=3))
    assert run_named(name, costs, QUICK).plan is None


@pytest.mark.parametrize("name", [n for n in NAMED if n not in ("megatron_rules", "uniform_sweep")])
def test_no_time_no_plan_but_no_error(name: str) -> None:
    found = run_named(name, CostModel(MODEL, node_with(80.0), JOB), Effort(seconds=0.0))
    if name in ("annealing", "mcmc"):  # the plan they start from is priced in any case
        assert found.seconds < 1
    else:
        assert found.plan is None


@pytest.mark.parametrize("name", SAMPLING)
def test_other_seeds_sample_other_plans(name: str) -> None:
    costs = CostModel(LONG_MODEL, node_with(80.0), LONG_JOB)
    efforts = [Effort(seed, evaluations=3) for seed in range(8)]
    assert len({run_named(name, costs, effort).objective_ticks for effort in efforts}) > 1


def test_random_plans_only_get_better_with_more_of_them() -> None:
    costs = CostModel(MODEL, node_with(3.2), JOB)
    values = [run_named("random", costs, Effort(evaluations=n)).objective_ticks for n in (50, 500)]
    assert values[0] is None or (values[1] is not None and values[1] <= values[0])


def test_mcmc_starts_from_data_parallelism() -> None:
    plan = run_named("mcmc", CostModel(MODEL, node_with(80.0), JOB), Effort(evaluations=1)).plan
    assert plan is not None
    g = plan.configuration
    assert (g.data, g.pipeline, g.tensor, g.context) == (4, 1, 1, 1)
    assert {s.name for s in plan.strategies} == {"zero0/none"}


def test_mcts_tries_every_decision_of_a_small_tree() -> None:
    """One device: microbatch size and recomputation are all there is to decide."""
    cluster = replace(node_with(8.0), devices_per_node=1)
    costs = CostModel(MODEL, cluster, JOB)
    bench = Workbench(costs, QUICK)
    for g in bench.configurations(("1f1b", "interleaved"), split_sequences=True):
        for k in range(len(costs.strategies(g))):
            bench.offer(bench.uniform(g, k))
    best = bench.best_ticks
    assert best is not None
    assert run_named("mcts", costs, Effort(evaluations=400)).objective_ticks == best


def test_annealing_beats_random_where_plans_are_many() -> None:
    """Means over seeds, on a job where both find plans; a search must be worth its name."""
    costs = CostModel(LONG_MODEL, node_with(4.0), LONG_JOB)

    def mean(name: str) -> float:
        found = [run_named(name, costs, Effort(seed, 400)).objective_ticks for seed in range(5)]
        return float(np.mean([ticks for ticks in found if ticks is not None]))

    assert mean("annealing") <= mean("random")


DEEP_MODEL = replace(MODEL, layers=16)
DEEP_JOB = replace(JOB, global_batch=32)


def apart(memory_gib: float) -> ClusterSpec:
    """Four devices on four nodes: pipelines, since no tensor parallelism."""
    return replace(node_with(memory_gib), nodes=4, devices_per_node=1)


def test_rannc_uses_more_stages_where_memory_is_short() -> None:
    model = replace(DEEP_MODEL, vocab=1024)  # GPipe keeps the logits of all microbatches
    depths = []
    for memory_gib in (80.0, 10.0, 7.0, 6.0):
        plan = run_named("rannc", CostModel(model, apart(memory_gib), DEEP_JOB), QUICK).plan
        assert plan is not None
        g = plan.configuration
        full = {s.recompute == ("full",) for s in plan.strategies}
        assert full == {g.microbatches > 1}
        depths.append(g.pipeline)
    assert depths == sorted(depths)
    assert depths[0] == 1 < depths[-1]


def test_merak_recomputes_less_on_later_stages() -> None:
    plan = run_named("merak", CostModel(DEEP_MODEL, apart(8.0), DEEP_JOB), QUICK).plan
    assert plan is not None
    ends = np.cumsum(plan.sizes).tolist()
    recomputed = tuple(
        sum(bool(s.recompute) for s in plan.strategies[end - size : end])
        for end, size in zip(ends, plan.sizes, strict=True)
    )
    assert len(recomputed) == 4 and recomputed[0] > 0
    assert recomputed == recomputed_layers(plan.sizes, recomputed[0])


def test_piper_has_one_tensor_degree_and_replicates_states() -> None:
    plan = run_named("piper_dp", CostModel(DEEP_MODEL, apart(7.0), DEEP_JOB), QUICK).plan
    assert plan is not None
    assert {s.zero for s in plan.strategies} == {"0"}
    assert {s.recompute for s in plan.strategies} == {(), ("full",)}
    assert not plan.configuration.sequence_parallel


def test_names() -> None:
    assert get_heuristics(None) == tuple(NAMED)
    assert get_heuristics("merak, random,merak") == ("merak", "random")
    with pytest.raises(InputError, match=r"UNKNOWN_HEURISTIC.*did you mean merak"):
        get_heuristics("merk")


def test_methods_for_equal_layers_refuse_models_of_several_kinds() -> None:
    """They would price all layers as those of the first kind."""
    model = load_model("t5-11b")
    costs = CostModel(model, load_cluster("a100-80gb:1x8"), replace(JOB, sequence_length=512))
    for name, heuristic in NAMED.items():
        if heuristic.applies(model):
            continue
        with pytest.raises(InputError, match="LAYERS_DIFFER"):
            run_named(name, costs, QUICK)
    assert {n for n, h in NAMED.items() if h.applies(model)} == {"megatron_rules", "uniform_sweep"}
