"""Rows of a comparison, their texts, and the verb."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from ilp_parallel.baselines.named.registry import NAMED
from ilp_parallel.baselines.named.workbench import Effort
from ilp_parallel.cli.compare import compare
from ilp_parallel.comparison.comparing import (
    REACH,
    Methods,
    Row,
    compare_models,
    narrower_spaces,
    read_methods,
)
from ilp_parallel.comparison.output import (
    comparison_csv,
    comparison_latex,
    comparison_text,
    latex_escaped,
)
from ilp_parallel.errors import InputError
from ilp_parallel.jobs import CompleteJob
from ilp_parallel.planner import SearchOptions, search
from ilp_parallel.spaces import SPACES
from tests.small_jobs import JOB, LONG_JOB, LONG_MODEL, MODEL, node_with

if TYPE_CHECKING:
    from pathlib import Path

JOBS = [
    CompleteJob(MODEL, node_with(3.2), JOB, ()),
    CompleteJob(LONG_MODEL, node_with(4.0), LONG_JOB, ()),
]
MIXED = SearchOptions(space="mixed")
QUICK = Methods(("merak", "random", REACH), Effort(evaluations=50))


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return compare_models(JOBS, MIXED, QUICK)


def without_times(rows: list[Row]) -> list[Row]:
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def test_rows(rows: list[Row]) -> None:
    methods = [(row["job"], row["role"], row["method"]) for row in rows]
    assert methods == [
        (job, role, method)
        for job in range(2)
        for role, method in (
            ("search", "mixed, optimal"),
            ("heuristic", "merak"),
            ("heuristic", "random"),
            ("reach", REACH),
        )
    ]
    for row in rows:
        objective, optimum = row["objective"], row["optimum"]
        assert isinstance(optimum, int)
        if objective is None:
            assert row["excess"] is None and row["configuration"] is None
        else:
            assert isinstance(objective, int)
            assert row["excess_ticks"] == objective - optimum >= 0
            assert row["excess"] == (objective - optimum) / optimum
            assert row["step_time_s"] == pytest.approx(objective * JOB.tick_ns * 1e-9)
    assert rows[0]["excess"] == 0


def test_reach_is_the_optimum_without_interleaving_and_context_ranks(rows: list[Row]) -> None:
    from ilp_parallel.spaces import Pins

    for job, found in zip(JOBS, (row for row in rows if row["role"] == "reach"), strict=True):
        pins = Pins(fixed={"cp": ("1",)})
        narrower = SearchOptions(space="mixed", schedules=("1f1b",), pins=pins)
        result = search(job.model, job.cluster, job.job, narrower)
        assert found["objective"] == result.certificate.objective_ticks
    assert rows[-1]["excess_ticks"] != 0  # the best plan of the second job splits sequences


def test_same_rows_in_several_processes(rows: list[Row]) -> None:
    ready: list[int] = []
    other = compare_models(JOBS, MIXED, QUICK, workers=2, done=ready.append)
    assert without_times(other) == without_times(rows)
    assert ready[-1] == 2


def test_cancelled_before_it_began() -> None:
    """What is running is finished, what is not is left out."""
    options = replace(MIXED, cancelled=lambda: True)
    found = compare_models([JOBS[0]] * 6, options, Methods((), Effort()), workers=2)
    assert len(found) <= 6
    assert all(row["role"] == "search" for row in found)


def test_no_optimum_no_distance() -> None:
    stopped = compare_models(JOBS[:1], replace(MIXED, time_limit_s=0.0), QUICK)
    assert {row["optimum"] for row in stopped} == {None}
    assert {row["excess"] for row in stopped} == {None}
    assert any(row["objective"] is not None for row in stopped)
    assert "-" in comparison_text(stopped, "table")


def test_csv_can_be_read_back(rows: list[Row]) -> None:
    back = list(csv.DictReader(io.StringIO(comparison_csv(rows))))
    assert [entry["method"] for entry in back] == [row["method"] for row in rows]
    assert [entry["objective"] for entry in back] == [
        "" if row["objective"] is None else str(row["objective"]) for row in rows
    ]


def many(rows: list[Row]) -> list[Row]:
    """The same rows as if they were of more jobs than are listed."""
    return [{**row, "job": f"p{i}_{row['job']}"} for i in range(3) for row in rows]


def test_tables(rows: list[Row]) -> None:
    listing = comparison_text(rows, "table")
    assert listing.count("merak") == 2
    summary = comparison_text(many(rows), "table")
    assert summary.count("merak") == 1
    assert "6 jobs, 6 optima proven" in summary
    markdown = comparison_text(many(rows), "md")
    assert markdown.count("| p2_") == 2
    for line in markdown.splitlines():
        if line.startswith("|"):
            assert line.endswith("|")


def test_latex_has_as_many_cells_as_columns(rows: list[Row]) -> None:
    text = comparison_latex(many(rows))
    for kind in ("tabular", "longtable"):
        begin = text.index(f"\\begin{{{kind}}}{{") + len(f"\\begin{{{kind}}}{{")
        columns = text[begin : text.index("}", begin)]
        body = text[begin : text.index(f"\\end{{{kind}}}")]
        lines = [line for line in body.splitlines() if line.endswith("\\\\")]
        assert lines
        for line in lines:
            assert line.count(" & ") == len(columns) - 1
    assert "exact\\_1f1b" in text and "_1f1b" not in text.replace("\\_", "")
    assert latex_escaped("a_b & 5 % ≤ \\") == r"a\_b \& 5 \% $\leq$ \textbackslash{}"


def test_methods() -> None:
    assert Methods().names == (*NAMED, REACH)
    assert read_methods(None, Effort()).names == (*NAMED, REACH)
    assert read_methods("random, exact_1f1b", Effort()).names == ("random", REACH)
    assert read_methods("exact_1f1b", Effort()).names == (REACH,)
    assert read_methods("merak", Effort(3)) == Methods(("merak",), Effort(3))
    with pytest.raises(InputError, match="UNKNOWN_HEURISTIC"):
        read_methods("exact", Effort())


# --- the verb --------------------------------------------------------------------------------

SMALL = ("gpt2-xl", "--cluster", "a100-80gb:1x4", "--batch", "16", "--heuristics", "merak,mcts")


def invoke(*words: str) -> str:
    result = CliRunner().invoke(compare, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_every_format(tmp_path: Path) -> None:
    words = (*SMALL, "--evaluations", "50")
    document = json.loads(invoke(*words, "--format", "json"))
    assert document["schema"] == "ilp_parallel.compare/1"
    assert [row["method"] for row in document["rows"]] == ["mixed, optimal", "merak", "mcts"]
    assert {row["job"] for row in document["rows"]} == {"gpt2-xl"}
    assert set(document["profile"]) == {entry["method"] for entry in document["summary"]}
    for ending, start in ((".csv", "job,"), (".tex", "% "), (".md", "**"), (".json", "{")):
        target = tmp_path / f"out{ending}"
        assert invoke(*words, "-o", str(target)) == ""
        assert target.read_text().startswith(start)


def test_set_and_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    entry = {"model": "gpt2-xl", "cluster": "a100-80gb:1x4", "batch": 16, "sequence": 1024}
    jobs = [{"id": "first", **entry}, {"id": "second", **entry, "batch": 32}]
    path, picture = tmp_path / "set.json", tmp_path / "plot.png"
    path.write_text(json.dumps({"schema": "ilp_parallel.benchmark/1", "seed": 0, "jobs": jobs}))
    words = ("--set", str(path), "--heuristics", "merak", "--workers", "1", "--format", "json")
    document = json.loads(invoke(*words, "--plot", str(picture)))
    assert [row["job"] for row in document["rows"]] == ["first", "first", "second", "second"]
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ((), "MODEL_OR_SET"),
        (("gpt3", "--set", "pipeline"), "MODEL_OR_SET"),
        (("--set", "nothing"), "UNKNOWN_BENCHMARK"),
        (("--set", "pipeline", "--batch", "8"), "SET_HAS_ITS_OWN_JOBS"),
        (("gpt3", "--heuristics", "nothing"), "UNKNOWN_HEURISTIC"),
        (("gpt3", "--workers", "0"), "OUT_OF_RANGE"),
        (("gpt3", "--evaluations", "0"), "OUT_OF_RANGE"),
        (("gpt3", "--heuristic-limit", "-1"), "OUT_OF_RANGE"),
        (("gpt3", "--seed", "-1"), "OUT_OF_RANGE"),
        (("gpt3", "--plot", "x.gif"), "UNKNOWN_PICTURE"),
        (("gpt3", "-o", "/nowhere/x.json"), "CANNOT_WRITE"),
    ],
)
def test_bad_words(words: tuple[str, ...], code: str) -> None:
    result = CliRunner().invoke(compare, words)
    assert isinstance(result.exception, InputError)
    assert result.exception.code == code


def test_narrower_spaces_are_priced_against_the_widest() -> None:
    """Each by its own proven optimum, none below the one that contains them all."""
    methods = narrower_spaces("mixed")
    assert methods.names == tuple(f"space {name}" for name in SPACES if name != "mixed")
    found = compare_models(JOBS, MIXED, methods)
    for row in found:
        if row["role"] == "search":
            continue
        space = str(row["method"]).removeprefix("space ")
        job = JOBS[int(str(row["job"]))]
        own = search(job.model, job.cluster, job.job, SearchOptions(space=space))
        assert row["objective"] == own.certificate.objective_ticks
        assert row["excess_ticks"] is None or int(str(row["excess_ticks"])) >= 0
    assert any(row["excess_ticks"] for row in found)


def test_spaces_and_heuristics_are_two_questions() -> None:
    ran = CliRunner().invoke(compare, ["gpt3", "--spaces", "--heuristics", "merak"])
    assert isinstance(ran.exception, InputError)
    assert ran.exception.code == "TWO_QUESTIONS"
