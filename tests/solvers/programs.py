"""Small random integer programs, and their optimum by looking at every point of the box."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import strategies as st

from ilp_parallel.program import INFINITY, Program, ProgramBuilder


def random_program(rng: np.random.Generator) -> Program:
    """Rows of every kind, negative bounds, sometimes infeasible, sometimes a max column."""
    size, rows = int(rng.integers(1, 5)), int(rng.integers(0, 4))
    builder = ProgramBuilder("random")
    builder.offset = int(rng.integers(-5, 6))
    lower = rng.integers(-3, 2, size)
    upper = lower + rng.integers(0, 4, size)
    cost = rng.integers(-9, 10, size)
    x = builder.add_columns("x", (size,), lower=lower, upper=upper, cost=cost)
    matrix = rng.integers(-9, 10, (rows, size))
    activity = matrix @ rng.integers(lower, upper + 1)
    slack = rng.integers(-1, 5, rows)
    kind = rng.integers(0, 4, rows)
    row_lower = np.select([kind == 0, kind == 1], [activity, activity - slack], -INFINITY)
    row_upper = np.select([kind == 0, kind == 2], [activity, INFINITY], activity + slack)
    r = builder.add_rows("r", (rows,), lower=row_lower, upper=row_upper)
    builder.add_entries(r[:, None], x[None, :], matrix)
    if rng.random() < 0.4:
        top = builder.add_columns("top", lower=-200, upper=200, cost=2, implied=True)
        above = builder.add_rows("above", (2,), upper=0)
        builder.add_entries(above[:, None], x[None, :], rng.integers(-9, 10, (2, size)))
        builder.add_entries(above, int(top), -1)
    return builder.build()


programs = st.integers(0, 2**32 - 1).map(lambda seed: random_program(np.random.default_rng(seed)))


def dense(program: Program) -> np.ndarray:
    matrix = np.zeros((program.row_count, program.column_count), dtype=np.int64)
    for row in range(program.row_count):
        place = slice(program.row_start[row], program.row_start[row + 1])
        matrix[row, program.row_columns[place]] = program.row_values[place]
    return matrix


def enumerate_optimum(program: Program) -> int | None:
    """Optimum over the box, with its own matrix arithmetic; None if infeasible."""
    ranges = [range(low, high + 1) for low, high in zip(program.lower, program.upper, strict=True)]
    points = np.array(list(itertools.product(*ranges)), dtype=np.int64)
    activity = points @ dense(program).T
    feasible = np.all((activity >= program.row_lower) & (activity <= program.row_upper), axis=1)
    objective = points @ program.cost + program.offset
    return int(objective[feasible].min()) if feasible.any() else None


def knapsack_near_limit(seed: int, magnitude: int, *, peak: bool) -> Program:
    """Eight items and a memory limit one unit below the use of an attractive choice.

    ``peak`` adds an implied column above three weighted sums.
    """
    rng = np.random.default_rng(seed)
    builder = ProgramBuilder("near limit")
    use = rng.integers(magnitude // 2, magnitude, 8)
    choice = rng.integers(0, 2, 8)
    choice[0] = 1
    cost = -rng.integers(1, 10, 8) - 5 * choice
    x = builder.add_columns("x", (8,), cost=cost)
    memory = builder.add_rows("memory", upper=int(use @ choice) - 1)
    builder.add_entries(memory, x, use)
    if peak:
        top = builder.add_columns("top", upper=40, cost=1, implied=True)
        above = builder.add_rows("above", (3,), upper=0)
        builder.add_entries(above[:, None], x[None, :], rng.integers(0, 5, (3, 8)))
        builder.add_entries(above, int(top), -1)
    return builder.build()


def market_split(*, slack: bool) -> Program:
    """Five equations over forty 0/1 columns: far out of reach of any solver here.

    Without ``slack`` no solution is found in the time a test has; with it any point is one, and
    the objective is the distance from the equations.
    """
    rng = np.random.default_rng(1)
    builder = ProgramBuilder("market split")
    matrix = rng.integers(0, 100, (5, 40))
    half = matrix.sum(axis=1) // 2
    x = builder.add_columns("x", (40,))
    rows = builder.add_rows("share", (5,), lower=half, upper=half)
    builder.add_entries(rows[:, None], x[None, :], matrix)
    if slack:
        gap = builder.add_columns("gap", (5, 2), upper=10**4, cost=1, implied=True)
        builder.add_entries(rows, gap[:, 0], 1)
        builder.add_entries(rows, gap[:, 1], -1)
    return builder.build()
