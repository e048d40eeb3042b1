"""Measured times of a block: exact where measured, scaled elsewhere, and part of the proof."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ilp_parallel.certificate import decode, encode
from ilp_parallel.configuration import RECOMPUTE_SETS, Strategy
from ilp_parallel.costs.model import CostModel
from ilp_parallel.instances import InstanceBuilder
from ilp_parallel.plan import Plan
from ilp_parallel.plan_files import plan_document, read_plan
from ilp_parallel.planner import SearchOptions, search
from ilp_parallel.problems.pipeline import PipelineSolution, evaluate
from ilp_parallel.spaces import Pins, get_space
from ilp_parallel.specs.layer_times import LayerTime
from ilp_parallel.verify import verify
from tests import small_jobs
from tests.costs.cases import A100, GPT, JOB, LLAMA, configuration

if TYPE_CHECKING:
    from pathlib import Path

    from ilp_parallel.costs.layer import LayerPart

PLAIN = CostModel(LLAMA, A100, JOB)
SECONDS = st.floats(1e-4, 1.0)


def model_with(*times: LayerTime) -> CostModel:
    return CostModel(LLAMA, A100, replace(JOB, layer_times=times))


def at(tensor: int, microbatch: int, ratio: float, backward: float | None = None) -> LayerTime:
    """A measurement that is so many times what the model says, without sequence parallelism."""
    part = block(PLAIN, tensor, microbatch)
    backward_s = None if backward is None else backward * part.backward_s
    return LayerTime(tensor, microbatch, JOB.sequence_length, ratio * part.forward_s, backward_s)


def block(costs: CostModel, tensor: int, microbatch: int, sp: bool = False) -> LayerPart:
    g = configuration(tensor=tensor, microbatch=microbatch, sequence_parallel=sp)
    return costs.layer_part(g)


def ratios(costs: CostModel, tensor: int, microbatch: int) -> tuple[float, float]:
    """Seconds over modelled ones, forward and backward."""
    part, plain = block(costs, tensor, microbatch), block(PLAIN, tensor, microbatch)
    return part.forward_s / plain.forward_s, part.backward_s / plain.backward_s


measurements = st.dictionaries(
    st.tuples(st.sampled_from([1, 2, 8]), st.integers(1, 12)),
    st.tuples(SECONDS, st.none() | SECONDS),
    min_size=1,
    max_size=6,
).map(lambda found: [LayerTime(t, b, 2048, f, w) for (t, b), (f, w) in found.items()])


@settings(deadline=None)
@given(times=measurements, sp=st.booleans())
def test_where_it_was_measured_the_time_is_exactly_that(times: list[LayerTime], sp: bool) -> None:
    costs = model_with(*times)
    for time in times:
        g = configuration(
            tensor=time.tensor, microbatch=time.microbatch, sequence_parallel=sp and time.tensor > 1
        )
        part, plain = costs.layer_part(g), PLAIN.layer_part(g)
        assert part.forward_s == time.forward_s
        backward_s = time.backward_s
        if backward_s is None:
            backward_s = time.forward_s * (plain.backward_s / plain.forward_s)
        assert part.backward_s == backward_s
        table = costs.layer_table(g)
        none = table.strategies.index(Strategy("0", ()))
        assert table.forward_s[0, none] == time.forward_s
        assert table.backward_s[0, none] == backward_s


@settings(deadline=None)
@given(times=measurements, tensor=st.sampled_from([1, 2, 4, 8, 16]), b=st.integers(1, 16))
def test_work_and_recomputation_are_scaled_with_their_pass(
    times: list[LayerTime], tensor: int, b: int
) -> None:
    part, plain = block(model_with(*times), tensor, b), block(PLAIN, tensor, b)
    assert part.recompute_s[RECOMPUTE_SETS.index(("full",))] == part.forward_s
    assert part.recompute_s == pytest.approx(plain.recompute_s * (part.forward_s / plain.forward_s))
    for work, before, factor in (
        (part.forward, plain.forward, part.forward_s / plain.forward_s),
        (part.backward, plain.backward, part.backward_s / plain.backward_s),
    ):
        assert work.compute_s == pytest.approx(factor * before.compute_s)
        assert work.tensor_traffic_s == pytest.approx(factor * before.tensor_traffic_s)
        assert work.kernels == before.kernels
    for name in ("stored", "recompute_flops", "activation_bytes", "transient_bytes"):
        assert np.all(getattr(part, name) == getattr(plain, name))


def test_between_two_measured_microbatches_the_ratio_is_linear() -> None:
    costs = model_with(at(2, 4, 1.2, 1.5), at(2, 8, 1.4, 1.1))
    assert ratios(costs, 2, 5) == pytest.approx((1.25, 1.4))
    assert ratios(costs, 2, 6) == pytest.approx((1.3, 1.3))


def test_beyond_the_measured_microbatches_the_last_ratio_holds() -> None:
    costs = model_with(at(2, 4, 1.2, 1.5), at(2, 8, 1.4, 1.1))
    for b in (1, 3):
        assert ratios(costs, 2, b) == pytest.approx((1.2, 1.5))
    for b in (9, 64):
        assert ratios(costs, 2, b) == pytest.approx((1.4, 1.1))


def test_other_degrees_have_the_ratio_of_the_nearest() -> None:
    costs = model_with(at(1, 1, 1.5), at(8, 1, 0.9), at(8, 3, 1.1))
    assert ratios(costs, 2, 1) == pytest.approx((1.5, 1.5))  # one doubling from 1, two from 8
    assert ratios(costs, 4, 2) == pytest.approx((1.0, 1.0))
    assert ratios(costs, 16, 3) == pytest.approx((1.1, 1.1))
    tie = model_with(at(1, 1, 1.5), at(4, 1, 0.9))
    assert ratios(tie, 2, 1)[0] == pytest.approx(1.5)  # of two equally near ones the smaller


def test_backward_left_open_between_backwards_measured() -> None:
    costs = model_with(at(1, 1, 1.2), at(1, 3, 1.4, 2.0))
    assert ratios(costs, 1, 1) == pytest.approx((1.2, 1.2))
    assert ratios(costs, 1, 2) == pytest.approx((1.3, 1.6))


def test_an_interpolated_time_stays_between_its_neighbours() -> None:
    """A ratio that falls steeply would, times a growing block, overshoot what was measured."""
    low, high = LayerTime(1, 1, 2048, 0.04, 0.08), LayerTime(1, 16, 2048, 0.05, 0.09)
    costs = model_with(low, high)
    naive = [low.forward_s / block(PLAIN, 1, 1).forward_s]
    naive.append(high.forward_s / block(PLAIN, 1, 16).forward_s)
    middle = sum(naive) / 2 * block(PLAIN, 1, 8).forward_s
    assert middle > 2 * high.forward_s  # what the bare rule would say
    times = [block(costs, 1, b) for b in range(1, 17)]
    assert all(0.04 <= t.forward_s <= 0.05 + 1e-12 for t in times)
    assert all(0.08 <= t.backward_s <= 0.09 + 1e-12 for t in times)


@settings(deadline=None)
@given(
    microbatches=st.sets(st.integers(1, 16), min_size=1, max_size=5),
    data=st.data(),
)
def test_more_sequences_never_take_less_time_if_none_measured_did(
    microbatches: set[int], data: st.DataObject
) -> None:
    forward_s, times = 0.0, []
    for b in sorted(microbatches):
        forward_s += data.draw(SECONDS)
        times.append(LayerTime(2, b, 2048, forward_s))
    costs = model_with(*times)
    seconds = [block(costs, 2, b).forward_s for b in range(1, 25)]
    assert all(s <= t * (1 + 1e-12) for s, t in pairwise(seconds))


def test_context_parallelism_keeps_the_ratio_of_whole_sequences() -> None:
    g = replace(configuration(tensor=2, microbatch=2), context=2)
    costs = model_with(at(2, 2, 1.3, 1.6))
    part, plain = costs.layer_part(g), PLAIN.layer_part(g)
    assert part.forward_s == pytest.approx(1.3 * plain.forward_s)
    assert part.backward_s == pytest.approx(1.6 * plain.backward_s)


def test_times_of_other_sequence_lengths_change_nothing() -> None:
    costs = model_with(LayerTime(1, 1, 4096, 0.5, 1.0))
    for g in (configuration(), configuration(tensor=4, data=2, sequence_parallel=True)):
        for name in ("forward_s", "backward_s", "tail_s"):
            assert np.array_equal(
                getattr(costs.layer_table(g), name), getattr(PLAIN.layer_table(g), name)
            )


def test_measured_compute_hides_traffic() -> None:
    """What a block takes longer, ZeRO's traffic may hide behind."""
    g = configuration(tensor=1, data=16, microbatch=1)
    slow = model_with(at(1, 1, 3.0))
    assert PLAIN.exposed_traffic(g).last_backward_s.max() > 0
    assert np.all(slow.exposed_traffic(g).forward_s <= PLAIN.exposed_traffic(g).forward_s)
    assert np.all(
        slow.exposed_traffic(g).last_backward_s <= PLAIN.exposed_traffic(g).last_backward_s
    )


