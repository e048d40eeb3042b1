"""Shapes from the ``config.json`` of a Hugging Face model.

Field names, aliases and the defaults that apply when a field is absent are those of the
configuration classes of Hugging Face transformers (``models/*/configuration_*.py``). A size that
those classes would fill in with the size of one particular checkpoint is asked for instead.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

from ilp_parallel.errors import InputError
from ilp_parallel.specs.documents import did_you_mean, shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from ilp_parallel.specs.documents import Document

EXPERT_FIELDS = (
    "num_local_experts",
    "num_experts",
    "n_routed_experts",
    "moe_num_experts",
    "num_moe_experts",
)
"""Fields that count the experts of a mixture-of-experts layer, by family."""

_EXPERTS = "expert parallelism (mixture of experts)"
_ENCODER_DECODER = "encoder-decoder pipelines"
_ENCODER = "bidirectional encoders"
_HYBRID = "layers of more than one kind"

NOT_YET_SEARCHED: dict[str, str] = {
    **dict.fromkeys(
        (
            "dbrx",
            "deepseek_v2",
            "deepseek_v3",
            "ernie4_5_moe",
            "glm4_moe",
            "gpt_oss",
            "granitemoe",
            "kimi_k2",
            "llama4",
            "llama4_text",
            "minimax",
            "mixtral",
            "olmoe",
            "phimoe",
            "qwen2_moe",
            "qwen3_moe",
        ),
        _EXPERTS,
    ),
    **dict.fromkeys(
        ("bart", "led", "m2m_100", "marian", "mbart", "mt5", "pegasus", "t5", "umt5", "whisper"),
        _ENCODER_DECODER,
    ),
    **dict.fromkeys(
        ("albert", "bert", "deberta-v2", "distilbert", "electra", "roberta", "vit", "xlm-roberta"),
        _ENCODER,
    ),
    **dict.fromkeys(("falcon_mamba", "jamba", "mamba", "mamba2", "qwen3_next"), _HYBRID),
}
"""Model types that are recognised, with the dimension that their plans would need."""

_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu",
    "gelu_fast": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}


def is_huggingface(data: Document) -> bool:
    """Whether a document is a Hugging Face configuration rather than our own fields."""
    return "model_type" in data or "architectures" in data


def model_fields(data: Document, origin: str) -> Document:
    """Fields of a ``ModelSpec`` from a Hugging Face configuration, not validated yet.

    Raises
    ------
    InputError
        DIMENSION_NOT_YET_SEARCHED for a recognised model that needs more than a dense decoder;
        UNKNOWN_MODEL_TYPE; MISSING_FIELD, WRONG_TYPE or HEADS_DO_NOT_DIVIDE_HIDDEN.
    """
    model_type = data.get("model_type")
    if not isinstance(model_type, str):
        model_type = ""
    _refuse_other_dimensions(data, model_type)
    importer = IMPORTERS.get(model_type)
    if importer is None:
        raise InputError(
            "UNKNOWN_MODEL_TYPE",
            f"model_type {shown(model_type)} is not read (known: {', '.join(IMPORTERS)})",
            did_you_mean(model_type, IMPORTERS, "give layers, hidden, heads, ... explicitly"),
        )
    common: Document = {
        "name": _name(origin),
        "qkv_bias": False,
        "projection_bias": False,
        "mlp_bias": False,
        "learned_positions": 0,
        "embedding_norm": False,
        "sources": [f"Hugging Face config.json, model_type {model_type}"],
    }
    return common | importer(data)


def _name(origin: str) -> str:
    """Name of the model: that of its folder for a ``config.json``, else that of the file."""
    path = PurePath(origin)
    name = path.parent.name if path.stem == "config" else path.stem
    return name if 0 < len(name) <= 100 and name.isprintable() and name != "-" else "model"


def _refuse_other_dimensions(data: Document, model_type: str) -> None:
    dimension = NOT_YET_SEARCHED.get(model_type)
    for field in EXPERT_FIELDS:
        if _integer(data, (field,), 0) > 1:
            dimension = _EXPERTS
    if data.get("is_encoder_decoder") is True or data.get("add_cross_attention") is True:
        dimension = _ENCODER_DECODER
    if "text_config" in data or "vision_config" in data:
        dimension = dimension or "multimodal models"
    windowed = data.get("use_sliding_window", True) is not False
    if dimension is None and windowed and data.get("sliding_window") is not None:
        dimension = "attention windows (sliding_window)"
    if dimension is not None:
        raise InputError(
            "DIMENSION_NOT_YET_SEARCHED",
            f"model_type {shown(model_type)} needs {dimension}",
            "use a dense decoder with full attention",
        )


def _gpt2(data: Document) -> Document:
    """GPT-2: learned positions, biases everywhere, tied output."""
    hidden = _integer(data, ("n_embd", "hidden_size"))
    positions = _integer(data, ("n_positions", "max_position_embeddings"))
    dropouts = ("attn_pdrop", "resid_pdrop", "embd_pdrop")
    return _ungated(data, hidden) | {
        "ffn_hidden": _integer(data, ("n_inner",), 4 * hidden),
        "activation": _activation(data, "activation_function", "gelu_new"),
        "learned_positions": positions,
        "dropout": any(_number(data, field, 0.1) > 0 for field in dropouts),
        "default_sequence": positions,
    }


def _bloom(data: Document) -> Document:
    """Bloom: ALiBi, a norm after the embedding, an MLP of fixed width, tied output."""
    hidden = _integer(data, ("hidden_size", "n_embed", "n_embd"))
    dropouts = ("hidden_dropout", "attention_dropout")
    return _ungated(data, hidden) | {
        "ffn_hidden": 4 * hidden,
        "activation": "gelu",
        "embedding_norm": True,
        "dropout": any(_number(data, field, 0.0) > 0 for field in dropouts),
    }


def _ungated(data: Document, hidden: int) -> Document:
    """What GPT-2 and Bloom share."""
    heads = _integer(data, ("n_head", "num_attention_heads"))
    return {
        "layers": _integer(data, ("n_layer", "num_hidden_layers")),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": heads,
        "head_dim": _head_dim(hidden, heads),
        "vocab": _integer(data, ("vocab_size",)),
        "gated_mlp": False,
        "norm": "layernorm",
        "qkv_bias": True,
        "projection_bias": True,
        "mlp_bias": True,
        "tied_embeddings": _flag(data, "tie_word_embeddings", True),
    }


def _llama(data: Document) -> Document:
    """Llama: rotary positions, gated MLP; key heads as many as heads where not given."""
    hidden = _integer(data, ("hidden_size",))
    heads = _integer(data, ("num_attention_heads",))
    bias = _flag(data, "attention_bias", False)
    return {
        "layers": _integer(data, ("num_hidden_layers",)),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": _integer(data, ("num_key_value_heads",), heads),
        "head_dim": _integer(data, ("head_dim",), 0) or _head_dim(hidden, heads),
        "ffn_hidden": _integer(data, ("intermediate_size",)),
        "vocab": _integer(data, ("vocab_size",)),
        "gated_mlp": True,
        "norm": "rmsnorm",
        "activation": _activation(data, "hidden_act", "silu"),
        "qkv_bias": bias,
        "projection_bias": bias,
        "mlp_bias": _flag(data, "mlp_bias", False),
        "tied_embeddings": _flag(data, "tie_word_embeddings", False),
        "dropout": _number(data, "attention_dropout", 0.0) > 0,
    }


def _mistral(data: Document) -> Document:
    """Mistral with full attention: a Llama block; its key heads must be given."""
    return _llama(data | {"num_key_value_heads": _integer(data, ("num_key_value_heads",))})


def _qwen2(data: Document) -> Document:
    """Qwen2 with full attention: a Llama block with biases on queries, keys and values only."""
    fields = _llama(data | {"num_key_value_heads": _integer(data, ("num_key_value_heads",))})
    return fields | {"qkv_bias": True, "projection_bias": False}


IMPORTERS: dict[str, Callable[[Document], Document]] = {
    "bloom": _bloom,
    "gpt2": _gpt2,
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
}
"""Model types that are read."""


def _integer(data: Document, names: tuple[str, ...], default: int | None = None) -> int:
    """The first of the fields that is there and not null; required where there is no default."""
    for name in names:
        value = data.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            raise InputError("WRONG_TYPE", f"{name}={shown(value)}", "give a whole number")
        return value
    if default is None:
        raise InputError("MISSING_FIELD", f"no {' or '.join(names)}", f"add {names[0]}")
    return default


def _number(data: Document, name: str, default: float) -> float:
    value = data.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError("WRONG_TYPE", f"{name}={shown(value)}", "give a number")
    return value


def _flag(data: Document, name: str, default: bool) -> bool:
    value = data.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise InputError("WRONG_TYPE", f"{name}={shown(value)}", "give true or false")
    return value


def _activation(data: Document, name: str, default: str) -> str:
    value = data.get(name) or default
    if not isinstance(value, str) or value not in _ACTIVATIONS:
        known = ", ".join(_ACTIVATIONS)
        raise InputError("UNKNOWN_ACTIVATION", f"{name}={shown(value)}", f"use one of {known}")
    return _ACTIVATIONS[value]


def _head_dim(hidden: int, heads: int) -> int:
    if heads <= 0 or hidden % heads:
        raise InputError(
            "HEADS_DO_NOT_DIVIDE_HIDDEN",
            f"hidden={shown(hidden)}, heads={shown(heads)}",
            "give head_dim, or heads that divide hidden",
        )
    return hidden // heads
