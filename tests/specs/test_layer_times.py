"""What a job may say about measured layers and rates, and that files carry it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ilp_parallel.costs.profile import rates_of
from ilp_parallel.errors import InputError
from ilp_parallel.specs.layer_times import (
    LAYER_TIME_LIMITS,
    MAX_LAYER_TIMES,
    LayerTime,
    layer_times_text,
)
from ilp_parallel.specs.rates import RATE_LIMITS
from ilp_parallel.specs.readers import load_cluster
from ilp_parallel.specs.validate import check_job, to_job
from tests.costs.cases import A100, GPT, JOB

if TYPE_CHECKING:
    from ilp_parallel.specs.job import JobSpec

ONE = LayerTime(2, 1, 2048, 0.001, 0.002)
BLOCK_FLOPS = 2.0 * 2048 * GPT.layer_matrix_parameters  # one sequence of 2048 tokens


def job(*times: LayerTime) -> JobSpec:
    return replace(JOB, layer_times=times)


def refused(spec: JobSpec) -> InputError:
    with pytest.raises(InputError) as caught:
        check_job(GPT, A100, spec)
    assert str(caught.value).isprintable()
    return caught.value


def test_good_layer_times_pass() -> None:
    """Several degrees and microbatches, other sequence lengths beside, backward open."""
    others = [replace(ONE, tensor=8), replace(ONE, microbatch=2), replace(ONE, sequence_length=512)]
    check_job(GPT, A100, job(ONE, *others, LayerTime(2, 4, 2048, 0.004)))


@pytest.mark.parametrize("name", LAYER_TIME_LIMITS)
@pytest.mark.parametrize("value", [0, -1, 1e30, float("nan"), float("inf"), float("-inf")])
def test_figures_out_of_range(name: str, value: float) -> None:
    error = refused(job(ONE, replace(replace(ONE, microbatch=2), **{name: value})))
    assert error.code == "OUT_OF_RANGE"
    assert f"layer_times[1].{name}" in error.message


def test_too_many_tokens_and_too_many_times() -> None:
    many = replace(ONE, microbatch=1 << 30, forward_s=900.0, backward_s=None)
    assert refused(job(many)).code == "OUT_OF_RANGE"
    full = [replace(ONE, microbatch=b + 1, forward_s=900, backward_s=None) for b in range(10_001)]
    assert refused(job(*full)).message == f"number of layer_times={MAX_LAYER_TIMES + 1}"


def test_one_time_for_each_case() -> None:
    error = refused(job(ONE, replace(ONE, forward_s=0.003)))
    assert error.code == "LAYER_TIME_TWICE"
    assert "tensor=2, microbatch=1, sequence_length=2048" in error.message


def test_a_degree_that_the_model_cannot_have() -> None:
    assert refused(job(replace(ONE, tensor=3))).code == "HEADS_NOT_DIVISIBLE_BY_TP"


@pytest.mark.parametrize(("name", "passes"), [("forward_s", 1), ("backward_s", 2)])
def test_no_block_is_faster_than_its_matrices_at_the_peak(name: str, passes: int) -> None:
    """Milliseconds taken for something smaller, a smaller model, a faster device."""
    slow = LayerTime(2, 3, 2048, 1.0, 2.0)
    least = passes * 3 * BLOCK_FLOPS / 2 / 312e12
    check_job(GPT, A100, job(replace(slow, **{name: 1.001 * least})))
    assert refused(job(replace(slow, **{name: 0.999 * least}))).code == "LAYER_TIME_BEATS_PEAK"
    h100 = load_cluster("h100-80gb:16x8")
    check_job(GPT, h100, job(replace(slow, **{name: 0.999 * least})))


@pytest.mark.parametrize("name", RATE_LIMITS)
def test_rates_out_of_their_limits_are_refused(name: str) -> None:
    shipped = rates_of("ampere", "megatron")
    check_job(GPT, A100, replace(JOB, rates=shipped))
    least, largest = RATE_LIMITS[name]
    for value in (least - 1e-6, largest * 1.001, float("nan")):
        error = refused(replace(JOB, rates=replace(shipped, **{name: value})))
        assert error.code == "OUT_OF_RANGE"
        assert f"rates.{name}" in error.message


def test_a_rate_of_nothing_is_one_line_of_error() -> None:
    none = replace(rates_of("ampere", "megatron"), matmul=0.0)
    assert refused(replace(JOB, rates=none)).fix == "use 0.01 to 1.0"


@given(
    times=st.lists(
        st.builds(
            LayerTime,
            st.integers(1, 8),
            st.integers(1, 64),
            st.just(2048),
            st.floats(1e-9, 1e3),
            st.none() | st.floats(1e-9, 1e3),
        ),
        max_size=4,
    )
)
def test_jobs_survive_json(times: list[LayerTime]) -> None:
    spec = job(*times)
    assert to_job(msgspec.json.decode(msgspec.json.encode(spec)), "again") == spec


@pytest.mark.parametrize(
    "entry",
    [{"tensor": 1}, {**msgspec.to_builtins(ONE), "forward_s": "1"}, [1], None, {"tensor": 1.5}],
)
def test_jobs_of_wrong_types(entry: object) -> None:
    data = {**msgspec.to_builtins(JOB), "layer_times": [entry]}
    with pytest.raises(InputError) as caught:
        to_job(data, "file")
    assert caught.value.code == "WRONG_TYPE"


def test_a_job_without_the_field_is_read() -> None:
    old = {k: v for k, v in msgspec.to_builtins(JOB).items() if k != "layer_times"}
    assert to_job(old, "file") == JOB


def test_in_words() -> None:
    rows = [replace(ONE, microbatch=b) for b in (1, 2, 3, 8)]
    assert layer_times_text(
        [*rows, replace(ONE, tensor=1), replace(ONE, sequence_length=4)], 2048
    ) == (
        "layer times measured (tensor 1: microbatch 1; tensor 2: microbatch 1-3, 8), "
        "elsewhere modelled ones scaled to them"
    )
    assert layer_times_text(rows, 4096) == (
        "layer times modelled: those measured are of sequence length 2048"
    )
    assert layer_times_text([], 4096) == ""
    odd = [replace(ONE, microbatch=2 * b + 1) for b in range(100)]
    assert "1, 3, 5, 7, 9, 11, 13, ... 199" in layer_times_text(odd, 2048)
