"""Shapes from the ``config.json`` of a Hugging Face model.

Field names, aliases and the defaults that apply when a field is absent are those of the
configuration classes of Hugging Face transformers (``models/*/configuration_*.py``). A size that
those classes would fill in with the size of one particular checkpoint is asked for instead.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

from ilp_parallel.errors import InputError
from ilp_parallel.specs.block_lists import attention_blocks, with_blocks
from ilp_parallel.specs.documents import did_you_mean, shown
from ilp_parallel.specs.huggingface_experts import EXPERT_IMPORTERS
from ilp_parallel.specs.huggingface_families import APPROXIMATED, DENSE_IMPORTERS
from ilp_parallel.specs.huggingface_fields import integer
from ilp_parallel.specs.huggingface_layers import (
    block_count,
    windows,
)
from ilp_parallel.specs.huggingface_others import OTHER_IMPORTERS

if TYPE_CHECKING:
    from collections.abc import Callable

    from ilp_parallel.specs.documents import Document

IMPORTERS: dict[str, Callable[[Document], Document]] = {
    **DENSE_IMPORTERS,
    **EXPERT_IMPORTERS,
    **OTHER_IMPORTERS,
}
"""Model types that are read."""

TEXT_MODELS = {"gemma3": "gemma3_text", "llama4": "llama4_text"}
"""Multimodal models whose ``text_config`` is read, and the model type of that."""

EXPERT_FIELDS = (
    "num_local_experts",
    "num_experts",
    "n_routed_experts",
    "moe_num_experts",
    "num_moe_experts",
)
"""Fields that count the experts of a mixture-of-experts layer, by family."""

_EXPERTS = "mixtures of experts of this family"
_ENCODER_DECODER = "encoders and decoders of this family"
_ENCODER = "encoders of this family"
_HYBRID = "linear attention or Mamba-1"

NOT_YET_SEARCHED: dict[str, str] = {
    **dict.fromkeys(("minimax", "minimax_m2"), _EXPERTS),
    **dict.fromkeys(
        ("bart", "led", "m2m_100", "marian", "mbart", "pegasus", "umt5", "whisper"),
        _ENCODER_DECODER,
    ),
    **dict.fromkeys(
        ("albert", "deberta-v2", "distilbert", "electra", "vit", "xlm-roberta"), _ENCODER
    ),
    **dict.fromkeys(
        ("falcon_mamba", "jamba", "mamba", "mamba2", "qwen3_5", "qwen3_next", "zamba2"), _HYBRID
    ),
    "gpt_neo": "its windows",
    **dict.fromkeys(("gemma3n", "qwen2_vl", "qwen2_5_vl", "qwen3_vl"), "multimodal models"),
}
"""Model types that are recognised, with the dimension that their plans would need."""


def is_huggingface(data: Document) -> bool:
    """Whether a document is a Hugging Face configuration rather than our own fields."""
    return "model_type" in data or "architectures" in data


def model_fields(data: Document, origin: str) -> Document:
    """Fields of a ``ModelSpec`` from a Hugging Face configuration, not validated yet.

    Raises
    ------
    InputError
        DIMENSION_NOT_YET_SEARCHED for a recognised model that is not read; UNKNOWN_MODEL_TYPE;
        MISSING_FIELD, WRONG_TYPE, OUT_OF_RANGE, HEADS_DO_NOT_DIVIDE_HIDDEN, BLOCKS_DIFFER or
        UNKNOWN_BLOCK.
    """
    model_type = data.get("model_type")
    if not isinstance(model_type, str):
        model_type = ""
    text = data.get("text_config")
    unwrapped = model_type in TEXT_MODELS and isinstance(text, dict)
    if unwrapped:
        assert isinstance(text, dict)
        model_type = TEXT_MODELS[model_type]
        data = text | {"model_type": model_type}
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
    fields = importer(data)
    if model_type in DENSE_IMPORTERS:
        fields = _with_windows(data, fields)
    approximated = fields.pop(APPROXIMATED, ())
    assert isinstance(approximated, tuple) and isinstance(common["sources"], list)
    if unwrapped:
        approximated += ("all but the text model is left out",)
    common["sources"] += [f"approximated: {text}" for text in approximated]
    return common | fields


def _with_windows(data: Document, fields: Document) -> Document:
    """A dense decoder with the windows that its configuration gives its blocks."""
    if data.get("sliding_window") is None and data.get("layer_types") is None:
        return fields
    layers = block_count(fields, "layers")
    seen = windows(data, layers)
    if not any(seen):
        return fields
    blocks = attention_blocks([None] * layers, integer(fields, ("ffn_hidden",)), seen)
    return with_blocks(fields, blocks)


def _name(origin: str) -> str:
    """Name of the model: that of its folder for a ``config.json``, else that of the file."""
    path = PurePath(origin)
    name = path.parent.name if path.stem == "config" else path.stem
    return name if 0 < len(name) <= 100 and name.isprintable() and name != "-" else "model"


def _refuse_other_dimensions(data: Document, model_type: str) -> None:
    dimension = NOT_YET_SEARCHED.get(model_type)
    if model_type not in EXPERT_IMPORTERS and model_type not in OTHER_IMPORTERS:
        for field in EXPERT_FIELDS:
            if integer(data, (field,), 0) > 1:
                dimension = _EXPERTS
    translates = data.get("is_encoder_decoder") is True and model_type not in ("t5", "mt5")
    if translates or data.get("add_cross_attention") is True:
        dimension = _ENCODER_DECODER
    if "text_config" in data or "vision_config" in data:
        dimension = dimension or "multimodal models"
    if dimension is not None:
        raise InputError(
            "DIMENSION_NOT_YET_SEARCHED",
            f"model_type {shown(model_type)} needs {dimension}",
            "give the fields of a model of our own",
        )
