"""``predict`` and ``validate`` on the command line."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import pytest

from ilp_parallel.costs.profile import default_profile, profile_document
from ilp_parallel.measured.golden import GoldenRow
from ilp_parallel.measured.memory import golden_peak
from tests.measured.tables import out_of_memory, run_of, timed, write_table
from tests.measured.test_golden import ARGS
from tests.test_cli import JOB, assert_refused, model, run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.test_cli import Ran

__all__ = ["model", "run"]  # fixtures

FACTORS = (1.25, 0.8, 1.0, 0.5, 1.1)
DEGREES = ((2, 2), (4, 2), (2, 4), (4, 4), (8, 2))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Five plans of one job with known errors, one out of memory, one of another kind of model."""
    place = tmp_path / "runs"
    (place / "deeper").mkdir(parents=True)
    runs = [
        timed(factor, tp=tp, pp=pp, dp=64 // tp // pp)
        for factor, (tp, pp) in zip(FACTORS, DEGREES, strict=True)
    ]
    write_table(place / "a.csv", runs, unheard_of="column")
    others = [
        out_of_memory(tp=1, pp=1, dp=64, zero=0),
        run_of(model="moe-8x", arch_kind="moe", step_time_canon_s=3.0),
    ]
    write_table(place / "deeper" / "b.csv", others)
    (place / "other.csv").write_text("x,y\n1,2\n")
    return place


def profile_file(path: Path, **rates: float) -> Path:
    """The shipped profile with some rates of Ampere changed."""
    document = profile_document(default_profile())
    for name, value in rates.items():
        document["generations"]["ampere"][name]["value"] = value
    path.write_text(json.dumps(document))
    return path


# --- validate ------------------------------------------------------------------------------------


def test_the_json_of_known_runs(run: Callable[..., Ran], folder: Path) -> None:
    ran = run("validate", folder, "--format", "json")
    assert (ran.code, ran.err) == (0, "")
    found = json.loads(ran.out)
    assert found["schema"] == "ilp_parallel.validate/1"
    assert {"ilp_parallel", "python", "numpy"} <= found["versions"].keys()
    assert len(found["instance"]["hash"]) == 64
    assert found["instance"]["profile"] == "default"
    rows = {"read": 7, "used": 5, "older_release": 0, "out_of_memory": 1, "not_covered": 1}
    assert found["instance"]["rows"] == {**rows, "left_out": 0}
    (source,) = found["sources"]
    errors = sorted(abs(1 / f - 1) for f in FACTORS)
    assert (source["id"], source["n"], source["n_groups"]) == ("toy", 5, 1)
    assert source["median_error"] == pytest.approx(errors[2])
    assert source["p90_error"] == pytest.approx(0.4 * errors[3] + 0.6 * errors[4])
    assert source["bias"] == pytest.approx(0)
    assert -1 <= source["kendall"] <= 1
    for name in ("regret_median", "regret_p90", "regret_mean", "random_regret", "rule_regret"):
        assert source[name] >= 0
    assert source["from_7b"]["n"] == 5
    assert source["below_7b"] is None
    assert found["macro_median_error"] is None
    fits = {"n": 6, "out_of_memory": 1, "right": 6, "false_fits": 0, "false_ooms": 0}
    assert found["fits"].items() >= {**fits, "left_out": fits}.items()
    assert found["fits"]["by_source"] == {"toy": fits}
    nothing = {"n": 0, "median_error": None, "p90_error": None, "bias": None}
    refused = {"toy labels: moe model without a preset": 1}
    parts = {"golden_toy": None, "golden_large": None, "devices": {}}
    assert found["memory"] == {**nothing, **parts, "not_covered": refused}
    assert [part["reason"] for part in found["not_covered"]] == ["moe model without a preset"]
    by_factor = [c["measured_s"] / c["predicted_s"] for c in found["configurations"]]
    assert by_factor == pytest.approx(FACTORS)


def golden_file(path: Path, factor: float) -> Path:
    """A logged peak that is ``factor`` times what the model says, and an encoder's."""
    row = {"test": "gpt/toy", "platform": "dev_dgx_h100", "args": ARGS, "gpus": None}
    peak = golden_peak(GoldenRow("gpt/toy", "dev_dgx_h100", ARGS, 1.0)).predicted_bytes * factor
    rows = [{**row, "test": test, "mem_max_allocated_bytes": peak} for test in ("gpt/a", "bert/a")]
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return path


def test_sources_that_the_rates_were_fitted_to_are_named(
    run: Callable[..., Ran], folder: Path, tmp_path: Path
) -> None:
    document = profile_document(default_profile())
    rate = document["generations"]["ampere"]["matmul"]
    rate.update(kind="fitted", source="5 configurations of other, toy")
    path = tmp_path / "fitted.json"
    path.write_text(json.dumps(document))
    words = ("validate", folder, "--profile", path)
    assert json.loads(run(*words, "--format", "json").out)["instance"]["fitted_on"] == ["toy"]
    assert "fitted to toy" in run(*words).out
    rate.update(source="5 configurations of other, toys")
    path.write_text(json.dumps(document))
    assert json.loads(run(*words, "--format", "json").out)["instance"]["fitted_on"] == []
    assert "fitted to" not in run(*words).out


def test_memory_alone_and_beside_runs(
    run: Callable[..., Ran], folder: Path, tmp_path: Path
) -> None:
    place = tmp_path / "golden"
    place.mkdir()
    golden_file(place / "g.jsonl", 0.8)
    found = json.loads(run("validate", place, "--format", "json").out)
    assert (found["sources"], found["macro_median_error"], found["fits"]["n"]) == ([], None, 0)
    memory = found["memory"]
    assert (memory["n"], memory["not_covered"]) == (1, {"golden: encoder": 1})
    assert memory["median_error"] == memory["p90_error"] == pytest.approx(0.25)
    ran = run("validate", place)
    assert ran.code == 0
    assert "peak memory" in ran.out
    assert "golden: encoder 1" in ran.out
    before = json.loads(run("validate", folder, "--format", "json").out)
    runs = [run_of(step_time_canon_s=7.0, gbs=1024, peak_mem_gb=40)]
    write_table(folder / "m.csv", runs)
    golden_file(folder / "g.jsonl", 0.8)
    both = json.loads(run("validate", folder, "--format", "json").out)
    assert both["memory"]["n"] == 2
    assert both["memory"]["devices"]["toy"]["n"] == both["memory"]["golden_toy"]["n"] == 1
    assert both["instance"]["hash"] != before["instance"]["hash"]


def test_same_files_same_output_and_the_hash_sees_a_change(
    run: Callable[..., Ran], folder: Path, tmp_path: Path
) -> None:
    first, second = (run("validate", folder, "--format", "json").out for _ in range(2))
    assert first == second
    changed = profile_file(tmp_path / "profile.json", matmul=0.4)
    other = json.loads(run("validate", folder, "--format", "json", "--profile", changed).out)
    assert other["instance"]["hash"] != json.loads(first)["instance"]["hash"]
    pairs = zip(json.loads(first)["configurations"], other["configurations"], strict=True)
    assert all(b["predicted_s"] > 1.2 * a["predicted_s"] for a, b in pairs)
    write_table(folder / "c.csv", [timed(1.0, gbs=1024)])
    assert run("validate", folder, "--format", "json").out != first


def test_software_that_holds_more_than_its_stack(run: Callable[..., Ran], tmp_path: Path) -> None:
    """Its memory comes from numpy, whose flags JSON does not take."""
    write_table(tmp_path / "a.csv", [timed(1.0, framework="AA-Scaling", mbs=m) for m in (1, 16)])
    found = json.loads(run("validate", tmp_path, "--format", "json").out)
    assert [one["fits"] for one in found["configurations"]] == [True, False]


@pytest.mark.parametrize("style", ["table", "md"])
def test_text(run: Callable[..., Ran], folder: Path, style: str) -> None:
    ran = run("validate", folder, "--format", style)
    assert (ran.code, ran.err) == (0, "")
    assert "toy" in ran.out
    assert "moe model" in ran.out
    assert "false fits" in ran.out
    assert "7 read = 5 used + 0 of older releases + 1 out of memory + 1 not covered" in ran.out
    assert max(map(len, ran.out.splitlines())) <= 200
    if style == "md":
        assert not any(char in ran.out for char in "─│\x1b")
        lines = ran.out.splitlines()
        ends = [i for i, line in enumerate(lines) if line.startswith("|")]
        assert all(lines[i + 1] == "" or lines[i + 1].startswith("|") for i in ends[:-1])


def test_a_file_gets_json(run: Callable[..., Ran], folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    ran = run("validate", folder, "-o", path)
    assert (ran.code, ran.out) == (0, "")
    assert json.loads(path.read_text())["schema"] == "ilp_parallel.validate/1"


@pytest.mark.parametrize(("kind", "start"), [("svg", b"<?xml"), ("png", b"\x89PNG")])
def test_plot(
    run: Callable[..., Ran], folder: Path, tmp_path: Path, kind: str, start: bytes
) -> None:
    odd = [timed(1.0, source_id="$odd_{$ & <b>", mbs="", recompute="")]
    write_table(folder / "odd.csv", odd)
    paths = [tmp_path / f"{name}.{kind}" for name in ("one", "two")]
    for path in paths:
        assert run("validate", folder, "--plot", path).code == 0
    contents = [path.read_bytes() for path in paths]
    assert contents[0].startswith(start)
    assert contents[0] == contents[1]
    assert {path.name for path in tmp_path.iterdir()} == {"runs", *(p.name for p in paths)}


def test_a_plot_of_nothing_is_refused(run: Callable[..., Ran], tmp_path: Path) -> None:
    place = tmp_path / "lost"
    place.mkdir()
    write_table(place / "a.csv", [out_of_memory(), run_of(arch_kind="moe", step_time_canon_s=1.0)])
    assert run("validate", place).code == 0
    assert_refused(run("validate", place, "--plot", tmp_path / "p.svg"), "NOTHING_TO_PLOT")


def test_bad_folders_and_options(run: Callable[..., Ran], folder: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert_refused(run("validate"), "USAGE")
    assert_refused(run("validate", tmp_path / "absent"), "NOT_A_FOLDER")
    assert_refused(run("validate", folder / "a.csv"), "NOT_A_FOLDER")
    assert_refused(run("validate", empty), "NO_RUNS")
    assert_refused(run("validate", folder, "--plot", tmp_path / "p.pdf"), "UNKNOWN_PICTURE")
    assert_refused(run("validate", folder, "--plot", empty / "no" / "p.svg"), "CANNOT_WRITE")
    assert_refused(run("validate", folder, "-o", empty), "CANNOT_WRITE")
    assert_refused(run("validate", folder, "--profile", tmp_path / "absent.json"), "NO_SUCH_FILE")
    bad = profile_file(tmp_path / "bad.json", matmul=7.0)
    assert_refused(run("validate", folder, "--profile", bad), "BAD_PROFILE")
    assert list(empty.iterdir()) == []


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("tp", "two"),
        ("tp", "2.5"),
        ("tp", "1e400"),
        ("step_time_canon_s", "fast"),
        ("status", "lost"),
        ("gated_mlp", "maybe"),
        ("model", ""),
        ("source_id", ""),
    ],
)
def test_bad_cells_name_file_and_line(
    run: Callable[..., Ran], folder: Path, column: str, value: str
) -> None:
    header, *rows = (folder / "a.csv").read_text().splitlines()
    cells = rows[2].split(",")
    cells[header.split(",").index(column)] = value
    rows[2] = ",".join(cells)
    (folder / "a.csv").write_text("\n".join([header, *rows]) + "\n")
    ran = run("validate", folder)
    assert_refused(ran, "BAD_RUN")
    assert "a.csv, line 4" in ran.err
    assert column in ran.err


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "0", "-3", "1e300", "1e-300"])
def test_absurd_times_are_counted_as_not_covered(
    run: Callable[..., Ran], folder: Path, value: str
) -> None:
    absurd = write_table(folder / "c.csv", [run_of(step_time_canon_s=123.0, gbs=1024)])
    absurd.write_text(absurd.read_text().replace("123.0", value))
    other = write_table(folder / "d.csv", [run_of(step_time_canon_s=5.0, gbs=77777)])
    other.write_text(other.read_text().replace("77777", "9" * 400))
    ran = run("validate", folder, "--format", "json")
    assert ran.code == 0
    found = json.loads(ran.out)
    assert "gbs out of range" in [part["reason"] for part in found["not_covered"]]
    assert "step_time_canon_s out of range" in [part["reason"] for part in found["not_covered"]]
    assert found["instance"]["rows"]["used"] == 5
    assert math.isfinite(found["sources"][0]["p90_error"])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00\xff\xfe",
        b"\xff\xfe\x00row_id,tp\n",
        b'row_id,"unended\n' + b"x" * 200_000,
        b",,,\n,,\n",
        b"[" * 1000,
    ],
    ids=range(6),
)
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_bytes_that_are_no_table(
    run: Callable[..., Ran], tmp_path: Path, content: bytes, kind: str
) -> None:
    place = tmp_path / "bytes"
    place.mkdir()
    (place / f"a.{kind}").write_bytes(content)
    assert_refused(run("validate", place))


