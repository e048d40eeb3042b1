"""What blocks of several kinds must satisfy: limits of their sizes, and rules across them."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from ilp_parallel.errors import InputError
from ilp_parallel.specs.documents import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ilp_parallel.specs.model import ModelSpec

Limits = tuple[int, int]

_WIDTH: Limits = (1, 1 << 22)
_RANK: Limits = (1, 1 << 20)
_HEAD: Limits = (1, 1 << 14)
_COUNT: Limits = (1, 1 << 16)
_WINDOW: Limits = (0, 1 << 30)
_KINDS: Limits = (0, 64)
"""Least and largest sizes of blocks (chosen)."""


def block_text(model: ModelSpec) -> str:
    """How many blocks of which kind, for instance ``3 dense + 58 moe + 1 mtp``."""
    if not model.kinds:
        return f"{model.layers} {'moe' if model.experts else 'dense'}"
    counts = [model.order.count(index) for index in range(len(model.kinds))]
    pairs = zip(counts, model.kinds, strict=True)
    return " + ".join(f"{count} {kind.name}" for count, kind in pairs)


def block_sizes(model: ModelSpec) -> Iterator[tuple[str, int, Limits]]:
    """Name, value and limits of every size that only some models have."""
    yield "number of kinds", len(model.kinds), _KINDS
    yield "position_buckets", model.position_buckets, (0, _RANK[1])
    yield "window", model.window, _WINDOW
    for kind in model.kinds:
        yield f"ffn_hidden of {shown(kind.name)}", kind.ffn_hidden, (0, _WIDTH[1])
        yield f"window of {shown(kind.name)}", kind.window, _WINDOW
    for experts in model.all_experts:
        yield "experts.count", experts.count, _COUNT
        yield "experts.active", experts.active, _COUNT
        yield "experts.ffn_hidden", experts.ffn_hidden, _WIDTH
        yield "experts.shared_ffn_hidden", experts.shared_ffn_hidden, (0, _WIDTH[1])
    latent, space = model.latent, model.state_space
    if latent is not None:
        yield "latent.query_rank", latent.query_rank, (0, _RANK[1])
        yield "latent.kv_rank", latent.kv_rank, _RANK
        yield "latent.rope_head_dim", latent.rope_head_dim, (0, _HEAD[1])
        yield "latent.value_head_dim", latent.value_head_dim, _HEAD
    if space is not None:
        yield "state_space.heads", space.heads, _COUNT
        yield "state_space.head_dim", space.head_dim, _HEAD
        yield "state_space.groups", space.groups, _COUNT
        yield "state_space.state", space.state, _RANK
        yield "state_space.kernel", space.kernel, _HEAD


def disagreement(model: ModelSpec) -> InputError | None:
    """What contradicts itself in the blocks of a model whose sizes are in range, if anything.

    The error has code KINDS_AND_ORDER_DISAGREE, KIND_TWICE, KIND_UNUSED, EXPERTS_OUTSIDE_KINDS,
    MORE_ACTIVE_THAN_EXPERTS, SHARED_GATE_WITHOUT_EXPERTS, EMPTY_BLOCK, LATENT_UNUSED,
    LATENT_HEADS_DIFFER, STATE_SPACE_MISSING, STATE_SPACE_UNUSED, HEADS_NOT_DIVISIBLE_BY_GROUPS,
    WINDOW_WITHOUT_ATTENTION, DECODER_WITHOUT_ENCODER or PREDICTION_NOT_LAST.
    """
    wrong = _of_order(model)
    if wrong is not None:  # the views below need an order that fits
        return wrong
    for rule in (_of_experts, _of_mixers, _of_views, _of_places):
        wrong = rule(model)
        if wrong is not None:
            return wrong
    return None


def _of_order(model: ModelSpec) -> InputError | None:
    """Every block has one of the kinds, every kind a block and a name of its own."""
    kinds, order = model.kinds, model.order
    if bool(kinds) != bool(order) or (kinds and len(order) != model.layers):
        return InputError(
            "KINDS_AND_ORDER_DISAGREE",
            f"{len(kinds)} kinds, an order of {len(order)}, {model.layers} layers",
            "give one entry of order for each layer, or neither kinds nor order",
        )
    strange = [index for index in order if not 0 <= index < len(kinds)]
    if strange:
        return InputError(
            "KINDS_AND_ORDER_DISAGREE",
            f"order has {shown(strange[0])}, there are {len(kinds)} kinds",
            f"use 0 to {len(kinds) - 1}",
        )
    names = [kind.name for kind in kinds]
    for index, name in enumerate(names):
        if not 0 < len(name) <= 40 or not name.isprintable():
            return InputError(
                "BAD_NAME", f"name {shown(name)} of a kind", "use 1 to 40 printable characters"
            )
        if name in names[:index]:
            return InputError("KIND_TWICE", f"two kinds {shown(name)}", "rename one")
        if index not in order:
            return InputError("KIND_UNUSED", f"no block is {shown(name)}", "remove the kind")
    return None


def _of_experts(model: ModelSpec) -> InputError | None:
    """No more active experts than there are; a gate only where there is something to gate."""
    if model.kinds and model.experts is not None:
        return InputError(
            "EXPERTS_OUTSIDE_KINDS",
            "experts of the model and kinds of blocks",
            "give each kind its experts",
        )
    for experts in model.all_experts:
        if experts.active > experts.count:
            return InputError(
                "MORE_ACTIVE_THAN_EXPERTS",
                f"active={experts.active}, count={experts.count}",
                f"use at most {experts.count}",
            )
        if experts.shared_gate and not experts.shared_ffn_hidden:
            return InputError(
                "SHARED_GATE_WITHOUT_EXPERTS", "shared_gate without shared_ffn_hidden", "remove it"
            )
    return None


def _of_mixers(model: ModelSpec) -> InputError | None:
    """What mixers need is there, and nothing that no block uses."""
    mixers = {model.of_kind(index).mixer for index in range(model.kind_count)}
    latent, space = model.latent, model.state_space
    if latent is not None and "attention" not in mixers:
        return InputError("LATENT_UNUSED", "no block has attention", "remove latent")
    if latent is not None and model.kv_heads != model.heads:
        return InputError(
            "LATENT_HEADS_DIFFER",
            f"heads={model.heads}, kv_heads={model.kv_heads}",
            "latent attention has as many key heads as heads",
        )
    if space is None and "state-space" in mixers:
        return InputError("STATE_SPACE_MISSING", "a block has a state space", "add state_space")
    if space is not None and "state-space" not in mixers:
        return InputError("STATE_SPACE_UNUSED", "no block has it as mixer", "remove state_space")
    if space is not None and space.heads % space.groups:
        return InputError(
            "HEADS_NOT_DIVISIBLE_BY_GROUPS",
            f"state_space.heads={space.heads}, groups={space.groups}",
            "use groups that divide the heads",
        )
    return None


def _of_views(model: ModelSpec) -> InputError | None:
    """No block is empty; only attention has a window."""
    for index in range(model.kind_count):
        view = model.of_kind(index)
        name = shown(model.kinds[index].name) if model.kinds else "a block"
        if view.mixer == "none" and not view.ffn_hidden and view.experts is None:
            return InputError(
                "EMPTY_BLOCK", f"{name} has neither mixer nor MLP", "give it one of them"
            )
        if view.window and view.mixer != "attention":
            return InputError(
                "WINDOW_WITHOUT_ATTENTION", f"{name} has a window", "remove the window"
            )
    return None


def _of_places(model: ModelSpec) -> InputError | None:
    """Cross-attention comes after the blocks it looks at, prediction after all others."""
    views = [model.of_kind(index) for index in range(model.kind_count)]
    runs = [views[index] for index, _ in groupby(model.layer_kinds)]
    crossing = [view.cross_attention for view in runs]
    if crossing[0] or crossing != sorted(crossing):
        return InputError(
            "DECODER_WITHOUT_ENCODER",
            "blocks with cross-attention do not follow all blocks without",
            "put the encoder's blocks first",
        )
    predicting = [view.predicts for view in runs]
    if predicting[0] or predicting != sorted(predicting):
        return InputError(
            "PREDICTION_NOT_LAST",
            "a prediction block comes before another block",
            "put prediction blocks last",
        )
    return None
