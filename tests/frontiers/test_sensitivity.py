"""Sensitivity: every change is the optimum of the changed cluster, and what it says adds up."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

import pytest

from ilp_parallel.errors import InputError
from ilp_parallel.frontiers.sensitivity import (
    NVLINK_LANE_BYTES_PER_S,
    changes,
    read_sensitivity,
    sensitivity,
    sensitivity_document,
    sensitivity_text,
)
from ilp_parallel.jobs import CompleteJob
from ilp_parallel.planner import SearchOptions, search
from tests.small_jobs import GIB, JOB, MODEL, node_with

OPTIONS = SearchOptions(space="megatron")


def job(memory_gib: float, nodes: int = 1) -> CompleteJob:
    return CompleteJob(MODEL, replace(node_with(memory_gib), nodes=nodes), JOB, ())


def say(line: str) -> None:
    del line


@pytest.mark.parametrize("memory_gib", [2.6, 80.0])
def test_every_change_is_solved_for_its_own_cluster(memory_gib: float) -> None:
    found = sensitivity(job(memory_gib), OPTIONS, say)
    assert found is not None
    assert found.optimal
    assert found.verified
    gains = [effect.gain for effect in found.effects]
    assert gains == sorted(gains, key=lambda gain: -(gain or 0.0))
    by_name = {effect.name: effect for effect in found.effects}
    for change in changes(job(memory_gib).cluster):
        exact = search(MODEL, change.cluster, JOB, OPTIONS).certificate
        effect = by_name[change.name]
        assert effect.step_time_s == exact.seconds(exact.objective_ticks)
        assert effect.gain == (found.step_time_s - (effect.step_time_s or 0)) / found.step_time_s


def test_memory_buys_something_exactly_where_it_binds() -> None:
    gains = []
    for memory_gib in (2.6, 80.0):
        found = sensitivity(job(memory_gib), OPTIONS, say)
        assert found is not None
        gains.append({effect.name: effect.gain for effect in found.effects}["1 GiB more memory"])
    assert gains[0] is not None and gains[0] > 0
    assert gains[1] == 0


def test_changes_are_what_they_say() -> None:
    cluster = job(80.0, nodes=2).cluster
    found = {change.name: change for change in changes(cluster)}
    assert len(found) == 6
    more = found["1 GiB more memory"].cluster
    assert more.device.memory_bytes == cluster.device.memory_bytes + GIB
    lane = next(change for name, change in found.items() if "NVLink" in name)
    extra = lane.cluster.intra.bandwidth_bytes_per_s - cluster.intra.bandwidth_bytes_per_s
    assert extra == NVLINK_LANE_BYTES_PER_S[cluster.device.generation]
    assert not lane.is_rate
    between = found["10 % more bandwidth between nodes"].cluster.inter.bandwidth_bytes_per_s
    assert between == pytest.approx(1.1 * cluster.inter.bandwidth_bytes_per_s)
    assert "10 % more bandwidth between nodes" not in {c.name for c in changes(job(80.0).cluster)}
    alone = replace(cluster, devices_per_node=1)
    assert not any("in node" in change.name for change in changes(alone))


def test_the_bottleneck_is_the_rate_that_buys_most() -> None:
    found = sensitivity(job(80.0), OPTIONS, say)
    assert found is not None and found.bottleneck is not None
    rates = [effect for effect in found.effects if effect.is_rate]
    assert found.bottleneck.gain == max(effect.gain or 0.0 for effect in rates)
    assert found.bottleneck.name in sensitivity_text(found, "table").splitlines()[0]
    record = read_sensitivity({"sensitivity": sensitivity_document(found)})
    assert record is not None
    assert record.bottleneck == found.bottleneck.name
    assert [c.change for c in record.changes] == [effect.name for effect in found.effects]
    assert read_sensitivity({}) is None
    with pytest.raises(InputError, match="BAD_SENSITIVITY"):
        read_sensitivity({"sensitivity": {"changes": 3}})


def test_an_executor_changes_nothing() -> None:
    alone = sensitivity(job(2.6), OPTIONS, say)
    with (
        ThreadPoolExecutor(3) as threads,
        ProcessPoolExecutor(2, mp_context=get_context("spawn")) as processes,
    ):
        for executor in (threads, processes):
            assert sensitivity(job(2.6), OPTIONS, say, executor) == alone


def test_without_a_plan_there_is_nothing_to_compare() -> None:
    assert sensitivity(job(1.1), OPTIONS, say) is None
