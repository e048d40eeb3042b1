"""The study of formula against simulation: its bounds hold, its formula is the objective."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ilp_parallel.problems.pipeline import evaluate
from ilp_parallel.simulate import stage_times
from ilp_parallel.simulation.study import formula_makespan, study, study_document, study_text
from tests.test_simulate import random_plan


@given(st.integers(0, 2**32 - 1))
def test_formula_is_the_objective_without_tails(seed: int) -> None:
    instance, solution = random_plan(np.random.default_rng(seed))
    if instance.schedule == "gpipe":
        return
    found = evaluate(instance, solution)
    formula = formula_makespan(stage_times(instance, solution), instance.microbatches)
    assert math.isclose(
        formula * instance.chunks + instance.chunks * max(found.tail_ticks), found.numerator
    )


def test_study_is_reproducible_and_its_bounds_hold() -> None:
    found = study(2, 7)
    assert found == study(2, 7) != study(2, 8)
    assert len(found) == 24
    for line in found:
        assert 0 <= line.own_order[0] <= line.own_order[1] <= line.own_order[2] < 1
        assert line.own_order[2] <= line.any_order[2]
        if line.schedule == "1f1b" and line.delay == 0:
            assert line.formula[0] >= -1e-12
    lines = study_document(found, 7)["lines"]
    assert isinstance(lines, list)
    assert lines[0]["plans"] == 2
    assert "LB3" in study_text(found, "table")
