"""A plan as a configuration file of Hugging Face accelerate, with the Trainer's arguments.

Keys and rules: accelerate commit 16cb6eb8, ``parallelism`` is
src/accelerate/parallelism_config.py, ``launch`` src/accelerate/commands/launch.py. FSDP2 there is
``3-regather`` when it reshards after forward and ``3-keep`` when it does not; without FSDP weights
are replicated. The YAML has no batch sizes: they are arguments of the Trainer, which reads them
from the second file.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
from ilp_parallel.export.deepspeed import BF16
from ilp_parallel.export.python_file import comments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ilp_parallel.plan import Plan
    from ilp_parallel.specs.job import Precision

_ZERO = ("0", "3-keep", "3-regather")
_SIZES = ("dp_replicate", "dp_shard", "tp", "cp")


@dataclass(frozen=True, slots=True)
class AccelerateRun:
    """A configuration file as data, and what its rules depend on beside it."""

    document: Mapping[str, object]
    heads: int
    kv_heads: int
    sequence_length: int

    def size(self, name: str) -> int:
        """A size of ``parallelism_config``; 1 where absent."""
        section = self.document.get("parallelism_config") or {}
        value = (
            section.get(f"parallelism_config_{name}_size", 1) if isinstance(section, dict) else 1
        )
        return value if isinstance(value, int) else 0

    @property
    def fsdp2(self) -> bool:
        """Whether FSDP of version 2 is on."""
        section = self.document.get("fsdp_config")
        version = section.get("fsdp_version") if isinstance(section, dict) else None
        return self.document.get("distributed_type") == "FSDP" and version == 2


def document(plan: Plan) -> dict[str, object]:
    """The configuration file as data."""
    g, zero = plan.configuration, plan.strategies[0].zero
    world, per_node = g.devices, plan.cluster.devices_per_node
    parallel = g.tensor * g.context > 1
    sharded = zero != "0" or parallel
    found: dict[str, object] = {
        "compute_environment": "LOCAL_MACHINE",
        "debug": False,
        "distributed_type": "FSDP" if sharded else "MULTI_GPU" if world > 1 else "NO",
        "machine_rank": 0,
        "main_training_function": "main",
        "mixed_precision": "fp16" if plan.job.precision == "megatron-fp16" else "bf16",
        "num_machines": max(1, world // per_node),
        "num_processes": world,
        "use_cpu": False,
    }
    if sharded:
        found["fsdp_config"] = {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": zero != "3-keep",
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_activation_checkpointing": plan.strategies[0].recompute == ("full",),
            "fsdp_offload_params": False,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        }
    if parallel:
        replicate, shard = (g.data, 1) if zero == "0" else (1, g.data)
        sizes = zip(_SIZES, (replicate, shard, g.tensor, g.context), strict=True)
        found["parallelism_config"] = {f"parallelism_config_{k}_size": v for k, v in sizes}
    return found


def arguments(plan: Plan) -> dict[str, object]:
    """Arguments of the Hugging Face Trainer that belong to the plan."""
    g = plan.configuration
    half = "fp16" if plan.job.precision == "megatron-fp16" else "bf16"
    full = plan.strategies[0].recompute == ("full",)
    by_fsdp = "fsdp_config" in document(plan)
    return {
        "per_device_train_batch_size": g.microbatch,
        "gradient_accumulation_steps": g.microbatches,
        "gradient_checkpointing": full and not by_fsdp,
        half: True,
    }


def processes(run: AccelerateRun) -> Iterator[Violation]:
    """All sizes are at least 1 and multiply to the processes (parallelism:310)."""
    if "parallelism_config" not in run.document:
        return
    product = 1
    for name in _SIZES:
        size = run.size(name)
        if size < 1:
            yield Violation("SIZE_NOT_POSITIVE", f"{name}={size}")
        product *= size
    if product != run.document.get("num_processes"):
        yield Violation(
            "PRODUCT_NOT_PROCESSES", f"{product}, processes={run.document.get('num_processes')}"
        )


def replication(run: AccelerateRun) -> Iterator[Violation]:
    """Replicas beside tensor or context ranks need sharding (parallelism:340)."""
    if run.size("tp") * run.size("cp") > 1 and run.size("dp_replicate") > 1 == run.size("dp_shard"):
        sizes = f"dp_replicate={run.size('dp_replicate')}, tp={run.size('tp')}, cp={run.size('cp')}"
        yield Violation("ACCELERATE_DDP_WITH_TP", f"{sizes}, dp_shard=1")


def version(run: AccelerateRun) -> Iterator[Violation]:
    """A parallelism configuration needs FSDP of version 2 (launch:1205)."""
    if "parallelism_config" in run.document and not run.fsdp2:
        yield Violation("PARALLELISM_NEEDS_FSDP2", "set distributed_type FSDP, fsdp_version 2")


def shapes(run: AccelerateRun) -> Iterator[Violation]:
    """Tensor ranks divide heads and key-value heads; context ranks twice the sequence."""
    tensor, context = max(1, run.size("tp")), max(1, run.size("cp"))
    if run.heads % tensor:
        yield Violation("HEADS_NOT_DIVISIBLE_BY_TP", f"heads={run.heads}, tp={tensor}")
    if run.kv_heads % tensor:
        yield Violation("KV_HEADS_NOT_DIVISIBLE_BY_TP", f"kv_heads={run.kv_heads}, tp={tensor}")
    if context > 1 and run.sequence_length % (2 * context):
        yield Violation("SEQ_NOT_DIVISIBLE", f"seq={run.sequence_length}, 2*cp={2 * context}")


RULES: tuple[Callable[[AccelerateRun], Iterator[Violation]], ...] = (
    processes,
    replication,
    version,
    shapes,
)


def validate_accelerate(run: AccelerateRun) -> tuple[Violation, ...]:
    """Every rule that a configuration file breaks."""
    return tuple(violation for rule in RULES for violation in rule(run))


def _lacks(plan: Plan) -> Iterator[str]:
    g = plan.configuration
    if g.pipeline > 1:
        yield f"a pipeline of {g.pipeline} stages"
    yield from lacking_zero(plan, _ZERO, " (--to deepspeed has it)")
    if any(s.zero == "0" for s in plan.strategies) and g.context > 1:
        yield "replicated weights with context parallelism (its ranks shard them)"
    if g.sequence_parallel:
        yield "sequence parallelism beside tensor parallelism"
    per_node = plan.cluster.devices_per_node
    if g.devices > per_node and g.devices % per_node:
        yield f"{g.devices} devices do not fill nodes of {per_node}"


def _precision(plan: Plan) -> Precision | None:
    if plan.job.precision in BF16:
        return "fsdp-fp32-master"
    return "megatron-fp16" if plan.job.precision == "megatron-fp16" else None


def _notes(plan: Plan) -> Iterator[Note]:
    g = plan.configuration
    yield Note(
        "TRAINER_ARGUMENTS",
        f"Train with per_device_train_batch_size={g.microbatch} and "
        f"gradient_accumulation_steps={g.microbatches} (training_arguments.json).",
    )
    yield Note("FP32_WEIGHTS", "Load the model in float32: mixed precision casts it.")
    if g.devices > plan.cluster.devices_per_node:
        yield Note("MACHINE_RANK", "Set machine_rank and main_process_ip on every machine.")
    if g.tensor > 1:
        yield Note("TENSOR_PLAN", "The model needs a tensor-parallel plan of its own (tp_plan).")
    yield from common_notes(plan, "fsdp", "accelerate")


def _write(plan: Plan) -> Written:
    import yaml

    found, notes = document(plan), tuple(_notes(plan))
    model = plan.model
    run = AccelerateRun(found, model.heads, model.kv_heads, plan.job.sequence_length)
    files = (
        ExportFile("accelerate.yaml", comments(notes) + yaml.safe_dump(found, sort_keys=False)),
        ExportFile("training_arguments.json", json.dumps(arguments(plan), indent=2) + "\n"),
    )
    return Written(files, notes, validate_accelerate(run))


EXPORTER = Exporter(
    "accelerate",
    "accelerate",
    _lacks,
    none_or_full,
    _precision,
    _write,
    "solve with --fix pp=1 --fix zero=3 --fix sp=off, or use another --to",
)
