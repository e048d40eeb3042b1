"""Downsets are exactly the sets closed under successors."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ilp_parallel.errors import InputError
from ilp_parallel.problems import downsets as module
from ilp_parallel.problems.downsets import downsets, topological_order

PAIRS = [(u, v) for u in range(6) for v in range(u + 1, 6)]


@settings(max_examples=60, deadline=None)
@given(st.sets(st.sampled_from(PAIRS)), st.permutations(range(6)))
def test_all_closed_sets_and_no_other(pairs: set[tuple[int, int]], names: list[int]) -> None:
    edges = [(names[u], names[v]) for u, v in pairs]
    closed = [
        mask
        for size in range(7)
        for chosen in itertools.combinations(range(6), size)
        for mask in [sum(1 << v for v in chosen)]
        if all(mask >> v & 1 for u, v in edges if mask >> u & 1)
    ]
    found = downsets(6, edges)
    assert sorted(found) == sorted(closed)
    sizes = [mask.bit_count() for mask in found]
    assert sizes == sorted(sizes)


def test_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_DOWNSETS", 31)
    with pytest.raises(InputError, match="TOO_MANY_DOWNSETS"):
        downsets(5, [])


@settings(max_examples=40, deadline=None)
@given(st.sets(st.sampled_from(PAIRS)), st.permutations(range(6)))
def test_order_leads_every_edge_forwards(pairs: set[tuple[int, int]], names: list[int]) -> None:
    edges = [(names[u], names[v]) for u, v in sorted(pairs)]
    order = topological_order(6, edges)
    assert order is not None
    assert sorted(order) == list(range(6))
    assert all(order.index(u) < order.index(v) for u, v in edges)


def test_a_cycle_has_no_order() -> None:
    assert topological_order(3, [(0, 1), (1, 2), (2, 1)]) is None
