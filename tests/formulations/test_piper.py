"""The page of the formulation names what is built, and each family has both kinds of case."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from formulations.piper import assignment
from ilp_parallel.problems.piper import Stage
from ilp_parallel.solvers.outcome import SolveOptions
from ilp_parallel.solvers.registry import get_solver
from tests.problems.test_piper import APART, BROKEN, INSTANCE, TOGETHER

NUMBERED = re.compile(r"\((\d+)\)[^():]*\(``(\w+)``", re.DOTALL)


def test_numbered_constraints_exist() -> None:
    documented = {int(number): name for number, name in NUMBERED.findall(assignment.__doc__)}
    assert documented == {n: add.__name__ for n, add in assignment.FAMILIES.items()}
    for number, add in assignment.FAMILIES.items():
        assert add.__doc__.startswith(f"({number})")
    program = assignment.build(replace(INSTANCE, one_mode_per_stage=True), 2)
    assert {family.name for family in program.rows} == set(documented.values())


def vector(plan: tuple[Stage, ...], instance: object, program: object) -> np.ndarray:
    """A plan as values of all columns, each y as small as the plan allows."""
    from ilp_parallel.problems.piper import in_flight

    layout = assignment.Layout(instance, 2)
    values = np.zeros(program.column_count, dtype=np.int64)
    starts = {family.name: family.start for family in program.columns}
    width = len(layout.configurations)
    for i, (stage, y) in enumerate(zip(plan, in_flight(plan), strict=True)):
        g = layout.configurations.index((stage.tensor_degree, stage.data_degree, y))
        values[starts["z"] + i * width + g] = 1
        for v, k in zip(stage.layers, stage.modes, strict=True):
            values[layout.cells.index(assignment.Cell(v, i, g, k))] = 1
    for family, incident in (("entering", instance.in_edges()), ("leaving", instance.out_edges())):
        place = starts[family]
        for number, cell in enumerate(layout.cells):
            for edge in incident[cell.layer]:
                other = instance.edges[edge][family == "leaving"]
                both = any(values[n] for n in layout.of(other, cell.slot))
                values[place] = values[number] and not both
                place += 1
    values[starts["T"]] = 10**6
    return values


def broken_rows(plan: tuple[Stage, ...], instance: object) -> set[str]:
    program = assignment.build(instance, 2)
    rows = program.violated_rows(vector(plan, instance, program))
    return {
        family.name
        for family in program.rows
        for row in rows
        if family.start <= row < family.start + family.size
    }


@pytest.mark.parametrize("plan", [TOGETHER, APART])
def test_good_plans_break_nothing(plan: tuple[Stage, ...]) -> None:
    assert broken_rows(plan, INSTANCE) == set()


RULES = {
    "edges_lead_forwards": "order",
    "devices": "devices",
    "replicas": "replicas",
    "memory": "memory",
    "every_layer_in_one_stage": "one_place",
}


@pytest.mark.parametrize("rule", RULES)
def test_bad_plans_break_their_family(rule: str) -> None:
    """Devices and replicas have no configuration beyond them: their rows are tightened instead."""
    instance, plan = BROKEN[rule]
    if rule in ("devices", "replicas"):
        program = assignment.build(INSTANCE, 2)
        row = next(family.start for family in program.rows if family.name == rule)
        used = sum(s.data_degree * (s.tensor_degree if rule == "devices" else 1) for s in plan)
        upper = program.row_upper.copy()
        upper[row] = used - 1
        values = vector(plan, INSTANCE, program)
        assert replace(program, row_upper=upper).violated_rows(values).tolist() == [row]
        return
    assert RULES[rule] in broken_rows(plan, instance)


def test_refuses_numbers_that_solvers_cannot_keep_apart() -> None:
    huge = replace(INSTANCE, memory=2**51)
    assert assignment.refuses(huge).startswith("NUMBERS_TOO_LARGE")
    assert assignment.refuses(INSTANCE) is None


@pytest.mark.parametrize("solver", ["highs", "cp-sat"])
def test_optimum_by_hand(solver: str) -> None:
    outcome = get_solver(solver)(assignment.build(INSTANCE, 2), SolveOptions())
    plan = assignment.decode(INSTANCE, outcome.values, 2)
    scale = assignment.Layout(INSTANCE, 1).scale
    assert plan == (Stage((0, 1), 4, 1, (0, 0)),)
    assert outcome.objective == (10 + 20 + 3 * 2) * scale // 4
