"""The timeline's data give back every operation, or say which part of the step they hold."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest

from ilp_parallel.costs.model import CostModel
from ilp_parallel.pages.timeline import timeline_data
from ilp_parallel.plan_words import plan_from_words
from ilp_parallel.playing import play
from tests.small_jobs import JOB, MODEL, NODE

if TYPE_CHECKING:
    from ilp_parallel.costs.breakdown import Prediction
    from ilp_parallel.playing import Played

PLANS = (
    "pp=4 tp=1 mbs=1",
    "pp=2 tp=1 mbs=1 vpp=2",
    "pp=2 tp=2 mbs=1 recompute=full schedule=gpipe",
    "pp=1 tp=4 mbs=2",
)


def played(words: str) -> tuple[Played, Prediction]:
    from ilp_parallel.jobs import CompleteJob

    plan = plan_from_words(CompleteJob(MODEL, NODE, JOB, ()), words)
    costs = CostModel(plan.model, plan.cluster, plan.job)
    return play(costs, plan), costs.terms(plan)


def decoded(group: dict, chunks: int) -> list[tuple[int, int, int, int, int, tuple[int, int]]]:
    """(start, end, backward, chunk, microbatch, memory) as the page's script reads them."""
    found = []
    for part in group["parts"]:
        clock = 0
        for gap, code, held in zip(part["gaps"], part["codes"], part["held"], strict=True):
            backward, chunk = code & 1, (code >> 1) % chunks
            start = clock + gap
            clock = start + group["backward" if backward else "forward"][chunk]
            levels = tuple(part["levels"][held])
            found.append((start, clock, backward, chunk, (code >> 1) // chunks, levels))
    return found


@pytest.mark.parametrize("words", PLANS)
def test_every_operation_comes_back(words: str) -> None:
    run, prediction = played(words)
    made = timeline_data(run, prediction, 1e-6)
    assert made.drawn == made.operations
    groups = made.data["groups"]
    for group, line, curve in zip(
        groups, run.simulation.timelines, run.simulation.memory, strict=True
    ):
        found = decoded(group, run.instance.chunks)
        starts, ends, backward, chunk, microbatch, levels = zip(*found, strict=True)
        assert starts == tuple(line.start_ticks)
        assert ends == tuple(line.end_ticks)
        assert backward == tuple(line.order.backward)
        assert chunk == tuple(line.order.chunk)
        assert microbatch == tuple(line.order.microbatch)
        mib = -(-curve.bytes_held // (1 << 20)).reshape(-1, 2)
        assert np.array_equal(np.array(levels), mib)
        assert group["finish"] == ends[-1]
    assert made.data["step"] == run.simulation.step_ticks


@pytest.mark.parametrize("words", PLANS[:2])
def test_a_long_schedule_keeps_first_middle_and_last(words: str) -> None:
    run, prediction = played(words)
    whole = timeline_data(run, prediction, 1e-6)
    made = timeline_data(run, prediction, 1e-6, most=whole.operations // 2)
    assert 0 < made.drawn <= whole.operations // 2 + 3
    windows = made.data["windows"]
    assert len(windows) == 3
    assert windows[0][0] == 0 and windows[-1][1] == run.simulation.step_ticks
    assert all(a[1] <= b[0] for a, b in pairwise(windows))
    every = {
        (s, *operation)
        for s, group in enumerate(whole.data["groups"])
        for operation in decoded(group, run.instance.chunks)
    }
    kept = {
        (s, *operation)
        for s, group in enumerate(made.data["groups"])
        for operation in decoded(group, run.instance.chunks)
    }
    assert kept <= every
    inside = {o for o in every if any(low <= o[1] < high for low, high in windows)}
    assert kept == inside


def test_recomputation_is_a_share_of_the_backward() -> None:
    run, prediction = played("pp=2 tp=2 mbs=1 recompute=full schedule=gpipe")
    groups = timeline_data(run, prediction, 1e-6).data["groups"]
    assert all(0 < group["recompute"] < 0.5 for group in groups)
    run, prediction = played("pp=2 tp=2 mbs=1")
    assert all(g["recompute"] == 0 for g in timeline_data(run, prediction, 1e-6).data["groups"])
