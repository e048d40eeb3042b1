"""The command line: results on standard output, bad input as one line, exit codes."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import pytest

from ilp_parallel.cli.app import main
from ilp_parallel.cli.options import Live
from ilp_parallel.comparison.comparing import Methods
from ilp_parallel.planner import DisagreementError
from tests.costs.cases import gpt
from tests.small_jobs import fixed_profile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MODEL = replace(gpt(layers=4, hidden=2048, heads=8), name="tiny")
JOB = ("--cluster", "a100-80gb:1x4", "--batch", "8", "--seq", "1024")


class Ran(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    def call(*words: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["ilp-parallel", *map(str, words)])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        return Ran(code, *capsys.readouterr())

    return call


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.json"
    path.write_bytes(msgspec.json.encode(MODEL))
    return path


def changed(path: Path, **fields: object) -> Path:
    """The model file with some fields changed; None removes a field."""
    document = {**json.loads(path.read_text()), **fields}
    path.write_text(json.dumps({k: v for k, v in document.items() if v is not None}))
    return path


def assert_refused(ran: Ran, code: str = "") -> None:
    """Exit 2, nothing on standard output, one line that starts with a reason code."""
    assert ran.code == 2, ran.err
    assert ran.out == ""
    assert ran.err.count("\n") == 1
    reason = ran.err.partition(":")[0]
    assert reason.replace("_", "").isalnum()
    assert reason == reason.upper()
    assert reason == (code or reason)


# --- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("solve", "gpt33"), "UNKNOWN_MODEL"),
        (("solve", "gpt3", "--cluster", "abacus:1x8"), ""),
        (("solve", "gpt3", "--cluster", "a100-80gb:0x8"), ""),
        (("solve", "gpt3", "--cluster", "a100-80gb:1x-8"), ""),
        (("solve", "gpt3", "--cluster", "a100-80gb:999999999x8"), ""),
        (("solve", "gpt3", "--batch", "0"), ""),
        (("solve", "gpt3", "--batch", "-8"), ""),
        (("solve", "gpt3", "--batch", "1" + "0" * 30), ""),
        (("solve", "gpt3", "--batch", "1e30"), "USAGE"),
        (("solve", "gpt3", "--batch", "nan"), "USAGE"),
        (("solve", "gpt3", "--seq", "0"), ""),
        (("solve", "gpt3", "--reserve-gib", "nan"), ""),
        (("solve", "gpt3", "--reserve-gib", "1e30"), ""),
        (("solve", "gpt3", "--reserve-gib", "-1"), ""),
        (("solve", "gpt3", "--intra-bw", "fast"), ""),
        (("solve", "gpt3", "--intra-bw", "0GB/s"), ""),
        (("solve", "gpt3", "--precision", "fp3"), ""),
        (("solve", "gpt3", "--optimizer", "luck"), ""),
        (("solve", "gpt3", "--attention", "none"), ""),
        (("solve", "gpt3", "--stack", "none"), ""),
        (("solve", "gpt3", "--space", "outer"), ""),
        (("solve", "gpt3", "--schedule", "never"), "UNKNOWN_SCHEDULE"),
        (("solve", "gpt3", "--solver", "oracle"), ""),
        (("solve", "gpt3", "--formulation", "poem"), "UNKNOWN_FORMULATION"),
        (("solve", "gpt3", "--time-limit", "nan"), "OUT_OF_RANGE"),
        (("solve", "gpt3", "--time-limit", "-1"), "OUT_OF_RANGE"),
        (("solve", "gpt3", "--fix", "tp=5"), ""),
        (("solve", "gpt3", "--fix", "tp=7"), ""),
        (("solve", "gpt3", "--fix", "pp=512"), ""),
        (("solve", "gpt3", "--fix", "pp=x"), ""),
        (("solve", "gpt3", "--fix", "pp"), ""),
        (("solve", "gpt3", "--fix", "colour=red"), ""),
        (("solve", "gpt3", "--forbid", "tp=0"), ""),
        (("solve", "gpt3", "--batch", "1537", "--fix", "dp=2"), ""),
        (("solve", "gpt3", "--format", "xml"), "USAGE"),
        (("solve",), "USAGE"),
        (("dance",), "USAGE"),
        (("formulations", "show", "poem"), "UNKNOWN_FORMULATION"),
        (("export", "--to", "paper", "x"), "USAGE"),
    ],
    ids=lambda value: " ".join(value)[:50] if isinstance(value, tuple) else "",
)
def test_bad_words(run: Callable[..., Ran], words: tuple[str, ...], code: str) -> None:
    assert_refused(run(*words), code)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\x00\xff\xfe\x80junk",
        b'{"layers": NaN}',
        b'{"layers": 1e400}',
        b"{}",
        b"[" * 100_000,
    ],
    ids=range(9),
)
@pytest.mark.parametrize("verb", ["solve", "predict", "verify", "export"])
def test_bad_files(run: Callable[..., Ran], tmp_path: Path, content: bytes, verb: str) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    options = {"solve": JOB, "export": ("--to", "megatron")}.get(verb, ())
    assert_refused(run(verb, path, *options))


@pytest.mark.parametrize("verb", ["solve", "predict", "verify"])
def test_no_such_file_and_a_directory(run: Callable[..., Ran], tmp_path: Path, verb: str) -> None:
    assert_refused(run(verb, tmp_path / "absent.json"))
    assert_refused(run(verb, tmp_path))


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_file(run: Callable[..., Ran], model: Path) -> None:
    model.chmod(0)
    assert_refused(run("solve", model, *JOB))


BAD_FIELDS: tuple[dict[str, object], ...] = (
    {"layers": None},
    {"layers": "four"},
    {"layers": 4.5},
    {"layers": True},
    {"layers": 0},
    {"hidden": -2048},
    {"hidden": 10**30},
    {"hidden": 1e30},
    {"heads": 0},
    {"kv_heads": 3},
    {"norm": "batchnorm"},
    {"unheard_of": 1},
)


@pytest.mark.parametrize("fields", BAD_FIELDS, ids=str)
def test_bad_fields(run: Callable[..., Ran], model: Path, fields: dict[str, object]) -> None:
    assert_refused(run("solve", changed(model, **fields), *JOB))


@pytest.mark.parametrize("pin", ["tp=3", "pp=8", "mbs=3", "dp=16"])
def test_pins_that_leave_nothing(run: Callable[..., Ran], model: Path, pin: str) -> None:
    """Heads, layers, batch or devices that the pinned degree does not divide."""
    assert_refused(run("solve", model, *JOB, "--fix", pin))


def test_output_that_cannot_be_written_leaves_nothing(
    run: Callable[..., Ran], model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    ran = run("solve", model, *JOB, "--space", "uniform", "-o", folder / "no" / "f.json")
    assert_refused(ran, "CANNOT_WRITE")
    assert_refused(run("models", "-o", folder), "CANNOT_WRITE")
    assert list(folder.iterdir()) == []
    assert {path.name for path in tmp_path.iterdir()} == {"out", "model.json"}


# --- results -------------------------------------------------------------------------------------


@pytest.fixture
def solved(run: Callable[..., Ran], model: Path, tmp_path: Path) -> Path:
    path = tmp_path / "result.json"
    ran = run("solve", model, *JOB, "--space", "megatron", "-o", path)
    assert (ran.code, ran.out) == (0, "")
    return path


TYPES: dict[str, type | tuple[type, ...]] = {
    "schema": str,
    "status": str,
    "proof": str,
    "objective": int,
    "bound": int,
    "unit": str,
    "gap": float,
    "verified": bool,
    "solver": dict,
    "versions": dict,
    "timing": dict,
    "instance": dict,
    "step_time_s": float,
    "bound_s": float,
    "dp_step_time_s": float,
    "simulated_step_time_s": float,
    "tokens_per_second": float,
    "mfu": float,
    "plan": dict,
    "certificate": dict,
    "configurations": dict,
}


def test_fields_of_a_result(solved: Path) -> None:
    document = json.loads(solved.read_text())
    for name, kind in TYPES.items():
        assert isinstance(document[name], kind), name
    assert (document["status"], document["proof"]) == ("optimal", "exact")
    assert document["objective"] == document["bound"]
    assert document["gap"] == 0
    assert document["verified"] is True
    assert document["step_time_s"] == document["dp_step_time_s"] == document["bound_s"]
    assert document["tokens_per_second"] == pytest.approx(8 * 1024 / document["step_time_s"])
    assert set(document["timing"]) == {"total_s", "search_s"}
    assert len(document["instance"]["hash"]) == 64
    fates = sum(n for fate, n in document["configurations"].items() if fate != "rule")
    assert fates == len(document["certificate"]["fates"])


def test_a_result_is_verified_exported_and_predicted(run: Callable[..., Ran], solved: Path) -> None:
    ran = run("verify", solved, "--format", "json")
    verdict = json.loads(ran.out)
    assert (ran.code, verdict["verified"], verdict["failed"]) == (0, True, [])
    ran = run("export", "--to", "megatron", solved)
    assert ran.code == 0
    assert "--tensor-model-parallel-size" in ran.out
    ran = run("predict", solved, "--format", "json")
    assert ran.code == 0
    assert json.loads(ran.out)["fits"] is True


def test_tampered_result_is_rejected(run: Callable[..., Ran], solved: Path) -> None:
    document = json.loads(solved.read_text())
    document["certificate"]["bound_ticks"] += 1
    solved.write_text(json.dumps(document))
    ran = run("verify", solved)
    assert ran.code == 6
    assert ran.out.startswith("REJECTED")
    document["certificate"]["job"]["global_batch"] = 7
    solved.write_text(json.dumps(document))
    assert run("verify", solved).code in (2, 6)


def test_same_seed_same_result_but_for_timing(run: Callable[..., Ran], model: Path) -> None:
    words = ("solve", model, *JOB, "--space", "megatron", "--seed", "3", "--format", "json")
    first, second = (json.loads(run(*words).out) for _ in range(2))
    del first["timing"], second["timing"]
    assert first == second


def test_no_time_is_unknown(run: Callable[..., Ran], model: Path, tmp_path: Path) -> None:
    path = tmp_path / "stopped.json"
    assert run("solve", model, *JOB, "--time-limit", "0", "-o", path).code == 5
    document = json.loads(path.read_text())
    assert document["status"] == "unknown"
    assert (document["objective"], document["gap"], document["plan"]) == (None, None, None)
    assert document["bound"] > 0
    assert run("verify", path).code == 0
    assert_refused(run("export", "--to", "megatron", path), "NOT_A_PLAN")
    assert_refused(run("predict", path), "NOT_A_PLAN")


@pytest.mark.parametrize("style", ["table", "md"])
def test_text_names_space_and_assumptions(run: Callable[..., Ran], model: Path, style: str) -> None:
    ran = run("solve", model, *JOB, "--space", "mixed", "--format", style)
    assert ran.code == 0
    assert "mixed" in ran.out
    assert "megatron-bf16" in ran.out
    assert "flash" in ran.out
    if style == "md":
        tables = [line for line in ran.out.splitlines() if line.startswith("|")]
        assert tables
        assert any(set(line) <= set("|-: ") for line in tables)
        assert not any(char in ran.out for char in "┃│\x1b")


def test_infeasible_job_says_what_is_short(run: Callable[..., Ran]) -> None:
    ran = run("solve", "gpt3", "--cluster", "v100-32gb:1x8", "--batch", "8", "--format", "json")
    assert ran.code == 3
    reason = json.loads(ran.out)["infeasibility"]
    lack = reason["shortage"]
    assert lack["missing_bytes"] == lack["needed_bytes"] - lack["usable_bytes"] > 0
    assert lack["largest_part"] == max(lack["parts_bytes"], key=lack["parts_bytes"].get)
    assert sum(lack["parts_bytes"].values()) == pytest.approx(lack["needed_bytes"], rel=1e-6)
    assert reason["refuted_nodes"] == list(range(1, reason["smallest_nodes"]))
    ran = run("solve", "gpt3", "--cluster", "v100-32gb:1x8", "--batch", "8")
    assert ran.code == 3
    assert f"would do: {reason['smallest_nodes']} " in ran.out
    assert f"{lack['missing_bytes'] / 2**30:.1f} GiB short" in ran.out
    assert lack["largest_part"] in ran.out


def test_listings(run: Callable[..., Ran]) -> None:
    names = {row["model"] for row in json.loads(run("models", "--format", "json").out)}
    assert {"gpt3", "llama3-405b", "megatron-1t", "turing-530b"} <= names
    rows = {row["model"]: row for row in json.loads(run("models", "--format", "json").out)}
    assert rows["gpt3"]["blocks"] == "96 dense"
    deepseek = rows["deepseek-v3"]
    assert deepseek["blocks"] == "3 dense + 58 moe + 1 mtp"
    assert (deepseek["B parameters"], deepseek["B active"]) == ("671.03", "37.55")
    assert rows["mixtral-8x7b"]["blocks"] == "32 moe"
    names = {row["device"] for row in json.loads(run("clusters", "--format", "json").out)}
    assert {"a100-80gb", "h100-80gb", "v100-32gb"} <= names
    rows = json.loads(run("formulations", "list", "--format", "json").out)
    assert {"assignment", "flow", "counts", "interval"} <= {row["name"] for row in rows}
    for row in rows:
        assert len(run("formulations", "show", row["name"]).out) > 500
    assert run("models").out.count("gpt3") >= 1


def test_write_lp(run: Callable[..., Ran], model: Path) -> None:
    words = ("formulations", "write-lp", "counts", model, *JOB, "--space")
    assert_refused(run(*words, "uniform"), "NEEDS_FREE_STRATEGIES")
    ran = run(*words, "mixed")
    assert ran.code == 0
    text = ran.out.lower()
    assert "minimize" in text
    assert "subject to" in text
    assert text.rstrip().endswith("end")


def test_bounds_never_exceed_the_optimum(run: Callable[..., Ran], model: Path) -> None:
    ran = run("bounds", model, *JOB, "--space", "megatron", "--format", "json")
    assert ran.code == 0
    rungs = json.loads(ran.out)["rungs"]
    optimum = rungs[-1]["value"]
    values = {rung["name"]: rung["value"] for rung in rungs if rung["value"] is not None}
    assert values["dynamic program"] == optimum
    assert {"work bound", "LP of interval"} <= set(values)
    assert all(value <= optimum * (1 + 1e-9) for value in values.values())


def test_compare(run: Callable[..., Ran], model: Path) -> None:
    ran = run("compare", model, *JOB, "--format", "json")
    assert ran.code == 0
    best, *others = json.loads(ran.out)["rows"]
    assert best["excess"] == 0
    assert [row["method"] for row in others] == list(Methods().names)
    for row in others:
        assert row["objective"] >= best["objective"]
        assert row["excess"] >= 0
    assert run("compare", model, *JOB).out.count("tiny") == 1 + len(others)


def test_predict_given_words(run: Callable[..., Ran], model: Path) -> None:
    words = ("predict", model, *JOB, "--plan")
    ran = run(*words, "pp=2 tp=2 mbs=2 recompute=full stages=1,3", "--format", "json")
    assert ran.code == 0
    document = json.loads(ran.out)
    assert document["plan"]["stages"] == [1, 3]
    assert len(document["stages"]) == 2
    tight = replace(MODEL, layers=48, hidden=8192, heads=64, kv_heads=64, ffn_hidden=32768)
    model.write_bytes(msgspec.json.encode(tight))
    assert run(*words, "pp=4").code == 6  # does not fit


# --- stopping ------------------------------------------------------------------------------------


class StoppedAfter(Live):
    """Stops the search after some looks at the flag, as Ctrl-C would."""

    polls = 0

    def __enter__(self) -> Live:
        left = iter(range(self.polls))
        self.options = replace(self.options, cancelled=lambda: next(left, None) is None)
        return super().__enter__()


@pytest.mark.parametrize("polls", [0, 1, 3, 20])
def test_stopped_search_tells_what_it_knows(
    run: Callable[..., Ran],
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    polls: int,
) -> None:
    words = ("solve", model, *JOB, "--space", "mixed", "--format", "json")
    optimum = json.loads(run(*words).out)["objective"]
    monkeypatch.setattr(StoppedAfter, "polls", polls)
    monkeypatch.setattr("ilp_parallel.cli.app.Live", StoppedAfter)
    path = tmp_path / "stopped.json"
    ran = run(*words, "-o", path)
    document = json.loads(path.read_text())
    assert ran.code == {"optimal": 0, "feasible": 4, "unknown": 5}[document["status"]]
    assert document["bound"] <= optimum
    expected = {0: "unknown", 20: "optimal"}
    assert document["status"] == expected.get(polls, document["status"])
    if document["objective"] is None:
        assert (document["gap"], document["plan"]) == (None, None)
    else:
        assert document["objective"] >= optimum
        assert (document["gap"] == 0) == (document["objective"] == document["bound"])
    assert document["verified"] is True


class StoppedWithPlan(Live):
    """Stops the second search (that of the space asked for) once it has a plan."""

    def __enter__(self) -> Live:
        seen: list[int | None] = [None]

        def two_plans() -> bool:
            return sum(b is not None and a is None for a, b in itertools.pairwise(seen)) > 1

        self.options = replace(
            self.options,
            progress=lambda progress: seen.append(progress.incumbent),
            cancelled=two_plans,
        )
        return super().__enter__()


def test_stopped_search_with_a_plan_says_how_far_it_may_be(
    run: Callable[..., Ran], model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("ilp_parallel.cli.app.Live", StoppedWithPlan)
    profile = tmp_path / "fixed.json"
    profile.write_text(json.dumps(fixed_profile()))
    space = ("--space", "megatron", "--reserve-gib", "76.3466796875", "--profile", profile)
    ran = run("solve", changed(model, layers=6), *JOB, *space, "--format", "json")
    document = json.loads(ran.out)
    assert (ran.code, document["status"]) == (4, "feasible")
    assert document["bound"] < document["objective"]
    assert document["gap"] > 0
    assert document["verified"] is True


def test_interrupted_before_any_result(
    run: Callable[..., Ran], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ilp_parallel.solving.search", interrupt)
    ran = run("solve", model, *JOB)
    assert (ran.code, ran.out) == (5, "")
    assert ran.err.lstrip("\n").startswith("CANCELLED: ")  # the line of the ^C ends first


def test_internal_error_is_one_line(
    run: Callable[..., Ran], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise DisagreementError("one\ntwo")

    monkeypatch.setattr("ilp_parallel.solving.search", broken)
    monkeypatch.delenv("ILP_PARALLEL_DEBUG", raising=False)
    ran = run("solve", model, *JOB)
    assert (ran.code, ran.out, ran.err.count("\n")) == (1, "", 1)
    assert ran.err.startswith("INTERNAL: DisagreementError: one two")


def test_model_from_standard_input_in_a_process_of_its_own(model: Path) -> None:
    words = [sys.executable, "-m", "ilp_parallel", "solve", "-", *JOB, "--format", "json"]
    with model.open("rb") as file:
        done = subprocess.run(words, stdin=file, capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout)["instance"]["model"] == "tiny"
