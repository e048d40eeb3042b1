"""A plan as Colossal-AI's ``HybridParallelPlugin``, in a Python file.

Arguments and rules: ColossalAI commit 4f9953be, ``plugin`` is
colossalai/booster/plugin/hybrid_parallel_plugin.py, ``manager`` colossalai/pipeline/
stage_manager.py, ``ckpt`` colossalai/shardformer/shard/grad_ckpt_config.py. Its pipeline recomputes
the first n layers of every virtual stage, a number per stage; its ZeRO 2 scatters every microbatch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ilp_parallel.errors import InputError
from ilp_parallel.export.base import (
    Exporter,
    ExportFile,
    Note,
    Violation,
    Written,
    by_stage,
    common_notes,
    lacking_zero,
    none_or_full,
)
from ilp_parallel.export.deepspeed import BF16
from ilp_parallel.export.python_file import Value, comments
from ilp_parallel.specs.job import FLASH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ilp_parallel.configuration import Zero
    from ilp_parallel.export.base import Layers
    from ilp_parallel.plan import Plan
    from ilp_parallel.specs.job import Precision

STAGE: dict[Zero, int] = {"0": 0, "1": 1, "2-buffer": 1, "2-scatter": 2}


@dataclass(frozen=True, slots=True)
class ColossalRun:
    """Arguments of the plugin, of its checkpoint configuration, and what rules depend on."""

    arguments: Mapping[str, Value]
    checkpoint: Mapping[str, Value]
    devices: int
    layers: int
    heads: int
    sequence_length: int

    def integer(self, name: str, default: int = 1) -> int:
        """An integer argument.

        Raises
        ------
        InputError
            ``WRONG_TYPE``.
        """
        value = self.arguments.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**40:
            raise InputError("WRONG_TYPE", f"{name}={value!r}"[:200], "give a whole number")
        return value


def arguments(plan: Plan) -> dict[str, Value]:
    """Keyword arguments of the plugin, the checkpoint configuration left aside."""
    g = plan.configuration
    found: dict[str, Value] = {
        "tp_size": g.tensor,
        "pp_size": g.pipeline,
        "zero_stage": STAGE[plan.strategies[0].zero],
        "precision": "fp16" if plan.job.precision == "megatron-fp16" else "bf16",
        "enable_flash_attention": plan.job.attention in FLASH,
        "make_vocab_size_divisible_by": 64,
    }
    if g.sequence_parallel or g.context > 1:
        found["enable_sequence_parallelism"] = True
        found["sequence_parallelism_mode"] = "ring_attn" if g.context > 1 else "split_gather"
        found["sp_size"] = g.context if g.context > 1 else g.tensor
    if g.pipeline > 1:
        found["microbatch_size"] = g.microbatch
        found["pp_style"] = g.schedule
        found["num_model_chunks"] = g.chunks
        if g.chunks == 1:
            found["num_layers_per_stage"] = list(plan.sizes)
    return found


def checkpoint(plan: Plan) -> dict[str, Value]:
    """Arguments of ``PipelineGradientCheckpointConfig``; none without pipeline or recomputing."""
    g = plan.configuration
    counts = [sum(bool(modules) for modules in stage) for stage in by_stage(plan)]
    if g.pipeline == 1 or not any(counts):
        return {}
    return {
        "num_stages": g.pipeline,
        "num_model_chunks": g.chunks,
        "num_model_layers": plan.model.layers,
        "num_ckpt_layers_per_stage": counts,
    }


def degrees(run: ColossalRun) -> Iterator[Violation]:
    """Tensor times pipeline (times ring) degree divides the devices (plugin:1052)."""
    ring = run.arguments.get("sequence_parallelism_mode") == "ring_attn"
    sequence = run.integer("sp_size") if ring else 1
    product = max(1, run.integer("tp_size") * run.integer("pp_size") * sequence)
    if run.devices % product:
        yield Violation("DEVICES_NOT_DIVISIBLE", f"devices={run.devices}, tp*pp*sp={product}")
    if run.heads % max(1, run.integer("tp_size")):
        yield Violation(
            "HEADS_NOT_DIVISIBLE_BY_TP", f"heads={run.heads}, tp={run.integer('tp_size')}"
        )
    if ring and run.sequence_length % (2 * max(1, sequence)):
        yield Violation("SEQ_NOT_DIVISIBLE", f"seq={run.sequence_length}, 2*sp={2 * sequence}")


def sharding(run: ColossalRun) -> Iterator[Violation]:
    """ZeRO stages are 0, 1, 2, and 2 goes with no pipeline (plugin:1096)."""
    stage, pipeline = run.integer("zero_stage", 0), run.integer("pp_size")
    if stage > 2:
        yield Violation("ZERO_STAGE_UNKNOWN", f"zero={stage} (ZeRO 3 is Gemini's)")
    elif stage == 2 and pipeline > 1:
        yield Violation("ZERO_GE2_WITH_PP", f"zero={stage}, pp={pipeline}")


def schedule(run: ColossalRun) -> Iterator[Violation]:
    """1F1B has one chunk, interleaving several; a pipeline knows its microbatch (plugin:1100)."""
    pipeline, chunks = run.integer("pp_size"), run.integer("num_model_chunks")
    style = run.arguments.get("pp_style", "1f1b")
    if pipeline > 1 and not {"microbatch_size", "num_microbatches"} & set(run.arguments):
        yield Violation("MICROBATCH_MISSING", "give microbatch_size or num_microbatches")
    if style not in ("1f1b", "interleaved"):
        yield Violation("SCHEDULE_UNKNOWN", f"pp_style={style!r}"[:100])
    elif (style == "interleaved") != (chunks > 1):
        yield Violation("SCHEDULE_NOT_FOR_CHUNKS", f"{style} with {chunks} chunks")


def sequence(run: ColossalRun) -> Iterator[Violation]:
    """Splitting and gathering the sequence uses the tensor ranks (plugin:1070)."""
    mode = run.arguments.get("sequence_parallelism_mode")
    if mode in ("split_gather", "ring"):
        tensor, size = run.integer("tp_size"), run.integer("sp_size")
        if tensor == 1 or size != tensor:
            yield Violation("SEQUENCE_PARALLEL_WITHOUT_TP", f"{mode}: tp={tensor}, sp={size}")


def stages(run: ColossalRun) -> Iterator[Violation]:
    """One number of layers per pipeline stage, adding up (manager:57); checkpoints (ckpt:53)."""
    pipeline, chunks = run.integer("pp_size"), run.integer("num_model_chunks")
    sizes = run.arguments.get("num_layers_per_stage")
    if isinstance(sizes, list) and (len(sizes) != pipeline or sum(sizes) != run.layers):
        yield Violation("STAGES_DIFFER", f"{len(sizes)} sizes, {sum(sizes)} of {run.layers} layers")
    if sizes is None and run.layers % max(1, pipeline * chunks):
        yield Violation(
            "LAYERS_NOT_DIVISIBLE_BY_PP", f"layers={run.layers}, pp*chunks={pipeline * chunks}"
        )
    counts = run.checkpoint.get("num_ckpt_layers_per_stage")
    if isinstance(counts, list) and len(counts) != pipeline * chunks:
        yield Violation("CHECKPOINTS_DIFFER", f"{len(counts)} counts, {pipeline * chunks} stages")


RULES: tuple[Callable[[ColossalRun], Iterator[Violation]], ...] = (
    degrees,
    sharding,
    schedule,
    sequence,
    stages,
)


def validate_colossalai(run: ColossalRun) -> tuple[Violation, ...]:
    """Every rule that the plugin's arguments break.

    Raises
    ------
    InputError
        If a value has the wrong type.
    """
    return tuple(violation for rule in RULES for violation in rule(run))


def _lacks(plan: Plan) -> Iterator[str]:
    g = plan.configuration
    yield from lacking_zero(plan, STAGE)
    if g.schedule == "gpipe":
        yield "GPipe schedule"
    if g.chunks > 1 and len(set(plan.sizes)) > 1:
        yield "interleaved chunks of different sizes"
    if g.context > 1 and g.sequence_parallel:
        yield "context parallelism beside sequence parallelism"
    if min(plan.sizes) < 1:
        yield "a stage without layers"


def _recomputations(plan: Plan) -> list[Layers]:
    """None, all, or with a pipeline as many layers at the head of each stage as the plan has."""
    policies = none_or_full(plan)
    if plan.configuration.pipeline > 1:
        block: list[tuple[str, ...]] = []
        for stage in by_stage(plan):
            count = sum(bool(modules) for modules in stage)
            block += [("full",) if i < count else () for i in range(len(stage))]
        policies.append(tuple(block))
    return policies


def _precision(plan: Plan) -> Precision | None:
    if plan.job.precision in BF16:
        return "deepspeed-bf16"
    return "megatron-fp16" if plan.job.precision == "megatron-fp16" else None


def _notes(plan: Plan) -> Iterator[Note]:
    g = plan.configuration
    if plan.strategies[0].zero == "2-buffer":
        yield Note("ZERO_2_BUFFER", "ZeRO 2-buffer runs as stage 1: same memory, same traffic.")
    if any(strategy.recompute for strategy in plan.strategies):
        yield Note("CHECKPOINTING_IN_CODE", "Call model.gradient_checkpointing_enable().")
    if g.pipeline == 1 and g.microbatches > 1:
        yield Note(
            "ACCUMULATION_IN_CODE",
            f"Accumulate gradients over {g.microbatches} microbatches of {g.microbatch} sequences.",
        )
    yield from common_notes(plan, "deepspeed", "Colossal-AI")


def _write(plan: Plan) -> Written:
    g = plan.configuration
    found, kept, notes = arguments(plan), checkpoint(plan), tuple(_notes(plan))
    imports = "from colossalai.booster.plugin import HybridParallelPlugin\n"
    lines = "".join(f"        {name}={value!r},\n" for name, value in found.items())
    if kept:
        imports += "from colossalai.shardformer import PipelineGradientCheckpointConfig\n"
        inner = "".join(f"            {name}={value!r},\n" for name, value in kept.items())
        config = f"PipelineGradientCheckpointConfig(\n{inner}        )"
        lines += f"        gradient_checkpoint_config={config},\n"
    text = (
        f'"""{plan.model.name} on {g.devices} devices: Colossal-AI."""\n\n{comments(notes)}\n'
        f"{imports}\nGLOBAL_BATCH_SIZE = {plan.job.global_batch}\n"
        f"MICROBATCH_SIZE = {g.microbatch}\nMICROBATCHES = {g.microbatches}\n\n\n"
        'def make_plugin():\n    """The plugin that runs the plan."""\n'
        f"    return HybridParallelPlugin(\n{lines}    )\n"
    )
    run = ColossalRun(
        found, kept, g.devices, plan.model.layers, plan.model.heads, plan.job.sequence_length
    )
    return Written((ExportFile("plugin.py", text),), notes, validate_colossalai(run))


EXPORTER = Exporter(
    "colossalai",
    "Colossal-AI",
    _lacks,
    _recomputations,
    _precision,
    _write,
    "solve with --fix zero=1, or use another --to",
)
