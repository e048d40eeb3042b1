"""Hugging Face configurations give the shapes of the presets, or a reasoned refusal."""

import dataclasses
import json
from pathlib import Path

import pytest

from ilp_parallel.errors import InputError
from ilp_parallel.specs.huggingface import IMPORTERS, NOT_YET_SEARCHED
from ilp_parallel.specs.model import ModelSpec
from ilp_parallel.specs.readers import load_model

# What the files of the models on the hub say, without the fields that no size depends on.
GPT2_XL = {
    "model_type": "gpt2",
    "activation_function": "gelu_new",
    "attn_pdrop": 0.1,
    "n_embd": 1600,
    "n_head": 25,
    "n_layer": 48,
    "n_positions": 1024,
    "vocab_size": 50257,
}
BLOOM = {
    "model_type": "bloom",
    "attention_dropout": 0.0,
    "hidden_dropout": 0.0,
    "n_embed": 14336,
    "n_layer": 70,
    "num_attention_heads": 112,
    "vocab_size": 250880,
}
LLAMA2_7B = {
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "max_position_embeddings": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "vocab_size": 32000,
}
LLAMA3_70B = LLAMA2_7B | {
    "attention_bias": False,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "max_position_embeddings": 8192,
    "num_attention_heads": 64,
    "num_hidden_layers": 80,
    "num_key_value_heads": 8,
    "rope_theta": 500000.0,
    "vocab_size": 128256,
}

NOT_SHAPES = {
    *("name", "sources", "published_parameters"),
    *("default_cluster", "default_batch", "default_sequence"),
}


def shapes(model: ModelSpec) -> dict[str, object]:
    return {key: value for key, value in dataclasses.asdict(model).items() if key not in NOT_SHAPES}


def read(tmp_path: Path, config: dict[str, object]) -> ModelSpec:
    folder = tmp_path / "some-model"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return load_model(str(folder / "config.json"))


@pytest.mark.parametrize(
    ("config", "preset"),
    [
        (GPT2_XL, "gpt2-xl"),
        (BLOOM, "bloom-176b"),
        (LLAMA2_7B, "llama2-7b"),
        (LLAMA3_70B, "llama3-70b"),
    ],
)
def test_same_shapes_as_the_preset(tmp_path: Path, config: dict[str, object], preset: str) -> None:
    model = read(tmp_path, config)
    assert shapes(model) == shapes(load_model(preset))
    assert model.name == "some-model"


def test_defaults_of_the_configuration_classes(tmp_path: Path) -> None:
    without = {key: value for key, value in LLAMA2_7B.items() if key != "num_key_value_heads"}
    assert read(tmp_path, without).kv_heads == 32
    assert read(tmp_path, LLAMA2_7B | {"head_dim": 256}).query_width == 32 * 256
    assert read(tmp_path, LLAMA2_7B | {"attention_bias": True}).projection_bias
    assert read(tmp_path, GPT2_XL | {"n_inner": 5000}).ffn_hidden == 5000
    no_dropout = {"attn_pdrop": 0.0, "embd_pdrop": 0, "resid_pdrop": 0.0}
    assert not read(tmp_path, GPT2_XL | no_dropout).dropout
    assert not read(tmp_path, GPT2_XL | {"tie_word_embeddings": False}).tied_embeddings


def test_qwen2_has_biases_on_queries_keys_and_values_only(tmp_path: Path) -> None:
    """Qwen2-7B: 7,615,616,512 parameters (sum of its checkpoint's tensors)."""
    config = LLAMA2_7B | {
        "model_type": "qwen2",
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_attention_heads": 28,
        "num_hidden_layers": 28,
        "num_key_value_heads": 4,
        "sliding_window": 131072,
        "use_sliding_window": False,
        "vocab_size": 152064,
    }
    assert read(tmp_path, config).parameters == 7_615_616_512


def test_mistral_needs_its_key_heads(tmp_path: Path) -> None:
    """Mistral-7B-v0.3: 7,248,023,552 parameters (sum of its checkpoint's tensors)."""
    config = LLAMA2_7B | {
        "model_type": "mistral",
        "intermediate_size": 14336,
        "num_key_value_heads": 8,
        "sliding_window": None,
        "vocab_size": 32768,
    }
    assert read(tmp_path, config).parameters == 7_248_023_552
    with pytest.raises(InputError) as caught:
        read(tmp_path, config | {"num_key_value_heads": None})
    assert caught.value.code == "MISSING_FIELD"
    assert read(tmp_path, config | {"sliding_window": 2048}).window == 2048
    endless = {"sliding_window": 4096, "max_position_embeddings": None}
    assert read(tmp_path, config | endless).window == 4096


