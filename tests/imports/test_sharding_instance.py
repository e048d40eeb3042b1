"""Contest files: what is read, what is refused, and with which reason."""

from __future__ import annotations

import gzip
import json
from copy import deepcopy
from typing import TYPE_CHECKING

import numpy as np
import pytest
from click.testing import CliRunner

from ilp_parallel.cli.shard import shard
from ilp_parallel.errors import InputError
from ilp_parallel.imports.sharding_instance import read_sharding_instance, read_sharding_solution
from ilp_parallel.problems.sharding import FORBIDDEN, evaluate

if TYPE_CHECKING:
    from pathlib import Path

SMALL = {
    "problem": {
        "name": "two",
        "nodes": {
            "intervals": [[0, 2], [2, 4]],
            "costs": [[1, 2], [3, 10**20]],
            "usages": [[5, 1], [5, 0]],
        },
        "edges": {"nodes": [[0, 1], [1, 0]], "costs": [[10**18, 0, 4, 0], [0, 1, 2, 3]]},
        "usage_limit": 5,
    }
}


def written(folder: Path, document: object) -> str:
    path = folder / "file.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return str(path)


def test_intervals_are_half_open_and_large_costs_forbidden(tmp_path: Path) -> None:
    instance = read_sharding_instance(written(tmp_path, SMALL))
    assert instance.cost.tolist() == [1, 2, 3, FORBIDDEN]
    good = evaluate(instance, np.array([1, 0]))
    assert (good.feasible, good.objective, good.peak_usage) == (True, 2 + 3 + 4 + 1, 5)
    assert evaluate(instance, np.array([0, 0])).objective is None
    assert not evaluate(instance, np.array([0])).feasible


def test_gzip_reads_the_same(tmp_path: Path) -> None:
    path = tmp_path / "file.json.gz"
    path.write_bytes(gzip.compress(json.dumps(SMALL).encode()))
    assert read_sharding_instance(str(path)).edges == 2


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("nodes", "costs", [[1, 2]]),
        ("nodes", "costs", [[1, 2], []]),
        ("nodes", "costs", [[1, -2], [3, 4]]),
        ("nodes", "usages", [[5, 1], [5]]),
        ("nodes", "usages", [[5, -1], [5, 0]]),
        ("edges", "nodes", [[0, 1], [1, 7]]),
        ("edges", "nodes", [[0, 1], [1, 1]]),
        ("edges", "costs", [[1, 0, 4], [0, 1, 2, 3]]),
        ("edges", "costs", "none"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, part: str, name: str, value: object) -> None:
    document = deepcopy(SMALL)
    document["problem"][part][name] = value  # type: ignore[index]
    with pytest.raises(InputError) as caught:
        read_sharding_instance(written(tmp_path, document))
    assert caught.value.code == "BAD_SHARDING_FILE"


def test_bad_solution_and_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="BAD_SHARDING_SOLUTION"):
        read_sharding_solution(written(tmp_path, {"plan": 1}))
    with pytest.raises(InputError, match="FILE_UNREADABLE"):
        read_sharding_instance(str(tmp_path / "absent.json"))


def test_command_solves_writes_and_checks(tmp_path: Path) -> None:
    pytest.importorskip("numba")
    file, plan = written(tmp_path, SMALL), str(tmp_path / "plan.json")
    solved = CliRunner().invoke(
        shard, [file, "--time-limit", "300", "-o", plan, "--format", "json"]
    )
    assert solved.exit_code == 0
    document = json.loads(solved.stdout)
    assert (document["status"], document["objective"], document["gap"]) == ("optimal", 10, 0.0)
    assert document["verified"] is True
    assert CliRunner().invoke(shard, [file, "--check", plan]).exit_code == 0
    (tmp_path / "bad.json").write_text("[0, 0]", encoding="utf-8")
    assert CliRunner().invoke(shard, [file, "--check", str(tmp_path / "bad.json")]).exit_code == 6


def test_infeasible_instance_exits_with_3(tmp_path: Path) -> None:
    pytest.importorskip("numba")
    document = deepcopy(SMALL)
    document["problem"]["usage_limit"] = 4
    solved = CliRunner().invoke(shard, [written(tmp_path, document), "--format", "json"])
    assert solved.exit_code == 3
    assert json.loads(solved.stdout)["status"] == "infeasible"
