"""Shapes of the Hugging Face families with mixtures of experts.

Fields, aliases and defaults: ``models/*/configuration_*.py`` of transformers 5.24; shapes of the
modules: ``models/*/modeling_*.py``. What is not taken over is named with the word ``approximated``,
as in :mod:`ilp_parallel.specs.huggingface_families`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ilp_parallel.errors import InputError
from ilp_parallel.specs.block_lists import attention_blocks, with_blocks
from ilp_parallel.specs.documents import shown
from ilp_parallel.specs.huggingface_families import APPROXIMATED, given, llama
from ilp_parallel.specs.huggingface_fields import activation, flag, head_dim, integer, number
from ilp_parallel.specs.huggingface_layers import (
    block_count,
    windows,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ilp_parallel.specs.documents import Document

_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_ACTIVE = ("num_experts_per_tok", "moe_k")
_PREDICTIONS = ("num_nextn_predict_layers", "num_mtp_layers")


def _experts(data: Document, width: str, shared: int = 0, **more: bool) -> Document:
    """A mixture of experts; ``width`` names the field with the width of one expert."""
    found: Document = {
        "count": integer(data, _COUNTS),
        "active": integer(data, _ACTIVE),
        "ffn_hidden": integer(data, (width,)),
        "shared_ffn_hidden": shared,
    }
    return found | more


def _everywhere(data: Document, fields: Document, experts: Document) -> Document:
    """A model all of whose blocks have experts; windows as its configuration says."""
    layers = block_count(data, "num_hidden_layers")
    blocks = attention_blocks([experts] * layers, 0, windows(data, layers))
    return with_blocks(fields, blocks)


def _mixtral(data: Document) -> Document:
    """Mixtral: a Llama block with experts; the width of one is ``intermediate_size``."""
    fields = llama(data | {"num_key_value_heads": integer(data, ("num_key_value_heads",))})
    return _everywhere(data, fields, _experts(data, "intermediate_size"))


def _granitemoe(data: Document) -> Document:
    """Granite with experts: as Mixtral."""
    return _everywhere(data, llama(data), _experts(data, "intermediate_size"))


def _olmoe(data: Document) -> Document:
    """OLMoE: as Mixtral, with norms over all queries and over all keys."""
    fields = _everywhere(data, llama(data), _experts(data, "intermediate_size"))
    return fields | {APPROXIMATED: ("no norms of queries and keys",)}


def _phimoe(data: Document) -> Document:
    """Phi-3.5-MoE: as Mixtral, with LayerNorm and perhaps a bias of the output matrix."""
    fields = _everywhere(data, llama(data), _experts(data, "intermediate_size"))
    bias = flag(data, "lm_head_bias", False)
    return fields | {
        "norm": "layernorm",
        APPROXIMATED: ("no bias of the output matrix",) if bias else (),
    }


def _gpt_oss(data: Document) -> Document:
    """gpt-oss: windows and full attention in turn, sinks, biases everywhere."""
    fields = llama({"attention_bias": True} | given(data)) | {
        "mlp_bias": True,
        "attention_sinks": True,
    }
    experts = _experts(data, "intermediate_size", router_bias=True)
    return _everywhere(data, fields, experts)


def _qwen_moe(data: Document) -> Document:
    """Qwen2-MoE and Qwen3-MoE: which blocks have experts, two fields say."""
    layers = block_count(data, "num_hidden_layers")
    fields = llama(data | {"num_key_value_heads": integer(data, ("num_key_value_heads",))})
    second = data.get("model_type") == "qwen2_moe"
    if second:
        fields |= {"qkv_bias": flag(data, "qkv_bias", True), "projection_bias": False}
        shared = integer(data, ("shared_expert_intermediate_size",))
        experts = _experts(data, "moe_intermediate_size", shared, shared_gate=True)
    else:
        fields |= {"qk_norm": True}
        experts = _experts(data, "moe_intermediate_size")
    step = integer(data, ("decoder_sparse_step",), 1)
    dense = _indices(data, "mlp_only_layers")
    sparse = [step > 0 and (i + 1) % step == 0 and i not in dense for i in range(layers)]
    ffn = integer(data, ("intermediate_size",), 0)
    blocks = attention_blocks(
        [experts if has else None for has in sparse], ffn, windows(data, layers)
    )
    return with_blocks(fields, blocks)


def _deepseek(data: Document) -> Document:
    """DeepSeek-V2 and -V3, Kimi K2: latent attention, first blocks dense, prediction blocks."""
    hidden, heads = integer(data, ("hidden_size",)), integer(data, ("num_attention_heads",))
    fields = llama(data | {"num_key_value_heads": heads, "head_dim": 1})
    bias = flag(data, "attention_bias", False)
    fields |= {
        "hidden": hidden,
        "head_dim": integer(data, ("qk_nope_head_dim",)),
        "qkv_bias": False,
        "projection_bias": False,
        "latent": {
            "query_rank": integer(data, ("q_lora_rank",), 0),
            "kv_rank": integer(data, ("kv_lora_rank",)),
            "rope_head_dim": integer(data, ("qk_rope_head_dim",)),
            "value_head_dim": integer(data, ("v_head_dim",)),
        },
        APPROXIMATED: ("no biases of attention",) if bias else (),
    }
    third = data.get("model_type") != "deepseek_v2"
    return _dense_first(data, fields, router_bias=third, predictions=third)


def _glm4_moe(data: Document) -> Document:
    """GLM-4.5: first blocks dense, biases on queries, keys and values, prediction blocks."""
    fields = llama(data) | {
        "projection_bias": False,
        "qk_norm": flag(data, "use_qk_norm", False),
    }
    return _dense_first(data, fields, router_bias=True, predictions=True)


def _dense_first(
    data: Document, fields: Document, router_bias: bool, predictions: bool
) -> Document:
    """Dense blocks, blocks with routed and shared experts, prediction blocks like the last one."""
    layers = block_count(data, "num_hidden_layers")
    first = integer(data, ("first_k_dense_replace",), 0)
    every = integer(data, ("moe_layer_freq",), 1)
    shared = integer(data, ("n_shared_experts",), 0) * integer(data, ("moe_intermediate_size",))
    experts = _experts(data, "moe_intermediate_size", shared, router_bias=router_bias)
    sparse = [i >= first and every > 0 and i % every == 0 for i in range(layers)]
    mixtures = [experts if has else None for has in sparse]
    blocks = attention_blocks(mixtures, integer(data, ("intermediate_size",)), [0] * layers)
    count = integer(data, _PREDICTIONS, 0) if predictions else 0
    if not 0 <= count <= layers:
        raise InputError("OUT_OF_RANGE", f"{_PREDICTIONS[0]}={shown(count)}", f"use 0 to {layers}")
    last = blocks[-1] | {"name": "mtp", "predicts": True}
    return with_blocks(fields, blocks + [last] * count)


def _llama4(data: Document) -> Document:
    """Llama 4 (its text model): every so many blocks have experts, chunks instead of windows."""
    layers = block_count(data, "num_hidden_layers")
    fields = llama({"head_dim": 128} | given(data))
    width = integer(data, ("intermediate_size",))
    step = integer(data, ("interleave_moe_layer_step",), 1)
    if data.get("moe_layers") is None:
        chosen = set(range(step - 1, layers, step)) if step > 0 else set()
    else:
        chosen = _indices(data, "moe_layers")
    experts = _experts(data, "intermediate_size", width)
    seen = windows(data, layers)
    mixtures = [experts if i in chosen else None for i in range(layers)]
    dense = integer(data, ("intermediate_size_mlp",))
    chunks = ("a chunk is a window of its length",) if any(seen) else ()
    return with_blocks(fields, attention_blocks(mixtures, dense, seen, "chunked")) | {
        APPROXIMATED: chunks
    }


def _ernie_moe(data: Document) -> Document:
    """ERNIE 4.5 with experts in a range of blocks; one switch for all biases."""
    layers = block_count(data, "num_hidden_layers")
    fields = llama({"tie_word_embeddings": True} | given(data))
    bias = flag(data, "use_bias", False)
    width = integer(data, ("moe_intermediate_size",))
    shared = width * integer(data, ("moe_num_shared_experts",), 0)
    experts = _experts(data, "moe_intermediate_size", shared, router_bias=True)
    every = integer(data, ("moe_layer_interval",), 1)
    start = integer(data, ("moe_layer_start_index",), 0)
    end = integer(data, ("moe_layer_end_index",), -1)
    end = layers - 1 if end == -1 else end
    sparse = [every > 0 and (i + 1) % every == 0 and start <= i <= end for i in range(layers)]
    ffn = integer(data, ("intermediate_size",))
    mixtures = [experts if has else None for has in sparse]
    fields |= {
        "qkv_bias": bias,
        "projection_bias": bias,
        APPROXIMATED: ("no biases of MLPs and of the output matrix",) if bias else (),
    }
    return with_blocks(fields, attention_blocks(mixtures, ffn, [0] * layers))


def _dbrx(data: Document) -> Document:
    """DBRX: gated experts everywhere, LayerNorm without biases."""
    attention, ffn = data.get("attn_config"), data.get("ffn_config")
    attention = attention if isinstance(attention, dict) else {}
    ffn = ffn if isinstance(ffn, dict) else {}
    function = ffn.get("ffn_act_fn")
    hidden, heads = integer(data, ("d_model",)), integer(data, ("n_heads",))
    layers = block_count(data, "n_layers")
    experts: Document = {
        "count": integer(ffn, ("moe_num_experts",)),
        "active": integer(ffn, ("moe_top_k",)),
        "ffn_hidden": integer(ffn, ("ffn_hidden_size",)),
    }
    fields: Document = {
        "hidden": hidden,
        "heads": heads,
        "kv_heads": integer(attention, ("kv_n_heads",)),
        "head_dim": head_dim(hidden, heads),
        "vocab": integer(data, ("vocab_size",)),
        "gated_mlp": True,
        "norm": "layernorm",
        "activation": activation(function if isinstance(function, dict) else {}, "name", "silu"),
        "tied_embeddings": flag(data, "tie_word_embeddings", False),
        "dropout": any(number(data, name, 0.0) > 0 for name in ("resid_pdrop", "emb_pdrop")),
        APPROXIMATED: ("norms with biases",),
    }
    return with_blocks(fields, attention_blocks([experts] * layers, 0, [0] * layers))


def _indices(data: Document, name: str) -> set[int]:
    """Indices of blocks; ``WRONG_TYPE`` unless a list of whole numbers, empty where absent."""
    values = data.get(name) or []
    if not isinstance(values, list) or not all(type(value) is int for value in values):
        raise InputError("WRONG_TYPE", f"{name}={shown(values)}", "give a list of whole numbers")
    return set(values)


EXPERT_IMPORTERS: dict[str, Callable[[Document], Document]] = {
    "dbrx": _dbrx,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "ernie4_5_moe": _ernie_moe,
    "glm4_moe": _glm4_moe,
    "gpt_oss": _gpt_oss,
    "granitemoe": _granitemoe,
    "kimi_k2": _deepseek,
    "llama4_text": _llama4,
    "mixtral": _mixtral,
    "olmoe": _olmoe,
    "phimoe": _phimoe,
    "qwen2_moe": _qwen_moe,
    "qwen3_moe": _qwen_moe,
}
"""Model types with mixtures of experts that are read."""
