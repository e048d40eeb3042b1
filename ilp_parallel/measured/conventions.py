"""What sources leave unsaid, as data: the habits of each model family, device and framework.

A convention stands for something that the whole source shares and its rows do not print; each
names why it is believed. What may differ between rows is left open (see ``plans.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ilp_parallel.costs.activations import Keeps
from ilp_parallel.costs.constants import Recipe

if TYPE_CHECKING:
    from ilp_parallel.configuration import Zero
    from ilp_parallel.specs.job import Attention, NormKernel, Precision, Stack


@dataclass(frozen=True, slots=True)
class Family:
    """Parts of a block that shapes do not tell. ``positions``: learned ones."""

    norm: Literal["layernorm", "rmsnorm"]
    bias: bool
    positions: bool
    tied: bool
    dropout: bool
    embedding_norm: bool = False


GPT = Family("layernorm", bias=True, positions=True, tied=True, dropout=True)
"""GPT-3 as in Megatron-LM's pretrain_gpt.py."""
LLAMA = Family("rmsnorm", bias=False, positions=False, tied=False, dropout=False)

FAMILIES: dict[str, Family] = {
    # llm-foundry's MPT configurations: ALiBi, no biases, tied embeddings, no dropout
    "mpt": Family("layernorm", bias=False, positions=False, tied=True, dropout=False),
    "llama-aleph": LLAMA,
    # BLOOM's development runs: ALiBi, a norm after the embedding, no dropout
    "gpt-bigscience": Family(
        "layernorm", bias=True, positions=False, tied=True, dropout=False, embedding_norm=True
    ),
    "gpt-bigscience-v100": GPT,
    "gpt-megatron-a100": GPT,
    "gpt-oneflow": GPT,
    "gpt-vtrain-single": GPT,
}
"""By the column ``family``; others go by the model's name."""

NAMED_FAMILIES: tuple[tuple[str, Family], ...] = (
    ("llama", LLAMA),
    # Nemotron-4 (arXiv 2402.16819): squared ReLU, no biases, no dropout, untied embeddings
    ("nemotron", Family("layernorm", bias=False, positions=False, tied=False, dropout=False)),
    ("gpt", GPT),
)
"""By a part of the lower-case model name, in this order."""

DEVICES: dict[tuple[str, int | None], str] = {
    ("A100", None): "a100-80gb",
    ("A100", 80): "a100-80gb",
    ("A100", 40): "a100-40gb",
    ("H100", None): "h100-80gb",
    ("H100", 80): "h100-80gb",
    ("H200", None): "h200-141gb",
    ("V100", None): "v100-32gb",
    ("V100", 16): "v100-16gb",
    ("V100", 32): "v100-32gb",
    ("B200", None): "b200",
    ("B300", None): "b300",
    ("GB200", None): "gb200",
    ("GB300", None): "gb300",
}
"""Our device by the columns ``gpu`` and ``gpu_mem_gb`` (None: any)."""


@dataclass(frozen=True, slots=True)
class Habit:
    """How a framework was run where its rows do not say."""

    stack: Stack
    zero: Zero  # with data parallelism
    sequence_parallel: bool  # with tensor parallelism
    attention: Attention = "flash"
    norm_kernel: NormKernel = "fused"
    bf16: Precision = "megatron-bf16"  # recipe of rows that say bf16
    fp8: Precision = "fp8"  # recipe of rows that say fp8
    recompute: str | None = None  # assumed where a row leaves it blank; None: fastest that fits
    interleaved: bool = False  # a blank number of chunks may be more than one


_NEMO = Habit(
    "megatron",
    "1",
    sequence_parallel=True,
    bf16="deepspeed-bf16",
    fp8="fp8-bf16-gradients",
    recompute="none",
)
"""Performance recipes of NeMo and Megatron-Bridge: distributed optimizer, sequence parallel,
gradients reduced in bf16 (``grad_reduce_in_fp32 = False``), no recomputation of dense models
(NVIDIA/NeMo, scripts/performance/recommended_model_configs)."""

