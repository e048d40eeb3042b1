"""The layer table and the stage costs: layout, sharing, placement, published step times."""

from __future__ import annotations

import csv
from dataclasses import fields, replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ilp_parallel.configuration import RECOMPUTE_SETS, ZERO_VARIANTS, Strategy
from ilp_parallel.costs.model import CostModel
from ilp_parallel.plan import Plan
from ilp_parallel.specs.job import JobSpec, Stack
from ilp_parallel.specs.readers import data_root, load_cluster
from tests.costs.cases import A100, GPT, JOB, LLAMA, UNFUSED, configuration, gpt

if TYPE_CHECKING:
    from ilp_parallel.configuration import Configuration
    from ilp_parallel.specs.model import ModelSpec

configurations = st.builds(
    configuration,
    pipeline=st.sampled_from([1, 2, 4]),
    tensor=st.sampled_from([1, 2, 4]),
    data=st.sampled_from([1, 2, 8]),
    microbatch=st.sampled_from([1, 2]),
    sequence_parallel=st.booleans(),
)


def arrays(table: object) -> list[np.ndarray]:
    values = [getattr(table, field.name) for field in fields(table)]
    return [value for value in values if isinstance(value, np.ndarray)]


@given(g=configurations)
def test_tables_are_complete_positive_and_read_only(g: Configuration) -> None:
    table = CostModel(LLAMA, A100, JOB).layer_table(g)
    variants = ZERO_VARIANTS if g.data > 1 else ("0",)
    assert [(s.zero, s.recompute) for s in table.strategies] == [
        (zero, modules) for zero in variants for modules in RECOMPUTE_SETS
    ]
    for values in arrays(table):
        assert values.shape == (1, len(table.strategies))
        assert np.all(np.isfinite(values)) and np.all(values > 0)
        assert not values.flags.writeable


@given(first=configurations, second=configurations)
def test_the_order_of_questions_changes_no_bit(first: Configuration, second: Configuration) -> None:
    one, other = CostModel(GPT, A100, JOB), CostModel(GPT, A100, JOB)
    one.layer_table(first), one.stage_costs(first, [1] * first.pipeline)
    for mine, theirs in zip(
        arrays(one.layer_table(second)) + arrays(one.stage_costs(second, [2] * second.pipeline)),
        arrays(other.layer_table(second))
        + arrays(other.stage_costs(second, [2] * second.pipeline)),
        strict=True,
    ):
        assert mine.tobytes() == theirs.tobytes()


def test_chunks_share_a_table() -> None:
    costs = CostModel(GPT, A100, JOB)
    plain = costs.layer_table(configuration(pipeline=4, data=4))
    assert costs.layer_table(configuration(pipeline=4, data=4, chunks=3)) is plain
    assert costs.layer_table(configuration(pipeline=4, data=4, microbatch=2)) is not plain


def test_recomputation_trades_bytes_for_seconds_and_zero_traffic_for_bytes() -> None:
    table = CostModel(GPT, A100, UNFUSED).layer_table(configuration(tensor=2, data=16))
    at = {(s.zero, s.recompute): k for k, s in enumerate(table.strategies)}
    plain, full = at["1", ()], at["1", ("full",)]
    assert table.backward_s[0, full] - table.backward_s[0, plain] == pytest.approx(
        table.forward_s[0, plain], rel=1e-9
    )
    assert table.activation_bytes[0, full] < 0.1 * table.activation_bytes[0, plain]
    regather, keep = at["3-regather", ()], at["3-keep", ()]
    assert table.backward_s[0, regather] >= table.backward_s[0, keep] > table.backward_s[0, plain]
    assert table.forward_s[0, keep] > table.forward_s[0, plain]
    assert table.state_bytes[0, regather] < table.state_bytes[0, keep]
    assert (
        table.tail_s[0, keep] < table.tail_s[0, plain]
    )  # synchronised in every microbatch instead


