"""The report as text: complete, self-contained, escaped, honest about what it is given."""

from __future__ import annotations

import csv
import json
import re
import sys
from html.parser import HTMLParser
from typing import TYPE_CHECKING, NamedTuple

import pytest

from ilp_parallel.cli.app import main
from ilp_parallel.costs.model import CostModel
from ilp_parallel.diagnosis.alternatives import plan_ticks
from ilp_parallel.pages.facts import CHANGE, gather, sensitivities
from ilp_parallel.pages.page import render_page
from ilp_parallel.predicting import step_shares
from tests.pages.results import NASTY, answer, result_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CHARTS = ("map", "timeline", "curves", "bars", "waterfall", "ladder", "sensitivity")


class Ran(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    def call(*arguments: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["ilp-parallel", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
            raise SystemExit(0)
        captured = capsys.readouterr()
        return Ran(int(stop.value.code or 0), captured.out, captured.err)

    return call


@pytest.fixture
def result(tmp_path: Path) -> Path:
    path = tmp_path / "result.json"
    path.write_text(result_text(), encoding="utf-8")
    return path


class Page(HTMLParser):
    """What a browser would see of a page's structure."""

    VOID = ("meta", "link", "br", "image")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> without a beginning"
        assert self.open.pop() == tag, tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.texts.append(data)


def page_of(path: Path, **options: bool) -> str:
    return render_page(gather(str(path), **options))


def test_golden_path(run: Callable[..., Ran], result: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    assert run("report", result, "-o", page) == Ran(0, "", "")
    text = page.read_text(encoding="utf-8")
    assert len(text.encode()) < 2_000_000
    assert "Proven optimal" in text


def test_every_element_is_closed_and_every_chart_is_there(result: Path) -> None:
    page = Page(page_of(result))
    assert page.open == []
    identities = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(identities) == len(set(identities))
    assert {f"chart-{name}" for name in CHARTS} <= set(identities)
    named = {str(attrs["aria-controls"]) for _, attrs in page.tags if "aria-controls" in attrs}
    assert named <= set(identities)
    for tag, attrs in page.tags:
        if tag == "a":
            assert str(attrs["href"]).lstrip("#") in identities


def test_nothing_is_loaded_from_elsewhere(result: Path) -> None:
    text = page_of(result)
    page = Page(text)
    for tag, attrs in page.tags:
        for name in ("src", "href", "xlink:href", "data", "action", "srcset"):
            value = attrs.get(name) or ""
            assert value.startswith(("#", "data:")) or not value, (tag, name, value)
    assert not re.search(r"url\((?!#)", text)
    assert "@import" not in text
    (policy,) = (str(a["content"]) for t, a in page.tags if a.get("http-equiv"))
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy.partition("script-src")[2].partition(";")[0]


def test_the_same_file_gives_the_same_page_but_for_times_taken(result: Path) -> None:
    first, second = page_of(result), page_of(result)
    without = r'<td class="number">[\d.]+</td><td>[A-Z_ ]*</td></tr>'  # "took ms" before the note
    assert re.sub(without, "", first) == re.sub(without, "", second)


def test_texts_of_files_are_inert(tmp_path: Path) -> None:
    path = tmp_path / "nasty.json"
    path.write_text(result_text(NASTY), encoding="utf-8")
    text = page_of(path)
    assert NASTY not in text
    page = Page(text)
    assert [tag for tag, _ in page.tags].count("script") == 2
    assert any(NASTY in part for part in page.texts)
    assert "alert" not in "".join(re.findall(r"<[^>]*alert[^>]*>", text))


def test_texts_of_a_ladder_are_inert(run: Callable[..., Ran], result: Path, tmp_path: Path) -> None:
    digest = json.loads(result_text())["instance"]["hash"]
    rung = {"name": NASTY, "kind": NASTY, "value": 2.0, "seconds": 0.5, "note": NASTY}
    rungs = [{**rung, "step_time_s": 1.0, "below_optimum": 0.25}]
    document = {
        "schema": "ilp_parallel.bounds/1",
        "instance": {"hash": digest},
        "rungs": rungs,
        "beside": [],
    }
    ladder = tmp_path / "ladder.json"
    ladder.write_text(json.dumps(document), encoding="utf-8")
    ran = run("report", result, "--bounds", ladder)
    assert ran.code == 0
    assert NASTY not in ran.out
    assert [tag for tag, _ in Page(ran.out).tags].count("script") == 2


def test_numbers_of_the_page_are_those_of_the_result(result: Path) -> None:
    document = json.loads(result_text())
    text = page_of(result)
    assert f"{document['step_time_s']:.6f} s" in text
    assert f"{document['simulated_step_time_s']:.6f} s" in text
    assert document["instance"]["hash"] in text


def test_waterfall_adds_up_to_the_step(result: Path) -> None:
    facts = gather(str(result), verify=False)
    shares = step_shares(facts.plan.configuration, facts.prediction)
    assert sum(s.seconds for s in shares) == pytest.approx(facts.prediction.step_time_s, rel=1e-9)
    table = page_of(result, verify=False).partition("terms of the step</caption>")[2]
    table = table.partition("</table>")[0]
    values = re.findall(r'<td class="number">([\d,.]+)</td><td', table)
    *terms, whole = (float(value.replace(",", "")) for value in values)
    assert sum(terms) == pytest.approx(whole, abs=0.01 * len(terms))


def test_sensitivity_moves_the_right_way() -> None:
    plan = answer().result.plan
    assert plan is not None
    base = CostModel(plan.model, plan.cluster, plan.job).terms(plan).step_time_s
    found = sensitivities(plan)
    assert len(found) == 4
    for item in found:
        assert item.raised_s <= base <= item.lowered_s
    assert max(item.lowered_s for item in found) > base * (1 + CHANGE / 10)


def test_rivals_are_worse_and_never_better_than_their_bound(result: Path) -> None:
    facts = gather(str(result))
    assert facts.rivals is not None and facts.rivals.rivals
    solved = [r for r in facts.rivals.rivals if r.plan is not None and r.contrast is not None]
    assert solved
    for rival in solved:
        assert rival.contrast.theirs_ticks == plan_ticks(rival.plan)
        assert rival.contrast.theirs_ticks >= rival.bound_ticks >= facts.ticks


def test_a_plan_alone_claims_nothing(run: Callable[..., Ran], tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(json.loads(result_text())["plan"]), encoding="utf-8")
    ran = run("report", path)
    assert ran.code == 0
    assert "Plan without certificate" in ran.out
    assert "Proven optimal" not in ran.out
    assert Page(ran.out).open == []


def test_a_false_claim_is_named_so(run: Callable[..., Ran], tmp_path: Path) -> None:
    document = json.loads(result_text())
    document["certificate"]["objective_ticks"] -= 1
    document["certificate"]["bound_ticks"] -= 1
    path = tmp_path / "false.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    ran = run("report", path)
    assert ran.code == 6
    assert "Certificate rejected" in ran.out
    assert "Proven optimal" not in ran.out


def test_without_verification_nothing_is_called_proven(
    run: Callable[..., Ran], result: Path
) -> None:
    ran = run("report", result, "--no-verify")
    assert ran.code == 0
    assert "Not checked" in ran.out
    assert "Proven optimal" not in ran.out


def without_plan(document: dict[str, object]) -> None:
    document["plan"] = None


def with_plan_of_another_space(document: dict[str, object]) -> None:
    assert isinstance(document["plan"], dict)
    document["plan"]["space"] = "mixed"


def without_strategy(document: dict[str, object]) -> None:
    assert isinstance(document["plan"], dict)
    document["plan"]["strategies"] = [{"zero": "9", "recompute": []}]


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (without_plan, "NO_PLAN"),
        (with_plan_of_another_space, "CERTIFICATE_OF_ANOTHER_PLAN"),
        (without_strategy, "BAD_PLAN"),
    ],
)
def test_bad_results_are_one_line(
    run: Callable[..., Ran],
    tmp_path: Path,
    spoil: Callable[[dict[str, object]], None],
    code: str,
) -> None:
    document = json.loads(result_text())
    spoil(document)
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    page = tmp_path / "page.html"
    ran = run("report", path, "-o", page)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert ran.err.startswith(code)
    assert not page.exists()


def test_bad_words_are_one_line(run: Callable[..., Ran], result: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text('{"schema": "ilp_parallel.bounds/1", "rungs": [], "beside": []}')
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(json.loads(result_text())["plan"]), encoding="utf-8")
    for words, code in (
        (("report", tmp_path / "absent.json"), ""),
        (("report", result, "-o", tmp_path / "no" / "page.html"), "CANNOT_WRITE"),
        (("report", result, "--bounds", result), "NOT_A_LADDER"),
        (("report", result, "--bounds", other), "LADDER_OF_ANOTHER_JOB"),
        (("report", plan, "--bounds", other), "BOUNDS_WITHOUT_CERTIFICATE"),
        (("bounds", "gpt3", "--plot", "x.pdf"), "UNKNOWN_PICTURE"),
        (("solve", "gpt3", "--trace", "x.txt"), "UNKNOWN_TRACE"),
    ):
        ran = run(*words)
        assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1), words
        assert ran.err.startswith(code), ran.err


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_pictures_of_bounds_and_of_a_search(
    run: Callable[..., Ran], tmp_path: Path, ending: str
) -> None:
    job = ("gpt2-xl", "--cluster", "a100-80gb:1x4", "--batch", "64")
    ladder, trace = tmp_path / f"ladder.{ending}", tmp_path / f"trace.{ending}"
    assert run("bounds", *job, "--plot", ladder).code == 0
    assert run("solve", *job, "--trace", trace).code == 0
    for picture in (ladder, trace):
        start = picture.read_bytes()[:200]
        assert (b"<?xml" in start) if ending == "svg" else start.startswith(b"\x89PNG")


def test_trace_as_a_table(run: Callable[..., Ran], tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    ran = run(
        *("solve", "gpt2-xl", "--cluster", "a100-80gb:1x4", "--batch", "64"),
        *("--trace", path, "-o", tmp_path / "result.json"),
    )
    assert ran.code == 0
    rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    document = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert [row["space"] for row in rows][-1] == "megatron"
    assert float(rows[-1]["bound_s"]) == pytest.approx(document["bound_s"])
    assert float(rows[-1]["incumbent_s"]) == pytest.approx(document["step_time_s"])
