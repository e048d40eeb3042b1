"""Orders and in-flight tables, against the definitions walked through step by step."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ilp_parallel.problems.pipeline import Schedule
from ilp_parallel.schedules import in_flight_rows, operation_order

Case = tuple[Schedule, int, int, int]  # schedule, stages, chunks, microbatches

single_chunk = st.tuples(
    st.sampled_from(["1f1b", "gpipe"]), st.integers(1, 8), st.just(1), st.integers(1, 20)
)
interleaved = st.tuples(st.integers(1, 6), st.integers(2, 5), st.integers(1, 6)).map(
    lambda drawn: ("interleaved", drawn[0], drawn[1], drawn[0] * drawn[2])
)
cases = st.one_of(single_chunk, interleaved)


def alive_vectors(case: Case, group: int) -> list[tuple[int, ...]]:
    """Microbatches alive per chunk after every operation."""
    order, alive, seen = operation_order(*case, group), [0] * case[2], []
    for backward, chunk in zip(order.backward, order.chunk, strict=True):
        alive[chunk] += -1 if backward else 1
        seen.append(tuple(alive))
    return seen


@given(cases)
def test_every_operation_once_and_no_backward_before_its_forward(case: Case) -> None:
    _, stages, chunks, microbatches = case
    for group in range(stages):
        order = operation_order(*case, group)
        open_pairs: set[tuple[int, int]] = set()
        count: Counter[tuple[bool, int, int]] = Counter()
        for backward, i, c in zip(order.backward, order.microbatch, order.chunk, strict=True):
            count[bool(backward), int(i), int(c)] += 1
            if backward:
                open_pairs.remove((int(i), int(c)))
            else:
                open_pairs.add((int(i), int(c)))
        assert len(count) == 2 * chunks * microbatches == count.total()


@settings(max_examples=300)
@given(cases, st.integers(0, 2**32 - 1))
def test_rows_give_the_largest_amount_alive(case: Case, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for group, rows in enumerate(in_flight_rows(*case)):
        seen = alive_vectors(case, group)
        assert {tuple(row) for row in rows.tolist()} <= set(seen)
        for _ in range(5):
            sizes = rng.integers(0, 50, case[2])
            assert (rows @ sizes).max() == max(np.dot(alive, sizes) for alive in seen)


@given(cases)
def test_no_row_dominates_another(case: Case) -> None:
    for rows in in_flight_rows(*case):
        below = np.all(rows[:, None] <= rows[None, :], axis=2)
        assert np.array_equal(below, np.eye(len(rows), dtype=bool))


@given(interleaved)
def test_interleaved_total_is_megatrons_warm_up_and_one_more(case: Case) -> None:
    _, p, v, m = case
    for s, rows in enumerate(in_flight_rows(*case)):
        assert set(rows.sum(axis=1)) == {min(m * v, 2 * (p - s - 1) + (v - 1) * p + 1)}


def test_single_chunk_rows() -> None:
    assert [rows.tolist() for rows in in_flight_rows("1f1b", 4, 1, 3)] == [
        [[w]] for w in (3, 3, 2, 1)
    ]
    assert [rows.tolist() for rows in in_flight_rows("gpipe", 3, 1, 7)] == [[[7]]] * 3


def test_interleaved_order_written_out() -> None:
    """Two device groups, two chunks, four microbatches: the order drawn in arXiv:2104.04473."""
    order = operation_order("interleaved", 2, 2, 4, 0)
    names = [
        f"{'FB'[int(b)]}{i}.{c}"
        for b, i, c in zip(order.backward, order.microbatch, order.chunk, strict=True)
    ]
    assert " ".join(names) == (
        "F0.0 F1.0 F0.1 F1.1 F2.0 B0.1 F3.0 B1.1 F2.1 B0.0 F3.1 B1.0 B2.1 B3.1 B2.0 B3.0"
    )


@given(interleaved)
def test_many_microbatches_need_no_new_rows(case: Case) -> None:
    schedule, p, v, _ = case
    few, many = in_flight_rows(schedule, p, v, 3 * p), in_flight_rows(schedule, p, v, 1000 * p)
    assert all(a is b for a, b in zip(few, many, strict=True))


def test_shared_tables_are_read_only() -> None:
    with pytest.raises(ValueError, match="read-only"):
        in_flight_rows("interleaved", 2, 2, 4)[0][0, 0] = 9


@pytest.mark.parametrize(
    "case",
    [("interleaved", 4, 2, 6), ("interleaved", 4, 1, 8), ("1f1b", 4, 2, 8), ("1f1b", 0, 1, 1)],
)
def test_impossible_schedules_are_refused(case: Case) -> None:
    with pytest.raises(ValueError, match=r"multiple|chunk|at least"):
        in_flight_rows(*case)
    with pytest.raises(ValueError, match=r"multiple|chunk|at least"):
        operation_order(*case, 0)