def test_the_ends_are_priced_where_they_are() -> None:
    g = configuration(pipeline=4, tensor=2, data=2, chunks=3)
    costs = CostModel(GPT, A100, JOB).stage_costs(g, [5, 1, 1, 3])
    assert np.flatnonzero(costs.fixed_forward_s).tolist() == [0, 11]
    assert np.flatnonzero(costs.fixed_backward_s).tolist() == [0, 11]
    assert np.flatnonzero(costs.fixed_tail_s).tolist() == [0, 3]
    assert costs.fixed_bytes[1] == costs.fixed_bytes[2] < costs.fixed_bytes[0]
    assert costs.cut_s.shape == (11,)


def test_tied_embeddings_are_stored_and_reduced_on_both_ends() -> None:
    tied, g = CostModel(GPT, A100, JOB), configuration(pipeline=4)
    untied = CostModel(replace(GPT, tied_embeddings=False), A100, JOB)
    one, other = tied.stage_costs(g, [4, 3, 2, 1]), untied.stage_costs(g, [4, 3, 2, 1])
    assert one.fixed_bytes.tolist() == other.fixed_bytes.tolist()
    assert one.fixed_tail_s[0] > other.fixed_tail_s[0]
    assert one.fixed_tail_s[-1] > other.fixed_tail_s[-1]
    alone = configuration()
    saved = untied.stage_costs(alone, [1]).fixed_bytes - tied.stage_costs(alone, [1]).fixed_bytes
    assert saved.tolist() == [18 * GPT.vocab * GPT.hidden]


def test_logits_are_kept_for_every_microbatch_alive() -> None:
    costs, g = CostModel(GPT, A100, JOB), configuration(pipeline=2, tensor=2, microbatch=2)
    once, thrice = costs.stage_costs(g, [2, 1]), costs.stage_costs(g, [2, 3])
    logits = 4 * 2 * 2048 * (51200 // 2)
    inputs = 4 * 2 * 2048 * GPT.hidden
    assert thrice.fixed_bytes[1] - once.fixed_bytes[1] == 2 * (logits + inputs)


def test_cuts_know_which_links_leave_a_node() -> None:
    costs = CostModel(GPT, A100, JOB)
    inside, across = 0, 0
    cuts = costs.stage_costs(configuration(pipeline=8, tensor=2), [1] * 8).cut_s
    inside, across = cuts[0], cuts[3]  # four stages of two devices fill a node
    assert across > 2 * inside
    assert cuts.tolist() == [inside] * 3 + [across] + [inside] * 3
    chunked = costs.stage_costs(configuration(pipeline=2, tensor=2, chunks=3), [1] * 2).cut_s
    assert len(set(chunked.tolist())) == 1  # both stages, and the way back, inside one node
    wide = costs.stage_costs(configuration(pipeline=3, data=4, chunks=2), [1] * 3).cut_s
    assert wide[0] == wide[3] < wide[1] == wide[2]


def test_each_tensor_rank_sends_its_share_and_gathers_the_rest_unless_it_needs_no_more() -> None:
    costs = CostModel(GPT, A100, JOB)
    plain, split = (
        costs.stage_costs(configuration(pipeline=2, tensor=8, sequence_parallel=x), [2, 1]).cut_s[0]
        for x in (False, True)
    )
    sent = 2 * 2048 * GPT.hidden
    machine = costs.machine
    latency = machine.rates.collective_s + A100.inter.latency_s
    assert split - latency == pytest.approx(sent / 8 / machine.inter_bytes_per_s)
    gather = machine.group(8, 1, A100.devices).gather_s(sent)
    assert plain - split == pytest.approx(gather)


def test_reserve_is_modelled_or_given() -> None:
    modelled = CostModel(GPT, A100, JOB)
    alone, three = configuration(), configuration(pipeline=2, tensor=2, data=2)
    assert modelled.capacity_bytes(three) < modelled.capacity_bytes(alone)
    assert modelled.capacity_bytes(alone) < A100.device.memory_bytes
    given_bytes = CostModel(GPT, A100, replace(JOB, reserve_bytes=123))
    assert given_bytes.capacity_bytes(three) == A100.device.memory_bytes - 123


def published(name: str) -> list[dict[str, str]]:
    text = (data_root() / "published" / name).read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(line for line in text if not line.startswith("#")))


