"""Runs from Calculon's three JSON files: application, execution and system, in any order.

Fields: calculon/llm/llm.py and calculon/system.py of calculon-ai/calculon, read as published in
2023. Its applications are GPT-like models: LayerNorm, GELU, biases, learned positions, and a
vocabulary of 51,200 in its own parameter count, which no file states.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ilp_parallel.errors import InputError
from ilp_parallel.imports.record import Fields, Imported, parse_json, quotient
from ilp_parallel.specs.cluster import ClusterSpec, DeviceSpec, LinkSpec
from ilp_parallel.specs.documents import shown
from ilp_parallel.specs.readers import cluster_names, load_cluster
from ilp_parallel.specs.validate import check_cluster

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ilp_parallel.specs.cluster import MatrixPrecision
    from ilp_parallel.specs.job import Precision

VOCABULARY = 51_200
"""Rows of the embedding in Calculon's ``num_parameters``."""

_KEYS = {"num_blocks": "application", "num_procs": "execution", "networks": "system"}
_PRECISION: dict[str, Precision] = {
    "float16": "megatron-fp16",
    "bfloat16": "megatron-bf16",
    "float8": "fp8",
}
_RECOMPUTE: dict[str, tuple[str, ...]] = {
    "none": (),
    "attn_only": ("core_attn",),
    "full": ("full",),
}
_UNKNOWN_PROCESSORS = 108
"""Multiprocessors assumed of a device that no preset resembles (those of an A100)."""


def read_calculon(files: Sequence[tuple[str, str]], devices: int | None) -> Imported:
    """The run that Calculon's files describe; each is recognised by its fields.

    Raises
    ------
    InputError
        ``MALFORMED_JSON``, ``MISSING_FIELD``, ``WRONG_TYPE``, ``OUT_OF_RANGE``,
        ``SIZES_DISAGREE``; ``CALCULON_FILE_UNKNOWN`` or ``CALCULON_FILE_TWICE``;
        ``CALCULON_SETTING_NOT_READ``.
    """
    parts: dict[str, Fields] = {}
    for text, origin in files:
        data = parse_json(text, origin)
        kind = next((kind for key, kind in _KEYS.items() if key in data), None)
        if kind is None:
            raise InputError(
                "CALCULON_FILE_UNKNOWN",
                f"{shown(origin)} has none of {', '.join(_KEYS)}",
                "give application, execution and system files",
            )
        if kind in parts:
            raise InputError("CALCULON_FILE_TWICE", f"two {kind} files", f"give one {kind} file")
        parts[kind] = Fields(data, shown(origin))
    application, execution = parts.get("application"), parts.get("execution")
    if application is None:
        raise InputError("MISSING_FIELD", "no application file", "give the application JSON")
    shapes = _shapes(application, execution)
    tokens = application.required("seq_size")
    if execution is None:
        return Imported(
            form="calculon",
            stack="megatron",
            shapes=shapes,
            sequence_length=tokens,
            devices=devices,
        )
    return _with_execution(shapes, tokens, execution, parts.get("system"), devices)


def _shapes(application: Fields, execution: Fields | None) -> dict[str, object]:
    heads = application.required("attn_heads")
    kind = None if execution is None else execution.text("attention_type")
    return {
        "layers": application.required("num_blocks"),
        "hidden": application.required("hidden"),
        "heads": heads,
        "kv_heads": 1 if kind == "multiquery" else heads,
        "head_dim": application.required("attn_size"),
        "ffn_hidden": application.required("feedforward"),
        "vocab": VOCABULARY,
        "gated_mlp": False,
        "norm": "layernorm",
        "activation": "gelu",
        "qkv_bias": True,
        "projection_bias": True,
        "mlp_bias": True,
        "learned_positions": application.required("seq_size"),
        "embedding_norm": False,
        "tied_embeddings": True,
        "dropout": True,
    }


def _with_execution(
    shapes: dict[str, object],
    tokens: int,
    execution: Fields,
    system: Fields | None,
    devices: int | None,
) -> Imported:
    _refuse(execution)
    world, pipeline, tensor, data = _degrees(execution, devices)
    batch, microbatch = execution.required("batch_size"), execution.required("microbatch_size")
    chunks = execution.integer("pipeline_interleaving") or 1
    layers = shapes["layers"]
    assert isinstance(layers, int)
    size = quotient(layers, pipeline * chunks, "blocks by stages")
    sharded = execution.flag("optimizer_sharding") and data > 1
    datatype = execution.text("datatype")
    return Imported(
        form="calculon",
        stack="megatron",
        shapes=shapes,
        cluster=None if system is None else _cluster(system, world),
        devices=world,
        global_batch=batch,
        sequence_length=tokens,
        precision=None if datatype is None else _PRECISION.get(datatype),
        optimizer="adam",
        pipeline=pipeline,
        tensor=tensor,
        context=1,
        data=data,
        microbatch=microbatch,
        microbatches=quotient(batch, data * microbatch, "batch by data times microbatch"),
        chunks=chunks,
        sequence_parallel=execution.text("tensor_par_comm_type") == "rs_ag" and tensor > 1,
        schedule="interleaved" if chunks > 1 else "1f1b",
        sizes=(size,) * min(pipeline * chunks, layers),
        zero=("1" if sharded else "0",),
        recompute=(_recompute(execution),),
        notes=(f"vocabulary {VOCABULARY:,} as in Calculon's parameter count",),
    )


