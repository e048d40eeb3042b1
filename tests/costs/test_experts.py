"""Routed experts: what stays the same however they are split, and what splitting costs."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from ilp_parallel.configuration import RECOMPUTE_SETS
from ilp_parallel.costs.model import CostModel
from ilp_parallel.specs.model import Experts
from ilp_parallel.specs.readers import load_cluster, load_model
from tests.costs.cases import A100, JOB, LLAMA, configuration, layer

EXPERTS = Experts(16, 2, 4096)
MODEL = replace(LLAMA, experts=EXPERTS)
H100 = load_cluster("h100-80gb:8x8")


@pytest.mark.parametrize(("expert", "inside"), list(product((1, 2, 8, 16), (1, 4))))
def test_work_is_the_same_however_experts_are_split(expert: int, inside: int) -> None:
    """Every copy passes all of its expert's matrices once, on ``inside`` ranks together."""
    block = layer(MODEL, expert=expert, expert_tensor=inside)._routed
    assert block is not None
    per_copy = 2.0 * LLAMA.hidden * EXPERTS.ffn_hidden * 3
    assert block.matmul_flops() * inside == pytest.approx(block.rows * per_copy)
    assert block.rows == block.own_tokens * EXPERTS.active * inside


def test_one_rank_exchanges_nothing() -> None:
    part = layer(MODEL).part()
    assert part.forward.expert_traffic_s == part.backward.expert_traffic_s == 0
    split = layer(MODEL, expert=8).part()
    assert split.forward.expert_traffic_s > 0
    assert split.backward.expert_traffic_s == split.forward.expert_traffic_s


def test_an_exchange_moves_what_is_not_its_own_by_both_links_at_once() -> None:
    machine = layer(MODEL).machine
    inside = machine.all_to_all(8, 1, A100.devices)
    assert (inside.inside, inside.outside) == (7 / 8, 0)
    wide = machine.all_to_all(16, 1, A100.devices)
    assert (wide.inside, wide.outside) == (7 / 16, 8 / 16)
    size = 1e9
    near = wide.inside * size / machine.intra_bytes_per_s
    far = wide.outside * size / machine.inter_bytes_per_s
    assert wide.exchange_s(size) == wide.latency_s + max(near, far)
    assert machine.all_to_all(1, 1, A100.devices).exchange_s(size) == 0
    apart = machine.all_to_all(2, 8, A100.devices)  # one rank of each node
    assert (apart.inside, apart.outside) == (0, 1 / 2)


def test_few_rows_of_many_experts_do_not_fill_their_tiles() -> None:
    """32 experts of 8 rows each take longer than one product of 256 rows."""
    machine = layer(MODEL).machine
    one, many = (
        machine.grouped_matmul_s(1, 256, 4096, 4096),
        machine.grouped_matmul_s(32, 8, 4096, 4096),
    )
    assert many > 4 * one
    assert one == pytest.approx(machine.matmul_s(256, 4096, 4096))


def test_more_active_experts_take_longer_and_keep_more() -> None:
    few, many = (layer(replace(LLAMA, experts=Experts(16, k, 4096))).part() for k in (1, 4))
    assert few.forward_s < many.forward_s
    for r, modules in enumerate(RECOMPUTE_SETS):
        rebuilt = "mlp" in modules or "full" in modules
        assert (few.activation_bytes[r] == many.activation_bytes[r]) == rebuilt
    assert np.all(few.activation_bytes <= many.activation_bytes)


def test_shared_experts_are_an_mlp_beside_the_routed_ones() -> None:
    shared = replace(LLAMA, experts=Experts(16, 2, 4096, shared_ffn_hidden=2048))
    alone, both = layer(MODEL).part(), layer(shared).part()
    dense = layer(replace(LLAMA, ffn_hidden=2048))
    mlp = dense._mlp().device_s
    assert both.forward.device_s - alone.forward.device_s == pytest.approx(mlp)


def test_states_of_experts_are_sharded_over_their_own_ranks() -> None:
    costs = CostModel(MODEL, H100, JOB)
    whole = configuration(data=16)
    split = replace(whole, expert=8)
    shapes = costs.shapes(split)
    one = costs.zero_part(whole).state_bytes
    part = costs.zero_part(split)
    per = costs.states
    for z, variant in enumerate(part.variants):
        dense = per.state(float(shapes.layer_parameters), variant, 16).total
        routed = per.state(float(shapes.routed_parameters), variant, 2).total
        assert part.state_bytes[z] == pytest.approx(dense + routed)
    # replicated, an eighth of the experts; sharded, as much as before: what is split is not copied
    assert part.state_bytes[0] < one[0] / 3
    last = part.variants.index("3-regather")
    assert part.state_bytes[last] == pytest.approx(one[last])


def test_experts_that_one_rank_holds_have_nothing_to_shard() -> None:
    costs = CostModel(MODEL, H100, JOB)
    part = costs.zero_part(configuration(data=8, expert=8))
    shapes = costs.shapes(configuration(data=8, expert=8))
    routed = costs.states.state(float(shapes.routed_parameters), "0", 1)
    for z, variant in enumerate(part.variants):
        dense = costs.states.state(float(shapes.layer_parameters), variant, 8)
        assert part.state_bytes[z] == pytest.approx(dense.total + routed.total)


@pytest.mark.parametrize("name", ["mixtral-8x7b", "deepseek-v3", "nemotron-h-8b", "bert-large"])
def test_quick_seconds_are_those_of_the_whole_price(name: str) -> None:
    model = load_model(name)
    costs = CostModel(model, H100, replace(JOB, sequence_length=512))
    for tensor, expert in ((1, 1), (2, 8)):
        if expert > 1 and not model.has_experts:
            expert = 1
        g = configuration(tensor=tensor, data=8, expert=expert, sequence_parallel=tensor > 1)
        parts = [costs.layer_part(g, kind) for kind in range(model.kind_count)]
        assert costs.blocks_s(g) == tuple((p.forward_s, p.backward_s) for p in parts)
