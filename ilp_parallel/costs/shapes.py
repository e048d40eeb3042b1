"""What one rank of a tensor-parallel group holds of a block, and of the two ends of a model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from ilp_parallel.costs.constants import VOCAB_MULTIPLE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ilp_parallel.specs.job import LoraTarget
    from ilp_parallel.specs.model import ModelSpec

Matrix = tuple[int, int]
"""Columns and inner dimension of a weight matrix on one rank."""


@dataclass(frozen=True, slots=True)
class Part:
    """Matrices of one tensor-parallel region of a block: split by columns, then by rows.

    ``gathered`` elements per token enter the region on every rank, one hidden-size tensor leaves.
    """

    columns: tuple[Matrix, ...]
    row: Matrix | None  # None: the outputs of the columns are put together
    gathered: int
    own: tuple[Matrix, ...] = ()  # whole on every rank, for the tokens that are its own
    adapters: tuple[Matrix, ...] = ()  # low-rank matrices beside the others

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """All but adapters in the order they run."""
        return (*self.own, *self.columns, *((self.row,) if self.row else ()))

    @property
    def parameters(self) -> int:
        """Elements of all matrices but adapters."""
        return elements(self.matrices)


def elements(matrices: Iterable[Matrix]) -> int:
    """Elements of some matrices together."""
    return sum(n * k for n, k in matrices)


@dataclass(frozen=True, slots=True)
class Lora:
    """Adapters of low rank in place of all weights (Hu et al. 2021, arXiv 2106.09685).

    Beside a matrix of ``n`` columns stand one from its input to ``rank`` and one from there to
    ``n``. On a rank of a tensor-parallel group each has the sizes of the rank's part of the matrix.
    """

    rank: int
    targets: tuple[LoraTarget, ...]

    def _beside(self, target: LoraTarget, matrices: Iterable[Matrix]) -> tuple[Matrix, ...]:
        """Adapters of matrices that are, or are not, a target."""
        if target not in self.targets:
            return ()
        pairs = (((self.rank, k), (n, self.rank)) for n, k in matrices)
        return tuple(matrix for pair in pairs for matrix in pair)

    def adapted(self, part: Part | None, targets: tuple[LoraTarget, LoraTarget]) -> Part | None:
        """A part with adapters beside its column-parallel and its row-parallel matrices."""
        if part is None:
            return None
        row = (part.row,) if part.row else ()
        first, second = (*part.own, *part.columns), row
        adapters = self._beside(targets[0], first) + self._beside(targets[1], second)
        return replace(part, adapters=adapters)


_MIXING: tuple[LoraTarget, LoraTarget] = ("linear_qkv", "linear_proj")
_MLP: tuple[LoraTarget, LoraTarget] = ("linear_fc1", "linear_fc2")
"""Names of the column-parallel and the row-parallel matrices of a part."""


class Weights(NamedTuple):
    """Parameters of one rank."""

    trained: int
    trained_matrices: int  # of them elements of matrices
    frozen: int = 0


@dataclass(frozen=True, slots=True)
class RankShapes:
    """Widths (elements) and parameters of one rank; key heads are replicated when t is larger.

    Widths of attention are 0 in a block without it, widths of experts in a block without those.
    """

    heads: int
    query: int  # of all query heads of the rank
    key: int  # of its key heads; latent attention expands a key for every query head
    value: int
    context: int  # of the outputs of its heads
    latent: int  # of the low-rank latents, which every rank holds
    inner: int  # of the channels of a state space
    states: int  # of B (and of C) of a state space
    ffn: int  # of the dense MLP, or of the shared experts
    ffn_in: int  # output of its first matmul: twice ffn when gated
    experts: int  # routed experts of the rank
    expert_ffn: int  # of each of them
    expert_ffn_in: int
    vocab: int
    joined: Part | None  # of a prediction block: two inputs become one
    mixer: Part | None
    crossing: Part | None  # attention over the encoder's output
    mlp: Part | None
    expert_mlp: Part | None  # of one routed expert
    own: Weights  # of a block, routed experts apart
    routed: Weights  # of the routed experts

    @property
    def layer_parameters(self) -> int:
        """Parameters of a block, routed experts apart."""
        return self.own.trained + self.own.frozen

    @property
    def routed_parameters(self) -> int:
        """Parameters of the routed experts."""
        return self.routed.trained + self.routed.frozen

    @property
    def has_mlp(self) -> bool:
        """Whether the block ends with an MLP or experts."""
        return self.mlp is not None or self.experts > 0

    @property
    def parts(self) -> tuple[Part, ...]:
        """The tensor-parallel regions in the order they run."""
        found = (self.joined, self.mixer, self.crossing, self.mlp)
        return tuple(part for part in found if part is not None)


@dataclass(frozen=True, slots=True)
class EndShapes:
    """Parameters of one rank at the two ends of a model."""

    embedding_parameters: int  # token, position and type tables, norm after them
    output_parameters: int  # output matrix where this rank needs one (tied copies included)
    final_norm_parameters: int  # and what transforms the input of the output matrix


def end_shapes(model: ModelSpec, tensor: int) -> EndShapes:
    """Shapes of one rank at the ends of the whole model."""
    norm = model.norm_vectors * model.hidden
    tables = (model.learned_positions + model.token_types) * model.hidden
    stacks = 1 + model.encoder_decoder
    relative = model.position_buckets * _share(model.heads, tensor) * stacks
    vocab = vocab_share(model, tensor)
    transform = ((model.hidden + 1) * model.hidden + vocab) * model.output_transform
    return EndShapes(
        embedding_parameters=vocab * model.hidden + tables + relative + norm * model.embedding_norm,
        output_parameters=vocab * model.hidden,
        final_norm_parameters=norm * stacks + transform,
    )


def rank_shapes(
    model: ModelSpec,
    tensor: int,
    expert: int = 1,
    expert_tensor: int = 1,
    lora: Lora | None = None,
) -> RankShapes:
    """Shapes of one rank of a model whose blocks are alike; widths are rounded up.

    Routed experts are split over ``expert`` ranks and each of them over ``expert_tensor`` ranks.
    With ``lora`` all is frozen but its adapters.
    """
    mixer = _mixer(model, tensor)
    routed = model.experts
    ffn = _share(model.ffn_hidden if routed is None else routed.shared_ffn_hidden, tensor)
    experts = _share(routed.count, expert) if routed else 0
    expert_ffn = _share(routed.ffn_hidden, expert_tensor) if routed else 0
    expert_mlp = _mlp(model, expert_ffn)
    joined, crossing, mlp = _joined(model, tensor), _crossing(model, mixer), _mlp(model, ffn)
    mixing = mixer.part
    if lora is not None:
        mixing, crossing = lora.adapted(mixing, _MIXING), lora.adapted(crossing, _MIXING)
        mlp, expert_mlp = lora.adapted(mlp, _MLP), lora.adapted(expert_mlp, _MLP)
    ffn_in, expert_ffn_in = model.mlp_matrices_in * ffn, model.mlp_matrices_in * expert_ffn
    own_vectors = _vectors(model, mixer, ffn_in)
    router = model.hidden * (routed.count + routed.shared_gate) if routed else 0
    expert_biases = (expert_ffn_in + model.hidden) * model.mlp_bias if routed else 0
    return RankShapes(
        heads=mixer.heads,
        query=mixer.query,
        key=mixer.key,
        value=mixer.value,
        context=mixer.context,
        latent=mixer.latent,
        inner=mixer.inner,
        states=mixer.states,
        ffn=ffn,
        ffn_in=ffn_in,
        experts=experts,
        expert_ffn=expert_ffn,
        expert_ffn_in=expert_ffn_in,
        vocab=vocab_share(model, tensor),
        joined=joined,
        mixer=mixing,
        crossing=crossing,
        mlp=mlp,
        expert_mlp=expert_mlp,
        own=_weights((joined, mixing, crossing, mlp), router, own_vectors, 1, lora),
        routed=_weights((expert_mlp,), 0, expert_biases, experts, lora),
    )


def _weights(
    parts: Iterable[Part | None], router: int, vectors: int, copies: int, lora: Lora | None
) -> Weights:
    """What is trained and what is frozen of so many copies of some parts."""
    found = [part for part in parts if part is not None]
    matrices = copies * (router + sum(part.parameters for part in found))
    everything = matrices + copies * vectors
    if lora is None:
        return Weights(everything, matrices)
    adapters = copies * sum(elements(part.adapters) for part in found)
    return Weights(adapters, adapters, everything)


@dataclass(frozen=True, slots=True)
class _Mixer:
    """The part of a rank's shapes that mixes tokens; names as in :class:`RankShapes`."""

    heads: int = 0
    query: int = 0
    key: int = 0
    value: int = 0
    context: int = 0
    latent: int = 0
    inner: int = 0
    states: int = 0
    part: Part | None = None


