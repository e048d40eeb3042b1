"""Parameter counts against the models of transformers itself, where it is installed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from ilp_parallel.specs.readers import load_model

if TYPE_CHECKING:
    from pathlib import Path

LAYERS, HIDDEN, HEADS, FFN, VOCAB = 3, 64, 4, 160, 256
COMMON = {
    "num_hidden_layers": LAYERS,
    "hidden_size": HIDDEN,
    "num_attention_heads": HEADS,
    "intermediate_size": FFN,
    "vocab_size": VOCAB,
    "max_position_embeddings": 128,
}
GPT = {"n_layer": LAYERS, "n_embd": HIDDEN, "n_head": HEADS, "n_positions": 128}
NORM = LAYERS * HIDDEN  # one vector of hidden size in every layer

CASES: dict[str, tuple[dict[str, Any], int]] = {
    # parameters that a model spec leaves out (negative: adds)
    "bloom": ({"n_layer": LAYERS, "hidden_size": HIDDEN, "n_head": HEADS}, 0),
    "cohere": (COMMON, -(3 * NORM + HIDDEN)),
    "ernie4_5": (COMMON | {"head_dim": 16, "num_key_value_heads": 2, "use_bias": True}, 0),
    "falcon": (COMMON | {"multi_query": True}, -2 * NORM),
    "gemma": (COMMON | {"head_dim": 32, "num_key_value_heads": 2}, 0),
    "glm4": (
        COMMON
        | {"head_dim": 16, "num_key_value_heads": 2, "attention_bias": True, "pad_token_id": 0},
        2 * NORM,
    ),
    "gpt2": (GPT, 0),
    "gpt_bigcode": (GPT, 0),
    "gpt_neox": (COMMON, 0),
    "gptj": (GPT | {"rotary_dim": 4}, VOCAB - 2 * NORM),
    "granite": (COMMON | {"num_key_value_heads": 2, "attention_bias": True, "mlp_bias": True}, 0),
    "llama": (COMMON | {"num_key_value_heads": 2, "attention_bias": True, "mlp_bias": True}, 0),
    "mistral": (COMMON | {"num_key_value_heads": 2, "sliding_window": None}, 0),
    "mpt": (
        {"n_layers": LAYERS, "d_model": HIDDEN, "n_heads": HEADS, "max_seq_len": 128},
        -(2 * NORM + HIDDEN),
    ),
    "olmo": (COMMON, -(4 * NORM + 2 * HIDDEN)),
    "olmo2": (COMMON | {"num_key_value_heads": 2}, NORM + NORM // 2),
    "opt": (COMMON | {"ffn_dim": FFN, "word_embed_proj_dim": HIDDEN}, 0),
    "phi": (COMMON, VOCAB - 2 * NORM),
    "phi3": (COMMON | {"num_key_value_heads": 2, "pad_token_id": 0}, 0),
    "qwen2": (COMMON | {"num_key_value_heads": 2}, 0),
    "qwen3": (COMMON | {"num_key_value_heads": 2, "head_dim": 32}, LAYERS * 2 * 32),
    "starcoder2": (COMMON | {"num_key_value_heads": 2, "sliding_window": None}, 0),
}


@pytest.mark.parametrize("model_type", CASES)
def test_same_parameters_as_the_real_model(tmp_path: Path, model_type: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    words, left_out = CASES[model_type]
    config = transformers.AutoConfig.for_model(model_type, **{"vocab_size": VOCAB, **words})
    with torch.device("meta"):
        real = transformers.AutoModelForCausalLM.from_config(config)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config.to_dict(), default=str))
    model = load_model(str(path))
    assert sum(p.numel() for p in real.parameters()) == model.parameters + left_out
