"""A plan as DeepSpeed's JSON, and for a pipeline the Python file its JSON has no words for.

Keys and rules: DeepSpeed commit edaa7221, ``config`` is deepspeed/runtime/config.py, ``engine``
deepspeed/runtime/pipe/engine.py, ``module`` deepspeed/runtime/pipe/module.py. Stages are decided
by ``PipelineModule`` in code, by weight or by type, so the exported file overrides its
``_partition_layers`` with the plan's bounds.

Without a pipeline the tensor degree is AutoTP's; with one the layers themselves must be tensor
parallel (as Megatron-DeepSpeed's are), and the topology tells the engine so.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ilp_parallel.errors import InputError
from ilp_parallel.export.base import (
    Exporter,
    ExportFile,
    Note,
    Violation,
    Written,
    common_notes,
    lacking_zero,
    none_or_full,
)
from ilp_parallel.export.python_file import comments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ilp_parallel.configuration import Zero
    from ilp_parallel.plan import Plan
    from ilp_parallel.specs.job import Precision

STAGE: dict[Zero, int] = {"0": 0, "1": 1, "2-buffer": 1, "2-scatter": 2, "3-regather": 3}
"""ZeRO stages. Stage 2 scatters every microbatch, stage 1 once per step."""

BF16 = ("megatron-bf16", "deepspeed-bf16", "fsdp-fp32-master")
"""Recipes for which a framework that knows one bf16 recipe uses its own."""


@dataclass(frozen=True, slots=True)
class DeepSpeedRun:
    """A JSON document and what its rules depend on beside it."""

    document: Mapping[str, object]
    devices: int
    pipeline: int
    tensor: int
    heads: int

    def integer(self, *path: str) -> int | None:
        """A number of the document; None where absent or set to ``auto``.

        Raises
        ------
        InputError
            ``WRONG_TYPE``.
        """
        value: object = self.document
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        if value is None or value == "auto":
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**40:
            raise InputError("WRONG_TYPE", ".".join(path), "give a whole number")
        return value


def document(plan: Plan) -> dict[str, object]:
    """The JSON document that makes DeepSpeed run a plan."""
    g, zero = plan.configuration, plan.strategies[0].zero
    half = "fp16" if plan.job.precision == "megatron-fp16" else "bf16"
    found: dict[str, object] = {
        "train_batch_size": plan.job.global_batch,
        "train_micro_batch_size_per_gpu": g.microbatch,
        "gradient_accumulation_steps": g.microbatches,
        half: {"enabled": True},
        "zero_optimization": {
            "stage": STAGE[zero],
            "overlap_comm": True,
            "contiguous_gradients": True,
            "reduce_scatter": True,
        },
    }
    if g.tensor > 1 and g.pipeline == 1:
        found["tensor_parallel"] = {"autotp_size": g.tensor}
    if g.pipeline > 1:
        interval = 1 if plan.strategies[0].recompute == ("full",) else 0
        found["pipeline"] = {"stages": g.pipeline, "activation_checkpoint_interval": interval}
    return found


def batch_identity(run: DeepSpeedRun) -> Iterator[Violation]:
    """Train batch = micro batch x accumulation x data ranks (config:925)."""
    if run.devices % (run.pipeline * run.tensor):
        return
    data = run.devices // (run.pipeline * run.tensor)
    total = run.integer("train_batch_size")
    micro = run.integer("train_micro_batch_size_per_gpu")
    steps = run.integer("gradient_accumulation_steps")
    if total is not None and micro is not None and steps is not None:
        if total != micro * steps * data or total == 0:
            yield Violation("BATCH_IDENTITY", f"{total} is not {micro} x {steps} x {data}")
    elif total is not None and (micro is not None or steps is not None):
        given = (micro or 1) * (steps or 1) * data
        if given == 0 or total % given:
            yield Violation("BATCH_IDENTITY", f"{total} is no multiple of {given}")


def sharding(run: DeepSpeedRun) -> Iterator[Violation]:
    """A pipeline allows ZeRO 0 and 1 only (engine:76); stages are 0 to 3."""
    stage = run.integer("zero_optimization", "stage") or 0
    if stage > 3:
        yield Violation("ZERO_STAGE_UNKNOWN", f"stage={stage}")
    elif stage >= 2 and run.pipeline > 1:
        yield Violation("ZERO_GE2_WITH_PP", f"zero={stage}, pp={run.pipeline}")


def degrees(run: DeepSpeedRun) -> Iterator[Violation]:
    """Pipeline times tensor degree divides the devices, the tensor degree divides the heads."""
    if run.devices % (run.pipeline * run.tensor):
        yield Violation(
            "DEVICES_NOT_DIVISIBLE", f"devices={run.devices}, pp*tp={run.pipeline * run.tensor}"
        )
    if run.heads % run.tensor:
        yield Violation("HEADS_NOT_DIVISIBLE_BY_TP", f"heads={run.heads}, tp={run.tensor}")


RULES: tuple[Callable[[DeepSpeedRun], Iterator[Violation]], ...] = (
    batch_identity,
    sharding,
    degrees,
)


def validate_deepspeed(run: DeepSpeedRun) -> tuple[Violation, ...]:
    """Every rule that a run breaks.

    Raises
    ------
    InputError
        If a value has the wrong type.
    """
    return tuple(violation for rule in RULES for violation in rule(run))


def _lacks(plan: Plan) -> Iterator[str]:
    g = plan.configuration
    yield from lacking_zero(plan, STAGE)
    if g.schedule != "1f1b" and g.pipeline > 1:
        yield f"{g.schedule} schedule"
    if g.context > 1:
        yield "context parallelism by rings (DeepSpeed's sequence_parallel_size is Ulysses)"
    if g.sequence_parallel and g.pipeline == 1:
        yield "sequence parallelism with AutoTP"
    if min(plan.sizes) < 1:
        yield "a stage without layers"


def _precision(plan: Plan) -> Precision | None:
    if plan.job.precision in BF16:
        return "deepspeed-bf16"
    return "megatron-fp16" if plan.job.precision == "megatron-fp16" else None


def _notes(plan: Plan) -> Iterator[Note]:
    g = plan.configuration
    yield Note("OPTIONS_TO_ADD", f"Add the optimizer ({plan.job.optimizer}) and its schedule.")
    if plan.strategies[0].zero == "2-buffer":
        yield Note("ZERO_2_BUFFER", "ZeRO 2-buffer runs as stage 1: same memory, same traffic.")
    if g.pipeline == 1:
        done = "Enable" if plan.strategies[0].recompute else "Do not enable"
        yield Note(
            "CHECKPOINTING_IN_CODE", f"{done} activation checkpointing of the model in code."
        )
    else:
        yield Note("STAGES_IN_CODE", "Build the model with make_pipeline of pipeline_stages.py.")
    if g.pipeline > 1 and g.tensor > 1:
        words = "tensor and sequence" if g.sequence_parallel else "tensor"
        yield Note("LAYERS_MUST_BE_PARALLEL", f"The layers themselves must be {words} parallel.")
    yield from common_notes(plan, "deepspeed", "DeepSpeed")


def _write(plan: Plan) -> Written:
    g = plan.configuration
    found = document(plan)
    notes = tuple(_notes(plan))
    files = [ExportFile("ds_config.json", json.dumps(found, indent=2) + "\n")]
    if g.pipeline > 1:
        files.append(ExportFile("pipeline_stages.py", _stages_file(plan, notes)))
    run = DeepSpeedRun(found, g.devices, g.pipeline, g.tensor, plan.model.heads)
    return Written(tuple(files), notes, validate_deepspeed(run))


def _stages_file(plan: Plan, notes: tuple[Note, ...]) -> str:
    g = plan.configuration
    interval = 1 if plan.strategies[0].recompute == ("full",) else 0
    return f'''"""{plan.model.name} on {g.devices} devices: stages of a DeepSpeed pipeline."""

{comments(notes)}
from itertools import accumulate

from deepspeed.pipe import PipelineModule
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology

STAGES = {list(plan.sizes)!r}
PIPELINE, TENSOR, DATA = {g.pipeline}, {g.tensor}, {g.data}
CHECKPOINT_INTERVAL = {interval}


class PlannedPipeline(PipelineModule):
    """Puts transformer layers on stages as planned; the ends get what comes before and after."""

    def __init__(self, layers, layers_before=1, **options):
        self.layers_before = layers_before
        super().__init__(layers, **options)

    def _partition_layers(self, method="uniform"):
        ends = [self.layers_before + end for end in accumulate(STAGES)]
        if len(self._layer_specs) < ends[-1]:
            raise ValueError(f"{{len(self._layer_specs)}} layers, the plan has {{ends[-1]}}")
        self.parts = [0, *ends[:-1], len(self._layer_specs)]
        stage = self._topo.get_coord(self.global_rank).pipe
        self._set_bounds(start=self.parts[stage], stop=self.parts[stage + 1])


def make_pipeline(layers, layers_before=1, **options):
    """A pipeline of LayerSpecs: layers_before of them come ahead of the first transformer layer."""
    topology = PipeModelDataParallelTopology(num_pp=PIPELINE, num_mp=TENSOR, num_dp=DATA)
    return PlannedPipeline(
        layers,
        layers_before=layers_before,
        topology=topology,
        activation_checkpoint_interval=CHECKPOINT_INTERVAL,
        **options,
    )
'''


EXPORTER = Exporter(
    "deepspeed",
    "DeepSpeed",
    _lacks,
    none_or_full,
    _precision,
    _write,
    "solve with --fix zero=1 --fix vpp=1 --fix sp=off",
)
