"""solve --objective and --price, min-gpus --tokens-per-second, and the verb pareto."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec
import pytest

from ilp_parallel.frontiers.pareto_output import COLUMNS
from ilp_parallel.specs.readers import load_cluster
from tests.test_cli_diagnosis import SMALL, code_of, document, run

if TYPE_CHECKING:
    from pathlib import Path

TWO_NODES = ("megatron-1.7b", "--cluster", "a100-80gb:2x2", "--batch", "16")


def test_every_result_names_its_objective(tmp_path: Path) -> None:
    plain = document(run("solve", *SMALL, "--format", "json"))
    assert plain["minimised"] == "step-time"
    assert "objective step time" in run("solve", *SMALL).stdout.splitlines()[0]
    path = tmp_path / "simulated.json"
    result = run("solve", *SMALL, "--objective", "simulated", "-o", path)
    assert result.exit_code in (0, 4)
    assert run("verify", path).exit_code == 0
    page = tmp_path / "page.html"
    assert run("report", path, "-o", page).exit_code == 0
    assert "of the simulated step, gap" in page.read_text()
    text = run("solve", *SMALL, "--objective", "simulated").stdout
    assert "objective simulated step time" in text.splitlines()[0]


def test_cost_and_rate_choose_the_same_plan() -> None:
    rate = document(
        run("solve", *TWO_NODES, "--objective", "tokens-per-device", "--format", "json")
    )
    cost = document(
        run("solve", *TWO_NODES, "--objective", "cost", "--price", 2, "--format", "json")
    )
    assert rate["status"] == cost["status"] == "optimal"
    assert rate["minimised"] == "tokens-per-second-per-device"
    assert cost["minimised"] == "cost-per-token"
    assert (rate["plan"], rate["cost_per_million_tokens"]) == (cost["plan"], None)
    per_device = rate["tokens_per_second_per_device"]
    assert isinstance(per_device, float)
    assert cost["cost_per_million_tokens"] == pytest.approx(1e6 * 2 / 3600 / per_device)
    table = run("solve", *TWO_NODES, "--objective", "cost", "--price", 2).stdout
    assert "objective cost per token" in table.splitlines()[0]
    assert "per million tokens" in table


def test_a_price_may_stand_in_the_cluster_file(tmp_path: Path) -> None:
    fields = msgspec.to_builtins(load_cluster("a100-80gb:1x2"))
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({**fields, "device_hour_price": 4.0}))
    job = ("megatron-1.7b", "--cluster", path, "--batch", "16", "--format", "json")
    own = document(run("solve", *job, "--objective", "cost"))
    given = document(run("solve", *job, "--objective", "cost", "--price", 8))
    assert given["cost_per_million_tokens"] == pytest.approx(
        2 * own["cost_per_million_tokens"]  # type: ignore[operator]
    )
    path.write_text(json.dumps({**fields, "device_hour_price": -1.0}))
    assert code_of(run("solve", *job)) == "OUT_OF_RANGE"


def test_what_does_not_go_together_is_refused() -> None:
    assert code_of(run("solve", *SMALL, "--objective", "cost")) == "NO_PRICE"
    wrong = run("solve", *SMALL, "--objective", "simulated", "--cross-check")
    assert code_of(wrong) == "NOT_WITH_OBJECTIVE"
    negative = run("solve", *SMALL, "--objective", "cost", "--price", -2)
    assert code_of(negative) == "OUT_OF_RANGE"
    assert code_of(run("min-gpus", *SMALL, "--tokens-per-second", 0)) == "OUT_OF_RANGE"
    assert code_of(run("pareto", *SMALL, "--step-gib", -1)) == "OUT_OF_RANGE"


def test_min_gpus_for_a_rate() -> None:
    job = ("megatron-1.7b", "--device", "a100-80gb", "--per-node", "2", "--batch", "16")
    one = document(run("min-gpus", *job, "--tokens-per-second", 10, "--format", "json"))
    assert one["nodes"] == 1
    rate = one["tokens_per_second"]
    assert isinstance(rate, float)
    more = document(run("min-gpus", *job, "--tokens-per-second", 1.2 * rate, "--format", "json"))
    assert more["nodes"] == 2
    refuted = more["refuted"]
    assert isinstance(refuted, list)
    assert refuted[0]["bound_s"] == pytest.approx(one["step_time_s"], rel=0.5)
    assert "too slow" in run("min-gpus", *job, "--tokens-per-second", 1.2 * rate).stdout


def test_pareto_prints_writes_and_draws(tmp_path: Path) -> None:
    table, plot = tmp_path / "points.csv", tmp_path / "points.svg"
    words = ("pareto", *TWO_NODES, "--against", "devices", "--csv", table, "--plot", plot)
    found = document(run(*words, "--format", "json"))
    assert found["schema"] == "ilp_parallel.pareto/1"
    assert found["status"] == "optimal"
    lines = table.read_text().splitlines()
    assert lines[0] == ",".join(COLUMNS)
    assert len(lines) - 1 == len(found["points"])  # type: ignore[arg-type]
    assert plot.read_text().startswith("<?xml")
    cost = run("pareto", *TWO_NODES, "--against", "cost", "--price", 2)
    assert "price per million tokens" in cost.stdout
    memory = run("pareto", *TWO_NODES, "--against", "memory", "--step-gib", 16)
    assert memory.exit_code == 0
    assert "every point proven" in memory.stdout


def test_sensitivity_of_a_job_a_plan_and_a_result(tmp_path: Path) -> None:
    path, page = tmp_path / "result.json", tmp_path / "page.html"
    assert run("solve", *SMALL, "--sensitivity", "-o", path).exit_code == 0
    assert run("verify", path).exit_code == 0
    stored = json.loads(path.read_text())["sensitivity"]
    told = document(run("explain", path, "--sensitivity", "--format", "json"))
    asked = document(run("explain", *SMALL, "--sensitivity", "--format", "json"))
    assert told["changes"] == asked["changes"] == stored["changes"]
    assert run("report", path, "-o", page).exit_code == 0
    assert f"Bottleneck: {stored['bottleneck']}" in page.read_text()
    assert "bottleneck: " in run("explain", path, "--sensitivity").stdout
    assert "bottleneck: " in run("solve", *SMALL, "--sensitivity").stdout
    both = run("explain", path, "--sensitivity", "--instead", "tp=2")
    assert code_of(both) == "TWO_QUESTIONS"
    with_other = run("solve", *SMALL, "--sensitivity", "--objective", "simulated")
    assert code_of(with_other) == "NOT_WITH_OBJECTIVE"
