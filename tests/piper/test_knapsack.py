"""The exact choice of modes equals enumeration; the greedy one never beats it."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from ilp_parallel.piper.knapsack import cheapest_choice, greedy_choice

options = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=3)


@settings(max_examples=300, deadline=None)
@given(st.lists(options, min_size=1, max_size=6), st.integers(0, 90))
def test_cheapest(layers: list[list[tuple[int, int]]], limit: int) -> None:
    costs = [
        sum(cost for cost, _ in chosen)
        for chosen in itertools.product(*layers)
        if sum(memory for _, memory in chosen) <= limit
    ]
    found = cheapest_choice(layers, limit)
    published = greedy_choice(layers, limit)
    assert (found is None) == (published is None) == (not costs)
    if found is None or published is None:
        return
    assert found.cost == min(costs) <= published.cost
    for choice in (found, published):
        chosen = [layers[v][k] for v, k in enumerate(choice.picks)]
        assert sum(cost for cost, _ in chosen) == choice.cost
        assert sum(memory for _, memory in chosen) <= limit


def test_greedy_stops_short() -> None:
    """It swaps the layer with the better ratio first and never takes the swap back."""
    layers = [[(0, 10), (1, 5)], [(0, 20), (3, 10)]]
    assert greedy_choice(layers, 20).cost == 4
    assert cheapest_choice(layers, 20).cost == 3


def test_large_numbers_stay_exact() -> None:
    unit = 10**40
    layers = [[(0, 2), (unit, 1)], [(0, 2), (unit - 1, 1)]]
    assert cheapest_choice(layers, 3).cost == unit - 1
