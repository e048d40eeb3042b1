"""Benchmark sets, summaries, profiles, and the picture."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ilp_parallel.comparison.benchmarking import (
    LEVELS,
    performance_profile,
    read_set,
    set_names,
    summarise,
)
from ilp_parallel.errors import InputError

if TYPE_CHECKING:
    from ilp_parallel.comparison.comparing import Row

ROOT = Path(__file__).resolve().parent.parent


def row(job: int, method: str, objective: int | None, optimum: int | None = 1000) -> Row:
    excess = None if objective is None or optimum is None else objective - optimum
    return {
        "job": job,
        "role": "search" if "," in method else "heuristic",
        "method": method,
        "objective": objective,
        "optimum": optimum,
        "excess_ticks": excess,
        "excess": None if excess is None or optimum is None else excess / optimum,
        "seconds": 0.5,
    }


ROWS = [
    row(0, "mixed, optimal", 1000),
    row(0, "good", 1000),
    row(0, "bad", 1500),
    row(1, "mixed, optimal", 1000),
    row(1, "good", 1010),
    row(1, "bad", None),
    row(2, "mixed, feasible", 900, None),
    row(2, "good", 900, None),
    row(2, "bad", 950, None),
]
"""Two jobs with a proven optimum, and one without, which nothing may count."""


def test_summary_counts_in_integers_and_leaves_open_jobs_out() -> None:
    good, bad = summarise(ROWS)
    assert (good.method, good.jobs, good.plans, good.optimal) == ("good", 2, 2, 1)
    assert dict(zip(LEVELS, good.within, strict=True))[1] == 1  # 0.1 %: the optimal one
    assert dict(zip(LEVELS, good.within, strict=True))[10] == 2  # 1 % exactly is within 1 %
    assert (good.median_excess, good.p90_excess, good.worst_excess) == (0.005, 0.01, 0.01)
    assert (bad.jobs, bad.plans, bad.optimal) == (2, 1, 0)
    assert bad.worst_excess == 0.5
    assert (bad.median_s, bad.total_s) == (0.5, 1.0)


def test_a_method_without_plans_has_no_median() -> None:
    (only,) = summarise([row(0, "none", None)])
    assert (only.plans, only.median_excess, only.p90_excess, only.worst_excess) == (0,) + (
        None,
    ) * 3


def test_profile_ends_below_one_where_plans_are_missing() -> None:
    profile = performance_profile(ROWS)
    assert profile == {"good": [(0.0, 0.5), (0.01, 1.0)], "bad": [(0.5, 0.5)]}


def test_the_set_is_what_its_script_writes() -> None:
    written = runpy.run_path(str(ROOT / "benchmarks/make_set.py"))["document_text"]()
    assert (ROOT / "datasets/benchmarks/pipeline.json").read_text(encoding="utf-8") == written


def test_the_set_is_varied() -> None:
    assert "pipeline" in set_names()
    jobs = read_set("pipeline")
    assert len(jobs) >= 60
    assert len({name for name, _ in jobs}) == len(jobs)
    assert len({job.model.name for _, job in jobs}) >= 15
    assert len({job.cluster.device.generation for _, job in jobs}) >= 3
    assert len({job.cluster.devices for _, job in jobs}) >= 6
    assert len({job.job.global_batch for _, job in jobs}) >= 5
    assert len({job.job.sequence_length for _, job in jobs}) >= 3
    assert 0 < sum(job.job.reserve_bytes is not None for _, job in jobs) < len(jobs)


ENTRY = {"id": "a", "model": "gpt2-xl", "cluster": "a100-80gb:1x4", "batch": 8, "sequence": 1024}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"schema": "other/1"}, "BAD_BENCHMARK"),
        ({"jobs": []}, "BAD_BENCHMARK"),
        ({"jobs": [ENTRY, ENTRY]}, "BAD_BENCHMARK"),
        ({"jobs": [{**ENTRY, "extra": 1}]}, "BAD_BENCHMARK"),
        ({"jobs": [{**ENTRY, "batch": "8"}]}, "BAD_BENCHMARK"),
        ({"jobs": [{**ENTRY, "model": "nothing"}]}, "UNKNOWN_MODEL"),
        ({"jobs": [{**ENTRY, "batch": 0}]}, "OUT_OF_RANGE"),
    ],
)
def test_bad_sets_are_refused(change: dict[str, object], code: str, tmp_path: Path) -> None:
    path = tmp_path / "set.json"
    good = {"schema": "ilp_parallel.benchmark/1", "seed": 1, "jobs": [ENTRY]}
    path.write_text(json.dumps(good))
    assert [name for name, _ in read_set(str(path))] == ["a"]
    path.write_text(json.dumps({**good, **change}))
    with pytest.raises(InputError) as caught:
        read_set(str(path))
    assert caught.value.code == code


def test_unknown_set() -> None:
    with pytest.raises(InputError, match="UNKNOWN_BENCHMARK"):
        read_set("pipelines")


def test_picture_shows_every_method_and_is_the_same_every_time(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from ilp_parallel.comparison.charts import draw_comparison, write_comparison

    files = [tmp_path / f"{i}.svg" for i in range(2)]
    for file in files:
        write_comparison(str(file), ROWS)
    text = files[0].read_text()
    assert text == files[1].read_text()
    assert ">no plan: 1</text>" in text
    figure = draw_comparison(ROWS)
    profile, boxes = figure.axes
    assert [line.get_label() for line in profile.lines] == ["good", "bad"]
    assert [label.get_text() for label in boxes.get_yticklabels()] == ["good", "bad"]
    assert [text.get_text() for text in boxes.texts] == ["no plan: 1"]
    places, shares = profile.lines[0].get_data()
    assert list(shares) == [0.5, 0.5, 1.0, 1.0]
    assert list(places) == sorted(places)
