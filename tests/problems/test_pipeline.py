"""Every rule of the problem on a minimal instance: kept, and broken."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ilp_parallel.baselines.two_level_dp import two_level_dp
from ilp_parallel.problems.pipeline import (
    PipelineInstance,
    PipelineSolution,
    Policy,
    evaluate,
)


def array(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def table(*rows: tuple[int, ...]) -> np.ndarray:
    return np.array(rows, dtype=np.int64)


BASE = PipelineInstance(
    stages=2,
    chunks=1,
    microbatches=3,
    schedule="1f1b",
    layer_class=array(0, 0, 0),
    strategy_names=("fast", "small"),
    allowed=np.array([[True, True]]),
    forward_ticks=table((1, 2)),
    backward_ticks=table((2, 3)),
    tail_ticks=table((1, 1)),
    state_bytes=table((3, 1)),
    activation_bytes=table((2, 1)),
    transient_bytes=table((0, 4)),
    fixed_forward_ticks=array(1, 0),
    fixed_backward_ticks=array(0, 2),
    fixed_tail_ticks=array(0, 5),
    fixed_bytes=array(1, 2),
    cut_ticks=array(7),
    capacity_bytes=array(100, 100),
    min_layers=array(1, 1),
    max_layers=array(2, 2),
    in_flight=(table((2,)), table((1,))),
)
FAST = PipelineSolution((1, 2), (0, 0, 0))


def failed(instance: PipelineInstance, solution: PipelineSolution) -> list[str]:
    return [check.name for check in evaluate(instance, solution).checks if not check.passed]


def test_objective_by_hand() -> None:
    """F' = (1+1+7, 1+1), B' = (2, 2+2+2+7), tails (1, 7)."""
    evaluation = evaluate(BASE, FAST)
    assert evaluation.forward_ticks == (9, 2)
    assert evaluation.backward_ticks == (2, 13)
    assert evaluation.tail_ticks == (1, 7)
    assert evaluation.numerator == 26 + 2 * 15 + 7
    gpipe = evaluate(replace(BASE, schedule="gpipe"), FAST)
    assert gpipe.numerator == 26 + 2 * (9 + 13) + 7


def test_memory_by_hand() -> None:
    """Group 0 holds one fast layer twice in flight, group 1 a fast and a small one once."""
    evaluation = evaluate(BASE, PipelineSolution((1, 2), (0, 0, 1)))
    assert evaluation.memory_bytes == (1 + 3 + 2 * 2, 2 + (3 + 1) + (2 + 1) + 4)


def test_layers_placed() -> None:
    assert failed(BASE, FAST) == []
    with pytest.raises(ValueError, match="layers"):
        evaluate(BASE, PipelineSolution((1, 1), (0, 0, 0)))
    assert two_level_dp(replace(BASE, max_layers=array(1, 1))) is None  # nowhere for the third


@pytest.mark.parametrize(("low", "high"), [((2, 1), (3, 3)), ((1, 1), (3, 1))])
def test_stage_sizes(low: tuple[int, int], high: tuple[int, int]) -> None:
    instance = replace(BASE, min_layers=array(*low), max_layers=array(*high))
    assert len(failed(instance, FAST)) == 1
    assert failed(instance, FAST)[0].startswith("stage_size")
    assert failed(instance, PipelineSolution((2, 1), (0, 0, 0))) == []
    optimum = two_level_dp(instance)
    assert optimum is not None
    assert optimum.solution.sizes == (2, 1)
    impossible = replace(BASE, min_layers=array(2, 2), max_layers=array(3, 3))
    assert two_level_dp(impossible) is None


def test_allowed_strategies() -> None:
    instance = replace(BASE, allowed=np.array([[False, True]]))
    assert failed(instance, FAST) == ["strategies_allowed"]
    optimum = two_level_dp(instance)
    assert optimum is not None
    assert optimum.solution.strategies == (1, 1, 1)
    assert two_level_dp(replace(BASE, allowed=np.array([[False, False]]))) is None


def test_policy() -> None:
    """Full recomputation of the first layer of every stage is not one strategy everywhere."""
    instance = replace(BASE, policies=(Policy(1, 1, 0),))
    assert failed(instance, FAST) == ["policy"]
    assert failed(instance, PipelineSolution((1, 2), (1, 1, 0))) == []
    optimum = two_level_dp(instance)
    assert optimum is not None
    assert optimum.solution.strategies in {(1, 1, 0), (1, 0, 1)}
    forbidden = replace(instance, allowed=np.array([[True, False]]))
    assert two_level_dp(forbidden) is None


@pytest.mark.parametrize("group", [0, 1])
def test_memory(group: int) -> None:
    """One byte decides."""
    needed = evaluate(BASE, FAST).memory_bytes
    capacity = array(100, 100)
    capacity[group] = needed[group]
    assert failed(replace(BASE, capacity_bytes=capacity), FAST) == []
    capacity = capacity.copy()
    capacity[group] -= 1
    assert failed(replace(BASE, capacity_bytes=capacity), FAST) == [f"memory[{group}]"]
    capacity[group] = 0
    assert two_level_dp(replace(BASE, capacity_bytes=capacity)) is None


def test_capacity_exactly_met_is_found_by_the_dynamic_program() -> None:
    needed = array(*evaluate(BASE, FAST).memory_bytes)
    sizes = array(1, 2)
    only = replace(
        BASE,
        capacity_bytes=needed,
        min_layers=sizes,
        max_layers=sizes,
        allowed=np.array([[True, False]]),
    )
    optimum = two_level_dp(only)
    assert optimum is not None
    assert optimum.solution == FAST
    assert two_level_dp(replace(only, capacity_bytes=needed - array(0, 1))) is None


def test_digest_follows_every_number() -> None:
    assert BASE.digest == replace(BASE).digest
    assert BASE.digest != replace(BASE, capacity_bytes=array(100, 101)).digest
    assert BASE.digest != replace(BASE, microbatches=4).digest
