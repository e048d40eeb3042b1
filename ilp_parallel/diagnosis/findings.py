"""What is wrong with a configuration: reason code, numbers and fix, everything at once.

A plan is judged by the rules of the framework it is to run in; a file of a framework by the same
rules in its own words, before anything is made of it, so that one mistake does not hide another.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ilp_parallel.diagnosis.expert_rules import expert_groups
from ilp_parallel.errors import InputError
from ilp_parallel.export.base import Violation, recomputed
from ilp_parallel.export.deepspeed import DeepSpeedRun, validate_deepspeed
from ilp_parallel.export.galvatron import GalvatronRun, validate_galvatron
from ilp_parallel.export.megatron_flags import MegatronExport, MegatronFlags
from ilp_parallel.export.megatron_rules import RULES, STAGE_RULES, connections, split
from ilp_parallel.export.registry import EXPORTERS
from ilp_parallel.export.torchtitan_rules import TitanRun, validate_titan
from ilp_parallel.imports.record import parse_json
from ilp_parallel.imports.shell import read_launch
from ilp_parallel.imports.torchtitan import parse_toml
from ilp_parallel.spaces import RULES as SPACE_FIXES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ilp_parallel.diagnosis.memory_table import StageMemory
    from ilp_parallel.export.base import Exporter
    from ilp_parallel.plan import Plan
    from ilp_parallel.specs.cluster import ClusterSpec
    from ilp_parallel.specs.model import ModelSpec

_GIB = 1 << 30

FIXES = {
    **SPACE_FIXES,
    "ACCELERATE_DDP_WITH_TP": "shard: set dp_shard above 1",
    "BATCH_IDENTITY": "make train batch = micro batch x accumulation steps x data ranks",
    "CHECKPOINTS_DIFFER": "give one number of checkpointed layers per stage, none above its size",
    "DDP_WITH_MODEL_PARALLELISM": "shard the weights: set data_parallel_shard_degree",
    "DEGREES_NOT_WORLD_SIZE": "change a degree so that their product is the number of devices",
    "DEVICES_NOT_DIVISIBLE": "use degrees whose product divides the devices",
    "DISTRIBUTED_OPTIMIZER_NEEDS_ADAM": "use adam, or leave the distributed optimizer out",
    "DP_TYPE_UNKNOWN": "use ddp, zero2 or zero3",
    "EXPERTS_NOT_DIVISIBLE_BY_EP": "use an expert degree that divides the experts",
    "EXPERT_GROUP_NOT_DIVIDING_WORLD": "use ep x etp x pp that divides the devices",
    "EXPERTS_NEED_SEQUENCE_PARALLEL": "add --sequence-parallel",
    "FIRST_LAST_WITH_PP1": "remove the numbers of the first and last stage",
    "FLAG_NOT_0_OR_1": "use 0 or 1",
    "FSDP_NEEDS_CUDA_CONNECTIONS": "set CUDA_DEVICE_MAX_CONNECTIONS to something above 1",
    "FSDP_NEEDS_DISTRIBUTED_OPTIMIZER": "add --use-distributed-optimizer",
    "FSDP_NEEDS_DTENSOR_CHECKPOINTS": "add --ckpt-format fsdp_dtensor",
    "GLOBAL_BATCH_NOT_DIVISIBLE": "use a batch that is a multiple of microbatch x data degree",
    "INTERLEAVING_NEEDS_PIPELINE": "use more pipeline stages, or one chunk per device",
    "KV_HEADS_NOT_DIVIDING_HEADS": "use a number of key heads that divides the heads",
    "LAYERS_NOT_COVERED_ONCE": "list every layer once and in order",
    "LAYERS_NOT_PLACED": "make the layers of all stages add up to the model's",
    "LAYOUT_NOT_DIVISIBLE_BY_PP": "use a layout whose stages are a multiple of pp",
    "LISTS_DIFFER": "give every list one entry per layer",
    "LOCAL_BATCH_NOT_DIVISIBLE": "use a microbatch that divides the local batch",
    "MALFORMED_LAYOUT": "write one E first, one L last and t for every layer, stages cut by |",
    "MEGATRON_SIZES_DISAGREE": (
        "use stages that divide the layers, numbers for the first and last stage, or a layout"
    ),
    "MICROBATCHES_FEWER_THAN_PP": "use at least as many microbatches as stages",
    "MICROBATCHES_NOT_IN_ROUNDS": "use a batch with a multiple of pp microbatches",
    "MICROBATCH_MISSING": "give microbatch_size",
    "MODULES_MISSING": "put tok_embeddings first, norm and output last",
    "PARALLELISM_NEEDS_FSDP2": "set distributed_type FSDP and fsdp_version 2",
    "PARAM_GATHER_OVERLAP_NEEDS_GRAD_REDUCE": (
        "add --use-distributed-optimizer and --overlap-grad-reduce"
    ),
    "POSITIONS_FEWER_THAN_TOKENS": "raise --max-position-embeddings, or shorten the sequence",
    "PRODUCT_NOT_PROCESSES": "change a size so that their product is the number of processes",
    "QUERY_GROUPS_HALF_GIVEN": "give --group-query-attention and --num-query-groups together",
    "RECOMPUTATION_NOT_EXPRESSIBLE": "recompute as the framework can; export shows the nearest",
    "RECOMPUTE_FULL_NEEDS_METHOD": "add --recompute-method uniform --recompute-num-layers 1",
    "RECOMPUTE_LAYERNORM_WITH_DELAYED_FP8": "use --fp8-recipe tensorwise",
    "RECOMPUTE_METHOD_NEEDS_FULL": "remove method and layers, or use granularity full",
    "RECOMPUTE_MODULES_NEED_SELECTIVE": "use --recompute-granularity selective",
    "RECOMPUTE_MODULE_UNKNOWN": "name modules that Megatron-LM knows",
    "RECOMPUTE_MORE_THAN_STAGE": "recompute at most the layers of a virtual stage",
    "SCHEDULE_NOT_FOR_CHUNKS": "use interleaved with several chunks, 1f1b with one",
    "SCHEDULE_NOT_FOR_STAGES": "use Interleaved1F1B with several stages per rank, else 1F1B",
    "SCHEDULE_UNKNOWN": "use a schedule that the framework knows",
    "SEQUENCE_NOT_DIVISIBLE_BY_TP": "use a sequence that is a multiple of cp x tp",
    "SEQUENCE_NOT_DIVISIBLE_FOR_FP8": "use a sequence that is a multiple of 16 x cp",
    "SEQUENCE_PARALLEL_WITHOUT_TP": "leave sequence parallelism out",
    "SEQ_NOT_DIVISIBLE": "use a sequence that is a multiple of twice tp x cp",
    "SEVERAL_SPLIT_MECHANISMS": "keep one way to split the layers",
    "SIZE_NOT_POSITIVE": "use sizes of at least 1",
    "STAGES_DIFFER": "give one size per stage, adding up to all layers",
    "STAGES_NOT_DIVISIBLE_BY_PP": "list a multiple of pp stages",
    "TIED_EMBEDDINGS_WITH_PP": "untie the embeddings, or use one stage",
    "TOO_MANY_VIRTUAL_STAGES": "use fewer chunks or stages: at least one layer each",
    "TP_NEEDS_ONE_CUDA_CONNECTION": "export CUDA_DEVICE_MAX_CONNECTIONS=1",
    "TP_NOT_DIVIDING_FFN": "use a tp that divides the width of the MLP",
    "TP_NOT_DIVIDING_HEADS": "use a tp that divides the attention heads",
    "TP_NOT_DIVIDING_STAGE": "use a tp that divides the devices of a stage",
    "ZERO_GE2_WITH_PP": "use ZeRO 0 or 1 with a pipeline, or ZeRO 2 and 3 without",
    "ZERO_STAGE_UNKNOWN": "use a ZeRO stage that the framework has",
}
"""What mends a broken rule, by reason code."""

OWN_FRAMEWORK = {
    "megatron": "megatron",
    "torchtitan": "torchtitan-toml",
    "deepspeed": "deepspeed",
    "galvatron": "galvatron",
}
"""The framework that reads a format."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, with its numbers and the smallest fix in words."""

    code: str
    message: str
    fix: str


