"""Adapters and packed documents: read from options, held against the task and the sequence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ilp_parallel.api_inputs import training_job
from ilp_parallel.errors import InputError
from ilp_parallel.jobs import JobRequest, complete_job
from ilp_parallel.specs.job import LORA_TARGETS, JobSpec
from ilp_parallel.specs.readers import load_cluster, load_model
from ilp_parallel.specs.tasks import check_task, parse_document_lengths, task_fields, task_text
from ilp_parallel.specs.validate import check_job
from tests.specs.test_validate import code_of

JOB = JobSpec(global_batch=8, sequence_length=4096)
LORA = replace(JOB, task="lora", lora_rank=16, lora_targets=("linear_qkv",))
MODEL = load_model("llama2-7b")


def test_defaults_are_pretraining_on_whole_sequences() -> None:
    assert (JOB.task, JOB.lora_rank, JOB.lora_targets) == ("pretrain", 0, ())
    assert JOB.documents == (4096,)
    assert task_text(JOB) == ""
    assert task_fields(None, None, None, None) == ({}, ())


@pytest.mark.parametrize(
    "job",
    [
        JOB,
        LORA,
        replace(JOB, task="finetune"),
        replace(JOB, document_lengths=(4096,)),
        replace(LORA, document_lengths=(4000, 96), lora_targets=LORA_TARGETS, lora_rank=4096),
    ],
)
def test_good_tasks_pass(job: JobSpec) -> None:
    check_task(MODEL, job)


@pytest.mark.parametrize(
    ("base", "change", "code"),
    [
        (JOB, {"task": "distil"}, "UNKNOWN_CHOICE"),
        (LORA, {"lora_targets": ("q_proj",)}, "UNKNOWN_CHOICE"),
        (JOB, {"lora_rank": 8}, "LORA_WITHOUT_TASK"),
        (JOB, {"lora_targets": LORA_TARGETS}, "LORA_WITHOUT_TASK"),
        (LORA, {"task": "finetune"}, "LORA_WITHOUT_TASK"),
        (LORA, {"lora_rank": 0}, "LORA_INCOMPLETE"),
        (LORA, {"lora_targets": ()}, "LORA_INCOMPLETE"),
        (LORA, {"lora_targets": ("linear_qkv", "linear_qkv")}, "LORA_TARGET_TWICE"),
        (LORA, {"lora_rank": 4097}, "LORA_RANK_OUT_OF_RANGE"),
        (LORA, {"lora_rank": -1}, "LORA_RANK_OUT_OF_RANGE"),
        (JOB, {"document_lengths": (2048, 2047)}, "DOCUMENTS_DO_NOT_FILL_SEQUENCE"),
        (JOB, {"document_lengths": (4096, 0)}, "DOCUMENTS_DO_NOT_FILL_SEQUENCE"),
        (JOB, {"document_lengths": (4097, -1)}, "DOCUMENTS_DO_NOT_FILL_SEQUENCE"),
    ],
)
def test_each_rule(base: JobSpec, change: dict[str, object], code: str) -> None:
    check_task(MODEL, base)
    assert code_of(check_task, MODEL, replace(base, **change)) == code  # type: ignore[arg-type]


def test_tasks_and_documents_that_fit_pass() -> None:
    cluster = load_cluster("h100")
    finetune = replace(JOB, task="finetune", document_lengths=(4096,))
    for job in (finetune, LORA, replace(JOB, document_lengths=(2048, 2048))):
        check_job(MODEL, cluster, job)


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("4096", (4096,)),
        ("2048,4x512", (2048, 512, 512, 512, 512)),
        (" 2X8 , 1", (8, 8, 1)),
    ],
)
def test_document_lengths(text: str, lengths: tuple[int, ...]) -> None:
    assert parse_document_lengths(text) == lengths


@pytest.mark.parametrize(
    "text", ["", ",", "1,", "-5", "1.5", "x4", "0x4", "999999x1", "4x", "one", "1\n2", "9" * 13]
)
def test_bad_document_lengths(text: str) -> None:
    assert code_of(parse_document_lengths, text) == "BAD_DOCUMENT_LENGTHS"


def test_options_become_fields_and_assumptions_are_said() -> None:
    fields, assumed = task_fields("lora", None, None, "4x1024")
    job = replace(JOB, **fields)  # type: ignore[arg-type]
    check_task(MODEL, job)
    assert (job.lora_rank, job.lora_targets) == (32, LORA_TARGETS)
    assert assumed == ("LoRA rank 32", "LoRA beside all matrices")
    assert task_text(job) == (
        "task lora · rank 32 beside linear_qkv, linear_proj, linear_fc1, linear_fc2 · "
        "4 documents of 1024 to 1024 tokens in a sequence"
    )
    fields, assumed = task_fields("lora", 8, "linear_qkv,linear_fc1", None)
    assert fields == {
        "task": "lora",
        "lora_rank": 8,
        "lora_targets": ("linear_qkv", "linear_fc1"),
    }
    assert assumed == ()


def test_requests_and_python_values_go_the_same_way() -> None:
    words = {"model": "llama2-7b", "cluster": "h100:1x8", "batch": 8}
    whole = complete_job(JobRequest(**words, task="finetune", document_lengths="4096"))  # type: ignore[arg-type]
    python = training_job(**words, task="finetune", document_lengths=[4096])  # type: ignore[arg-type]
    assert whole == python
    assert (whole.job.task, whole.job.document_lengths) == ("finetune", (4096,))
    for job in ({"lora_rank": 8}, {"task": "lora", "lora_targets": ["q_proj"]}):
        with pytest.raises(InputError) as caught:
            training_job(**words, **job)  # type: ignore[arg-type]
        assert caught.value.code in ("LORA_WITHOUT_TASK", "UNKNOWN_CHOICE")
