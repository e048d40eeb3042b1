"""A plan as a torchtitan configuration: a Python recipe, or TOML for the releases that read it.

Recipe: torchtitan 0.3 and, where names of batch sizes changed later, commit b5bcd76c (a run is a
Python function that returns a ``Trainer.Config``, torchtitan/config/README.md); the function that
is written asks which of the two it got. TOML: releases up to 0.2, torchtitan/config/job_config.py.

FSDP2 in torchtitan reduce-scatters after every microbatch. With ``fsdp_reshard_after_forward`` set
to ``always`` it gathers weights again in every backward (``3-regather``), with ``never`` it keeps
them until then (``3-keep``). Without FSDP weights are replicated (``0``). There is nothing else.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ilp_parallel.export.base import (
    Exporter,
    ExportFile,
    Note,
    Written,
    common_notes,
    lacking_zero,
    none_or_full,
)
from ilp_parallel.export.python_file import Expression, Value, assignments, comments
from ilp_parallel.export.torchtitan_rules import TitanRun, validate_titan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ilp_parallel.plan import Plan
    from ilp_parallel.specs.job import Precision

Sections = dict[str, dict[str, Value]]

SCHEDULES = {"1f1b": "1F1B", "gpipe": "GPipe", "interleaved": "Interleaved1F1B"}
RESHARD = {"0": "default", "3-keep": "never", "3-regather": "always"}


def stage_modules(sizes: tuple[int, ...], last: str) -> list[list[str]]:
    """Module names of every virtual stage; ``last`` is the name of the output matrix."""
    stages: list[list[str]] = []
    first = 0
    for size in sizes:
        stages.append([f"layers.{i}" for i in range(first, first + size)])
        first += size
    stages[0].insert(0, "tok_embeddings")
    stages[-1] += ["norm", last]
    return stages


def _parallelism(plan: Plan) -> dict[str, Value]:
    """Degrees and sharding, which both forms name alike."""
    g = plan.configuration
    zero = plan.strategies[0].zero
    sharded = zero != "0"
    return {
        "data_parallel_replicate_degree": 1 if sharded else g.data,
        "data_parallel_shard_degree": g.data if sharded else 1,
        "fsdp_reshard_after_forward": RESHARD[zero],
        "tensor_parallel_degree": g.tensor,
        "context_parallel_degree": g.context,
        "pipeline_parallel_degree": g.pipeline,
    }


def toml_sections(plan: Plan) -> Sections:
    """Sections of the TOML file."""
    g = plan.configuration
    parallelism = _parallelism(plan)
    local = g.microbatch
    if g.pipeline > 1:
        local = g.microbatch * g.microbatches
        parallelism["pipeline_parallel_schedule"] = SCHEDULES[g.schedule]
        parallelism["pipeline_parallel_microbatch_size"] = g.microbatch
        parallelism["module_fqns_per_model_part"] = stage_modules(plan.sizes, "output")
    full = plan.strategies[0].recompute == ("full",)
    return {
        "training": {
            "local_batch_size": local,
            "global_batch_size": plan.job.global_batch,
            "seq_len": plan.job.sequence_length,
            "mixed_precision_param": "bfloat16",
            "mixed_precision_reduce": "float32",
        },
        "parallelism": parallelism,
        "activation_checkpoint": {"mode": "full" if full else "none"},
    }


def recipe_settings(plan: Plan) -> dict[str, Value]:
    """Attributes of a ``Trainer.Config``, those of the batch left aside."""
    g = plan.configuration
    found = {f"parallelism.{name}": value for name, value in _parallelism(plan).items()}
    found["parallelism.enable_sequence_parallel"] = g.sequence_parallel
    if g.pipeline > 1:
        found["parallelism.pipeline_parallel_schedule"] = SCHEDULES[g.schedule]
        found["parallelism.module_fqns_per_model_part"] = stage_modules(plan.sizes, "lm_head")
        found["training.disable_cuda_graphs"] = True
    found["training.mixed_precision_param"] = "bfloat16"
    found["training.mixed_precision_reduce"] = "float32"
    full = plan.strategies[0].recompute == ("full",)
    found["activation_checkpoint"] = Expression("FullAC.Config()") if full else None
    return found


def batch_settings(plan: Plan) -> tuple[dict[str, Value], dict[str, Value]]:
    """Attributes of the batch in release 0.3, and in what came after it."""
    g, tokens = plan.configuration, plan.job.sequence_length
    released: dict[str, Value] = {
        f"training.{name}": value
        for name, value in toml_sections(plan)["training"].items()
        if name in ("local_batch_size", "global_batch_size", "seq_len")
    }
    later: dict[str, Value] = {
        "training.num_tokens_per_microbatch_per_dp_rank": g.microbatch * tokens,
        "training.num_tokens_per_train_step": plan.job.global_batch * tokens,
        "training.max_context_length": tokens,
    }
    if g.pipeline > 1:
        released["parallelism.pipeline_parallel_microbatch_size"] = g.microbatch
        later["parallelism.num_pp_microbatches"] = g.microbatches
    return released, later


def _lacks(plan: Plan) -> Iterator[str]:
    yield from lacking_zero(plan, RESHARD)
    if any(s.zero == "0" for s in plan.strategies) and plan.configuration.context > 1:
        yield "replicated weights with context parallelism (its ranks shard them)"
    if plan.job.optimizer != "adam":
        yield f"optimizer {plan.job.optimizer}"
    if min(plan.sizes) < 1:
        yield "a virtual stage without layers"


def _lacks_in_toml(plan: Plan) -> Iterator[str]:
    yield from _lacks(plan)
    if plan.configuration.tensor > 1 and not plan.configuration.sequence_parallel:
        yield "tensor parallelism without sequence parallelism"


def _precision(plan: Plan) -> Precision | None:
    """Master weights in fp32, sharded; bf16 in matrix products (mixed precision of FSDP2)."""
    sixteen = ("megatron-bf16", "deepspeed-bf16", "fsdp-fp32-master")
    return "fsdp-fp32-master" if plan.job.precision in sixteen else None


def _notes(plan: Plan) -> Iterator[Note]:
    g = plan.configuration
    yield Note(
        "MODEL_NEEDED",
        f"Choose the torchtitan model with {plan.model.layers} layers, hidden "
        f"{plan.model.hidden}, {plan.model.heads} heads, {plan.model.kv_heads} key-value heads.",
    )
    yield Note("LAUNCH", f"Start {g.devices} ranks; set data, optimizer and checkpoints yourself.")
    if g.pipeline > 1 and g.microbatches < g.pipeline * g.chunks:
        yield Note(
            "FEWER_MICROBATCHES_THAN_STAGES",
            f"{g.microbatches} microbatches on {g.pipeline * g.chunks} stages leave bubbles.",
        )
    if g.context > 1:
        yield Note(
            "CONTEXT_PARALLEL_ATTENTION", "The recipe needs FlexAttention for context ranks."
        )
    yield from common_notes(plan, "torchtitan", "torchtitan")


def _run(plan: Plan) -> TitanRun:
    return TitanRun(
        sections=toml_sections(plan),
        devices=plan.configuration.devices,
        layers=plan.model.layers,
        heads=plan.model.heads,
        kv_heads=plan.model.kv_heads,
        tied_embeddings=plan.model.tied_embeddings,
    )


def _write_recipe(plan: Plan) -> Written:
    notes = tuple(_notes(plan))
    found, (released, later) = recipe_settings(plan), batch_settings(plan)
    needs = isinstance(found["activation_checkpoint"], Expression)
    module = "torchtitan.distributed.activation_checkpoint"
    imports = f"from {module} import FullAC\n\n\n" if needs else "\n"
    text = (
        f'"""{plan.model.name} on {plan.configuration.devices} devices: torchtitan."""\n\n'
        f"{comments(notes)}\n{imports}def apply_plan(config):\n"
        '    """Set what the plan decides on a Trainer.Config; call it in your recipe."""\n'
        f"{assignments('config', found)}"
        '    if hasattr(config.training, "local_batch_size"):\n'
        f"{assignments('config', released, 8)}"
        f"    else:\n{assignments('config', later, 8)}    return config\n"
    )
    return Written((ExportFile("apply_plan.py", text),), notes, validate_titan(_run(plan)))


def _write_toml(plan: Plan) -> Written:
    notes = tuple(_notes(plan))
    text = comments(notes)
    for section, entries in toml_sections(plan).items():
        lines = "".join(f"{name} = {_toml(value)}\n" for name, value in entries.items())
        text += f"\n[{section}]\n{lines}"
    return Written((ExportFile("plan.toml", text),), notes, validate_titan(_run(plan)))


def _toml(value: Value) -> str:
    """Numbers, texts and lists look the same in TOML and JSON."""
    if isinstance(value, list):
        return "[\n" + "".join(f"    {json.dumps(entry)},\n" for entry in value) + "]"
    return json.dumps(value)


_ADVICE = "solve with --fix zero=3 --fix recompute=none, or with --fix recompute=full"

RECIPE = Exporter(
    "torchtitan", "torchtitan", _lacks, none_or_full, _precision, _write_recipe, _ADVICE
)
TOML = Exporter(
    "torchtitan-toml", "torchtitan", _lacks_in_toml, none_or_full, _precision, _write_toml, _ADVICE
)
