"""Runs from Megatron-LM's arguments: a launch script, or a file with nothing but options.

Option names and defaults: Megatron-LM commit d98e8a64, megatron/training/arguments.py. Options that
touch no plan are passed over; those that change one in a way no plan can state are refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ilp_parallel.errors import InputError
from ilp_parallel.export.megatron_flags import MegatronFlags
from ilp_parallel.export.megatron_reader import read_run, stage_sizes
from ilp_parallel.imports.megatron_blocks import with_megatron_blocks
from ilp_parallel.imports.record import Imported, quotient
from ilp_parallel.imports.shell import read_launch
from ilp_parallel.specs.documents import shown

if TYPE_CHECKING:
    from ilp_parallel.specs.job import Attention, Optimizer, Precision

_ATTENTION: dict[str, Attention] = {"flash": "flash", "fused": "flash", "unfused": "unfused"}
_RAMP = "batch ramp not planned: the plan is for the full batch"
_FOREIGN_ACTIVATIONS = ("--squared-relu", "--quick-geglu", "--openai-gelu", "--glu-linear-offset")
_FOREIGN_MODELS = (
    "--encoder-num-layers",
    "--experimental-attention-variant",
    "--heterogeneous-layers-config-path",
    "--hybrid-layer-pattern",
    "--hybrid-override-pattern",
    "--linear-attention-freq",
    "--moe-latent-size",
)
"""Options of models whose blocks are none that are read."""


def read_megatron(text: str, origin: str, devices: int | None) -> Imported:
    """The run that a launch script or an argument list describes.

    Raises
    ------
    InputError
        What :mod:`ilp_parallel.imports.shell` and :mod:`ilp_parallel.export.megatron_reader` raise;
        ``MEGATRON_VALUE_NOT_STATIC`` for a needed value that only a shell can work out;
        ``DEVICES_DIFFER`` if the launcher's devices are not the cluster's.
    """
    del origin
    launch = read_launch(text)
    flags = MegatronFlags.from_arguments(launch.words)
    _require_static(flags)
    if devices is not None and launch.devices is not None and devices != launch.devices:
        raise InputError(
            "DEVICES_DIFFER",
            f"the script starts {launch.devices} ranks, the cluster has {devices} devices",
            "change --cluster or the launcher",
        )
    world = devices if devices is not None else launch.devices
    run = read_run(flags)
    model_devices = run.pipeline * run.tensor * run.context
    data = None if world is None else quotient(world, model_devices, "devices by tp, pp and cp")
    microbatch = flags.integer("--micro-batch-size")
    batch, microbatches = _batch(flags, microbatch, data)
    return Imported(
        form="megatron",
        stack="megatron",
        shapes=with_megatron_blocks(_shapes(flags), flags),
        devices=world,
        global_batch=batch,
        sequence_length=flags.integer("--seq-length") if flags.has("--seq-length") else None,
        precision=_precision(flags),
        optimizer=_optimizer(flags),
        attention=_attention(flags),
        pipeline=run.pipeline,
        tensor=run.tensor,
        context=run.context,
        data=data,
        microbatch=microbatch,
        microbatches=microbatches,
        chunks=run.chunks,
        expert=run.expert,
        expert_tensor=run.expert_tensor,
        sequence_parallel=run.sequence_parallel,
        schedule="interleaved" if run.chunks > 1 else "1f1b",
        sizes=stage_sizes(flags),
        zero=(run.zero,),
        recompute=run.recompute,
        notes=(*launch.notes, *((_RAMP,) if flags.has("--rampup-batch-size") else ())),
    )


def _require_static(flags: MegatronFlags) -> None:
    """Refuse variables that were not resolved, in options that are numbers."""
    for name, values in flags.items:
        numeric = name.endswith(("-size", "-layers", "-length", "-rank", "-heads", "-groups"))
        for value in values:
            if numeric and ("$" in value or "`" in value):
                raise InputError(
                    "MEGATRON_VALUE_NOT_STATIC",
                    f"{shown(name)} is {shown(value)}",
                    "write the number, or assign the variable in the script",
                )


def _batch(
    flags: MegatronFlags, microbatch: int, data: int | None
) -> tuple[int | None, int | None]:
    if data is None:
        stated = flags.has("--global-batch-size")
        return (flags.integer("--global-batch-size") if stated else None), None
    batch = flags.integer("--global-batch-size", microbatch * data)
    return batch, quotient(batch, microbatch * data, "global batch by microbatch times data")


def _shapes(flags: MegatronFlags) -> dict[str, object]:
    """Fields of the model; the vocabulary is often known to the tokenizer only."""
    for name in (*_FOREIGN_ACTIVATIONS, *_FOREIGN_MODELS):
        if flags.has(name):
            raise InputError(
                "MEGATRON_FLAG_NOT_READ", f"{name} has no counterpart in a model", "remove it"
            )
    hidden, heads = flags.integer("--hidden-size"), flags.integer("--num-attention-heads")
    gated = flags.has("--swiglu")
    default_ffn = int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden
    positions = flags.text("--position-embedding-type", "learned_absolute")
    learned = positions == "learned_absolute" and flags.has("--max-position-embeddings")
    bias = not flags.has("--disable-bias-linear")
    groups = flags.integer("--num-query-groups", 1)
    dropouts = (flags.text(f"--{place}-dropout", "0.1") for place in ("attention", "hidden"))
    shapes: dict[str, object] = {
        "layers": flags.integer("--num-layers"),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": groups if flags.has("--group-query-attention") else heads,
        "head_dim": flags.integer("--kv-channels", max(1, hidden // heads)),
        "ffn_hidden": flags.integer("--ffn-hidden-size", max(1, default_ffn)),
        "gated_mlp": gated,
        "norm": "rmsnorm"
        if flags.text("--normalization", "LayerNorm") == "RMSNorm"
        else "layernorm",
        "activation": "silu" if gated else "gelu",
        "qkv_bias": bias or flags.has("--add-qkv-bias"),
        "projection_bias": bias,
        "mlp_bias": bias,
        "learned_positions": flags.integer("--max-position-embeddings") if learned else 0,
        "embedding_norm": False,
        "tied_embeddings": not flags.has("--untie-embeddings-and-output-weights"),
        "dropout": any(text.strip("0.") != "" for text in dropouts),
    }
    for name in ("--vocab-size", "--padded-vocab-size"):
        if flags.has(name):
            shapes["vocab"] = flags.integer(name)
            break
    return shapes


def _precision(flags: MegatronFlags) -> Precision | None:
    if flags.has("--fp8-format"):
        return "fp8"
    if flags.has("--exp-avg-dtype") and flags.text("--exp-avg-dtype", "fp32") == "bf16":
        return "bf16-moments"
    if flags.has("--bf16"):
        return "megatron-bf16"
    return "megatron-fp16" if flags.has("--fp16") else None


def _optimizer(flags: MegatronFlags) -> Optimizer:
    name = flags.text("--optimizer", "adam")
    if name == "sgd":
        return "sgd" if flags.text("--sgd-momentum", "0.9").strip("0.") == "" else "sgd-momentum"
    if name != "adam":
        raise InputError("MEGATRON_FLAG_NOT_READ", f"--optimizer {shown(name)}", "use adam or sgd")
    return "adam"


def _attention(flags: MegatronFlags) -> Attention | None:
    if flags.has("--use-flash-attn"):
        return "flash"
    return _ATTENTION.get(flags.text("--attention-backend", "auto"))
