"""LoRA: adapters alone have gradients and states; forward is what it was and a little more."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ilp_parallel.costs.breakdown import model_flops
from ilp_parallel.costs.model import CostModel
from ilp_parallel.costs.shapes import Lora, rank_shapes
from ilp_parallel.specs.job import LORA_TARGETS
from ilp_parallel.specs.model import Experts, ModelSpec
from ilp_parallel.specs.readers import load_cluster
from tests.costs.cases import JOB, LLAMA, configuration

H100 = load_cluster("h100-80gb:4x8")
LORA = replace(JOB, task="lora", lora_rank=16, lora_targets=LORA_TARGETS)
MOE = replace(LLAMA, experts=Experts(8, 2, 14336))
G = configuration(data=8)


@pytest.mark.parametrize("model", [LLAMA, MOE])
def test_adapters_have_the_published_sizes(model: ModelSpec) -> None:
    """r (k + n) for each matrix of n x k (Hu et al. 2021, section 4.1)."""
    shapes = rank_shapes(model, 1, lora=Lora(16, LORA_TARGETS))
    qkv = 4096 + 2 * 1024
    attention = 16 * (4096 + qkv) + 16 * (4096 + 4096)
    mlp = 16 * (4096 + 2 * 14336) + 16 * (14336 + 4096)
    own, routed = (attention + mlp, 0) if model is LLAMA else (attention, 8 * mlp)
    assert (shapes.own.trained, shapes.routed.trained) == (own, routed)
    whole = rank_shapes(model, 1)
    assert shapes.own.frozen == whole.own.trained
    assert shapes.routed.frozen == whole.routed.trained
    assert whole.own.frozen == whole.routed.frozen == 0


def test_targets_that_are_not_named_have_none() -> None:
    shapes = rank_shapes(LLAMA, 1, lora=Lora(16, ("linear_proj",)))
    assert shapes.own.trained == 16 * (4096 + 4096)


@pytest.mark.parametrize("model", [LLAMA, MOE])
def test_frozen_weights_have_neither_gradients_nor_states(model: ModelSpec) -> None:
    full, lora = CostModel(model, H100, JOB), CostModel(model, H100, LORA)
    ours, theirs = lora.zero_part(G), full.zero_part(G)
    assert np.all(ours.weights_bytes <= 1.02 * theirs.weights_bytes)
    assert np.all(ours.gradients_bytes < 0.02 * theirs.gradients_bytes)
    assert np.all(ours.optimizer_bytes < 0.02 * theirs.optimizer_bytes)
    assert np.all(ours.last_backward_traffic_s < 0.2 * theirs.last_backward_traffic_s + 1e-3)
    tail = lora.end_tail(G)
    assert tail.embedding_s == tail.head_s == tail.head.optimizer == tail.embedding.gradients == 0


def test_backward_has_half_of_the_matmuls() -> None:
    full, lora = (CostModel(LLAMA, H100, job).layer_part(G) for job in (JOB, LORA))
    assert full.forward_s < lora.forward_s < 1.2 * full.forward_s
    assert lora.backward.matmul_s < 0.7 * full.backward.matmul_s
    assert lora.backward.attention_s == full.backward.attention_s


def test_sharded_weights_are_gathered_whether_trained_or_not() -> None:
    part = CostModel(LLAMA, H100, LORA).zero_part(G)
    last = part.variants.index("3-regather")
    assert part.weights_bytes[last] < part.weights_bytes[0] / 7
    assert part.forward_traffic_s[last] > 0
    assert part.transient_bytes[last] > 2 * part.weights_bytes[last]


def test_model_flops_leave_weight_gradients_out() -> None:
    attention = 12 * LLAMA.layers * LLAMA.query_width * JOB.sequence_length
    for job, each in ((JOB, 6), (LORA, 4)):
        matrices = each * LLAMA.active_matrix_parameters
        assert model_flops(LLAMA, job) == job.tokens_per_step * (matrices + attention)
