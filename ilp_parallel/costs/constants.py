"""Every constant of the cost layer, with unit and source.

*Measured* values come from the cited publication, *fitted* ones were chosen so that the iteration
times named beside them come out, *assumed* ones are engineering judgement and the first to
calibrate. ``docs/cost_model.md`` lists them all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ilp_parallel.specs.job import Precision, Stack


TILE_ROWS, TILE_COLUMNS = 128, 128
"""Elements of one output tile of a large matmul, the common CUTLASS choice on Ampere and later
(NVIDIA, "Matrix Multiplication Background User's Guide")."""

HALF_WAVE = 0.5
"""Waves of tiles lost on average to quantisation (same guide), a smooth stand-in."""

INNER_HALF = 100.0
"""Inner dimension, in elements, at which prologue and epilogue halve the rate (assumed)."""

INNER_PACE = 312e12 / 108
"""Matrix FLOP/s of one processor for which ``INNER_HALF`` holds: A100."""

BATCHED_ATTENTION_SHARE = 0.55
"""Of the matmul efficiency, for the unfused score matmuls with their short inner dimension head_dim
(assumed, not fitted on its own)."""

MISALIGNED_SHARE = 0.35
"""Of the rate of batched matmuls, for a head dimension that is no multiple of 8 elements, which
16-bit tensor cores read at once (NVIDIA, "Matrix Multiplication Background User's Guide": up to
four times slower)."""

FLASH_SEQUENCE_HALF = 512.0
"""Sequence length, in tokens, at which flash attention runs at half of its long-sequence rate
(shape of FlashAttention-2 figures 4-6, assumed)."""

FLASH_HEAD_DIM_FULL = 128
"""Head dimension from which flash attention runs at full rate; smaller heads lose (assumed)
``(head_dim / 128) ** 0.25``, about the 64-against-128 difference of FlashAttention-2 figure 5."""

FLASH_BACKWARD_FACTOR = 2.5
"""Backward over forward FLOPs of flash attention: five matmuls instead of two (Dao 2023)."""

FLASH_BACKWARD_RATE = 0.85
"""Rate of flash attention's backward over its forward (Dao 2023, figures 4-6: 0.8-0.9)."""

FLASH1_FACTOR = 0.55
"""Rate of FlashAttention-1 over FlashAttention-2 (Dao 2023: "around 2x speedup")."""

FLASH_TILE_KEYS = 128
"""Keys of one tile: a window is computed in whole tiles, one more than it covers (Dao 2023)."""

SCAN_CHUNK = 256
"""Tokens of one chunk of a state-space scan (``mamba_ssm``, default of its Mamba-2 layer)."""

SCAN_SHARE = 0.5
"""Rate of a scan's products over that of flash attention (assumed)."""

KERNEL_LAUNCH_S = 3.0e-6
"""Seconds per kernel that no other work hides (assumed)."""

INTERLEAVED_SEND_EXPOSED = 0.3
"""Share of a pipeline send left exposed with interleaving, which overlaps sends with the work of
other chunks (assumed); without interleaving all of it is exposed."""

STORED_GATE_COPIES: dict[Stack, int] = {
    "megatron": 0,
    "megatron-2021": 0,
    "torchtitan": 0,
    "deepspeed": 1,
    "fsdp": 1,
    "jax": 0,
}
"""Extra stored copies of the gated product's factor: unfused silu keeps its own output."""

BUCKET_BYTES: dict[Stack, int] = {
    "megatron": 0,
    "megatron-2021": 0,
    "torchtitan": 0,
    "deepspeed": 2_000_000_000,
    "fsdp": 0,
    "jax": 0,
}
"""Communication buckets when data parallel: Megatron-LM communicates in place; DeepSpeed keeps
reduce and all-gather buckets of 5e8 two-byte elements each (its documented defaults)."""

ZERO3_ADAPTERS: dict[Stack, int] = {"deepspeed": 1}
"""Network adapters of a node that a ring over sharded weights uses; all that its members have where
nothing is said. One: DeepSpeed gathers each parameter by itself (Narayanan et al. 2021, table 2:
16-17 GB/s per device on eight adapters of 25)."""

CONTEXT_BYTES = {"volta": 1113 * 2**20, "unknown": 1573 * 2**20}
"""CUDA context and loaded kernels by generation: what ``nvidia-smi`` shows of a process that holds
one tensor (BigScience, chronicles of the 176B model and of tr3m: V100, A100; newer ones as A100).
"""

WORKSPACE_BYTES = {"hopper": 100_663_296, "blackwell": 100_663_296, "unknown": 71_303_168}
"""Workspaces of matrix libraries by generation: cuBLAS of the forward and of the backward thread,
32 MiB each (PyTorch's default from Hopper, and what ``CUBLAS_WORKSPACE_CONFIG=:4096:8`` sets), and
Transformer Engine's, 32 MiB from Hopper, 4 MiB before."""

COMMUNICATOR_BYTES = 256 * 2**20
"""Buffers of one communicator per parallel dimension in use (assumed)."""

ALLOCATOR_SLACK = 0.14
"""Bytes that the caching allocator holds beyond those allocated, of the latter (fitted on runs that
ran or ran out of memory, ``ilp_parallel/measured/memory.py``; PyTorch without expandable segments).
"""

VOCAB_MULTIPLE = 128
"""The vocabulary is padded to a multiple of this times the tensor degree
(Megatron-LM ``--make-vocab-size-divisible-by``)."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Bytes per parameter of a precision recipe."""

    weight: float  # kept weights, copies for fp8 included
    gradient: float  # accumulated gradient, also what is communicated
    master: float  # held by the optimizer: fp32 weights (and fp32 gradients)
    moment: float  # per optimizer moment
    gathered: float  # one gathered copy of a sharded weight, also what ZeRO 3 communicates
    refreshed: float  # a weight as sent after the optimizer step (ZeRO 1 and 2)
    cast: float  # temporary compute copy of one layer's weights


RECIPES: dict[Precision, Recipe] = {
    # Megatron-LM docs/source/api-guide/dist_optimizer.md: 20, or 4 + 16/d
    "megatron-fp16": Recipe(2, 2, 8, 4, 2, 2, 0),
    # same page: 18, or 6 + 12/d
    "megatron-bf16": Recipe(2, 4, 4, 4, 2, 2, 0),
    # Rajbhandari et al. 2020 (ZeRO, arXiv 1910.02054) section 3.1: 2 + 2 + 12
    "deepspeed-bf16": Recipe(2, 2, 4, 4, 2, 2, 0),
    # fp32 weights are the master; cast to bf16 layer by layer, gradients reduced in fp32
    "fsdp-fp32-master": Recipe(4, 4, 0, 4, 2, 4, 2),
    # DeepSeek-V3 (arXiv 2412.19437) section 3.3.2: bf16 moments, fp32 master and gradients
    "bf16-moments": Recipe(2, 4, 4, 2, 2, 2, 0),
    # as megatron-bf16, plus the fp8 copy of each weight and its transpose (one byte each)
    "fp8": Recipe(4, 4, 4, 4, 2, 2, 0),
    # the same with gradients accumulated and reduced in bf16
    "fp8-bf16-gradients": Recipe(4, 2, 4, 4, 2, 2, 0),
}
MOMENTS = {"adam": 2, "sgd-momentum": 1, "sgd": 0}
"""Moments an optimizer keeps per parameter."""
