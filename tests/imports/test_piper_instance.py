"""Files of Piper's planner: exact numbers, plans there and back, and every kind of bad input."""

from __future__ import annotations

import copy
import json
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ilp_parallel.errors import InputError
from ilp_parallel.imports.piper_instance import Machine, piper_instance, read_piper_file
from ilp_parallel.imports.piper_plan import (
    bytes_in_floats,
    parse_piper_plan,
    piper_plan,
    seconds_in_floats,
)
from ilp_parallel.problems.piper import Stage, evaluate
from tests.piper.instances import document, written

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PLAN = (Stage((0,), 2, 1, (0,)), Stage((1, 2), 1, 1, (1, 0)))


def test_numbers_are_exact(tmp_path: Path) -> None:
    instance = piper_instance(read_piper_file(str(written(tmp_path / "a.json"))), "a")
    mode = instance.modes[0][1][0]
    second, byte = instance.units_per_second, instance.units_per_byte
    assert Fraction(mode.time, second) == Fraction(3, 10)
    assert Fraction(mode.resync, second) == Fraction(4 * 1000, 3000 * 4)
    assert Fraction(mode.activation, byte) == Fraction(21, 2)
    assert Fraction(mode.leave[0], second) == Fraction(2 * (30 + 8), 3000)
    assert Fraction(instance.modes[2][1][0].enter[0], second) == Fraction(2 * (20 + 1), 3000)
    assert instance.edges == ((0, 1), (1, 2))
    assert instance.layer_ids == (7, 5, -2)
    assert instance.data_degrees == (1, 2, 4)
    assert instance.memory == 40 * byte


def test_floats_agree_with_the_published_formula(tmp_path: Path) -> None:
    """T = compute / d + (moved / d + resync) / B, written out for one stage."""
    file = read_piper_file(str(written(tmp_path / "a.json")))
    first = 0.3 / 2 + (2 * (30 + 8) / 2 + 4 * 1 * 1000 / (2 * 4)) / 3000
    floats = seconds_in_floats(file, PLAN)
    assert floats[0] == pytest.approx(first, rel=1e-15)
    verdict = evaluate(piper_instance(file), PLAN)
    exact = [float(seconds) for seconds in verdict.stage_seconds]
    assert floats == pytest.approx(exact, rel=1e-14)
    assert bytes_in_floats(file, PLAN) == [10.5 * 2 + 4, 2.5 + 6 + 10.5 + 4]


def test_the_machine_replaces_the_file(tmp_path: Path) -> None:
    machine = Machine(3, Decimal("50.5"), Decimal(10), 6)
    instance = piper_instance(read_piper_file(str(written(tmp_path / "a.json")), machine))
    assert (instance.devices, instance.microbatches, instance.data_degrees) == (3, 6, (1, 2, 3))
    assert Fraction(instance.memory, instance.units_per_byte) == Fraction(101, 2)
    crossing = Fraction(instance.modes[1][1][0].enter[0], instance.units_per_second)
    assert crossing == Fraction(2 * 30, 10)


def test_plans_there_and_back(tmp_path: Path) -> None:
    instance = piper_instance(read_piper_file(str(written(tmp_path / "a.json"))))
    text = json.dumps(piper_plan(PLAN, instance))
    assert parse_piper_plan(text, instance) == PLAN
    for old, new in (("vanilla", "x"), ('"nodes": [7]', '"nodes": [8]'), ("[", "{")):
        with pytest.raises(InputError, match="BAD_PIPER_PLAN"):
            parse_piper_plan(text.replace(old, new, 1), instance)


def first_mode(whole: dict[str, object]) -> dict[str, object]:
    return whole["nodes"][0]["TMPCs"]["1"][0]


def setting(*path: object, value: object) -> Callable[[dict[str, object]], None]:
    def change(whole: dict[str, object]) -> None:
        place = whole
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return change


