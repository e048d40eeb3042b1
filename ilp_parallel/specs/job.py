"""What is done with the model: batch, sequence length, precision, optimizer, software."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ilp_parallel.specs.layer_times import LayerTime  # noqa: TC001 (annotations are read)
from ilp_parallel.specs.rates import Rates  # noqa: TC001 (annotations are read)

Precision = Literal[
    "megatron-fp16",
    "megatron-bf16",
    "deepspeed-bf16",
    "fsdp-fp32-master",
    "bf16-moments",
    "fp8",
    "fp8-bf16-gradients",
]
Optimizer = Literal["adam", "sgd-momentum", "sgd"]
Attention = Literal["flash", "flash1", "unfused", "eager"]
"""FlashAttention-2 or later; FlashAttention-1; a fused softmax between two matmuls; one kernel per
tensor operation."""
FLASH: tuple[Attention, ...] = ("flash", "flash1")
"""Kernels that never write the attention scores to memory."""
NormKernel = Literal["fused", "eager"]
Task = Literal["pretrain", "finetune", "lora"]
"""All weights are trained in both of the first; ``lora`` freezes them and trains low-rank
adapters beside some matrices (Hu et al. 2021, arXiv 2106.09685)."""
LoraTarget = Literal["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]
"""Matrices that an adapter stands beside, named as in Megatron-LM: queries, keys and values; output
of attention; first and second of the MLP (of experts too)."""
LORA_TARGETS: tuple[LoraTarget, ...] = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
Stack = Literal["megatron", "megatron-2021", "deepspeed", "torchtitan", "fsdp", "jax"]
"""Megatron-Core and what is built on it; Megatron-LM before it overlapped gradients with backward
(2023), and its forks; DeepSpeed and Megatron-DeepSpeed; compiled PyTorch; eager PyTorch FSDP;
JAX/XLA."""


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One training job.

    ``document_lengths`` are those of the documents that one sequence packs, whose attention does
    not cross their borders; together they fill the sequence. Empty: a sequence is one document.
    """

    global_batch: int  # sequences per optimizer step
    sequence_length: int  # tokens
    precision: Precision = "megatron-bf16"
    optimizer: Optimizer = "adam"
    attention: Attention = "flash"
    norm_kernel: NormKernel = "fused"
    stack: Stack = "megatron"
    reserve_bytes: int | None = None  # context, communicators, fragmentation; None: modelled
    tick_ns: int = 1000  # one integer tick of time
    rates: Rates | None = None  # None: those shipped for the device's generation and the stack
    layer_times: tuple[LayerTime, ...] = ()  # measured; those of other sequence lengths unused
    task: Task = "pretrain"
    lora_rank: int = 0  # inner width of an adapter; 0 but for lora
    lora_targets: tuple[LoraTarget, ...] = ()  # empty but for lora
    document_lengths: tuple[int, ...] = ()  # tokens

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step."""
        return self.global_batch * self.sequence_length

    @property
    def documents(self) -> tuple[int, ...]:
        """Tokens of each document of a sequence."""
        return self.document_lengths or (self.sequence_length,)
