"""The verb simulate."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ilp_parallel.simulation.output import CURVE_COLUMNS
from tests.test_cli_diagnosis import SMALL, code_of, document, run

if TYPE_CHECKING:
    from pathlib import Path

PLAN = (*SMALL, "--plan", "pp=4 tp=1 mbs=1")


def test_a_plan_under_its_own_and_another_schedule(tmp_path: Path) -> None:
    own = document(run("simulate", *PLAN, "--format", "json"))
    assert own["schema"] == "ilp_parallel.simulate/1"
    assert own["schedule"] == "1f1b"
    split = document(run("simulate", *PLAN, "--schedule", "zb-h1", "--format", "json"))
    assert split["split_backward"] is True
    assert split["makespan_bound"] <= split["makespan"] < own["makespan"]  # type: ignore[operator]
    assert split["objective"] == own["objective"]
    table = run("simulate", *PLAN)
    assert table.exit_code == 0
    assert "simulated step" in table.stdout


def test_orders_and_curves_are_written_and_an_order_is_read(tmp_path: Path) -> None:
    order, curves, plot = (tmp_path / name for name in ("o.json", "c.csv", "p.svg"))
    first = run(
        *("simulate", *PLAN, "--schedule", "zb-h1", "--format", "json"),
        *("--save-order", order, "--curves", curves, "--plot", plot),
    )
    again = document(run("simulate", *PLAN, "--order", order, "--format", "json"))
    assert again["schedule"] == "given"
    assert again["simulated_step"] == document(first)["simulated_step"]
    lines = curves.read_text().splitlines()
    assert lines[0] == ",".join(CURVE_COLUMNS)
    peak = max(int(line.split(",")[2]) for line in lines[1:] if line.startswith("0,"))
    assert peak == again["device_groups"][0]["peak_bytes"]  # type: ignore[index]
    assert plot.read_text().startswith("<?xml")


def test_bad_input_is_refused_and_what_does_not_fit_is_rejected(tmp_path: Path) -> None:
    assert code_of(run("simulate")) == "NO_PLAN"
    assert code_of(run("simulate", *PLAN, "--schedule", "zigzag")) == "UNKNOWN_SCHEDULE"
    assert code_of(run("simulate", *PLAN, "--schedule", "zb-v")) == "SCHEDULE_NEEDS_CHUNKS"
    order = tmp_path / "order.json"
    order.write_text(json.dumps({"schema": "ilp_parallel.order/1", "devices": []}))
    assert code_of(run("simulate", *PLAN, "--order", order)) == "ORDER_NOT_OF_PLAN"
    both = run("simulate", *PLAN, "--order", order, "--schedule", "1f1b")
    assert code_of(both) == "TWO_SCHEDULES"
    assert code_of(run("simulate", "--study", "--plans", "0")) == "OUT_OF_RANGE"
    large = ("gpt3", "--plan", "pp=16 tp=8", "--schedule", "gpipe", "--format", "json")
    result = run("simulate", *large)
    assert result.exit_code == 6
    assert document(result)["fits"] is False


def test_study_needs_no_plan() -> None:
    found = document(run("simulate", "--study", "--plans", "1", "--format", "json"))
    assert found["schema"] == "ilp_parallel.simulate-study/1"