def finding(violation: Violation) -> Finding:
    """A broken rule with its fix."""
    return Finding(violation.code, violation.message, FIXES.get(violation.code, ""))


def plan_findings(plan: Plan, framework: str) -> tuple[Finding, ...]:
    """Everything that keeps a framework from running a plan as it is.

    Raises
    ------
    InputError
        ``UNKNOWN_FRAMEWORK``.
    """
    exporter = EXPORTERS.get(framework)
    if exporter is None:
        known = ", ".join(EXPORTERS)
        raise InputError("UNKNOWN_FRAMEWORK", f"no framework {framework!r}", f"use one of {known}")
    found = list(_not_expressible(plan, exporter))
    if not found:
        found = [finding(violation) for violation in exporter.write(plan).violations]
    return tuple(found)


def _not_expressible(plan: Plan, exporter: Exporter) -> Iterator[Finding]:
    code = f"NOT_EXPRESSIBLE_IN_{exporter.name.upper().replace('-', '_')}"
    for missing in exporter.lacks(plan):
        yield Finding(code, missing, exporter.advice)
    if exporter.precision(plan) is None:
        yield Finding(code, f"precision recipe {plan.job.precision}", exporter.advice)
    if recomputed(plan) not in exporter.recomputations(plan):
        kinds = sorted({"+".join(modules) or "none" for modules in recomputed(plan)})
        message = f"{exporter.title} has no policy that recomputes {', '.join(kinds)} as planned"
        fix = FIXES["RECOMPUTATION_NOT_EXPRESSIBLE"]
        yield Finding("RECOMPUTATION_NOT_EXPRESSIBLE", message, fix)


