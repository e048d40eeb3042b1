"""A plan as the command line of Megatron-LM's ``pretrain_gpt.py``.

Option names, defaults and rules: Megatron-LM commit d98e8a64, megatron/training/arguments.py;
Megatron-FSDP's companions: Megatron-Core documentation, Megatron-FSDP user guide.

ZeRO in Megatron-LM's words: 1 is the distributed optimizer. ``2-buffer`` asks for nothing else
(whole gradient buffer, one reduce-scatter after the last microbatch), so it becomes the same
options. ``3-regather`` is Megatron-FSDP with ``optim_grads_params``. Its ``optim_grads`` is not
exported: it reduces after every microbatch (megatron/core/distributed/fsdp/src/megatron_fsdp/
megatron_fsdp.py, ``grad_reduce_every_bprop``), which is not what ``2-buffer`` promises.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ilp_parallel.configuration import RECOMPUTE_SETS
from ilp_parallel.errors import InputError
from ilp_parallel.export.base import (
    Exporter,
    ExportFile,
    Note,
    Written,
    by_stage,
    common_notes,
    recomputed,
)
from ilp_parallel.export.megatron_blocks import (
    block_gaps,
    block_words,
    degree_words,
    module_words,
    predicted_layers,
)
from ilp_parallel.export.megatron_flags import MegatronExport, MegatronFlags
from ilp_parallel.export.megatron_layout import write_layout
from ilp_parallel.export.megatron_rules import validate_megatron

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ilp_parallel.configuration import Zero
    from ilp_parallel.export.base import Layers
    from ilp_parallel.plan import Plan
    from ilp_parallel.specs.job import Precision
    from ilp_parallel.specs.model import ModelSpec

Flag = tuple[str, tuple[str, ...]]

_BF16_MOMENTS = (
    "--use-precision-aware-optimizer",
    *("--exp-avg-dtype", "bf16"),
    *("--exp-avg-sq-dtype", "bf16"),
)
_PRECISION: dict[Precision, tuple[str, ...]] = {
    "megatron-fp16": ("--fp16",),
    "megatron-bf16": ("--bf16",),
    "bf16-moments": ("--bf16", *_BF16_MOMENTS),
    "fp8": ("--bf16", *("--fp8-format", "hybrid"), *("--fp8-recipe", "tensorwise")),
}
"""Recipes Megatron-LM has. Tensorwise scaling, as delayed scaling forbids recomputing norms."""

_OVERLAP = ("--overlap-grad-reduce", "--overlap-param-gather")
_ZERO: dict[Zero, tuple[str, ...]] = {
    "0": (),
    "1": ("--use-distributed-optimizer", *_OVERLAP),
    "2-buffer": ("--use-distributed-optimizer", *_OVERLAP),
    "3-regather": (
        "--use-megatron-fsdp",
        *("--data-parallel-sharding-strategy", "optim_grads_params"),
        "--use-distributed-optimizer",
        "--no-gradient-accumulation-fusion",
        *("--ckpt-format", "fsdp_dtensor"),
        *_OVERLAP,
    ),
}
_ATTENTION = {"flash": "flash", "flash1": "flash", "unfused": "unfused", "eager": "unfused"}
"""Nearest of Megatron-LM's attention backends."""

_CUDA_DEFAULT_CONNECTIONS = "8"
"""What CUDA uses when nothing is set (CUDA C++ Programming Guide, environment variables)."""

_VOCABULARY_MULTIPLE = "128"
"""Megatron-LM's own default, written out because the padded vocabulary follows from it."""

_DROPOUT = "0.1"
"""Megatron-LM's default for both dropouts (megatron/training/arguments.py)."""


