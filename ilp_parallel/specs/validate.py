"""The one place where specifications are built from data and checked.

Types are strict (no text for numbers, no number for a flag), unknown fields are errors, and every
size has a stated limit, chosen far above anything trained so far and low enough that no product
of sizes leaves the range of 64-bit integers unnoticed.
"""

from __future__ import annotations

import math
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, TypeVar, get_args

import msgspec

from ilp_parallel.errors import InputError
from ilp_parallel.specs.blocks import block_sizes, block_text, disagreement
from ilp_parallel.specs.cluster import ClusterSpec, DeviceSpec, LinkSpec
from ilp_parallel.specs.documents import did_you_mean, shown
from ilp_parallel.specs.job import Attention, JobSpec, Optimizer, Precision, Stack
from ilp_parallel.specs.layer_times import LAYER_TIME_LIMITS, MAX_LAYER_TIMES, LayerTime
from ilp_parallel.specs.model import Experts, Kind, LatentAttention, ModelSpec, StateSpace
from ilp_parallel.specs.rates import RATE_LIMITS
from ilp_parallel.specs.tasks import check_task

if TYPE_CHECKING:
    from ilp_parallel.specs.cluster import MatrixPrecision
    from ilp_parallel.specs.documents import Document

Spec = TypeVar("Spec", ModelSpec, ClusterSpec, JobSpec)
Part = (
    ModelSpec
    | ClusterSpec
    | JobSpec
    | DeviceSpec
    | LinkSpec
    | Experts
    | LatentAttention
    | StateSpace
    | Kind
)

MODEL_LIMITS: dict[str, tuple[int, int]] = {
    "layers": (1, 10**4),
    "hidden": (1, 1 << 20),
    "heads": (1, 1 << 16),
    "kv_heads": (1, 1 << 16),
    "head_dim": (1, 1 << 14),
    "ffn_hidden": (0, 1 << 22),
    "vocab": (1, 1 << 24),
    "learned_positions": (0, 1 << 24),
    "token_types": (0, 1 << 16),
    "default_batch": (1, 1 << 30),
    "default_sequence": (1, 1 << 30),
}
"""Least and largest value of the sizes of a model (chosen)."""

MAX_PARAMETERS = 10**15
"""Largest model (parameters, chosen)."""

MAX_DEVICES = 1 << 24
"""Largest cluster (devices, chosen)."""

MAX_TOKENS_PER_STEP = 1 << 40
"""Largest batch times sequence length (tokens, chosen)."""

DEVICE_LIMITS: dict[str, tuple[float, float]] = {
    "memory_bytes": (1 << 20, 1 << 44),
    "vector_flops": (1e6, 1e18),
    "memory_bandwidth_bytes_per_s": (1e6, 1e18),
    "processors": (1, 1 << 16),
}
"""Least and largest figures of a device (chosen); peaks have those of ``vector_flops``."""

LINK_LIMITS: dict[str, tuple[float, float]] = {
    "bandwidth_bytes_per_s": (1e3, 1e15),
    "latency_s": (0.0, 1.0),
}
"""Least and largest figures of a link (chosen)."""

PRICE_LIMITS = (1e-9, 1e9)
"""Least and largest price of a device-hour (chosen)."""

JOB_LIMITS: dict[str, tuple[int, int]] = {
    "global_batch": (1, 1 << 30),
    "sequence_length": (1, 1 << 30),
    "tick_ns": (1, 10**9),
}
"""Least and largest sizes of a job (chosen)."""

NEEDED_PRECISION: dict[Precision, MatrixPrecision] = {
    "megatron-fp16": "fp16",
    "megatron-bf16": "bf16",
    "deepspeed-bf16": "bf16",
    "fsdp-fp32-master": "bf16",
    "bf16-moments": "bf16",
    "fp8": "fp8",
    "fp8-bf16-gradients": "fp8",
}
"""Matrix precision that the device must have for a precision recipe."""


