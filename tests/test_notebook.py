"""What a notebook shows: tables, data frames, HTML; and the notebooks of the project."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from ilp_parallel import (
    Certificate,
    Table,
    Verification,
    bounds,
    compare,
    plan,
    predict,
    training_job,
    verify,
)
from tests.test_api import MODEL, NODE, small
from tests.test_api_stopping import OPEN_JOB

NOTEBOOKS = sorted((Path(__file__).resolve().parent.parent / "notebooks").glob("*.ipynb"))


def test_tables_add_up_to_the_prediction() -> None:
    result = small(fix="pp=2")
    assert result.prediction is not None and result.plan is not None
    stages = result.table("stages")
    assert sum(row["layers"] for row in stages) == MODEL.layers  # type: ignore[misc]
    terms = result.table("terms")
    for i, stage in enumerate(result.prediction.stages):
        mine = [row for row in terms if row["stage"] == i]
        held = sum(row["value"] for row in mine if row["unit"] == "bytes")  # type: ignore[misc]
        assert held == pytest.approx(stage.memory_bytes)
    shares = sum(row["share"] for row in result.table("shares"))  # type: ignore[misc]
    assert shares == pytest.approx(1)
    fates = {row["fate"]: row["configurations"] for row in result.table("fates")}
    assert fates == {k: v for k, v in result.answer.result.fates.items() if v}
    every = result.table("configurations")
    assert len(every) == sum(result.answer.result.fates.values())
    for fate, number in fates.items():
        assert sum(row["fate"] == fate for row in every) == number


def test_strategies_of_a_stage_count_its_layers() -> None:
    plan_ = plan(*OPEN_JOB, space="mixed", fix={"pp": 4}).plan
    assert plan_ is not None
    for row in predict(plan_).table():
        parts = str(row["strategies"]).split(", ")
        if len(parts) > 1:
            assert sum(int(part.split(" ")[0]) for part in parts) == row["layers"]
        else:
            assert parts[0] in {strategy.name for strategy in plan_.strategies}


def test_frames_hold_the_rows_and_integers_stay_integers() -> None:
    pandas = pytest.importorskip("pandas")
    result = small(fix="pp=2")
    for name in ("stages", "terms", "shares", "fates", "configurations"):
        table, frame = result.table(name), result.to_frame(name)
        assert isinstance(frame, pandas.DataFrame)
        assert list(frame.columns) == list(table.columns) and len(frame) == len(table)  # type: ignore[union-attr]
    frame = result.to_frame("configurations")
    assert str(frame["bound"].dtype) == "Int64"  # type: ignore[call-overload]
    assert predict(result).to_frame().shape == result.to_frame().shape  # type: ignore[union-attr]


def test_without_pandas_frames_are_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    result = small(fix="pp=2")
    assert result.to_frame("stages") == list(result.table("stages"))


class Reader(HTMLParser):
    """Tags that open and close, and the text between them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.styles, self.text = "", ""
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.tags.add(tag)
        self.styles += "".join(value or "" for _, value in attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def pages() -> list[Any]:
    name = "<script>alert(1)</script>&\"'"
    job = training_job(replace(MODEL, name=name), NODE, 8, 1024)
    result = plan(job, fix="pp=2")
    assert isinstance(result.certificate, Certificate) and result.plan is not None
    ladder, rows = bounds(job, space="mixed"), compare(job, heuristics=["megatron_rules"])
    return [result, result.plan, result.certificate, verify(result), predict(result), ladder, rows]


def test_html_is_escaped_small_and_takes_the_colours_of_the_page() -> None:
    for shown in pages():
        html = shown._repr_html_()
        reader = Reader(html)
        assert reader.tags <= {"div", "table", "caption", "thead", "tbody", "tr", "th", "td"}
        assert len(html) < 30_000
        for fixed in ("#", "rgb(", "white", "black", "http"):
            assert fixed not in reader.styles.replace("white-space", ""), fixed
        if not isinstance(shown, (Verification, Table)):
            assert "<script>alert(1)</script>&\"'" in reader.text
        assert "None" not in reader.text and "nan" not in reader.text


def test_long_tables_are_cut_and_say_so() -> None:
    table = Table.of("many", [{"n": i, "size_bytes": i << 30} for i in range(100)])
    reader = Reader(table._repr_html_())
    assert "and 76 more rows" in reader.text and "size GiB" in reader.text
    assert Reader(Table.of("none", [])._repr_html_()).text == "none"


# --- the notebooks ----------------------------------------------------------------------------


def cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_small_and_hold_outputs_and_no_paths(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text) < 200_000
    assert not re.search(r"/(home|root|work|tmp|Users)/", text)
    notebook = json.loads(text)
    assert any(cell["outputs"] for cell in cells(notebook))
    counts = [cell["execution_count"] for cell in cells(notebook)]
    assert counts == list(range(1, len(counts) + 1)), "run it from top to bottom before saving"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run(path: Path, tmp_path: Path) -> None:
    """Each runs from top to bottom without an error, in its own folder, in time for teaching."""
    nbclient = pytest.importorskip("nbclient", reason="needs nbclient (extra dev)")
    pytest.importorskip("ipykernel", reason="needs ipykernel (extra dev)")
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=60, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    for cell in cells(notebook):
        assert not any(output["output_type"] == "error" for output in cell["outputs"])
