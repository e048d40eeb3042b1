"""A dense decoder model: the shapes that time and memory follow from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Norm = Literal["layernorm", "rmsnorm"]
Activation = Literal["gelu", "silu", "relu"]


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Shapes of a decoder-only transformer with identical blocks.

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

    @property
    def query_width(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_dim

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
    def layer_matrix_parameters(self) -> int:
        """Parameters of one block's matrices; tensor parallelism divides them."""
        attention = self.hidden * (2 * self.query_width + 2 * self.kv_width)
        return attention + (self.mlp_matrices_in + 1) * self.hidden * self.ffn_hidden

    @property
    def layer_vector_parameters(self) -> int:
        """Parameters of one block's biases and norms."""
        qkv = (self.query_width + 2 * self.kv_width) * self.qkv_bias
        projection = self.hidden * self.projection_bias
        mlp = (self.mlp_matrices_in * self.ffn_hidden + self.hidden) * self.mlp_bias
        return qkv + projection + mlp + 2 * self.norm_vectors * self.hidden

    @property
    def layer_parameters(self) -> int:
        """Parameters of one block."""
        return self.layer_matrix_parameters + self.layer_vector_parameters

    @property
    def embedding_parameters(self) -> int:
        """Token and position tables and the norm after them (vocabulary not padded)."""
        norm = self.norm_vectors * self.hidden * self.embedding_norm
        return (self.vocab + self.learned_positions) * self.hidden + norm

    @property
    def head_parameters(self) -> int:
        """Final norm and, where not tied, the output matrix."""
        output = 0 if self.tied_embeddings else self.vocab * self.hidden
        return self.norm_vectors * self.hidden + output

    @property
    def parameters(self) -> int:
        """All parameters, vocabulary not padded."""
        blocks = self.layers * self.layer_parameters
        return blocks + self.embedding_parameters + self.head_parameters
