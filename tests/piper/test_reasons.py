"""Every reason holds where it is given."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings

from ilp_parallel.piper.reasons import why_infeasible
from ilp_parallel.piper.solving import solve_instance
from ilp_parallel.problems.piper import Mode
from tests.piper.instances import random_piper, seeds
from tests.problems.test_piper import INSTANCE

KEPT = Mode("vanilla", 10, 1, 3, 2, (), (4,))
"""Alone it needs 5 bytes with one microbatch in flight and 8 with two; the layer after it 3."""

TIGHT = replace(
    INSTANCE,
    modes=({1: (KEPT,)}, {1: INSTANCE.modes[1][1][1:]}),
    memory=7,
    devices=2,
    data_degrees=(1,),
)
CASES = {
    "LAYER_HAS_NO_MODE": (replace(INSTANCE, tensor_degrees=()), "full"),
    "LAYER_TOO_LARGE": (replace(INSTANCE, memory=2), "full"),
    "MODEL_TOO_LARGE": (replace(TIGHT, devices=1), "full"),
    "STAGES_TOO_LARGE": (TIGHT, "full"),
    "NO_EQUAL_PARTITION_FITS": (TIGHT, "equint_0"),
}


@pytest.mark.parametrize("code", CASES)
def test_codes(code: str) -> None:
    answer = solve_instance(*CASES[code])
    assert answer.status == "infeasible"
    assert answer.reason is not None
    assert answer.reason.code == code
    assert solve_instance(replace(TIGHT, memory=8)).status == "optimal"


@settings(max_examples=60, deadline=None)
@given(seeds)
def test_only_infeasible_problems_have_one(seed: int) -> None:
    """The codes that hold by themselves are never given for a problem that has a plan."""
    instance = random_piper(seed)
    answer = solve_instance(instance)
    assert (answer.reason is None) == (answer.status != "infeasible")
    if answer.status == "optimal":
        assert why_infeasible(instance).code == "STAGES_TOO_LARGE"
