"""What is trained and on what: adapters instead of all weights, documents packed into sequences."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, get_args

from ilp_parallel.errors import InputError
from ilp_parallel.specs.documents import shown
from ilp_parallel.specs.job import LORA_TARGETS, Task

if TYPE_CHECKING:
    from ilp_parallel.specs.job import JobSpec
    from ilp_parallel.specs.model import ModelSpec

LORA_RANK = 32
"""Rank assumed where none is given, as the targets are (NVIDIA Megatron-Bridge, peft/lora.py)."""

MAX_DOCUMENTS = 1 << 16
"""Most documents in a sequence (chosen)."""

_DOCUMENTS = re.compile(r"(?:([0-9]{1,6})[xX])?([0-9]{1,12})")


def task_fields(
    task: str | None,
    lora_rank: int | None,
    lora_targets: str | None,
    document_lengths: str | None,
) -> tuple[dict[str, object], tuple[str, ...]]:
    """Fields of a ``JobSpec`` from options as texts, and in words what was assumed.

    Raises
    ------
    InputError
        ``BAD_DOCUMENT_LENGTHS``. Whether the values fit each other, :func:`check_task` says.
    """
    fields: dict[str, object] = {}
    assumed: list[str] = []
    if task is not None:
        fields["task"] = task
    if lora_rank is None and task == "lora":
        lora_rank = LORA_RANK
        assumed.append(f"LoRA rank {lora_rank}")
    if lora_rank is not None:
        fields["lora_rank"] = lora_rank
    if lora_targets is None and task == "lora":
        lora_targets = ",".join(LORA_TARGETS)
        assumed.append("LoRA beside all matrices")
    if lora_targets is not None:
        fields["lora_targets"] = tuple(lora_targets.split(","))
    if document_lengths is not None:
        fields["document_lengths"] = parse_document_lengths(document_lengths)
    return fields, tuple(assumed)


def parse_document_lengths(text: str) -> tuple[int, ...]:
    """Tokens of each document of a text such as ``2048,4x512``: one of 2048 and four of 512.

    Raises
    ------
    InputError
        ``BAD_DOCUMENT_LENGTHS``.
    """
    lengths: list[int] = []
    for word in text.split(","):
        match = _DOCUMENTS.fullmatch(word.strip())
        count = int(match[1] or 1) if match else 0
        if match is None or not 0 < count <= MAX_DOCUMENTS - len(lengths):
            raise InputError(
                "BAD_DOCUMENT_LENGTHS",
                f"document lengths {shown(text)}: {shown(word)}",
                f"write up to {MAX_DOCUMENTS} lengths such as 2048,4x512",
            )
        lengths += [int(match[2])] * count
    return tuple(lengths)


def task_text(job: JobSpec) -> str:
    """What is trained and on what, in one line; empty for pretraining on whole sequences."""
    parts = [] if job.task == "pretrain" else [f"task {job.task}"]
    if job.task == "lora":
        parts.append(f"rank {job.lora_rank} beside {', '.join(job.lora_targets)}")
    lengths = job.document_lengths
    if lengths:
        span = f"{min(lengths)} to {max(lengths)}"
        parts.append(f"{len(lengths)} documents of {span} tokens in a sequence")
    return " · ".join(parts)


def check_task(model: ModelSpec, job: JobSpec) -> None:
    """Refuse adapters or documents that do not fit the task, the model or the sequence.

    Raises
    ------
    InputError
        With code UNKNOWN_CHOICE, LORA_INCOMPLETE, LORA_WITHOUT_TASK, LORA_TARGET_TWICE,
        LORA_RANK_OUT_OF_RANGE or DOCUMENTS_DO_NOT_FILL_SEQUENCE.
    """
    _require_choice("task", job.task, get_args(Task))
    targets = job.lora_targets
    for target in targets:
        _require_choice("lora_targets", target, LORA_TARGETS)
    adapted = job.lora_rank != 0 or bool(targets)
    if job.task != "lora" and adapted:
        raise InputError(
            "LORA_WITHOUT_TASK",
            f"lora_rank={job.lora_rank}, {len(targets)} targets, task {job.task}",
            "use --task lora, or leave them out",
        )
    if job.task == "lora":
        if job.lora_rank == 0 or not targets:
            raise InputError(
                "LORA_INCOMPLETE",
                f"lora_rank={job.lora_rank}, {len(targets)} targets",
                "give a rank and at least one matrix",
            )
        if len(set(targets)) < len(targets):
            raise InputError("LORA_TARGET_TWICE", ",".join(targets), "name each matrix once")
        if not 1 <= job.lora_rank <= model.hidden:
            raise InputError(
                "LORA_RANK_OUT_OF_RANGE",
                f"lora_rank={shown(job.lora_rank)}, hidden={model.hidden}",
                f"use 1 to {model.hidden}",
            )
    _check_documents(job)


def _check_documents(job: JobSpec) -> None:
    lengths = job.document_lengths
    if lengths and (min(lengths) < 1 or sum(lengths) != job.sequence_length):
        raise InputError(
            "DOCUMENTS_DO_NOT_FILL_SEQUENCE",
            f"{len(lengths)} documents of {shown(sum(lengths))} tokens in all, the shortest of "
            f"{shown(min(lengths))}; sequence_length={job.sequence_length}",
            "give lengths above zero that add up to the sequence length",
        )


def _require_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        fix = f"use one of {', '.join(choices)}"
        raise InputError("UNKNOWN_CHOICE", f"{name}={shown(value)}", fix)
