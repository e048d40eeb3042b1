"""Activation bytes against published figures, and what software keeps besides."""

from __future__ import annotations

import csv
from dataclasses import replace

import pytest

from ilp_parallel.configuration import Strategy
from ilp_parallel.costs.activations import Keeps
from ilp_parallel.costs.constants import ALLOCATOR_SLACK
from ilp_parallel.costs.model import CostModel
from ilp_parallel.plan import Plan
from ilp_parallel.specs.job import JobSpec
from ilp_parallel.specs.readers import data_root, load_cluster
from tests.costs.cases import A100, GPT, JOB, LLAMA, UNFUSED, configuration, gpt, layer

GIB = 2.0**30
NONE, SELECTIVE, FULL = (), ("core_attn",), ("full",)


def published(name: str) -> list[dict[str, str]]:
    text = (data_root() / "published" / name).read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(line for line in text if not line.startswith("#")))


def first_stage(row: dict[str, str], recompute: tuple[str, ...], split: bool) -> dict[str, float]:
    """GiB of the memory terms of a published run's first stage."""
    number = {key: int(row[key]) for key in list(row)[1:9]}
    model = gpt(number["layers"], number["hidden"], number["heads"])
    p, v = number["pipeline"], number["chunks"]
    g = configuration(
        pipeline=p,
        tensor=number["tensor"],
        microbatch=number["microbatch"],
        microbatches=number["global_batch"] // number["microbatch"],
        chunks=v,
        sequence_parallel=split,
    )
    job = JobSpec(number["global_batch"], 2048, attention="unfused")
    cluster = load_cluster(f"a100-80gb:{g.devices // 8}x8")
    sizes = (model.layers // (p * v),) * (p * v)
    plan = Plan(model, cluster, job, "mixed", g, sizes, (Strategy("0", recompute),) * model.layers)
    stage = CostModel(model, cluster, job).terms(plan).stages[0]
    return {term.name: term.value / GIB for term in stage.memory_terms}


@pytest.mark.parametrize("row", published("korthikanti2022_figure1.csv"), ids=lambda r: r["model"])
def test_figure_1(row: dict[str, str]) -> None:
    plain = first_stage(row, NONE, split=False)
    states = sum(plain[name] for name in ("weights", "gradients", "optimizer"))
    assert states == pytest.approx(float(row["states_gib"]), rel=0.01)
    assert plain["activations"] == pytest.approx(float(row["activations_gib"]), rel=0.001)
    selective = first_stage(row, SELECTIVE, split=True)["activations"]
    assert selective == pytest.approx(float(row["selective_gib"]), rel=0.01)


RUNS = {row["model"]: row for row in published("korthikanti2022_figure1.csv")}


@pytest.mark.parametrize("row", published("korthikanti2022_figure7.csv"), ids=lambda r: r["model"])
@pytest.mark.parametrize(
    ("name", "recompute", "split"),
    [
        ("sequence_parallel", NONE, True),
        ("selective", SELECTIVE, False),
        ("both", SELECTIVE, True),
        ("full", FULL, False),
    ],
)
def test_figure_7(row: dict[str, str], name: str, recompute, split: bool) -> None:
    run = RUNS[row["model"]]
    whole = first_stage(run, NONE, split=False)["activations"]
    share = 100 * first_stage(run, recompute, split)["activations"] / whole
    assert share == pytest.approx(float(row[name]), abs=0.3)


def test_an_eager_norm_keeps_its_input_in_fp32_and_a_copy() -> None:
    fused, eager = (
        layer(LLAMA, replace(JOB, norm_kernel=kernel)).activations.stored()
        for kernel in ("fused", "eager")
    )
    hidden = 2048 * LLAMA.hidden
    assert eager.norm_inputs == 2 * fused.norm_inputs == 8 * hidden
    assert eager.norm_outputs - fused.norm_outputs == 2 * 2 * hidden
    assert eager.total - fused.total == 8 * hidden


@pytest.mark.parametrize(("model", "dropout"), [(GPT, 3), (replace(GPT, dropout=False), 0)])
def test_scores_by_kernel(model, dropout: int) -> None:
    """Per score: a 16-bit softmax, in fp32 too when eager, and what dropout adds."""
    scores = GPT.heads * 2048 * 2048
    core = {
        kernel: layer(model, replace(UNFUSED, attention=kernel)).activations.stored().core_attention
        for kernel in ("unfused", "eager", "flash")
    }
    assert core["unfused"] == (2 + dropout) * scores
    assert core["eager"] == (6 + dropout) * scores
    assert core["flash"] == 4 * GPT.heads * 2048


def test_what_software_keeps_besides() -> None:
    costing = layer(LLAMA, tensor=4, sequence_parallel=True).activations
    least = replace(costing, keeps=Keeps()).stored()
    assert costing.stored() == least  # the Megatron stack keeps nothing besides
    tokens = 2048
    gated = replace(costing, keeps=Keeps(gate_copies=1)).stored()
    assert gated.total - least.total == 2 * tokens * LLAMA.ffn_hidden // 4
    whole = replace(costing, keeps=Keeps(whole_norms=True)).stored()
    assert whole.norm_outputs == 4 * least.norm_outputs
    unrotated = replace(costing, keeps=Keeps(unrotated=True)).stored()
    assert unrotated.qkv - least.qkv == 2 * tokens * (LLAMA.query_width + LLAMA.kv_width) // 4


def test_the_halves_of_a_block_run_backward_one_after_the_other() -> None:
    """Gradients of scores are alive when all that the MLP half stored is free again."""
    tokens, scores = 2048, 16 * 2048 * 2048
    costing = layer(GPT, UNFUSED).activations
    attention = 4 * scores + 2 * tokens * 4 * GPT.hidden
    freed = costing.stored().mlp_half
    assert freed == tokens * GPT.hidden * (4 + 16 + 1)  # norm in and out, hidden, a mask
    assert costing.working_bytes() == attention - freed + 2 * tokens * GPT.hidden
    flash = layer(GPT).activations
    assert flash.working_bytes() == 2 * tokens * (8 * GPT.hidden + GPT.hidden)


def plain_plan(job: JobSpec, microbatch: int) -> Plan:
    """GPT on two stages of eight data ranks."""
    g = configuration(pipeline=2, data=8, microbatch=microbatch)
    return Plan(GPT, A100, job, "mixed", g, (12, 12), (Strategy("1", ()),) * 24)


@pytest.mark.parametrize("microbatch", [1, 8, 32])
def test_the_device_holds_more_than_what_is_allocated(microbatch: int) -> None:
    """Context, communicators and slack on top; a plan fits when that is at most the memory."""
    plan = plain_plan(JOB, microbatch)
    prediction = CostModel(GPT, A100, JOB).terms(plan)
    context, communicators, full_slack = (term.value for term in prediction.reserve_terms)
    assert (context, communicators) == (1573 * 2**20, 2 * 256 * 2**20)
    for stage in prediction.stages:
        assert stage.allocated_bytes == sum(term.value for term in stage.memory_terms)
        slack = stage.device_bytes - context - communicators - stage.allocated_bytes
        assert slack == pytest.approx(ALLOCATOR_SLACK * stage.allocated_bytes)
    usable = prediction.stages[0].usable_bytes
    assert context + communicators + usable + full_slack == A100.device.memory_bytes
    assert full_slack == pytest.approx(ALLOCATOR_SLACK * usable)
    assert prediction.fits == (prediction.device_bytes <= A100.device.memory_bytes)
    assert prediction.fits == (microbatch < 32)
    assert prediction.allocated_bytes == max(s.allocated_bytes for s in prediction.stages)


def test_a_given_reserve_is_all_that_is_added() -> None:
    job = replace(JOB, reserve_bytes=2**33)
    prediction = CostModel(GPT, A100, job).terms(plain_plan(job, 1))
    assert prediction.device_bytes == prediction.allocated_bytes + 2**33


@pytest.mark.parametrize(("generation", "mebibytes"), [("ampere", 68), ("hopper", 96)])
def test_workspaces_are_on_every_stage(generation: str, mebibytes: int) -> None:
    cluster = replace(A100, device=replace(A100.device, generation=generation))
    plan = replace(plain_plan(JOB, 1), cluster=cluster)
    for stage in CostModel(GPT, cluster, JOB).terms(plan).stages:
        terms = {term.name: term.value for term in stage.memory_terms}
        assert terms["workspaces"] == mebibytes * 2**20
        assert terms["communication_buffers"] == 3 * 2 * 2048 * GPT.hidden


def test_of_the_loss_only_what_exceeds_a_blocks_own_work_counts() -> None:
    """The last stage holds the logits, or works on a block, never both."""
    few, many = (replace(GPT, vocab=vocab) for vocab in (1280, 512_000))
    hidden = 2 * 2048 * GPT.hidden
    for model in (few, many):
        prediction = CostModel(model, A100, UNFUSED).terms(
            replace(plain_plan(UNFUSED, 1), model=model)
        )
        terms = {term.name: term.value for term in prediction.stages[-1].memory_terms}
        logits = 6.0 * 2048 * model.vocab
        loss = terms["logits"] + terms["transient"] - 2 * hidden  # the head's inputs beside it
        assert loss == max(logits + hidden, terms["transient"])
