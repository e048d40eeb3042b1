"""Each constraint family on its own: minimal instances on both sides, and none superfluous."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from formulations import PIPELINE
from ilp_parallel.problems.pipeline import PipelineInstance, Policy
from ilp_parallel.program import INFINITY, Program
from ilp_parallel.solvers.outcome import SolveOptions
from ilp_parallel.solvers.registry import get_solver
from tests.strategies import random_instance

HIGHS = get_solver("highs")
NAMES = sorted(PIPELINE)


def tiny(
    *,
    layers: int = 2,
    capacity: int = 100,
    largest: int = 2,
    transient: tuple[int, int] = (0, 0),
    state: tuple[int, int] = (10, 10),
    activation: tuple[int, int] = (0, 0),
    forward: tuple[int, int] = (1, 1),
    tail: tuple[int, int] = (0, 0),
    microbatches: int = 2,
    policies: tuple[Policy, ...] | None = None,
) -> PipelineInstance:
    """Two stages, two strategies, one class, 1F1B; pairs are per strategy."""

    def row(pair: tuple[int, int]) -> np.ndarray:
        return np.array([pair], dtype=np.int64)

    zeros = np.zeros(2, dtype=np.int64)
    return PipelineInstance(
        stages=2,
        chunks=1,
        microbatches=microbatches,
        schedule="1f1b",
        layer_class=np.zeros(layers, dtype=np.int64),
        strategy_names=("a", "b"),
        allowed=np.ones((1, 2), dtype=np.bool_),
        forward_ticks=row(forward),
        backward_ticks=row((0, 0)),
        tail_ticks=row(tail),
        state_bytes=row(state),
        activation_bytes=row(activation),
        transient_bytes=row(transient),
        fixed_forward_ticks=zeros,
        fixed_backward_ticks=zeros,
        fixed_tail_ticks=zeros,
        fixed_bytes=zeros,
        cut_ticks=zeros[:1],
        capacity_bytes=np.full(2, capacity),
        min_layers=np.ones(2, dtype=np.int64),
        max_layers=np.full(2, largest),
        in_flight=tuple(np.array([[min(microbatches, 2 - s)]]) for s in range(2)),
        policies=policies,
    )


def optimum(name: str, instance: PipelineInstance) -> int | None:
    outcome = HIGHS(PIPELINE[name].build(instance), SolveOptions())
    assert outcome.status in ("optimal", "infeasible")
    return outcome.objective


@pytest.mark.parametrize("name", NAMES)
def test_sizes(name: str) -> None:
    assert optimum(name, tiny(layers=4, largest=2)) == 4 + 2
    assert optimum(name, tiny(layers=5, largest=2)) is None


@pytest.mark.parametrize("name", NAMES)
def test_memory_of_states(name: str) -> None:
    assert optimum(name, tiny(layers=4, capacity=20)) is not None
    assert optimum(name, tiny(layers=4, capacity=19)) is None


@pytest.mark.parametrize("name", NAMES)
def test_memory_of_activations_in_flight(name: str) -> None:
    """Two microbatches are alive on the first stage, one on the last."""
    assert optimum(name, tiny(activation=(3, 3), capacity=10 + 2 * 3)) is not None
    assert optimum(name, tiny(activation=(3, 3), capacity=10 + 2 * 3 - 1)) is None


@pytest.mark.parametrize("name", NAMES)
def test_largest_transient_counts_once(name: str) -> None:
    assert optimum(name, tiny(layers=4, transient=(7, 7), capacity=27)) is not None
    assert optimum(name, tiny(layers=4, transient=(7, 7), capacity=26)) is None


@pytest.mark.parametrize("name", NAMES)
def test_a_fast_strategy_is_used_as_far_as_memory_goes(name: str) -> None:
    """The fast strategy takes 5 ticks less and 6 bytes more; only one layer per stage has room."""
    instance = tiny(layers=4, forward=(10, 5), state=(10, 16), capacity=26)
    assert optimum(name, instance) == 2 * 15 + 15


@pytest.mark.parametrize("name", NAMES)
def test_largest_tail_is_paid_once(name: str) -> None:
    assert optimum(name, tiny(layers=4, tail=(6, 6), microbatches=1)) == 4 + 2 * 6


def test_one_policy_for_all_stages() -> None:
    """Either all layers are slow, or all are large; a mix is not on offer."""
    pair = (Policy(0, 0, 0), Policy(1, 0, 1))
    instance = tiny(forward=(9, 1), state=(1, 50), capacity=50, policies=pair)
    assert optimum("interval", instance) == 1 + 1 + 1
    tight = replace(instance, capacity_bytes=np.array([50, 49]))
    assert optimum("interval", tight) == 9 + 9 + 9
    assert optimum("interval", replace(tight, policies=pair[1:])) is None


@cache
def samples() -> list[PipelineInstance]:
    drawn = [random_instance(np.random.default_rng(seed)) for seed in range(150)]
    limited = [
        replace(instance, max_layers=np.minimum(instance.max_layers, [3, 1, 3]))
        for instance in drawn
        if instance.stages == 3
    ]
    return drawn + limited


def families() -> list[tuple[str, str]]:
    found = {
        (name, family.name)
        for name, formulation in PIPELINE.items()
        for instance in samples()[:60]
        if formulation.refuses(instance) is None
        for family in formulation.build(instance).rows
    }
    return sorted(found)


def without(program: Program, family_name: str) -> Program:
    """The program with one row family made void."""
    lower, upper = program.row_lower.copy(), program.row_upper.copy()
    for family in program.rows:
        if family.name == family_name:
            lower[family.start : family.start + family.size] = -INFINITY
            upper[family.start : family.start + family.size] = INFINITY
    return replace(program, row_lower=lower, row_upper=upper)


@pytest.mark.parametrize(("name", "family"), families())
def test_no_family_is_superfluous(name: str, family: str) -> None:
    """Without it some optimum or relaxation is too good, unless it only breaks symmetry."""
    weaker, symmetry = False, family == "equal_layers_sorted"
    for instance in samples():
        if PIPELINE[name].refuses(instance) is not None:
            continue
        program = PIPELINE[name].build(instance)
        if not any(f.name == family and f.size for f in program.rows):
            continue
        loose_program = without(program, family)
        full, loose = HIGHS.relaxation(program), HIGHS.relaxation(loose_program)
        drops = full is not None and loose is not None and loose < full - 1e-4 * (1 + abs(full))
        if drops and not symmetry:
            weaker = True
            break
        optimum = HIGHS(program, SolveOptions()).objective
        loose_optimum = HIGHS(loose_program, SolveOptions()).objective
        assert optimum is None or (loose_optimum is not None and loose_optimum <= optimum)
        if loose_optimum is not None and (optimum is None or loose_optimum < optimum):
            weaker = True
            break
    assert weaker != symmetry