def _share(whole: int, ranks: int) -> int:
    return -(-whole // ranks)


def vocab_share(model: ModelSpec, tensor: int) -> int:
    """Rows of the padded vocabulary on one rank."""
    return _share(model.vocab, VOCAB_MULTIPLE * tensor) * VOCAB_MULTIPLE


def _mixer(model: ModelSpec, tensor: int) -> _Mixer:
    if model.mixer == "none":
        return _Mixer()
    if model.mixer == "state-space":
        return _state_space(model, tensor)
    if model.latent is not None:
        return _latent_attention(model, tensor)
    hidden, heads = model.hidden, _share(model.heads, tensor)
    query = heads * model.head_dim
    kv = _share(model.kv_heads, tensor) * model.head_dim
    part = Part(((query + 2 * kv, hidden),), (hidden, query), hidden)
    return _Mixer(heads, query, kv, kv, query, part=part)


def _state_space(model: ModelSpec, tensor: int) -> _Mixer:
    """One matrix makes gate, input, B, C and step sizes of all heads (Mamba-2)."""
    space = model.state_space
    if space is None:
        raise AssertionError("check_model lets no such model pass")
    heads = _share(space.heads, tensor)
    inner, states = heads * space.head_dim, _share(space.groups, tensor) * space.state
    projected = 2 * inner + 2 * states + heads
    part = Part(((projected, model.hidden),), (model.hidden, inner), model.hidden)
    return _Mixer(heads=heads, inner=inner, states=states, part=part)


def _latent_attention(model: ModelSpec, tensor: int) -> _Mixer:
    """Every rank makes the latents of its own tokens; latents are gathered, not hidden tensors.

    Megatron-Core, ``megatron/core/transformer/multi_latent_attention.py``: down-projections are
    whole on every rank.
    """
    a, hidden = model.latent, model.hidden
    if a is None:
        raise AssertionError("the caller looked")
    heads = _share(model.heads, tensor)
    query, value = heads * (model.head_dim + a.rope_head_dim), heads * a.value_head_dim
    own: tuple[Matrix, ...] = ((a.query_rank, hidden),) if a.query_rank else ()
    latent = a.query_rank + a.kv_rank + a.rope_head_dim
    part = Part(
        columns=((query, a.query_rank or hidden), (heads * model.head_dim + value, a.kv_rank)),
        row=(hidden, value),
        gathered=latent if a.query_rank else hidden + latent,
        own=(*own, (a.kv_rank + a.rope_head_dim, hidden)),
    )
    return _Mixer(heads, query, query, value, value, latent=latent, part=part)


def _joined(model: ModelSpec, tensor: int) -> Part | None:
    """Hidden tensor and embedding of the next token, side by side, become one hidden tensor."""
    if not model.predicts:
        return None
    hidden = model.hidden
    return Part(((_share(hidden, tensor), 2 * hidden),), None, 2 * hidden)


def _crossing(model: ModelSpec, mixer: _Mixer) -> Part | None:
    """Queries of the block's own tokens, keys and values of the encoder's output."""
    if not model.cross_attention:
        return None
    hidden = model.hidden
    columns = ((mixer.query, hidden), (mixer.key + mixer.value, hidden))
    return Part(columns, (hidden, mixer.context), 2 * hidden)


def _mlp(model: ModelSpec, ffn: int) -> Part | None:
    hidden = model.hidden
    return Part(((model.mlp_matrices_in * ffn, hidden),), (hidden, ffn), hidden) if ffn else None


def _vectors(model: ModelSpec, mixer: _Mixer, ffn_in: int) -> int:
    """Biases, norms and other vectors of one block on one rank."""
    hidden = model.hidden
    count = model.norms * model.norm_vectors * hidden
    if model.experts is None and model.ffn_hidden:
        count += (ffn_in + hidden) * model.mlp_bias
    elif model.experts is not None:
        count += model.experts.count * model.experts.router_bias
    if model.mixer == "state-space" and model.state_space is not None:
        channels = mixer.inner + 2 * mixer.states
        count += channels * (model.state_space.kernel + 1) + 3 * mixer.heads + mixer.inner
    if model.mixer == "attention":
        count += (mixer.query + mixer.key + mixer.value) * model.qkv_bias
        count += hidden * model.projection_bias + 2 * model.head_dim * model.qk_norm
        count += mixer.heads * model.attention_sinks
        count += model.latent.query_rank + model.latent.kv_rank if model.latent else 0
    return count
