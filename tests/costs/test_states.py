"""Bytes per parameter by recipe, and what ZeRO variants must satisfy among themselves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ilp_parallel.configuration import ZERO_VARIANTS
from ilp_parallel.costs.hardware import Machine
from ilp_parallel.costs.states import StateCosting, ZeroPart, variants_of, zero_part
from tests.costs.cases import A100, JOB

RECIPES = ["megatron-fp16", "megatron-bf16", "deepspeed-bf16", "fsdp-fp32-master", "bf16-moments"]


def costing(precision: str = "megatron-bf16", optimizer: str = "adam") -> StateCosting:
    job = replace(JOB, precision=precision, optimizer=optimizer)
    return StateCosting(job, Machine(A100, job))


@pytest.mark.parametrize(
    ("precision", "whole", "kept", "sharded"),
    [
        # Megatron-LM documentation of the distributed optimizer: 20, 4 + 16/d; 18, 6 + 12/d
        ("megatron-fp16", 20, 4, 16),
        ("megatron-bf16", 18, 6, 12),
        ("deepspeed-bf16", 16, 4, 12),  # ZeRO paper (arXiv 1910.02054), section 3.1
        ("fsdp-fp32-master", 16, 8, 8),
        ("bf16-moments", 14, 6, 8),
    ],
)
def test_bytes_per_parameter(precision: str, whole: int, kept: int, sharded: int) -> None:
    states = costing(precision)
    assert states.state(1.0, "0", 8).total == whole
    assert states.state(1.0, "1", 8).total == kept + sharded / 8
    assert states.state(1.0, "3-regather", 8).total == whole / 8


def test_moments_follow_the_optimizer() -> None:
    totals = [costing(optimizer=o).state(1.0, "0", 1).total for o in ("sgd", "sgd-momentum")]
    assert totals == [10, 14]


@pytest.mark.parametrize("precision", RECIPES)
def test_sharding_over_one_rank_shards_nothing(precision: str) -> None:
    states = costing(precision)
    for zero in ("1", "2-buffer", "2-scatter", "3-regather"):
        assert states.state(1e6, zero, 1) == states.state(1e6, "0", 1)


def block(ranks: int, precision: str = "megatron-bf16") -> ZeroPart:
    """1e8 parameters on so many neighbouring ranks."""
    group = Machine(A100, JOB).group(ranks, 1, A100.devices)
    return zero_part(costing(precision), 1e8, group, group, variants_of(ranks))


@pytest.mark.parametrize("precision", RECIPES)
@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_more_sharding_holds_less(precision: str, ranks: int) -> None:
    part = block(ranks, precision)
    held = dict(zip(ZERO_VARIANTS, part.state_bytes, strict=True))
    assert held["0"] > held["1"] == held["2-buffer"] > held["2-scatter"]
    assert held["2-scatter"] > held["3-regather"]
    assert held["3-keep"] > held["3-regather"]


def test_variants_differ_in_when_they_communicate() -> None:
    part = block(8)
    row = {z: k for k, z in enumerate(ZERO_VARIANTS)}
    for zero in ("0", "1", "2-buffer", "2-scatter"):
        assert part.forward_traffic_s[row[zero]] == 0
    for zero in ("3-keep", "3-regather"):
        assert part.forward_traffic_s[row[zero]] > 0
        assert part.next_forward_traffic_s[row[zero]] == 0  # no parameter gather in the tail
        assert part.last_backward_traffic_s[row[zero]] == 0
    backward = part.backward_traffic_s
    assert backward[row["1"]] == 0 < backward[row["2-scatter"]] == backward[row["3-keep"]]
    assert backward[row["3-regather"]] > backward[row["3-keep"]]
    assert part.last_backward_traffic_s[row["0"]] == pytest.approx(
        2 * part.last_backward_traffic_s[row["1"]]
    )


def test_the_sharded_optimizer_step_is_shorter() -> None:
    part = block(16)
    assert np.all(part.optimizer_s[1:] < part.optimizer_s[0] / 3)
    traffic = 1e8 * (2 * 4 + 2 * 12 + 2 + 4)  # gradients twice, states in and out, weights, clear
    assert part.optimizer_s[0] > traffic / A100.device.memory_bandwidth_bytes_per_s


def test_alone_there_is_one_variant_without_traffic() -> None:
    part = block(1)
    assert part.variants == ("0",)
    assert part.last_backward_traffic_s.tolist() == [0.0]
