"""Plans written and read again; whatever a file or the words of a plan say, one line refuses it."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ilp_parallel.costs.model import CostModel
from ilp_parallel.errors import InputError
from ilp_parallel.jobs import CompleteJob
from ilp_parallel.plan_files import (
    check_parts,
    plan_document,
    read_certificate,
    read_plan,
    require_target,
    write_text,
)
from ilp_parallel.plan_words import plan_from_words
from ilp_parallel.planner import SearchOptions, search
from ilp_parallel.specs.model import Experts
from tests.small_jobs import JOB, MODEL, NODE

if TYPE_CHECKING:
    from pathlib import Path

    from ilp_parallel.plan import Plan

COMPLETE = CompleteJob(MODEL, NODE, JOB, ())


@functools.cache
def found() -> Plan:
    plan = search(MODEL, NODE, JOB, SearchOptions(space="megatron")).plan
    assert plan is not None
    return plan


def written(path: Path, document: object) -> str:
    path.write_text(json.dumps(document))
    return str(path)


def test_read_what_was_written(tmp_path: Path) -> None:
    document = plan_document(found())
    assert read_plan(written(tmp_path / "plan.json", document)) == found()
    assert read_plan(written(tmp_path / "result.json", {"plan": document})) == found()


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"schema": "ilp_parallel.plan/0"}, "NOT_A_PLAN"),
        ({"stages": [5]}, "STAGES_DIFFER"),
        ({"stages": "4"}, "BAD_PLAN"),
        ({"strategies": []}, "LAYERS_DIFFER"),
        ({"strategies": [{"zero": "9", "recompute": []}] * 4}, "BAD_PLAN"),
        ({"model": None}, "BAD_PLAN"),
        ({"configuration": {}}, "BAD_PLAN"),
    ],
)
def test_contradictions(tmp_path: Path, changes: dict[str, object], code: str) -> None:
    document = {**plan_document(found()), **changes}
    if code == "STAGES_DIFFER":
        document["stages"] = [1] * (len(found().sizes) + 1)
    with pytest.raises(InputError) as refused:
        read_plan(written(tmp_path / "plan.json", document))
    assert refused.value.code == code


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("pipeline", 0, "DEGREES_NOT_POSITIVE"),
        ("data", -1, "DEGREES_NOT_POSITIVE"),
        ("tensor", 64, "DEVICES_DIFFER"),
        ("microbatches", 10**18, "BATCH_DIFFERS"),
        ("chunks", 3, "CHUNKS_WITHOUT_INTERLEAVING"),
    ],
)
def test_contradictory_configurations(tmp_path: Path, field: str, value: int, code: str) -> None:
    document = json.loads(json.dumps(plan_document(plan_from_words(COMPLETE, "pp=2 tp=2"))))
    document["configuration"][field] = value
    with pytest.raises(InputError) as refused:
        read_plan(written(tmp_path / "plan.json", document))
    assert refused.value.code == code


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"expert": 0}, "DEGREES_NOT_POSITIVE"),
        ({"expert_tensor": -1}, "DEGREES_NOT_POSITIVE"),
        ({"expert": 3}, "EXPERTS_NOT_DIVISIBLE_BY_EP"),
        ({"expert": 4, "expert_tensor": 2}, "EXPERT_DEGREES_NOT_DIVIDING_STAGE"),
        ({"expert": 1, "expert_tensor": 3}, "EXPERT_FFN_NOT_DIVISIBLE_BY_ETP"),
    ],
)
def test_expert_degrees_fit_the_experts_and_the_stage(change: dict[str, int], code: str) -> None:
    """On four devices of two stages: pp=2 tp=2, so that a stage has two."""
    plan = plan_from_words(COMPLETE, "pp=2 tp=2")
    mixed = replace(plan, model=replace(plan.model, experts=Experts(8, 2, 64)))
    for expert, inside in ((1, 1), (2, 1), (1, 2)):
        degrees = replace(plan.configuration, expert=expert, expert_tensor=inside)
        check_parts(replace(mixed, configuration=degrees))
    with pytest.raises(InputError) as caught:
        check_parts(replace(mixed, configuration=replace(plan.configuration, **change)))
    assert caught.value.code == code
    with pytest.raises(InputError) as caught:
        plan_from_words(COMPLETE, "pp=2 tp=2 ep=2")
    assert caught.value.code == "EXPERT_DEGREE_WITHOUT_EXPERTS"


def test_a_plan_is_no_certificate(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="NOT_A_CERTIFICATE"):
        read_certificate(written(tmp_path / "plan.json", plan_document(found())))


def test_files_are_replaced_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "file"
    write_text(str(target), "first")
    write_text(str(target), "second")
    assert target.read_text() == "second"

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(InputError, match=r"CANNOT_WRITE.*No space"):
        write_text(str(target), "third")
    assert target.read_text() == "second"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


# --- words ---------------------------------------------------------------------------------------


def test_words_and_their_defaults() -> None:
    plan = plan_from_words(COMPLETE, "pp=2 tp=2 stages=3,1 recompute=core_attn+mlp")
    g = plan.configuration
    assert (g.pipeline, g.tensor, g.data, g.microbatch, g.microbatches) == (2, 2, 1, 1, 8)
    assert (g.sequence_parallel, g.schedule, plan.sizes) == (True, "1f1b", (3, 1))
    assert {strategy.name for strategy in plan.strategies} == {"zero0/core_attn+mlp"}
    plan = plan_from_words(COMPLETE, "")
    assert (plan.configuration.data, plan.configuration.schedule) == (4, "1f1b")
    assert {strategy.zero for strategy in plan.strategies} == {"1"}
    assert plan_from_words(COMPLETE, "pp=2 vpp=2").configuration.schedule == "interleaved"
    split = plan_from_words(COMPLETE, "pp=2 cp=2")
    assert (split.configuration.context, split.configuration.data) == (2, 1)
    assert {strategy.zero for strategy in split.strategies} == {"1"}  # context ranks shard too


PIECES = st.one_of(
    st.sampled_from(["1", "2", "4", "0", "-1", "1e30", "nan", "9" * 30, "\u0663", "\u00b2", ""]),
    st.sampled_from(["on", "off", "1f1b", "gpipe", "interleaved", "full", "none", "3-keep", "1,3"]),
    st.sampled_from(["2,2", "4,0", "0,4", ",", "1,1,1,1", "=", "==2"]),
    st.text(max_size=4),
)
KEYS = st.sampled_from(
    [
        "pp",
        "tp",
        "cp",
        "ep",
        "etp",
        "mbs",
        "vpp",
        "sp",
        "schedule",
        "zero",
        "recompute",
        "stages",
        "x",
    ]
)
WORDS = st.lists(st.tuples(KEYS, PIECES).map("=".join), max_size=5).map(" ".join)


@given(words=WORDS)
@settings(max_examples=400, deadline=None)
def test_any_words_give_a_plan_that_can_be_predicted_or_an_input_error(words: str) -> None:
    try:
        plan = plan_from_words(COMPLETE, words)
    except InputError as error:
        assert "\n" not in str(error)
        return
    assert sum(plan.sizes) == MODEL.layers
    assert plan.configuration.devices == NODE.devices
    prediction = CostModel(plan.model, plan.cluster, plan.job).terms(plan)
    assert len(prediction.stages) == plan.configuration.pipeline


LEAVES = ("configuration", "stages", "strategies", "model", "cluster", "job", "space")
ABSURD: st.SearchStrategy[object] = st.sampled_from(
    [None, True, 0, -1, 3, 2**63 - 1, 10**30, 1e30, 0.5, "", "x", [], {}]
)


@given(part=st.sampled_from(LEAVES), value=ABSURD, data=st.data())
@settings(max_examples=200, deadline=None)
def test_any_changed_value_is_read_and_predicted_or_refused(
    tmp_path_factory: pytest.TempPathFactory, part: str, value: object, data: st.DataObject
) -> None:
    document = json.loads(json.dumps(plan_document(found())))
    holder, last = document, part
    while isinstance(holder[last], (dict, list)) and holder[last] and data.draw(st.booleans()):
        holder = holder[last]
        steps = sorted(holder) if isinstance(holder, dict) else range(len(holder))
        last = data.draw(st.sampled_from(steps))
    holder[last] = value
    path = tmp_path_factory.getbasetemp() / "mutated.json"
    try:
        plan = read_plan(written(path, document))
    except InputError:
        return
    CostModel(plan.model, plan.cluster, plan.job).terms(plan)


def test_a_target_with_an_impossible_name_is_one_line() -> None:
    with pytest.raises(InputError, match="CANNOT_WRITE") as caught:
        require_target("x" * 5000 + ".json")
    assert len(str(caught.value)) < 200
