from __future__ import annotations

import highspy
import numpy as np
import pytest
from hypothesis import given, settings

from ilp_parallel.lp_text import write_lp
from ilp_parallel.program import INFINITY, Program, ProgramBuilder
from tests.solvers.programs import enumerate_optimum, programs


def read_back(program: Program, folder) -> highspy.Highs:
    path = folder / "program.lp"
    path.write_text(write_lp(program))
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    assert solver.readModel(str(path)) == highspy.HighsStatus.kOk
    return solver


@settings(max_examples=60, deadline=None)
@given(programs)
def test_same_optimum_when_read_by_another_program(tmp_path_factory, program):
    solver = read_back(program, tmp_path_factory.mktemp("lp"))
    assert solver.getNumCol() == program.column_count
    solver.setOptionValue("mip_rel_gap", 0.0)
    solver.run()
    optimum = enumerate_optimum(program)
    if optimum is None:
        assert solver.getModelStatus() == highspy.HighsModelStatus.kInfeasible
    else:
        assert solver.getObjectiveValue() == pytest.approx(optimum, abs=1e-6)


def test_names_bounds_and_constants_survive(tmp_path):
    builder = ProgramBuilder("names")
    builder.offset = -7
    x = builder.add_columns("x", (1, 2), axes=(("first",), ("zero1/core+mlp", "zero1/core-mlp")))
    free = builder.add_columns("free", lower=-INFINITY, upper=INFINITY, cost=2)
    e1 = builder.add_columns("e1", upper=9, cost=-1)
    row = builder.add_rows("both", lower=-4, upper=6)
    builder.add_entries(row, np.array([*x.ravel(), int(free), int(e1)]), np.array([1, 2, 3, 1]))
    builder.add_rows("nothing", lower=0, upper=5)
    program = builder.build()
    text = write_lp(program)
    for name in ("x(first,zero1_core_mlp)", "x(first,zero1_core_mlp)~2", "_free", "_e1"):
        assert f" {name}\n" in text
    solver = read_back(program, tmp_path)
    solver.run()
    assert solver.getObjectiveValue() == pytest.approx(_optimum_by_hand(), abs=1e-6)


def _optimum_by_hand() -> int:
    """Minimum of 2 free - e1 - 7 over a box that holds an optimum."""
    return min(
        2 * free - e1 - 7
        for free in range(-10, 10)
        for e1 in range(10)
        for a in (0, 1)
        for b in (0, 1)
        if -4 <= a + 2 * b + 3 * free + e1 <= 6
    )
