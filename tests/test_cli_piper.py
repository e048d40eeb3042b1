"""``solve --format-in piper``: results, exit codes, options, refusals."""

from __future__ import annotations

import json
import subprocess
import sys
from fractions import Fraction
from typing import TYPE_CHECKING

import pytest

from ilp_parallel.imports.piper_instance import piper_instance, read_piper_file
from ilp_parallel.imports.piper_plan import parse_piper_plan
from ilp_parallel.piper.solving import MODES
from ilp_parallel.problems.piper import evaluate
from tests.piper.instances import written
from tests.test_cli import run  # noqa: F401  (a fixture)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.test_cli import Ran


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return written(tmp_path / "small.json")


def test_json(run: Callable[..., Ran], file: Path) -> None:  # noqa: F811
    found = run("solve", file, "--format-in", "piper", "--format", "json")
    assert found.code == 0
    document = json.loads(found.out)
    assert document["status"] == "optimal"
    assert document["proof"] == "exact"
    assert document["verified"] is True
    assert document["gap"] == 0
    assert document["objective_exact"] == document["bound_exact"]
    assert document["objective"] == float(Fraction(document["objective_exact"]))
    instance = piper_instance(read_piper_file(str(file)))
    plan = parse_piper_plan(json.dumps(document["plan"]), instance)
    verdict = evaluate(instance, plan)
    assert verdict.feasible
    assert verdict.objective == Fraction(document["objective_exact"])
    assert set(document["timing"]) == {"total_s", "search_s"}


def test_table_and_file(run: Callable[..., Ran], file: Path, tmp_path: Path) -> None:  # noqa: F811
    found = run("solve", file, "--format-in", "piper")
    assert found.code == 0
    assert "optimal" in found.out
    assert "vanilla" in found.out
    target = tmp_path / "result.json"
    assert run("solve", file, "--format-in", "piper", "-o", target).code == 0
    assert json.loads(target.read_text())["schema"] == "ilp_parallel.solve-piper/1"


@pytest.mark.parametrize("mode", MODES)
def test_every_ablation(run: Callable[..., Ran], file: Path, mode: str) -> None:  # noqa: F811
    words = ("solve", file, "--format-in", "piper", "--format", "json")
    whole = json.loads(run(*words).out)
    found = run(*words, "--ablation", mode)
    document = json.loads(found.out)
    assert found.code == (4 if mode == "piper_dp" else 0)
    assert document["ablation"] == mode
    assert Fraction(document["objective_exact"]) >= Fraction(whole["objective_exact"])
    assert (document["proof"] == "exact") == (mode != "piper_dp")


def test_infeasible(run: Callable[..., Ran], file: Path) -> None:  # noqa: F811
    words = ("--memory-bytes", "7.5", "--format", "json")
    found = run("solve", file, "--format-in", "piper", *words)
    assert found.code == 3
    document = json.loads(found.out)
    assert (document["status"], document["proof"]) == ("infeasible", "exact")
    assert document["objective"] is document["bound"] is document["plan"] is None
    assert document["infeasibility"]["code"] == "LAYER_TOO_LARGE"
    assert "LAYER_TOO_LARGE" in run("solve", file, "--format-in", "piper", *words[:2]).out


def test_options_replace_the_machine(run: Callable[..., Ran], file: Path) -> None:  # noqa: F811
    words = ("--devices", 1, "--memory-bytes", 1e9, "--bandwidth", "1e4", "--microbatches", 8)
    found = run("solve", file, "--format-in", "piper", *words, "--format", "json")
    document = json.loads(found.out)
    assert document["instance"]["devices"] == 1
    assert document["instance"]["microbatches"] == 8
    assert document["objective_exact"] == "9/10"


def test_no_time(run: Callable[..., Ran], file: Path) -> None:  # noqa: F811
    words = ("--time-limit", 0, "--format", "json")
    found = run("solve", file, "--format-in", "piper", *words)
    assert found.code == 5
    assert json.loads(found.out)["status"] == "unknown"


REFUSED = {
    ("--ablation", "x"): "UNKNOWN_ABLATION",
    ("--devices", "0"): "DEVICES_OUT_OF_RANGE",
    ("--memory-bytes", "much"): "NOT_A_NUMBER",
    ("--memory-bytes", "nan"): "NUMBER_OUT_OF_RANGE",
    ("--bandwidth", "-1"): "NEGATIVE_VALUE",
    ("--microbatches", "0"): "MICROBATCHES_OUT_OF_RANGE",
    ("--time-limit", "-1"): "OUT_OF_RANGE",
    ("--batch", "4"): "NOT_FOR_PIPER",
    ("--cross-check",): "NOT_FOR_PIPER",
    ("-o", "/nowhere/x.json"): "CANNOT_WRITE",
}


@pytest.mark.parametrize("words", REFUSED)
def test_refusals(run: Callable[..., Ran], file: Path, words: tuple[str, ...]) -> None:  # noqa: F811
    found = run("solve", file, "--format-in", "piper", *words)
    assert found.code == 2
    assert not found.out
    assert found.err.startswith(f"{REFUSED[words]}: ")
    assert found.err.count("\n") == 1


def test_options_need_the_format(run: Callable[..., Ran], file: Path) -> None:  # noqa: F811
    assert run("solve", "gpt3", "--devices", 8).err.startswith("FORMAT_MISSING: --devices")
    for verb in ("import", "predict", "check"):
        found = run(verb, file, "--format-in", "piper")
        assert (found.code, found.err.split(":")[0]) == (2, "NOT_A_RUN")


def test_bad_file(run: Callable[..., Ran], tmp_path: Path) -> None:  # noqa: F811
    path = tmp_path / "bad.json"
    path.write_text('{"nodes": []}')
    found = run("solve", path, "--format-in", "piper")
    assert (found.code, found.err.count("\n")) == (2, 1)
    assert found.err.startswith("BAD_PIPER_FILE")
    assert run("solve", tmp_path / "none", "--format-in", "piper").err.startswith("NO_SUCH_FILE")


def test_the_command_line_itself_loads_no_arrays() -> None:
    """Every verb pays for what the command line imports."""
    line = "import ilp_parallel.cli.app, sys; print('numpy' in sys.modules)"
    command = [sys.executable, "-c", line]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n"


def test_small_files_load_no_solver_and_no_compiler(file: Path) -> None:
    """What makes a short run short."""
    lines = (
        "import sys; sys.argv = ['x', 'solve', sys.argv[1], '--format-in', 'piper', '-o', '-']",
        "from ilp_parallel.cli.app import main",
        "try:\n main()\nexcept SystemExit:\n pass",
        "print(sorted({'numba', 'highspy', 'ortools', 'networkx'} & set(sys.modules)))",
    )
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines), str(file)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "[]"
