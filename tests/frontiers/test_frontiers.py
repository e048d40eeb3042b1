"""Rates, targets and frontiers against plain searches of every number of nodes and memory."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from ilp_parallel.diagnosis.minimum import smallest_reaching
from ilp_parallel.errors import InputError
from ilp_parallel.frontiers.nodes import Nodes
from ilp_parallel.frontiers.pareto import (
    Frontier,
    frontier_over_memory,
    frontier_over_nodes,
    needed_bytes,
    with_memory,
)
from ilp_parallel.frontiers.pareto_output import frontier_csv, frontier_document
from ilp_parallel.frontiers.rates import best_rate, rate_document
from ilp_parallel.jobs import CompleteJob
from ilp_parallel.planner import SearchOptions, search
from tests.small_jobs import GIB, JOB, MODEL, node_with

NODES = 6
SPACES = ("uniform", "megatron")
MEMORY_GIB = (1.9, 2.6, 80.0)


def say(line: str) -> None:
    del line


def job_with(memory_gib: float, nodes: int = NODES) -> CompleteJob:
    """The small job on nodes of two devices; its own reserve is left out."""
    cluster = replace(node_with(memory_gib), nodes=nodes, devices_per_node=2)
    return CompleteJob(MODEL, cluster, replace(JOB, global_batch=24), ())


@cache
def optimum(memory_gib: float, space: str, nodes: int) -> int | None:
    """Step time in ticks on so many nodes, by a search that nothing stops."""
    job = job_with(memory_gib, nodes)
    try:
        result = search(job.model, job.cluster, job.job, SearchOptions(space=space))
    except InputError:
        return None
    return result.certificate.objective_ticks


@pytest.mark.parametrize("memory_gib", MEMORY_GIB)
@pytest.mark.parametrize("space", SPACES)
def test_best_rate_is_the_least_product(space: str, memory_gib: float) -> None:
    answer = best_rate(job_with(memory_gib), SearchOptions(space=space))
    known = {n: optimum(memory_gib, space, n) for n in range(1, NODES + 1)}
    products = [2 * n * ticks for n, ticks in known.items() if ticks is not None]
    assert answer.verified
    assert answer.objective == answer.bound == min(products, default=None)
    assert answer.status == ("optimal" if products else "infeasible")
    assert [outcome.nodes for outcome in answer.outcomes] == list(range(1, NODES + 1))
    document = rate_document(answer, "cost-per-token", 3.6)
    if answer.objective is not None:
        tokens = answer.job.job.tokens_per_step
        cost = 1e6 * 3.6 / 3600 * answer.objective * 1e-6 / tokens
        assert document["cost_per_million_tokens"] == pytest.approx(cost)


@pytest.mark.parametrize("memory_gib", MEMORY_GIB)
def test_fewest_nodes_for_a_rate_are_those_of_enumeration(memory_gib: float) -> None:
    job, options = job_with(memory_gib), SearchOptions(space="megatron")
    known = {n: optimum(memory_gib, "megatron", n) for n in range(1, NODES + 1)}
    rates = [job.job.tokens_per_step / (t * 1e-6) for t in known.values() if t is not None]
    for target in (1.0, *(share * rate for rate in rates for share in (0.9999, 1.0001))):
        found = smallest_reaching(job, options, NODES, target)
        reaching = [
            n
            for n, ticks in known.items()
            if ticks is not None and job.job.tokens_per_step / (ticks * 1e-6) >= target
        ]
        assert found.nodes.smallest == min(reaching, default=None)
        last = NODES if found.nodes.smallest is None else found.nodes.smallest - 1
        assert found.nodes.refuted == tuple(range(1, last + 1))


@pytest.mark.parametrize("against", ["devices", "cost"])
@pytest.mark.parametrize("memory_gib", MEMORY_GIB)
@pytest.mark.parametrize("space", SPACES)
def test_frontier_over_nodes_is_that_of_enumeration(
    space: str, memory_gib: float, against: str
) -> None:
    kind = "devices" if against == "devices" else "cost"
    found = frontier_over_nodes(job_with(memory_gib), SearchOptions(space=space), kind, say)  # type: ignore[arg-type]
    pairs = []
    for nodes in range(1, NODES + 1):
        ticks = optimum(memory_gib, space, nodes)
        if ticks is not None:
            pairs.append((2 * nodes * (ticks if kind == "cost" else 1), ticks))
    best = {p for p in pairs if not any(q != p and q[0] <= p[0] and q[1] <= p[1] for q in pairs)}
    assert [(p.measure, p.ticks) for p in found.points] == sorted(best)
    assert found.proven
    assert found.verified


def test_a_number_of_nodes_is_refuted_with_a_bound_that_holds() -> None:
    nodes = Nodes(job_with(2.6), SearchOptions(space="megatron"))
    for number in range(1, NODES + 1):
        floor, exact = nodes.floor(number), optimum(2.6, "megatron", number)
        if exact is not None:
            assert floor.bound_ticks is not None
            assert floor.bound_ticks <= exact
            stopped = nodes.search(number, refuted=lambda bound: bound > 1)
            assert stopped.refuted
            assert stopped.bound_ticks is not None
            assert stopped.bound_ticks <= exact


# --- memory ---------------------------------------------------------------------------------------


@cache
def over_memory(space: str, step_bytes: int) -> Frontier:
    return frontier_over_memory(small(), SearchOptions(space=space), step_bytes, say)


def small() -> CompleteJob:
    return CompleteJob(MODEL, node_with(8.0), JOB, ())


def step_time(space: str, memory_bytes: int) -> int | None:
    job = with_memory(small(), memory_bytes)
    result = search(job.model, job.cluster, job.job, SearchOptions(space=space))
    return result.certificate.objective_ticks


@pytest.mark.parametrize(("space", "step_gib"), [("uniform", 0.0), ("megatron", 0.25)])
def test_points_are_optimal_from_what_they_need_to_the_next_limit(
    space: str, step_gib: float
) -> None:
    found = over_memory(space, int(step_gib * GIB))
    assert found.proven
    assert found.verified
    assert len(found.points) > 3
    for first, second in zip(found.points, found.points[1:], strict=False):
        assert (first.measure, first.ticks) != (second.measure, second.ticks)
        assert first.measure < second.measure
        assert first.ticks > second.ticks
    for point in found.points:
        assert point.limit is not None
        assert needed_bytes(point.plan) == point.measure <= point.limit
        for memory in {point.measure, (point.measure + point.limit) // 2, point.limit}:
            assert step_time(space, memory) == point.ticks
    if step_gib == 0:
        for point, fewer in zip(found.points[1:], found.points, strict=False):
            assert step_time(space, point.measure - 1) == fewer.ticks
    assert found.infeasible_bytes is not None
    assert step_time(space, found.infeasible_bytes) is None


def test_a_stopped_frontier_is_not_proven() -> None:
    options = SearchOptions(space="megatron", time_limit_s=0.0)
    assert not frontier_over_memory(small(), options, GIB, say).proven
    assert not frontier_over_nodes(job_with(80.0), options, "devices", say).proven


def test_output_has_every_point() -> None:
    found = over_memory("uniform", 0)
    document = frontier_document(small(), found, "uniform", None)
    points = document["points"]
    assert isinstance(points, list)
    assert [p["memory_bytes"] for p in points] == [point.measure for point in found.points]
    assert len(frontier_csv(found, None).splitlines()) == 1 + len(found.points)
