"""Blocks of several kinds in Megatron-LM's arguments give the presets' shapes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ilp_parallel.errors import InputError
from ilp_parallel.imports.complete import model_from
from ilp_parallel.imports.megatron import read_megatron
from ilp_parallel.imports.megatron_blocks import layer_pattern
from ilp_parallel.specs.readers import load_model

if TYPE_CHECKING:
    from ilp_parallel.specs.model import ModelSpec

RUN = "--micro-batch-size 1 --global-batch-size 64 --seq-length 4096 --bf16 "
LLAMA_LIKE = (
    "--swiglu --normalization RMSNorm --disable-bias-linear --position-embedding-type rope "
    "--untie-embeddings-and-output-weights --attention-dropout 0.0 --hidden-dropout 0.0 "
)
MIXTRAL = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 "
    "--group-query-attention --num-query-groups 8 --vocab-size 32000 --num-experts 8 "
    "--moe-router-topk 2 "
)
QWEN3 = (
    "--num-layers 94 --hidden-size 4096 --ffn-hidden-size 12288 --num-attention-heads 64 "
    "--group-query-attention --num-query-groups 4 --kv-channels 128 --vocab-size 151936 "
    "--qk-layernorm --num-experts 128 --moe-router-topk 8 --moe-ffn-hidden-size 1536 "
)
QWEN2 = (
    "--num-layers 28 --hidden-size 3584 --ffn-hidden-size 18944 --num-attention-heads 28 "
    "--group-query-attention --num-query-groups 4 --vocab-size 151936 --add-qkv-bias "
    "--num-experts 64 --moe-router-topk 8 --moe-ffn-hidden-size 2560 "
    "--moe-shared-expert-intermediate-size 20480 --moe-shared-expert-gate "
)
LATENT = (
    "--multi-latent-attention --q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim 128 "
    "--qk-pos-emb-head-dim 64 --v-head-dim 128 --qk-layernorm "
)
DEEPSEEK_V3 = LATENT + (
    "--num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432 --num-attention-heads 128 "
    "--kv-channels 128 --vocab-size 129280 --num-experts 256 --moe-router-topk 8 "
    "--moe-ffn-hidden-size 2048 --moe-shared-expert-intermediate-size 2048 "
    "--moe-router-enable-expert-bias --moe-layer-freq '([0]*3+[1]*58)' --mtp-num-layers 1 "
)
DEEPSEEK_V2 = LATENT + (
    "--num-layers 60 --hidden-size 5120 --ffn-hidden-size 12288 --num-attention-heads 128 "
    "--vocab-size 102400 --num-experts 160 --moe-router-topk 6 --moe-ffn-hidden-size 1536 "
    "--moe-shared-expert-intermediate-size 3072 --moe-layer-freq [0]+[1]*59 "
)
GPT_OSS = (
    "--swiglu --normalization RMSNorm --position-embedding-type rope "
    "--untie-embeddings-and-output-weights --attention-dropout 0.0 --hidden-dropout 0.0 "
    "--num-layers 24 --hidden-size 2880 --ffn-hidden-size 2880 --num-attention-heads 64 "
    "--group-query-attention --num-query-groups 8 --kv-channels 64 --vocab-size 201088 "
    "--num-experts 32 --moe-router-topk 4 --moe-router-enable-expert-bias "
    "--softmax-type learnable --window-size 128,0 --window-attn-skip-freq 2 "
)


def model_of(words: str, preset: ModelSpec | None = None) -> ModelSpec:
    return model_from(read_megatron(RUN + words, "run.sh", None), preset, None)


@pytest.mark.parametrize(
    ("words", "preset"),
    [
        (LLAMA_LIKE + MIXTRAL, "mixtral-8x7b"),
        (LLAMA_LIKE + QWEN3, "qwen3-235b-a22b"),
        (LLAMA_LIKE + QWEN2, "qwen2-57b-a14b"),
        (LLAMA_LIKE + DEEPSEEK_V2, "deepseek-v2"),
        (LLAMA_LIKE + DEEPSEEK_V3, "deepseek-v3"),
        (GPT_OSS, "gpt-oss-20b"),
    ],
    ids=lambda value: value if "-" not in value[:2] else "",
)
def test_same_shapes_as_the_preset(words: str, preset: str) -> None:
    expected = load_model(preset)
    cited = {
        "name": "megatron",
        "sources": ("shapes stated in a megatron file",),
        "published_parameters": None,
        "default_cluster": None,
        "default_batch": None,
        "default_sequence": None,
    }
    assert model_of(words) == replace(expected, **cited)  # type: ignore[arg-type]
    assert model_of(words, expected) is expected


@pytest.mark.parametrize(
    "change",
    [
        ("--num-experts 256", "--num-experts 128"),
        ("[0]*3+[1]*58", "[0]*1+[1]*60"),
        ("--mtp-num-layers 1", ""),
        ("--kv-lora-rank 512", "--kv-lora-rank 256"),
    ],
)
def test_a_preset_that_differs_is_refused(change: tuple[str, str]) -> None:
    words = (LLAMA_LIKE + DEEPSEEK_V3).replace(*change)
    with pytest.raises(InputError) as caught:
        model_of(words, load_model("deepseek-v3"))
    assert caught.value.code == "MODEL_DIFFERS"


def test_degrees_of_experts_are_read() -> None:
    degrees = "--tensor-model-parallel-size 2 --expert-model-parallel-size 4 "
    found = read_megatron(RUN + LLAMA_LIKE + MIXTRAL + degrees, "run.sh", 16)
    assert (found.expert, found.expert_tensor) == (4, 2)
    other = f"{degrees} --expert-tensor-parallel-size 1"
    found = read_megatron(RUN + LLAMA_LIKE + MIXTRAL + other, "run.sh", 16)
    assert (found.expert, found.expert_tensor) == (4, 1)


def test_every_so_many_layers_have_experts_or_see_all() -> None:
    small = MIXTRAL.replace("--num-layers 32", "--num-layers 6") + LLAMA_LIKE
    experts = model_of(f"{small} --moe-layer-freq 3")
    assert [experts.kinds[kind].name for kind in experts.order] == ["moe", "dense", "dense"] * 2
    seen = model_of(f"{small} --window-size (512,0) --window-attn-skip-freq 3")
    assert [seen.kinds[kind].window for kind in seen.order] == [512, 512, 0] * 2
    assert model_of(f"{small} --window-size 512,0").window == 512
    assert model_of(f"{small} --window-size -1,0").window == 0


Pair = tuple[str, list[int]]  # a pattern and the list that it means


def added(pair: tuple[Pair, Pair]) -> Pair:
    (left, first), (right, second) = pair
    return f"({left}+{right})", first + second


def repeated(pair: tuple[Pair, int]) -> Pair:
    (text, values), times = pair
    return f"({text})*{times}", values * times


bare = st.lists(st.integers(0, 1), min_size=1, max_size=4).map(
    lambda row: (f"[{','.join(map(str, row))}]", row)
)
patterns = st.recursive(
    bare | st.tuples(bare, st.integers(0, 3)).map(lambda p: (f"{p[0][0]}*{p[1]}", p[0][1] * p[1])),
    lambda inner: (
        st.tuples(inner, inner).map(added) | st.tuples(inner, st.integers(0, 4)).map(repeated)
    ),
    max_leaves=6,
)


@given(patterns)
def test_patterns_mean_the_lists_they_are_made_from(pair: Pair) -> None:
    text, values = pair
    assert layer_pattern(text, len(values), "--moe-layer-freq") == [bool(v) for v in values]


@pytest.mark.parametrize(
    ("code", "text"),
    [
        *(
            ("MALFORMED_MEGATRON_ARGUMENTS", bad)
            for bad in ("[", "[0]*", "[2]*4", "([0]", "[0])", "[0]+", "[,]", "[0,]", "[0]x[1]")
        ),
        ("MALFORMED_MEGATRON_ARGUMENTS", "[1]*999999"),
        ("MALFORMED_MEGATRON_ARGUMENTS", "(" * 5000 + "[1]"),
        ("MALFORMED_MEGATRON_ARGUMENTS", "__import__('os')[0]"),
        ("MEGATRON_SIZES_DISAGREE", "[1]*3"),
    ],
)
def test_broken_patterns(code: str, text: str) -> None:
    with pytest.raises(InputError) as caught:
        layer_pattern(text, 4, "--moe-layer-freq")
    assert caught.value.code == code
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("code", "added"),
    [
        ("MEGATRON_FLAG_NOT_READ", "--window-size 4096,17"),
        ("MEGATRON_FLAG_NOT_READ", "--window-size wide"),
        ("MALFORMED_MEGATRON_ARGUMENTS", "--moe-layer-freq 0"),
        ("MALFORMED_MEGATRON_ARGUMENTS", "--moe-router-topk some"),
        ("MEGATRON_SIZES_DISAGREE", "--moe-layer-freq [1]*31"),
        ("MORE_ACTIVE_THAN_EXPERTS", "--moe-router-topk 9"),
    ],
)
def test_refusals(code: str, added: str) -> None:
    with pytest.raises(InputError) as caught:
        model_of(f"{LLAMA_LIKE}{MIXTRAL}{added}")
    assert caught.value.code == code
