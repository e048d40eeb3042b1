"""``evaluate``: every rule has a plan that keeps it and one that breaks it; prices by hand."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from ilp_parallel.problems.piper import Mode, PiperInstance, Stage, evaluate, in_flight


def mode(name: str, time: int, activation: int, enter: int = 0, leave: int = 0) -> Mode:
    return Mode(name, time, 1, activation, 2, (enter,) if enter else (), (leave,) if leave else ())


INSTANCE = PiperInstance(
    name="two",
    layer_ids=(3, 1),
    layer_names=("a", "b"),
    edges=((0, 1),),
    modes=(
        {1: (mode("vanilla", 10, 5, leave=4), mode("activation recomp", 13, 1, leave=4))},
        {
            1: (mode("vanilla", 20, 5, enter=6), mode("activation recomp", 25, 1, enter=6)),
            2: (mode("vanilla", 11, 3, enter=7),),
        },
    ),
    devices=4,
    microbatches=4,
    memory=20,
    units_per_second=2,
    units_per_byte=1,
    data_degrees=(1, 2, 4),
    tensor_degrees=(1, 2),
)
TOGETHER = (Stage((0, 1), 2, 1, (0, 0)),)
APART = (Stage((0,), 1, 1, (0,)), Stage((1,), 1, 2, (0,)))


def failed(instance: PiperInstance, plan: tuple[Stage, ...]) -> set[str]:
    return {check.name for check in evaluate(instance, plan).checks if not check.passed}


def test_prices_by_hand() -> None:
    assert not failed(INSTANCE, TOGETHER)
    assert evaluate(INSTANCE, TOGETHER).objective == Fraction(10 + 20 + 2, 2 * 2)
    verdict = evaluate(INSTANCE, APART)
    assert verdict.stage_seconds == (Fraction(10 + 4, 2), Fraction(11 + 7, 2))
    assert verdict.objective == 9
    assert not failed(INSTANCE, APART)


def test_in_flight_is_the_rounded_suffix() -> None:
    degrees = (1, 4, 2, 3)
    assert in_flight([Stage((0,), d, 1, (0,)) for d in degrees]) == (10, 3, 3, 1)


BROKEN = {
    "every_layer_in_one_stage": (INSTANCE, (Stage((0,), 1, 1, (0,)),)),
    "no_empty_stage": (INSTANCE, (*TOGETHER, Stage((), 1, 1, ()))),
    "modes_exist": (INSTANCE, (Stage((0, 1), 1, 2, (0, 0)),)),
    "edges_lead_forwards": (INSTANCE, APART[::-1]),
    "devices": (replace(INSTANCE, devices=2), APART),
    "replicas": (replace(INSTANCE, microbatches=1, data_degrees=(1,)), APART),
    "degrees_allowed": (replace(INSTANCE, data_degrees=(1,)), TOGETHER),
    "memory": (replace(INSTANCE, memory=11), APART),
    "one_mode_per_stage": (
        replace(INSTANCE, one_mode_per_stage=True),
        (Stage((0, 1), 1, 1, (0, 1)),),
    ),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_rules(rule: str) -> None:
    assert failed(*BROKEN[rule]) == {rule}


def test_memory_to_the_byte() -> None:
    assert not failed(replace(INSTANCE, memory=5 * 2 + 2), APART)
    assert failed(replace(INSTANCE, memory=5 * 2 + 1), APART) == {"memory"}


def test_layers_twice() -> None:
    twice = (TOGETHER[0], Stage((1,), 1, 1, (0,)))
    assert failed(INSTANCE, twice) == {"every_layer_in_one_stage"}
