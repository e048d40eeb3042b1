"""Plans of models with several kinds of blocks, written for Megatron-LM and read back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ilp_parallel.configuration import RECOMPUTE_SETS, Configuration, Strategy
from ilp_parallel.errors import InputError
from ilp_parallel.export.bridge import read_settings
from ilp_parallel.export.megatron import export_megatron
from ilp_parallel.export.megatron_blocks import block_gaps, module_words, predicted_layers
from ilp_parallel.export.megatron_layout import read_layout, write_layout
from ilp_parallel.export.megatron_reader import parse_megatron
from ilp_parallel.export.registry import export_plan
from ilp_parallel.imports.complete import model_from
from ilp_parallel.imports.megatron import read_megatron
from ilp_parallel.plan import Plan
from ilp_parallel.specs.job import JobSpec
from ilp_parallel.specs.readers import load_cluster, load_model

if TYPE_CHECKING:
    from ilp_parallel.specs.model import ModelSpec

NAMES = (
    *("mixtral-8x7b", "qwen2-57b-a14b", "qwen3-30b-a3b", "qwen3-235b-a22b", "deepseek-v2"),
    *("deepseek-v3", "kimi-k2", "gpt-oss-20b", "gpt-oss-120b"),
)
SETS = [modules for modules in RECOMPUTE_SETS if "full" not in modules]


def plan_of(
    model: ModelSpec, sizes: tuple[int, ...], modules: tuple[str, ...] = (), tensor: int = 2
) -> Plan:
    pipeline = len(sizes)
    cluster = load_cluster(f"h100-80gb:{pipeline * 2}x8")
    configuration = Configuration(
        pipeline=pipeline,
        tensor=tensor,
        data=16 // tensor,
        microbatch=1,
        microbatches=64,
        chunks=1,
        sequence_parallel=tensor > 1,
        schedule="1f1b",
        expert=4,
    )
    job = JobSpec(global_batch=64 * 16 // tensor, sequence_length=4096)
    strategies = (Strategy("1", modules),) * model.layers
    return Plan(model, cluster, job, "megatron", configuration, sizes, strategies)


def sizes_of(layers: int, stages: int = 4) -> tuple[int, ...]:
    return tuple(layers // stages + (s < layers % stages) for s in range(stages))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("modules", [SETS[0], SETS[-1]], ids=["none", "selective"])
def test_what_is_written_is_read_back(name: str, modules: tuple[str, ...]) -> None:
    model = load_model(name)
    plan = plan_of(model, sizes_of(model.layers), modules)
    words = export_megatron(plan).flags.arguments
    configuration, sizes, strategies = parse_megatron(words, plan.configuration.devices)
    assert configuration == plan.configuration
    assert sizes == plan.sizes
    assert strategies == plan.strategies


@pytest.mark.parametrize("name", NAMES)
def test_the_model_is_read_back(name: str) -> None:
    """A model that differed from the preset would be refused."""
    model = load_model(name)
    plan = plan_of(model, sizes_of(model.layers))
    words = (*export_megatron(plan).flags.arguments, "--vocab-size", str(model.vocab))
    assert model_from(read_megatron(" ".join(words), name, None), model, None) is model


def test_a_prediction_layer_alone_has_a_stage_of_its_own() -> None:
    model = load_model("deepseek-v3")
    assert predicted_layers(model) == 1
    plan = plan_of(model, (21, 20, 20, 1))
    flags = export_megatron(plan).flags
    assert flags.text("--pipeline-model-parallel-layout", "") == "Et*21|(t*20|)*2,mL"
    assert flags.integer("--num-layers") == 61
    assert flags.integer("--mtp-num-layers") == 1
    assert parse_megatron(flags.arguments, 64)[1] == plan.sizes


def test_layouts_with_prediction_layers() -> None:
    assert write_layout((2, 2, 3), 1) == "Et*2|t*2|t*2mL"
    assert read_layout("Et*2|t*2|t*2mL") == (2, 2, 3)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gpt3", ("core_attn", "mlp")),
        ("mixtral-8x7b", ("core_attn", "moe")),
        ("deepseek-v3", ("core_attn", "mlp", "moe")),
    ],
)
def test_the_second_half_is_named_by_its_kind(name: str, words: tuple[str, ...]) -> None:
    assert module_words(load_model(name), ("core_attn", "mlp")) == words


def test_half_of_the_modules_is_not_a_strategy() -> None:
    plan = plan_of(load_model("deepseek-v3"), (16, 16, 15, 15), ("mlp",))
    words = list(export_megatron(plan).flags.arguments)
    words.remove("moe")
    with pytest.raises(InputError) as caught:
        parse_megatron(words, 64)
    assert caught.value.code == "MEGATRON_FLAG_NOT_READ"


@pytest.mark.parametrize("name", ["t5-11b", "bert-large", "nemotron-h-8b"])
def test_what_has_no_option_is_named(name: str) -> None:
    assert list(block_gaps(load_model(name)))


def test_a_prediction_block_must_be_like_the_last() -> None:
    model = load_model("deepseek-v3")
    kinds = (*model.kinds[:-1], replace(model.kinds[-1], experts=None, ffn_hidden=18432))
    assert "a prediction block unlike the last one" in block_gaps(replace(model, kinds=kinds))


def test_degrees_reach_megatron_bridge() -> None:
    model = load_model("mixtral-8x7b")
    plan = plan_of(model, (8, 8, 8, 8))
    text = export_plan(plan, "megatron-bridge").files[0].text
    assert "cfg.model.expert_model_parallel_size = 4" in text
    assert "cfg.model.expert_tensor_parallel_size = 1" in text
    words = read_settings(text, 32, 8).arguments
    assert parse_megatron(words, 64)[0] == plan.configuration


def test_frameworks_without_expert_degrees_say_so() -> None:
    plan = plan_of(load_model("mixtral-8x7b"), (8, 8, 8, 8))
    with pytest.raises(InputError, match="expert degrees ep=4"):
        export_plan(plan, "colossalai")
