"""check: all broken rules at once, and the smallest change against enumeration by other means."""

from __future__ import annotations

import ast
import random
import re
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from ilp_parallel.configuration import Strategy
from ilp_parallel.costs.model import CostModel
from ilp_parallel.diagnosis.alternatives import plan_ticks
from ilp_parallel.diagnosis.check_subjects import (
    ForeignRun,
    subject_of_file,
    subject_of_plan,
    subject_of_words,
)
from ilp_parallel.diagnosis.checking import check, check_document, check_text, differences
from ilp_parallel.diagnosis.findings import FIXES, file_findings, plan_findings
from ilp_parallel.diagnosis.memory_table import PARTS, stage_memories
from ilp_parallel.diagnosis.mending import (
    _changed,
    _single_changes,
    decisions_of_plan,
    plan_of_decisions,
    smallest_change,
)
from ilp_parallel.errors import InputError
from ilp_parallel.export import base
from ilp_parallel.export.registry import EXPORTERS, export_plan
from ilp_parallel.jobs import CompleteJob
from ilp_parallel.plan_words import plan_from_words
from ilp_parallel.planner import SearchOptions
from ilp_parallel.specs.readers import load_cluster, load_model
from tests.export.plans import plan_of, random_plan
from tests.imports.runs import DEEPSPEED, GALVATRON, SCRIPT, TITAN
from tests.imports.test_fuzz import ARGUMENTS, PIECES
from tests.small_jobs import JOB, MODEL, node_with


def job(memory_gib: float) -> CompleteJob:
    return CompleteJob(MODEL, node_with(memory_gib), JOB, ())


# --- every broken rule has a fix, and all are named -----------------------------------------------


def codes_of_rules() -> set[str]:
    """First arguments of every ``Violation(...)`` in the exporters, read from the source."""
    folder = Path(base.__file__).parent
    files = [*folder.glob("*.py"), folder.parent / "diagnosis" / "expert_rules.py"]
    return {
        str(node.args[0].value)
        for path in files
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "Violation"
        and isinstance(node.args[0], ast.Constant)
    }


def test_every_rule_has_a_fix() -> None:
    found = codes_of_rules()
    assert len(found) > 50
    assert found - FIXES.keys() == set()


BROKEN = """torchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py --num-layers 10
 --hidden-size 1024
 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 1024 --micro-batch-size 2
 --global-batch-size 33 --bf16 --tensor-model-parallel-size 3 --pipeline-model-parallel-size 4
 --overlap-param-gather --recompute-granularity full --vocab-size 50000""".replace("\n", " ")


def test_all_broken_rules_of_a_script_are_named_at_once() -> None:
    run = ForeignRun(
        [(BROKEN, "run.sh")], "megatron", load_cluster("a100-80gb:2x8"), None, None, {}
    )
    subject = subject_of_file(run, "megatron", "megatron")
    assert subject.job is None  # it has more tokens than positions: no job at all
    verdict = check(subject, SearchOptions(space="megatron"))
    assert not verdict.accepted
    assert check_document(verdict)["model"] is None
    assert "POSITIONS_FEWER_THAN_TOKENS" in check_text(verdict, "table")
    found = {f.code: f for f in verdict.invalid}
    assert set(found) == {
        "MEGATRON_SIZES_DISAGREE",
        "TP_NOT_DIVIDING_HEADS",
        "KV_HEADS_NOT_DIVISIBLE_BY_TP",
        "TP_NOT_DIVIDING_FFN",
        "DEVICES_NOT_DIVISIBLE",
        "POSITIONS_FEWER_THAN_TOKENS",
        "PARAM_GATHER_OVERLAP_NEEDS_GRAD_REDUCE",
        "RECOMPUTE_FULL_NEEDS_METHOD",
    }
    assert "heads=16, tp=3" in found["TP_NOT_DIVIDING_HEADS"].message
    assert all(f.fix for f in found.values())


