"""What one block keeps for backward, by operator, and what recomputation drops and rebuilds.

Bytes per operator follow Korthikanti et al. 2022 (arXiv 2205.05198), section 4, generalised to
grouped queries, gated MLPs, no dropout, flash attention, eager kernels, latents, experts and
state-space mixers; which tensors a recomputed module drops follows Megatron-LM's
``--recompute-modules``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ilp_parallel.costs import constants as c
from ilp_parallel.specs.job import FLASH

if TYPE_CHECKING:
    from ilp_parallel.costs.experts import ExpertCosting
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

    parts: int  # that have a norm before and an addition after them
    block_input: float  # what full recomputation keeps
    norm_inputs: float  # eager norms: their fp32 copies
    norm_outputs: float  # inputs of the QKV and of the first MLP matmul, and eager norms' own copy
    qkv: float  # or what a state space is projected to
    core_attention: float  # softmax and its dropout, or flash attention's log-sum-exp
    projection_input: float
    mlp_hidden: float  # inputs of the activation and of the second MLP matmul; rows of experts
    dropout_masks: float
    loss: float  # of a block that predicts; kept whatever is recomputed

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
            + self.loss
        )

    @property
    def mlp_half(self) -> float:
        """Bytes of the block's second half, free again when its first half runs backward."""
        shared = self.norm_inputs + self.norm_outputs + self.dropout_masks
        return self.mlp_hidden + shared / self.parts

    def dropped(self, module: str) -> float:
        """Bytes a recomputed module does not keep (and rebuilds in backward)."""
        if module == "core_attn":
            return self.core_attention
        return self.norm_outputs if module == "layernorm" else self.mlp_hidden

    def kept(self, recompute: tuple[str, ...]) -> float:
        """Bytes kept when these modules are recomputed."""
        if "full" in recompute:
            return self.block_input + self.loss
        return self.total - sum(self.dropped(module) for module in recompute)

    def rebuilt(self, recompute: tuple[str, ...]) -> float:
        """Bytes alive at once while one block is recomputed: one half of it at a time."""
        if "full" in recompute:
            return self.total - self.loss
        inside = max((self.dropped(name) for name in recompute if name != "layernorm"), default=0.0)
        return inside + (self.norm_outputs / self.parts if "layernorm" in recompute else 0.0)


