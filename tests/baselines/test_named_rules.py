"""Each named heuristic's own rule, on numbers small enough to check by hand or by enumeration."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ilp_parallel.baselines.named.alpa import cheapest_partition
from ilp_parallel.baselines.named.galvatron import divide_evenly, fewest_ticks
from ilp_parallel.baselines.named.greedy import repair
from ilp_parallel.baselines.named.merak import recomputed_layers
from ilp_parallel.baselines.named.piper import fewest_recomputed, least_bottleneck
from ilp_parallel.baselines.named.rannc import balanced_stages, stage_numbers
from ilp_parallel.baselines.named.sampling import accepted
from ilp_parallel.baselines.named.workbench import Tables, even_sizes
from ilp_parallel.costs.model import CostModel
from ilp_parallel.problems.pipeline import PipelineInstance
from tests.small_jobs import JOB, MODEL, NODE


def instance(
    stages: int = 2,
    layers: int = 4,
    forward: tuple[int, ...] = (1, 1),
    backward: tuple[int, ...] = (2, 3),
    activation: tuple[int, ...] = (4, 1),
    transient: tuple[int, ...] = (0, 0),
    capacity: int = 100,
    ends: tuple[int, int] = (0, 0),
    cut: int = 0,
    microbatches: int = 4,
) -> PipelineInstance:
    """One class of layers; one byte of states a layer; the ends take forward time."""
    zeros = np.zeros(stages, dtype=np.int64)
    fixed = zeros.copy()
    fixed[0] += ends[0]
    fixed[-1] += ends[1]

    def row(values: tuple[int, ...]) -> np.ndarray:
        return np.array([values], dtype=np.int64)

    return PipelineInstance(
        stages=stages,
        chunks=1,
        microbatches=microbatches,
        schedule="1f1b",
        layer_class=np.zeros(layers, dtype=np.int64),
        strategy_names=tuple(f"k{k}" for k in range(len(forward))),
        allowed=np.ones((1, len(forward)), dtype=bool),
        forward_ticks=row(forward),
        backward_ticks=row(backward),
        tail_ticks=row((0,) * len(forward)),
        state_bytes=row((1,) * len(forward)),
        activation_bytes=row(activation),
        transient_bytes=row(transient),
        fixed_forward_ticks=fixed,
        fixed_backward_ticks=zeros,
        fixed_tail_ticks=zeros,
        fixed_bytes=zeros,
        cut_ticks=np.full(stages - 1, cut, dtype=np.int64),
        capacity_bytes=np.full(stages, capacity, dtype=np.int64),
        min_layers=np.ones(stages, dtype=np.int64),
        max_layers=np.full(stages, layers - stages + 1, dtype=np.int64),
        in_flight=tuple(np.array([[min(microbatches, stages - s)]]) for s in range(stages)),
    )


def partitions(layers: int, most: list[int]) -> list[tuple[int, ...]]:
    """All sizes of stages that are at least 1, at most ``most``, and hold all layers."""
    return [sizes for sizes in product(*(range(1, n + 1) for n in most)) if sum(sizes) == layers]


# --- Alpa ------------------------------------------------------------------------------------


def test_alpa_by_hand() -> None:
    """(1, 2): 4 + 10 + 2 * 10 = 34. (2, 1): 8 + 6 + 2 * 8 = 30."""
    latencies = [np.array([4, 8]), np.array([6, 10])]
    assert cheapest_partition(latencies, 3, 3) == (30, (2, 1))
    assert cheapest_partition(latencies, 3, 3, cutoff=30) is None
    assert cheapest_partition(latencies, 5, 3) is None  # memory holds four


def test_alpa_gives_early_stages_most_layers_where_costs_are_equal() -> None:
    assert cheapest_partition([np.array([2, 4, 6])] * 3, 5, 1) == (10, (2, 2, 1))
    assert cheapest_partition([np.array([2, 4, 6])] * 3, 5, 2) == (14, (2, 2, 1))


rising = st.lists(st.integers(0, 9), min_size=1, max_size=4).map(lambda x: np.cumsum(x) + 1)


@given(latencies=st.lists(rising, min_size=1, max_size=4), m=st.integers(1, 6), data=st.data())
def test_alpa_finds_the_least_of_its_own_cost(
    latencies: list[np.ndarray], m: int, data: st.DataObject
) -> None:
    layers = data.draw(st.integers(len(latencies), 8))
    values = []
    for sizes in partitions(layers, [len(stage) for stage in latencies]):
        times = [int(stage[n - 1]) for stage, n in zip(latencies, sizes, strict=True)]
        values.append(sum(times) + (m - 1) * max(times))
    found = cheapest_partition(latencies, layers, m)
    assert (None if found is None else found[0]) == min(values, default=None)


# --- Galvatron -------------------------------------------------------------------------------


def test_galvatron_by_hand() -> None:
    """Six buckets: one fast layer of 4 and two slow ones of 1 take 3 + 5 + 5 ticks."""
    found = fewest_ticks((3, 5), (4, 1), 3, 6)
    assert found is not None
    assert found[0] == 13
    assert sorted(found[1]) == [0, 1, 1]
    assert fewest_ticks((3, 5), (4, 1), 3, 2) is None
    assert fewest_ticks((3, 5), (4, 1), 3, 12) == (9, [0, 0, 0])


def test_galvatron_gives_the_last_stage_the_rest() -> None:
    assert divide_evenly(10, 4) == [2, 2, 2, 4]
    assert divide_evenly(8, 4) == [2, 2, 2, 2]


@given(
    menu=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5)), min_size=1, max_size=3),
    layers=st.integers(1, 4),
    room=st.integers(-1, 12),
)
def test_galvatron_is_exact_within_its_buckets(
    menu: list[tuple[int, int]], layers: int, room: int
) -> None:
    values = [
        sum(time for time, _ in chosen)
        for chosen in product(menu, repeat=layers)
        if sum(needed for _, needed in chosen) <= room
    ]
    found = fewest_ticks([t for t, _ in menu], [b for _, b in menu], layers, room)
    assert (None if found is None else found[0]) == min(values, default=None)
    if found is not None:
        assert sum(menu[k][0] for k in found[1]) == found[0]
        assert sum(menu[k][1] for k in found[1]) <= room


# --- Piper -----------------------------------------------------------------------------------


def test_piper_by_hand() -> None:
    """Sizes (1, 2) give max(4, 10), sizes (2, 1) give max(8, 6)."""
    assert least_bottleneck([np.array([4, 8]), np.array([6, 10])], 3) == (8, (2, 1))


@given(stages=st.lists(rising, min_size=1, max_size=4), data=st.data())
def test_piper_finds_the_least_bottleneck(stages: list[np.ndarray], data: st.DataObject) -> None:
    layers = data.draw(st.integers(len(stages), 8))
    values = [
        max(int(stage[n - 1]) for stage, n in zip(stages, sizes, strict=True))
        for sizes in partitions(layers, [len(stage) for stage in stages])
    ]
    found = least_bottleneck(stages, layers)
    assert (None if found is None else found[0]) == min(values, default=None)


def test_piper_recomputes_as_few_layers_as_make_it_fit() -> None:
    """Two in flight on the first stage: 1 + 2 * 4 = 9 bytes plain, 1 + 2 = 3 recomputed."""
    tables = Tables(instance(capacity=20))
    assert fewest_recomputed(tables, (0, 1), 0) == [0, 0, 2, 3]  # 9, 18, 9 + 6 = 15, 12
    assert fewest_recomputed(tables, (0, 1), 1) == [0, 0, 0, 0]  # 5 bytes each
    assert fewest_recomputed(Tables(instance(capacity=8)), (0, 1), 0) == [1, 2]


def test_piper_counts_the_recomputed_layer_once() -> None:
    tables = Tables(instance(capacity=20, transient=(0, 6)))
    assert fewest_recomputed(tables, (0, 1), 0) == [0, 0, 3, 4]  # 3 * 3 + 6 = 15, 18


# --- Merak -----------------------------------------------------------------------------------


def test_merak_by_hand() -> None:
    """A first share of 3/4 on four stages: 3/4, 1 - 1/4 * 3/2 = 5/8, 1 - 1/4 * 3 = 1/4, none."""
    assert recomputed_layers([4, 4, 4, 4], 3) == (3, 2, 1, 0)
    assert recomputed_layers([4, 4, 4, 4], 4) == (4, 4, 4, 0)
    assert recomputed_layers([4, 4, 4, 4], 0) == (0, 0, 0, 0)
    assert recomputed_layers([4], 4) == (0,)


@given(p=st.integers(1, 8), layers=st.integers(8, 40), data=st.data())
def test_merak_recomputes_fewer_layers_on_later_stages(
    p: int, layers: int, data: st.DataObject
) -> None:
    sizes = even_sizes(layers, p)
    numbers = recomputed_layers(sizes, data.draw(st.integers(0, sizes[0])))
    assert list(numbers) == sorted(numbers, reverse=True)
    assert all(0 <= n <= size for n, size in zip(numbers, sizes, strict=True))


# --- RaNNC -----------------------------------------------------------------------------------


def test_rannc_adds_nodes_only_for_more_stages() -> None:
    cluster = replace(NODE, nodes=2)
    costs = CostModel(replace(MODEL, layers=12), cluster, JOB)
    assert list(stage_numbers(costs)) == [1, 2, 4, 8]
    three = replace(costs.cluster, nodes=3)  # two nodes do not divide three; 12 stages on all
    assert list(stage_numbers(CostModel(costs.model, three, JOB))) == [1, 2, 4, 12]


def test_rannc_balances_forward_and_backward_with_transfers() -> None:
    """Layers of 2 + 1 ticks, 4 more of forward at the end: 6 + 3 for (3, 1), 8 + 2 for (2, 2)."""
    plain = instance(forward=(2,), backward=(1,), activation=(4,), transient=(0,))
    assert balanced_stages(Tables(plain), 0) == (2, 2)
    ends = instance(forward=(2,), backward=(1,), activation=(4,), transient=(0,), ends=(0, 4))
    assert balanced_stages(Tables(ends), 0) == (3, 1)
    tight = replace(ends, capacity_bytes=np.array([18, 20]))  # 9 bytes a layer on the first
    assert balanced_stages(Tables(tight), 0) == (2, 2)
    assert balanced_stages(Tables(replace(ends, capacity_bytes=np.array([8, 20]))), 0) is None


# --- Greedy, sampling --------------------------------------------------------------------------


def test_greedy_changes_the_layer_that_costs_least_per_byte() -> None:
    """Fastest: 3 ticks, 9 bytes. Others: +1 tick for 6 bytes less, or +3 for 8 less."""
    case = instance(forward=(1, 1, 1), backward=(2, 3, 5), activation=(4, 1, 0), transient=(0,) * 3)
    assert repair(Tables(replace(case, capacity_bytes=np.array([36, 36]))), 0, 4) is not None
    for capacity, expected in ((36, [4, 0, 0]), (30, [3, 1, 0]), (12, [0, 4, 0]), (11, [0, 3, 1])):
        tables = Tables(replace(case, capacity_bytes=np.full(2, capacity)))
        row = repair(tables, 0, 4)
        assert row is not None
        assert row.tolist() == expected
    assert repair(Tables(replace(case, capacity_bytes=np.full(2, 3))), 0, 4) is None


def test_metropolis() -> None:
    assert accepted(0.1, 0.99)
    assert accepted(-0.5, 0.6)  # exp(-0.5) is 0.607
    assert not accepted(-0.5, 0.61)


# --- Prices ------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "interleaved"])
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=60)
def test_quick_prices_are_those_of_the_evaluation(schedule: str, seed: int) -> None:
    from ilp_parallel.instances import fold
    from ilp_parallel.problems.pipeline import PipelineSolution, evaluate
    from tests.strategies import random_instance

    rng = np.random.default_rng(seed)
    case = random_instance(rng, classes=1, reshard=False, policies=False, schedule=schedule)
    if case.chunks > 1:
        alike = np.tile(np.array([[2] * case.chunks]), (1, 1))
        case = fold(replace(case, in_flight=(alike,) * case.stages))
    tables = Tables(case)
    sizes = even_sizes(case.layers, case.stages)
    counts = np.array(
        [rng.multinomial(n, np.full(case.strategies, 1 / case.strategies)) for n in sizes]
    )
    order = [k for row in counts for k in np.repeat(np.arange(case.strategies), row).tolist()]
    evaluation = evaluate(case, PipelineSolution(tuple(sizes), tuple(order)))
    price = tables.price(counts)
    memory = [check for check in evaluation.checks if check.name.startswith("memory")]
    assert price.ticks == evaluation.objective_ticks
    assert price.overflow_bytes == sum(max(0, -int(check.slack)) for check in memory)
    if len(tables.allowed):
        allowed = np.isin(order, tables.allowed).all()
        assert not allowed or tables.floor_ticks <= price.ticks
