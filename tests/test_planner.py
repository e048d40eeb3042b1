"""The search finds the best of all configurations, each solved by itself without a cutoff."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ilp_parallel.baselines.two_level_dp import two_level_dp
from ilp_parallel.certificate import decode, encode
from ilp_parallel.configuration import Configuration
from ilp_parallel.costs.model import CostModel
from ilp_parallel.instances import InstanceBuilder
from ilp_parallel.jobs import JobRequest, complete_job
from ilp_parallel.planner import SearchOptions, search
from ilp_parallel.spaces import Pins, enumerate_configurations, get_space
from ilp_parallel.verify import verify
from tests.small_jobs import JOB, LONG_JOB, LONG_MODEL, MODEL, NODE, node_with

if TYPE_CHECKING:
    from ilp_parallel.specs.job import JobSpec
    from ilp_parallel.specs.model import ModelSpec

SPACES = ("uniform", "megatron", "mixed")
SCHEDULES = SearchOptions().schedules
MEMORY_GIB = (2.6, 3.2, 80.0)  # binding everywhere, binding somewhere, never
LONG_MEMORY_GIB = (2.6, 3.5, 4.0, 5.0, 80.0)
PINS = (
    Pins(),
    Pins.parse(("pp=2",), ()),
    Pins.parse(("zero=1",), ("recompute=none",)),
    Pins.parse((), ("tp=1", "vpp=2")),
)


def model_of(job: JobSpec) -> ModelSpec:
    return LONG_MODEL if job is LONG_JOB else MODEL


def enumerated_optimum(memory_gib: float, space: str, pins: Pins, job: JobSpec = JOB) -> int | None:
    """Least objective over all configurations; no bound and no cutoff is used."""
    cluster = node_with(memory_gib)
    model = model_of(job)
    builder = InstanceBuilder(CostModel(model, cluster, job), get_space(space), pins)
    values = []
    for item in enumerate_configurations(model, cluster, job, builder.space, pins, SCHEDULES):
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


@pytest.mark.parametrize("pin", [None, "cp=1", "cp=2", "cp=4"])
@pytest.mark.parametrize("memory_gib", LONG_MEMORY_GIB)
@pytest.mark.parametrize("space", SPACES[1:])
def test_search_over_context_degrees_equals_enumeration(
    space: str, memory_gib: float, pin: str | None
) -> None:
    pins = Pins() if pin is None else Pins.parse((pin,), ())
    options = SearchOptions(space=space, pins=pins)
    result = search(LONG_MODEL, node_with(memory_gib), LONG_JOB, options)
    optimum = enumerated_optimum(memory_gib, space, pins, LONG_JOB)
    assert result.certificate.objective_ticks == result.certificate.bound_ticks == optimum
    assert result.status == ("infeasible" if optimum is None else "optimal")
    assert all(check.passed for check in verify(result.certificate))
    if pin is not None and result.plan is not None:
        assert result.plan.configuration.context == int(pin[-1])


def test_context_ranks_are_used_where_they_are_best() -> None:
    """Few long sequences: whoever may not split them is slower."""
    chosen = search(LONG_MODEL, node_with(4.0), LONG_JOB, SearchOptions()).plan
    assert chosen is not None
    assert chosen.configuration.context > 1
    best, without = (
        enumerated_optimum(4.0, "mixed", pins, LONG_JOB)
        for pins in (Pins(), Pins.parse(("cp=1",), ()))
    )
    assert best is not None
    assert without is not None
    assert best < without


@pytest.mark.parametrize("space", SPACES[1:])
def test_long_context_of_a_preset(space: str) -> None:
    """Llama 3 8B with 131,072 tokens on 64 H100: split sequences are proven best."""
    request = JobRequest("llama3-8b", cluster="h100-80gb:8x8", batch=64, sequence=131072)
    long = complete_job(request)
    free, whole = (
        search(long.model, long.cluster, long.job, SearchOptions(space=space, pins=pins))
        for pins in (Pins(), Pins.parse(("cp=1",), ()))
    )
    assert free.plan is not None
    assert free.plan.configuration.context > 1
    assert free.status == whole.status == "optimal"
    assert all(check.passed for check in verify(free.certificate))
    best, without = free.certificate.objective_ticks, whole.certificate.objective_ticks
    assert best is not None
    assert without is not None
    assert best < without


@pytest.mark.parametrize(
    ("memory_gib", "job"),
    [(memory, JOB) for memory in MEMORY_GIB] + [(memory, LONG_JOB) for memory in LONG_MEMORY_GIB],
)
def test_mixed_contains_the_others(memory_gib: float, job: JobSpec) -> None:
    mixed, *others = (enumerated_optimum(memory_gib, s, Pins(), job) for s in reversed(SPACES))
    assert all(other is None or (mixed is not None and mixed <= other) for other in others)
    assert mixed is not None or memory_gib == LONG_MEMORY_GIB[0]


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
