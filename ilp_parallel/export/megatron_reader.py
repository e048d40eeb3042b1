"""Read a plan back from Megatron-LM options: what they make every rank and layer do.

Option names and rules: Megatron-LM commit d98e8a64, megatron/training/arguments.py and
megatron/core/transformer/transformer_config.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ilp_parallel.configuration import RECOMPUTE_SETS, Configuration, Strategy, Zero
from ilp_parallel.errors import InputError
from ilp_parallel.export.megatron_flags import MegatronFlags
from ilp_parallel.export.megatron_layout import read_layout
from ilp_parallel.specs.documents import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

_SWITCHES_NOT_READ = (
    "--cpu-offloading",
    "--distribute-saved-activations",
    "--fine-grained-activation-offloading",
    "--use-torch-fsdp2",
)
"""Options that change a plan in ways no Configuration or Strategy can say."""

COUNTED_ENDS = (
    "--account-for-embedding-in-pipeline-split",
    "--account-for-loss-in-pipeline-split",
)
"""Options that count the embedding or the loss as a layer when stages are made (tc:2371-2415)."""

_MOST_LAYERS = 10**4
"""Most layers or stages read (chosen): ten times any model, and lists of them stay small."""

_SIZES_NOT_READ = ("--num-distributed-optimizer-instances",)
"""Degrees that must be 1, for the same reason."""


def parse_megatron(
    arguments: Sequence[str], devices: int
) -> tuple[Configuration, tuple[int, ...], tuple[Strategy, ...]]:
    """Configuration, layers per virtual stage and strategy per layer of a Megatron-LM run.

    Options that do not touch the plan (learning rate, data, logging) are passed over.

    Parameters
    ----------
    arguments
        Words after the training script.
    devices
        World size; Megatron-LM takes the data degree from it.

    Raises
    ------
    InputError
        ``MALFORMED_MEGATRON_ARGUMENTS``, ``MISSING_MEGATRON_FLAG``, ``MALFORMED_LAYOUT``;
        ``MEGATRON_SIZES_DISAGREE`` where a division leaves a remainder;
        ``MEGATRON_FLAG_NOT_READ`` for an option that changes the plan in a way not modelled.
    """
    flags = MegatronFlags.from_arguments(arguments)
    run = read_run(flags)
    model = run.pipeline * run.tensor * run.context
    data = _quotient(devices, model, "devices by tensor, pipeline and context degree")
    microbatch = flags.integer("--micro-batch-size")
    batch = flags.integer("--global-batch-size", microbatch * data)
    sizes = stage_sizes(flags)
    configuration = Configuration(
        pipeline=run.pipeline,
        tensor=run.tensor,
        data=data,
        microbatch=microbatch,
        microbatches=_quotient(batch, microbatch * data, "global batch by microbatch times data"),
        chunks=run.chunks,
        sequence_parallel=run.sequence_parallel,
        schedule="interleaved" if run.chunks > 1 else "1f1b",
        context=run.context,
        expert=run.expert,
        expert_tensor=run.expert_tensor,
    )
    group = run.tensor * run.context * data
    _quotient(group, run.expert * run.expert_tensor, "devices of a stage by expert degrees")
    return configuration, sizes, tuple(Strategy(run.zero, modules) for modules in run.recompute)


@dataclass(frozen=True, slots=True)
class MegatronRun:
    """What options decide whatever the number of devices."""

    pipeline: int
    tensor: int
    context: int
    chunks: int
    sequence_parallel: bool
    zero: Zero
    recompute: tuple[tuple[str, ...], ...]  # modules per layer
    expert: int
    expert_tensor: int


def read_run(flags: MegatronFlags) -> MegatronRun:
    """Degrees, chunks, sharding and recomputation.

    Raises
    ------
    InputError
        As :func:`parse_megatron`.
    """
    _refuse_what_is_not_read(flags)
    pipeline = flags.integer("--pipeline-model-parallel-size", 1)
    tensor = flags.integer("--tensor-model-parallel-size", 1)
    sizes = stage_sizes(flags)
    group = flags.integer("--microbatch-group-size-per-virtual-pipeline-stage", pipeline)
    if group != pipeline:
        raise _not_read(f"--microbatch-group-size-per-virtual-pipeline-stage {group}")
    return MegatronRun(
        pipeline=pipeline,
        tensor=tensor,
        context=flags.integer("--context-parallel-size", 1),
        chunks=_quotient(len(sizes), pipeline, "virtual stages by pipeline degree"),
        sequence_parallel=flags.has("--sequence-parallel") and tensor > 1,
        zero=_zero(flags),
        recompute=tuple(_recompute(flags, sizes)),
        expert=_expert(flags),
        # the tensor degree where it is not said (args:588)
        expert_tensor=flags.integer("--expert-tensor-parallel-size", tensor)
        if flags.has("--num-experts")
        else 1,
    )


def _expert(flags: MegatronFlags) -> int:
    """Expert degree; it needs experts (args:1656-1659)."""
    expert = flags.integer("--expert-model-parallel-size", 1)
    if not flags.has("--num-experts"):
        if expert > 1:
            raise InputError(
                "MEGATRON_SIZES_DISAGREE",
                f"--expert-model-parallel-size {expert} without --num-experts",
                "add --num-experts",
            )
        return 1
    _quotient(flags.integer("--num-experts"), expert, "experts by expert degree")
    return expert


def stage_sizes(flags: MegatronFlags) -> tuple[int, ...]:
    """Layers per virtual stage, in model order; the ends may hold embedding or loss alone.

    Prediction layers (``--mtp-num-layers``) count; where no layout places them, they are on the
    last stage.

    Raises
    ------
    InputError
        As :func:`parse_megatron`.
    """
    layout = flags.text("--pipeline-model-parallel-layout", "")
    if layout:
        return read_layout(layout)
    layers = flags.integer("--num-layers")
    pipeline = flags.integer("--pipeline-model-parallel-size", 1)
    if max(layers, pipeline) > _MOST_LAYERS:
        raise InputError(
            "MEGATRON_SIZES_DISAGREE",
            f"{layers} layers on {pipeline} stages",
            f"use at most {_MOST_LAYERS} of both",
        )
    ends = [flags.has(name) for name in COUNTED_ENDS]
    ranks = _layers_per_rank(flags, layers + sum(ends), pipeline)
    if flags.has("--num-layers-per-virtual-pipeline-stage"):
        size = flags.integer("--num-layers-per-virtual-pipeline-stage")
        chunks = _quotient(ranks[0], size, "layers of a rank by layers of a virtual stage")
    else:
        chunks = flags.integer("--num-virtual-stages-per-pipeline-rank", 1)
    row = tuple(_quotient(count, chunks, "layers of a rank by virtual stages") for count in ranks)
    sizes = list(row * chunks)
    sizes[0] -= ends[0]
    sizes[-1] += prediction_layers(flags) - ends[1]
    return tuple(sizes)


def prediction_layers(flags: MegatronFlags) -> int:
    """Layers that predict further tokens, which ``--num-layers`` does not count."""
    count = flags.integer("--mtp-num-layers") if flags.has("--mtp-num-layers") else 0
    if count > _MOST_LAYERS:
        raise InputError(
            "MEGATRON_SIZES_DISAGREE", f"{count} prediction layers", f"use at most {_MOST_LAYERS}"
        )
    return count


def _layers_per_rank(flags: MegatronFlags, layers: int, pipeline: int) -> list[int]:
    """Layers of each pipeline rank from the first and last stage's own numbers, if given."""
    ends = {
        place: flags.integer(name)
        for place, name in (
            (0, "--decoder-first-pipeline-num-layers"),
            (pipeline - 1, "--decoder-last-pipeline-num-layers"),
        )
        if flags.has(name)
    }
    rest, middle = layers - sum(ends.values()), pipeline - len(ends)
    if rest < 0 or (rest > 0) != (middle > 0):
        raise InputError(
            "MEGATRON_SIZES_DISAGREE",
            f"{rest} layers are left for {middle} pipeline stages",
            "change the layers of the first or last stage",
        )
    each = _quotient(rest, middle, "remaining layers by remaining stages") if middle else 0
    return [ends.get(rank, each) for rank in range(pipeline)]