def _degrees(execution: Fields, devices: int | None) -> tuple[int, int, int, int]:
    """Devices, pipeline, tensor and data degree, which must agree."""
    world = execution.required("num_procs")
    pipeline, tensor = execution.required("pipeline_par"), execution.required("tensor_par")
    data = execution.required("data_par")
    if world != pipeline * tensor * data or devices not in (None, world):
        raise InputError(
            "SIZES_DISAGREE",
            f"num_procs={world}, tensor x pipeline x data = {tensor * pipeline * data}"
            + (f", cluster of {devices}" if devices else ""),
            "make them equal",
        )
    return world, pipeline, tensor, data


def _recompute(execution: Fields) -> tuple[str, ...]:
    name = execution.text("activation_recompute") or "none"
    if name not in _RECOMPUTE:
        raise _not_read(f"activation_recompute {shown(name)}")
    return _RECOMPUTE[name]


def _refuse(execution: Fields) -> None:
    for name in ("weight_offload", "activations_offload", "optimizer_offload"):
        if execution.flag(name):
            raise _not_read(name)
    if execution.flag("training") is False:
        raise _not_read("training false")


def _cluster(system: Fields, world: int) -> ClusterSpec:
    """Device and links; networks are ordered from the inner to the outer."""
    matrix, vector = _unit(system.section("matrix")), _unit(system.section("vector"))
    peak = _required(matrix, "tflops") * 1e12
    memory = system.section("mem1")
    networks = system.data["networks"]
    if not isinstance(networks, list) or not networks or not all(map(_named, networks)):
        raise InputError("WRONG_TYPE", f"{system.where}: networks", "give a list of networks")
    links = [Fields(entry, f"{system.where}.networks") for entry in networks]
    per_node = min(links[0].required("size"), world)
    like = _resembling(peak)
    peaks: dict[MatrixPrecision, float] = {"fp16": peak, "bf16": peak}
    if like is not None and "fp8" in like.peak_flops:
        peaks["fp8"] = like.peak_flops["fp8"]
    device = DeviceSpec(
        name=like.name if like else "calculon",
        memory_bytes=int(_required(memory, "GiB") * 2**30),
        peak_flops=peaks,
        vector_flops=_required(vector, "tflops") * 1e12,
        memory_bandwidth_bytes_per_s=_required(memory, "GBps") * 1e9,
        processors=like.processors if like else _UNKNOWN_PROCESSORS,
        generation=like.generation if like else "unknown",
    )
    cluster = ClusterSpec(
        name="calculon",
        device=device,
        nodes=quotient(world, per_node, "processes by the size of the inner network"),
        devices_per_node=per_node,
        intra=_link(links[0]),
        inter=_link(links[-1]),
    )
    check_cluster(cluster)
    return cluster


def _unit(section: Fields) -> Fields:
    """A compute unit: newer files have one per datatype, older ones one for all."""
    for name in ("bfloat16", "float16"):
        if isinstance(section.data.get(name), dict):
            return section.section(name)
    return section


def _required(section: Fields, name: str) -> float:
    value = section.number(name)
    if value is None:
        raise InputError("MISSING_FIELD", f"{section.where}: no {name}", f"add {name}")
    return value


def _named(entry: object) -> bool:
    return isinstance(entry, dict) and all(isinstance(key, str) for key in entry)


def _link(network: Fields) -> LinkSpec:
    return LinkSpec(_required(network, "bandwidth") * 1e9, network.number("latency") or 0.0)


def _resembling(peak: float) -> DeviceSpec | None:
    """The preset whose 16-bit peak is within 2 %."""
    for name in cluster_names():
        device = load_cluster(name).device
        if abs(device.peak_flops.get("bf16", 0.0) - peak) < 0.02 * peak:
            return device
    return None


def _not_read(what: str) -> InputError:
    return InputError(
        "CALCULON_SETTING_NOT_READ", f"{what} has no counterpart in a plan", "change it"
    )
