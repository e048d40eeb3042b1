"""Runs from DeepSpeed's JSON (keys: DeepSpeed commit edaa7221, deepspeed/runtime/config.py).

The JSON knows batch, ZeRO, precision and AutoTP. Model, sequence length and the stages of a
pipeline are in code, so they stay open; so does ``auto``, for the Hugging Face integration to fill.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ilp_parallel.errors import InputError
from ilp_parallel.imports.record import Fields, Imported, parse_json, quotient
from ilp_parallel.specs.documents import shown

if TYPE_CHECKING:
    from ilp_parallel.configuration import Zero
    from ilp_parallel.specs.job import Optimizer, Precision

_ZERO: dict[int, Zero] = {0: "0", 1: "1", 2: "2-scatter", 3: "3-regather"}
_OPTIMIZERS: dict[str, Optimizer] = {"adam": "adam", "adamw": "adam", "sgd": "sgd"}


def read_deepspeed(text: str, origin: str, devices: int | None) -> Imported:
    """The run that a DeepSpeed JSON file describes.

    Raises
    ------
    InputError
        ``MALFORMED_JSON``, ``WRONG_TYPE``, ``OUT_OF_RANGE``; ``BATCH_IDENTITY`` if the three batch
        sizes and the devices contradict; ``DEEPSPEED_SETTING_NOT_READ``.
    """
    document = parse_json(text, origin)
    whole = Fields(_without_auto(document), shown(origin))
    _refuse(whole)
    pipeline = _pipeline(whole)
    tensor = whole.section("tensor_parallel").integer("autotp_size", least=0) or 1
    data = None
    if devices is not None and pipeline is not None:
        data = quotient(devices, pipeline * tensor, "devices by pipeline times tensor degree")
    batch, microbatch, microbatches = _batch(whole, data)
    stage = whole.section("zero_optimization").integer("stage", least=0) or 0
    if stage not in _ZERO:
        raise _not_read(f"zero_optimization.stage {stage}")
    interval = whole.section("pipeline").integer("activation_checkpoint_interval", least=0)
    return Imported(
        form="deepspeed",
        stack="deepspeed",
        devices=devices,
        global_batch=batch,
        precision=_precision(whole),
        optimizer=_optimizer(whole),
        pipeline=pipeline,
        tensor=tensor,
        context=1,
        data=data,
        microbatch=microbatch,
        microbatches=microbatches,
        chunks=1,
        sequence_parallel=False if pipeline == 1 else None,
        schedule="1f1b",
        zero=(_ZERO[stage],),
        recompute=None if interval is None else _recompute(interval),
    )


def _without_auto(data: dict[str, object]) -> dict[str, object]:
    """The document with ``auto`` removed, two levels deep, as far as settings go."""

    def section(value: object) -> object:
        if isinstance(value, dict):
            return {key: inner for key, inner in value.items() if inner != "auto"}
        return value

    return {key: section(value) for key, value in data.items() if value != "auto"}


def _refuse(whole: Fields) -> None:
    """Settings that change memory or traffic in ways no plan can state."""
    zero = whole.section("zero_optimization")
    for name in ("offload_optimizer", "offload_param"):
        if zero.section(name).data.get("device", "none") not in ("none", None):
            raise _not_read(f"zero_optimization.{name}")
    for name, least in (("zero_hpz_partition_size", 1), ("mics_shard_size", 0)):
        value = zero.data.get(name)
        if isinstance(value, int) and value > least:
            raise _not_read(f"zero_optimization.{name} {shown(value)}")
    if (whole.integer("sequence_parallel_size", least=0) or 1) > 1:
        raise _not_read("sequence_parallel_size (Ulysses)")
    if whole.section("expert_parallel").flag("enabled"):
        raise _not_read("expert_parallel")


def _pipeline(whole: Fields) -> int | None:
    """Stages: 1 without the section, open where it leaves them to code."""
    if "pipeline" not in whole.data:
        return 1
    return whole.section("pipeline").integer("stages")


def _batch(whole: Fields, data: int | None) -> tuple[int | None, int | None, int | None]:
    """Batch, microbatch and microbatches; one missing follows from the others (config:925)."""
    total = whole.integer("train_batch_size")
    micro = whole.integer("train_micro_batch_size_per_gpu")
    steps = whole.integer("gradient_accumulation_steps")
    if data is None:
        return total, micro, steps
    if total is None:
        return (None if micro is None else micro * (steps or 1) * data), micro, steps or 1
    if micro is None and steps is None:
        steps = 1
    share = (micro or 1) * (steps or 1) * data
    both = micro is not None and steps is not None
    if total % share or (both and total != share):
        raise InputError(
            "BATCH_IDENTITY",
            f"train_batch_size={total} is not micro batch {micro or '?'} x accumulation "
            f"{steps or '?'} x data ranks {data}",
            f"use train_batch_size={max(1, total // share) * share}",
        )
    return total, micro or total // share, steps or total // share


def _precision(whole: Fields) -> Precision | None:
    if whole.section("bf16").flag("enabled") or whole.section("bfloat16").flag("enabled"):
        return "deepspeed-bf16"
    return "megatron-fp16" if whole.section("fp16").flag("enabled") else None


def _optimizer(whole: Fields) -> Optimizer | None:
    name = whole.section("optimizer").text("type")
    if name is None:
        return None
    if name.lower() not in _OPTIMIZERS:
        raise _not_read(f"optimizer {shown(name)}")
    return _OPTIMIZERS[name.lower()]


def _recompute(interval: int) -> tuple[tuple[str, ...], ...]:
    if interval > 1:
        raise _not_read(f"pipeline.activation_checkpoint_interval {interval}")
    return (("full",),) if interval else ((),)


def _not_read(what: str) -> InputError:
    return InputError(
        "DEEPSPEED_SETTING_NOT_READ", f"{what} has no counterpart in a plan", "remove it"
    )