def memory_findings(stages: tuple[StageMemory, ...]) -> tuple[Finding, ...]:
    """One finding for each stage that does not fit."""
    found = []
    for stage in stages:
        if stage.fits:
            continue
        states = sum(stage.parts[name] for name in ("weights", "gradients", "optimizer"))
        alone = states > stage.usable_bytes
        largest = max(stage.parts, key=lambda name: stage.parts[name])
        found.append(
            Finding(
                "MODEL_STATES_EXCEED_MEMORY" if alone else "OUT_OF_MEMORY",
                f"stage {stage.stage} allocates {stage.allocated_bytes / _GIB:.1f} GiB of "
                f"{stage.usable_bytes / _GIB:.1f} usable: states {states / _GIB:.1f}, activations "
                f"{stage.parts['activations'] / _GIB:.1f}",
                "shard or split the states: more tensor, pipeline or data ranks, a higher ZeRO"
                if alone
                else f"most of it is {largest}: smaller microbatch, more recomputation or sharding",
            )
        )
    return tuple(found)


def file_findings(
    text: str, form: str, cluster: ClusterSpec | None, model: ModelSpec | None
) -> tuple[Finding, ...]:
    """Every rule of a framework that a file in its own words breaks; none for other formats.

    Parameters
    ----------
    text, form
        The file and its format.
    cluster
        Where it is to run; None: as the file states.
    model
        What is trained, where the file does not state it.

    Raises
    ------
    InputError
        If the file cannot be read as its format, or says too little to be judged.
    """
    if form == "megatron":
        return tuple(map(finding, _megatron(text, cluster, model)))
    if form == "galvatron":
        document = parse_json(text, "file")
        world = None if cluster is None else cluster.devices
        stated = GalvatronRun(document, 1).integer("world_size", world)
        return tuple(map(finding, validate_galvatron(GalvatronRun(document, stated))))
    if cluster is None or model is None or form not in ("torchtitan", "deepspeed"):
        return ()
    if form == "torchtitan":
        sections = {k: v for k, v in parse_toml(text, "file").data.items() if isinstance(v, dict)}
        titan = TitanRun(
            sections,
            cluster.devices,
            model.layers,
            model.heads,
            model.kv_heads,
            model.tied_embeddings,
        )
        return tuple(map(finding, validate_titan(titan)))
    document = parse_json(text, "file")
    run = DeepSpeedRun(document, cluster.devices, 1, 1, model.heads)
    stages = run.integer("pipeline", "stages") or 1
    tensor = run.integer("tensor_parallel", "autotp_size") or 1
    whole = DeepSpeedRun(document, cluster.devices, stages, tensor, model.heads)
    return tuple(map(finding, validate_deepspeed(whole)))


