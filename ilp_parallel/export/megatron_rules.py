"""What Megatron-LM demands of its options, checked before a run instead of during it.

Every rule names its source in Megatron-LM commit d98e8a64: ``args`` is
megatron/training/arguments.py, ``tc`` megatron/core/transformer/transformer_config.py, ``ps``
megatron/core/parallel_state.py, ``sch`` megatron/core/pipeline_parallel/schedules.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ilp_parallel.configuration import RECOMPUTE_SETS
from ilp_parallel.errors import InputError
from ilp_parallel.export.base import Violation
from ilp_parallel.export.megatron_reader import COUNTED_ENDS, prediction_layers, stage_sizes

if TYPE_CHECKING:
    from ilp_parallel.export.megatron_flags import MegatronExport


Rule = Callable[["MegatronExport"], Iterator[Violation]]

_LAYOUT = "--pipeline-model-parallel-layout"
_FIRST = "--decoder-first-pipeline-num-layers"
_LAST = "--decoder-last-pipeline-num-layers"
_CHUNK_SIZE = "--num-layers-per-virtual-pipeline-stage"
_CHUNKS = "--num-virtual-stages-per-pipeline-rank"
_RECOMPUTABLE = {module for modules in RECOMPUTE_SETS for module in modules} - {"full"} | {"moe"}


def validate_megatron(export: MegatronExport) -> tuple[Violation, ...]:
    """Every rule of :data:`RULES`, and if layers can be split of :data:`STAGE_RULES`, broken.

    Raises
    ------
    InputError
        If an option has no usable value at all (see :class:`MegatronFlags`).
    """
    unsplit = tuple(split(export))
    rules = RULES if unsplit else RULES + STAGE_RULES
    return unsplit + tuple(violation for rule in rules for violation in rule(export))


def heads(export: MegatronExport) -> Iterator[Violation]:
    """Tensor degree divides heads; key-value heads divide it or are divided (tc:1446-1461)."""
    flags = export.flags
    tensor = flags.integer("--tensor-model-parallel-size", 1)
    count = flags.integer("--num-attention-heads")
    if count % tensor:
        yield Violation("TP_NOT_DIVIDING_HEADS", f"heads={count}, tp={tensor}")
    groups = flags.integer("--num-query-groups", count)
    if groups % tensor and tensor % groups:
        yield Violation("KV_HEADS_NOT_DIVISIBLE_BY_TP", f"kv_heads={groups}, tp={tensor}")
    if count % groups:
        yield Violation("KV_HEADS_NOT_DIVIDING_HEADS", f"heads={count}, kv_heads={groups}")
    if flags.has("--group-query-attention") != flags.has("--num-query-groups"):
        yield Violation("QUERY_GROUPS_HALF_GIVEN", "give --group-query-attention and its groups")


def widths(export: MegatronExport) -> Iterator[Violation]:
    """Tensor degree divides the MLP width (megatron/core/tensor_parallel/layers.py: divide)."""
    tensor = export.flags.integer("--tensor-model-parallel-size", 1)
    width = export.flags.integer("--ffn-hidden-size")
    if width % tensor:
        yield Violation("TP_NOT_DIVIDING_FFN", f"ffn_hidden={width}, tp={tensor}")


def world(export: MegatronExport) -> Iterator[Violation]:
    """World size is a multiple of tensor, pipeline and context degree (args:432, ps:822)."""
    model = _model_devices(export)
    if export.devices % model:
        yield Violation("DEVICES_NOT_DIVISIBLE", f"devices={export.devices}, tp*pp*cp={model}")


def batch(export: MegatronExport) -> Iterator[Violation]:
    """Microbatch times data degree divides the global batch (num_microbatches_calculator:372)."""
    data = export.devices // _model_devices(export)
    total = export.flags.integer("--global-batch-size")
    share = export.flags.integer("--micro-batch-size") * data
    if share == 0 or total % share:
        yield Violation("GLOBAL_BATCH_NOT_DIVISIBLE", f"batch={total}, microbatch*data={share}")


def sequence(export: MegatronExport) -> Iterator[Violation]:
    """Positions cover the sequence (args:1354); context and sequence parallelism divide it.

    Source: args:1337 (twice the context degree), args:1433 and mpc:502 (sequence parallelism).
    """
    flags = export.flags
    context = flags.integer("--context-parallel-size", 1)
    tensor = flags.integer("--tensor-model-parallel-size", 1)
    length = flags.integer("--seq-length")
    positions = flags.integer("--max-position-embeddings")
    if positions < length:
        yield Violation("POSITIONS_FEWER_THAN_TOKENS", f"positions={positions}, seq={length}")
    if flags.has("--sequence-parallel"):
        if tensor == 1:
            yield Violation("SEQUENCE_PARALLEL_WITHOUT_TP", "tp=1")
        if length % (context * tensor):
            yield Violation(
                "SEQUENCE_NOT_DIVISIBLE_BY_TP", f"seq={length}, cp={context}, tp={tensor}"
            )
    if context > 1 and length % (2 * context):
        yield Violation("SEQUENCE_NOT_DIVISIBLE_BY_CP", f"seq={length}, 2*cp={2 * context}")


def low_precision(export: MegatronExport) -> Iterator[Violation]:
    """In fp8 a context rank's tokens are a multiple of 16 (what its matrix units need)."""
    flags = export.flags
    context = flags.integer("--context-parallel-size", 1)
    length = flags.integer("--seq-length")
    if flags.has("--fp8-format") and context > 1 and length % (16 * context):
        yield Violation("SEQUENCE_NOT_DIVISIBLE_FOR_FP8", f"seq={length}, 16*cp={16 * context}")


