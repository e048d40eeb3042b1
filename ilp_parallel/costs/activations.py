"""What one block keeps for backward, by operator, and what recomputation drops and rebuilds.

Bytes per operator follow Korthikanti et al. 2022 (arXiv 2205.05198), section 4, generalised to
grouped queries, gated MLPs, no dropout, flash attention and eager kernels; which tensors a
recomputed module drops follows Megatron-LM's ``--recompute-modules``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ilp_parallel.costs import constants as c

if TYPE_CHECKING:
    from ilp_parallel.costs.shapes import RankShapes
    from ilp_parallel.specs.job import JobSpec
    from ilp_parallel.specs.model import ModelSpec


@dataclass(frozen=True, slots=True)
class StoredBytes:
    """Bytes one block keeps for backward, per microbatch and rank."""

    block_input: float  # what full recomputation keeps
    norm_inputs: float
    norm_outputs: float  # inputs of the QKV and of the first MLP matmul
    qkv: float
    core_attention: float  # softmax and its dropout, or flash attention's log-sum-exp
    projection_input: float
    mlp_hidden: float  # inputs of the activation and of the second MLP matmul
    dropout_masks: float

    @property
    def total(self) -> float:
        """Bytes without any recomputation."""
        return (
            self.norm_inputs
            + self.norm_outputs
            + self.qkv
            + self.core_attention
            + self.projection_input
            + self.mlp_hidden
            + self.dropout_masks
        )

    def dropped(self, module: str) -> float:
        """Bytes a recomputed module does not keep (and rebuilds in backward)."""
        if module == "core_attn":
            return self.core_attention
        return self.norm_outputs if module == "layernorm" else self.mlp_hidden

    def kept(self, recompute: tuple[str, ...]) -> float:
        """Bytes kept when these modules are recomputed."""
        if "full" in recompute:
            return self.block_input
        return self.total - sum(self.dropped(module) for module in recompute)

    def rebuilt(self, recompute: tuple[str, ...]) -> float:
        """Bytes alive at once while one block is recomputed: one half of it at a time."""
        if "full" in recompute:
            return self.total
        inside = max((self.dropped(name) for name in recompute if name != "layernorm"), default=0.0)
        return inside + (self.norm_outputs / 2 if "layernorm" in recompute else 0.0)


@dataclass(frozen=True, slots=True)
class ActivationCosting:
    """Prices one block's activations for a fixed number of tokens on a rank."""

    model: ModelSpec
    job: JobSpec
    shapes: RankShapes
    matrix_bytes: int  # bytes of a matmul's saved input: 2, at fp8 1
    tokens: int  # of one microbatch on this rank
    own_tokens: float  # outside the tensor-parallel regions

    def stored(self) -> StoredBytes:
        """Activation bytes by operator."""
        model, job, shapes, tokens = self.model, self.job, self.shapes, self.tokens
        saved = self.matrix_bytes
        hidden = model.hidden * self.own_tokens
        scores = shapes.heads * job.sequence_length * tokens
        context = shapes.query * tokens
        if job.attention in ("flash", "flash1"):
            core = 4.0 * shapes.heads * tokens
            projection_input = context * (2.0 if saved == 2 else 2.0 + saved)
        else:
            core = scores * (5.0 if model.dropout else 2.0)
            projection_input = context * float(saved)
        gate_copies = c.STORED_GATE_COPIES[job.stack] if model.gated_mlp else 0
        return StoredBytes(
            block_input=2.0 * hidden,
            norm_inputs=4.0 * hidden,
            norm_outputs=2.0 * saved * hidden,
            qkv=2.0 * (shapes.query + 2 * shapes.kv) * tokens,
            core_attention=core,
            projection_input=projection_input,
            mlp_hidden=tokens
            * (2.0 * shapes.ffn_in + saved * shapes.ffn + 2.0 * gate_copies * shapes.ffn),
            dropout_masks=2.0 * hidden if model.dropout else 0.0,
        )

    def working_bytes(self) -> float:
        """Largest gradients alive inside one block's backward, and the gathered input."""
        shapes, job, tokens = self.shapes, self.job, self.tokens
        mlp = 2.0 * tokens * (shapes.ffn_in + shapes.ffn)
        attention = 2.0 * tokens * (2 * shapes.query + 2 * shapes.kv)
        if job.attention not in ("flash", "flash1"):
            attention += 4.0 * shapes.heads * job.sequence_length * tokens
        return max(mlp, attention) + 2.0 * tokens * self.model.hidden
