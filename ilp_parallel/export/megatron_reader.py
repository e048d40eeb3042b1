"""Read a plan back from Megatron-LM options: what they make every rank and layer do.

Option names and rules: Megatron-LM commit d98e8a64, megatron/training/arguments.py and
megatron/core/transformer/transformer_config.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ilp_parallel.configuration import RECOMPUTE_SETS, Configuration, Strategy, Zero
from ilp_parallel.errors import InputError
from ilp_parallel.export.megatron_flags import MegatronFlags
from ilp_parallel.export.megatron_layout import read_layout

if TYPE_CHECKING:
    from collections.abc import Sequence

_SWITCHES_NOT_READ = (
    "--account-for-embedding-in-pipeline-split",
    "--account-for-loss-in-pipeline-split",
    "--cpu-offloading",
    "--distribute-saved-activations",
    "--fine-grained-activation-offloading",
    "--microbatch-group-size-per-virtual-pipeline-stage",
    "--num-experts",
    "--rampup-batch-size",
    "--recompute-activations",
    "--use-torch-fsdp2",
)
"""Options that change a plan in ways no Configuration or Strategy can say."""

_SIZES_NOT_READ = (
    "--expert-model-parallel-size",
    "--num-distributed-optimizer-instances",
)
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
    _refuse_what_is_not_read(flags)
    pipeline = flags.integer("--pipeline-model-parallel-size", 1)
    tensor = flags.integer("--tensor-model-parallel-size", 1)
    context = flags.integer("--context-parallel-size", 1)
    model = pipeline * tensor * context
    data = _quotient(devices, model, "devices by tensor, pipeline and context degree")
    microbatch = flags.integer("--micro-batch-size")
    batch = flags.integer("--global-batch-size", microbatch * data)
    sizes = stage_sizes(flags)
    chunks = _quotient(len(sizes), pipeline, "virtual stages by pipeline degree")
    configuration = Configuration(
        pipeline=pipeline,
        tensor=tensor,
        data=data,
        microbatch=microbatch,
        microbatches=_quotient(batch, microbatch * data, "global batch by microbatch times data"),
        chunks=chunks,
        sequence_parallel=flags.has("--sequence-parallel") and tensor > 1,
        schedule="interleaved" if chunks > 1 else "1f1b",
        context=context,
    )
    zero = _zero(flags)
    recompute = _recompute(flags, sizes)
    return configuration, sizes, tuple(Strategy(zero, modules) for modules in recompute)


def stage_sizes(flags: MegatronFlags) -> tuple[int, ...]:
    """Layers per virtual stage, in model order.

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
    ranks = _layers_per_rank(flags, layers, pipeline)
    if flags.has("--num-layers-per-virtual-pipeline-stage"):
        size = flags.integer("--num-layers-per-virtual-pipeline-stage")
        chunks = _quotient(ranks[0], size, "layers of a rank by layers of a virtual stage")
    else:
        chunks = flags.integer("--num-virtual-stages-per-pipeline-rank", 1)
    row = tuple(_quotient(count, chunks, "layers of a rank by virtual stages") for count in ranks)
    return row * chunks


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
            raise _not_read(f"--data-parallel-sharding-strategy {sharding}")
        return "3-regather"
    return "1" if flags.has("--use-distributed-optimizer") else "0"


def _recompute(flags: MegatronFlags, sizes: tuple[int, ...]) -> list[tuple[str, ...]]:
    """Modules recomputed in every layer."""
    granularity = flags.text("--recompute-granularity", "none")
    method = flags.text("--recompute-method", "none")
    if granularity == "none":
        return [()] * sum(sizes)
    if granularity == "selective":
        modules = tuple(sorted(set(flags.values("--recompute-modules") or ("core_attn",))))
        if modules not in RECOMPUTE_SETS or modules == ("full",):
            raise _not_read(f"--recompute-modules {' '.join(modules)}")
        return [modules] * sum(sizes)
    count = flags.integer("--recompute-num-layers")
    if granularity == "full" and method == "uniform" and count == 1:
        return [("full",)] * sum(sizes)
    if granularity == "full" and method == "block":
        return [("full",) if i < count else () for size in sizes for i in range(size)]
    raise _not_read(
        f"--recompute-granularity {granularity} with --recompute-method {method} and {count} layers"
    )


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