def to_model(data: Document, origin: str) -> ModelSpec:
    """A model from its fields.

    Raises
    ------
    InputError
        If a field is missing, unknown, mistyped or out of range, or if they disagree.
    """
    _require_block_fields(data, shown(origin))
    kinds = data.get("kinds")
    for i, kind in enumerate(kinds if isinstance(kinds, list) else ()):
        if isinstance(kind, dict):
            where = f"{shown(origin)}: kinds[{i}]"
            _require_fields(kind, Kind, where)
            _require_block_fields(kind, where)
    model = _convert(data, ModelSpec, origin)
    check_model(model)
    return model


def _require_block_fields(data: Document, name: str) -> None:
    """The fields of what a block may have, all of them known."""
    parts: tuple[tuple[str, type[Part]], ...] = (
        ("experts", Experts),
        ("latent", LatentAttention),
        ("state_space", StateSpace),
    )
    for part, kind in parts:
        value = data.get(part)
        if isinstance(value, dict):
            _require_fields(value, kind, f"{name}: {part}")


def to_cluster(data: Document, origin: str) -> ClusterSpec:
    """A cluster from its fields; same errors as :func:`to_model`."""
    for part, kind in (("device", DeviceSpec), ("intra", LinkSpec), ("inter", LinkSpec)):
        value = data.get(part)
        if isinstance(value, dict):
            _require_fields(value, kind, f"{shown(origin)}: {part}")
    cluster = _convert(data, ClusterSpec, origin)
    check_cluster(cluster)
    return cluster


def to_job(data: Document, origin: str) -> JobSpec:
    """A job from its fields; same errors as :func:`to_model`. See also :func:`check_job`."""
    return _convert(data, JobSpec, origin)


def _convert(data: Document, kind: type[Spec], origin: str) -> Spec:
    name = shown(origin)
    _require_fields(data, kind, name)
    try:
        return msgspec.convert(data, kind)
    except (msgspec.ValidationError, OverflowError, RecursionError, UnicodeError) as error:
        reason = str(error).replace("\n", " ")[:200]
        raise InputError("WRONG_TYPE", f"{name}: {reason}", _type_fix(reason)) from None


def _type_fix(reason: str) -> str:
    if "`float`, got `str`" in reason:
        return "write a plain number (in YAML 2.0e+11, not 2e11)"
    return "give a value of the expected type"


def _require_fields(data: Document, kind: type[Part], name: str) -> None:
    """Every field known, every field without a default there."""
    known = {field.name: field.default is MISSING for field in fields(kind)}
    for key in data:
        if key not in known:
            fix = did_you_mean(str(key), known, "remove it")
            raise InputError("UNKNOWN_FIELD", f"{name}: field {shown(key)}", fix)
    missing = [key for key, required in known.items() if required and key not in data]
    if missing:
        rest = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise InputError("MISSING_FIELD", f"{name}: no {missing[0]}{rest}", f"add {missing[0]}")


def require_in_range(name: str, value: float, limits: tuple[float, float], unit: str = "") -> None:
    """Raise ``InputError`` unless ``value`` is a finite number within ``limits``, both included."""
    least, largest = limits
    if least <= value <= largest:  # false for NaN
        return
    huge = isinstance(value, int) and value.bit_length() > 200
    fix = f"use {least:,} to {largest:,}{unit and ' ' + unit}"
    raise InputError("OUT_OF_RANGE", f"{name}={'huge' if huge else value}", fix)


def check_model(model: ModelSpec) -> None:
    """Refuse a model whose shapes are out of range or disagree.

    Raises
    ------
    InputError
        With code OUT_OF_RANGE, BAD_NAME, KV_HEADS_DO_NOT_DIVIDE_HEADS, or one of those of
        :func:`~ilp_parallel.specs.blocks.disagreement`.
    """
    _check_name(model.name)
    for name, limits in MODEL_LIMITS.items():
        value: int | None = getattr(model, name)
        if value is not None:
            require_in_range(name, value, limits)
    if model.heads % model.kv_heads:
        raise InputError(
            "KV_HEADS_DO_NOT_DIVIDE_HEADS",
            f"heads={model.heads}, kv_heads={model.kv_heads}",
            f"use kv_heads={math.gcd(model.heads, model.kv_heads)}",
        )
    for name, size, limits in block_sizes(model):
        require_in_range(name, size, limits)
    wrong = disagreement(model)
    if wrong is not None:
        raise wrong
    require_in_range("parameters", model.parameters, (1, MAX_PARAMETERS))
    if model.published_parameters is not None:
        require_in_range("published_parameters", model.published_parameters, (1, MAX_PARAMETERS))