# --- predict -------------------------------------------------------------------------------------


def predicted(run: Callable[..., Ran], *words: object) -> dict[str, object]:
    ran = run("predict", *words, "--format", "json")
    assert ran.code == 0, ran.err
    document = json.loads(ran.out)
    assert isinstance(document, dict)
    return document


def test_the_json_of_a_prediction(run: Callable[..., Ran], model: Path) -> None:
    found = predicted(run, model, *JOB, "--plan", "pp=2 tp=2 mbs=2 recompute=full")
    step = found["step_time_s"]
    assert {"ilp_parallel", "python"} <= found["versions"].keys()
    assert len(found["instance"]["hash"]) == 64
    assert found["tokens_per_s"] == pytest.approx(8 * 1024 / step)
    assert found["tokens_per_s_per_device"] == pytest.approx(8 * 1024 / step / 4)
    peak = found["peak_flops_per_s_per_device"]
    assert found["model_flops_per_s_per_device"] == pytest.approx(found["mfu"] * peak)
    assert found["hardware_flops_per_s_per_device"] == pytest.approx(found["hfu"] * peak)
    assert found["hfu"] > found["mfu"]
    assert "6 x matrix parameters" in found["flop_convention"]
    shares = found["step_shares"]
    assert sum(share["share"] for share in shares) == pytest.approx(1)
    assert sum(share["seconds"] for share in shares) == pytest.approx(step)
    assert {"bubble", "recomputation", "optimizer"} <= {share["term"] for share in shares}
    assert found["allocated_bytes"] == max(stage["memory_bytes"] for stage in found["stages"])
    assert found["device_bytes"] == max(stage["device_bytes"] for stage in found["stages"])
    assert found["device_bytes"] > found["allocated_bytes"]
    for stage in found["stages"]:
        parts = sum(term["value"] for term in stage["memory_terms"])
        assert parts == pytest.approx(stage["memory_bytes"])