HABITS: tuple[tuple[str, Habit], ...] = (
    ("JAX", Habit("jax", "3-regather", sequence_parallel=False)),
    ("Megatron-Bridge", _NEMO),
    ("NeMo", _NEMO),
    # the paper runs ZeRO 1 throughout; it tables sequence parallelism apart
    ("AA-Scaling", Habit("megatron-2021", "1", sequence_parallel=False, bf16="deepspeed-bf16")),
    # its tables of 2023 ran the Triton kernel, which FlashAttention-1 became
    ("Composer+FSDP", Habit("fsdp", "3-regather", False, attention="flash1")),
    ("DeepSpeed ZeRO-3", Habit("deepspeed", "3-regather", False, attention="unfused")),
    ("Megatron-DeepSpeed", Habit("deepspeed", "0", False, attention="unfused")),
    # before the distributed optimizer; SC'21 section 5.1 interleaves its end-to-end runs
    ("Megatron-LM 2021", Habit("megatron-2021", "0", False, attention="unfused", interleaved=True)),
    ("Megatron-LM 2022", Habit("megatron", "0", False, attention="unfused")),
    ("Megatron-LM", Habit("megatron", "1", sequence_parallel=True, recompute="none")),
    ("OneFlow", Habit("megatron-2021", "0", False, attention="unfused")),
    ("torchtitan", Habit("torchtitan", "3-regather", sequence_parallel=True)),
    ("FSDP", Habit("fsdp", "3-regather", sequence_parallel=False)),
    ("DeepSpeed", Habit("deepspeed", "1", sequence_parallel=False)),
    ("Megatron", Habit("megatron", "1", sequence_parallel=True)),
    ("XLA", Habit("jax", "3-regather", sequence_parallel=False)),
    ("MaxText", Habit("jax", "3-regather", sequence_parallel=False)),
    ("PyTorch", Habit("fsdp", "3-regather", sequence_parallel=False)),
)
"""By a part of the framework's name, in this order, whatever its case."""

ATTENTION: dict[str, tuple[Attention, NormKernel]] = {
    "flash_attention2 + RMS kernel": ("flash", "fused"),
    "flash_attention2": ("flash", "eager"),
    "flash_attentionv1.0.8": ("flash1", "eager"),
    "fused": ("unfused", "eager"),
    "torch": ("eager", "eager"),
    "flash_attention": ("flash1", "eager"),
}
"""Attention and norm kernels by the column ``attn_kernel``, where its words are not plain."""

PRECISIONS: dict[str, Precision] = {
    "fp16": "megatron-fp16",
    "amp_bf16": "fsdp-fp32-master",
    "amp_fp8": "fp8",
}
"""Recipe by the lower-case column ``precision`` where the framework does not matter."""

NETWORKS_GB_S: dict[str, float] = {
    "1600Gbps/node RoCE": 25.0,
    # per node: steps grow with the devices as one shared adapter explains and eight do not
    "200Gb/s HDR IB": 3.125,
    "8x200Gb/s HDR IB": 25.0,
    "4x100Gb/s OPA per node (Jean Zay; not stated in table)": 6.25,
    "800Gbps/node (config)": 12.5,
    "100Gb/s IB EDR per node": 1.5625,
}
"""Bytes per second (x 1e9) per device and direction by the column ``inter_node_net``."""


@dataclass(frozen=True, slots=True)
class Software:
    """What a framework holds and does beyond the stack that it is priced as."""

    keeps: Keeps | None = None
    bf16: Recipe | None = None  # bytes per parameter of rows that say bf16
    whole_logits: bool = False  # loss on the whole vocabulary, on every tensor rank
    separate_gate: bool = False  # each MLP matmul reduces its input gradient by itself
    all_reduces: bool = False  # gradients under ZeRO 1, where others reduce-scatter


SOFTWARE: tuple[tuple[str, Software], ...] = (
    # Aleph-Alpha/scaling: transformer/model/layers/lm_head.py gathers the logits and
    # losses/cross_entropy.py calls PyTorch's loss; core/nn/rotary.py and mlp.py are not fused;
    # norm/rms_norm.py gathers its output, which the matmul behind it keeps whole; nn/mlp.py has
    # two column-parallel matmuls side by side, and optimizer/optimizer.py all-reduces gradients
    (
        "AA-Scaling",
        Software(
            Keeps(gate_copies=1, whole_norms=True, unrotated=True),
            whole_logits=True,
            separate_gate=True,
            all_reduces=True,
        ),
    ),
    # DeepSpeed runtime/bf16_optimizer.py: beside weights and gradients in 16 bits it keeps whole
    # fp32 gradients, and shards fp32 weights and moments
    ("Megatron-DeepSpeed", Software(bf16=Recipe(2, 6, 4, 4, 2, 2, 0))),
)
"""By a part of the framework's name."""

MEMORY_UNIT_BYTES: dict[str, float] = {
    # nvidia-smi's MiB with the last three digits dropped: 80 GB were seen on a device of 79.3 GiB
    "bigscience_a100": 1000 * 2.0**20,
    "bigscience_v100": 1000 * 2.0**20,
}
"""Bytes of a source's GB of device memory, where not 1e9."""

MIXTURES = {
    "deepseekv3": "deepseek-v3",
    "kimi_k2": "kimi-k2",
    "qwen3_235b_a22b": "qwen3-235b-a22b",
    "qwen3_30b_a3b": "qwen3-30b-a3b",
    "gpt oss 120b": "gpt-oss-120b",
}
"""Models with experts whose shapes are those of a preset, by their names in tables."""
