"""From a foreign file to a job or a plan: what is asked for, what is assumed, what contradicts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ilp_parallel.errors import InputError
from ilp_parallel.export.registry import export_plan
from ilp_parallel.imports.complete import job_from, model_from, plan_from
from ilp_parallel.imports.registry import read_texts
from ilp_parallel.specs.readers import load_cluster, load_model
from tests.export.plans import plan_of
from tests.imports.runs import APPLICATION, DEEPSPEED, EXECUTION, GALVATRON, SCRIPT, SYSTEM, TITAN

if TYPE_CHECKING:
    from ilp_parallel.imports.record import Imported
    from ilp_parallel.plan import Plan

CLUSTER = load_cluster("a100-80gb:2x8")


def completed(
    found: Imported, model: str | None = None, vocab: int | None = None, **given: object
) -> tuple[Plan, tuple[str, ...]]:
    spec = model_from(found, None if model is None else load_model(model), vocab)
    cluster = None if found.cluster is not None else CLUSTER
    return plan_from(found, job_from(found, spec, cluster, given))


def found_in(form: str, *texts: str, devices: int | None = 16) -> Imported:
    return read_texts([(text, "file") for text in texts], form, devices)


def test_a_megatron_script_needs_its_vocabulary_only() -> None:
    found = found_in("megatron", SCRIPT)
    with pytest.raises(InputError) as caught:
        completed(found)
    assert (caught.value.code, caught.value.fix) == ("MODEL_OPEN", "give --vocab")
    plan, assumed = completed(found, vocab=50_000)
    assert plan.configuration.name == "pp4 tp2 dp2 mbs1 m32 sp 1f1b"
    assert (plan.sizes, plan.model.vocab) == ((3, 3, 3, 3), 50_000)
    assert {s.name for s in plan.strategies} == {"zero1/none"}
    assert assumed == ("attention flash",)


def test_calculon_files_are_complete() -> None:
    plan, _ = completed(found_in("calculon", APPLICATION, EXECUTION, SYSTEM))
    assert plan.configuration.name == "pp2 tp4 dp2 mbs2 m8 vpp3 sp interleaved"
    assert plan.cluster.device.memory_bytes == 80 * 2**30
    assert plan.job.precision == "megatron-fp16"


def test_a_torchtitan_file_needs_a_model() -> None:
    found = found_in("torchtitan", TITAN)
    with pytest.raises(InputError, match="give --model") as caught:
        completed(found)
    assert caught.value.code == "MODEL_OPEN"
    plan, assumed = completed(found, "llama3-8b")
    assert plan.configuration.name == "pp1 tp2 dp8 mbs4 m1 sp 1f1b"
    assert plan.job.stack == "torchtitan"
    assert "model llama3 8B" in assumed


def test_a_deepspeed_file_needs_model_and_sequence() -> None:
    found = found_in("deepspeed", DEEPSPEED)
    with pytest.raises(InputError) as caught:
        completed(found, "llama2-7b")
    assert caught.value.code == "SEQUENCE_LENGTH_OPEN"
    plan, assumed = completed(found, "llama2-7b", sequence_length=2048)
    assert plan.configuration.name == "pp1 tp1 dp16 mbs2 m2 1f1b"
    assert "recomputation none" in assumed


def test_galvatron_strategies_need_a_model_of_as_many_layers() -> None:
    found = found_in("galvatron", GALVATRON, devices=8)
    with pytest.raises(InputError) as caught:
        model_from(found, load_model("llama2-7b"), None)
    assert caught.value.code == "MODEL_DIFFERS"
    model = replace(load_model("llama2-7b"), layers=5)
    cluster = load_cluster("a100-80gb:8")
    job = job_from(found, model, cluster, {"sequence_length": 2048})
    plan, _ = plan_from(found, job)
    assert [s.zero for s in plan.strategies] == [*["3-keep"] * 2, *["3-regather"] * 2, "3-keep"]
    assert plan.job.stack == "fsdp"


def test_options_come_before_the_file() -> None:
    found = found_in("megatron", SCRIPT)
    plan, _ = completed(found, vocab=50_000, precision="bf16-moments", global_batch=128)
    assert (plan.job.precision, plan.configuration.microbatches) == ("bf16-moments", 64)


@pytest.mark.parametrize(
    ("code", "change"),
    [
        ("DEVICES_DIFFER", {"devices": 8}),
        ("SIZES_DISAGREE", {"data": 4}),
        ("SIZES_DISAGREE", {"tensor": 3}),
        ("SIZES_DISAGREE", {"microbatch": 5}),
        ("LAYERS_DIFFER", {"zero": ("1",) * 5}),
        ("LAYERS_DIFFER", {"sizes": (3, 3, 3, 4)}),
        ("STAGES_DIFFER", {"sizes": (6, 6)}),
        ("MORE_STAGES_THAN_LAYERS", {"sizes": None, "chunks": 8}),
    ],
)
def test_contradictions_are_refused(code: str, change: dict[str, object]) -> None:
    found = replace(found_in("megatron", SCRIPT), **change)  # type: ignore[arg-type]
    with pytest.raises(InputError) as caught:
        completed(found, vocab=50_000)
    assert caught.value.code == code


def test_no_cluster_anywhere() -> None:
    found = found_in("torchtitan", TITAN, devices=None)
    with pytest.raises(InputError) as caught:
        job_from(found, load_model("llama3-8b"), None, {})
    assert caught.value.code == "CLUSTER_OPEN"


def test_what_is_exported_is_imported_as_the_same_plan() -> None:
    from ilp_parallel.configuration import Strategy

    plan = plan_of((3, 3, 3, 3), (Strategy("1", ("full",)),) * 12, pipeline=4)
    plan = replace(plan, cluster=CLUSTER.__class__(**_as_cluster(plan)))
    found = found_in("megatron", export_plan(plan, "megatron").text, devices=None)
    job = job_from(found, model_from(found, plan.model, None), plan.cluster, {})
    again, _ = plan_from(found, job)
    assert (again.configuration, again.sizes) == (plan.configuration, plan.sizes)
    assert (again.strategies, again.job) == (plan.strategies, plan.job)


def _as_cluster(plan: Plan) -> dict[str, object]:
    c = plan.cluster
    return {
        "name": c.name,
        "device": c.device,
        "nodes": plan.configuration.devices // 8,
        "devices_per_node": 8,
        "intra": c.intra,
        "inter": c.inter,
    }
