"""Conflicts and relaxations against plain enumeration of subsets and of values."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, combinations
from typing import TYPE_CHECKING, get_args

import pytest

from ilp_parallel.configuration import Configuration
from ilp_parallel.costs.model import CostModel
from ilp_parallel.diagnosis.feasibility import Question, fits
from ilp_parallel.diagnosis.relaxations import relaxations
from ilp_parallel.diagnosis.requirements import (
    Relaxer,
    corrections,
    find_conflict,
    requirements_of,
    with_batch,
    with_fixed,
    with_memory,
)
from ilp_parallel.instances import InstanceBuilder
from ilp_parallel.problems.pipeline import Schedule
from ilp_parallel.spaces import Pins, get_space
from tests.small_jobs import GIB, JOB, MODEL, node_with

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ilp_parallel.diagnosis.requirements import Requirement

ALL: tuple[Schedule, ...] = get_args(Schedule)


def asked(
    memory_gib: float,
    fixed: tuple[str, ...] = (),
    forbidden: tuple[str, ...] = (),
    space: str = "mixed",
    schedules: tuple[Schedule, ...] = ALL,
    sequence: int = 1024,
) -> Question:
    job = replace(JOB, sequence_length=sequence)
    pins = Pins.parse(fixed, forbidden)
    return Question(MODEL, node_with(memory_gib), job, get_space(space), pins, schedules)


INFEASIBLE = (
    asked(1.3),
    asked(1.6, space="megatron"),
    asked(2.4, ("pp=1", "tp=1", "recompute=none")),
    asked(3.0, ("zero=0", "pp=1", "tp=1"), space="megatron"),
    asked(3.0, ("tp=1",), ("zero=3", "zero=1", "pp=4"), "megatron"),
    asked(2.6, ("mbs=4", "recompute=none"), sequence=4096),
    asked(80.0, ("dp=3",)),
    asked(80.0, ("tp=8",)),
    asked(80.0, ("microbatches=3", "dp=2")),
    asked(2.0, ("recompute=none",), (), "uniform", ("gpipe",)),
    asked(80.0, ("pp=1",), ("schedule=1f1b", "schedule=gpipe")),
)


@pytest.mark.parametrize("question", INFEASIBLE, ids=range(len(INFEASIBLE)))
def test_a_conflict_is_smallest_and_irreducible(question: Question) -> None:
    """Every set of requirements is decided anew, by a relaxer that has no other to lean on."""
    assert not fits(question)
    found = find_conflict(Relaxer(question, ALL))
    assert found.undecided == ()
    assert found.smallest

    def possible(kept: Iterable[Requirement]) -> bool | None:
        return Relaxer(question, ALL).possible(kept)

    assert possible(found.members) is False
    for member in found.members:
        assert possible(m for m in found.members if m != member) is True
    everything = requirements_of(question, ALL)
    smaller = chain.from_iterable(combinations(everything, n) for n in range(len(found.members)))
    assert all(possible(chosen) is True for chosen in smaller)


def test_requirements_are_in_the_users_words() -> None:
    question = asked(2.0, ("tp=2", "tp=4"), ("zero=3",), "megatron", ("gpipe",))
    words = [requirement.text for requirement in requirements_of(question, ALL)]
    assert words == [
        "--space megatron",
        "--schedule gpipe",
        "--forbid zero=3",
        "--batch 8",
        "--seq 1024",
        "--fix tp=2 --fix tp=4",
        "4 devices (1 nodes of 4)",
        "2.0 GiB per device (a100-80gb)",
    ]


@pytest.mark.parametrize("question", INFEASIBLE, ids=range(len(INFEASIBLE)))
def test_giving_up_means_that_some_value_would_do(question: Question) -> None:
    """Dropping batch, devices, memory or length agrees with trying many values of each."""
    relaxer = Relaxer(question, ALL)
    values = {
        "batch": [with_batch(question, n) for n in range(1, 33)],
        "devices": [question.on_nodes(n) for n in range(1, 65)],
        "memory": [with_memory(question, 4096 * GIB)],
        "sequence": [
            replace(question, job=replace(question.job, sequence_length=128 * n))
            for n in range(1, 33)
        ],
    }
    for requirement in relaxer.requirements:
        if requirement.kind in values:
            kept = [r for r in relaxer.requirements if r != requirement]
            tried = any(fits(value) for value in values[requirement.kind])
            assert relaxer.possible(kept) is tried, requirement.kind


@pytest.mark.parametrize("question", INFEASIBLE, ids=range(len(INFEASIBLE)))
def test_relaxations_fit_and_their_predecessors_do_not(question: Question) -> None:
    relaxer = Relaxer(question, ALL)
    single = [members[0] for members in corrections(relaxer) if len(members) == 1]
    found = list(relaxations(relaxer, single))
    assert {r.requirement for r in found} == set(single)
    for relaxation in found:
        plan, kind = relaxation.plan, relaxation.requirement.kind
        assert plan is not None
        assert CostModel(plan.model, plan.cluster, plan.job).terms(plan).fits
        if kind == "devices":
            now, nodes = question.cluster.nodes, plan.cluster.nodes
            between = range(now + 1, nodes) if nodes > now else range(nodes + 1, now)
            assert not any(fits(question.on_nodes(n)) for n in between)
        elif kind == "sequence":
            longer = plan.job.sequence_length + relaxer.granule
            job = replace(question.job, sequence_length=longer)
            assert longer > question.job.sequence_length or not fits(replace(question, job=job))
        elif kind == "memory" and relaxation.change.endswith("per device"):
            size = plan.cluster.device.memory_bytes
            assert size % GIB == 0
            assert size - GIB <= question.cluster.device.memory_bytes or not fits(
                with_memory(question, size - GIB)
            )
        elif kind == "batch":
            asked_for, got = question.job.global_batch, plan.job.global_batch
            nearer = range(asked_for - abs(got - asked_for) + 1, asked_for + abs(got - asked_for))
            assert not any(fits(with_batch(question, n)) for n in nearer if n > 0)


def test_the_next_step_of_recomputation_and_sharding() -> None:
    """What recomputes least of all that fits comes first, and what was passed over does not fit."""
    for key, question in (
        ("recompute", with_batch(asked(4.5, ("recompute=none", "mbs=8", "pp=1", "tp=2")), 32)),
        ("zero", asked(3.6, ("zero=0", "tp=1", "pp=1"))),
    ):
        relaxer = Relaxer(question, ALL)
        requirement = next(r for r in relaxer.requirements if r.key == key)
        (found,) = relaxations(relaxer, [requirement])
        value = found.change.partition("=")[2]
        refuted = [word.partition("=")[2] for word in found.refuted.replace(",", "").split()]
        assert fits(with_fixed(question, **{key: value}))
        assert not any(fits(with_fixed(question, **{key: v})) for v in refuted if v)


def test_what_no_single_requirement_mends_needs_two() -> None:
    """tp=8 on nodes of 4 and dp=3 of a batch of 8: two conflicts that share nothing."""
    relaxer = Relaxer(asked(80.0, ("tp=8", "dp=3")), ALL)
    found = corrections(relaxer)
    assert {len(members) for members in found} == {2}
    assert all("--fix tp=8" in {r.text for r in members} for members in found)
    assert list(relaxations(relaxer, [])) == []


def test_time_that_runs_out_is_said() -> None:
    relaxer = Relaxer(asked(1.3), ALL, time_limit_s=-1.0)
    found = find_conflict(relaxer)
    assert not found.smallest
    assert found.undecided


def memory_parts(question: Question, configuration: Configuration) -> list[list[float]]:
    """Per strategy and stage: state + in flight x activations + transient + fixed, in bytes."""
    costs = CostModel(question.model, question.cluster, question.job)
    instance = InstanceBuilder(costs, question.space, question.pins).build(configuration)
    alive = [int(rows.max()) for rows in instance.in_flight]
    return [
        [
            float(
                instance.state_bytes[0, k]
                + alive[s] * instance.activation_bytes[0, k]
                + instance.transient_bytes[0, k]
                + instance.fixed_bytes[s]
                - instance.capacity_bytes[s]
            )
            for s in range(instance.stages)
        ]
        for k in range(instance.strategies)
    ]


def no_lighter(heavy: list[list[float]], light: list[list[float]]) -> bool:
    pairs = zip(heavy, light, strict=True)
    return all(h >= x for a, b in pairs for h, x in zip(a, b, strict=True))


@pytest.mark.parametrize("tensor", [1, 2, 4])
@pytest.mark.parametrize("pipeline", [1, 2, 4])
def test_memory_grows_with_sequence_and_microbatch_and_falls_with_data_degree(
    pipeline: int, tensor: int
) -> None:
    """What dropping a requirement rests on."""

    def configuration(data: int, size: int, number: int) -> Configuration:
        return Configuration(pipeline, tensor, data, size, number, 1, tensor > 1, "1f1b")

    def parts(data: int, size: int, number: int, sequence: int = 1024) -> list[list[float]]:
        nodes = replace(node_with(80.0), nodes=pipeline * tensor * data // 4 or 1)
        job = replace(JOB, global_batch=data * size * number, sequence_length=sequence)
        question = replace(asked(80.0), cluster=nodes, job=job)
        return memory_parts(question, configuration(data, size, number))

    for data in (4, 8, 16):
        assert no_lighter(parts(data, 1, 8, 2048), parts(data, 1, 8, 1024))
        assert no_lighter(parts(data, 2, 4), parts(data, 1, 8))
        assert no_lighter(parts(data, 1, 8), parts(data, 1, 2))
        assert no_lighter(parts(data, 1, 8), parts(2 * data, 1, 8))
