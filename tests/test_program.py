from __future__ import annotations

import numpy as np
import pytest

from ilp_parallel.program import INFINITY, ProgramBuilder


def test_repeated_places_add_up_and_zeros_go():
    builder = ProgramBuilder("p")
    x = builder.add_columns("x", (3,))
    rows = builder.add_rows("r", (2,), upper=9)
    builder.add_entries(rows[:, None], x[None, :], np.array([[1, 2, 3], [4, 5, 6]]))
    builder.add_entries(rows[0], x[1], -2)  # cancels
    builder.add_entries(rows[1], x, 10)
    program = builder.build()
    assert program.row_start.tolist() == [0, 2, 5]
    assert program.row_columns.tolist() == [0, 2, 0, 1, 2]
    assert program.row_values.tolist() == [1, 3, 14, 15, 16]


def test_families_number_and_name_their_entries():
    builder = ProgramBuilder("p")
    single = builder.add_columns("top", lower=-INFINITY, upper=INFINITY, cost=4, implied=True)
    x = builder.add_columns("x", (2, 2), cost=np.array([[1, 2], [3, 4]]))
    y = builder.add_columns("y", (2, 1), upper=7, axes=(("a", "b"), ("only",)))
    program = builder.build()
    assert int(single) == 0
    assert x.tolist() == [[1, 2], [3, 4]]
    assert y.tolist() == [[5], [6]]
    labels = [f.label(i) for f in program.columns for i in range(f.start, f.start + f.size)]
    assert labels == ["top", "x[0,0]", "x[0,1]", "x[1,0]", "x[1,1]", "y[a,only]", "y[b,only]"]
    assert program.cost.tolist() == [4, 1, 2, 3, 4, 0, 0]
    assert program.upper.tolist() == [INFINITY, 1, 1, 1, 1, 7, 7]
    assert program.implied.tolist() == [True] + 6 * [False]


def test_empty_rows_have_activity_zero_wherever_they_stand():
    builder = ProgramBuilder("p")
    x = builder.add_columns("x", (2,), upper=9)
    rows = builder.add_rows("r", (5,), lower=np.array([0, 0, 1, 0, 0]))
    builder.add_entries(rows[1], x, np.array([1, 1]))
    builder.add_entries(rows[3], x[0], -1)
    program = builder.build()
    values = np.array([2, 3])
    assert program.activities(values).tolist() == [0, 5, 0, -2, 0]
    assert program.violated_rows(values).tolist() == [2, 3]


@pytest.mark.parametrize(("columns", "rows"), [(0, 0), (0, 2), (3, 0)])
def test_nothing_to_multiply(columns, rows):
    builder = ProgramBuilder("p")
    builder.add_columns("x", (columns,))
    builder.add_rows("r", (rows,), upper=-1)
    program = builder.build()
    values = np.zeros(columns, dtype=np.int64)
    assert program.activities(values).tolist() == [0] * rows
    assert len(program.violated_rows(values)) == rows


def test_activities_beyond_64_bits_never_wrap_around():
    builder = ProgramBuilder("p")
    x = builder.add_columns("x", (2,), upper=2**40)
    row = builder.add_rows("r", upper=5)
    builder.add_entries(row, x, np.array([2**30, -(2**30)]))
    program = builder.build()
    assert program.activities(np.array([2**40, 2**40])).tolist() == [0]
    with pytest.raises(OverflowError):
        program.violated_rows(np.array([2**40, 0]))


def test_objective_is_exact_and_has_the_offset():
    builder = ProgramBuilder("p")
    builder.offset = 1
    builder.add_columns("x", (2,), upper=2**40, cost=2**60)
    program = builder.build()
    assert program.objective(np.array([2**40, 2**40])) == 1 + 2**101


def test_bounds():
    builder = ProgramBuilder("p")
    builder.add_columns("x", (2,), lower=-1, upper=2)
    program = builder.build()
    assert program.within_bounds(np.array([-1, 2]))
    assert not program.within_bounds(np.array([-2, 0]))
    assert not program.within_bounds(np.array([0, 3]))
