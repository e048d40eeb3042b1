r"""``greedy``: fastest first, repaired and balanced one layer at a time. It has no source.

For every configuration, the one with the least work first: even stages, every layer in its fastest
strategy (ticks of a whole step). While a device group does not fit, the change of one of its
layers that costs least time per byte saved is made, the rule by which Piper repairs a stage. Then,
as long as the step becomes faster, one layer moves from the slowest device group to the one before
or behind, repaired again. A configuration whose work alone takes longer than the best plan so far
is passed over, which changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ilp_parallel.baselines.named.workbench import (
    EVERY_SCHEDULE,
    Draft,
    Workbench,
    even_sizes,
)

if TYPE_CHECKING:
    from ilp_parallel.baselines.named.workbench import Effort, IntArray, Tables
    from ilp_parallel.costs.model import CostModel
    from ilp_parallel.plan import Plan


def greedy(costs: CostModel, effort: Effort) -> tuple[Plan, int] | None:
    """The best plan over all configurations; None if none can be repaired."""
    bench = Workbench(costs, effort)
    configurations = bench.configurations(EVERY_SCHEDULE, split_sequences=True)
    for configuration in bench.by_floor(configurations):
        if bench.expired or bench.hopeless(configuration):
            break
        tables = bench.tables(configuration)
        counts = _repaired(tables, even_sizes(tables.layers, tables.groups))
        while counts is not None:
            bench.offer(Draft(configuration, counts))
            counts = None if configuration.chunks > 1 else _rebalanced(tables, counts)
    return bench.result()


def _repaired(tables: Tables, sizes: list[int]) -> IntArray | None:
    """Strategies of all device groups for given sizes; None if one does not fit."""
    rows = [repair(tables, group, size) for group, size in enumerate(sizes)]
    fitting = [row for row in rows if row is not None]
    return np.array(fitting) if len(fitting) == len(rows) else None


def repair(tables: Tables, group: int, size: int) -> IntArray | None:
    """Layers of a device group by strategy: fastest, then changed until it fits or cannot.

    Each change takes one layer from one strategy to another, the least costly one per byte saved;
    of equal ones the first. A change to a larger transient counts the bytes that this adds.
    """
    weights = tables.instance.microbatches * tables.time + tables.tail
    allowed, memory = tables.allowed, tables.memory[group]
    counts = np.zeros(len(weights), dtype=np.int64)
    counts[allowed[np.argmin(weights[allowed])]] = size
    while True:
        held = np.flatnonzero(counts)
        largest = int(tables.transient[held].max())
        needed = int(counts @ memory) + largest
        if needed <= tables.room[group]:
            return counts
        best: tuple[float, int, int] | None = None
        for k in held.tolist():
            # what stays, if this is the only layer of its strategy, may have less transient
            others = held if counts[k] > 1 else held[held != k]
            stays = int(tables.transient[others].max()) if len(others) else 0
            transient = np.maximum(tables.transient[allowed], stays)
            saved = int(memory[k]) - memory[allowed] + largest - transient
            cost = weights[allowed] - int(weights[k])
            useful = saved > 0
            if useful.any():
                ratio = np.where(useful, cost / np.where(useful, saved, 1), np.inf)
                place = int(ratio.argmin())
                candidate = float(ratio[place]), k, int(allowed[place])
                best = candidate if best is None else min(best, candidate)
        if best is None:
            return None
        counts[best[1]] -= 1
        counts[best[2]] += 1


def _rebalanced(tables: Tables, counts: IntArray) -> IntArray | None:
    """One layer moved away from the slowest device group; None if that gains nothing."""
    times = counts @ tables.time + tables.fixed_time
    slowest, sizes = int(times.argmax()), counts.sum(axis=1).tolist()
    if sizes[slowest] == 1:
        return None
    best = tables.price(counts).ticks
    result: IntArray | None = None
    for neighbour in (slowest - 1, slowest + 1):
        if not 0 <= neighbour < tables.groups:
            continue
        moved = counts.copy()
        for group, size in ((slowest, sizes[slowest] - 1), (neighbour, sizes[neighbour] + 1)):
            row = repair(tables, group, size)
            if row is None:
                break
            moved[group] = row
        else:
            ticks = tables.price(moved).ticks
            if ticks < best:
                best, result = ticks, moved
    return result