@pytest.mark.parametrize("style", ["table", "md"])
def test_the_text_of_a_prediction(run: Callable[..., Ran], model: Path, style: str) -> None:
    ran = run("predict", model, *JOB, "--plan", "pp=2 tp=2 mbs=2", "--format", style)
    assert ran.code == 0
    for words in (
        "where the time goes",
        "bubble",
        "MFU",
        "HFU",
        "TFLOP/s",
        "peak memory",
        "allocated",
        "100.0",
    ):
        assert words in ran.out
    assert "6 x matrix parameters" in ran.out


def test_profile_and_norm_kernel_change_the_prediction(
    run: Callable[..., Ran], model: Path, tmp_path: Path
) -> None:
    words = (model, *JOB, "--plan", "pp=2 tp=2 mbs=2")
    plain = predicted(run, *words)
    profile = profile_file(tmp_path / "slow.json", matmul=0.4)
    slow = predicted(run, *words, "--profile", profile)
    assert slow["step_time_s"] > 1.2 * plain["step_time_s"]
    assert slow["plan"]["job"]["rates"]["matmul"] == 0.4
    shipped = profile_file(tmp_path / "same.json")
    assert predicted(run, *words, "--profile", shipped)["stages"] == plain["stages"]
    eager = predicted(run, *words, "--norm-kernel", "eager")
    assert eager["step_time_s"] > plain["step_time_s"]
    assert_refused(run("predict", *words, "--norm-kernel", "lazy"), "USAGE")