# --- the whole plan ------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(
    times=measurements,
    pipeline=st.sampled_from([1, 2, 4]),
    tensor=st.sampled_from([1, 2, 4]),
    data=st.sampled_from([1, 4]),
    b=st.integers(1, 4),
    seed=st.integers(0, 2**32 - 1),
)
def test_terms_add_up_to_the_evaluation(
    times: list[LayerTime], pipeline: int, tensor: int, data: int, b: int, seed: int
) -> None:
    rng, costs = np.random.default_rng(seed), model_with(*times)
    g = configuration(
        pipeline=pipeline, tensor=tensor, data=data, microbatch=b, sequence_parallel=tensor > 1
    )
    strategies, layers = costs.strategies(g), LLAMA.layers
    sizes = (layers // pipeline,) * pipeline
    chosen = tuple(int(k) for k in rng.integers(len(strategies), size=layers))
    instance = InstanceBuilder(costs, get_space("mixed"), Pins.parse((), ())).unfolded(g)
    expected = evaluate(instance, PipelineSolution(sizes, chosen))
    plan = Plan(LLAMA, A100, costs.job, "mixed", g, sizes, tuple(strategies[k] for k in chosen))
    for s, stage in enumerate(costs.terms(plan).stages):
        both = stage.forward_s + stage.backward_s
        assert sum(term.value for term in stage.microbatch_terms) == pytest.approx(both)
        assert all(term.value >= 0 for term in stage.microbatch_terms + stage.step_terms)
        for seconds, ticks in (
            (stage.forward_s, expected.forward_ticks[s]),
            (stage.backward_s, expected.backward_ticks[s]),
            (stage.tail_s, expected.tail_ticks[s]),
        ):
            assert -1e-3 < ticks - seconds / 1e-6 < 2 * layers + 4


def test_the_blocks_terms_are_what_was_measured() -> None:
    """Two stages of twelve blocks, nothing recomputed: 12 (forward + backward) of each."""
    time = LayerTime(2, 1, 2048, 0.0031, 0.0072)
    costs = model_with(time)
    g = configuration(pipeline=2, tensor=2, data=1, microbatches=256)
    plan = Plan(LLAMA, A100, costs.job, "mixed", g, (12, 12), (Strategy("0", ()),) * 24)
    for stage in costs.terms(plan).stages:
        terms = {term.name: term.value for term in stage.microbatch_terms}
        names = ("matmul", "attention", "memory_bound", "tensor_traffic", "host_and_stragglers")
        assert sum(terms[name] for name in names) == pytest.approx(12 * 0.0103)


def test_solved_with_measured_times_and_verified_without_them() -> None:
    """The proof holds for the times in the certificate, and for those alone."""
    model, job = small_jobs.MODEL, small_jobs.JOB
    plain = search(model, small_jobs.NODE, job, SearchOptions(space="mixed"))
    assert plain.plan is not None
    assert plain.plan.configuration.tensor == 2
    slow = tuple(
        LayerTime(t, b, job.sequence_length, seconds * b, 2 * seconds * b)
        for t, seconds in ((1, 0.01), (2, 0.3), (4, 0.2))
        for b in (1, 2)
    )
    measured = replace(job, layer_times=slow)
    result = search(model, small_jobs.NODE, measured, SearchOptions(space="mixed"))
    certificate = result.certificate
    assert result.status == "optimal"
    assert certificate.objective_ticks == certificate.bound_ticks
    assert certificate.job.layer_times == slow
    assert all(check.passed for check in verify(decode(encode(certificate))))
    assert result.plan is not None
    assert result.plan.configuration.tensor == 1
    without = replace(certificate.job, layer_times=())
    tampered = decode(encode(certificate).replace(b'"forward_s":0.01,', b'"forward_s":0.02,'))
    for changed in (tampered, type(certificate)(**{**parts(certificate), "job": without})):
        assert not all(check.passed for check in verify(changed))


def parts(certificate: object) -> dict[str, object]:
    return {name: getattr(certificate, name) for name in certificate.__struct_fields__}  # type: ignore[attr-defined]


def test_plan_files_carry_the_times(tmp_path: Path) -> None:
    time = LayerTime(2, 1, 2048, 0.0031)
    costs = CostModel(GPT, A100, replace(JOB, layer_times=(time,)))
    g = configuration(pipeline=2, tensor=2, data=32, microbatches=8)
    plan = Plan(GPT, A100, costs.job, "mixed", g, (12, 12), (Strategy("1", ()),) * 24)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan_document(plan)))
    read = read_plan(str(path))
    assert read.job.layer_times == (time,)
    assert CostModel(read.model, read.cluster, read.job).terms(read) == costs.terms(plan)
