"""Activations against published formulas; times against what must hold on any machine."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ilp_parallel.configuration import RECOMPUTE_SETS
from ilp_parallel.costs.hardware import Machine
from ilp_parallel.specs.job import Attention, Stack
from ilp_parallel.specs.readers import load_cluster
from tests.costs.cases import A100, GPT, JOB, LLAMA, UNFUSED, gpt, layer

if TYPE_CHECKING:
    from ilp_parallel.costs.work import Work

FULL = ("full",)
SELECTIVE = ("core_attn",)


def korthikanti_bytes(
    s: int, b: int, h: int, a: int, t: int, technique: str, sequence_parallel: bool
) -> Fraction:
    """Table 2 of Korthikanti et al. 2022 (arXiv 2205.05198), activation bytes of one layer."""
    scores = Fraction(5 * a * s, h)
    outside = Fraction(1, t) if sequence_parallel else Fraction(1)
    if technique == "full":
        return s * b * h * 2 * outside
    kept = Fraction(0) if technique == "selective" else scores / t
    return s * b * h * (10 * outside + Fraction(24, t) + kept)


@given(
    t=st.sampled_from([1, 2, 4, 8]),
    heads_per_rank=st.integers(1, 6),
    head_dim=st.sampled_from([32, 64, 128]),
    b=st.integers(1, 4),
    s=st.sampled_from([512, 1024, 2048]),
    technique=st.sampled_from(["none", "selective", "full"]),
    sequence_parallel=st.booleans(),
)
def test_activations_are_the_published_ones(
    t: int,
    heads_per_rank: int,
    head_dim: int,
    b: int,
    s: int,
    technique: str,
    sequence_parallel: bool,
) -> None:
    a = t * heads_per_rank
    h = a * head_dim
    job = replace(UNFUSED, sequence_length=s)
    stored = layer(gpt(2, h, a), job, t, b, sequence_parallel).activations.stored()
    kept = stored.kept({"none": (), "selective": SELECTIVE, "full": FULL}[technique])
    assert kept == korthikanti_bytes(s, b, h, a, t, technique, sequence_parallel)


def test_without_parallelism_the_famous_formula() -> None:
    s, h, a = 2048, GPT.hidden, GPT.heads
    assert layer(GPT, UNFUSED).activations.stored().total == s * h * 34 + 5 * a * s * s


def test_activations_of_a_gated_grouped_query_block_by_hand() -> None:
    """Per token: two norms in and out, q k v, output, log-sum-exp; gate, up, product."""
    h, q, kv, a, ffn = 4096, 4096, 1024, 32, 14336
    per_token = 2 * (2 * h) + 2 * (2 * h) + 2 * (q + 2 * kv) + 2 * q + 4 * a + 2 * 3 * ffn
    assert layer(LLAMA).activations.stored().total == 2048 * per_token


@pytest.mark.parametrize("model", [GPT, LLAMA])
@pytest.mark.parametrize("job", [JOB, UNFUSED])
def test_recomputing_more_keeps_less_and_takes_longer(model, job) -> None:
    part = layer(model, job, tensor=2, sequence_parallel=True).part()
    for r, small in enumerate(RECOMPUTE_SETS[:-1]):
        for q, large in enumerate(RECOMPUTE_SETS[:-1]):
            if set(small) < set(large):
                assert part.activation_bytes[q] < part.activation_bytes[r]
                assert part.recompute_s[q] > part.recompute_s[r]
    assert part.activation_bytes[-1] == part.activation_bytes.min()
    assert part.recompute_s[-1] == part.forward_s
    assert part.recompute_flops[-1] == part.recompute_flops.max()


def test_recomputed_tensors_come_back_as_transients() -> None:
    part = layer(GPT, UNFUSED).part()
    working = part.transient_bytes[0]
    rebuilt = dict(zip(RECOMPUTE_SETS, part.transient_bytes - working, strict=True))
    stored = part.stored
    assert rebuilt[FULL] == stored.total
    assert rebuilt["mlp",] == stored.mlp_hidden
    assert rebuilt["layernorm", "mlp"] == stored.mlp_hidden + stored.norm_outputs / 2


@pytest.mark.parametrize("model", [GPT, LLAMA])
def test_matmul_time_is_never_below_the_peak(model) -> None:
    costing = layer(model, tensor=2)
    flops = 2 * 2048 * model.layer_matrix_parameters / 2
    part = costing.part()
    assert part.forward.matmul_s > flops / A100.device.peak_flops["bf16"]
    assert part.backward.matmul_s > 2 * flops / A100.device.peak_flops["bf16"]


def test_flash_attention_is_faster_and_its_backward_costs_more() -> None:
    flash, unfused = layer(GPT).part(), layer(GPT, replace(JOB, attention="unfused")).part()
    assert flash.forward.attention_s < unfused.forward.attention_s
    assert flash.backward.attention_s > 2.4 * flash.forward.attention_s
    doubled = layer(GPT, replace(JOB, sequence_length=4096)).part()
    assert doubled.forward.attention_s > 3 * flash.forward.attention_s


@given(t=st.sampled_from([2, 4, 8]), b=st.integers(1, 4))
def test_sequence_parallelism_saves_memory_and_memory_traffic(t: int, b: int) -> None:
    with_it, without = (layer(GPT, tensor=t, microbatch=b, sequence_parallel=x) for x in (1, 0))
    assert with_it.part().activation_bytes[0] < without.part().activation_bytes[0]
    assert with_it.part().forward.memory_bound_s < without.part().forward.memory_bound_s
    assert with_it.part().forward.tensor_traffic_s == without.part().forward.tensor_traffic_s
    assert with_it.part().backward.tensor_traffic_s > without.part().backward.tensor_traffic_s


def test_tensor_parallelism_divides_compute_but_not_for_free() -> None:
    alone, split = layer(LLAMA).part(), layer(LLAMA, tensor=8).part()
    assert alone.forward.tensor_traffic_s == 0
    assert alone.forward.compute_s / 8 < split.forward.compute_s < alone.forward.compute_s
    across = layer(LLAMA, tensor=16).part()
    assert across.forward.tensor_traffic_s > split.forward.tensor_traffic_s


def test_all_numbers_are_finite_and_positive() -> None:
    for model in (GPT, LLAMA):
        for stack in get_args(Stack):
            part = layer(model, replace(JOB, stack=stack)).part()
            assert np.all(part.activation_bytes > 0)
            assert np.all(np.isfinite(part.transient_bytes))
            assert part.backward_s > part.forward_s


def waiting_s(work: Work, host_s: float) -> float:
    """Seconds the device waits for a host that needs so long per kernel."""
    return max(0.0, work.kernels * host_s - work.device_s)


def test_small_work_waits_for_the_host() -> None:
    small, large = layer(gpt(2, 128, 2)), layer(gpt(2, 8192, 64))
    host_s = small.machine.rates.host_s
    part = small.part()
    assert waiting_s(part.forward, host_s) > 0
    straggling = small.machine.straggling
    assert part.forward_s == pytest.approx(part.forward.kernels * host_s * straggling)
    assert waiting_s(large.part().forward, host_s) == 0


def test_eager_kernels_take_longer_and_older_ones_too() -> None:
    seconds = {
        attention: layer(LLAMA, replace(JOB, attention=attention)).part().forward.attention_s
        for attention in get_args(Attention)
    }
    assert seconds["flash"] < seconds["flash1"] < seconds["unfused"] < seconds["eager"]
    fused, eager = (layer(LLAMA, replace(JOB, norm_kernel=n)).part() for n in ("fused", "eager"))
    assert eager.forward.memory_bound_s > fused.forward.memory_bound_s
    assert eager.forward.kernels > fused.forward.kernels
    assert eager.forward.matmul_s == fused.forward.matmul_s


def test_heads_that_matrix_units_cannot_read_at_once_are_slower() -> None:
    """108 elements a head: less work than 112, yet longer."""
    odd, even = (replace(gpt(2, 128 * dim, 128), head_dim=dim) for dim in (108, 112))
    assert (
        layer(odd, UNFUSED).part().forward.attention_s
        > 1.2 * layer(even, UNFUSED).part().forward.attention_s
    )


def test_context_parallelism_divides_work_and_memory_and_passes_keys_round() -> None:
    alone, split = (layer(LLAMA, microbatch=4, context=c) for c in (1, 4))
    assert split.tokens == alone.tokens / 4
    assert split.activations.stored().total == alone.activations.stored().total / 4
    one, four = alone.part(), split.part()
    assert one.forward.context_traffic_s == 0
    assert four.forward.context_traffic_s > 0
    assert four.backward.context_traffic_s > four.forward.context_traffic_s
    assert one.forward.attention_s / 4 < four.forward.attention_s < one.forward.attention_s / 1.5
    ring = split.ring.gather_s(4.0 * LLAMA.kv_width * alone.tokens)
    assert four.forward.context_traffic_s <= ring


def test_fp8_multiplies_faster_and_casts() -> None:
    h100 = load_cluster("h100-80gb:2x8")
    parts = []
    for precision in ("megatron-bf16", "fp8"):
        job = replace(JOB, precision=precision)
        costing = layer(gpt(2, 8192, 64), job, machine=Machine(h100, job))
        parts.append(costing.part())
    bf16, fp8 = parts
    assert fp8.forward.matmul_s < 0.7 * bf16.forward.matmul_s
    assert fp8.forward.memory_bound_s > bf16.forward.memory_bound_s
