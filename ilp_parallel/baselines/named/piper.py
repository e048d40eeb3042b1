r"""``piper_dp``: Piper's dynamic program over suffixes, with its greedy choice of modes.

Source: Tarnawski, Narayanan and Phanishayee, "Piper: Multidimensional planner for DNN
parallelization", NeurIPS'21, and the code beside it (msr-fiddle/piper, ``algo.cpp``,
commit d7fc8cf).

The algorithm. It minimises the time of the slowest stage per microbatch (no bubble): over suffixes
of layers, ``f(suffix) = min over the first stage of max(f(rest), stage)``. A stage's time is that
of its layers, all transfers over its two cuts, forward and backward, and its gradient
synchronisation divided by the microbatches. Each layer has two modes, plain and recomputed. A stage
starts all plain; while it does not fit, the layer whose recomputation costs least per byte saved is
recomputed. A stage must hold as many microbatches as stages follow it, itself included.

Departures. All stages have the same tensor and data degree, so these leave the program: the least
bottleneck over all configurations of one microbatch size is taken, in Piper's own cost. Microbatch
sizes, which Piper is given, are tried one by one and the best plan kept. All devices are used.
States are replicated over data ranks (``0``) and there is no sequence parallelism, as in Piper.
Memory that counts once for the largest layer is added. Layers form a chain.
"""

from __future__ import annotations

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

    from ilp_parallel.baselines.named.workbench import Effort, IntArray, Tables
    from ilp_parallel.configuration import Configuration
    from ilp_parallel.costs.model import CostModel
    from ilp_parallel.plan import Plan

_NEVER = 2**61


def piper_dp(costs: CostModel, effort: Effort) -> tuple[Plan, int] | None:
    """The plan Piper's program finds, over the microbatch sizes; None if none fits."""
    bench = Workbench(costs, effort)
    by_size: dict[int, list[Configuration]] = {}
    for configuration in bench.configurations():
        if not configuration.sequence_parallel:
            by_size.setdefault(configuration.microbatch, []).append(configuration)
    for group in by_size.values():
        draft = _choose(bench, group)
        if draft is not None:
            bench.offer(draft)
    return bench.result()


def _choose(bench: Workbench, group: list[Configuration]) -> Draft | None:
    """The plan with the least bottleneck over configurations of one microbatch size."""
    best, chosen = _NEVER, None
    for configuration in group:
        if bench.expired:
            break
        tables = bench.tables(configuration)
        modes = (
            bench.strategy(configuration, "0", NO_RECOMPUTATION),
            bench.strategy(configuration, "0", FULL_RECOMPUTATION),
        )
        fastest = tables.microbatches * int(tables.time[modes[0]])
        if fastest * -(-tables.layers // tables.groups) >= best:
            continue  # some stage has that many layers
        recomputed = [fewest_recomputed(tables, modes, s) for s in range(tables.groups)]
        stages = [_stage_costs(tables, modes, s, numbers) for s, numbers in enumerate(recomputed)]
        found = least_bottleneck(stages, tables.layers)
        if found is not None and found[0] < best:
            best = found[0]
            counts = np.zeros((tables.groups, len(tables.time)), dtype=np.int64)
            for s, n in enumerate(found[1]):
                counts[s, modes[1]] = recomputed[s][n - 1]
                counts[s, modes[0]] = n - recomputed[s][n - 1]
            chosen = Draft(configuration, counts)
    return chosen


def fewest_recomputed(tables: Tables, modes: tuple[int, int], group: int) -> list[int]:
    """Of 1, 2, ... layers of a stage, how many are recomputed; it ends where nothing fits."""
    plain, full = (int(tables.memory[group, k]) for k in modes)
    room = int(tables.room[group])
    numbers: list[int] = []
    for n in range(1, tables.layers + 1):
        if n * plain + int(tables.transient[modes[0]]) <= room:
            numbers.append(0)
            continue
        largest = max(int(tables.transient[k]) for k in modes)
        saved = plain - full
        excess = n * plain + largest - room
        swaps = -(-excess // saved) if saved > 0 else n + 1
        if swaps >= n:  # none stays plain
            if n * full + int(tables.transient[modes[1]]) > room:
                break
            swaps = n
        numbers.append(max(swaps, 1))
    return numbers


def _stage_costs(
    tables: Tables, modes: tuple[int, int], group: int, recomputed: list[int]
) -> IntArray:
    """Time (ticks times microbatches) of a stage with 1, 2, ... layers, as many as fit."""
    instance, m = tables.instance, tables.microbatches
    cuts = [0, *instance.cut_ticks.tolist(), 0]
    ends = int(instance.fixed_forward_ticks[group] + instance.fixed_backward_ticks[group])
    base = m * (ends + 2 * (cuts[group] + cuts[group + 1])) + int(tables.fixed_tail[group])
    layer = m * tables.time + tables.tail
    plain, full = int(layer[modes[0]]), int(layer[modes[1]])
    swapped = np.array(recomputed, dtype=np.int64)
    sizes = np.arange(1, len(recomputed) + 1)
    costs: IntArray = base + (sizes - swapped) * plain + swapped * full
    return costs


def least_bottleneck(stages: Sequence[IntArray], layers: int) -> tuple[int, tuple[int, ...]] | None:
    """The partition whose largest stage cost is least; ``stages[s][n - 1]`` has ``n`` layers."""
    value: IntArray = np.full(layers + 1, _NEVER)  # by number of layers in the suffix
    value[0] = 0
    choices: list[IntArray] = []
    for costs in reversed(stages):
        better: IntArray = np.full(layers + 1, _NEVER)
        choice: IntArray = np.zeros(layers + 1, dtype=np.int64)
        for n in range(1, min(len(costs), layers) + 1):
            candidate = np.maximum(value[: layers + 1 - n], costs[n - 1])
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
