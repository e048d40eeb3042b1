"""Every rule of the pipeline problem on both sides, for ``evaluate`` and the dynamic program."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ilp_parallel.baselines.two_level_dp import two_level_dp
from ilp_parallel.problems.pipeline import (
    PipelineInstance,
    PipelineSolution,
    Policy,
    Schedule,
    evaluate,
    policy_strategies,
)
from tests.bruteforce import all_solutions, brute_force


def small(
    *,
    schedule: Schedule = "1f1b",
    layers: int = 3,
    capacity: int = 100,
    largest: int = 2,
    allowed: tuple[bool, bool] = (True, True),
    policies: tuple[Policy, ...] | None = None,
) -> PipelineInstance:
    """Two stages; strategy a is slow and small, b fast and large. Every term is distinct."""

    def row(*values: int) -> np.ndarray:
        return np.array([values], dtype=np.int64)

    def vector(*values: int) -> np.ndarray:
        return np.array(values, dtype=np.int64)

    return PipelineInstance(
        stages=2,
        chunks=1,
        microbatches=4,
        schedule=schedule,
        layer_class=np.zeros(layers, dtype=np.int64),
        strategy_names=("a", "b"),
        allowed=np.array([allowed]),
        forward_ticks=row(10, 7),
        backward_ticks=row(23, 13),
        tail_ticks=row(1, 2),
        state_bytes=row(3, 5),
        activation_bytes=row(1, 4),
        transient_bytes=row(6, 2),
        fixed_forward_ticks=vector(100, 0),
        fixed_backward_ticks=vector(0, 200),
        fixed_tail_ticks=vector(5, 0),
        fixed_bytes=vector(8, 9),
        cut_ticks=vector(1000),
        capacity_bytes=vector(capacity, capacity),
        min_layers=vector(1, 1),
        max_layers=vector(largest, largest),
        in_flight=(np.array([[2]]), np.array([[1]])),
        policies=policies,
    )


def failed(instance: PipelineInstance, solution: PipelineSolution) -> dict[str, int]:
    """Slack of every broken rule."""
    return {c.name: c.slack for c in evaluate(instance, solution).checks if not c.passed}


def test_every_term_by_hand() -> None:
    """Two layers (a, b) on the first stage, one (b) on the second."""
    evaluation = evaluate(small(), PipelineSolution((2, 1), (0, 1, 1)))
    forward = (10 + 7 + 100 + 1000, 7)  # the cut is paid where it is sent from
    backward = (23 + 13, 13 + 200 + 1000)
    tail = (1 + 2 + 5, 2)
    assert evaluation.forward_ticks == forward
    assert evaluation.backward_ticks == backward
    assert evaluation.tail_ticks == tail
    assert evaluation.memory_bytes == (8 + (3 + 5) + 2 * (1 + 4) + 6, 9 + 5 + 4 + 2)
    total = sum(forward) + sum(backward)
    slowest = max(f + b for f, b in zip(forward, backward, strict=True))
    assert evaluation.numerator == total + 3 * slowest + max(tail)
    gpipe = evaluate(small(schedule="gpipe"), PipelineSolution((2, 1), (0, 1, 1)))
    assert gpipe.numerator == total + 3 * (max(forward) + max(backward)) + max(tail)


def test_interleaved_objective_is_rounded_up() -> None:
    folded = replace(small(), schedule="interleaved", fold=3)
    plain = evaluate(small(), PipelineSolution((2, 1), (0, 1, 1)))
    priced = evaluate(folded, PipelineSolution((2, 1), (0, 1, 1)))
    work = [f + b for f, b in zip(plain.forward_ticks, plain.backward_ticks, strict=True)]
    assert priced.numerator == sum(work) + (4 * 3 - 1) * max(work) + 3 * max(plain.tail_ticks)
    assert 3 * (priced.objective_ticks - 1) < priced.numerator <= 3 * priced.objective_ticks


def test_layers_placed() -> None:
    """Another number of layers is no solution at all."""
    assert not failed(small(), PipelineSolution((2, 1), (0, 0, 0)))
    for sizes, strategies in (
        ((1, 1), (0, 0, 0)),
        ((1, 1), (0, 0)),
        ((2, 2), (0, 0, 0)),
        ((3,), (0, 0, 0)),
        ((4, -1), (0, 0, 0)),
        ((2, 1), (0, 0, 2)),
    ):
        with pytest.raises(ValueError, match=r"."):
            evaluate(small(), PipelineSolution(sizes, strategies))


def test_stage_sizes() -> None:
    instance = small(layers=4)
    assert not failed(instance, PipelineSolution((2, 2), (0,) * 4))
    uneven = PipelineSolution((3, 1), (0,) * 4)
    assert failed(instance, uneven) == {"stage_size[0]": -1}
    assert failed(instance, PipelineSolution((0, 4), (0,) * 4)) == {
        "stage_size[0]": -1,
        "stage_size[1]": -2,
    }
    assert two_level_dp(instance) is not None
    assert two_level_dp(replace(instance, max_layers=np.array([2, 1]))) is None
    assert two_level_dp(replace(instance, min_layers=np.array([3, 1]))) is None


def test_allowed_strategies() -> None:
    mixed = PipelineSolution((2, 1), (0, 1, 1))
    assert not failed(small(), mixed)
    assert failed(small(allowed=(True, False)), mixed) == {"strategies_allowed": -2}
    only_a = two_level_dp(small(allowed=(True, False)))
    assert only_a is not None
    assert only_a.solution.strategies == (0, 0, 0)
    assert two_level_dp(small(allowed=(False, False))) is None


def test_policy() -> None:
    one = (Policy(0, 1, 1),)  # the first layer of each stage a, the others b
    assert policy_strategies(one[0], (2, 1)) == (0, 1, 0)
    assert not failed(small(policies=one), PipelineSolution((2, 1), (0, 1, 0)))
    assert failed(small(policies=one), PipelineSolution((2, 1), (0, 1, 1))) == {"policy": -1}
    found = two_level_dp(small(policies=one))
    assert found is not None
    assert found.solution.strategies == policy_strategies(one[0], found.solution.sizes)
    assert two_level_dp(small(policies=one, allowed=(False, True))) is None


def test_memory() -> None:
    """Capacity one byte short of the lightest solution leaves nothing, and the check says so."""
    instance = small()
    lightest = min(
        max(evaluate(instance, s).memory_bytes)
        for s in all_solutions(instance)
        if not failed(instance, s)
    )
    found = two_level_dp(small(capacity=lightest))
    assert found is not None
    assert not failed(small(capacity=lightest), found.solution)
    assert two_level_dp(small(capacity=lightest - 1)) is None
    broken = failed(small(capacity=lightest - 1), found.solution)
    assert set(broken.values()) == {-1}
    assert all(name.startswith("memory[") for name in broken)


@pytest.mark.parametrize("group", [0, 1])
def test_one_byte_decides_on_every_group(group: int) -> None:
    """One solution is left by the other rules, and its memory is met exactly, or is not."""
    solution = PipelineSolution((1, 2), (1, 1, 1))
    sizes = np.array(solution.sizes)
    needed = np.array(evaluate(small(), solution).memory_bytes)
    only = replace(
        small(allowed=(False, True)), min_layers=sizes, max_layers=sizes, capacity_bytes=needed
    )
    found = two_level_dp(only)
    assert found is not None
    assert found.solution == solution
    short = replace(only, capacity_bytes=needed - (np.arange(2) == group))
    assert failed(short, solution) == {f"memory[{group}]": -1}
    assert two_level_dp(short) is None


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("capacity", range(20, 60, 5))
def test_brute_force_is_the_minimum_of_evaluate(schedule: Schedule, capacity: int) -> None:
    """The judge of the other tests, itself judged in the slowest way."""
    instance = small(schedule=schedule, capacity=capacity)
    evaluations = [evaluate(instance, solution) for solution in all_solutions(instance)]
    expected = min((e.numerator for e in evaluations if e.feasible), default=None)
    assert brute_force(instance) == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fixed_bytes": np.zeros(3, dtype=np.int64)}, "shape"),
        ({"forward_ticks": np.array([[-1, 1]])}, "negative"),
        ({"in_flight": (np.array([[1]]),)}, "one table per device group"),
        ({"in_flight": (np.array([[1, 1]]),) * 2}, "one entry per chunk"),
        ({"fold": 2}, "interleaving"),
        ({"microbatches": 0}, "at least 1"),
        ({"min_layers": np.array([0, 1])}, "at least 1"),
    ],
)
def test_inconsistent_instances_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(small(), **change)


def test_digest_follows_every_value() -> None:
    instance = small()
    assert small().digest == instance.digest
    for other in (
        small(capacity=99),
        small(schedule="gpipe"),
        small(allowed=(True, False)),
        replace(instance, in_flight=(np.array([[2]]), np.array([[2]]))),
        small(policies=(Policy(0, 0, 0),)),
    ):
        assert other.digest != instance.digest
