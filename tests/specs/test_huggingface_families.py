"""Every dense family: parameters published by its makers, shapes, what is approximated."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from ilp_parallel.errors import InputError
from ilp_parallel.specs.huggingface_families import DENSE_IMPORTERS
from ilp_parallel.specs.readers import load_model

if TYPE_CHECKING:
    from pathlib import Path

    from ilp_parallel.specs.model import ModelSpec

Config = dict[str, object]


def plain(model_type: str, layers: int, hidden: int, heads: int, ffn: int, vocab: int) -> Config:
    return {
        "model_type": model_type,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "intermediate_size": ffn,
        "vocab_size": vocab,
    }


NEOX = plain("gpt_neox", 44, 6144, 64, 24576, 50432)
QWEN3 = plain("qwen3", 36, 4096, 32, 12288, 151936) | {"num_key_value_heads": 8, "head_dim": 128}
GEMMA = plain("gemma", 28, 3072, 16, 24576, 256000) | {"num_key_value_heads": 16, "head_dim": 256}
PHI3 = plain("phi3", 32, 3072, 32, 8192, 32064)
PHI2 = plain("phi", 32, 2560, 32, 10240, 51200)
OLMO = plain("olmo", 32, 4096, 32, 11008, 50304)
OLMO2 = plain("olmo2", 32, 4096, 32, 11008, 100352)
COHERE = plain("cohere", 40, 8192, 64, 22528, 256000)
STARCODER2 = plain("starcoder2", 32, 4608, 36, 18432, 49152) | {"num_key_value_heads": 4}
GPTJ = {
    "model_type": "gptj",
    "n_layer": 28,
    "n_embd": 4096,
    "n_head": 16,
    "n_positions": 2048,
    "vocab_size": 50400,
}
STARCODER = {
    "model_type": "gpt_bigcode",
    "n_layer": 40,
    "n_embd": 6144,
    "n_head": 48,
    "n_inner": 24576,
    "n_positions": 8192,
    "multi_query": True,
    "vocab_size": 49152,
}
OPT = {
    "model_type": "opt",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "ffn_dim": 16384,
    "max_position_embeddings": 2048,
    "vocab_size": 50272,
    "word_embed_proj_dim": 4096,
}
MPT = {
    "model_type": "mpt",
    "n_layers": 32,
    "d_model": 4096,
    "n_heads": 32,
    "expansion_ratio": 4,
    "max_seq_len": 2048,
    "vocab_size": 50432,
    "no_bias": True,
    "attn_config": {"alibi": True},
}


def read(tmp_path: Path, config: Config) -> ModelSpec:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    return load_model(str(path))


@pytest.mark.parametrize(
    ("config", "published", "left_out"),
    [
        # published: number of elements in the checkpoint; left_out: what a model spec cannot say
        (NEOX, 20_554_567_680, 0),
        (QWEN3, 8_190_735_360, 0),
        (GEMMA, 8_537_680_896, 0),
        (PHI3, 3_821_079_552, 0),
        (PHI2, 2_779_683_840, 51200 - 32 * 2 * 2560),
        (OLMO, 6_888_095_744, -(32 * 2 + 1) * 2 * 4096),
        (OLMO2, 7_298_617_344, 32 * 2 * 4096),
        (COHERE, 34_980_831_232, -(40 * 3 + 1) * 8192),
        (STARCODER2, 7_173_923_840, 0),
        (GPTJ, 6_050_882_784, 50400 - 28 * 2 * 4096),
        (STARCODER, 15_517_456_384, 0),
        (OPT, 6_658_473_984, 0),
        (MPT, 6_649_286_656, -(32 * 2 + 1) * 4096),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)
def test_parameters_are_the_published_ones(
    tmp_path: Path, config: Config, published: int, left_out: int
) -> None:
    model = read(tmp_path, config)
    assert model.parameters + left_out == published
    assert any("approximated" in source for source in model.sources) == (left_out != 0)


def test_every_family_is_covered_by_a_test() -> None:
    here = {
        str(config["model_type"])
        for config in (
            *(NEOX, QWEN3, GEMMA, PHI3, PHI2, OLMO, OLMO2, COHERE, STARCODER2),
            *(GPTJ, STARCODER, OPT, MPT),
        )
    }
    elsewhere = {"gpt2", "bloom", "llama", "mistral", "qwen2"}
    below = {"granite", "glm4", "ernie4_5", "falcon"}
    assert here | elsewhere | below == set(DENSE_IMPORTERS)


@pytest.mark.parametrize(
    ("change", "kv_heads", "approximated"),
    [
        ({"multi_query": True}, 1, True),
        ({"multi_query": False}, 64, True),
        ({"new_decoder_architecture": True, "num_kv_heads": 8}, 8, False),
        ({"new_decoder_architecture": True, "num_ln_in_parallel_attn": 1}, 64, True),
        ({"multi_query": False, "parallel_attn": False}, 64, False),
    ],
)
def test_falcon_generations(
    tmp_path: Path, change: Config, kv_heads: int, approximated: bool
) -> None:
    base = plain("falcon", 60, 8192, 64, 0, 65024)
    model = read(tmp_path, base | change)
    assert (model.kv_heads, model.ffn_hidden) == (kv_heads, 4 * 8192)
    assert (model.gated_mlp, model.norm, model.mlp_bias) == (False, "layernorm", False)
    assert any("approximated" in source for source in model.sources) == approximated


def test_llama_like_families(tmp_path: Path) -> None:
    granite = read(tmp_path, plain("granite", 40, 4096, 32, 12800, 49152))
    assert (granite.kv_heads, granite.gated_mlp, granite.qkv_bias) == (32, True, False)
    glm = plain("glm4", 40, 4096, 32, 13696, 151552)
    glm |= {"num_key_value_heads": 2, "attention_bias": True}
    model = read(tmp_path, glm)
    assert (model.qkv_bias, model.projection_bias, model.head_dim) == (True, False, 128)
    # GLM-4-9B-0414: 9,400,279,040 elements, two norms a block more than a model spec has
    assert model.parameters + 40 * 2 * 4096 == 9_400_279_040
    ernie = read(
        tmp_path, plain("ernie4_5", 18, 1024, 16, 3072, 103424) | {"num_key_value_heads": 2}
    )
    assert (ernie.head_dim, ernie.tied_embeddings, ernie.mlp_bias) == (128, True, False)
    # ERNIE-4.5-0.3B: 360,748,032 elements
    assert ernie.parameters == 360_748_032


def test_activations_and_positions(tmp_path: Path) -> None:
    opt = read(tmp_path, OPT)
    assert (opt.activation, opt.learned_positions, opt.default_sequence) == ("relu", 2050, 2048)
    gemma = read(tmp_path, GEMMA | {"hidden_activation": "gelu_pytorch_tanh"})
    assert (gemma.activation, gemma.gated_mlp, gemma.tied_embeddings) == ("gelu", True, True)
    learned = read(tmp_path, MPT | {"attn_config": {"alibi": False}})
    assert learned.learned_positions == 2048


def test_null_fields_take_the_defaults_of_the_family(tmp_path: Path) -> None:
    nulls = {"head_dim": None, "tie_word_embeddings": None}
    assert read(tmp_path, GEMMA | nulls).head_dim == 256
    assert read(tmp_path, COHERE | nulls).tied_embeddings


def test_embeddings_of_another_width_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, OPT | {"word_embed_proj_dim": 512})
    assert caught.value.code == "DIMENSION_NOT_YET_SEARCHED"
