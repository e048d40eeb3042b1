"""Words of rows: known spellings, others by what they contain, and what cannot be read."""

from __future__ import annotations

import pytest

from ilp_parallel.measured import conventions as known
from ilp_parallel.measured.naming import (
    NotCoveredError,
    device_of,
    family_of,
    habit_of,
    kernels_of,
    network_bytes_per_s,
    precision_of,
)
from ilp_parallel.specs.readers import cluster_names

NEMO = habit_of("NeMo 24.07")
DEEPSPEED = habit_of("Megatron-DeepSpeed")


@pytest.mark.parametrize(
    ("framework", "stack", "zero"),
    [
        ("Megatron-Bridge 26.02 NeMo Container", "megatron", "1"),
        ("Megatron-LM 2021 + DeepSpeed ZeRO-3", "deepspeed", "3-regather"),
        ("megatron-deepspeed v0.3", "deepspeed", "0"),
        ("Megatron-LM 2021-05", "megatron-2021", "0"),
        ("torchtitan nightly", "torchtitan", "3-regather"),
        ("PyTorch FSDP2", "fsdp", "3-regather"),
        ("some DeepSpeed run", "deepspeed", "1"),
        ("MaxText", "jax", "3-regather"),
    ],
)
def test_frameworks(framework: str, stack: str, zero: str) -> None:
    habit = habit_of(framework)
    assert (habit.stack, habit.zero) == (stack, zero)


def test_an_unknown_framework_is_not_guessed() -> None:
    with pytest.raises(NotCoveredError, match="framework Colossus"):
        habit_of("Colossus")


@pytest.mark.parametrize(
    ("gpu", "memory", "name"),
    [
        ("A100", 40, "a100-40gb"),
        ("A100-SXM4", None, "a100-80gb"),
        ("nvidia h100 80GB HBM3", 80.0, "h100-80gb"),
        ("GB200", 192, "gb200"),
        ("B200", 180, "b200"),
        ("H200", 141, "h200-141gb"),
    ],
)
def test_devices(gpu: str, memory: float | None, name: str) -> None:
    assert device_of(gpu, memory) == name


def test_every_known_device_is_one_of_ours() -> None:
    assert set(known.DEVICES.values()) <= set(cluster_names())
    with pytest.raises(NotCoveredError, match="MI300X"):
        device_of("MI300X", 192)


def test_families() -> None:
    assert family_of("mpt", "MPT-7b", gated=False) is known.FAMILIES["mpt"]
    assert family_of("new", "Llama-3 8B", gated=True) is known.LLAMA
    assert family_of("new", "orca", gated=True) is known.LLAMA
    assert family_of("new", "orca", gated=False) is known.GPT


@pytest.mark.parametrize(
    ("text", "recipe"),
    [
        ("bf16", "deepspeed-bf16"),
        ("MXFP8", "fp8-bf16-gradients"),
        ("FP8-CS", "fp8-bf16-gradients"),
        ("fp16", "megatron-fp16"),
        ("amp_bf16", "fsdp-fp32-master"),
    ],
)
def test_precisions(text: str, recipe: str) -> None:
    assert precision_of(text, NEMO) == recipe


@pytest.mark.parametrize("text", [None, "", "NVFP4", "tf32", "fp8+fp4"])
def test_precisions_that_are_not_modelled(text: str | None) -> None:
    with pytest.raises(NotCoveredError, match="precision"):
        precision_of(text, NEMO)


@pytest.mark.parametrize(
    ("text", "kernels"),
    [
        (None, ("unfused", "fused")),
        ("flash_attention2 + RMS kernel", ("flash", "fused")),
        ("FlashAttention-3", ("flash", "fused")),
        ("cuDNN SDPA", ("flash", "fused")),
        ("unfused", ("unfused", "fused")),
        ("eager", ("eager", "fused")),
    ],
)
def test_kernels(text: str | None, kernels: tuple[str, str]) -> None:
    assert kernels_of(text, DEEPSPEED) == kernels


def test_a_word_for_flash_leaves_the_framework_its_own() -> None:
    assert kernels_of("flash", habit_of("Composer+FSDP (PyTorch)"))[0] == "flash1"
    with pytest.raises(NotCoveredError, match="attention kernel sparse"):
        kernels_of("sparse", NEMO)


@pytest.mark.parametrize(
    ("text", "gb_per_s"),
    [
        (None, None),
        ("8x200Gb/s HDR IB", 25.0),
        ("8 x 400 Gb/s NDR", 50.0),
        ("800Gbps/node", 12.5),
        ("3200 Gb/s EFA per node", 50.0),
        ("InfiniBand", None),
        ("400Gb/s", None),  # of a device or of a node: not said
    ],
)
def test_networks(text: str | None, gb_per_s: float | None) -> None:
    found = network_bytes_per_s(text, 8)
    assert found == (None if gb_per_s is None else gb_per_s * 1e9)