def test_a_window_as_long_as_the_longest_sequence_is_full_attention(tmp_path: Path) -> None:
    full = {"sliding_window": 2048, "layer_types": ["full_attention"] * 32}
    for change in ({"sliding_window": 4096}, {"sliding_window": 1, **NO_WINDOW}, full):
        assert read(tmp_path, LLAMA2_7B | change).layers == 32
    mixed = {"sliding_window": 2048, "layer_types": ["full_attention", "sliding_attention"] * 16}
    model = read(tmp_path, LLAMA2_7B | mixed)
    assert [kind.name for kind in model.kinds] == ["full", "sliding"]
    assert (model.order, model.kinds[1].window) == ((0, 1) * 16, 2048)
    assert model.parameters == read(tmp_path, LLAMA2_7B).parameters


NO_WINDOW = {"use_sliding_window": False}


@pytest.mark.parametrize("model_type", NOT_YET_SEARCHED)
def test_recognised_models_are_refused_by_dimension(tmp_path: Path, model_type: str) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, {"model_type": model_type})
    assert caught.value.code == "DIMENSION_NOT_YET_SEARCHED"
    assert NOT_YET_SEARCHED[model_type] in caught.value.message
    assert model_type not in IMPORTERS


@pytest.mark.parametrize(
    ("change", "code", "word"),
    [
        ({"num_local_experts": 8}, "DIMENSION_NOT_YET_SEARCHED", "expert"),
        ({"model_type": "new", "n_routed_experts": 64}, "DIMENSION_NOT_YET_SEARCHED", "expert"),
        ({"model_type": "new", "is_encoder_decoder": True}, "DIMENSION_NOT_YET_SEARCHED", "enc"),
        ({"text_config": {}}, "DIMENSION_NOT_YET_SEARCHED", "multimodal"),
        ({"model_type": "lama"}, "UNKNOWN_MODEL_TYPE", "llama"),
        ({"model_type": "quite-other"}, "UNKNOWN_MODEL_TYPE", "explicitly"),
        ({"model_type": None}, "UNKNOWN_MODEL_TYPE", "explicitly"),
        ({"model_type": 3}, "UNKNOWN_MODEL_TYPE", "explicitly"),
        ({"hidden_size": None}, "MISSING_FIELD", "hidden_size"),
        ({"hidden_size": "4096"}, "WRONG_TYPE", "hidden_size"),
        ({"hidden_size": True}, "WRONG_TYPE", "hidden_size"),
        ({"hidden_size": -4096}, "OUT_OF_RANGE", "hidden"),
        ({"num_attention_heads": 33}, "HEADS_DO_NOT_DIVIDE_HIDDEN", "33"),
        ({"num_attention_heads": 0}, "HEADS_DO_NOT_DIVIDE_HIDDEN", "0"),
        ({"num_key_value_heads": 5}, "KV_HEADS_DO_NOT_DIVIDE_HEADS", "5"),
        ({"hidden_act": "exotic"}, "UNKNOWN_ACTIVATION", "exotic"),
        ({"mlp_bias": "no"}, "WRONG_TYPE", "mlp_bias"),
        ({"sliding_window": "4k"}, "WRONG_TYPE", "sliding_window"),
        ({"layer_types": "full_attention"}, "WRONG_TYPE", "layer_types"),
        ({"layer_types": ["full_attention"]}, "BLOCKS_DIFFER", "32 blocks"),
        ({"layer_types": ["conv"] * 32}, "UNKNOWN_BLOCK", "conv"),
        ({"num_hidden_layers": 10**9, "sliding_window": 9}, "OUT_OF_RANGE", "layers"),
        ({"attention_dropout": "0.1"}, "WRONG_TYPE", "attention_dropout"),
    ],
)
def test_refusals(tmp_path: Path, change: dict[str, object], code: str, word: str) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, LLAMA2_7B | change)
    assert caught.value.code == code
    assert word in str(caught.value)
    assert str(caught.value).isprintable()