def split(export: MegatronExport) -> Iterator[Violation]:
    """One way to split layers, and it comes out even (args:929-976, tc:2242-2368)."""
    flags = export.flags
    ends = flags.has(_FIRST) or flags.has(_LAST)
    chunk_ways = [name for name in (_CHUNK_SIZE, _CHUNKS, _LAYOUT) if flags.has(name)]
    if len(chunk_ways) > 1 or (ends and (flags.has(_LAYOUT) or flags.has(_CHUNK_SIZE))):
        yield Violation("SEVERAL_SPLIT_MECHANISMS", ", ".join(chunk_ways))
        return
    pipeline = flags.integer("--pipeline-model-parallel-size", 1)
    chunks = pipeline * flags.integer(_CHUNKS, 1)
    layers = flags.integer("--num-layers") + sum(map(flags.has, COUNTED_ENDS))
    if layers < chunks:
        yield Violation("TOO_MANY_VIRTUAL_STAGES", f"layers={layers}, stages={chunks}")
        return
    if ends and pipeline == 1:
        yield Violation("FIRST_LAST_WITH_PP1", "pp=1 (Megatron-LM issue 1778)")
        return
    try:
        placed = sum(stage_sizes(flags))
    except InputError as error:
        yield Violation(error.code, error.message)
        return
    expected = flags.integer("--num-layers") + prediction_layers(flags)
    if placed != expected:
        yield Violation("LAYERS_NOT_PLACED", f"layers={expected}, t={placed}")


