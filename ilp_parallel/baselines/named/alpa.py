r"""``alpa_dp``: Alpa's inter-operator dynamic program with enumerated bottleneck.

Source: Zheng et al., "Alpa", OSDI'22, section 5 and algorithm 1; ``dp`` and ``dp_impl`` in
``alpa/pipeline_parallel/stage_construction.py`` (alpa-projects/alpa, commit 01d71eb).

The algorithm. For ``m`` microbatches and stage latencies ``t`` it minimises
``sum t + (m - 1) max t``: every value that a stage latency can take is tried, from the smallest,
as an upper bound ``t_max``; given ``t_max`` a dynamic program over suffixes of layers finds the
least ``sum t``; it stops where ``m t_max`` reaches the best cost. Equal costs go to the partition
that gives the first stage most layers, as the loops of the source do. A stage may only be chosen
where its memory allows the microbatches that its successors keep in flight.

Departures. All stages have the same submesh and logical shape, so the choice of shapes moves out
of the program: the least cost over all configurations of one number of microbatches is taken, still
in Alpa's own cost. The intra-operator pass is our layer table. As in Alpa, transfers between stages
count nothing, and gradient synchronisation is spread over the microbatches; here the optimizer
lies in the same term. What is a switch in Alpa is tried both ways and the better plan kept, as a
user would: rematerialisation of every layer or of none, reduce-scattered gradients or sharded
weights, and the number of microbatches.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from ilp_parallel.baselines.named.workbench import (
    FULL_RECOMPUTATION,
    NO_RECOMPUTATION,
    Draft,
    Workbench,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ilp_parallel.baselines.named.workbench import Effort, IntArray
    from ilp_parallel.configuration import Configuration, Zero
    from ilp_parallel.costs.model import CostModel
    from ilp_parallel.plan import Plan

_NEVER = 2**61
"""More than any cost in ticks times microbatches."""


def alpa_dp(costs: CostModel, effort: Effort) -> tuple[Plan, int] | None:
    """The plan Alpa's program finds, over the switches that its users set; None if none fits."""
    bench = Workbench(costs, effort)
    by_microbatches: dict[int, list[Configuration]] = {}
    for configuration in bench.configurations():
        by_microbatches.setdefault(configuration.microbatches, []).append(configuration)
    weights: tuple[Zero, ...] = ("2-buffer", "3-regather")
    for recompute, zero in product((NO_RECOMPUTATION, FULL_RECOMPUTATION), weights):
        for group in by_microbatches.values():
            draft = _choose(bench, group, zero, recompute)
            if draft is not None:
                bench.offer(draft)
    return bench.result()


def _choose(
    bench: Workbench, group: list[Configuration], zero: Zero, recompute: tuple[str, ...]
) -> Draft | None:
    """The cheapest plan in Alpa's cost over configurations of one number of microbatches."""
    best, chosen = _NEVER, None
    for configuration in group:
        if bench.expired:
            break
        tables = bench.tables(configuration)
        strategy = bench.strategy(configuration, zero, recompute)
        latencies = stage_latencies(bench, configuration, strategy)
        found = cheapest_partition(latencies, tables.layers, tables.microbatches, best)
        if found is not None:
            best, sizes = found
            counts = np.zeros((tables.groups, len(tables.time)), dtype=np.int64)
            counts[:, strategy] = sizes
            chosen = Draft(configuration, counts)
    return chosen


def stage_latencies(
    bench: Workbench, configuration: Configuration, strategy: int
) -> list[IntArray]:
    """Per stage: latency times microbatches (ticks) of 1, 2, ... layers, as many as fit."""
    tables = bench.tables(configuration)
    instance, m = tables.instance, tables.microbatches
    ends = instance.fixed_forward_ticks + instance.fixed_backward_ticks
    layer = m * int(tables.time[strategy]) + int(tables.tail[strategy])
    return [
        m * int(ends[s]) + int(tables.fixed_tail[s]) + layer * np.arange(1, most + 1)
        for s, most in enumerate(tables.most_layers(strategy))
    ]


def cheapest_partition(
    latencies: Sequence[IntArray], layers: int, microbatches: int, cutoff: int = _NEVER
) -> tuple[int, tuple[int, ...]] | None:
    """Least ``sum + (microbatches - 1) max`` below the cutoff, and the sizes of its stages."""
    best: tuple[int, tuple[int, ...]] | None = None
    limits = np.unique(np.concatenate(latencies))
    every = _sum_bound(latencies, layers)
    for limit in limits[_first_possible(latencies, layers, limits) :].tolist():
        # The first is the source's rule. The second changes no cost: what has a smaller largest
        # latency was found under an earlier limit, and nothing else is below the cutoff.
        if limit * microbatches >= cutoff or every + (microbatches - 1) * limit >= cutoff:
            break
        found = _least_sum(latencies, layers, limit)
        if found is None:
            continue
        total, sizes = found
        slowest = max(int(stage[n - 1]) for stage, n in zip(latencies, sizes, strict=True))
        cost = total + (microbatches - 1) * slowest
        if cost < cutoff:
            cutoff, best = cost, (cost, sizes)
    return best


def _sum_bound(latencies: Sequence[IntArray], layers: int) -> int:
    """No partition has a smaller sum: one layer each, the others at their least growth."""
    if not all(map(len, latencies)):
        return _NEVER
    growth = [int(np.diff(stage).min()) for stage in latencies if len(stage) > 1]
    more = max(0, layers - len(latencies))
    return sum(int(stage[0]) for stage in latencies) + more * min(growth, default=0)


def _first_possible(latencies: Sequence[IntArray], layers: int, limits: IntArray) -> int:
    """The first limit under which the layers can be placed; smaller ones would be tried in vain."""
    low, high = 0, len(limits)
    while low < high:
        middle = (low + high) // 2
        most = [int(np.searchsorted(stage, limits[middle], "right")) for stage in latencies]
        if min(most) >= 1 and sum(most) >= layers:
            high = middle
        else:
            low = middle + 1
    return low


def _least_sum(
    latencies: Sequence[IntArray], layers: int, limit: int
) -> tuple[int, tuple[int, ...]] | None:
    """Least sum of latencies of which none exceeds the limit; ties to large early stages."""
    value: IntArray = np.full(layers + 1, _NEVER)  # by number of layers in the suffix
    value[0] = 0
    choices: list[IntArray] = []
    for stage in reversed(latencies):
        better: IntArray = np.full(layers + 1, _NEVER)
        choice: IntArray = np.zeros(layers + 1, dtype=np.int64)
        most = min(int(np.searchsorted(stage, limit, "right")), layers)
        for n in range(most, 0, -1):
            candidate = np.minimum(value[: layers + 1 - n] + stage[n - 1], _NEVER)
            improved = candidate < better[n:]
            better[n:][improved] = candidate[improved]
            choice[n:][improved] = n
        value = better
        choices.insert(0, choice)
    if value[layers] >= _NEVER:
        return None
    sizes, left = [], layers
    for choice in choices:
        sizes.append(int(choice[left]))
        left -= sizes[-1]
    return int(value[layers]), tuple(sizes)
