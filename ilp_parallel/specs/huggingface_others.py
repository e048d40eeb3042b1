"""Shapes of Hugging Face families that are no plain decoders: encoders, hybrids, windows in turn.

Sources and the word ``approximated`` as in :mod:`ilp_parallel.specs.huggingface_families`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ilp_parallel.errors import InputError
from ilp_parallel.specs.block_lists import attention_blocks, with_blocks
from ilp_parallel.specs.documents import shown
from ilp_parallel.specs.huggingface_families import APPROXIMATED, cohere, gemma, given, llama
from ilp_parallel.specs.huggingface_fields import activation, flag, head_dim, integer, number
from ilp_parallel.specs.huggingface_layers import (
    block_count,
    block_types,
    windows,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ilp_parallel.specs.documents import Document

_WORDS = {
    "M": "mamba",
    "mamba": "mamba",
    "linear_attention": "mamba",
    "*": "attention",
    "attention": "attention",
    "full_attention": "attention",
    "-": "mlp",
    "mlp": "mlp",
    "E": "moe",
    "moe": "moe",
}
"""Kinds of blocks of a hybrid by the letters and words that configurations have for them."""


def _t5(data: Document) -> Document:
    """T5 and mT5: encoder and decoder, relative positions, heads of a width of their own."""
    hidden, heads = integer(data, ("d_model",)), integer(data, ("num_heads",))
    encoders = block_count(data, "num_layers")
    decoders = block_count({"num_decoder_layers": encoders} | given(data), "num_decoder_layers")
    words = data.get("feed_forward_proj", "relu")
    if not isinstance(words, str):
        raise InputError("WRONG_TYPE", f"feed_forward_proj={shown(words)}", "give a text")
    function = activation({"name": words.rpartition("-")[2]}, "name", "relu")
    ffn = integer(data, ("d_ff",))
    encoder: Document = {"name": "encoder", "ffn_hidden": ffn, "causal": False}
    decoder: Document = {"name": "decoder", "ffn_hidden": ffn, "cross_attention": True}
    fields: Document = {
        "hidden": hidden,
        "heads": heads,
        "kv_heads": heads,
        "head_dim": integer(data, ("d_kv",)),
        "vocab": integer(data, ("vocab_size",)),
        "gated_mlp": words.startswith("gated-"),
        "norm": "rmsnorm",
        "activation": function,
        "tied_embeddings": flag(data, "tie_word_embeddings", True),
        "dropout": number(data, "dropout_rate", 0.1) > 0,
        "position_buckets": integer(data, ("relative_attention_num_buckets",), 32),
    }
    return with_blocks(fields, [encoder] * encoders + [decoder] * decoders)


def _bert(data: Document) -> Document:
    """BERT and RoBERTa with their masked-language-model head."""
    if flag(data, "is_decoder", False):
        raise InputError(
            "DIMENSION_NOT_YET_SEARCHED", "is_decoder is true", "use BERT as an encoder"
        )
    fields = llama(data | {"num_key_value_heads": None, "head_dim": None})
    positions = integer(data, ("max_position_embeddings",))
    two_more = data.get("model_type") == "roberta"  # positions begin after the padding's index
    dropouts = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    return fields | {
        "gated_mlp": False,
        "norm": "layernorm",
        "activation": activation(data, "hidden_act", "gelu"),
        **dict.fromkeys(("qkv_bias", "projection_bias", "mlp_bias"), True),
        "learned_positions": positions,
        "token_types": integer(data, ("type_vocab_size",), 2),
        "embedding_norm": True,
        "output_transform": True,
        "tied_embeddings": flag(data, "tie_word_embeddings", True),
        "causal": False,
        "dropout": any(number(data, name, 0.1) > 0 for name in dropouts),
        "default_sequence": positions - 2 * two_more,
        APPROXIMATED: ("pooler and classifiers are left out",),
    }


def _nemotron(data: Document) -> Document:
    """Nemotron-4 and Minitron: LayerNorm, plain MLP with squared ReLU."""
    fields = llama({"hidden_act": "relu2"} | given(data))
    return fields | {
        "gated_mlp": False,
        "norm": "layernorm",
        APPROXIMATED: ("squared ReLU counted as ReLU",),
    }


def _gemma_in_turn(data: Document) -> Document:
    """Gemma 2 and 3 (text): windows and full attention in turn, norms on both sides."""
    third = data.get("model_type") == "gemma3_text"
    layers = block_count(data, "num_hidden_layers")
    fields = gemma(data) | {"kv_heads": integer(data, ("num_key_value_heads",))}
    ffn = integer(data, ("intermediate_size",))
    blocks = attention_blocks([None] * layers, ffn, windows(data, layers))
    return with_blocks(fields, blocks) | {
        "qk_norm": third,
        APPROXIMATED: ("two norms of a block, not four",),
    }


def _cohere2(data: Document) -> Document:
    """Command R7B and A: as Command R, windows and full attention in turn."""
    layers = block_count(data, "num_hidden_layers")
    ffn = integer(data, ("intermediate_size",))
    fields = cohere(data)
    return with_blocks(fields, attention_blocks([None] * layers, ffn, windows(data, layers)))


def _nemotron_h(data: Document) -> Document:
    """Nemotron-H and Nemotron 3 Nano: blocks of one part each, in the order of a pattern."""
    if integer(data, ("num_nextn_predict_layers",), 0) > 0 or data.get("moe_latent_size"):
        raise InputError(
            "DIMENSION_NOT_YET_SEARCHED",
            "experts in a latent space, or a prediction of several blocks",
            "use a Nemotron-H without num_nextn_predict_layers and moe_latent_size",
        )
    names = _hybrid_names(data)
    bias = flag(data, "attention_bias", False)
    fields: Document = {
        "hidden": integer(data, ("hidden_size",)),
        "heads": integer(data, ("num_attention_heads",)),
        "kv_heads": integer(data, ("num_key_value_heads",)),
        "head_dim": integer(data, ("head_dim", "attention_head_dim")),
        "vocab": integer(data, ("vocab_size",)),
        "gated_mlp": False,
        "norm": "rmsnorm",
        "activation": activation(data, "mlp_hidden_act", "relu2"),
        "qkv_bias": bias,
        "projection_bias": bias,
        "mlp_bias": flag(data, "mlp_bias", False),
        "tied_embeddings": flag(data, "tie_word_embeddings", False),
        "dropout": number(data, "attention_dropout", 0.0) > 0,
        APPROXIMATED: ("squared ReLU counted as ReLU",),
    }
    if "mamba" in names:
        fields["state_space"] = {
            "heads": integer(data, ("mamba_num_heads",)),
            "head_dim": integer(data, ("mamba_head_dim",)),
            "groups": integer(data, ("n_groups", "mamba_n_groups")),
            "state": integer(data, ("ssm_state_size",)),
            "kernel": integer(data, ("conv_kernel", "mamba_d_conv"), 4),
        }
    kinds: dict[str, Document] = {
        "mamba": {"name": "mamba", "ffn_hidden": 0, "mixer": "state-space"},
        "attention": {"name": "attention", "ffn_hidden": 0},
    }
    if "mlp" in names:
        ffn = integer(data, ("intermediate_size",))
        kinds["mlp"] = {"name": "mlp", "ffn_hidden": ffn, "mixer": "none"}
    if "moe" in names:
        experts: Document = {
            "count": integer(data, ("n_routed_experts",)),
            "active": integer(data, ("num_experts_per_tok",)),
            "ffn_hidden": integer(data, ("moe_intermediate_size",)),
            "shared_ffn_hidden": integer(data, ("moe_shared_expert_intermediate_size",), 0),
            "router_bias": True,
        }
        kinds["moe"] = {"name": "moe", "ffn_hidden": 0, "experts": experts, "mixer": "none"}
    return with_blocks(fields, [kinds[name] for name in names])


def _hybrid_names(data: Document) -> list[str]:
    """Kind of each block, from a pattern of letters or a list of words."""
    pattern = data.get("hybrid_override_pattern")
    for name in ("layers_block_type", "layer_types"):
        if pattern is None:
            pattern = data.get(name)
    if isinstance(pattern, str):
        pattern = [*pattern]
    if not isinstance(pattern, list) or not pattern:
        raise InputError(
            "MISSING_FIELD", "no hybrid_override_pattern", "give the order of the blocks"
        )
    block_count({"num_hidden_layers": len(pattern)}, "num_hidden_layers")
    stated = integer(data, ("num_hidden_layers",), len(pattern))
    if stated != len(pattern):
        message = f"the pattern has {len(pattern)} entries, num_hidden_layers={shown(stated)}"
        raise InputError("BLOCKS_DIFFER", message, "mend it")
    strange = [word for word in pattern if not isinstance(word, str) or word not in _WORDS]
    if strange:
        raise InputError(
            "UNKNOWN_BLOCK", f"the pattern has {shown(strange[0])}", f"use {', '.join(_WORDS)}"
        )
    return [_WORDS[word] for word in pattern]


def _bamba(data: Document) -> Document:
    """Bamba: a Llama block each, some with attention, the others with Mamba-2."""
    layers = block_count(data, "num_hidden_layers")
    indices = data.get("attn_layer_indices") or []
    if not isinstance(indices, list) or not all(type(index) is int for index in indices):
        message = f"attn_layer_indices={shown(indices)}"
        raise InputError("WRONG_TYPE", message, "give a list of whole numbers")
    ffn = integer(data, ("intermediate_size",))
    attending = [layer in indices for layer in range(layers)]
    return _with_mamba(data, llama(data), attending, {"ffn_hidden": ffn})


def _granite_hybrid(data: Document) -> Document:
    """Granite 4 hybrids: attention or Mamba-2, then experts beside a shared MLP, or that alone."""
    layers = block_count(data, "num_hidden_layers")
    types = block_types(data, "layer_types", layers) or block_types(
        data, "layers_block_type", layers
    )
    words = [_WORDS.get(word) for word in types or ["mamba"] * layers]
    if not {*words} <= {"attention", "mamba"}:
        raise InputError("UNKNOWN_BLOCK", "layer_types has other words", "use attention and mamba")
    shared = integer(data, ("shared_intermediate_size",))
    mlp: Document = {"ffn_hidden": shared}
    if integer(data, ("num_local_experts",), 0) > 0:
        experts: Document = {
            "count": integer(data, ("num_local_experts",)),
            "active": integer(data, ("num_experts_per_tok",)),
            "ffn_hidden": integer(data, ("intermediate_size",)),
            "shared_ffn_hidden": shared,
        }
        mlp = {"ffn_hidden": 0, "experts": experts}
    fields = llama({"intermediate_size": shared} | given(data))
    return _with_mamba(data, fields, [word == "attention" for word in words], mlp)


def _with_mamba(data: Document, fields: Document, attending: list[bool], mlp: Document) -> Document:
    """Blocks with attention or a Mamba-2 mixer (by ``attending``) and an MLP."""
    hidden, heads = integer(data, ("hidden_size",)), integer(data, ("mamba_n_heads",))
    width = data.get("mamba_d_head")
    if width in (None, "auto"):
        width = head_dim(integer(data, ("mamba_expand",), 2) * hidden, heads)
    if not all(attending):
        fields["state_space"] = {
            "heads": heads,
            "head_dim": integer({"mamba_d_head": width}, ("mamba_d_head",)),
            "groups": integer(data, ("mamba_n_groups",), 1),
            "state": integer(data, ("mamba_d_state",)),
            "kernel": integer(data, ("mamba_d_conv",), 4),
        }
    if flag(data, "mamba_proj_bias", False):
        fields[APPROXIMATED] = ("no biases of the Mamba projections",)
    attention: Document = {"name": "attention"}
    mamba: Document = {"name": "mamba", "mixer": "state-space"}
    return with_blocks(fields, [(attention if has else mamba) | mlp for has in attending])


OTHER_IMPORTERS: dict[str, Callable[[Document], Document]] = {
    "bamba": _bamba,
    "bert": _bert,
    "cohere2": _cohere2,
    "gemma2": _gemma_in_turn,
    "gemma3_text": _gemma_in_turn,
    "granitemoehybrid": _granite_hybrid,
    "mt5": _t5,
    "nemotron": _nemotron,
    "nemotron_h": _nemotron_h,
    "roberta": _bert,
    "t5": _t5,
}
"""Model types that are read here."""
