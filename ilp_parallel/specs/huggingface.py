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
from ilp_parallel.specs.huggingface_families import APPROXIMATED, IMPORTERS
from ilp_parallel.specs.huggingface_fields import integer

if TYPE_CHECKING:
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
_WINDOWS = "attention windows (sliding_window)"

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
            "minimax_m2",
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
    **dict.fromkeys(
        ("falcon_mamba", "gpt_neo", "jamba", "mamba", "mamba2", "qwen3_5", "qwen3_next"), _HYBRID
    ),
    **dict.fromkeys(("cohere2", "gemma2", "gemma3_text"), _WINDOWS),
    **dict.fromkeys(
        ("gemma3", "gemma3n", "qwen2_vl", "qwen2_5_vl", "qwen3_vl"), "multimodal models"
    ),
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
    fields = importer(data)
    approximated = fields.pop(APPROXIMATED, ())
    assert isinstance(approximated, tuple) and isinstance(common["sources"], list)
    common["sources"] += [f"approximated: {text}" for text in approximated]
    return common | fields


def _name(origin: str) -> str:
    """Name of the model: that of its folder for a ``config.json``, else that of the file."""
    path = PurePath(origin)
    name = path.parent.name if path.stem == "config" else path.stem
    return name if 0 < len(name) <= 100 and name.isprintable() and name != "-" else "model"


def _refuse_other_dimensions(data: Document, model_type: str) -> None:
    dimension = NOT_YET_SEARCHED.get(model_type)
    for field in EXPERT_FIELDS:
        if integer(data, (field,), 0) > 1:
            dimension = _EXPERTS
    if data.get("is_encoder_decoder") is True or data.get("add_cross_attention") is True:
        dimension = _ENCODER_DECODER
    if "text_config" in data or "vision_config" in data:
        dimension = dimension or "multimodal models"
    if dimension is None and _is_windowed(data):
        dimension = _WINDOWS
    if dimension is not None:
        raise InputError(
            "DIMENSION_NOT_YET_SEARCHED",
            f"model_type {shown(model_type)} needs {dimension}",
            "use a dense decoder with full attention",
        )


def _is_windowed(data: Document) -> bool:
    """Whether attention sees less than the longest sequence: a window that is on and shorter."""
    window = data.get("sliding_window")
    if window is None or data.get("use_sliding_window", True) is False:
        return False
    kinds = data.get("layer_types")
    if isinstance(kinds, list) and kinds and all(kind == "full_attention" for kind in kinds):
        return False
    longest = integer(data, ("max_position_embeddings",), 0)
    return not (isinstance(window, int) and not isinstance(window, bool) and 0 < longest <= window)
