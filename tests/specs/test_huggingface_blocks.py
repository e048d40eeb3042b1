"""Configurations of models with several kinds of blocks give the presets' shapes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from ilp_parallel.errors import InputError
from ilp_parallel.specs.readers import load_model
from tests.specs.test_huggingface import read, shapes

if TYPE_CHECKING:
    from pathlib import Path

Config = dict[str, object]


def sized(
    model_type: str, sizes: tuple[int, int, int, int, int, int], more: Config | None = None
) -> Config:
    """Layers, hidden, heads, key heads, MLP width and vocabulary in their usual fields."""
    names = ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads")
    fields = dict(zip((*names, "intermediate_size", "vocab_size"), sizes, strict=True))
    return {"model_type": model_type, **fields, **(more or {})}


MIXTRAL = sized(
    "mixtral",
    (32, 4096, 32, 8, 14336, 32000),
    {"num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None},
)
MIXTRAL_22 = MIXTRAL | sized("mixtral", (56, 6144, 48, 8, 16384, 32000))
QWEN3_30 = sized(
    "qwen3_moe",
    (48, 2048, 32, 4, 6144, 151936),
    {
        "decoder_sparse_step": 1,
        "head_dim": 128,
        "max_window_layers": 48,
        "mlp_only_layers": [],
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "sliding_window": None,
        "use_sliding_window": False,
    },
)
QWEN3_235 = QWEN3_30 | sized("qwen3_moe", (94, 4096, 64, 4, 12288, 151936))
QWEN3_235["moe_intermediate_size"] = 1536
QWEN2_57 = sized(
    "qwen2_moe",
    (28, 3584, 28, 4, 18944, 151936),
    {
        "decoder_sparse_step": 1,
        "max_window_layers": 28,
        "moe_intermediate_size": 2560,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "shared_expert_intermediate_size": 20480,
        "sliding_window": 65536,
        "use_sliding_window": False,
    },
)
LATENT: Config = {
    "attention_bias": False,
    "kv_lora_rank": 512,
    "moe_layer_freq": 1,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
DEEPSEEK_V2 = sized(
    "deepseek_v2",
    (60, 5120, 128, 128, 12288, 102400),
    {
        **LATENT,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 1536,
        "n_routed_experts": 160,
        "n_shared_experts": 2,
        "num_experts_per_tok": 6,
    },
)
DEEPSEEK_V3 = sized(
    "deepseek_v3",
    (61, 7168, 128, 128, 18432, 129280),
    {
        **LATENT,
        "first_k_dense_replace": 3,
        "moe_intermediate_size": 2048,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "num_nextn_predict_layers": 1,
    },
)
KIMI_K2 = DEEPSEEK_V3 | {
    "model_type": "kimi_k2",
    "first_k_dense_replace": 1,
    "n_routed_experts": 384,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "num_nextn_predict_layers": 0,
    "vocab_size": 163840,
}
GPT_OSS_20 = sized(
    "gpt_oss",
    (24, 2880, 64, 8, 2880, 201088),
    {
        "attention_bias": True,
        "head_dim": 64,
        "layer_types": ["sliding_attention", "full_attention"] * 12,
        "num_experts_per_tok": 4,
        "num_local_experts": 32,
        "sliding_window": 128,
    },
)
GPT_OSS_120 = GPT_OSS_20 | {"num_hidden_layers": 36, "num_local_experts": 128, "layer_types": None}
MAVERICK: Config = {
    "model_type": "llama4",
    "vision_config": {},
    "text_config": sized(
        "llama4_text",
        (48, 5120, 40, 8, 8192, 202048),
        {
            "attention_chunk_size": 8192,
            "head_dim": 128,
            "interleave_moe_layer_step": 2,
            "intermediate_size_mlp": 16384,
            "max_position_embeddings": 1048576,
            "no_rope_layers": [],
            "num_experts_per_tok": 1,
            "num_local_experts": 128,
        },
    ),
}
T5_11B: Config = {
    "model_type": "t5",
    "is_encoder_decoder": True,
    "d_ff": 65536,
    "d_kv": 128,
    "d_model": 1024,
    "dropout_rate": 0.1,
    "num_heads": 128,
    "num_layers": 24,
    "relative_attention_num_buckets": 32,
    "vocab_size": 32128,
}
BERT_LARGE: Config = {
    "model_type": "bert",
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "max_position_embeddings": 512,
    "num_attention_heads": 16,
    "num_hidden_layers": 24,
    "type_vocab_size": 2,
    "vocab_size": 30522,
}
NEMOTRON_H = sized(
    "nemotron_h",
    (52, 4096, 32, 8, 21504, 131072),
    {
        "attention_head_dim": 128,
        "conv_kernel": 4,
        "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
        "mamba_head_dim": 64,
        "mamba_num_heads": 128,
        "mlp_hidden_act": "relu2",
        "n_groups": 8,
        "ssm_state_size": 128,
    },
)
NEMOTRON_4 = sized("nemotron", (96, 18432, 96, 8, 73728, 256000), {"hidden_act": "relu2"})
QWEN3_8 = sized("qwen3", (36, 4096, 32, 8, 12288, 151936), {"head_dim": 128})
GLM_AIR = sized(
    "glm4_moe",
    (46, 4096, 96, 8, 10944, 151552),
    {
        "attention_bias": True,
        "first_k_dense_replace": 1,
        "head_dim": 128,
        "moe_intermediate_size": 1408,
        "n_routed_experts": 128,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "num_nextn_predict_layers": 1,
    },
)
DBRX: Config = {
    "model_type": "dbrx",
    "attn_config": {"kv_n_heads": 8},
    "d_model": 6144,
    "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
    "n_heads": 48,
    "n_layers": 40,
    "vocab_size": 100352,
}


@pytest.mark.parametrize(
    ("config", "preset"),
    [
        (MIXTRAL, "mixtral-8x7b"),
        (MIXTRAL_22, "mixtral-8x22b"),
        (QWEN3_8, "qwen3-8b"),
        (QWEN3_30, "qwen3-30b-a3b"),
        (QWEN3_235, "qwen3-235b-a22b"),
        (QWEN2_57, "qwen2-57b-a14b"),
        (DEEPSEEK_V2, "deepseek-v2"),
        (DEEPSEEK_V3, "deepseek-v3"),
        (KIMI_K2, "kimi-k2"),
        (GPT_OSS_20, "gpt-oss-20b"),
        (GPT_OSS_120, "gpt-oss-120b"),
        (MAVERICK, "llama4-maverick"),
        (T5_11B, "t5-11b"),
        (BERT_LARGE, "bert-large"),
        (NEMOTRON_H, "nemotron-h-8b"),
        (NEMOTRON_4, "nemotron4-340b"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_same_shapes_as_the_preset(tmp_path: Path, config: Config, preset: str) -> None:
    assert shapes(read(tmp_path, config)) == shapes(load_model(preset))


def test_published_counts_of_families_without_a_preset(tmp_path: Path) -> None:
    """DBRX: 131,596,523,520 (its norms have no biases); GLM-4.5-Air: 106.85 billion."""
    dbrx = read(tmp_path, DBRX)
    assert dbrx.parameters - 81 * 6144 == 131_596_523_520
    air = read(tmp_path, GLM_AIR)
    assert round(air.main_parameters / 1e9, 2) == 106.85
    assert [kind.name for kind in air.kinds] == ["dense", "moe", "mtp"]


def test_where_experts_are(tmp_path: Path) -> None:
    """The fields that say which blocks have experts, each on a model of eight blocks."""
    qwen = QWEN3_30 | {"num_hidden_layers": 8}
    step = read(tmp_path, qwen | {"decoder_sparse_step": 2, "mlp_only_layers": [3]})
    assert [step.kinds[kind].name for kind in step.order] == [
        *("dense", "moe", "dense", "dense"),
        *("dense", "moe", "dense", "moe"),
    ]
    deepseek = DEEPSEEK_V3 | {"num_hidden_layers": 8, "moe_layer_freq": 2}
    every = read(tmp_path, deepseek | {"num_nextn_predict_layers": 2})
    assert every.order == (0, 0, 0, 0, 1, 0, 1, 0, 2, 2)
    assert every.kinds[2].experts is None  # a prediction block is like the last main block
    none = read(tmp_path, qwen | {"decoder_sparse_step": 0})
    assert (none.kinds, none.experts, none.ffn_hidden) == ((), None, 6144)
    text = MAVERICK["text_config"]
    assert isinstance(text, dict)
    chosen = read(tmp_path, text | {"num_hidden_layers": 8, "moe_layers": [0, 7]})
    assert [chosen.kinds[kind].name for kind in chosen.order] == [
        *("chunked-moe", "chunked-dense", "chunked-dense", "full-dense"),
        *("chunked-dense", "chunked-dense", "chunked-dense", "full-moe"),
    ]
    ernie = sized(
        "ernie4_5_moe",
        (8, 256, 4, 2, 512, 1000),
        {
            "moe_intermediate_size": 64,
            "moe_k": 2,
            "moe_layer_end_index": 5,
            "moe_layer_interval": 2,
            "moe_layer_start_index": 2,
            "moe_num_experts": 4,
        },
    )
    assert read(tmp_path, ernie).order == (0, 0, 0, 1, 0, 1, 0, 0)


def test_windows_where_no_list_says(tmp_path: Path) -> None:
    base = {"head_dim": 64, "max_position_embeddings": 8192, "sliding_window": 512}
    gemma3 = read(tmp_path, sized("gemma3_text", (12, 256, 4, 2, 512, 1000), base))
    assert gemma3.order == ((0,) * 5 + (1,)) * 2
    assert (gemma3.kinds[0].window, gemma3.qk_norm) == (512, True)
    assert read(tmp_path, sized("gemma2", (4, 256, 4, 2, 512, 1000), base)).order == (0, 1, 0, 1)
    cohere = read(tmp_path, sized("cohere2", (8, 256, 4, 2, 512, 1000), base))
    assert cohere.order == (0, 0, 0, 1) * 2
    qwen = sized("qwen2", (4, 256, 4, 2, 512, 1000), base | {"max_window_layers": 3})
    assert read(tmp_path, qwen).kinds == ()
    assert read(tmp_path, qwen | {"use_sliding_window": True}).order == (0, 0, 0, 1)


def test_multimodal_models_are_read_for_their_text(tmp_path: Path) -> None:
    model = read(tmp_path, MAVERICK)
    assert "approximated: all but the text model is left out" in model.sources
    with pytest.raises(InputError, match="multimodal"):
        read(tmp_path, MIXTRAL | {"text_config": {}})


@pytest.mark.parametrize(
    ("config", "change", "code"),
    [
        (MIXTRAL, {"num_local_experts": None}, "MISSING_FIELD"),
        (MIXTRAL, {"num_experts_per_tok": 9}, "MORE_ACTIVE_THAN_EXPERTS"),
        (MIXTRAL, {"num_hidden_layers": 10**12}, "OUT_OF_RANGE"),
        (QWEN3_30, {"mlp_only_layers": 3}, "WRONG_TYPE"),
        (QWEN3_30, {"mlp_only_layers": ["a"]}, "WRONG_TYPE"),
        (QWEN2_57, {"shared_expert_intermediate_size": None}, "MISSING_FIELD"),
        (DEEPSEEK_V3, {"kv_lora_rank": None}, "MISSING_FIELD"),
        (DEEPSEEK_V3, {"num_nextn_predict_layers": 10**9}, "OUT_OF_RANGE"),
        (DEEPSEEK_V3, {"num_nextn_predict_layers": -1}, "OUT_OF_RANGE"),
        (GPT_OSS_20, {"layer_types": ["full_attention"]}, "BLOCKS_DIFFER"),
        (T5_11B, {"feed_forward_proj": 3}, "WRONG_TYPE"),
        (T5_11B, {"feed_forward_proj": "gated-exotic"}, "UNKNOWN_ACTIVATION"),
        (T5_11B, {"num_decoder_layers": 0}, "OUT_OF_RANGE"),
        (BERT_LARGE, {"is_decoder": True}, "DIMENSION_NOT_YET_SEARCHED"),
        (BERT_LARGE, {"add_cross_attention": True}, "DIMENSION_NOT_YET_SEARCHED"),
        (NEMOTRON_H, {"hybrid_override_pattern": None}, "MISSING_FIELD"),
        (NEMOTRON_H, {"hybrid_override_pattern": "M-"}, "BLOCKS_DIFFER"),
        (NEMOTRON_H, {"hybrid_override_pattern": "X" * 52}, "UNKNOWN_BLOCK"),
        (NEMOTRON_H, {"moe_latent_size": 1024}, "DIMENSION_NOT_YET_SEARCHED"),
        (NEMOTRON_H, {"num_nextn_predict_layers": 1}, "DIMENSION_NOT_YET_SEARCHED"),
        (NEMOTRON_H, {"mamba_num_heads": 100}, "HEADS_NOT_DIVISIBLE_BY_GROUPS"),
        (DBRX, {"ffn_config": None}, "MISSING_FIELD"),
        (DBRX, {"n_heads": 47}, "HEADS_DO_NOT_DIVIDE_HIDDEN"),
    ],
)
def test_refusals(tmp_path: Path, config: Config, change: Config, code: str) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, json.loads(json.dumps(config | change)))
    assert caught.value.code == code
    assert str(caught.value).isprintable()