def export_megatron(plan: Plan) -> MegatronExport:
    """Options and environment that make Megatron-LM run a plan.

    Raises
    ------
    InputError
        ``NOT_EXPRESSIBLE_IN_MEGATRON`` naming everything that has no option; or the code of the
        first rule of :mod:`ilp_parallel.export.megatron_rules` that the plan breaks.
    """
    missing = tuple(_not_expressible(plan))
    if missing:
        raise InputError("NOT_EXPRESSIBLE_IN_MEGATRON", "; ".join(missing), ADVICE)
    export = megatron_export(plan)
    for violation in validate_megatron(export):
        raise InputError(violation.code, violation.message, "this plan cannot run in Megatron-LM")
    return export


def megatron_export(plan: Plan) -> MegatronExport:
    """The same for a plan known to be expressible, its rules not checked yet."""
    words = (
        *_parallel_words(plan),
        *_split_words(plan),
        *(_recompute_words(plan) or ()),
        *_ZERO[plan.strategies[0].zero],
        *_model_words(plan.model),
        *_job_words(plan),
    )
    world, per_node = plan.configuration.devices, plan.cluster.devices_per_node
    return MegatronExport(
        flags=MegatronFlags.from_arguments(words),
        environment=tuple(_environment(plan)),
        nodes=max(1, world // per_node),
        devices_per_node=min(world, per_node),
        generation=plan.cluster.device.generation,
        warnings=tuple(note.text for note in _notes(plan)),
    )


def _not_expressible(plan: Plan) -> Iterator[str]:
    """Everything in a plan that Megatron-LM has no option for."""
    yield from lacks(plan)
    if _recompute_words(plan) is None:
        yield "recomputation is not one policy (" + ", ".join(_mixes(plan)) + ")"
    if plan.job.precision not in _PRECISION:
        yield f"precision recipe {plan.job.precision}"


def lacks(plan: Plan) -> Iterator[str]:
    """What has no option, recomputation and precision left aside."""
    yield from _model_not_expressible(plan.model)
    if plan.job.task == "lora":
        yield "LoRA"
    zeros = sorted({strategy.zero for strategy in plan.strategies})
    if len(zeros) > 1:
        yield f"ZeRO differs between layers ({', '.join(zeros)})"
    yield from (f"ZeRO {zero}" for zero in zeros if zero not in _ZERO)
    if plan.configuration.schedule == "gpipe":
        yield "GPipe schedule"
    if min(plan.sizes) < 1:
        yield "a virtual stage without layers"
    if plan.job.precision == "bf16-moments" and "0" in zeros:
        yield "bf16 moments without the distributed optimizer (ZeRO 1)"
    world, per_node = plan.configuration.devices, plan.cluster.devices_per_node
    if world > per_node and world % per_node:
        yield f"{world} devices do not fill nodes of {per_node}"


def _model_not_expressible(model: ModelSpec) -> Iterator[str]:
    yield from block_gaps(model)
    if model.embedding_norm:
        yield "norm after the embedding"
    if model.projection_bias != model.mlp_bias:
        yield "biases in only one of attention output and MLP"
    elif model.projection_bias and not model.qkv_bias:
        yield "biases everywhere but in the QKV projection"
    if (model.gated_mlp, model.activation) not in ((True, "silu"), (False, "gelu")):
        yield f"{'gated ' * model.gated_mlp}{model.activation} MLP"


def _parallel_words(plan: Plan) -> Iterator[str]:
    """Degrees, sequence parallelism and batch."""
    g = plan.configuration
    yield from ("--tensor-model-parallel-size", str(g.tensor))
    yield from ("--pipeline-model-parallel-size", str(g.pipeline))
    if g.context > 1:
        yield from ("--context-parallel-size", str(g.context))
    if g.sequence_parallel:
        yield "--sequence-parallel"
    yield from degree_words(plan.model, g)
    yield from ("--micro-batch-size", str(g.microbatch))
    yield from ("--global-batch-size", str(plan.job.global_batch))


def _split_words(plan: Plan) -> tuple[str, ...]:
    """Even split, else own numbers for the first and last stage, else a layout."""
    p, v = plan.configuration.pipeline, plan.configuration.chunks
    predicting = predicted_layers(plan.model)
    sizes = (*plan.sizes[:-1], plan.sizes[-1] - predicting)
    row = sizes[:p]
    if len(set(sizes)) == 1:
        per_chunk = ("--num-layers-per-virtual-pipeline-stage", str(row[0]))
        return per_chunk if v > 1 else ()
    if row * v == sizes and len(set(row[1:-1])) <= 1 and row[-1] > 0:
        first = ("--decoder-first-pipeline-num-layers", str(row[0] * v))
        last = ("--decoder-last-pipeline-num-layers", str(row[-1] * v))
        chunks = ("--num-virtual-stages-per-pipeline-rank", str(v)) if v > 1 else ()
        return (*first, *last, *chunks)
    return ("--pipeline-model-parallel-layout", write_layout(plan.sizes, predicting))


def _recompute_words(plan: Plan) -> tuple[str, ...] | None:
    """The one recomputation policy that gives every layer its modules; None if there is none."""
    chosen = [strategy.recompute for strategy in plan.strategies]
    kinds = set(chosen)
    if kinds == {()}:
        return ()
    if kinds == {("full",)}:
        return _full("uniform", 1)
    if len(kinds) == 1:
        modules = module_words(plan.model, chosen[0])
        return ("--recompute-granularity", "selective", "--recompute-modules", *modules)
    layers = iter(chosen)
    stages = [[next(layers) for _ in range(size)] for size in plan.sizes]
    count = max(stage.count(("full",)) for stage in stages)
    block = [[("full",) if i < count else () for i in range(len(stage))] for stage in stages]
    return _full("block", count) if block == stages else None


def _full(method: str, layers: int) -> tuple[str, ...]:
    granularity = ("--recompute-granularity", "full")
    return (*granularity, "--recompute-method", method, "--recompute-num-layers", str(layers))


def _mixes(plan: Plan) -> list[str]:
    """Names of the recomputed sets that occur."""
    return sorted({"+".join(strategy.recompute) or "none" for strategy in plan.strategies})


def _model_words(model: ModelSpec) -> Iterator[str]:
    """Shapes, norm, activation, biases and embeddings."""
    yield from ("--num-layers", str(model.layers - predicted_layers(model)))
    yield from ("--hidden-size", str(model.hidden))
    width = model.ffn_hidden or model.all_experts[0].ffn_hidden
    yield from ("--ffn-hidden-size", str(width))
    yield from ("--num-attention-heads", str(model.heads))
    if model.latent is None:
        yield from ("--kv-channels", str(model.head_dim))
    if model.kv_heads != model.heads:
        yield from ("--group-query-attention", "--num-query-groups", str(model.kv_heads))
    if model.qk_norm and model.latent is None:
        yield "--qk-layernorm"
    yield from block_words(model)
    if model.gated_mlp:
        yield "--swiglu"
    yield from ("--normalization", "RMSNorm" if model.norm == "rmsnorm" else "LayerNorm")
    if not model.mlp_bias:
        yield "--disable-bias-linear"
        if model.qkv_bias:
            yield "--add-qkv-bias"
    positions = "learned_absolute" if model.learned_positions else "rope"
    yield from ("--position-embedding-type", positions)
    if not model.tied_embeddings:
        yield "--untie-embeddings-and-output-weights"
    dropout = _DROPOUT if model.dropout else "0.0"
    yield from ("--attention-dropout", dropout, "--hidden-dropout", dropout)
    yield from ("--make-vocab-size-divisible-by", _VOCABULARY_MULTIPLE)


def _job_words(plan: Plan) -> Iterator[str]:
    """Sequence length, precision, attention kernel and optimizer."""
    job = plan.job
    positions = plan.model.learned_positions or job.sequence_length
    yield from ("--seq-length", str(job.sequence_length))
    yield from ("--max-position-embeddings", str(positions))
    yield from _PRECISION[job.precision]
    yield from ("--attention-backend", _ATTENTION[job.attention])
    if job.optimizer == "adam":
        yield from ("--optimizer", "adam")
    else:
        momentum = "0.9" if job.optimizer == "sgd-momentum" else "0.0"
        yield from ("--optimizer", "sgd", "--sgd-momentum", momentum)


def _environment(plan: Plan) -> Iterator[tuple[str, str]]:
    """CUDA's launch queues as Megatron-LM asserts them, and an allocator that fragments less."""
    blackwell = plan.cluster.device.generation == "blackwell"
    if plan.strategies[0].zero == "3-regather":
        yield "CUDA_DEVICE_MAX_CONNECTIONS", _CUDA_DEFAULT_CONNECTIONS
    elif max(plan.configuration.tensor, plan.configuration.context) > 1 and not blackwell:
        yield "CUDA_DEVICE_MAX_CONNECTIONS", "1"
    yield "PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"


def _notes(plan: Plan) -> Iterator[Note]:
    """What the options leave open or say differently from the plan."""
    yield Note(
        "OPTIONS_TO_ADD",
        f"Add rendezvous, data, tokenizer ({plan.model.vocab} entries), learning-rate and "
        "checkpoint options.",
    )
    if not plan.model.learned_positions:
        yield Note(
            "ROTARY_BASE",
            "Add --rotary-base and rope scaling if the model does not use Megatron-LM's default.",
        )
    if plan.model.has_experts:
        yield Note(
            "ROUTER_OPTIONS",
            "Add what the model's router does: score function, scaling, load balancing. The load "
            "was taken to be even.",
        )
    if plan.job.attention not in _ATTENTION.values():
        yield Note(
            "ATTENTION_KERNEL_DIFFERS",
            f"Planned for {plan.job.attention} attention; Megatron-LM runs "
            f"{_ATTENTION[plan.job.attention]}.",
        )
    if plan.strategies[0].zero == "2-buffer":
        yield Note(
            "ZERO_2_BUFFER",
            "ZeRO 2-buffer runs as the distributed optimizer: same memory, same traffic.",
        )
    if plan.strategies[0].zero == "3-regather" and plan.configuration.tensor > 1:
        yield Note(
            "FSDP_WITH_TP",
            "Megatron-LM advises against Megatron-FSDP with tensor parallelism before Blackwell.",
        )
    yield from common_notes(plan, "megatron", "Megatron-LM")


def recomputations(plan: Plan) -> list[Layers]:
    """Policies near the plan's: every module set, and blocks at the head of every virtual stage.

    Of many block sizes a selection is given, the smallest that covers every recomputed layer among
    them.
    """
    stages, largest = by_stage(plan), max(plan.sizes)
    cover = max(
        (i + 1 for stage in stages for i, modules in enumerate(stage) if modules), default=0
    )
    counts = {cover, *range(1, largest, max(1, largest // 24))} - {0, largest}
    blocks = [
        tuple(("full",) if i < count else () for size in plan.sizes for i in range(size))
        for count in sorted(counts)
    ]
    policies = [(modules,) * plan.model.layers for modules in RECOMPUTE_SETS] + blocks
    own = recomputed(plan)
    return policies if _recompute_words(plan) is None or own in policies else [*policies, own]


def precision(plan: Plan) -> Precision:
    """Recipe that Megatron-LM trains in; fp32 master weights of others are kept beside bf16."""
    return plan.job.precision if plan.job.precision in _PRECISION else "megatron-bf16"


def _write(plan: Plan) -> Written:
    export = megatron_export(plan)
    text = export.render()
    return Written((ExportFile("run.sh", text),), tuple(_notes(plan)), validate_megatron(export))


ADVICE = "solve with --space megatron"

EXPORTER = Exporter(
    "megatron", "Megatron-LM", lacks, recomputations, precision, _write, ADVICE, experts=True
)