def predicted_s(row: dict[str, str], stack: Stack) -> tuple[float, ModelSpec]:
    """Predicted seconds of a published run, layers shared out as evenly as they go."""
    number = {key: int(row[key]) for key in list(row)[1:10]}
    model = gpt(number["layers"], number["hidden"], number["heads"])
    p, v = number["pipeline"], number["chunks"]
    g = configuration(
        pipeline=p,
        tensor=number["tensor"],
        data=number["data"],
        microbatch=number["microbatch"],
        microbatches=number["global_batch"] // number["data"] // number["microbatch"],
        chunks=v,
        sequence_parallel=row["sequence_parallel"] == "1",
    )
    cluster = load_cluster(f"a100-80gb:{g.devices // 8}x8")
    job = JobSpec(number["global_batch"], 2048, "megatron-fp16", attention="unfused", stack=stack)
    strategy = Strategy("0", (row["recompute"],))
    sizes = (model.layers // (p * v),) * (p * v)
    plan = Plan(model, cluster, job, "mixed", g, sizes, (strategy,) * model.layers)
    return CostModel(model, cluster, job).terms(plan).step_time_s, model


@pytest.mark.parametrize("row", published("korthikanti2022_table5.csv"), ids=lambda r: r["model"])
def test_published_iteration_times(row: dict[str, str]) -> None:
    assert predicted_s(row, "megatron")[0] == pytest.approx(float(row["iteration_s"]), rel=0.08)


@pytest.mark.parametrize("row", published("narayanan2021_table2.csv"), ids=lambda r: r["model"])
def test_published_throughputs(row: dict[str, str]) -> None:
    seconds, model = predicted_s(row, "megatron-2021")
    layers, hidden, vocab, s = model.layers, model.hidden, model.vocab, 2048
    shape = 1 + s / (6 * hidden) + vocab / (16 * layers * hidden)
    flops = 96 * int(row["global_batch"]) * s * layers * hidden**2 * shape
    devices = int(row["pipeline"]) * int(row["tensor"]) * int(row["data"])
    measured = flops / devices / float(row["tflops_per_device"]) / 1e12
    assert seconds == pytest.approx(measured, rel=0.12)  # whether it interleaved is not printed


def test_zero_shards_over_context_ranks_too() -> None:
    costs = CostModel(LLAMA, A100, JOB)
    both = configuration(tensor=2, data=4, context=2)
    alone = configuration(tensor=2, data=8)
    assert both.devices == alone.devices == 16
    assert both.shards == alone.shards == 8
    ours, theirs = costs.zero_part(both), costs.zero_part(alone)
    assert ours.state_bytes.tolist() == theirs.state_bytes.tolist()
    only_context = configuration(tensor=2, context=8)
    assert len(costs.strategies(only_context)) == len(costs.strategies(alone))


def test_weights_are_gathered_over_one_adapter_by_deepspeed() -> None:
    g = configuration(data=64)
    megatron, deepspeed = (
        CostModel(
            LLAMA, A100, replace(JOB, stack=stack, rates=CostModel(LLAMA, A100, JOB).machine.rates)
        )
        for stack in ("megatron", "deepspeed")
    )
    ours, theirs = megatron.zero_part(g), deepspeed.zero_part(g)
    k = ours.variants.index("3-regather")
    assert theirs.forward_traffic_s[k] > 3 * ours.forward_traffic_s[k]
    one = ours.variants.index("1")
    assert theirs.last_backward_traffic_s[one] == ours.last_backward_traffic_s[one]
