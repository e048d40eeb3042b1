r"""``galvatron_dp``: Galvatron's dynamic program over layers and memory buckets.

Source: Miao et al., "Galvatron", PVLDB 16(3), 2022, section 3.3; ``DpOnModel`` and the core
``dynamic_programming_core`` of PKU-DAIR/Hetu-Galvatron (``galvatron/core/dynamic_programming.py``,
``csrc/dp_core.cpp``), and ``pp_division_even`` of its search engine.

The algorithm. Layers are divided evenly over the stages, the last stage taking what is left over.
Within each stage, one layer after the other, ``f(layer, memory)`` is the least time of the layers
so far within so many buckets of memory, each layer choosing its strategy; memory is rounded up to
buckets. Stages are solved one by one, each within what its fixed parts leave, and the pipeline cost
of the whole decides between pipeline degrees, tensor degrees and microbatch sizes.

Departures. All layers share one tensor degree, so strategies differ in the weights being sharded
(``3-regather``) or not and in the layer being recomputed or not, and a change of strategy between
layers costs nothing. Layers not sharded are of the global default type: replicated (``0``) or
``3-keep``, what Galvatron calls zero2; both are tried, as a user would. Buckets are 8 MiB, not
1 MB. Memory of which only the largest layer counts is reserved before: the program runs once for
each possible amount. The pipeline cost is our evaluation. A layer's time is that of a whole step,
synchronisation included.
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

    from ilp_parallel.baselines.named.workbench import Effort, Tables
    from ilp_parallel.configuration import Configuration, Zero
    from ilp_parallel.costs.model import CostModel
    from ilp_parallel.plan import Plan

BUCKET_BYTES = 8 << 20
"""One bucket of memory (bytes, chosen: 10,000 for a device of 80 GB)."""


def galvatron_dp(costs: CostModel, effort: Effort) -> tuple[Plan, int] | None:
    """The plan Galvatron's program finds under both default types; None if none fits."""
    bench = Workbench(costs, effort)
    defaults: tuple[Zero, ...] = ("0", "3-keep")
    for configuration in bench.by_floor(bench.configurations()):
        if bench.expired or bench.hopeless(configuration):
            break
        for default in defaults:
            draft = _fill_stages(bench, configuration, default)
            if draft is not None:
                bench.offer(draft)
    return bench.result()


def divide_evenly(layers: int, stages: int) -> list[int]:
    """Equal stages, the last one with the rest as well."""
    size = layers // stages
    return [size] * (stages - 1) + [layers - size * (stages - 1)]


def _fill_stages(bench: Workbench, configuration: Configuration, default: Zero) -> Draft | None:
    """Strategies of every stage by its own dynamic program; None if a stage does not fit."""
    tables = bench.tables(configuration)
    sharded: tuple[Zero, ...] = (default, "3-regather")
    menu = sorted(
        {
            bench.strategy(configuration, zero, recompute)
            for zero in sharded
            for recompute in (NO_RECOMPUTATION, FULL_RECOMPUTATION)
        }
    )
    counts = np.zeros((tables.groups, len(tables.time)), dtype=np.int64)
    for s, size in enumerate(divide_evenly(tables.layers, tables.groups)):
        chosen = _fill_stage(tables, menu, s, size)
        if chosen is None:
            return None
        for k in chosen:
            counts[s, k] += 1
    return Draft(configuration, counts)


def _fill_stage(tables: Tables, menu: list[int], group: int, size: int) -> list[int] | None:
    """The fastest strategies of a stage over all amounts reserved for its largest transient."""
    weights = tables.instance.microbatches * tables.time + tables.tail
    best: tuple[int, list[int]] | None = None
    for reserved in sorted({int(tables.transient[k]) for k in menu}):
        usable = [k for k in menu if tables.transient[k] <= reserved]
        room = (int(tables.room[group]) - reserved) // BUCKET_BYTES
        needed = [-(-int(tables.memory[group, k]) // BUCKET_BYTES) for k in usable]
        times = [int(weights[k]) for k in usable]
        found = fewest_ticks(times, needed, size, room)
        if found is not None and (best is None or found[0] < best[0]):
            best = found[0], [usable[i] for i in found[1]]
    return None if best is None else best[1]


def fewest_ticks(
    times: Sequence[int], buckets: Sequence[int], layers: int, room: int
) -> tuple[int, list[int]] | None:
    """Least total time of layers within ``room`` buckets, and the strategy of each layer.

    Parameters
    ----------
    times, buckets
        Ticks and buckets of a layer under each strategy.
    layers, room
        Number of layers, buckets there are.
    """
    if room < 0:
        return None
    fastest = min(range(len(times)), key=lambda i: (times[i], buckets[i]))
    if buckets[fastest] * layers <= room:  # nothing to decide
        return times[fastest] * layers, [fastest] * layers
    useful = _undominated(times, buckets)
    room = min(room, max(buckets[i] for i in useful) * layers)
    value = np.zeros(room + 1)  # float64 as in the source: infinity where nothing fits
    marks = np.zeros((layers, room + 1), dtype=np.int16)
    for layer in range(layers):
        better = np.full(room + 1, np.inf)
        for i in useful:
            if buckets[i] <= room:
                candidate = value[: room + 1 - buckets[i]] + times[i]
                improved = candidate < better[buckets[i] :]
                marks[layer, buckets[i] :][improved] = i
                np.minimum(better[buckets[i] :], candidate, out=better[buckets[i] :])
        value = better
    if not np.isfinite(value[room]):
        return None
    chosen, left = [], room
    for layer in reversed(range(layers)):
        chosen.append(int(marks[layer, left]))
        left -= buckets[chosen[-1]]
    return int(value[room]), chosen[::-1]


def _undominated(times: Sequence[int], buckets: Sequence[int]) -> list[int]:
    """Strategies of which no other is as fast and as small; they alone can be chosen."""
    kept: list[int] = []
    for i in sorted(range(len(times)), key=lambda i: (times[i], buckets[i], i)):
        if not kept or buckets[i] < buckets[kept[-1]]:
            kept.append(i)
    return kept