def check_cluster(cluster: ClusterSpec) -> None:
    """Refuse a cluster with a figure out of range.

    Raises
    ------
    InputError
        With code OUT_OF_RANGE, BAD_NAME or NO_PEAK.
    """
    _check_name(cluster.name)
    device = cluster.device
    _check_name(device.name)
    require_in_range("nodes", cluster.nodes, (1, MAX_DEVICES))
    require_in_range("devices_per_node", cluster.devices_per_node, (1, MAX_DEVICES))
    require_in_range("nodes x devices_per_node", cluster.devices, (1, MAX_DEVICES), "devices")
    for name, limits in DEVICE_LIMITS.items():
        require_in_range(f"device.{name}", getattr(device, name), limits)
    if not device.peak_flops:
        raise InputError(
            "NO_PEAK", f"{device.name}: peak_flops is empty", "give the dense peak of fp16 or bf16"
        )
    for precision, peak in device.peak_flops.items():
        limits = DEVICE_LIMITS["vector_flops"]
        require_in_range(f"device.peak_flops.{precision}", peak, limits, "FLOP/s")
    if cluster.device_hour_price is not None:
        price = cluster.device_hour_price
        require_in_range("device_hour_price", price, PRICE_LIMITS, "per device-hour")
    for place, link in (("intra", cluster.intra), ("inter", cluster.inter)):
        for name, limits in LINK_LIMITS.items():
            require_in_range(f"{place}.{name}", getattr(link, name), limits)


def _check_name(name: str) -> None:
    if not 0 < len(name) <= 100 or not name.isprintable():
        raise InputError(
            "BAD_NAME", f"name={shown(name)}", "use 1 to 100 printable characters on one line"
        )


def check_job(model: ModelSpec, cluster: ClusterSpec, job: JobSpec) -> None:
    """Refuse a job that is out of range, or that its model or its device cannot run.

    Raises
    ------
    InputError
        With code OUT_OF_RANGE, UNKNOWN_CHOICE, SEQUENCE_LONGER_THAN_POSITIONS,
        PRECISION_NOT_ON_DEVICE, LAYER_TIME_TWICE, HEADS_NOT_DIVISIBLE_BY_TP,
        LAYER_TIME_BEATS_PEAK, LAYER_TIMES_OF_SEVERAL_KINDS, SEVERAL_PREDICTION_BLOCKS,
        or one of those of
        :func:`~ilp_parallel.specs.tasks.check_task`.
    """
    _check_prediction(model)
    _check_choices(job)
    check_task(model, job)
    for name, limits in JOB_LIMITS.items():
        require_in_range(name, getattr(job, name), limits)
    tokens = (1, MAX_TOKENS_PER_STEP)
    require_in_range("global_batch x sequence_length", job.tokens_per_step, tokens, "tokens")
    memory = cluster.device.memory_bytes
    if job.reserve_bytes is not None:
        require_in_range("reserve_bytes", job.reserve_bytes, (0, memory - 1), "bytes")
    if job.rates is not None:
        for rate, bounds in RATE_LIMITS.items():
            require_in_range(f"rates.{rate}", getattr(job.rates, rate), bounds)
    if 0 < model.learned_positions < job.sequence_length:
        raise InputError(
            "SEQUENCE_LONGER_THAN_POSITIONS",
            f"sequence_length={job.sequence_length}, but {model.name} has "
            f"{model.learned_positions} learned positions",
            f"use a sequence of at most {model.learned_positions}",
        )
    needed, peaks = NEEDED_PRECISION[job.precision], cluster.device.peak_flops
    if needed not in peaks:
        raise InputError(
            "PRECISION_NOT_ON_DEVICE",
            f"{job.precision} needs {needed}, but {cluster.device.name} has only "
            + ", ".join(sorted(peaks)),
            f"use --precision {default_precision(cluster)}",
        )
    _check_layer_times(model, job, peaks[needed])