def _megatron(
    text: str, cluster: ClusterSpec | None, model: ModelSpec | None
) -> Iterator[Violation]:
    """Rules of Megatron-LM on the options of a script, absent ones at their defaults.

    Its environment is judged only where the script sets it.
    """
    launch = read_launch(text)
    devices = cluster.devices if cluster is not None else launch.devices
    if devices is None:
        raise InputError("CLUSTER_OPEN", "no file states the devices", "give --cluster")
    flags = with_defaults(MegatronFlags.from_arguments(launch.words), model, devices)
    export = MegatronExport(
        flags=flags,
        environment=(),
        nodes=1,
        devices_per_node=devices,
        generation="unknown" if cluster is None else cluster.device.generation,
        warnings=(),
    )
    yield from split(export)
    yield from expert_groups(flags, devices)
    found = [violation for rule in RULES if rule != connections for violation in rule(export)]
    for rule in STAGE_RULES:
        with suppress(InputError):  # stages that cannot be made are named by the split already
            found += rule(export)
    world = any(violation.code == "DEVICES_NOT_DIVISIBLE" for violation in found)
    for violation in found:
        if not (world and violation.code == "GLOBAL_BATCH_NOT_DIVISIBLE"):
            yield violation


def with_defaults(flags: MegatronFlags, model: ModelSpec | None, devices: int) -> MegatronFlags:
    """Options with those that the rules need filled in: from the model, or as Megatron-LM does."""
    stated: list[tuple[str, int]] = []
    if model is not None:
        stated += [
            ("--num-layers", model.layers),
            ("--hidden-size", model.hidden),
            ("--num-attention-heads", model.heads),
            ("--ffn-hidden-size", model.ffn_hidden),
        ]
    if flags.has("--hidden-size"):
        hidden = flags.integer("--hidden-size")
        gated = int(4 * hidden * 2 / 3 / 64) * 64
        stated.append(("--ffn-hidden-size", gated if flags.has("--swiglu") else 4 * hidden))
    if flags.has("--seq-length"):
        stated.append(("--max-position-embeddings", flags.integer("--seq-length")))
    degrees = ("tensor-model-parallel", "pipeline-model-parallel", "context-parallel")
    copy = 1
    for name in degrees:
        copy *= flags.integer(f"--{name}-size", 1)
    stated.append(
        ("--global-batch-size", flags.integer("--micro-batch-size") * max(1, devices // copy))
    )
    absent: dict[str, tuple[str, ...]] = {
        name: (str(value),) for name, value in stated if not flags.has(name)
    }
    groups = model is not None and model.kv_heads != model.heads
    if model is not None and groups and not flags.has("--num-attention-heads"):
        absent |= {"--group-query-attention": (), "--num-query-groups": (str(model.kv_heads),)}
    return MegatronFlags((*flags.items, *absent.items()))
