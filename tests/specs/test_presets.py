"""The data sets: every preset loads, is cited, and has the published number of parameters."""

import json
import re
from dataclasses import MISSING, fields
from decimal import Decimal

import pytest

from ilp_parallel.specs.model import ModelSpec
from ilp_parallel.specs.readers import (
    CLUSTER_ALIASES,
    MODEL_ALIASES,
    cluster_names,
    data_root,
    load_cluster,
    load_model,
    model_names,
)
from ilp_parallel.specs.validate import default_precision

MEGATRON = [name for name in model_names() if name.startswith("megatron-")]

ISSUE_MODELS = {
    *["gpt2-xl", "gpt3", "turing-530b", "bloom-176b", "llama2-7b", "llama2-13b", "llama2-70b"],
    *["llama3-8b", "llama3-70b", "llama3-405b", "megatron-1.7b", "megatron-3.6b", "megatron-7.5b"],
    *["megatron-18.4b", "megatron-39.1b", "megatron-76.1b", "megatron-145.6b", "megatron-310.1b"],
    *["megatron-529.6b", "megatron-1t"],
    *["bert-large", "deepseek-v2", "deepseek-v3", "gpt-oss-120b", "gpt-oss-20b", "kimi-k2"],
    *["llama4-maverick", "mixtral-8x7b", "mixtral-8x22b", "nemotron-h-8b", "nemotron4-340b"],
    *["qwen2-57b-a14b", "qwen3-8b", "qwen3-14b", "qwen3-32b", "qwen3-30b-a3b", "qwen3-235b-a22b"],
    "t5-11b",
}
ISSUE_CLUSTERS = {
    *["v100-16gb", "v100-32gb", "a100-40gb", "a100-80gb", "h100-80gb", "h200-141gb", "h800-80gb"],
    *["b200", "b300", "gb200", "gb300"],
}


def test_the_promised_presets_are_there() -> None:
    assert set(model_names()) == ISSUE_MODELS
    assert set(cluster_names()) == ISSUE_CLUSTERS


def half_last_digit(figure: float) -> float:
    """Half a unit of the last digit that is not zero, as a published figure is rounded."""
    exponent = Decimal(repr(figure)).normalize().as_tuple().exponent
    assert isinstance(exponent, int)
    return 0.5 * 10.0**exponent


@pytest.mark.parametrize("name", model_names())
def test_parameters_are_the_published_ones_within_their_rounding(name: str) -> None:
    model = load_model(name)
    assert model.name == name
    assert model.published_parameters is not None
    gap = abs(model.main_parameters - model.published_parameters)
    assert gap <= half_last_digit(model.published_parameters)


@pytest.mark.parametrize("name", MEGATRON)
def test_megatron_counts_follow_equation_2_of_the_paper(name: str) -> None:
    """P = 12 l h^2 (1 + 13/(12 h) + (V + s)/(12 l h)); the final norm (2 h) is left out there."""
    model = load_model(name)
    h, layers = model.hidden, model.layers
    equation = 12 * layers * h * h + 13 * layers * h + (51200 + 2048) * h
    assert model.parameters == equation + 2 * h
    assert model.ffn_hidden == 4 * h


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("llama2-7b", "6.738"),
        ("llama2-13b", "13.016"),
        ("llama2-70b", "68.977"),
        ("llama3-8b", "8.030"),
        ("llama3-70b", "70.554"),
        ("llama3-405b", "405.853"),
    ],
)
def test_llama_counts_to_the_million(name: str, billions: str) -> None:
    """Sums of the tensors of the checkpoints, to three decimals."""
    assert f"{load_model(name).parameters / 1e9:.3f}" == billions


@pytest.mark.parametrize(
    ("name", "total", "prediction"),
    [
        ("bert-large", 335_174_458, 0),  # of the class with a masked-language-model head
        ("deepseek-v2", 235_741_434_880, 0),
        ("deepseek-v3", 671_026_419_200, 11_610_068_224),
        ("gpt-oss-120b", 116_829_156_672, 0),
        ("gpt-oss-20b", 20_914_757_184, 0),
        ("kimi-k2", 1_026_408_232_448, 0),
        ("mixtral-8x7b", 46_702_792_704, 0),
        ("mixtral-8x22b", 140_620_634_112, 0),
        ("nemotron-h-8b", 8_100_852_736, 0),
        ("qwen2-57b-a14b", 57_408_658_944, 0),
        ("qwen3-8b", 8_190_735_360, 0),
        ("qwen3-30b-a3b", 30_532_122_624, 0),
        ("qwen3-235b-a22b", 235_093_634_560, 0),
        ("t5-11b", 11_307_321_344, 0),
    ],
)
def test_counts_of_the_checkpoints(name: str, total: int, prediction: int) -> None:
    """Elements of the checkpoints' tensors (a prediction block's copies of shared ones apart)."""
    model = load_model(name)
    assert (model.main_parameters, model.parameters - total) == (total, prediction)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("deepseek-v2", 21),
        ("llama4-maverick", 17),
        ("mixtral-8x7b", 12.9),
        ("mixtral-8x22b", 39),
        ("qwen2-57b-a14b", 14),
        ("qwen3-30b-a3b", 3),
        ("qwen3-235b-a22b", 22),
    ],
)
def test_active_parameters_are_the_published_ones(name: str, billions: float) -> None:
    active = load_model(name).active_parameters / 1e9
    assert abs(active - billions) <= half_last_digit(billions)


