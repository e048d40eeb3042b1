"""Cuts, scaling, and the loop of rounds, the latter with made-up solvers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ilp_parallel.program import INFINITY, Program, ProgramBuilder
from ilp_parallel.solvers.cuts import with_cut
from ilp_parallel.solvers.exact import Request, Round, closes, solve_exactly
from ilp_parallel.solvers.outcome import Features, SolveOptions
from ilp_parallel.solvers.scaling import SCALED_MAXIMUM, scale
from tests.solvers.programs import dense, programs

ALL = Features(True, True, True, True, True, exact_integers=False)


def box(program: Program, size: int) -> list[tuple[int, ...]]:
    return list(
        itertools.product(*(range(program.lower[i], program.upper[i] + 1) for i in range(size)))
    )


def completes(cut: Program, old: Program, point: tuple[int, ...]) -> bool:
    """Whether some indicator values satisfy the new rows at a point of the old columns."""
    extra = cut.column_count - old.column_count
    matrix = dense(cut)[old.row_count :]
    return any(
        np.all(matrix @ np.array(point + z) <= cut.row_upper[old.row_count :])
        for z in itertools.product((0, 1), repeat=extra)
    )


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_cut_excludes_its_point_and_no_point_that_keeps_the_row(seed):
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 4))
    builder = ProgramBuilder("one row")
    lower = rng.integers(-2, 1, size)
    x = builder.add_columns("x", (size,), lower=lower, upper=lower + rng.integers(1, 4, size))
    low = int(rng.integers(-10, 5))
    row = builder.add_rows("r", lower=low, upper=low + int(rng.integers(0, 8)))
    builder.add_entries(row, x, rng.integers(-5, 6, size))
    program = builder.build()
    points = box(program, size)
    broken = [p for p in points if program.violated_rows(np.array(p)).size]
    if not broken:
        return
    point = broken[int(rng.integers(len(broken)))]
    cut = with_cut(program, 0, np.array(point))
    assert cut is not None
    assert not completes(cut, program, point)
    assert all(completes(cut, program, p) for p in points if p not in broken)


def test_no_cut_without_a_bound():
    builder = ProgramBuilder("unbounded")
    x = builder.add_columns("x", upper=INFINITY)
    builder.add_entries(builder.add_rows("r", upper=5), x, 1)
    assert with_cut(builder.build(), 0, np.array([6])) is None


@given(program=programs)
def test_scaling_changes_nothing_but_units(program):
    large = ProgramBuilder("large")
    x = large.add_columns("x", (2,), lower=-INFINITY, upper=7, cost=np.array([3, 2**40 + 1]))
    row = large.add_rows("r", lower=-INFINITY, upper=10**11 + 1)
    large.add_entries(row, x, np.array([10**11 + 1, -3]))
    for each in (program, large.build()):
        scaled = scale(each)
        factors = np.repeat(1.0, len(each.row_values))
        rows = np.repeat(np.arange(each.row_count), np.diff(each.row_start))
        factors = scaled.row_values / each.row_values
        assert np.all(np.log2(factors) % 1 == 0)
        assert np.abs(scaled.row_values).max(initial=0) <= SCALED_MAXIMUM
        finite = each.row_upper[rows] < INFINITY
        expected = each.row_upper[rows] * factors
        assert np.array_equal(scaled.row_upper[rows][finite], expected[finite])
        assert np.all(np.isinf(scaled.row_upper[rows][~finite]))
        assert scaled.unscaled(float(scaled.cost @ np.ones(each.column_count))) == pytest.approx(
            each.objective(np.ones(each.column_count, dtype=np.int64)), rel=1e-15
        )


@pytest.mark.parametrize(
    ("bound", "objective", "expected"),
    [
        (10.0, 10, True),
        (9.0 + 1e-7, 10, False),  # noise above 9 proves 9, not 10
        (9.2, 10, True),  # an integer above 9.2 is at least 10
        (9.0, 10, False),
        (None, 0, False),
        (float("-inf"), 0, False),
        (float("nan"), 0, False),
        (1e9 - 0.4, 10**9, True),
        (1e9 - 0.6, 10**9, False),  # half a unit is granted to a bound that large
    ],
)
def test_closing_the_gap(bound, objective, expected):
    assert closes(bound, objective) is expected


def knapsack() -> Program:
    builder = ProgramBuilder("pair")
    x = builder.add_columns("x", (2,), cost=-1)
    builder.add_entries(builder.add_rows("r", upper=5), x, 3)
    return builder.build()


def answers(*rounds: Round):
    """A made-up solver, and the requests it got."""
    requests: list[tuple[Program, Request]] = []

    def run(program: Program, request: Request) -> Round:
        requests.append((program, request))
        return rounds[len(requests) - 1]

    return run, requests


def said(claim, point=None, bound=None) -> Round:
    return Round(claim, None if point is None else np.array(point, dtype=float), bound, 0.0, 0.0)


def solve(run, program=None, **options):
    return solve_exactly("fake", "0", ALL, run, program or knapsack(), SolveOptions(**options))


def test_a_broken_row_is_cut_and_the_next_round_is_precise():
    run, requests = answers(said("optimal", [1, 1], -2.0), said("optimal", [1, 0], -1.0))
    outcome = solve(run)
    # The first bound, -2, was claimed for a point that is infeasible; the second one closes.
    assert (outcome.status, outcome.objective, outcome.cuts_added) == ("optimal", -1, 1)
    assert [request.precise for _, request in requests] == [False, True]
    assert requests[1][0].row_count == requests[0][0].row_count + 1


def test_the_same_point_again_ends_the_search():
    run, _ = answers(said("optimal", [1, 1], -2.0), said("optimal", [1, 1], -2.0))
    outcome = solve(run)
    assert (outcome.status, outcome.termination) == ("unknown", "solver_limit")
    assert (outcome.objective, outcome.bound) == (None, -2.0)


def test_a_claim_that_does_not_close_is_not_optimal():
    run, _ = answers(said("optimal", [1, 0], -2.0), said("optimal", [1, 0], -2.0))
    outcome = solve(run)
    assert (outcome.status, outcome.termination) == ("feasible", "solver_limit")
    assert (outcome.objective, outcome.bound) == (-1, -2.0)


def test_infeasible_is_not_believed_against_a_solution():
    run, _ = answers(said("infeasible"))
    outcome = solve(run, warm_start=np.array([1, 0]))
    assert (outcome.status, outcome.termination) == ("feasible", "solver_limit")


def test_implied_columns_are_solved_for_again():
    builder = ProgramBuilder("peak")
    x = builder.add_columns("x", lower=1, cost=0)
    top = builder.add_columns("top", upper=10**10, cost=1, implied=True)
    row = builder.add_rows("above", upper=0)
    builder.add_entries(row, x, 10**9)
    builder.add_entries(row, top, -1)
    run, requests = answers(
        said("optimal", [1 - 1e-7, 10**9 - 100], 1e9 - 100),
        said("optimal", [1, 10**9], 1e9),
        said("optimal", [1, 10**9], 1e9),
    )
    outcome = solve(run, builder.build())
    assert (outcome.status, outcome.objective, outcome.cuts_added) == ("optimal", 10**9, 0)
    repair = requests[1][0]
    assert repair.lower[0] == repair.upper[0] == 1
    assert not repair.implied.any()