@pytest.mark.parametrize("seed", range(40))
def test_what_the_exporter_accepts_has_no_finding_and_back(seed: int) -> None:
    plan = random_plan(seed)
    if plan.configuration.shards == 1:
        plan = replace(plan, strategies=tuple(replace(s, zero="0") for s in plan.strategies))
    for name in EXPORTERS:
        found = plan_findings(plan, name)
        try:
            unchanged = export_plan(plan, name).plan.strategies == plan.strategies
        except InputError as error:
            assert found, (name, error.code)
        else:
            assert unchanged == (not found), name


def test_frameworks_read_their_own_files_in_their_own_words() -> None:
    cluster = load_cluster("a100-80gb:1x8")
    assert file_findings(GALVATRON, "galvatron", cluster, None) == ()
    broken = GALVATRON.replace('"world_size": 8', '"world_size": 6')
    assert [f.code for f in file_findings(broken, "galvatron", None, None)]
    model = replace(plan_of((4,), (Strategy("1", ()),) * 4, pipeline=1).model, kv_heads=2)
    assert file_findings(TITAN, "torchtitan", cluster, model) == ()
    four = TITAN.replace("tensor_parallel_degree = 2", "tensor_parallel_degree = 4")
    assert [f.code for f in file_findings(four, "torchtitan", cluster, model)] == [
        "KV_HEADS_NOT_DIVISIBLE_BY_TP"
    ]
    assert file_findings(DEEPSPEED, "deepspeed", cluster, model) == ()
    three = DEEPSPEED.replace('"train_batch_size": 64', '"train_batch_size": 63')
    assert [f.code for f in file_findings(three, "deepspeed", cluster, model)] == ["BATCH_IDENTITY"]


# --- memory ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_parts_of_the_memory_table_add_up_to_both_peaks(seed: int) -> None:
    plan = random_plan(seed)
    prediction = CostModel(plan.model, plan.cluster, plan.job).terms(plan)
    for row, stage in zip(stage_memories(plan), prediction.stages, strict=True):
        assert set(row.parts) == set(PARTS)
        assert sum(row.parts.values()) == pytest.approx(stage.device_bytes, rel=1e-12)
        allocated = sum(row.parts.values()) - row.parts["reserve"]
        assert allocated == pytest.approx(stage.allocated_bytes, rel=1e-12)
        assert row.fits == (stage.memory_bytes <= stage.usable_bytes)


# --- the smallest change --------------------------------------------------------------------------


def fits(plan_words: str, memory_gib: float) -> bool:
    plan = plan_from_words(job(memory_gib), plan_words)
    return CostModel(plan.model, plan.cluster, plan.job).terms(plan).fits


@pytest.mark.parametrize("seed", range(40))
def test_decisions_and_plans_are_each_other(seed: int) -> None:
    plan = random_plan(seed)
    complete = CompleteJob(plan.model, plan.cluster, plan.job, ())
    back = plan_of_decisions(complete, decisions_of_plan(plan))
    if plan.configuration.shards == 1:
        plan = replace(plan, strategies=tuple(replace(s, zero="0") for s in plan.strategies))
    if back is not None:
        assert (back.configuration, back.sizes, back.strategies) == (
            plan.configuration,
            plan.sizes,
            plan.strategies,
        )
    else:
        assert plan.configuration.tensor > plan.cluster.devices_per_node or (
            plan.configuration.sequence_parallel
            and plan.job.sequence_length % plan.configuration.tensor
        )


CASES = (
    ("pp=1 tp=1 mbs=2 zero=0", 3.2),
    ("pp=1 tp=1 mbs=2 zero=1", 4.0),
    ("pp=2 tp=1 mbs=4 zero=0 stages=1,3", 3.6),
    ("pp=4 tp=1 mbs=8", 2.6),
    ("pp=1 tp=4 mbs=8", 2.2),
    ("pp=1 tp=1 mbs=1 zero=0", 2.0),
)


