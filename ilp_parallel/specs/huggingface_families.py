"""Shapes of the model families of Hugging Face transformers that are dense decoders.

Fields, aliases and defaults: ``models/*/configuration_*.py`` of transformers 5.24; shapes of the
modules: ``models/*/modeling_*.py``. What a ``ModelSpec`` has no word for and what changes hardly
anything (a third norm, a bias of the output matrix) is named in the model's ``sources`` with the
word ``approximated``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ilp_parallel.errors import InputError
from ilp_parallel.specs.huggingface_fields import activation, flag, head_dim, integer, number

if TYPE_CHECKING:
    from collections.abc import Callable

    from ilp_parallel.specs.documents import Document


APPROXIMATED = "approximated"
"""Entry of the fields that says what was not taken over; no field of a model."""


def _gpt2(data: Document) -> Document:
    """GPT-2: learned positions, biases everywhere, tied output."""
    hidden = integer(data, ("n_embd", "hidden_size"))
    positions = integer(data, ("n_positions", "max_position_embeddings"))
    dropouts = ("attn_pdrop", "resid_pdrop", "embd_pdrop")
    return _ungated(data, hidden) | {
        "ffn_hidden": integer(data, ("n_inner",), 4 * hidden),
        "activation": activation(data, "activation_function", "gelu_new"),
        "learned_positions": positions,
        "dropout": any(number(data, field, 0.1) > 0 for field in dropouts),
        "default_sequence": positions,
    }


def _bloom(data: Document) -> Document:
    """Bloom: ALiBi, a norm after the embedding, an MLP of fixed width, tied output."""
    hidden = integer(data, ("hidden_size", "n_embed", "n_embd"))
    dropouts = ("hidden_dropout", "attention_dropout")
    return _ungated(data, hidden) | {
        "ffn_hidden": 4 * hidden,
        "activation": "gelu",
        "embedding_norm": True,
        "dropout": any(number(data, field, 0.0) > 0 for field in dropouts),
    }


def _ungated(data: Document, hidden: int) -> Document:
    """What GPT-2, Bloom and their like share."""
    heads = integer(data, ("n_head", "num_attention_heads"))
    return {
        "layers": integer(data, ("n_layer", "num_hidden_layers")),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": heads,
        "head_dim": head_dim(hidden, heads),
        "vocab": integer(data, ("vocab_size",)),
        "gated_mlp": False,
        "norm": "layernorm",
        "qkv_bias": True,
        "projection_bias": True,
        "mlp_bias": True,
        "tied_embeddings": flag(data, "tie_word_embeddings", True),
    }


def llama(data: Document) -> Document:
    """Llama: rotary positions, gated MLP; key heads as many as heads where not given."""
    hidden = integer(data, ("hidden_size",))
    heads = integer(data, ("num_attention_heads",))
    bias = flag(data, "attention_bias", False)
    return {
        "layers": integer(data, ("num_hidden_layers",)),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": integer(data, ("num_key_value_heads",), heads),
        "head_dim": integer(data, ("head_dim",), 0) or head_dim(hidden, heads),
        "ffn_hidden": integer(data, ("intermediate_size",)),
        "vocab": integer(data, ("vocab_size",)),
        "gated_mlp": True,
        "norm": "rmsnorm",
        "activation": activation(data, "hidden_act", "silu"),
        "qkv_bias": bias,
        "projection_bias": bias,
        "mlp_bias": flag(data, "mlp_bias", False),
        "tied_embeddings": flag(data, "tie_word_embeddings", False),
        "dropout": number(data, "attention_dropout", 0.0) > 0,
    }


def _mistral(data: Document) -> Document:
    """Mistral: a Llama block; its key heads must be given."""
    return llama(data | {"num_key_value_heads": integer(data, ("num_key_value_heads",))})


def _qwen2(data: Document) -> Document:
    """Qwen2: a Llama block with biases on queries, keys and values only."""
    fields = llama(data | {"num_key_value_heads": integer(data, ("num_key_value_heads",))})
    return fields | {"qkv_bias": True, "projection_bias": False}


def _qwen3(data: Document) -> Document:
    """Qwen3: a Llama block whose heads have a width of their own and norms on queries and keys."""
    fields = llama({"head_dim": 128} | given(data))
    fields["kv_heads"] = integer(data, ("num_key_value_heads",))
    return fields | {"qk_norm": True}


def gemma(data: Document) -> Document:
    """Gemma (first generation): a Llama block with a gated GELU, wide heads, tied output."""
    fields = llama({"head_dim": 256, "tie_word_embeddings": True} | given(data))
    name = "hidden_activation" if data.get("hidden_activation") else "hidden_act"
    return fields | {"activation": activation(data, name, "gelu_pytorch_tanh")}


def _phi3(data: Document) -> Document:
    """Phi-3 and Phi-4: a Llama block with fused matrices."""
    dropouts = ("attention_dropout", "resid_pdrop", "embd_pdrop")
    return llama(data) | {"dropout": any(number(data, name, 0.0) > 0 for name in dropouts)}


def _olmo(data: Document) -> Document:
    """OLMo: a Llama block with norms that have no parameters."""
    return llama(data) | {"norm": "layernorm", APPROXIMATED: ("parameters of norms counted",)}


def _olmo2(data: Document) -> Document:
    """OLMo-2: a Llama block with its norms after the modules, and norms on queries and keys."""
    return llama(data) | {APPROXIMATED: ("no norms of queries and keys",)}


def _glm4(data: Document) -> Document:
    """GLM-4: a Llama block with biases on queries, keys and values, and norms on both sides."""
    fields = llama({"head_dim": 128} | given(data))
    return fields | {"projection_bias": False, APPROXIMATED: ("two norms of a block, not four",)}


def _ernie(data: Document) -> Document:
    """ERNIE 4.5 (dense): a Llama block; one switch for all biases, tied output."""
    fields = llama({"head_dim": 128, "tie_word_embeddings": True} | given(data))
    bias = flag(data, "use_bias", False)
    return fields | {"qkv_bias": bias, "projection_bias": bias, "mlp_bias": bias}


def cohere(data: Document) -> Document:
    """Command R: a gated block with one norm for attention and MLP in parallel, tied output."""
    fields = llama({"tie_word_embeddings": True} | given(data))
    return fields | {"norm": "layernorm", APPROXIMATED: ("two norms of a block, with biases",)}


def _starcoder2(data: Document) -> Document:
    """StarCoder2: LayerNorm, plain MLP, one switch for all biases, tied output."""
    fields = llama({"tie_word_embeddings": True} | given(data))
    bias = flag(data, "use_bias", True)
    dropouts = ("attention_dropout", "residual_dropout", "embedding_dropout")
    return fields | {
        "gated_mlp": False,
        "norm": "layernorm",
        "activation": activation(data, "hidden_act", "gelu_pytorch_tanh"),
        **dict.fromkeys(("qkv_bias", "projection_bias", "mlp_bias"), bias),
        "dropout": any(number(data, name, 0.0) > 0 for name in dropouts),
    }


def _gpt_neox(data: Document) -> Document:
    """GPT-NeoX: LayerNorm, plain MLP, rotary positions, biases, output of its own."""
    fields = llama(given(data) | {"num_key_value_heads": None, "head_dim": None})
    bias = flag(data, "attention_bias", True)
    dropouts = ("attention_dropout", "hidden_dropout")
    return fields | {
        "gated_mlp": False,
        "norm": "layernorm",
        "activation": activation(data, "hidden_act", "gelu"),
        "qkv_bias": bias,
        "projection_bias": bias,
        "mlp_bias": True,
        "dropout": any(number(data, name, 0.0) > 0 for name in dropouts),
    }


def _phi(data: Document) -> Document:
    """Phi-1 and Phi-2: one LayerNorm for attention and MLP in parallel, biases everywhere."""
    fields = _gpt_neox(data)
    kv_heads = integer(data, ("num_key_value_heads",), 0) or fields["heads"]
    dropouts = ("attention_dropout", "resid_pdrop", "embd_pdrop")
    return fields | {
        "kv_heads": kv_heads,
        "qkv_bias": True,
        "projection_bias": True,
        "activation": activation(data, "hidden_act", "gelu_new"),
        "dropout": any(number(data, name, 0.0) > 0 for name in dropouts),
        APPROXIMATED: ("two norms of a block, not one", "no bias of the output matrix"),
    }


def _gptj(data: Document) -> Document:
    """GPT-J: one LayerNorm for attention and MLP in parallel, biases in the MLP only."""
    hidden = integer(data, ("n_embd", "hidden_size"))
    dropouts = ("attn_pdrop", "resid_pdrop", "embd_pdrop")
    return _ungated(data, hidden) | {
        "ffn_hidden": integer(data, ("n_inner",), 4 * hidden),
        "activation": activation(data, "activation_function", "gelu_new"),
        "qkv_bias": False,
        "projection_bias": False,
        "tied_embeddings": flag(data, "tie_word_embeddings", False),
        "dropout": any(number(data, name, 0.0) > 0 for name in dropouts),
        APPROXIMATED: ("two norms of a block, not one", "no bias of the output matrix"),
    }


def _gpt_bigcode(data: Document) -> Document:
    """StarCoder: GPT-2 with one key-value head where ``multi_query`` is on, as it is by default."""
    fields = _gpt2({"activation_function": "gelu_pytorch_tanh"} | given(data))
    return fields | ({"kv_heads": 1} if flag(data, "multi_query", True) else {})


def _opt(data: Document) -> Document:
    """OPT: learned positions with two rows more, ReLU, one switch for all biases, tied output."""
    hidden = integer(data, ("hidden_size",))
    projected = integer(data, ("word_embed_proj_dim",), hidden)
    if projected != hidden or not flag(data, "do_layer_norm_before", True):
        raise InputError(
            "DIMENSION_NOT_YET_SEARCHED",
            f"word_embed_proj_dim={projected}, hidden_size={hidden}, or norms after the modules",
            "use an OPT whose embedding has the hidden size (all but 350m)",
        )
    positions = integer(data, ("max_position_embeddings",))
    bias = flag(data, "enable_bias", True)
    return _ungated(data, hidden) | {
        "ffn_hidden": integer(data, ("ffn_dim",)),
        "activation": activation(data, "activation_function", "relu"),
        **dict.fromkeys(("qkv_bias", "projection_bias", "mlp_bias"), bias),
        "learned_positions": positions + 2,
        "dropout": number(data, "dropout", 0.1) > 0 or number(data, "attention_dropout", 0.0) > 0,
        "default_sequence": positions,
    }


def _falcon(data: Document) -> Document:
    """Falcon: few key-value heads, attention and MLP in parallel, biases by one switch."""
    hidden = integer(data, ("hidden_size",))
    fields = _ungated(data, hidden)
    new = flag(data, "new_decoder_architecture", False)
    kv_heads = integer(data, ("num_kv_heads",), 0) or fields["heads"]
    if not new and flag(data, "multi_query", True):
        kv_heads = 1
    bias = flag(data, "bias", False)
    norms = integer(data, ("num_ln_in_parallel_attn",), 2 if new else 1)
    one = flag(data, "parallel_attn", True) and norms == 1
    return fields | {
        "kv_heads": kv_heads,
        "ffn_hidden": integer(data, ("ffn_hidden_size",), 4 * hidden),
        "activation": activation(data, "activation", "gelu"),
        **dict.fromkeys(("qkv_bias", "projection_bias", "mlp_bias"), bias),
        "dropout": any(
            number(data, name, 0.0) > 0 for name in ("attention_dropout", "hidden_dropout")
        ),
        APPROXIMATED: ("two norms of a block, not one",) if one else (),
    }


def _mpt(data: Document) -> Document:
    """MPT: ALiBi or learned positions, plain MLP, no biases as a rule, tied output."""
    hidden = integer(data, ("d_model",))
    attention = data.get("attn_config")
    attention = attention if isinstance(attention, dict) else {}
    heads = integer(data, ("n_heads",))
    alibi = flag(attention, "alibi", True)
    bias = not flag(data, "no_bias", True)
    learned = flag(data, "learned_pos_emb", True) and not alibi
    dropout = number(data, "resid_pdrop", 0.0) > 0 or number(data, "emb_pdrop", 0.0) > 0
    return _ungated({**data, "n_head": heads, "n_layer": integer(data, ("n_layers",))}, hidden) | {
        "kv_heads": integer(attention, ("kv_n_heads",), heads),
        "ffn_hidden": integer(data, ("expansion_ratio",), 4) * hidden,
        "activation": "gelu",
        **dict.fromkeys(("qkv_bias", "projection_bias", "mlp_bias"), bias),
        "learned_positions": integer(data, ("max_seq_len",), 2048) if learned else 0,
        "dropout": dropout,
        APPROXIMATED: () if bias else ("norms with biases",),
    }


def given(data: Document) -> Document:
    """Fields that are there and not null, so that the defaults of a family are not hidden."""
    return {name: value for name, value in data.items() if value is not None}


DENSE_IMPORTERS: dict[str, Callable[[Document], Document]] = {
    "bloom": _bloom,
    "cohere": cohere,
    "ernie4_5": _ernie,
    "falcon": _falcon,
    "gemma": gemma,
    "glm4": _glm4,
    "gpt2": _gpt2,
    "gpt_bigcode": _gpt_bigcode,
    "gpt_neox": _gpt_neox,
    "gptj": _gptj,
    "granite": llama,
    "llama": llama,
    "mistral": _mistral,
    "mpt": _mpt,
    "olmo": _olmo,
    "olmo2": _olmo2,
    "opt": _opt,
    "phi": _phi,
    "phi3": _phi3,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "starcoder2": _starcoder2,
}
"""Model types of plain decoders that are read."""
