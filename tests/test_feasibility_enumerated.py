"""What is short where nothing fits, and the smallest number of nodes, against plain enumeration."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ilp_parallel.baselines.two_level_dp import two_level_dp
from ilp_parallel.configuration import Configuration
from ilp_parallel.costs.model import CostModel
from ilp_parallel.errors import InputError
from ilp_parallel.feasibility import fits, shortage, smallest_cluster
from ilp_parallel.instances import InstanceBuilder
from ilp_parallel.planner import ANY_SCHEDULE, SearchOptions, search
from ilp_parallel.spaces import Pins, enumerate_configurations, get_space
from tests.small_jobs import JOB, MODEL, node_with

SMALL_JOB = replace(JOB, global_batch=4)
MEMORY_GIB = (1.01, 1.3, 1.6, 2.2, 2.6, 3.2, 6.0)


@pytest.mark.parametrize("space", ["uniform", "megatron", "mixed"])
@pytest.mark.parametrize("memory_gib", MEMORY_GIB)
def test_fits_where_the_search_finds_a_plan(space: str, memory_gib: float) -> None:
    cluster = node_with(memory_gib)
    found = search(MODEL, cluster, SMALL_JOB, SearchOptions(space=space))
    question = (MODEL, cluster, SMALL_JOB, get_space(space), Pins(), ANY_SCHEDULE)
    assert fits(*question) == (found.status == "optimal")


def fits_by_enumeration(memory_gib: float, nodes: int) -> bool:
    """Every configuration of every schedule, each by its own dynamic program."""
    cluster = replace(node_with(memory_gib), nodes=nodes, devices_per_node=2)
    builder = InstanceBuilder(CostModel(MODEL, cluster, SMALL_JOB), get_space("mixed"), Pins())
    found = enumerate_configurations(MODEL, cluster, SMALL_JOB, builder.space, Pins(), ANY_SCHEDULE)
    return any(
        two_level_dp(builder.build(item)) is not None
        for item in found
        if isinstance(item, Configuration)
    )


@pytest.mark.parametrize("memory_gib", [1.6, 2.2, 2.6, 3.2, 6.0])
def test_smallest_number_of_nodes(memory_gib: float) -> None:
    cluster = replace(node_with(memory_gib), devices_per_node=2)
    question = (MODEL, cluster, SMALL_JOB, get_space("mixed"), Pins(), ANY_SCHEDULE)
    most = 8
    answer = smallest_cluster(*question, most_nodes=most)
    fitting = [n for n in range(1, most + 1) if fits_by_enumeration(memory_gib, n)]
    assert answer.smallest == (fitting[0] if fitting else None)
    assert answer.refuted == tuple(range(1, fitting[0] if fitting else most + 1))
    assert (answer.stopped is None) == bool(fitting)


def test_search_for_nodes_may_run_out_of_time() -> None:
    question = (MODEL, node_with(1.01), SMALL_JOB, get_space("mixed"), Pins(), ANY_SCHEDULE)
    answer = smallest_cluster(*question, time_limit_s=-1.0)
    assert (answer.smallest, answer.refuted) == (None, ())
    assert answer.stopped is not None


@pytest.mark.parametrize("memory_gib", [1.3, 1.6])
def test_shortage_is_what_the_memory_lacks(memory_gib: float) -> None:
    space = get_space("mixed")
    cluster = node_with(memory_gib)
    lack = shortage(MODEL, cluster, SMALL_JOB, space, Pins(), ANY_SCHEDULE)
    assert lack is not None
    assert lack.missing_bytes > 0
    assert sum(part.value for part in lack.parts) == pytest.approx(lack.needed_bytes, rel=1e-6)
    values = [part.value for part in lack.parts]
    assert values == sorted(values, reverse=True)
    device = replace(cluster.device, memory_bytes=cluster.device.memory_bytes + lack.missing_bytes)
    enough = replace(cluster, device=device)
    assert fits(MODEL, enough, SMALL_JOB, space, Pins(), ANY_SCHEDULE)


def test_no_shortage_where_everything_fits() -> None:
    question = (MODEL, node_with(80.0), SMALL_JOB, get_space("mixed"), Pins(), ANY_SCHEDULE)
    assert shortage(*question) is None


def test_pins_that_leave_nothing_are_an_input_error() -> None:
    with pytest.raises(InputError):
        search(MODEL, node_with(1.3), SMALL_JOB, SearchOptions(pins=Pins.parse(("pp=8",), ())))