def _check_prediction(model: ModelSpec) -> None:
    """One prediction block always lies beside the output matrix that it needs; more might not."""
    blocks = sum(view.layers for view in model.views if view.predicts)
    if blocks > 1:
        raise InputError(
            "SEVERAL_PREDICTION_BLOCKS",
            f"{shown(model.name)} has {blocks} blocks that predict further tokens",
            "plan the model with one of them",
        )


def _check_layer_times(model: ModelSpec, job: JobSpec, peak_flops: float) -> None:
    """Figures within their limits, one for each case, that this model and device can have."""
    require_in_range("number of layer_times", len(job.layer_times), (0, MAX_LAYER_TIMES))
    if job.layer_times and (model.kind_count > 1 or model.has_experts):
        raise InputError(
            "LAYER_TIMES_OF_SEVERAL_KINDS",
            f"layer times, but the blocks of {shown(model.name)} are {block_text(model)}",
            "leave them out: they say neither the kind of a block nor its expert degree",
        )
    seen: set[tuple[int, int, int]] = set()
    for i, time in enumerate(job.layer_times):
        for name, limits in LAYER_TIME_LIMITS.items():
            value: float | None = getattr(time, name)
            if value is not None:
                require_in_range(f"layer_times[{i}].{name}", value, limits)
        tokens = time.microbatch * time.sequence_length
        require_in_range(f"tokens of layer_times[{i}]", tokens, (1, MAX_TOKENS_PER_STEP))
        if time.case in seen:
            raise InputError("LAYER_TIME_TWICE", f"two layer times at {time.words}", "keep one")
        seen.add(time.case)
        if model.heads % time.tensor:
            raise InputError(
                "HEADS_NOT_DIVISIBLE_BY_TP",
                f"layer time at {time.words}, but {model.name} has {model.heads} heads",
                "give layer times of this model",
            )
        _check_peak(model, time, peak_flops)


def _check_peak(model: ModelSpec, time: LayerTime, peak_flops: float) -> None:
    """Refuse a time in which the matrices of no kind of block can be multiplied on this device."""
    tokens = time.microbatch * time.sequence_length
    kinds = range(model.kind_count)
    fewest = min(model.of_kind(index).layer_matrix_parameters for index in kinds)
    forward_s = 2.0 * tokens * fewest / time.tensor / peak_flops
    for name, seconds, least in (
        ("forward_s", time.forward_s, forward_s),
        ("backward_s", time.backward_s, 2 * forward_s),
    ):
        if seconds is not None and seconds < least:
            raise InputError(
                "LAYER_TIME_BEATS_PEAK",
                f"{name}={seconds:.4g} at {time.words}, but at the device's peak its matrices "
                f"alone take {least:.4g} s",
                "give seconds of one block of this model, measured on this device",
            )


def default_precision(cluster: ClusterSpec) -> Precision:
    """The precision recipe assumed where none is given: bf16, or what the device has instead."""
    peaks = cluster.device.peak_flops
    if "bf16" in peaks:
        return "megatron-bf16"
    return "megatron-fp16" if "fp16" in peaks else "fp8"


def _check_choices(job: JobSpec) -> None:
    """Each named choice of a job is one that exists."""
    for name, value, choices in (
        ("precision", job.precision, get_args(Precision)),
        ("optimizer", job.optimizer, get_args(Optimizer)),
        ("attention", job.attention, get_args(Attention)),
        ("stack", job.stack, get_args(Stack)),
    ):
        if value not in choices:
            fix = f"use one of {', '.join(choices)}"
            raise InputError("UNKNOWN_CHOICE", f"{name}={shown(value)}", fix)