def test_a_plan_file_takes_a_profile_and_no_other_job(
    run: Callable[..., Ran], model: Path, tmp_path: Path
) -> None:
    profile = profile_file(tmp_path / "slow.json", matmul=0.4)
    path = tmp_path / "plan.json"
    assert run("solve", model, *JOB, "--profile", profile, "-o", path).code == 0
    assert run("verify", path).code == 0
    solved = json.loads(path.read_text())
    assert solved["plan"]["job"]["rates"]["matmul"] == 0.4
    found = predicted(run, path)  # the plan keeps its rates
    assert found["step_time_s"] <= solved["step_time_s"] < 1.001 * found["step_time_s"]
    fast = predicted(run, path, "--profile", profile_file(tmp_path / "fast.json"))
    assert fast["step_time_s"] < 0.9 * found["step_time_s"]
    assert_refused(run("predict", path, "--batch", 16), "PLAN_HAS_ITS_JOB")


def test_a_profile_without_the_stack(run: Callable[..., Ran], model: Path, tmp_path: Path) -> None:
    document = profile_document(default_profile())
    del document["stacks"]["deepspeed"]
    path = tmp_path / "few.json"
    path.write_text(json.dumps(document))
    words = ("predict", model, *JOB, "--plan", "tp=4", "--profile", path)
    assert run(*words).code == 0
    assert_refused(run(*words, "--stack", "deepspeed"), "STACK_NOT_IN_PROFILE")