def interleaving(export: MegatronExport) -> Iterator[Violation]:
    """Several chunks need a pipeline and full rounds of microbatches (args:1000, sch:1160)."""
    flags = export.flags
    pipeline = flags.integer("--pipeline-model-parallel-size", 1)
    stages = len(stage_sizes(flags))
    if stages % pipeline:
        yield Violation("LAYOUT_NOT_DIVISIBLE_BY_PP", f"stages={stages}, pp={pipeline}")
    if stages <= pipeline:
        return
    least = 3 if flags.has("--no-overlap-p2p-communication") else 2
    if pipeline < least:
        yield Violation("INTERLEAVING_NEEDS_PIPELINE", f"pp={pipeline}, at least {least}")
    share = flags.integer("--micro-batch-size") * (export.devices // _model_devices(export))
    microbatches = flags.integer("--global-batch-size") // max(share, 1)
    if microbatches < pipeline or microbatches % pipeline:
        yield Violation("MICROBATCHES_NOT_IN_ROUNDS", f"microbatches={microbatches}, pp={pipeline}")


def recomputation(export: MegatronExport) -> Iterator[Violation]:
    """Granularity, method, layers and modules fit together (tc:1901-2024, args:1425)."""
    flags = export.flags
    granularity = flags.text("--recompute-granularity", "none")
    method = flags.has("--recompute-method")
    count = flags.has("--recompute-num-layers")
    if granularity == "full" and not (method and count):
        yield Violation("RECOMPUTE_FULL_NEEDS_METHOD", "give method and number of layers")
    elif granularity != "full" and (method or count):
        yield Violation("RECOMPUTE_METHOD_NEEDS_FULL", f"granularity={granularity}")
    elif count:
        layers, largest = flags.integer("--recompute-num-layers"), max(stage_sizes(flags))
        if layers > largest:
            yield Violation("RECOMPUTE_MORE_THAN_STAGE", f"n={layers}, stage={largest} layers")
    modules = flags.values("--recompute-modules")
    if modules is not None and granularity != "selective":
        yield Violation("RECOMPUTE_MODULES_NEED_SELECTIVE", f"granularity={granularity}")
    for module in modules or ():
        if module not in _RECOMPUTABLE:
            yield Violation("RECOMPUTE_MODULE_UNKNOWN", module)
    delayed = flags.has("--fp8-format") and flags.text("--fp8-recipe", "delayed") == "delayed"
    if delayed and "layernorm" in (modules or ()):
        yield Violation("RECOMPUTE_LAYERNORM_WITH_DELAYED_FP8", "use --fp8-recipe tensorwise")


def sharding(export: MegatronExport) -> Iterator[Violation]:
    """Overlaps and Megatron-FSDP need their companions (args:1024-1030, args:1113-1171)."""
    flags = export.flags
    distributed = flags.has("--use-distributed-optimizer")
    fsdp = flags.has("--use-megatron-fsdp")
    if flags.has("--overlap-param-gather") and not (
        (distributed or fsdp) and flags.has("--overlap-grad-reduce")
    ):
        yield Violation("PARAM_GATHER_OVERLAP_NEEDS_GRAD_REDUCE", "add --overlap-grad-reduce")
    if fsdp and not distributed:
        yield Violation("FSDP_NEEDS_DISTRIBUTED_OPTIMIZER", "add --use-distributed-optimizer")
    if fsdp and flags.text("--ckpt-format", "torch_dist") != "fsdp_dtensor":
        yield Violation("FSDP_NEEDS_DTENSOR_CHECKPOINTS", "use --ckpt-format fsdp_dtensor")
    if distributed and not fsdp and flags.text("--optimizer", "adam") != "adam":
        yield Violation("DISTRIBUTED_OPTIMIZER_NEEDS_ADAM", flags.text("--optimizer", "adam"))


def connections(export: MegatronExport) -> Iterator[Violation]:
    """CUDA_DEVICE_MAX_CONNECTIONS: never 1 with FSDP, else 1 with tp or cp before Blackwell.

    Source: args:1451-1480 and args:1113-1171.
    """
    value = dict(export.environment).get("CUDA_DEVICE_MAX_CONNECTIONS")
    tensor = export.flags.integer("--tensor-model-parallel-size", 1)
    context = export.flags.integer("--context-parallel-size", 1)
    if export.flags.has("--use-megatron-fsdp"):
        if value is None or value == "1":
            yield Violation("FSDP_NEEDS_CUDA_CONNECTIONS", f"{value or 'left to the shell'}")
    elif max(tensor, context) > 1 and export.generation != "blackwell" and value != "1":
        yield Violation("TP_NEEDS_ONE_CUDA_CONNECTION", f"{value or 'left to the shell'}")


RULES: tuple[Rule, ...] = (
    heads,
    widths,
    world,
    batch,
    sequence,
    low_precision,
    sharding,
    connections,
)
"""Rules that concern options only."""

STAGE_RULES: tuple[Rule, ...] = (interleaving, recomputation)
"""Rules that need the sizes of the stages."""


def _model_devices(export: MegatronExport) -> int:
    """Devices that hold one copy of the model."""
    tensor = export.flags.integer("--tensor-model-parallel-size", 1)
    pipeline = export.flags.integer("--pipeline-model-parallel-size", 1)
    return tensor * pipeline * export.flags.integer("--context-parallel-size", 1)
