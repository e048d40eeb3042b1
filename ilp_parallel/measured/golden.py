"""Megatron-LM's functional tests as plans: a row's own flags, and the habits of its test suite.

A row holds the flags of a test and the memory that its last rank logged (``training.py`` writes
the statistics from the last rank: the last pipeline stage). Defaults of flags are those of
megatron/training/arguments.py; what flags do not say is in the tables below, with where it was
read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from ilp_parallel.configuration import Configuration, Strategy
from ilp_parallel.errors import InputError
from ilp_parallel.measured.naming import NotCoveredError
from ilp_parallel.measured.plans import stage_sizes
from ilp_parallel.plan import Plan
from ilp_parallel.specs.job import JobSpec
from ilp_parallel.specs.model import ModelSpec
from ilp_parallel.specs.readers import load_cluster

if TYPE_CHECKING:
    from pathlib import Path

    from ilp_parallel.configuration import Zero
    from ilp_parallel.specs.cluster import ClusterSpec
    from ilp_parallel.specs.job import Attention, Precision

Flag = bool | int | float | str

MAX_LINES = 1_000_000
"""Most rows read of one file (chosen)."""

MAX_FILE_BYTES = 1 << 26
"""Largest file read (bytes, chosen)."""


@dataclass(frozen=True, slots=True)
class GoldenRow:
    """A test on a platform: its flags without dashes, and the bytes its last rank logged."""

    test: str
    platform: str
    args: dict[str, Flag]
    mem_max_allocated_bytes: float | None
    gpus: tuple[str, ...] | None = None  # "((per node,), (nodes,), 'platform')"

    def integer(self, flag: str, default: int) -> int:
        """A flag's whole number."""
        value = self.args.get(flag, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise NotCoveredError(f"flag {flag} is no number")
        return value


@dataclass(frozen=True, slots=True)
class Recipe:
    """What the files of a test say beside the flags that a row carries."""

    devices: int
    global_batch: int
    vocab: int
    dropout: bool = True
    bias: bool = True
    learned_positions: bool = True


RECIPES: dict[str, Recipe] = {
    # model_config.yaml: rotary positions, no biases, no dropout; batch 384 before its ramp-up ends;
    # tokenizer nemotron_2_256k (256,000 entries: Nemotron-4, arXiv 2402.16819). The number of
    # devices is not public: assumed, 32 data ranks divide the batch (16 or 64: +2.6 %, -1.3 %)
    "gpt/gpt3_15b_8t_release": Recipe(
        256, 384, 256_000, dropout=False, bias=False, learned_positions=False
    ),
}
"""By test."""

NODE_DEVICES = 8
"""Devices of a test that its recipe file does not list any more: tests/test_utils/recipes/gpt.yaml
gives every test one node of eight, release tests aside."""

GPT2_VOCAB = 50257
"""Entries of the suite's GPT-2 tokenizer (the default ``GPT2BPETokenizer``)."""

DEVICES: tuple[tuple[str, str], ...] = (
    ("gb200", "gb200"),
    ("h100", "h100-80gb"),
    ("a100", "a100-80gb"),
)
"""Our device by a part of the platform's name, in this order; others ran on A100."""

_SCOPE = re.compile(r"\(\(([1-9]\d{0,3}),\), \(([1-9]\d{0,5}),\), '(\w+)'\)")
"""Devices per node, nodes and platform of a recipe's entry."""

_NOT_COVERED: tuple[tuple[str, str], ...] = (
    ("num-experts", "mixture of experts"),
    ("multi-latent-attention", "latent attention"),
    ("encoder-num-layers", "encoder and decoder"),
    ("pipeline-model-parallel-layout", "pipeline layout"),
)
_KINDS = {
    "bert": "encoder",
    "t5": "encoder and decoder",
    "hybrid": "state-space layers",
    "nemotron": "state-space layers",
    "mixtral": "mixture of experts",
    "moe": "mixture of experts",
    "mimo": "multimodal",
    "multimodal-llava": "multimodal",
}


def read_golden(path: Path) -> tuple[GoldenRow, ...]:
    """The rows of a JSON-lines file.

    Raises
    ------
    InputError
        ``FILE_TOO_LARGE``, or ``BAD_GOLDEN_ROW`` with file and line.
    """
    if path.stat().st_size > MAX_FILE_BYTES:
        raise InputError("FILE_TOO_LARGE", str(path), f"split it below {MAX_FILE_BYTES} bytes")
    rows = []
    for number, line in enumerate(path.read_bytes().splitlines()[:MAX_LINES], 1):
        try:
            rows.append(msgspec.json.decode(line, type=GoldenRow))
        except msgspec.DecodeError as error:
            where = f"{path}, line {number}: {error}"
            raise InputError("BAD_GOLDEN_ROW", where, "mend or remove the row") from None
    return tuple(rows)


def is_golden(path: Path) -> bool:
    """Whether a JSON-lines file's first line has the keys of a golden row."""
    with path.open("rb") as file:
        first = file.readline(MAX_FILE_BYTES)
    try:
        keys = msgspec.json.decode(first, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:
        return False
    return {"test", "platform", "args", "mem_max_allocated_bytes"} <= set(keys)


def plan_of(row: GoldenRow) -> Plan:
    """The plan that a test's flags describe.

    Raises
    ------
    NotCoveredError
        If the cost model does not describe the test.
    """
    _require_covered(row)
    cluster = _cluster(row)
    recipe = RECIPES.get(row.test) or _recipe(row, cluster)
    model = _model(row, recipe)
    job = JobSpec(
        global_batch=recipe.global_batch,
        sequence_length=row.integer("seq-length", 1024),
        precision=_precision(row),
        attention=_attention(row),
    )
    configuration = _configuration(row, recipe, model)
    sizes = stage_sizes(model.layers, configuration.pipeline * configuration.chunks)
    strategy = Strategy(_zero(row, configuration.shards), _recompute(row))
    return Plan(
        model=model,
        cluster=replace(cluster, nodes=-(-configuration.devices // cluster.devices_per_node)),
        job=job,
        space="mixed",
        configuration=configuration,
        sizes=sizes,
        strategies=(strategy,) * model.layers,
    )


def _require_covered(row: GoldenRow) -> None:
    kind, _, name = row.test.partition("/")
    if "grpo" in name:
        raise NotCoveredError("reinforcement learning")
    for flag, reason in _NOT_COVERED:
        if flag in row.args:
            raise NotCoveredError(reason)
    if kind in _KINDS:
        raise NotCoveredError(_KINDS[kind])
    if not row.mem_max_allocated_bytes:
        raise NotCoveredError("no memory logged")


def _cluster(row: GoldenRow) -> ClusterSpec:
    """The devices, eight in a node where the recipe gives no number."""
    name = next((ours for part, ours in DEVICES if part in row.platform), "a100-80gb")
    per_node, nodes = NODE_DEVICES, 1
    wanted = "gb200" if name == "gb200" else "h100"
    for entry in row.gpus or ():
        match = _SCOPE.fullmatch(entry)
        if match and match[3] == wanted:
            per_node, nodes = int(match[1]), int(match[2])
    stated = row.gpus is not None or row.test in RECIPES
    if not stated and ("release" in row.test or name == "gb200"):
        raise NotCoveredError("number of devices unknown")
    return replace(load_cluster(name), name=name, nodes=nodes, devices_per_node=per_node)


def _recipe(row: GoldenRow, cluster: ClusterSpec) -> Recipe:
    if "global-batch-size" not in row.args:
        raise NotCoveredError("batch unknown")
    return Recipe(
        cluster.devices,
        row.integer("global-batch-size", 1),
        row.integer("vocab-size", GPT2_VOCAB),
    )


def _model(row: GoldenRow, recipe: Recipe) -> ModelSpec:
    """The model, with Megatron-LM's defaults: GPT with biases, dropout and learned positions."""
    hidden, heads = row.integer("hidden-size", 1), row.integer("num-attention-heads", 1)
    gated = "swiglu" in row.args
    # arguments.py: two thirds of four times, in multiples of 64, when gated
    ffn = row.integer("ffn-hidden-size", (8 * hidden // 3) // 64 * 64 if gated else 4 * hidden)
    grouped = "group-query-attention" in row.args
    return ModelSpec(
        name=row.test[:100],
        layers=row.integer("num-layers", 1),
        hidden=hidden,
        heads=heads,
        kv_heads=row.integer("num-query-groups", heads) if grouped else heads,
        head_dim=row.integer("kv-channels", hidden // heads),
        ffn_hidden=ffn,
        vocab=recipe.vocab,
        gated_mlp=gated,
        norm="rmsnorm" if row.args.get("normalization") == "RMSNorm" else "layernorm",
        activation="silu" if gated else "gelu",
        qkv_bias=recipe.bias,
        projection_bias=recipe.bias,
        mlp_bias=recipe.bias,
        learned_positions=row.integer("seq-length", 1024) if recipe.learned_positions else 0,
        embedding_norm=False,
        tied_embeddings="untie-embeddings-and-output-weights" not in row.args,
        dropout=recipe.dropout,
    )


def _precision(row: GoldenRow) -> Precision:
    if "fp8-format" in row.args:
        return "fp8"
    if "bf16" in row.args:
        return "megatron-bf16"
    if "fp16" in row.args:
        return "megatron-fp16"
    raise NotCoveredError("fp32 training")


def _attention(row: GoldenRow) -> Attention:
    """Kernel by flag; left open, Transformer Engine takes a fused one and Megatron-LM its own."""
    backend = row.args.get("attention-backend")
    if backend in ("flash", "fused"):
        return "flash"
    local = row.args.get("transformer-impl", "transformer_engine") == "local"
    return "unfused" if local or backend in ("unfused", "local") else "flash"


def _configuration(row: GoldenRow, recipe: Recipe, model: ModelSpec) -> Configuration:
    p = row.integer("pipeline-model-parallel-size", 1)
    t = row.integer("tensor-model-parallel-size", 1)
    c = row.integer("context-parallel-size", 1)
    b = row.integer("micro-batch-size", 1)
    per_stage = row.integer("num-layers-per-virtual-pipeline-stage", model.layers)
    chunks = row.integer("num-virtual-stages-per-pipeline-rank", 1)
    if per_stage < model.layers:
        chunks = model.layers // (p * per_stage)
    data, rest = divmod(recipe.devices, p * t * c)
    if rest:
        raise NotCoveredError("degrees do not divide the devices")
    microbatches = recipe.global_batch // max(1, data * b)
    if data < 1 or data * b * microbatches != recipe.global_batch:
        raise NotCoveredError("batch does not divide")
    if chunks > 1 and microbatches % p:
        raise NotCoveredError("microbatches no multiple of the stages")
    return Configuration(
        pipeline=p,
        tensor=t,
        data=data,
        microbatch=b,
        microbatches=microbatches,
        chunks=chunks,
        sequence_parallel="sequence-parallel" in row.args and t > 1,
        schedule="interleaved" if chunks > 1 else "1f1b",
        context=c,
    )


def _zero(row: GoldenRow, shards: int) -> Zero:
    if shards == 1:
        return "0"
    if "use-megatron-fsdp" in row.args:
        return "3-regather"
    return "1" if "use-distributed-optimizer" in row.args else "0"


def _recompute(row: GoldenRow) -> tuple[str, ...]:
    granularity = row.args.get("recompute-granularity")
    if granularity is None:
        return ()
    if granularity == "full":
        return ("full",)
    modules = str(row.args.get("recompute-modules", "core_attn")).strip("[]").split()
    if not set(modules) <= {"core_attn", "layernorm", "mlp"}:
        raise NotCoveredError("recomputed modules")
    return tuple(sorted(modules))
