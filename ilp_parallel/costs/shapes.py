"""What one rank of a tensor-parallel group holds of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ilp_parallel.costs.constants import VOCAB_MULTIPLE

if TYPE_CHECKING:
    from ilp_parallel.specs.model import ModelSpec


@dataclass(frozen=True, slots=True)
class RankShapes:
    """Widths (elements) and parameters of one rank; key heads are replicated when t is larger."""

    heads: int
    query: int
    kv: int
    ffn: int
    ffn_in: int  # output of the first MLP matmul: twice ffn when gated
    vocab: int
    layer_parameters: int
    layer_matrix_parameters: int
    embedding_parameters: int  # token and position tables, norm after them
    output_parameters: int  # output matrix where this rank needs one (tied copies included)
    final_norm_parameters: int


def rank_shapes(model: ModelSpec, tensor: int) -> RankShapes:
    """Shapes of one rank; widths that do not divide are rounded up."""
    heads = -(-model.heads // tensor)
    query = heads * model.head_dim
    kv = -(-model.kv_heads // tensor) * model.head_dim
    ffn = -(-model.ffn_hidden // tensor)
    ffn_in = model.mlp_matrices_in * ffn
    multiple = VOCAB_MULTIPLE * tensor
    vocab = -(-model.vocab // multiple) * VOCAB_MULTIPLE
    matrices = model.hidden * (2 * query + 2 * kv + ffn_in + ffn)
    split_biases = (query + 2 * kv) * model.qkv_bias + ffn_in * model.mlp_bias
    whole_vectors = model.hidden * (model.projection_bias + model.mlp_bias + 2 * model.norm_vectors)
    norm = model.norm_vectors * model.hidden
    positions = model.learned_positions * model.hidden
    return RankShapes(
        heads=heads,
        query=query,
        kv=kv,
        ffn=ffn,
        ffn_in=ffn_in,
        vocab=vocab,
        layer_parameters=matrices + split_biases + whole_vectors,
        layer_matrix_parameters=matrices,
        embedding_parameters=vocab * model.hidden + positions + norm * model.embedding_norm,
        output_parameters=vocab * model.hidden,
        final_norm_parameters=norm,
    )
