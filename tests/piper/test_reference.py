"""The public inputs: values and plans that the published program found."""

from __future__ import annotations

import csv
import os
from decimal import Decimal
from typing import TYPE_CHECKING

import pytest

from ilp_parallel.imports.piper_instance import Machine, piper_instance, read_piper_file
from ilp_parallel.imports.piper_plan import parse_piper_plan, seconds_in_floats
from ilp_parallel.piper.solving import solve_instance
from ilp_parallel.problems.piper import evaluate
from tests.piper.instances import ABSENT, DATA

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ilp_parallel.imports.piper_instance import PiperFile

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=ABSENT)


def rows() -> list[dict[str, str]]:
    with (DATA / "reference.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def file_of(row: dict[str, str]) -> PiperFile:
    machine = Machine(
        int(row["maxDevices"]),
        Decimal(row["maxMemoryPerDevice_bytes"]),
        Decimal(row["bandwidth_bytes_per_s"]),
        int(row["mbsInBatch"]),
    )
    return read_piper_file(str(DATA / f"{row['input']}.json"), machine)


def settled() -> Iterator[dict[str, str]]:
    return (row for row in rows() if row["status"] == "ok")


def test_published_plans_cost_what_they_say() -> None:
    count = 0
    for row in settled():
        file = file_of(row)
        instance = piper_instance(file)
        plan = parse_piper_plan(row["plan_json"], instance)
        verdict = evaluate(instance, plan)
        assert verdict.feasible, row
        assert float(verdict.objective) == pytest.approx(float(row["tps"]), rel=1e-12)
        assert max(seconds_in_floats(file, plan)) == pytest.approx(float(row["tps"]), rel=1e-12)
        count += 1
    assert count > 40


def check(row: dict[str, str]) -> None:
    answer = solve_instance(piper_instance(file_of(row)), row["mode"])
    if row["status"] == "infeasible":
        assert answer.status == "infeasible", row
        return
    assert answer.status == "optimal"
    assert answer.verified
    assert float(answer.objective) == pytest.approx(float(row["tps"]), rel=1e-9)


def test_quick_rows() -> None:
    """Every mode once, on at most eight devices, and the equal partitions of all inputs."""
    modes: set[str] = set()
    for row in rows():
        quick = row["mode"].startswith("equi") or (
            row["input"] == "bert32a100" and int(row["maxDevices"]) <= 8
        )
        if quick and (row["mode"], row["status"]) not in modes:
            modes.add((row["mode"], row["status"]))
            check(row)
    assert len({mode for mode, _ in modes}) >= 10


@pytest.mark.skipif("PIPER_EVERY_ROW" not in os.environ, reason="takes a minute; PIPER_EVERY_ROW")
def test_every_row() -> None:
    for row in rows():
        check(row)


def test_better_than_published_algorithm() -> None:
    """Resnet on 16 devices: its greedy choice of modes costs more than three per cent."""
    machine = Machine(16, Decimal("5.5e9"), Decimal("26843545600"), 7680)
    instance = piper_instance(read_piper_file(str(DATA / "resnet.json"), machine))
    exact, published = solve_instance(instance), solve_instance(instance, "piper_dp")
    assert exact.status == "optimal"
    assert published.verified
    assert float(published.objective / exact.objective) > 1.03
