"""The ladder: bounds in their order, nothing above the optimum, what stands beside it marked."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from ilp_parallel.baselines.heuristics import HEURISTICS
from ilp_parallel.costs.model import CostModel
from ilp_parallel.instances import InstanceBuilder
from ilp_parallel.jobs import CompleteJob
from ilp_parallel.ladder import Ladder, ladder, ladder_document, quick_ladder, roofline_s
from ilp_parallel.planner import SearchOptions
from ilp_parallel.playing import play
from ilp_parallel.programs import FORMULATIONS
from ilp_parallel.spaces import get_space
from tests.pages.results import answer
from tests.small_jobs import JOB, LONG_JOB, LONG_MODEL, MODEL, NODE, node_with

JOBS = {
    "small": CompleteJob(MODEL, NODE, JOB, ()),
    "tight": CompleteJob(MODEL, node_with(6), JOB, ()),
    "long": CompleteJob(LONG_MODEL, NODE, LONG_JOB, ()),
}


@pytest.fixture(scope="module", params=JOBS)
def found(request: pytest.FixtureRequest) -> Ladder:
    return ladder(JOBS[request.param], SearchOptions(space="mixed"))


def values(rungs: list[dict[str, object]]) -> dict[str, float]:
    return {str(r["name"]): float(r["value"]) for r in rungs if r["value"] is not None}  # type: ignore[arg-type]


def test_no_bound_is_above_the_optimum_and_relaxations_climb(found: Ladder) -> None:
    rungs = values(found.rungs)
    optimum = rungs["dynamic program"]
    assert rungs["interval on highs"] == optimum
    assert all(value <= optimum * (1 + 1e-9) for value in rungs.values())
    assert rungs["roofline"] <= rungs["work bound"]
    steps = [rungs[f"LP of {name}"] for name in FORMULATIONS if f"LP of {name}" in rungs]
    assert len(steps) == len(FORMULATIONS)
    assert all(a <= b * (1 + 1e-9) for a, b in pairwise(steps))


def test_heuristics_are_not_below_and_the_simulation_is_the_simulators(found: Ladder) -> None:
    optimum = values(found.rungs)["dynamic program"]
    beside = {str(rung["name"]): rung for rung in found.beside}
    assert set(beside) == {*HEURISTICS, "simulated"}
    for name in HEURISTICS:
        value = beside[name]["value"]
        assert value is None or value >= optimum
    assert beside["simulated"]["kind"] == "simulated"


def test_distances_and_step_times_follow_from_values(found: Ladder) -> None:
    optimum = values(found.rungs)["dynamic program"]
    scales = set()
    for rung in (*found.rungs, *found.beside):
        if rung["value"] is None:
            assert rung["step_time_s"] is None and rung["below_optimum"] is None
            continue
        assert rung["below_optimum"] == (optimum - rung["value"]) / optimum
        scales.add(round(rung["step_time_s"] / rung["value"], 15))
    assert len(scales) == 1
    document = ladder_document(found)
    assert document["rungs"] is found.rungs
    assert document["instance"] == {"hash": found.input_hash}


def test_quick_ladder_agrees_and_leaves_out_what_is_large() -> None:
    given = answer("tiny", "1f1b")
    plan, ticks = given.result.plan, given.result.certificate.objective_ticks
    assert plan is not None and ticks is not None
    costs = CostModel(plan.model, plan.cluster, plan.job)
    space = get_space("mixed")
    instance = InstanceBuilder(costs, space, given.options.pins).build(plan.configuration)
    simulated = play(costs, plan).simulation.step_ticks
    assert simulated == given.simulated_ticks
    whole = quick_ladder(instance, plan, ticks, simulated, 10**9)
    small = quick_ladder(instance, plan, ticks, None, 1)
    assert values(whole.rungs)["dynamic program"] <= ticks * instance.objective.divisor
    assert [r["note"] for r in small.rungs if str(r["name"]).startswith("LP")] == ["LARGE"] * 4
    assert small.beside == []
    slow = quick_ladder(instance, plan, 1, simulated, 1)  # nothing is below this cutoff
    assert values(slow.rungs)["dynamic program"] == values(whole.rungs)["dynamic program"]


def test_roofline_grows_with_work_and_falls_with_devices() -> None:
    base = roofline_s(MODEL, NODE, JOB)
    assert base is not None
    assert roofline_s(MODEL, NODE, replace(JOB, global_batch=16)) == pytest.approx(2 * base)
    assert roofline_s(MODEL, replace(NODE, nodes=2), JOB) == pytest.approx(base / 2)
