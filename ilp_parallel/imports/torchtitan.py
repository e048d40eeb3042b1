"""Runs from torchtitan's TOML (releases up to v0.2, torchtitan/config/job_config.py).

Defaults are those of that file. The model is only named there, so its shapes stay open. Stages that
the file does not list are split as torchtitan does it: ``pipeline_parallel_layers_per_stage`` with
one layer less on the first and on the last; this needs the number of layers, so they stay open too.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ilp_parallel.errors import InputError
from ilp_parallel.imports.record import Fields, Imported, quotient
from ilp_parallel.specs.documents import shown

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ilp_parallel.configuration import Zero
    from ilp_parallel.problems.pipeline import Schedule

_SCHEDULES: dict[str, Schedule] = {
    "1f1b": "1f1b",
    "gpipe": "gpipe",
    "interleaved1f1b": "interleaved",
}
_RECOMPUTE: dict[str, tuple[str, ...]] = {"none": (), "full": ("full",)}


def parse_toml(text: str, origin: str) -> Fields:
    """The tables of a TOML text.

    Raises
    ------
    InputError
        ``MALFORMED_TOML``.
    """
    name = shown(origin)
    try:
        return Fields(tomllib.loads(text), name)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        reason = shown(str(error).splitlines()[0]) if str(error) else "nested too deeply"
        raise InputError("MALFORMED_TOML", f"{name}: {reason}", "mend the TOML") from None


def read_torchtitan(text: str, origin: str, devices: int | None) -> Imported:
    """The run that a torchtitan TOML file describes.

    Raises
    ------
    InputError
        ``MALFORMED_TOML``, ``WRONG_TYPE``, ``OUT_OF_RANGE``, ``SIZES_DISAGREE``;
        ``TORCHTITAN_SETTING_NOT_READ`` for a setting no plan can state.
    """
    whole = parse_toml(text, origin)
    training, parallelism = whole.section("training"), whole.section("parallelism")
    tensor = parallelism.integer("tensor_parallel_degree") or 1
    context = parallelism.integer("context_parallel_degree") or 1
    pipeline = parallelism.integer("pipeline_parallel_degree") or 1
    replicate = parallelism.integer("data_parallel_replicate_degree") or 1
    if (parallelism.integer("expert_parallel_degree") or 1) > 1:
        raise _not_read("parallelism.expert_parallel_degree")
    shard = _shard(parallelism, devices, tensor * context * pipeline * replicate)
    data = None if shard is None else shard * replicate
    if data is not None and devices is not None and data * tensor * context * pipeline != devices:
        raise InputError(
            "DEGREES_NOT_WORLD_SIZE",
            f"product of degrees {data * tensor * context * pipeline}, devices {devices}",
            "change --cluster or the degrees",
        )
    sizes = _sizes(parallelism)
    total, microbatch, per_step = _batch(training, parallelism, pipeline, data)
    chunks = None if sizes is None else quotient(len(sizes), pipeline, "stages by pipeline degree")
    return Imported(
        form="torchtitan",
        stack="torchtitan",
        devices=devices,
        global_batch=total,
        sequence_length=training.integer("seq_len") or 2048,
        precision="fsdp-fp32-master",
        optimizer="adam",
        attention="flash",
        pipeline=pipeline,
        tensor=tensor,
        context=context,
        data=data,
        microbatch=microbatch,
        microbatches=per_step,
        chunks=1 if pipeline == 1 else chunks,
        sequence_parallel=tensor > 1,
        schedule=_schedule(parallelism, pipeline),
        sizes=sizes,
        zero=_zero(parallelism, shard, replicate, context, pipeline),
        recompute=_recompute(whole.section("activation_checkpoint")),
        notes=tuple(_notes(whole)),
    )


def _shard(parallelism: Fields, devices: int | None, others: int) -> int | None:
    """Shard degree; -1 or absent is what the other degrees leave of the devices."""
    if parallelism.data.get("data_parallel_shard_degree", -1) != -1:
        return parallelism.integer("data_parallel_shard_degree")
    return None if devices is None else quotient(devices, others, "devices by the other degrees")


def _batch(
    training: Fields, parallelism: Fields, pipeline: int, data: int | None
) -> tuple[int | None, int, int | None]:
    """Global batch, microbatch and microbatches; a pipeline cuts the local batch further."""
    local = training.integer("local_batch_size", "batch_size") or 8
    microbatch, per_step = local, None
    if pipeline > 1:
        microbatch = parallelism.integer("pipeline_parallel_microbatch_size") or 1
        per_step = quotient(local, microbatch, "local batch by microbatch")
    total = None if data is None else local * data
    if training.data.get("global_batch_size", -1) != -1:
        total = training.integer("global_batch_size")
    if total is not None and data is not None:
        per_step = quotient(total, microbatch * data, "global batch by microbatch times data")
    return total, microbatch, per_step


def _schedule(parallelism: Fields, pipeline: int) -> Schedule:
    name = parallelism.text("pipeline_parallel_schedule") or "1F1B"
    if pipeline == 1:
        return "1f1b"
    if name.lower() not in _SCHEDULES:
        raise _not_read(f"parallelism.pipeline_parallel_schedule {shown(name)}")
    return _SCHEDULES[name.lower()]


def _zero(
    parallelism: Fields, shard: int | None, replicate: int, context: int, pipeline: int
) -> tuple[Zero, ...] | None:
    """FSDP's resharding as a variant of ZeRO; weights sharded and replicated have none."""
    if shard is None:
        return None
    if shard * context == 1:
        return ("0",)
    if replicate > 1:
        raise _not_read("parallelism.data_parallel_replicate_degree beside sharding")
    policy = parallelism.text("fsdp_reshard_after_forward") or "default"
    if policy not in ("default", "always", "never"):
        raise _not_read(f"parallelism.fsdp_reshard_after_forward {shown(policy)}")
    keeps = policy == "never" or (policy == "default" and pipeline > 1)
    return ("3-keep",) if keeps else ("3-regather",)