@dataclass(frozen=True, slots=True)
class ActivationCosting:
    """Prices one block's activations for a fixed number of tokens on a rank."""

    model: ModelSpec
    job: JobSpec
    shapes: RankShapes
    matrix_bytes: int  # bytes of a matmul's saved input: 2, at fp8 1
    tokens: int  # of one microbatch on this rank
    own_tokens: float  # outside the tensor-parallel regions
    routed: ExpertCosting | None = None
    keeps: Keeps | None = None  # None: as the job's stack does

    def stored(self) -> StoredBytes:
        """Activation bytes by operator."""
        tokens, saved, model = self.tokens, self.matrix_bytes, self.model
        hidden = model.hidden * self.own_tokens
        outputs = model.hidden * (tokens if self._keeps.whole_norms else self.own_tokens)
        eager = self.job.norm_kernel == "eager"
        inputs = 1 + model.predicts
        return StoredBytes(
            parts=model.residuals,
            block_input=2.0 * inputs * hidden,
            # eager: the input in fp32 in place of the input, and the normalised input in 16 bits
            norm_inputs=model.norms * (4.0 if eager else 2.0) * hidden,
            norm_outputs=float(model.norms) * saved * outputs
            + (model.norms * 2.0 * hidden if eager else 0.0),
            qkv=self._mixed_bytes(),
            core_attention=self._core_bytes(),
            projection_input=self._projection_bytes(),
            mlp_hidden=self._mlp_bytes(),
            dropout_masks=model.residuals * hidden if model.dropout else 0.0,
            loss=4.0 * self._logits + 4.0 * hidden if model.predicts else 0.0,
        )

    @property
    def _keeps(self) -> Keeps:
        return self.keeps or Keeps(gate_copies=c.STORED_GATE_COPIES[self.job.stack])

    @property
    def _attentions(self) -> int:
        return (self.model.mixer == "attention") + self.model.cross_attention

    def _mixed_bytes(self) -> float:
        """Queries, keys and values, latents (before and after their norm); or gate, input, B, C.

        With the inner tensors of adapters, wherever they are.
        """
        shapes, tokens = self.shapes, self.tokens
        inner = sum(n for part in shapes.parts for n, _ in part.adapters[::2])
        if self.model.mixer == "state-space":
            return 2.0 * (self._projected + inner) * tokens
        kept = 2.0 * inner * tokens
        kept += 2.0 * (shapes.query + shapes.key + shapes.value) * tokens * self._attentions
        if self._keeps.unrotated:
            kept += 2.0 * (shapes.query + shapes.key) * tokens
        return kept + (2.0 + self.matrix_bytes) * shapes.latent * self.own_tokens

    @property
    def _projected(self) -> int:
        """Channels that a state space is projected to."""
        shapes = self.shapes
        return 2 * shapes.inner + 2 * shapes.states + shapes.heads

    def _projection_bytes(self) -> float:
        """Inputs of projections; a state space's output before its gated norm as well."""
        shapes, saved = self.shapes, self.matrix_bytes
        # flash attention keeps its output itself, which the projection may want in fewer bytes
        each = 2.0 + saved % 2 if self._flash else float(saved)
        context = float(shapes.context * self._attentions * self.tokens)
        return context * each + (2.0 + saved) * shapes.inner * self.tokens

    def _mlp_bytes(self) -> float:
        shapes, saved, keeps = self.shapes, self.matrix_bytes, self._keeps
        gated = 2.0 * keeps.gate_copies * shapes.ffn if self.model.gated_mlp else 0.0
        dense = self.tokens * (2.0 * shapes.ffn_in + saved * shapes.ffn + gated)
        return dense if self.routed is None else dense + self.routed.stored_bytes(saved)

    @property
    def _logits(self) -> float:
        return float(self.tokens) * self.shapes.vocab

    @property
    def _flash(self) -> bool:
        return self.job.attention in FLASH

    @property
    def _scores(self) -> float:
        return float(self.shapes.heads * self.job.sequence_length * self.tokens)

    def _core_bytes(self) -> float:
        """Log-sum-exp of each row, or softmax (in fp32 too when eager) and what dropout adds."""
        if self._flash:
            return 4.0 * self.shapes.heads * self.tokens * self._attentions
        softmax = 6.0 if self.job.attention == "eager" else 2.0
        dropout = 3.0 if self.model.dropout else 0.0
        return self._scores * (softmax + dropout) * self._attentions

    def working_bytes(self) -> float:
        """Largest gradients alive inside one block's backward, beyond what the block stored.

        In the second half the gradients of both its hidden tensors, in the first half, when all of
        the second half is free again, those of queries, keys, values, context and scores; and the
        gradient of the block's output, gathered.
        """
        shapes, tokens = self.shapes, self.tokens
        mlp = 2.0 * tokens * (shapes.ffn_in + shapes.ffn)
        mlp += self.routed.working_bytes() if self.routed is not None else 0.0
        widths = shapes.query + shapes.key + shapes.value + shapes.context
        if self.model.mixer == "state-space":
            widths += self._projected + shapes.inner
        attention = 2.0 * tokens * widths
        if not self._flash and self._attentions:
            attention += (8.0 if self.job.attention == "eager" else 4.0) * self._scores
        later = attention - self.stored().mlp_half if shapes.has_mlp else attention
        loss = 2.0 * self._logits if self.model.predicts else 0.0
        return max(mlp, later, loss) + 2.0 * tokens * self.model.hidden
