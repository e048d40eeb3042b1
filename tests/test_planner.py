"""The search finds the best of all configurations, each solved by itself without a cutoff."""

from __future__ import annotations

import pytest

from ilp_parallel.baselines.two_level_dp import two_level_dp
from ilp_parallel.certificate import decode, encode
from ilp_parallel.configuration import Configuration
from ilp_parallel.costs.model import CostModel
from ilp_parallel.instances import InstanceBuilder
from ilp_parallel.planner import SearchOptions, search
from ilp_parallel.spaces import Pins, enumerate_configurations, get_space
from ilp_parallel.verify import verify
from tests.small_jobs import JOB, MODEL, NODE, node_with

SPACES = ("uniform", "megatron", "mixed")
SCHEDULES = SearchOptions().schedules
MEMORY_GIB = (2.6, 3.2, 80.0)  # binding everywhere, binding somewhere, never
PINS = (
    Pins(),
    Pins.parse(("pp=2",), ()),
    Pins.parse(("zero=1",), ("recompute=none",)),
    Pins.parse((), ("tp=1", "vpp=2")),
)


def enumerated_optimum(memory_gib: float, space: str, pins: Pins) -> int | None:
    """Least objective over all configurations; no bound and no cutoff is used."""
    cluster = node_with(memory_gib)
    builder = InstanceBuilder(CostModel(MODEL, cluster, JOB), get_space(space), pins)
    values = []
    for item in enumerate_configurations(MODEL, cluster, JOB, builder.space, pins, SCHEDULES):
        if isinstance(item, Configuration):
            instance = builder.build(item)
            found = two_level_dp(instance)
            if found is not None:
                values.append(instance.objective.ticks(found.numerator))
    return min(values, default=None)


@pytest.mark.parametrize("pins", PINS, ids=range(len(PINS)))
@pytest.mark.parametrize("memory_gib", MEMORY_GIB)
@pytest.mark.parametrize("space", SPACES)
def test_search_equals_enumeration(space: str, memory_gib: float, pins: Pins) -> None:
    result = search(MODEL, node_with(memory_gib), JOB, SearchOptions(space=space, pins=pins))
    optimum = enumerated_optimum(memory_gib, space, pins)
    certificate = result.certificate
    assert certificate.objective_ticks == certificate.bound_ticks == optimum
    assert result.status == ("infeasible" if optimum is None else "optimal")
    assert (result.plan is None) == (optimum is None)
    assert all(check.passed for check in verify(certificate))


@pytest.mark.parametrize("memory_gib", MEMORY_GIB)
def test_mixed_contains_the_others(memory_gib: float) -> None:
    mixed, *others = (enumerated_optimum(memory_gib, s, Pins()) for s in reversed(SPACES))
    assert mixed is not None
    assert all(other is None or mixed <= other for other in others)


def test_infeasible_job() -> None:
    result = search(MODEL, node_with(1.01), JOB, SearchOptions())
    assert result.status == "infeasible"
    assert result.certificate.objective_ticks is None
    assert all(check.passed for check in verify(result.certificate))


@pytest.mark.parametrize("polls", [0, 1, 3])
def test_stopped_search_claims_no_more_than_it_knows(polls: int) -> None:
    left = iter([False] * polls)
    options = SearchOptions(cancelled=lambda: next(left, True))
    certificate = search(MODEL, node_with(3.2), JOB, options).certificate
    optimum = enumerated_optimum(3.2, "mixed", Pins())
    assert optimum is not None
    assert certificate.bound_ticks is not None
    assert certificate.bound_ticks <= optimum
    assert certificate.status in ("unknown", "feasible", "optimal")
    if certificate.objective_ticks is not None:
        assert certificate.objective_ticks >= optimum
    assert all(check.passed for check in verify(certificate))


def test_no_time_no_plan() -> None:
    result = search(MODEL, NODE, JOB, SearchOptions(time_limit_s=0.0))
    assert result.status == "unknown"
    assert result.plan is None
    assert result.certificate.bound_ticks is not None
    assert all(check.passed for check in verify(result.certificate))


def test_same_seed_same_certificate() -> None:
    first, second = (search(MODEL, node_with(3.2), JOB, SearchOptions()) for _ in range(2))
    data = encode(first.certificate)
    assert data == encode(second.certificate)
    assert decode(data) == first.certificate
    assert encode(decode(data)) == data
