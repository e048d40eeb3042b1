"""Parameter counts against the models of transformers itself, where it is installed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from ilp_parallel.specs.huggingface import IMPORTERS
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

BLOCKS = 4
MIXED = COMMON | {
    "num_hidden_layers": BLOCKS,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "sliding_window": None,
    "num_experts_per_tok": 2,
}
ROUTED = {"moe_intermediate_size": 32, "n_routed_experts": 8, "n_group": 1, "topk_group": 1}
LATENT = {"kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 2, "mamba_d_state": 16}
T5 = {
    "d_model": HIDDEN,
    "d_kv": 8,  # heads of a width of their own
    "d_ff": FFN,
    "num_layers": LAYERS,
    "num_heads": HEADS,
}

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
    "qwen3": (COMMON | {"num_key_value_heads": 2, "head_dim": 32}, 0),
    "starcoder2": (COMMON | {"num_key_value_heads": 2, "sliding_window": None}, 0),
    "mixtral": (MIXED | {"num_local_experts": 4}, 0),
    "granitemoe": (MIXED | {"num_local_experts": 4}, 0),
    "olmoe": (MIXED | {"num_experts": 4}, BLOCKS * (HIDDEN + HIDDEN // 2)),
    "phimoe": (
        MIXED | {"num_local_experts": 4, "attention_bias": True, "lm_head_bias": True},
        VOCAB,
    ),
    "qwen2_moe": (
        {name: value for name, value in MIXED.items() if name != "sliding_window"}
        | {"num_experts": 6, "moe_intermediate_size": 32, "mlp_only_layers": [1]}
        | {"shared_expert_intermediate_size": 48},
        0,
    ),
    "qwen3_moe": (
        MIXED
        | {"num_experts": 6, "moe_intermediate_size": 32, "decoder_sparse_step": 2, "head_dim": 32},
        0,
    ),
    # what corrects the router's scores is no parameter there: one value an expert less
    "deepseek_v2": (
        MIXED | ROUTED | LATENT | {"q_lora_rank": 24, "first_k_dense_replace": 1},
        0,
    ),
    "deepseek_v3": (
        MIXED
        | ROUTED
        | LATENT
        | {"q_lora_rank": None, "first_k_dense_replace": 2, "num_key_value_heads": HEADS},
        -(BLOCKS - 2) * 8,
    ),
    "glm4_moe": (
        MIXED
        | ROUTED
        | {"first_k_dense_replace": 1, "attention_bias": True, "use_qk_norm": True}
        | {"head_dim": 16},
        -(BLOCKS - 1) * 8,
    ),
    "gpt_oss": (MIXED | {"num_local_experts": 4, "sliding_window": 16, "head_dim": 16}, 0),
    "llama4_text": (
        MIXED
        | {"num_local_experts": 4, "intermediate_size_mlp": 96, "interleave_moe_layer_step": 2}
        | {"head_dim": 16, "attention_chunk_size": 32},
        0,
    ),
    "ernie4_5_moe": (
        MIXED
        | {"moe_intermediate_size": 32, "moe_num_experts": 4, "moe_k": 2}
        | {"moe_num_shared_experts": 2, "moe_layer_start_index": 1, "moe_layer_end_index": 3},
        0,
    ),
    "t5": (T5 | {"num_decoder_layers": 2}, 0),
    "mt5": (T5 | {"tie_word_embeddings": False, "feed_forward_proj": "gated-gelu"}, 0),
    "bert": (COMMON, 0),
    "roberta": (COMMON | {"max_position_embeddings": 130, "type_vocab_size": 1}, 0),
    "nemotron": (MIXED | {"head_dim": 16}, 0),
    "gemma2": (MIXED | {"head_dim": 32, "sliding_window": 16}, 2 * BLOCKS * HIDDEN),
    "gemma3_text": (MIXED | {"head_dim": 32, "sliding_window": 16}, 2 * BLOCKS * HIDDEN),
    "cohere2": (MIXED | {"sliding_window": 16}, -(3 * BLOCKS * HIDDEN + HIDDEN)),
    "nemotron_h": (
        {
            "hybrid_override_pattern": "M-M*E-",
            "hidden_size": HIDDEN,
            "num_attention_heads": HEADS,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "intermediate_size": FFN,
            "mamba_num_heads": 8,
            "mamba_head_dim": 16,
            "n_groups": 2,
            "ssm_state_size": 16,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "moe_shared_expert_intermediate_size": 40,
        },
        -4,
    ),
    "bamba": (MIXED | MAMBA | {"attn_layer_indices": [1]}, 0),
    "granitemoehybrid": (
        MIXED
        | MAMBA
        | {"num_local_experts": 4, "shared_intermediate_size": 48}
        | {"layer_types": ["mamba", "attention", "mamba", "mamba"]},
        0,
    ),
}
NOT_CAUSAL = {
    **dict.fromkeys(("t5", "mt5"), "AutoModelForSeq2SeqLM"),
    **dict.fromkeys(("bert", "roberta"), "AutoModelForMaskedLM"),
}
UNCHECKED = {
    "dbrx": "its class cannot be built from its configuration alone; counted by hand elsewhere",
    "kimi_k2": "not among the classes; fields and modules are those of deepseek_v3",
}


def test_every_family_is_compared() -> None:
    assert set(CASES) | set(UNCHECKED) == set(IMPORTERS)


@pytest.mark.parametrize("model_type", CASES)
def test_same_parameters_as_the_real_model(tmp_path: Path, model_type: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    words, left_out = CASES[model_type]
    config = transformers.AutoConfig.for_model(model_type, **{"vocab_size": VOCAB, **words})
    auto = getattr(transformers, NOT_CAUSAL.get(model_type, "AutoModelForCausalLM"))
    with torch.device("meta"):
        real = auto.from_config(config)
    path = tmp_path / "config.json"
    words = {name: value for name, value in config.to_dict().items() if name != "time_step_limit"}
    path.write_text(json.dumps(words, default=str))  # that limit is infinite, which JSON is not
    model = load_model(str(path))
    assert sum(p.numel() for p in real.parameters()) == model.main_parameters + left_out