MODE = ("nodes", 0, "TMPCs", "1", 0)
BACK = {"sourceId": -2, "destId": 7, "communicationCost": 1}
BAD = {
    "no devices": ("DEVICES_OUT_OF_RANGE", setting("maxDevices", value=0)),
    "too many devices": ("DEVICES_OUT_OF_RANGE", setting("maxDevices", value=10_001)),
    "no microbatch": ("MICROBATCHES_OUT_OF_RANGE", setting("mbsInBatch", value=0)),
    "no memory": ("NOT_POSITIVE", setting("maxMemoryPerDevice", value=0)),
    "negative machine": ("NEGATIVE_VALUE", setting("maxMemoryPerDevice", value=-5)),
    "no bandwidth": ("NOT_POSITIVE", setting("bandwidth", value=0.0)),
    "negative memory": ("NEGATIVE_VALUE", setting(*MODE, "memoryUsageA", value=-1)),
    "negative fixed memory": ("NEGATIVE_VALUE", setting(*MODE, "memoryUsageB", value=-1e-9)),
    "negative time": ("NEGATIVE_VALUE", setting(*MODE, "timePerSample", value=-0.5)),
    "negative edge": ("NEGATIVE_VALUE", setting("edges", 0, "communicationCost", value=-1)),
    "negative sync": ("NEGATIVE_VALUE", setting(*MODE, "syncTimeBw", "5", value=-1)),
    "huge": ("NUMBER_OUT_OF_RANGE", setting(*MODE, "parameterSize", value=1e300)),
    "not a number": ("NUMBER_OUT_OF_RANGE", setting(*MODE, "parameterSize", value="NaN")),
    "text": ("BAD_PIPER_FILE", setting(*MODE, "parameterSize", value="much")),
    "missing field": ("BAD_PIPER_FILE", lambda whole: first_mode(whole).pop("memoryUsageB")),
    "missing machine": ("BAD_PIPER_FILE", lambda whole: whole.pop("mbsInBatch")),
    "no nodes": ("EMPTY_GRAPH", setting("nodes", value=[])),
    "no edges": ("EMPTY_GRAPH", setting("edges", value=[])),
    "same id": ("DUPLICATE_NODE", setting("nodes", 0, "id", value=5)),
    "unknown id": ("UNKNOWN_NODE", setting("edges", 0, "destId", value=99)),
    "edge twice": ("DUPLICATE_EDGE", lambda whole: whole["edges"].append(whole["edges"][0])),
    "cycle": ("GRAPH_HAS_CYCLE", lambda whole: whole["edges"].append(BACK)),
    "loop": ("GRAPH_HAS_CYCLE", lambda whole: whole["edges"].append({**BACK, "destId": -2})),
    "sync of no edge": ("SYNC_DISAGREES_WITH_EDGES", setting(*MODE, "syncTimeFw", "5", value=1)),
    "sync missing": ("SYNC_DISAGREES_WITH_EDGES", setting(*MODE, "syncTimeBw", value={})),
    "degree zero": ("BAD_TENSOR_DEGREE", setting("nodes", 0, "TMPCs", "0", value=[])),
    "degree text": ("BAD_TENSOR_DEGREE", setting("nodes", 0, "TMPCs", "two", value=[])),
    "degree twice": ("BAD_TENSOR_DEGREE", setting("nodes", 0, "TMPCs", "01", value=[])),
    "mode twice": ("DUPLICATE_MODE", setting("nodes", 0, "TMPCs", "1", 1, "id", value="vanilla")),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_files(kind: str, tmp_path: Path) -> None:
    code, change = BAD[kind]
    whole = copy.deepcopy(document())
    change(whole)
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(whole))
    with pytest.raises(InputError) as caught:
        read_piper_file(str(path))
    assert caught.value.code == code
    assert caught.value.fix
    assert "\n" not in str(caught.value)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_change_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: object
) -> None:
    """Random damage: one value anywhere replaced by another kind of value."""
    whole = copy.deepcopy(document())
    place: object = whole
    while True:
        keys = sorted(place) if isinstance(place, dict) else range(len(place))
        key = data.draw(st.sampled_from(list(keys)))
        below = place[key]
        if not isinstance(below, dict | list) or not below or data.draw(st.booleans()):
            break
        place = below
    scalars = st.one_of(st.none(), st.integers(-3, 9), st.floats(), st.text(max_size=3))
    place[key] = data.draw(st.one_of(scalars, st.lists(scalars, max_size=2)))
    path = tmp_path_factory.getbasetemp() / "damaged.json"
    path.write_text(json.dumps(whole))
    try:
        instance = piper_instance(read_piper_file(str(path)))
    except InputError as error:
        assert error.code.isupper()
    else:
        assert instance.layers == 3