@pytest.mark.parametrize(
    ("name", "billions"), [("deepseek-v3", 36.6), ("gpt-oss-120b", 5.1), ("gpt-oss-20b", 3.6)]
)
def test_active_parameters_without_embedding_and_prediction(name: str, billions: float) -> None:
    """As gpt-oss's model card and the notes on DeepSeek-V3's checkpoint count them."""
    model = load_model(name)
    active = (model.main_active_parameters - model.embedding_parameters) / 1e9
    assert abs(active - billions) <= half_last_digit(billions)


def test_blocks_of_models_with_several_kinds() -> None:
    """Where each kind of block is, as the configurations of the checkpoints say."""
    order = {name: load_model(name).order for name in model_names()}
    assert order["deepseek-v3"] == (0,) * 3 + (1,) * 58 + (2,)
    assert order["deepseek-v2"] == (0,) + (1,) * 59
    assert order["kimi-k2"] == (0,) + (1,) * 60
    assert order["t5-11b"] == (0,) * 24 + (1,) * 24
    assert order["gpt-oss-120b"] == (0, 1) * 18
    assert order["gpt-oss-20b"] == (0, 1) * 12
    assert order["llama4-maverick"] == (0, 1, 0, 2) * 12
    pattern = "".join("M-*"[kind] for kind in order["nemotron-h-8b"])
    assert pattern == "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"
    assert [kind.name for kind in load_model("deepseek-v3").kinds] == ["dense", "moe", "mtp"]


@pytest.mark.parametrize("name", model_names())
def test_model_defaults_make_a_whole_job(name: str) -> None:
    model = load_model(name)
    assert model.default_cluster and model.default_batch and model.default_sequence
    assert load_cluster(model.default_cluster).devices >= 8
    if model.learned_positions:
        assert model.default_sequence <= model.learned_positions
    assert sum("default_cluster" in s or "devices" in s or "nodes" in s for s in model.sources)


@pytest.mark.parametrize(
    ("name", "devices", "batch", "sequence"),
    [
        ("gpt3", 1024, 1536, 2048),
        ("turing-530b", 2240, 1920, 2048),
        ("megatron-1t", 3072, 3072, 2048),
        ("llama3-405b", 16384, 2048, 8192),
        ("llama3-8b", 8, 128, 8192),
        ("deepseek-v3", 2048, 15360, 4096),
        ("qwen3-235b-a22b", 256, 2048, 4096),
        ("mixtral-8x7b", 64, 256, 4096),
        ("t5-11b", 32, 2048, 512),
    ],
)
def test_defaults_of_the_reference_jobs(name: str, devices: int, batch: int, sequence: int) -> None:
    model = load_model(name)
    assert model.default_cluster is not None
    assert load_cluster(model.default_cluster).devices == devices
    assert (model.default_batch, model.default_sequence) == (batch, sequence)


@pytest.mark.parametrize("name", cluster_names())
def test_every_figure_of_a_device_has_a_source(name: str) -> None:
    cluster = load_cluster(name)
    cited = {source.partition(":")[0] for source in cluster.device.sources}
    data = json.loads((data_root() / "clusters" / f"{name}.json").read_text())
    figures = {f"device.{key}" for key in data["device"]} - {"device.name", "device.sources"}
    figures |= {f"{link}.{key}" for link in ("intra", "inter") for key in data[link]}
    assert cited == figures | {"devices_per_node"}


@pytest.mark.parametrize("name", cluster_names())
def test_devices_are_plausible(name: str) -> None:
    """The device reports less than its name promises in GiB, and more than 90 % of it in GB."""
    cluster = load_cluster(name)
    device = cluster.device
    promised = re.search(r"-(\d+)gb", name)
    if promised:
        assert 0.98 * int(promised[1]) * 1e9 < device.memory_bytes <= int(promised[1]) * 2**30
    assert device.memory_bytes % 2**20 == 0
    peaks = device.peak_flops
    assert peaks.get("bf16", peaks["fp16"]) == peaks["fp16"]
    assert peaks.get("fp8", 2 * peaks["fp16"]) == pytest.approx(2 * peaks["fp16"], rel=1e-3)
    assert cluster.intra.bandwidth_bytes_per_s > 2 * cluster.inter.bandwidth_bytes_per_s
    assert cluster.intra.latency_s < cluster.inter.latency_s
    expected = "megatron-fp16" if device.generation == "volta" else "megatron-bf16"
    assert default_precision(cluster) == expected


def test_aliases_lead_to_presets() -> None:
    for alias, name in MODEL_ALIASES.items():
        assert load_model(alias) == load_model(name)
    for alias, name in CLUSTER_ALIASES.items():
        assert load_cluster(alias.upper()) == load_cluster(name)


def test_model_files_hold_the_fields_of_the_type_and_no_default_in_full() -> None:
    """What every model has is said; what only some have is said where it is not the default."""
    cited = {"sources", "published_parameters", "default_cluster", "default_batch"}
    optional = {f.name: f.default for f in fields(ModelSpec) if f.default is not MISSING}
    required = {f.name for f in fields(ModelSpec) if f.default is MISSING}
    for name in model_names():
        data = json.loads((data_root() / "models" / f"{name}.json").read_text())
        assert required | cited | {"default_sequence"} <= set(data) <= set(ModelSpec.__slots__)
        model = load_model(name)
        said = set(data) - required - cited - {"default_sequence"}
        assert all(getattr(model, key) != optional[key] for key in said)
