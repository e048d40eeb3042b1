"""Keys that queries see, counted one by one; work of windows, documents, other mixers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ilp_parallel.costs.hardware import Machine
from ilp_parallel.costs.mixing import MixingCosting, mean_keys
from ilp_parallel.costs.shapes import rank_shapes
from ilp_parallel.specs.model import ModelSpec, StateSpace
from tests.costs.cases import A100, JOB, LLAMA

if TYPE_CHECKING:
    from ilp_parallel.specs.job import JobSpec

ALL = replace(LLAMA, causal=False)


def mixing(model: ModelSpec, job: JobSpec = JOB, context: int = 1) -> MixingCosting:
    machine = Machine(A100, job)
    ring = machine.group(context, 1, A100.devices)
    tokens = job.sequence_length // context
    return MixingCosting(model, job, machine, rank_shapes(model, 1), tokens, ring)


def forward_s(model: ModelSpec, job: JobSpec = JOB) -> float:
    return mixing(model, job).passes()[0].attention_s


@given(st.lists(st.integers(1, 12), min_size=1, max_size=4), st.integers(0, 14), st.booleans())
def test_keys_are_those_that_queries_see(lengths: list[int], window: int, causal: bool) -> None:
    """Twice the keys of all queries of a sequence, per token."""
    seen = 0
    for length in lengths:
        for query in range(length):
            keys = query + 1 if causal else length
            seen += min(keys, window) if window else keys
    total = sum(lengths)
    model = replace(LLAMA, causal=causal, window=window)
    job = replace(JOB, sequence_length=total, document_lengths=tuple(lengths))
    # the diagonal counts as half of a key: l^2 / 2 in place of l (l + 1) / 2
    doubled = mean_keys(model, job) * total
    if not causal:
        assert doubled == pytest.approx(2 * seen)
        return
    full = [min(window, length) if window else length for length in lengths]
    assert doubled + sum(full) == pytest.approx(2 * seen)


def test_packed_documents_cost_the_sum_of_their_squares() -> None:
    job = replace(JOB, sequence_length=4096, document_lengths=(1024,) * 4)
    alone = replace(JOB, sequence_length=1024)
    assert mean_keys(LLAMA, job) == mean_keys(LLAMA, alone) == 1024
    packed, whole = forward_s(LLAMA, job), forward_s(LLAMA, replace(JOB, sequence_length=4096))
    # as many tokens of four short sequences, a launch of a kernel apart
    assert packed == pytest.approx(4 * forward_s(LLAMA, alone), rel=0.2)
    assert packed < whole / 2


def test_windows_save_and_both_directions_cost_twice() -> None:
    job = replace(JOB, sequence_length=32768)
    assert forward_s(replace(LLAMA, window=4096), job) < forward_s(LLAMA, job) / 3
    assert forward_s(replace(LLAMA, window=1 << 20), job) == forward_s(LLAMA, job)
    assert forward_s(ALL, job) == pytest.approx(2 * forward_s(LLAMA, job), rel=1e-3)


def test_written_scores_are_written_whole() -> None:
    job = replace(JOB, attention="unfused")
    window = replace(LLAMA, window=128)
    assert forward_s(window, job) == forward_s(LLAMA, job)


def test_cross_attention_adds_a_look_at_all_of_the_encoder() -> None:
    crossing = replace(LLAMA, cross_attention=True)
    both = forward_s(LLAMA) + forward_s(ALL)
    assert forward_s(crossing) == pytest.approx(both, rel=1e-3)
    assert mixing(crossing).matrix_flops() == 2 * mixing(LLAMA).matrix_flops()


def test_a_block_without_mixer_mixes_nothing() -> None:
    none = replace(LLAMA, mixer="none")
    assert all(work.device_s == 0 for work in mixing(none).passes())
    assert mixing(none).matrix_flops() == 0


def test_a_scan_grows_with_tokens_not_with_their_square() -> None:
    space = StateSpace(heads=64, head_dim=64, groups=8, state=128, kernel=4)
    model = replace(LLAMA, mixer="state-space", state_space=space)
    short, long = (replace(JOB, sequence_length=s) for s in (4096, 32768))
    assert mixing(model, long).matrix_flops() == 8 * mixing(model, short).matrix_flops()
    one, two = (mixing(model, long, context=c).passes()[0] for c in (1, 2))
    assert one.context_traffic_s == 0 < two.context_traffic_s
    assert two.attention_s == one.attention_s / 2