@pytest.mark.parametrize(("words", "memory_gib"), CASES)
def test_smallest_change_equals_enumeration_with_the_cost_model(
    words: str, memory_gib: float
) -> None:
    """The same candidates, priced one by one as ``predict`` and ``evaluate`` do."""
    asked = job(memory_gib)
    decided = decisions_of_plan(plan_from_words(asked, words))
    found = smallest_change(asked, decided, lambda plan: True)
    assert not fits(words, memory_gib)
    singles = [s for s in _single_changes(asked, decided) if s[1] != "best"]
    levels = ([(s,) for s in singles], [(a, b) for a, b in combinations(singles, 2)])
    for number, level in enumerate(levels, start=1):
        priced = []
        for changes in level:
            if len({key for key, _ in changes}) < number:
                continue
            plan = plan_of_decisions(asked, _changed(decided, changes))
            if plan is not None and CostModel(MODEL, asked.cluster, JOB).terms(plan).fits:
                priced.append(plan_ticks(plan))
        mend = found.mend
        if mend is None or len(mend.changes) > number:
            assert priced == []
        elif len(mend.changes) == number:
            stages_too = any(change.key == "stages" for change in mend.changes)
            assert plan_ticks(mend.plan) <= min(priced, default=10**18)
            assert stages_too or plan_ticks(mend.plan) == min(priced)
            assert CostModel(MODEL, asked.cluster, JOB).terms(mend.plan).fits
            assert mend.step_time_s == pytest.approx(plan_ticks(mend.plan) * 1e-6)
            break


def test_a_change_must_be_accepted_too() -> None:
    asked = job(3.2)
    decided = decisions_of_plan(plan_from_words(asked, "pp=1 tp=1 mbs=2 zero=0"))
    free = smallest_change(asked, decided, lambda plan: True)
    assert free.mend is not None

    def not_that(plan: object) -> bool:
        return free.mend is not None and plan != free.mend.plan

    other = smallest_change(asked, decided, not_that)
    assert other.mend is not None
    assert other.mend.plan != free.mend.plan
    assert other.rejected >= 1
    nothing = smallest_change(asked, decided, lambda plan: False)
    assert nothing.mend is None
    assert len(nothing.tried) == 3


def test_stages_are_a_decision_and_their_best_ones_are_found() -> None:
    """Three of four layers on the first stage do not fit; moving one is enough."""
    words, memory_gib = "pp=2 tp=2 mbs=1 zero=0 stages=3,1", 3.2
    assert not fits(words, memory_gib)
    asked = job(memory_gib)
    decided = decisions_of_plan(plan_from_words(asked, words))
    found = smallest_change(asked, decided, lambda plan: True)
    assert found.mend is not None
    assert len(found.mend.changes) == 1


def test_nothing_is_changed_where_only_the_words_were_wrong() -> None:
    text = BROKEN.replace("size 33", "size 32").replace("parallel-size 3", "parallel-size 2")
    text = text.replace("embeddings 1024", "embeddings 2048")
    text = text.replace("--num-layers 10", "--num-layers 12")
    run = ForeignRun([(text, "run.sh")], "megatron", load_cluster("a100-80gb:2x8"), None, None, {})
    verdict = check(subject_of_file(run, "megatron", "megatron"), SearchOptions(space="megatron"))
    assert {f.code for f in verdict.invalid} == {
        "PARAM_GATHER_OVERLAP_NEEDS_GRAD_REDUCE",
        "RECOMPUTE_FULL_NEEDS_METHOD",
    }
    assert not verdict.accepted
    assert verdict.mending is not None
    assert verdict.mending.mend is not None
    assert verdict.mending.mend.changes == ()


# --- verdicts -------------------------------------------------------------------------------------


def test_an_optimum_is_accepted_and_no_slower_than_itself() -> None:
    plan = plan_from_words(job(80.0), "pp=1 tp=1 mbs=1 zero=1")
    first = check(subject_of_plan(plan, (), "megatron"), SearchOptions(space="megatron"))
    assert first.accepted
    assert first.excess is not None
    assert first.excess >= 0
    assert first.optimum is not None
    assert first.optimum.plan is not None
    best = check(subject_of_plan(first.optimum.plan, (), "megatron"), SearchOptions("megatron"))
    assert best.excess == 0.0
    assert differences(first.optimum.plan, first.optimum.plan) == {}
    assert (first.excess > 0) == bool(differences(plan, first.optimum.plan))


