"""Programs of schedules: their optimum is that of enumeration, their relaxation is below it."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings

from formulations.schedule import big_m, periodic, time_indexed
from ilp_parallel.problems.schedule import evaluate, replay
from ilp_parallel.scheduling.bounds import lower_bounds
from ilp_parallel.scheduling.placements import StageNumbers, instance_of, with_offload
from ilp_parallel.solvers.cpsat import CpSatSolver
from ilp_parallel.solvers.highs import HighsSolver
from ilp_parallel.solvers.outcome import SolveOptions
from tests.scheduling.instances import best_by_enumeration, instances

if TYPE_CHECKING:
    from types import ModuleType

    from ilp_parallel.problems.schedule import ScheduleInstance

SMALL = instance_of(StageNumbers(2, 3, 1, 1), 2, 3, 4)


@settings(max_examples=25, deadline=None)
@given(instances(((2, 2), (1, 3))))
def test_optimum_equals_enumeration(instance: ScheduleInstance) -> None:
    if big_m.refuses(instance) is not None:
        return
    best = best_by_enumeration(instance)
    horizon = 60 if best is None else best + 2
    for module in (big_m, time_indexed):
        program = module.build(instance, horizon)
        outcome = CpSatSolver()(program, SolveOptions())
        assert outcome.objective == best
        if outcome.values is not None:
            found = evaluate(instance, module.decode(instance, outcome.values))
            assert found.feasible
            assert found.makespan_ticks == best
            relaxed = HighsSolver().relaxation(program)
            assert relaxed is not None
            assert relaxed <= best + 1e-6


def test_time_indexed_relaxation_is_the_stronger_one() -> None:
    programs = (big_m.build(SMALL, 40), time_indexed.build(SMALL, 40))
    weak, strong = (HighsSolver().relaxation(program) for program in programs)
    assert weak is not None
    assert strong is not None
    assert weak < strong


@pytest.mark.parametrize("capacity", [2, 3, 4, 6, 12])
@pytest.mark.parametrize("weight", [None, 8])
def test_timetables_repeat_and_keep_memory(capacity: int, weight: int | None) -> None:
    """For any number of microbatches, and never below the bounds."""
    for count in (1, 2, 7, 20):
        instance = instance_of(StageNumbers(10, 11, weight, 1), 3, count, capacity)
        least = int(instance.durations().sum(axis=0).max())
        for period in range(least, 8 * least):
            outcome = CpSatSolver()(periodic.build(instance, period), SolveOptions())
            if outcome.values is not None:
                break
        assert outcome.values is not None
        orders = periodic.decode(instance, outcome.values, period)
        found = evaluate(instance, replay(instance, orders))
        assert found.feasible
        assert found.makespan_ticks is not None
        assert found.makespan_ticks >= lower_bounds(instance)[0].ticks


@pytest.mark.parametrize(
    ("module", "family", "breaking"),
    [
        (big_m, "data", {"s": -1}),
        (big_m, "makespan", {"C": -1}),
        (time_indexed, "makespan", {"C": -1}),
    ],
)
def test_rows_hold_at_the_optimum_and_break_when_it_is_moved(
    module: ModuleType, family: str, breaking: dict[str, int]
) -> None:
    program = module.build(SMALL, 40)
    values = CpSatSolver()(program, SolveOptions()).values
    assert values is not None
    assert program.violated_rows(values).size == 0
    ((column, change),) = breaking.items()
    start, size = next((f.start, f.size) for f in program.columns if f.name == column)
    moved = values.copy()
    moved[start + size - 1] += 100 * change
    rows = next(f for f in program.rows if f.name == family)
    broken = program.violated_rows(moved)
    assert np.any((broken >= rows.start) & (broken < rows.start + rows.size))


def test_what_is_not_modelled_is_refused() -> None:
    one = np.ones(2, dtype=np.int64)
    offered = with_offload(SMALL, one, one, one)
    folded = instance_of(StageNumbers(1, 1, 1), 2, 2, 9, "v")
    rising = instance_of(StageNumbers(1, 1, 1, 0, 1, 1, -2), 2, 2, 9)
    assert (big_m.refuses(SMALL), periodic.refuses(SMALL)) == (None, None)
    assert (big_m.refuses(offered) or "").startswith("CHOICES_NOT_MODELLED: ")
    assert (big_m.refuses(rising) or "").startswith("MEMORY_RISES: ")
    assert (periodic.refuses(folded) or "").startswith("ONE_STAGE_PER_DEVICE: ")


@pytest.mark.parametrize("module", [big_m, periodic])
def test_every_numbered_family_names_a_function(module: ModuleType) -> None:
    tree = ast.parse(Path(module.__file__ or "").read_text(encoding="utf-8"))
    docs = [ast.get_docstring(n) or "" for n in tree.body if isinstance(n, ast.FunctionDef)]
    numbered = [line for line in (module.__doc__ or "").splitlines() if line.startswith("(")]
    for line in numbered:
        assert any(doc.startswith(line.split(")")[0] + ")") for doc in docs), line
