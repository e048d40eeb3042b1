"""The anytime curve: what a search reported, one curve for every search, closed by its end."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import pytest

from ilp_parallel.anytime import COLUMNS, Recorder, curves_csv
from ilp_parallel.jobs import CompleteJob
from ilp_parallel.planner import SearchOptions, SearchProgress
from ilp_parallel.solving import solve
from tests.small_jobs import JOB, MODEL, NODE


def test_curves_of_a_solve_rise_and_fall_to_the_optimum() -> None:
    recorder = Recorder()
    options = SearchOptions(space="megatron", progress=recorder)
    answer = solve(CompleteJob(MODEL, NODE, JOB, ()), options, started=0.0)
    curves = recorder.curves(answer)
    assert [curve.space for curve in curves] == ["mixed", "megatron"]
    results = (answer.superset, answer.result)
    for curve, result in zip(curves, results, strict=True):
        assert result is not None
        bounds = [m.bound for m in curve.moments if m.bound is not None]
        best = [m.incumbent for m in curve.moments if m.incumbent is not None]
        times = [m.elapsed_s for m in curve.moments]
        assert bounds == sorted(bounds)
        assert best == sorted(best, reverse=True)
        assert times == sorted(times)
        assert bounds[-1] == best[-1] == result.certificate.objective_ticks
        assert len(bounds) > 2
        assert all(m.incumbent is None or m.bound <= m.incumbent for m in curve.moments)
    rows = list(csv.DictReader(io.StringIO(curves_csv(curves))))
    assert tuple(rows[0]) == COLUMNS
    last = rows[-1]
    assert float(last["bound_s"]) == float(last["incumbent_s"])
    assert float(last["bound_s"]) == pytest.approx(answer.seconds(best[-1]))
    assert rows[0]["incumbent_s"] == ""


def test_only_changes_are_kept_and_a_clock_that_falls_back_is_a_new_search() -> None:
    recorder = Recorder()
    options = SearchOptions(space="megatron")
    answer = solve(CompleteJob(MODEL, NODE, JOB, ()), options, started=0.0)
    for elapsed, incumbent, bound in (
        (0.1, None, 5),
        (0.2, None, 5),
        (0.3, 9, 7),
        (0.1, None, 6),
        (0.2, 8, 12),
    ):
        recorder(SearchProgress(elapsed, incumbent, bound, 3))
    first, second = recorder.curves(answer)
    seen = [(m.elapsed_s, m.incumbent, m.bound) for m in first.moments[:-1]]
    assert seen == [(0.1, None, 5), (0.3, 9, 7)]
    seen = [(m.elapsed_s, m.incumbent, m.bound) for m in second.moments[:-1]]
    assert seen == [(0.1, None, 6), (0.2, 8, 8)]
    (only,) = recorder.curves(replace(answer, superset=None))
    assert only.moments[:-1] == second.moments[:-1]