def _recompute(section: Fields) -> tuple[tuple[str, ...], ...] | None:
    """None, all, or open: selective checkpointing chooses operators, no modules of a plan."""
    mode = section.text("mode") or "selective"
    if mode == "selective":
        return None
    if mode not in _RECOMPUTE:
        raise _not_read(f"activation_checkpoint.mode {shown(mode)}")
    return (_RECOMPUTE[mode],)


def _sizes(parallelism: Fields) -> tuple[int, ...] | None:
    """Layers of every listed stage."""
    stages = parallelism.data.get("module_fqns_per_model_part")
    if stages is None:
        return None
    if not isinstance(stages, list) or not stages:
        raise InputError("WRONG_TYPE", "module_fqns_per_model_part", "give lists of names")
    names: list[str] = []
    sizes = []
    for stage in stages:
        if not isinstance(stage, list) or not all(isinstance(name, str) for name in stage):
            raise InputError("WRONG_TYPE", "module_fqns_per_model_part", "give lists of names")
        layers = [name for name in stage if name.startswith("layers.")]
        names += layers
        sizes.append(len(layers))
    if names != [f"layers.{i}" for i in range(len(names))] or min(sizes) < 1:
        raise InputError(
            "LAYERS_NOT_COVERED_ONCE",
            "module_fqns_per_model_part does not list every layer once and in order",
            "list layers.0, layers.1, ... with at least one per stage",
        )
    return tuple(sizes)


def _notes(whole: Fields) -> Iterator[str]:
    model = whole.section("model")
    name, flavor = model.text("name"), model.text("flavor")
    if name is not None:
        yield f"model {shown(name)} {shown(flavor or '')}".rstrip()
    if "float8" in str(model.data.get("converters", "")):
        yield "float8 converter not planned: matrix products are priced in bf16"
    if (whole.section("activation_checkpoint").text("mode") or "selective") == "selective":
        yield "selective checkpointing has no counterpart in a plan"


def _not_read(what: str) -> InputError:
    return InputError(
        "TORCHTITAN_SETTING_NOT_READ", f"{what} has no counterpart in a plan", "change or remove it"
    )