def test_words_that_make_no_plan_are_rejected_and_mended() -> None:
    subject = subject_of_words(job(80.0), "pp=3 tp=1 mbs=1", None)
    verdict = check(subject, SearchOptions(space="megatron"))
    assert [f.code for f in verdict.invalid] == ["DEVICES_NOT_DIVISIBLE"]
    assert verdict.stages == ()
    assert verdict.mending is not None
    assert verdict.mending.mend is not None
    assert [c.key for c in verdict.mending.mend.changes] == ["pp"]
    assert "fits: not known" in check_text(verdict, "table")


def test_states_that_are_too_large_alone_have_a_code_of_their_own() -> None:
    for words, gib, code in (
        ("pp=1 tp=1 mbs=1 zero=0", 3.0, "MODEL_STATES_EXCEED_MEMORY"),
        ("pp=1 tp=1 mbs=2 zero=1", 4.0, "OUT_OF_MEMORY"),
    ):
        plan = plan_from_words(job(gib), words)
        verdict = check(subject_of_plan(plan, (), None), SearchOptions(space="megatron"))
        assert {f.code for f in verdict.too_large} == {code}


def test_document_says_what_the_text_says() -> None:
    plan = plan_from_words(job(3.2), "pp=1 tp=1 mbs=2 zero=0")
    verdict = check(subject_of_plan(plan, (), "megatron"), SearchOptions(space="megatron"))
    document, text = check_document(verdict), check_text(verdict, "md")
    assert document["verdict"] == "rejected"
    assert text.startswith("REJECTED")
    assert (document["valid"], document["fits"]) == (True, False)
    mending = document["mending"]
    assert isinstance(mending, dict)
    assert mending["configuration"] in text
    for change in mending["changes"]:
        assert f"{change['decision']} {change['from']} -> {change['to']}" in text


# --- whatever a file holds ------------------------------------------------------------------------

SOURCES = (
    (SCRIPT, "megatron", "megatron"),
    (ARGUMENTS, "megatron", "megatron"),
    (TITAN, "torchtitan", "torchtitan-toml"),
    (DEEPSPEED, "deepspeed", "deepspeed"),
    (GALVATRON, "galvatron", "galvatron"),
)


def mutated(text: str, rng: random.Random) -> str:
    """A number changed, or a few pieces replaced."""
    if rng.random() < 0.5:
        number = rng.choice(list(re.finditer(r"\b\d+\b", text)))
        value = rng.choice((0, 1, 2, 3, 5, 7, 8, 16, 100, 10**12))
        return f"{text[: number.start()]}{value}{text[number.end() :]}"
    for _ in range(rng.randint(1, 3)):
        start = rng.randrange(len(text) + 1)
        text = text[:start] + rng.choice(PIECES) + text[start + rng.randint(0, 12) :]
    return text


@pytest.mark.parametrize("batch", range(10))
def test_a_broken_file_gives_a_verdict_or_one_line(
    batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ilp_parallel.diagnosis.checking._optimum", lambda job, options: None)
    verdicts = set()
    for seed in range(40 * batch, 40 * (batch + 1)):
        rng = random.Random(seed)
        text, form, own = rng.choice(SOURCES)
        model = None if form == "megatron" else load_model("llama3-8b")
        cluster = load_cluster(rng.choice(("a100-80gb:2x8", "a100-80gb:1x8")))
        given = {} if form == "megatron" else {"sequence_length": 2048}
        run = ForeignRun([(mutated(text, rng), "file")], form, cluster, model, 50_000, given)
        try:
            verdict = check(subject_of_file(run, own, own), SearchOptions("megatron"))
        except InputError as error:
            assert "\n" not in str(error)
            continue
        verdicts.add(verdict.accepted)
        assert verdict.accepted or verdict.invalid or verdict.too_large
        assert check_text(verdict, "table").startswith(("ACCEPTED", "REJECTED"))
        assert check_document(verdict)["verdict"] in ("accepted", "rejected")
    assert verdicts