def _zero(flags: MegatronFlags) -> Zero:
    if flags.has("--use-megatron-fsdp"):
        sharding = flags.text("--data-parallel-sharding-strategy", "optim_grads_params")
        if sharding != "optim_grads_params":
            raise _not_read(f"--data-parallel-sharding-strategy {shown(sharding)}")
        return "3-regather"
    return "1" if flags.has("--use-distributed-optimizer") else "0"


def _recompute(flags: MegatronFlags, sizes: tuple[int, ...]) -> list[tuple[str, ...]]:
    """Modules recomputed in every layer."""
    selective = "selective" if flags.has("--recompute-activations") else "none"
    granularity = flags.text("--recompute-granularity", selective)
    method = flags.text("--recompute-method", "none")
    if granularity == "none":
        return [()] * sum(sizes)
    if granularity == "selective":
        modules = _modules(flags)
        if modules not in RECOMPUTE_SETS or modules == ("full",):
            raise _not_read(f"--recompute-modules {shown(' '.join(modules))}")
        return [modules] * sum(sizes)
    count = flags.integer("--recompute-num-layers")
    if granularity == "full" and method == "uniform" and count == 1:
        return [("full",)] * sum(sizes)
    if granularity == "full" and method == "block":
        return [("full",) if i < count else () for size in sizes for i in range(size)]
    raise _not_read(
        f"--recompute-granularity {shown(granularity)} with --recompute-method {shown(method)} and "
        f"{count} layers"
    )


def _modules(flags: MegatronFlags) -> tuple[str, ...]:
    """Recomputed modules, ``moe`` being ``mlp`` where a block has experts."""
    modules = set(flags.values("--recompute-modules") or ("core_attn",))
    if flags.has("--num-experts") and modules & {"mlp", "moe"}:
        halves = {"moe"} if flags.text("--moe-layer-freq", "1") == "1" else {"mlp", "moe"}
        if modules & {"mlp", "moe"} != halves:
            raise _not_read(f"--recompute-modules {shown(' '.join(sorted(modules)))}")
        modules = modules - {"moe"} | {"mlp"}
    return tuple(sorted(modules))


def _refuse_what_is_not_read(flags: MegatronFlags) -> None:
    for name in _SWITCHES_NOT_READ:
        if flags.has(name):
            raise _not_read(name)
    for name in _SIZES_NOT_READ:
        if flags.integer(name, 1) > 1:
            raise _not_read(f"{name} {flags.integer(name)}")


def _not_read(what: str) -> InputError:
    return InputError("MEGATRON_FLAG_NOT_READ", f"{what} has no counterpart in a plan", "remove it")


def _quotient(dividend: int, divisor: int, what: str) -> int:
    if dividend % divisor or dividend < divisor:
        raise InputError(
            "MEGATRON_SIZES_DISAGREE", f"cannot divide {what}: {dividend} by {divisor}"
        )
    return dividend // divisor
