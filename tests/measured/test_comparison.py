"""Statistics against double loops and numbers done by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ilp_parallel.measured.comparison import (
    APART,
    Errors,
    Pick,
    errors_of,
    kendall,
    mean,
    median,
    percentile,
    pick,
    random_regret,
    spread,
)

# few distinct values, so that ties and pairs near the filter's edge are common
TIMES = st.one_of(
    st.sampled_from([1.0, 1.04, 1.05, 1.06, 1.2, 2.0]), st.floats(0.01, 100.0, allow_nan=False)
)


def columns(*elements: st.SearchStrategy[object], least: int = 0) -> st.SearchStrategy[list]:
    """Rows of one value per column."""
    return st.lists(st.tuples(*elements), min_size=least, max_size=12)


def kendall_by_pairs(predicted: list[float], measured: list[float], apart: float) -> float | None:
    right = wrong = pairs = 0
    for i in range(len(measured)):
        for j in range(i):
            low, high = sorted((measured[i], measured[j]))
            if not high > (1 + apart) * low:
                continue
            pairs += 1
            slower = i if measured[i] > measured[j] else j
            faster = i + j - slower
            right += predicted[slower] > predicted[faster]
            wrong += predicted[slower] < predicted[faster]
    return (right - wrong) / pairs if pairs else None


@given(rows=columns(TIMES, TIMES), apart=st.sampled_from([0.0, APART, 0.5]))
def test_kendall_equals_a_double_loop(rows: list[tuple[float, float]], apart: float) -> None:
    predicted, measured = [p for p, _ in rows], [m for _, m in rows]
    found = kendall(np.array(predicted), np.array(measured), apart)
    assert found == kendall_by_pairs(predicted, measured, apart)


def test_kendall_by_hand() -> None:
    measured = np.array([1.0, 1.04, 2.0, 4.0])
    assert kendall(measured, measured) == 1
    assert kendall(-measured, measured) == -1
    # the pair (1.0, 1.04) is within 5 %: its order does not matter
    assert kendall(np.array([2.0, 1.0, 3.0, 4.0]), measured) == 1
    # of the five pairs left, (2.0, 4.0) is wrong, or tied
    assert kendall(np.array([1.0, 1.0, 4.0, 3.0]), measured) == pytest.approx((4 - 1) / 5)
    assert kendall(np.array([1.0, 1.0, 3.0, 3.0]), measured) == pytest.approx(4 / 5)
    assert kendall(np.array([5.0, 6.0]), np.array([1.0, 1.0])) is None
    assert kendall(np.array([]), np.array([])) is None


OPTION = (st.integers(0, 3), st.booleans(), st.one_of(TIMES, st.just(math.inf)))


@given(rows=columns(*OPTION, least=1), lucky=st.booleans(), some=TIMES)
def test_pick_equals_a_loop(rows: list[tuple[int, bool, float]], lucky: bool, some: float) -> None:
    rows = [*rows, (9, False, some)]  # one at least ran
    best: tuple[int, float] | None = None
    for preference, believed, time in rows:
        key = (preference, time if lucky else -time)
        if believed and (best is None or key < best):
            best = key
    found = pick(
        np.array([p for p, _, _ in rows]),
        np.array([b for _, b, _ in rows]),
        np.array([m for _, _, m in rows]),
        lucky=lucky,
    )
    if best is None:
        assert found == Pick(None, none_fits=True)
    elif math.isinf(best[1]):
        assert found == Pick(None, out_of_memory=True)
    else:
        assert found.regret == abs(best[1]) / min(m for _, _, m in rows) - 1
        assert not found.out_of_memory
        assert not found.none_fits


@given(rows=columns(*OPTION, least=1), some=TIMES, seed=st.integers(0, 99))
def test_pick_does_not_depend_on_the_order(
    rows: list[tuple[int, bool, float]], some: float, seed: int
) -> None:
    rows = [*rows, (9, False, some)]
    columns_of = [np.array(column) for column in zip(*rows, strict=True)]
    order = np.random.default_rng(seed).permutation(len(rows))
    for lucky in (True, False):
        shuffled = [column[order] for column in columns_of]
        assert pick(*columns_of, lucky=lucky) == pick(*shuffled, lucky=lucky)


@given(times=st.lists(TIMES, min_size=1, max_size=9), lost=st.integers(0, 3))
def test_random_regret_is_the_mean_regret_of_what_ran(times: list[float], lost: int) -> None:
    expected = sum(t / min(times) - 1 for t in times) / len(times)
    measured = np.array([*times, *[math.inf] * lost])
    assert random_regret(measured) == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_errors_by_hand() -> None:
    predicted, measured = np.array([9.0, 22.0, 30.0, 50.0]), np.array([10.0, 20.0, 30.0, 40.0])
    # signed: -0.1, 0.1, 0, 0.25; sizes sorted: 0, 0.1, 0.1, 0.25; p90 at place 2.7
    found = errors_of(predicted, measured)
    assert found is not None
    assert found.n == 4
    assert found.median_error == pytest.approx(0.1)
    assert found.p90_error == pytest.approx(0.1 + 0.7 * 0.15)
    assert found.bias == pytest.approx(0.05)
    one = errors_of(np.array([3.0]), np.array([2.0]))
    assert one == Errors(n=1, median_error=0.5, p90_error=0.5, bias=0.5)
    assert errors_of(np.array([]), np.array([])) is None


def test_summaries_of_few_numbers() -> None:
    assert (median([]), mean([]), percentile([], 90)) == (None, None, None)
    assert (median([3.0]), mean([3.0]), percentile([3.0], 90)) == (3.0, 3.0, 3.0)
    assert percentile([0.0, 10.0], 90) == 9.0
    assert mean([1.0, 2.0, 6.0]) == 3.0
    assert spread([2.0, 1.0, 1.5]) == 1.0
    assert spread([7.0]) == 0.0
