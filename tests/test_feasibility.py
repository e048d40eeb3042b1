"""Shortages and smallest clusters against every configuration solved by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ilp_parallel.baselines.two_level_dp import two_level_dp
from ilp_parallel.configuration import Configuration
from ilp_parallel.costs.model import CostModel
from ilp_parallel.feasibility import fits, shortage, smallest_cluster, states_exceed_devices
from ilp_parallel.instances import InstanceBuilder
from ilp_parallel.planner import SearchOptions
from ilp_parallel.spaces import SPACES, Pins, enumerate_configurations, get_space
from tests.small_jobs import GIB, JOB, MODEL, node_with

if TYPE_CHECKING:
    from ilp_parallel.problems.pipeline import Schedule
    from ilp_parallel.spaces import Space

SCHEDULES = SearchOptions().schedules
LIMITS = (
    (Pins(), SCHEDULES),
    (Pins(), ("gpipe",)),
    (Pins(), ("interleaved",)),
    (Pins.parse(("vpp=2",), ()), SCHEDULES),
    (Pins.parse(("schedule=interleaved",), ()), SCHEDULES),
    (Pins.parse(("zero=0",), ("recompute=full",)), SCHEDULES),
    (Pins.parse((), ("schedule=1f1b", "tp=4")), SCHEDULES),
)
MEMORY_GIB = (1.8, 2.6, 3.2)


def any_plan(
    memory_gib: float, nodes: int, space: Space, pins: Pins, schedules: tuple[Schedule, ...]
) -> bool:
    """Whether some configuration has a plan by the dynamic program."""
    cluster = replace(node_with(memory_gib), nodes=nodes)
    builder = InstanceBuilder(CostModel(MODEL, cluster, JOB), space, pins)
    return any(
        two_level_dp(builder.build(item)) is not None
        for item in enumerate_configurations(MODEL, cluster, JOB, space, pins, schedules)
        if isinstance(item, Configuration)
    )


@pytest.mark.parametrize(("pins", "schedules"), LIMITS, ids=range(len(LIMITS)))
@pytest.mark.parametrize("space", SPACES)
def test_smallest_cluster_equals_enumeration(
    space: str, pins: Pins, schedules: tuple[Schedule, ...]
) -> None:
    most, answers = 4, set()
    for memory_gib in MEMORY_GIB:
        limits = (get_space(space), pins, schedules)
        tried = range(1, most + 1)
        feasible = [n for n in tried if any_plan(memory_gib, n, *limits)]
        question = (MODEL, node_with(memory_gib), JOB, *limits)
        found = smallest_cluster(*question, most_nodes=most)
        assert found.smallest == min(feasible, default=None), memory_gib
        assert found.refuted == tuple(tried[: (found.smallest or most + 1) - 1])
        assert (found.stopped is None) == (found.smallest is not None)
        assert set(found.too_small) <= set(found.refuted)
        answers.add(found.smallest)
    assert len(answers) > 1


def test_fitting_is_not_monotone_in_nodes() -> None:
    """The batch does not divide over three nodes of four devices: only more stages would do."""
    pins = Pins.parse(("pp=1", "tp=1"), ())
    asked = [(MODEL, replace(node_with(80.0), nodes=n), JOB) for n in (2, 3)]
    assert [fits(*ask, get_space("mixed"), pins, SCHEDULES) for ask in asked] == [True, False]


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_states_that_exceed_all_devices_fit_nowhere(nodes: int) -> None:
    for memory_gib in (1.5, 1.7, 1.9, 2.1):
        cluster = replace(node_with(memory_gib), nodes=nodes)
        states = MODEL.layers * MODEL.layer_parameters * 18  # bytes, mixed precision with Adam
        exceed = states_exceed_devices(MODEL, cluster, JOB)
        usable = cluster.devices * (cluster.device.memory_bytes - GIB)
        assert exceed == (states > usable)
        assert not (exceed and any_plan(memory_gib, nodes, get_space("mixed"), Pins(), SCHEDULES))


def test_search_that_stops_claims_nothing() -> None:
    question = (MODEL, node_with(1.01), JOB, get_space("mixed"), Pins(), SCHEDULES)
    bounded = smallest_cluster(*question, most_nodes=2)
    assert (bounded.smallest, bounded.refuted) == (None, (1, 2))
    assert bounded.stopped
    timed = smallest_cluster(*question, time_limit_s=0.0)
    assert (timed.smallest, timed.refuted) == (None, ())
    assert timed.stopped


@pytest.mark.parametrize("space", SPACES)
def test_shortage_is_what_is_missing(space: str) -> None:
    """With the missing bytes the plan named fits, with one byte less it does not."""
    memory_gib = 1.6
    cluster = node_with(memory_gib)
    found = shortage(MODEL, cluster, JOB, get_space(space), Pins(), SCHEDULES)
    assert found is not None
    assert found.missing_bytes > 0
    parts = [part.value for part in found.parts]
    assert parts == sorted(parts, reverse=True)
    assert 0 <= found.needed_bytes - sum(parts) < 5 * MODEL.layers + 10  # each rounded up
    for change, fit in ((0, True), (-1, False)):
        memory = cluster.device.memory_bytes + found.missing_bytes + change
        larger = replace(cluster, device=replace(cluster.device, memory_bytes=memory))
        again = shortage(MODEL, larger, JOB, get_space(space), Pins(), SCHEDULES)
        assert (again is None) == fit
        if again is not None:
            assert again.missing_bytes == 1


def test_no_shortage_without_a_configuration() -> None:
    pins = Pins.parse(("pp=64",), ())
    assert shortage(MODEL, node_with(1.6), JOB, get_space("mixed"), pins, SCHEDULES) is None
