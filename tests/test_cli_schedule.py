"""The verb ``schedule`` from files to files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest

from ilp_parallel.imports.schedule_instance import read_schedule_instance
from ilp_parallel.problems.schedule import evaluate
from ilp_parallel.scheduling.files import solution_of_document

if TYPE_CHECKING:
    from typing import Any

CASE: dict[str, Any] = {
    **{"p": 3, "m": 4, "f": [2, 3, 2], "b": 3, "w": 2, "comm": 1},
    **{"mem_f": 2, "mem_b": -1, "mem_w": -1, "max_mem": 6},
}
DATA = Path(__file__).parents[2] / "shared/data/zero_bubble/instances.json"
SHARED = Path(os.environ.get("ZERO_BUBBLE_CASES", DATA))


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ilp_parallel", "schedule", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def written(folder: Path, content: object) -> str:
    path = folder / "case.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return str(path)


def test_everything_that_can_be_written(tmp_path: Path) -> None:
    case = written(tmp_path, [CASE])
    files = {name: tmp_path / name for name in ("g.svg", "t.csv", "z.json", "r.json")}
    words = ["--gantt", str(files["g.svg"]), "--pytorch", str(files["t.csv"])]
    words += ["--zero-bubble", str(files["z.json"]), "-o", str(files["r.json"])]
    done = run(case, *words, "--cache", str(tmp_path / "cache"))
    assert (done.returncode, done.stdout) == (0, "")
    document = json.loads(files["r.json"].read_text())
    assert (document["status"], document["gap"], document["verified"]) == ("optimal", 0, True)
    instance = read_schedule_instance(case, None)
    solution = solution_of_document(instance, document["schedule"])
    assert solution is not None
    assert evaluate(instance, solution).makespan_ticks == document["objective"]
    assert document["bound"] == document["objective"]
    ElementTree.fromstring(files["g.svg"].read_text())
    rows = [line.split(",") for line in files["t.csv"].read_text().splitlines()]
    assert [len(row) for row in rows] == [12, 12, 12]
    assert all(action.startswith(str(rank)) for rank, row in enumerate(rows) for action in row)
    listed = json.loads(files["z.json"].read_text())
    assert max(op["completion_time"] for lane in listed for op in lane) == document["objective"]
    assert [p.stem for p in (tmp_path / "cache").iterdir()] == [instance.digest()]
    again = run(case, "--cache", str(tmp_path / "cache"), "--format", "json")
    assert json.loads(again.stdout)["solver"] == "given"


def test_the_table_names_the_bound_and_the_price_of_named_schedules(tmp_path: Path) -> None:
    done = run(written(tmp_path, CASE))
    assert done.returncode == 0
    assert "gap 0.0000%" in done.stdout
    assert "1f1b" in done.stdout


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"f": [1, 2]}, "BAD_SCHEDULE_FILE"),
        ({"p": 0}, "BAD_SCHEDULE_FILE"),
        ({"mem_b": 1}, "BAD_SCHEDULE_FILE"),
        ({"mem_w": -3}, "BAD_SCHEDULE_FILE"),
        ({"w": "x"}, "BAD_SCHEDULE_FILE"),
        ({"m": 10**9}, "BAD_SCHEDULE_FILE"),
        ({"other": 1}, "BAD_SCHEDULE_FILE"),
        ({"offload_mem": 3}, "BAD_SCHEDULE_FILE"),
        ({"placement": "ring"}, "BAD_SCHEDULE_FILE"),
        ({"placement": "bidirectional", "m": 3, "f": 2}, "BAD_SCHEDULE_FILE"),
        ({"chunks": 2}, "BAD_SCHEDULE_FILE"),
    ],
)
def test_bad_files_are_one_line(tmp_path: Path, change: dict[str, object], code: str) -> None:
    done = run(written(tmp_path, CASE | change))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(code)
    assert done.stderr.count("\n") == 1


def test_a_list_wants_a_case_and_too_little_memory_is_infeasible(tmp_path: Path) -> None:
    several = written(tmp_path, [CASE, CASE | {"max_mem": 1}])
    assert run(several).stderr.startswith("CASE_MISSING")
    assert run(several, "--case", "2").stderr.startswith("CASE_MISSING")
    done = run(several, "--case", "1", "--format", "json")
    assert done.returncode == 3
    assert json.loads(done.stdout)["reason"] == "stage 0 needs 2 memory units, its device has 1"


@pytest.mark.parametrize(
    "change",
    [
        {"w": None},
        {"placement": "v", "f": 2},
        {"placement": "loop", "chunks": 2, "f": 2, "m": 6},
        {"placement": "bidirectional", "f": 2},
        {"max_mem": 4, "offload_mem": 2, "offload": 1, "reload": 1},
        {"max_mem": 3, "recompute_mem": 1, "recompute": 1},
    ],
)
def test_every_kind_of_case_gets_a_schedule(tmp_path: Path, change: dict[str, object]) -> None:
    case = written(tmp_path, CASE | change)
    done = run(case, "--time-limit", "4", "--format", "json")
    assert done.returncode in (0, 4)
    document = json.loads(done.stdout)
    assert document["verified"] is True
    solution = solution_of_document(read_schedule_instance(case, None), document["schedule"])
    assert solution is not None
    fitting = [n["makespan"] for n in document["named"] if n["fits"]]
    assert document["bound"] <= document["objective"] <= min(fitting, default=2**62)


@pytest.mark.skipif(not SHARED.exists(), reason="no folder of zero-bubble cases")
@pytest.mark.parametrize("number", range(5))
def test_zero_bubble_cases_are_proven(number: int) -> None:
    from ilp_parallel.planner_schedule import SchedulePlanner

    result = SchedulePlanner(read_schedule_instance(str(SHARED), number), 60.0).run()
    assert (result.status, result.proof) == ("optimal", "exact")
    named = [n.evaluation.makespan_ticks for n in result.named if n.fits]
    assert all(value >= result.objective for value in named)


def test_a_plan_is_scheduled_and_solve_says_whether_it_stays_best(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    words = ["solve", "gpt2-xl", "--cluster", "v100-16gb:1x4", "--batch", "16", "--seq", "1024"]
    words += ["--fix", "pp=1", "--schedule", "optimal", "-o", str(plan)]
    command = [sys.executable, "-m", "ilp_parallel", *words]
    subprocess.run(command, check=True, capture_output=True)
    found = json.loads(plan.read_text())["schedule"]
    assert found["plans"]
    best = found["plans"][0]
    assert best["bound"] <= best["makespan"] <= best["step"]
    assert all(ticks >= best["makespan"] for ticks in best["named"].values())
    done = run(str(plan), "--whole-backwards", "--format", "json", "--time-limit", "20")
    assert done.returncode in (0, 4)
    assert json.loads(done.stdout)["verified"] is True


def test_the_best_order_is_for_step_time_alone() -> None:
    words = ["solve", "gpt2-xl", "--schedule", "optimal", "--objective", "simulated"]
    command = [sys.executable, "-m", "ilp_parallel", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.split(":")[0]) == (2, "NO_BEST_ORDER")


def test_pytorch_reads_the_schedule(tmp_path: Path) -> None:
    """Loaded by PyTorch's own reader of actions, where PyTorch is installed."""
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    table = tmp_path / "t.csv"
    assert run(written(tmp_path, CASE), "--pytorch", str(table)).returncode == 0
    for rank, line in enumerate(table.read_text().splitlines()):
        actions = [schedules._Action.from_str(word) for word in line.split(",")]
        assert all(action.stage_index == rank for action in actions)
        assert len({str(action) for action in actions}) == 12
