"""The dynamic program over ideals against brute force and the published values."""

from __future__ import annotations

import csv
import os
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ilp_parallel.imports.placement_instance import read_placement_instance
from ilp_parallel.placement.chain_dp import linearised, place_chain
from ilp_parallel.planner_placement import load_bound, plan_freely, plan_placement
from ilp_parallel.problems.placement import PlacementInstance, evaluate

DATA = Path(
    os.environ.get("PLACEMENT_DATA", Path(__file__).parents[3] / "shared/data/device_placement")
)


@st.composite
def instances(draw: st.DrawFn) -> PlacementInstance:
    """Small graphs, forward operators first, colours and CPUs included."""
    count = draw(st.integers(1, 6))
    forward = draw(st.integers(0, count))

    def several(values: st.SearchStrategy[int]) -> tuple[int, ...]:
        return tuple(draw(st.lists(values, min_size=count, max_size=count)))

    pairs = [(u, v) for v in range(count) for u in range(v)]
    return PlacementInstance(
        names=tuple(range(count)),
        cpu_ticks=several(st.integers(0, 20)),
        accelerator_ticks=several(st.integers(0, 9)),
        transfer_ticks=several(st.integers(0, 4)),
        size_bytes=several(st.integers(0, 3)),
        supported=tuple(bool(x) for x in several(st.integers(0, 4))),
        backward=tuple(v >= forward for v in range(count)),
        colours=several(st.integers(0, 5)),
        edges=tuple(draw(st.lists(st.sampled_from(pairs), unique=True))) if pairs else (),
        limit_bytes=draw(st.integers(0, 9)),
        accelerators=draw(st.integers(0, 2)),
        cpus=draw(st.integers(0, 2)),
        ticks_per_unit=1,
        rounded_terms=0,
    )


@settings(max_examples=250, deadline=None)
@given(instances())
def test_chain_optimum_equals_brute_force(instance: PlacementInstance) -> None:
    devices = range(instance.accelerators + instance.cpus)
    verdicts = [
        evaluate(instance, plan, "chain") for plan in product(devices, repeat=len(instance.names))
    ]
    best = min((v.objective for v in verdicts if v.feasible), default=None)
    found = place_chain(instance)
    assert found.objective_ticks == best
    if found.devices is not None:
        verdict = evaluate(instance, found.devices, "chain")
        assert verdict.feasible
        assert verdict.objective == best
        assert load_bound(instance) <= best
    line = linearised(instance).objective_ticks
    assert line is None or (best is not None and line >= best)


@settings(max_examples=40, deadline=None)
@given(instances())
def test_bounds_of_weaker_contiguity_hold(instance: PlacementInstance) -> None:
    devices = range(instance.accelerators + instance.cpus)
    verdicts = [evaluate(instance, p) for p in product(devices, repeat=len(instance.names))]
    best = min((v.objective for v in verdicts if v.feasible), default=None)
    result = plan_placement(instance, "none")
    if best is not None:
        assert result.bound_ticks is not None
        assert result.bound_ticks <= best
    assert result.status != "optimal" or result.objective_ticks == best


@settings(max_examples=60, deadline=None)
@given(instances())
def test_placement_without_contiguity_equals_brute_force(instance: PlacementInstance) -> None:
    devices = range(instance.accelerators + instance.cpus)
    verdicts = [evaluate(instance, p) for p in product(devices, repeat=len(instance.names))]
    best = min((v.objective for v in verdicts if v.feasible), default=None)
    result = plan_freely(instance, 60.0)
    assert result.objective_ticks == best
    if devices:
        assert result.status == ("infeasible" if best is None else "optimal")


def test_with_too_many_ideals_only_the_bound_by_load_can_prove() -> None:
    row = (1,) * 8
    instance = PlacementInstance(
        tuple(range(8)), row, row, (0,) * 8, row, (True,) * 8, (False,) * 8,
        tuple(range(8)), (), 8, 3, 0, 1, 0,
    )  # fmt: skip
    result = plan_placement(instance, "chain", most_ideals=100)
    assert (result.status, result.objective_ticks, result.bound_ticks) == ("optimal", 3, 3)
    assert not place_chain(instance, 100).complete


def published() -> list[tuple[str, str, float]]:
    if not (DATA / "reference.csv").exists():
        return []
    with (DATA / "reference.csv").open(newline="") as file:
        return [
            (row["granularity"], row["input"], float(row["max_load_full_precision"]))
            for row in csv.DictReader(file)
            if row["variant"] == "dp" and row["status"] == "ok"
        ]


@pytest.mark.skipif(not published(), reason="public device-placement files are absent")
def test_published_optima_are_matched() -> None:
    for granularity, name, value in published():
        instance = read_placement_instance(str(DATA / "throughput" / granularity / f"{name}.json"))
        result = plan_placement(instance, "chain")
        assert result.status == "optimal", name
        assert result.objective_ticks is not None
        ours = result.objective_ticks / instance.ticks_per_unit
        assert ours == pytest.approx(value, rel=1e-9), name
