"""Shares of the step: they add up to it, and are what a hand calculation says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from ilp_parallel.configuration import Strategy
from ilp_parallel.costs.breakdown import StagePrediction, Term, step_time_s
from ilp_parallel.costs.model import CostModel
from ilp_parallel.plan import Plan
from ilp_parallel.predicting import prediction_document, step_shares, throughput
from tests.costs.cases import A100, JOB, LLAMA, configuration
from tests.costs.test_breakdown import COSTS, cases, sizes_of


@settings(deadline=None)
@given(case=cases())
def test_shares_of_any_plan_add_up_to_the_step(case) -> None:
    name, g, seed = case
    rng, costs = np.random.default_rng(seed), COSTS[name]
    strategies = costs.strategies(g)
    sizes = sizes_of(rng, costs.model.layers, g.pipeline * g.chunks, False)
    chosen = rng.integers(len(strategies), size=costs.model.layers)
    plan = Plan(costs.model, A100, JOB, "mixed", g, sizes, tuple(strategies[k] for k in chosen))
    prediction = costs.terms(plan)
    shares = step_shares(g, prediction)
    assert sum(s.seconds for s in shares) == pytest.approx(prediction.step_time_s, rel=1e-12)
    assert sum(s.share for s in shares) == pytest.approx(1, rel=1e-12)
    assert min(s.share for s in shares) > -1e-12
    bubble = next(s for s in shares if s.term == "bubble")
    if g.pipeline == 1:
        assert bubble.seconds == pytest.approx(0, abs=1e-12)
    else:
        assert bubble.seconds > 0


def stage(forward_s: float, backward_s: float, tail_s: float) -> StagePrediction:
    """A stage with one term of each kind; its memory is any."""
    return replace(
        COSTS["llama"].terms(plan_with(())).stages[0],
        microbatch_terms=(Term("matmul", forward_s + backward_s, "s/microbatch"),),
        step_terms=(Term("sync", tail_s, "s/step"),),
        forward_s=forward_s,
        backward_s=backward_s,
        tail_s=tail_s,
    )


def plan_with(recompute: tuple[str, ...]) -> Plan:
    g = configuration(pipeline=2, tensor=2, data=4, microbatches=64)
    return Plan(LLAMA, A100, JOB, "mixed", g, (12, 12), (Strategy("1", recompute),) * 24)


STAGES = (stage(1.0, 3.0, 0.5), stage(2.0, 3.0, 0.25), stage(2.5, 1.0, 0.75))


@pytest.mark.parametrize(
    ("schedule", "chunks", "bubble"),
    [
        ("1f1b", 1, 4.0 + 3.5),  # the other two stages' work
        ("gpipe", 1, 4.0 + 3.5 + (6 - 1) * (2.5 + 3.0 - 5.0)),
        ("interleaved", 3, (4.0 + 3.5) / 3),
    ],
)
def test_shares_by_hand(schedule, chunks: int, bubble: float) -> None:
    g = configuration(pipeline=3, microbatches=6, chunks=chunks, schedule=schedule)
    columns = zip(*((s.forward_s, s.backward_s, s.tail_s) for s in STAGES), strict=True)
    step = step_time_s(g, *map(list, columns))
    any_other = COSTS["llama"].terms(plan_with(()))
    prediction = replace(any_other, stages=STAGES, step_time_s=step)
    shares = step_shares(g, prediction)
    assert [(s.term, s.part) for s in shares] == [
        ("matmul", "microbatches"),
        ("bubble", "bubble"),
        ("sync", "once per step"),
    ]
    assert [s.seconds for s in shares] == pytest.approx([6 * 5.0, bubble, 0.75])
    assert [s.share for s in shares] == pytest.approx([30 / step, bubble / step, 0.75 / step])


def test_flop_rates_of_a_device() -> None:
    plan = plan_with(("full",))
    prediction = CostModel(LLAMA, A100, JOB).terms(plan)
    rates = throughput(plan, prediction)
    assert rates.peak_flops == 312e12
    assert rates.model_flops == pytest.approx(prediction.mfu * 312e12)
    assert rates.hardware_flops == pytest.approx(prediction.hfu * 312e12)
    block = 4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 14336
    per_token = 6 * (24 * block + 51200 * 4096) + 12 * 24 * 4096 * 2048
    by_hand = per_token * prediction.tokens_per_s_per_device
    assert rates.model_flops == pytest.approx(by_hand)


def test_the_hash_is_that_of_the_plan() -> None:
    costs = CostModel(LLAMA, A100, JOB)
    plans = [plan_with(()), plan_with(("full",)), replace(plan_with(()), sizes=(11, 13))]
    documents = [prediction_document(plan, costs.terms(plan)) for plan in plans]
    hashes = [document["instance"]["hash"] for document in documents]
    assert len(set(hashes)) == 3
    assert prediction_document(plans[0], costs.terms(plans[0])) == documents[0]
