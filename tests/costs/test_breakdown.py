"""The breakdown adds up to what the problem's own evaluation says of the same plan."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ilp_parallel.configuration import Strategy
from ilp_parallel.costs.breakdown import model_flops
from ilp_parallel.costs.model import CostModel
from ilp_parallel.instances import InstanceBuilder, rounding_ticks
from ilp_parallel.plan import Plan
from ilp_parallel.problems.pipeline import PipelineSolution, evaluate
from ilp_parallel.spaces import Pins, get_space
from tests.costs.cases import A100, GPT, JOB, LLAMA, configuration

TICK_S = 1e-6
COSTS = {model.name: CostModel(model, A100, JOB) for model in (GPT, LLAMA)}


@st.composite
def cases(draw) -> tuple[str, object, int]:
    """A model, a configuration and a seed for what the layers do."""
    pipeline = draw(st.sampled_from([1, 2, 4]))
    chunks = draw(st.sampled_from([1, 2, 3])) if pipeline > 1 else 1
    tensor = draw(st.sampled_from([1, 2, 8]))
    g = configuration(
        pipeline=pipeline,
        tensor=tensor,
        data=draw(st.sampled_from([1, 2, 4])),
        microbatch=draw(st.sampled_from([1, 2])),
        microbatches=pipeline * draw(st.integers(1, 4)),
        chunks=chunks,
        sequence_parallel=tensor > 1 and draw(st.booleans()),
        schedule=None if chunks > 1 else draw(st.sampled_from(["1f1b", "gpipe"])),
    )
    return draw(st.sampled_from(["gpt", "llama"])), g, draw(st.integers(0, 2**32 - 1))


def sizes_of(rng: np.random.Generator, layers: int, stages: int, equal: bool) -> tuple[int, ...]:
    if equal:
        return (layers // stages,) * stages
    cuts = np.sort(rng.choice(np.arange(1, layers), stages - 1, replace=False))
    return tuple(int(n) for n in np.diff([0, *cuts, layers]))


@settings(deadline=None)
@given(case=cases())
def test_terms_add_up_to_the_evaluation(case) -> None:
    name, g, seed = case
    rng, costs = np.random.default_rng(seed), COSTS[name]
    strategies = costs.strategies(g)
    sizes = sizes_of(rng, costs.model.layers, g.pipeline * g.chunks, g.chunks > 1)
    chosen = tuple(int(k) for k in rng.integers(len(strategies), size=costs.model.layers))
    builder = InstanceBuilder(costs, get_space("mixed"), Pins.parse((), ()))
    instance = builder.unfolded(g)
    expected = evaluate(instance, PipelineSolution(sizes, chosen))
    plan = Plan(costs.model, A100, JOB, "mixed", g, sizes, tuple(strategies[k] for k in chosen))
    prediction = costs.terms(plan)

    rounded = 2 * costs.model.layers + 4 * g.chunks  # terms of one device group, each < 1 unit
    for s, stage in enumerate(prediction.stages):
        assert sum(t.value for t in stage.microbatch_terms) == pytest.approx(
            stage.forward_s + stage.backward_s
        )
        for seconds, ticks in (
            (stage.forward_s, expected.forward_ticks[s]),
            (stage.backward_s, expected.backward_ticks[s]),
            (stage.tail_s, expected.tail_ticks[s]),
        ):
            assert -1e-3 < ticks - seconds / TICK_S < rounded
        in_flight = int(instance.in_flight[s].max()) * g.chunks
        slack_bytes = costs.model.layers * (1 + in_flight) + 2
        assert -1 < expected.memory_bytes[s] - stage.memory_bytes < slack_bytes
        assert stage.usable_bytes == int(instance.capacity_bytes[s])
        assert all(t.value >= 0 for t in stage.microbatch_terms + stage.step_terms)
        assert all(t.value >= 0 for t in stage.memory_terms)
    excess = expected.objective_ticks - prediction.step_time_s / TICK_S
    assert -1e-3 < excess <= rounding_ticks(instance)
    assert prediction.fits == all(
        check.passed for check in expected.checks if check.name.startswith("memory")
    )


def plan_with(recompute: tuple[str, ...]) -> Plan:
    g = configuration(pipeline=2, tensor=2, data=4, microbatches=64)
    return Plan(LLAMA, A100, JOB, "mixed", g, (12, 12), (Strategy("1", recompute),) * 24)


def test_rates_follow_from_the_step_time() -> None:
    prediction = COSTS["llama"].terms(plan_with(()))
    tokens = 256 * 2048
    assert prediction.tokens_per_s == tokens / prediction.step_time_s
    assert prediction.tokens_per_s_per_device == prediction.tokens_per_s / 16
    peak = 312e12 * 16 * prediction.step_time_s
    assert prediction.mfu == pytest.approx(prediction.model_flops / peak)
    assert prediction.hfu == prediction.mfu
    assert 0.2 < prediction.mfu < 0.8


def test_full_recomputation_adds_a_forward_of_the_blocks() -> None:
    prediction = COSTS["llama"].terms(plan_with(("full",)))
    head = 6.0 * LLAMA.vocab * LLAMA.hidden * 256 * 2048
    added = prediction.hardware_flops - prediction.model_flops
    assert added == pytest.approx((prediction.model_flops - head) / 3)


def test_model_flops_by_hand() -> None:
    """Six per matrix parameter and token; 12 x layers x width x sequence for attention."""
    block = 4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 14336
    per_token = 6 * (24 * block + 51200 * 4096) + 12 * 24 * 4096 * 2048
    assert model_flops(LLAMA, JOB) == per_token * 256 * 2048


def test_a_given_reserve_replaces_the_modelled_one() -> None:
    plan = plan_with(())
    modelled = COSTS["llama"].terms(plan).reserve_terms
    assert [term.name for term in modelled] == ["context", "communicators", "fragmentation"]
    assert all(term.value > 0 for term in modelled)
    job = replace(JOB, reserve_bytes=2**30)
    given_terms = CostModel(LLAMA, A100, job).terms(replace(plan, job=job)).reserve_terms
    assert [(term.name, term.value) for term in given_terms if term.value] == [("reserve", 2.0**30)]
