"""Equal partitions: how layers are dealt out, and that the best of all of them is found."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings

from ilp_parallel.errors import InputError
from ilp_parallel.imports.piper_instance import piper_instance, read_piper_file
from ilp_parallel.piper.equal import EQUAL, TRANSFORMER, _dealt, equal_partition
from ilp_parallel.piper.solving import solve_instance
from ilp_parallel.problems.piper import Stage, evaluate
from tests.piper.instances import all_plans, random_piper, seeds, written

if TYPE_CHECKING:
    from pathlib import Path

    from ilp_parallel.problems.piper import PiperInstance


def test_remainders_go_to_the_last_stages() -> None:
    sizes = [len(group) for group in _dealt(range(32), 7)]
    assert sizes == [4, 4, 4, 5, 5, 5, 5]
    assert _dealt(range(3), 3) == [[0], [1], [2]]


@settings(max_examples=40, deadline=None)
@given(seeds)
def test_best_equal_partition_of_all_layers(seed: int) -> None:
    instance = replace(random_piper(seed), one_mode_per_stage=False)
    answer = solve_instance(instance, "equint_1")
    assert answer.verified == (answer.plan is not None)
    exact = solve_instance(instance)
    if answer.objective is not None:
        assert exact.objective <= answer.objective
        assert _is_equal(instance, answer.plan)
    values = [
        verdict.objective
        for plan in all_plans(instance)
        if _is_equal(instance, plan)
        for verdict in [evaluate(instance, plan)]
        if verdict.feasible and _in_order(instance, plan)
    ]
    assert answer.objective == min(values, default=None)


def _is_equal(instance: PiperInstance, plan: tuple[Stage, ...]) -> bool:
    names = {
        instance.modes[v][s.tensor_degree][k].name
        for s in plan
        for v, k in zip(s.layers, s.modes, strict=True)
    }
    degrees = {(s.data_degree, s.tensor_degree) for s in plan}
    sizes = [len(s.layers) for s in plan]
    even = sizes == sorted(sizes) and sizes[-1] - sizes[0] <= 1
    return len(degrees) == 1 and even and names in ({"vanilla"}, {"activation recomp"})


def _in_order(instance: PiperInstance, plan: tuple[Stage, ...]) -> bool:
    from ilp_parallel.problems.downsets import topological_order

    order = topological_order(instance.layers, instance.edges)
    start, groups = 0, []
    for stage in plan:
        groups.append(tuple(sorted(order[start : start + len(stage.layers)])))
        start += len(stage.layers)
    return groups == [stage.layers for stage in plan]


def test_ends_are_glued_or_stand_alone(tmp_path: Path) -> None:
    instance = piper_instance(read_piper_file(str(written(tmp_path / "a.json"))))
    named = replace(instance, layer_names=("tensor", TRANSFORMER, "head"), memory=10**9)
    glued = equal_partition(named, "equi_00")
    assert glued is not None
    assert [s.layers for s in glued[1]] == [(0, 1, 2)]
    alone = equal_partition(replace(named, data_degrees=(1,)), "equi_01")
    assert alone is not None
    assert [s.layers for s in alone[1]] == [(0,), (1,), (2,)]


def test_refusals(tmp_path: Path) -> None:
    instance = piper_instance(read_piper_file(str(written(tmp_path / "a.json"))))
    with pytest.raises(InputError, match="NO_TRANSFORMER_LAYERS"):
        equal_partition(replace(instance, layer_names=("a", "b", "c")), "equi_11")
    split = replace(instance, layer_names=(TRANSFORMER, "b", TRANSFORMER))
    with pytest.raises(InputError, match="TRANSFORMERS_NOT_CONTIGUOUS"):
        equal_partition(split, "equi_00")
    assert len(EQUAL) == 6
