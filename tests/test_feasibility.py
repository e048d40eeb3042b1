"""Shortages, fitting plans and smallest clusters against every configuration solved by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ilp_parallel.baselines.two_level_dp import two_level_dp
from ilp_parallel.configuration import Configuration
from ilp_parallel.costs.model import CostModel
from ilp_parallel.diagnosis.feasibility import (
    Question,
    fits,
    fitting_plan,
    refusals,
    shortage,
    smallest_cluster,
    states_exceed_devices,
)
from ilp_parallel.instances import InstanceBuilder
from ilp_parallel.planner import SearchOptions, search
from ilp_parallel.spaces import SPACES, Pins, enumerate_configurations, get_space
from tests.small_jobs import GIB, JOB, MODEL, node_with

if TYPE_CHECKING:
    from ilp_parallel.problems.pipeline import Schedule

SCHEDULES = SearchOptions().schedules
LIMITS = (
    (Pins(), SCHEDULES),
    (Pins(), ("gpipe",)),
    (Pins(), ("interleaved",)),
    (Pins.parse(("vpp=2",), ()), SCHEDULES),
    (Pins.parse(("schedule=interleaved",), ()), SCHEDULES),
    (Pins.parse(("zero=0",), ("recompute=full",)), SCHEDULES),
    (Pins.parse((), ("schedule=1f1b", "tp=4")), SCHEDULES),
    (Pins.parse(("recompute=none",), ("mbs=1",)), SCHEDULES),
    (Pins.parse(("microbatches=2",), ("pp=1",)), SCHEDULES),
)
MEMORY_GIB = (1.8, 2.6, 3.2)


def asked(
    memory_gib: float,
    nodes: int = 1,
    space: str = "mixed",
    limits: tuple[Pins, tuple[Schedule, ...]] = (Pins(), SCHEDULES),
) -> Question:
    cluster = replace(node_with(memory_gib), nodes=nodes)
    return Question(MODEL, cluster, JOB, get_space(space), *limits)


def any_plan(question: Question) -> bool:
    """Whether some configuration has a plan by the dynamic program."""
    q = question
    builder = InstanceBuilder(CostModel(q.model, q.cluster, q.job), q.space, q.pins)
    found = enumerate_configurations(q.model, q.cluster, q.job, q.space, q.pins, q.schedules)
    return any(
        two_level_dp(builder.build(item)) is not None
        for item in found
        if isinstance(item, Configuration)
    )


@pytest.mark.parametrize("limits", LIMITS, ids=range(len(LIMITS)))
@pytest.mark.parametrize("space", SPACES)
def test_smallest_cluster_equals_enumeration(
    space: str, limits: tuple[Pins, tuple[Schedule, ...]]
) -> None:
    if not set(limits[1]) & set(SPACES[space].schedules):
        pytest.skip("the space has none of the schedules")
    most, answers = 4, set()
    for memory_gib in MEMORY_GIB:
        feasible = [n for n in range(1, most + 1) if any_plan(asked(memory_gib, n, space, limits))]
        found = smallest_cluster(asked(memory_gib, 1, space, limits), most_nodes=most)
        assert found.smallest == min(feasible, default=None), memory_gib
        assert found.refuted == tuple(range(1, (found.smallest or most + 1)))
        assert (found.stopped is None) == (found.smallest is not None)
        for refutation in found.refutations:
            by_states = refutation.configurations is None
            alone = states_exceed_devices(asked(memory_gib, refutation.nodes, space, limits))
            assert by_states == alone
        if found.plan is not None:
            assert found.plan.cluster.nodes == found.smallest
        answers.add(found.smallest)
    assert len(answers) > 1 or space == "deepspeed"  # its pipelines shard too little for some


@pytest.mark.parametrize("memory_gib", [1.3, 1.6, 1.8, 2.2, 2.6, 3.2, 6.0])
@pytest.mark.parametrize("space", SPACES)
def test_a_plan_is_found_where_the_search_finds_one_and_fits(space: str, memory_gib: float) -> None:
    question = asked(memory_gib, space=space)
    found = search(MODEL, question.cluster, JOB, SearchOptions(space=space))
    plan = fitting_plan(question)
    assert (plan is not None) == (found.status == "optimal")
    if plan is not None:
        assert CostModel(plan.model, plan.cluster, plan.job).terms(plan).fits
        assert sum(plan.sizes) == MODEL.layers


@pytest.mark.parametrize("fixed", [(), ("cp=2",), ("pp=1", "tp=1"), ("zero=0",)])
def test_context_ranks_are_among_what_is_tried(fixed: tuple[str, ...]) -> None:
    """Long sequences, for which context ranks are allowed, against every configuration."""
    used, answers = set(), []
    for memory_gib in (2.2, 3.0, 4.0, 6.0):
        for nodes in (1, 2):
            question = asked(memory_gib, nodes, limits=(Pins.parse(fixed, ()), SCHEDULES))
            question = replace(question, job=replace(JOB, sequence_length=4096, global_batch=2))
            plan = fitting_plan(question)
            assert (plan is not None) == any_plan(question)
            answers.append(plan is not None)
            if plan is not None:
                used.add(plan.configuration.context)
    assert set(answers) == {True, False}
    assert fixed != ("cp=2",) or used == {2}


def test_fitting_is_not_monotone_in_nodes() -> None:
    """The batch does not divide over three nodes of four devices: only more stages would do."""
    pins = Pins.parse(("pp=1", "tp=1"), ())
    assert [fits(asked(80.0, n, limits=(pins, SCHEDULES))) for n in (2, 3)] == [True, False]


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_states_that_exceed_all_devices_fit_nowhere(nodes: int) -> None:
    for memory_gib in (1.5, 1.7, 1.9, 2.1):
        question = asked(memory_gib, nodes)
        states = MODEL.layers * MODEL.layer_parameters * 18  # bytes, mixed precision with Adam
        exceed = states_exceed_devices(question)
        usable = question.cluster.devices * (question.cluster.device.memory_bytes - GIB)
        assert exceed == (states > usable)
        assert not (exceed and any_plan(question))


def test_search_for_nodes_that_stops_claims_nothing() -> None:
    bounded = smallest_cluster(asked(1.01), most_nodes=2)
    assert (bounded.smallest, bounded.refuted, bounded.plan) == (None, (1, 2), None)
    assert bounded.stopped
    timed = smallest_cluster(asked(1.01), time_limit_s=-1.0)
    assert (timed.smallest, timed.refuted) == (None, ())
    assert timed.stopped


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("memory_gib", [1.3, 1.6])
def test_shortage_is_what_is_missing(space: str, memory_gib: float) -> None:
    """With the missing bytes the plan named fits, with one byte less it does not."""
    question = asked(memory_gib, space=space)
    cluster = question.cluster
    found = shortage(question)
    assert found is not None
    assert found.missing_bytes > 0
    parts = [part.value for part in found.parts]
    assert parts == sorted(parts, reverse=True)
    assert 0 <= found.needed_bytes - sum(parts) < 5 * MODEL.layers + 10  # each rounded up
    for change, fit in ((0, True), (-1, False)):
        memory = cluster.device.memory_bytes + found.missing_bytes + change
        larger = replace(cluster, device=replace(cluster.device, memory_bytes=memory))
        again = shortage(replace(question, cluster=larger))
        assert (again is None) == fit
        if again is not None:
            assert again.missing_bytes == 1


def test_no_shortage_without_a_configuration_and_where_everything_fits() -> None:
    assert shortage(asked(1.6, limits=(Pins.parse(("pp=64",), ()), SCHEDULES))) is None
    assert shortage(asked(80.0)) is None


def test_rules_that_leave_nothing_are_named() -> None:
    pins = Pins.parse(("tp=3",), ())
    question = replace(asked(80.0, limits=(pins, SCHEDULES)))
    on_three = replace(question.cluster, devices_per_node=3)
    codes = {item.code for item in refusals(replace(question, cluster=on_three))}
    assert "HEADS_NOT_DIVISIBLE_BY_TP" in codes
