"""What one block keeps for backward, by operator, and what recomputation drops and rebuilds.

Bytes per operator follow Korthikanti et al. 2022 (arXiv 2205.05198), section 4, generalised to
grouped queries, gated MLPs, no dropout, flash attention and eager kernels; which tensors a
recomputed module drops follows Megatron-LM's ``--recompute-modules``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ilp_parallel.costs import constants as c
from ilp_parallel.specs.job import FLASH

if TYPE_CHECKING:
    from ilp_parallel.costs.shapes import RankShapes
    from ilp_parallel.specs.job import JobSpec
    from ilp_parallel.specs.model import ModelSpec


@dataclass(frozen=True, slots=True)
class Keeps:
    """What software keeps beyond the least it could, as tensors of two bytes an element."""

    gate_copies: int = 0  # of a gated product's factor: an unfused silu keeps its own output
    whole_norms: bool = False  # outputs of norms in full although sequences are split
    unrotated: bool = False  # queries and keys as they were before their rotation


@dataclass(frozen=True, slots=True)
class StoredBytes:
    """Bytes one block keeps for backward, per microbatch and rank."""

    block_input: float  # what full recomputation keeps
    norm_inputs: float  # eager norms: their fp32 copies
    norm_outputs: float  # inputs of the QKV and of the first MLP matmul, and eager norms' own copy
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

    @property
    def mlp_half(self) -> float:
        """Bytes of the block's second half, free again when its first half runs backward."""
        return self.mlp_hidden + (self.norm_inputs + self.norm_outputs + self.dropout_masks) / 2

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
    keeps: Keeps | None = None  # None: as the job's stack does

    def stored(self) -> StoredBytes:
        """Activation bytes by operator."""
        shapes, tokens, saved = self.shapes, self.tokens, self.matrix_bytes
        keeps = self.keeps or Keeps(gate_copies=c.STORED_GATE_COPIES[self.job.stack])
        hidden = self.model.hidden * self.own_tokens
        outputs = self.model.hidden * (tokens if keeps.whole_norms else self.own_tokens)
        context = float(shapes.query * tokens)
        # flash attention keeps its output itself, which the projection may want in fewer bytes
        projection = 2.0 + saved % 2 if self._flash else float(saved)
        gated = 2.0 * keeps.gate_copies * shapes.ffn if self.model.gated_mlp else 0.0
        eager = self.job.norm_kernel == "eager"
        return StoredBytes(
            block_input=2.0 * hidden,
            # eager: the input in fp32 in place of the input, and the normalised input in 16 bits
            norm_inputs=(8.0 if eager else 4.0) * hidden,
            norm_outputs=2.0 * saved * outputs + (4.0 * hidden if eager else 0.0),
            qkv=2.0 * (shapes.query + 2 * shapes.kv) * tokens
            + (2.0 * (shapes.query + shapes.kv) * tokens if keeps.unrotated else 0.0),
            core_attention=self._core_bytes(),
            projection_input=context * projection,
            mlp_hidden=tokens * (2.0 * shapes.ffn_in + saved * shapes.ffn + gated),
            dropout_masks=2.0 * hidden if self.model.dropout else 0.0,
        )

    @property
    def _flash(self) -> bool:
        return self.job.attention in FLASH

    @property
    def _scores(self) -> float:
        return float(self.shapes.heads * self.job.sequence_length * self.tokens)

    def _core_bytes(self) -> float:
        """Log-sum-exp of each row, or softmax (in fp32 too when eager) and what dropout adds."""
        if self._flash:
            return 4.0 * self.shapes.heads * self.tokens
        softmax = 6.0 if self.job.attention == "eager" else 2.0
        return self._scores * (softmax + (3.0 if self.model.dropout else 0.0))

    def working_bytes(self) -> float:
        """Largest gradients alive inside one block's backward, beyond what the block stored.

        In the second half the gradients of both its hidden tensors, in the first half, when all of
        the second half is free again, those of queries, keys, values, context and scores; and the
        gradient of the block's output, gathered.
        """
        shapes, tokens = self.shapes, self.tokens
        mlp = 2.0 * tokens * (shapes.ffn_in + shapes.ffn)
        attention = 2.0 * tokens * (2 * shapes.query + 2 * shapes.kv)
        if not self._flash:
            attention += (8.0 if self.job.attention == "eager" else 4.0) * self._scores
        later = attention - self.stored().mlp_half
        return max(mlp, later) + 2.0 * tokens * self.model.hidden
