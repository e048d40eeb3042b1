"""A model: the shapes that time and memory follow from, and the kinds of its blocks in order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Norm = Literal["layernorm", "rmsnorm"]
Activation = Literal["gelu", "silu", "relu"]
Mixer = Literal["attention", "state-space", "none"]


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts in place of a block's MLP. Widths are of one tensor's hidden side."""

    count: int  # routed experts
    active: int  # routed experts that each token passes
    ffn_hidden: int  # of one routed expert
    shared_ffn_hidden: int = 0  # of all shared experts together, which every token passes
    shared_gate: bool = False  # a learned sigmoid gate on the shared experts
    router_bias: bool = False  # one value per expert added to the router's scores


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Attention through low-rank latents (DeepSeek-AI 2024, arXiv 2405.04434, section 2.1).

    ``head_dim`` of the model is the part of a query or key head without rotation.
    """

    query_rank: int  # 0: queries are projected directly
    kv_rank: int
    rope_head_dim: int  # rotated part of a query head; one such key serves all heads
    value_head_dim: int


@dataclass(frozen=True, slots=True)
class StateSpace:
    """A Mamba-2 mixer (Dao and Gu 2024, arXiv 2405.21060)."""

    heads: int
    head_dim: int
    groups: int  # heads of one group share B and C
    state: int  # size of the recurrent state per channel
    kernel: int  # of the causal convolution


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of block where a model has several; complete, nothing is taken from the model."""

    name: str  # for instance dense, moe, sliding, encoder, decoder, mamba, mtp
    ffn_hidden: int  # width of the dense MLP; 0: none
    experts: Experts | None = None  # in place of the dense MLP
    mixer: Mixer = "attention"
    window: int = 0  # tokens a query sees; 0: all
    causal: bool = True
    cross_attention: bool = False  # a second attention, over the encoder's output
    predicts: bool = False  # a multi-token-prediction block: joins two inputs, has a loss


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Shapes of a transformer (or a hybrid).

    Without ``kinds`` all blocks are equal and have ``ffn_hidden`` or ``experts``. With them block
    ``l`` is of kind ``order[l]``; :meth:`of_kind` gives the model with the blocks of one kind only.
    ``sources`` cites where the shapes were read; ``published_parameters`` is what the source
    states, for checking only.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn_hidden: int
    vocab: int
    gated_mlp: bool
    norm: Norm
    activation: Activation
    qkv_bias: bool
    projection_bias: bool  # attention output
    mlp_bias: bool
    learned_positions: int  # rows of the learned position table; 0: rotary, ALiBi or none
    embedding_norm: bool  # a norm right after the embedding (bloom)
    tied_embeddings: bool
    dropout: bool
    sources: tuple[str, ...] = ()
    published_parameters: float | None = None
    default_cluster: str | None = None  # cluster notation used when none is given
    default_batch: int | None = None  # sequences
    default_sequence: int | None = None  # tokens
    experts: Experts | None = None  # in place of the MLP
    latent: LatentAttention | None = None  # in place of plain attention
    state_space: StateSpace | None = None  # what a block with this mixer has
    qk_norm: bool = False  # norms over each query and key head
    attention_sinks: bool = False  # one learned score per head
    mixer: Mixer = "attention"
    window: int = 0  # tokens a query sees; 0: all
    causal: bool = True
    cross_attention: bool = False
    predicts: bool = False
    position_buckets: int = 0  # rows of a learned table of relative positions, one column a head
    token_types: int = 0  # rows of a learned table of token types (bert)
    output_transform: bool = False  # a dense layer before the output matrix, whose bias counts too
    kinds: tuple[Kind, ...] = ()
    order: tuple[int, ...] = ()  # [layers] index of each block's kind; empty without kinds

    @property
    def layer_kinds(self) -> tuple[int, ...]:
        """[layers] index of each block's kind."""
        return self.order or (0,) * self.layers

    @property
    def kind_count(self) -> int:
        """Number of kinds of blocks."""
        return max(len(self.kinds), 1)

    def of_kind(self, index: int) -> ModelSpec:
        """The model with blocks of one kind only, as many as there are of it."""
        if not self.kinds:
            return self
        kind = self.kinds[index]
        return replace(
            self,
            layers=self.order.count(index),
            ffn_hidden=kind.ffn_hidden,
            experts=kind.experts,
            mixer=kind.mixer,
            window=kind.window,
            causal=kind.causal,
            cross_attention=kind.cross_attention,
            predicts=kind.predicts,
            kinds=(),
            order=(),
        )

    @property
    def views(self) -> tuple[ModelSpec, ...]:
        """The model with blocks of each kind only."""
        return tuple(self.of_kind(index) for index in range(self.kind_count))

    @property
    def has_experts(self) -> bool:
        """Whether any block has a mixture of experts."""
        return bool(self.all_experts)

    @property
    def all_experts(self) -> tuple[Experts, ...]:
        """The mixture of experts of every kind of block that has one."""
        found = [self.experts, *(kind.experts for kind in self.kinds)]
        return tuple(dict.fromkeys(e for e in found if e is not None))

    @property
    def split_widths(self) -> tuple[int, ...]:
        """Widths of dense MLPs and shared experts, which tensor parallelism divides."""
        dense = [kind.ffn_hidden for kind in self.kinds if kind.experts is None]
        if not self.kinds and self.experts is None:
            dense = [self.ffn_hidden]
        return tuple(dense + [e.shared_ffn_hidden for e in self.all_experts])

    @property
    def query_width(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_dim

    @property
    def score_width(self) -> int:
        """Width of all query heads as they meet their keys, rotated parts included."""
        rotated = self.latent.rope_head_dim if self.latent else 0
        return self.heads * (self.head_dim + rotated)

    @property
    def context_width(self) -> int:
        """Width of the outputs of all heads together."""
        return self.heads * (self.latent.value_head_dim if self.latent else self.head_dim)

    @property
    def kv_width(self) -> int:
        """Width of all key heads (or value heads) together."""
        return self.kv_heads * self.head_dim

    @property
    def mlp_matrices_in(self) -> int:
        """Matrices from hidden to ffn_hidden: two when gated."""
        return 2 if self.gated_mlp else 1

    @property
    def norm_vectors(self) -> int:
        """Parameter vectors of one norm: weight, and bias for layernorm."""
        return 2 if self.norm == "layernorm" else 1

    @property
    def norms(self) -> int:
        """Hidden-size norms of one block: one before each of its parts.

        A prediction block has one for each of its two inputs and one before the output matrix
        (Megatron-LM, ``megatron/core/transformer/multi_token_prediction.py``).
        """
        return self.residuals + 3 * self.predicts

    @property
    def residuals(self) -> int:
        """Parts of one block whose output is added to their input."""
        mlp = bool(self.ffn_hidden or self.experts)
        return (self.mixer != "none") + self.cross_attention + mlp

    @property
    def rotates(self) -> bool:
        """Whether queries and keys of a block are rotated by their position."""
        positions = self.learned_positions or self.position_buckets
        return self.mixer == "attention" and not positions

    @property
    def attention_matrix_parameters(self) -> int:
        """Matrices of one attention (or state-space mixer); tensor parallelism divides them."""
        if self.mixer == "none":
            return 0
        if self.mixer == "state-space" and self.state_space is not None:
            s = self.state_space
            inner = s.heads * s.head_dim
            return self.hidden * (3 * inner + 2 * s.groups * s.state + s.heads)
        if self.latent is None:
            return self.hidden * (2 * self.query_width + 2 * self.kv_width)
        a = self.latent
        query = self.heads * (self.head_dim + a.rope_head_dim)
        queries = a.query_rank * (self.hidden + query) if a.query_rank else self.hidden * query
        keys = self.hidden * (a.kv_rank + a.rope_head_dim)
        keys += a.kv_rank * self.heads * (self.head_dim + a.value_head_dim)
        return queries + keys + self.heads * a.value_head_dim * self.hidden

    @property
    def dense_mlp_parameters(self) -> int:
        """Matrices of the dense MLP, or of the shared experts and the router."""
        per_width = (self.mlp_matrices_in + 1) * self.hidden
        if self.experts is None:
            return per_width * self.ffn_hidden
        e = self.experts
        return per_width * e.shared_ffn_hidden + self.hidden * (e.count + e.shared_gate)

    @property
    def expert_parameters(self) -> int:
        """Parameters of one routed expert, biases included; 0 without experts."""
        if self.experts is None:
            return 0
        biases = (self.mlp_matrices_in * self.experts.ffn_hidden + self.hidden) * self.mlp_bias
        return self.expert_matrix_parameters + biases

    @property
    def expert_matrix_parameters(self) -> int:
        """Parameters of one routed expert's matrices; 0 without experts."""
        width = self.experts.ffn_hidden if self.experts else 0
        return (self.mlp_matrices_in + 1) * self.hidden * width

    @property
    def routed_parameters(self) -> int:
        """Parameters of all routed experts of one block."""
        return self.expert_parameters * (self.experts.count if self.experts else 0)

    @property
    def layer_matrix_parameters(self) -> int:
        """Parameters of one block's matrices, routed experts apart."""
        attentions = self.attention_matrix_parameters
        if self.cross_attention:
            attentions += self.hidden * (2 * self.query_width + 2 * self.kv_width)
        joined = 2 * self.hidden * self.hidden * self.predicts
        return attentions + self.dense_mlp_parameters + joined

    @property
    def active_matrix_parameters(self) -> int:
        """Parameters of all matrices that a token passes: one pass for each loss there is."""
        blocks = sum(view.layers * view.active_layer_matrix_parameters for view in self.views)
        losses = 1 + sum(view.layers for view in self.views if view.predicts)
        return blocks + losses * self.vocab * self.hidden

    @property
    def active_layer_matrix_parameters(self) -> int:
        """Parameters of one block's matrices that a token passes."""
        active = self.experts.active if self.experts else 0
        return self.layer_matrix_parameters + self.expert_matrix_parameters * active

    @property
    def layer_vector_parameters(self) -> int:
        """Parameters of one block's biases, norms and other vectors, routed experts apart."""
        mlp_width = 0 if self.experts else self.ffn_hidden
        mlp = (self.mlp_matrices_in * mlp_width + self.hidden * bool(mlp_width)) * self.mlp_bias
        router = self.experts.count * self.experts.router_bias if self.experts else 0
        return self._mixer_vectors + mlp + router + self.norms * self.norm_vectors * self.hidden

    @property
    def _mixer_vectors(self) -> int:
        """Biases, head norms, sinks, latent norms; the vectors and convolution of a state space."""
        if self.mixer == "none":
            return 0
        if self.mixer == "state-space" and self.state_space is not None:
            s = self.state_space
            inner = s.heads * s.head_dim
            channels = inner + 2 * s.groups * s.state
            return channels * (s.kernel + 1) + 3 * s.heads + inner
        qkv = (self.query_width + 2 * self.kv_width) * self.qkv_bias
        projection = self.hidden * self.projection_bias
        norms = 2 * self.head_dim * self.qk_norm
        latent = self.latent.query_rank + self.latent.kv_rank if self.latent else 0
        return qkv + projection + norms + latent + self.heads * self.attention_sinks

    @property
    def layer_parameters(self) -> int:
        """Parameters of one block."""
        return self.layer_matrix_parameters + self.layer_vector_parameters + self.routed_parameters

    @property
    def active_layer_parameters(self) -> int:
        """Parameters of one block that a token passes."""
        routed = self.expert_parameters * (self.experts.active if self.experts else 0)
        return self.layer_matrix_parameters + self.layer_vector_parameters + routed

    @property
    def embedding_parameters(self) -> int:
        """Token, position and type tables and the norm after them (vocabulary not padded)."""
        norm = self.norm_vectors * self.hidden * self.embedding_norm
        return (self.vocab + self.learned_positions + self.token_types) * self.hidden + norm

    @property
    def head_parameters(self) -> int:
        """Final norm, what transforms its input and, where not tied, the output matrix."""
        output = 0 if self.tied_embeddings else self.vocab * self.hidden
        transform = (self.hidden + 1) * self.hidden + self.vocab
        return self.norm_vectors * self.hidden + output + transform * self.output_transform

    @property
    def parameters(self) -> int:
        """All parameters, vocabulary not padded."""
        return self._blocks("layer_parameters") + self._ends

    @property
    def active_parameters(self) -> int:
        """Parameters that a token passes."""
        return self._blocks("active_layer_parameters") + self._ends

    @property
    def main_parameters(self) -> int:
        """Parameters without prediction blocks, which makers leave out of the size they publish."""
        return self._blocks("layer_parameters", main=True) + self._ends

    @property
    def main_active_parameters(self) -> int:
        """Parameters that a token passes, prediction blocks left out."""
        return self._blocks("active_layer_parameters", main=True) + self._ends

    @property
    def encoder_decoder(self) -> bool:
        """Whether blocks look at the output of others, which have a final norm of their own."""
        return self.cross_attention or any(kind.cross_attention for kind in self.kinds)

    @property
    def _ends(self) -> int:
        """Embedding and head; relative positions of each stack; the encoder's final norm."""
        positions = self.position_buckets * self.heads * (1 + self.encoder_decoder)
        norm = self.norm_vectors * self.hidden * self.encoder_decoder
        return self.embedding_parameters + self.head_parameters + positions + norm

    def _blocks(
        self, what: Literal["layer_parameters", "active_layer_parameters"], main: bool = False
    ) -> int:
        """Sum over all blocks, or over those that predict no further tokens."""
        kept = [view for view in self.views if not (main and view.predicts)]
        return sum(view.layers * getattr(view, what) for view in kept)
