r"""``rannc``: RaNNC's dynamic program over balanced blocks.

Source: Tanaka et al., "Automatic graph partitioning for very large-scale deep learning", IPDPS'21,
section III; ``runDpComm``, ``doRunDpComm`` and ``estimateTime`` of ``src/graph/DPStaging.cpp``
(nict-wisdom/rannc, commit 086f3e4).

The algorithm. The model is first cut into blocks. For a growing number of stages, and 1, 2, 4, ...,
32 microbatches, a dynamic program over (stage, block) minimises the largest forward plus the
largest backward time of the stages so far, transfers over both cuts added to either, among stages
that fit; with several microbatches every layer is recomputed. The search ends with the first number
of stages that has any solution; the number of microbatches is chosen by the time of the schedule,
in which step by step the slowest forward and the slowest backward count (GPipe), plus the largest
gradient synchronisation. Nodes are added to a pipeline only where fewer do not suffice, the
remaining ones hold replicas; there is no tensor parallelism.

Departures. All stages have equally many devices, so their number divides those of the pipeline's
nodes, a power of two times (as in the source), and that number of nodes divides all nodes. Blocks,
which the source forms from single operators and evens out, are the layers of the model, which are
alike; embedding and head stay at the ends. Weights are replicated (``0``) or the optimizer is
sharded (``1``), RaNNC's switch for ZeRO; both are tried and the better plan kept.
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
from ilp_parallel.configuration import Configuration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ilp_parallel.baselines.named.workbench import Effort, Tables
    from ilp_parallel.configuration import Zero
    from ilp_parallel.costs.model import CostModel
    from ilp_parallel.plan import Plan

MICROBATCHES = (1, 2, 4, 8, 16, 32)
"""Numbers of microbatches that are tried (``min_pipeline`` and ``max_pipeline`` of the source)."""


def rannc(costs: CostModel, effort: Effort) -> tuple[Plan, int] | None:
    """The plan RaNNC's program finds, with and without ZeRO; None if none fits."""
    bench = Workbench(costs, effort)
    variants: tuple[Zero, ...] = ("0", "1")
    for zero in variants:
        for stages in stage_numbers(costs):
            if bench.expired:
                break
            found = [
                draft
                for configuration in _configurations(costs, stages)
                if (draft := _balance(bench, configuration, zero)) is not None
            ]
            if found:
                bench.offer(min(found, key=lambda draft: _schedule_ticks(bench, draft)))
                break
    return bench.result()


def stage_numbers(costs: CostModel) -> Iterator[int]:
    """Numbers of stages in the order in which they are tried."""
    cluster, layers = costs.cluster, costs.model.layers
    per_node = cluster.devices_per_node
    for nodes in range(1, cluster.nodes + 1):
        for stages in range(per_node * (nodes - 1) + 1, min(per_node * nodes, layers) + 1):
            devices, left = divmod(per_node * nodes, stages)
            if cluster.nodes % nodes == 0 and left == 0 and devices & (devices - 1) == 0:
                yield stages


def _configurations(costs: CostModel, stages: int) -> Iterator[Configuration]:
    """One configuration for each number of microbatches that divides the batch."""
    data = costs.cluster.devices // stages
    for microbatches in MICROBATCHES:
        microbatch, left = divmod(costs.job.global_batch, data * microbatches)
        if left == 0 and microbatch:
            yield Configuration(
                pipeline=stages,
                tensor=1,
                data=data,
                microbatch=microbatch,
                microbatches=microbatches,
                chunks=1,
                sequence_parallel=False,
                schedule="gpipe" if stages > 1 else "1f1b",
            )


def _balance(bench: Workbench, configuration: Configuration, zero: Zero) -> Draft | None:
    """The balanced stages of one configuration; None if they do not fit."""
    tables = bench.tables(configuration)
    recompute = FULL_RECOMPUTATION if configuration.microbatches > 1 else NO_RECOMPUTATION
    strategy = bench.strategy(configuration, zero, recompute)
    sizes = balanced_stages(tables, strategy)
    if sizes is None:
        return None
    counts = np.zeros((tables.groups, len(tables.time)), dtype=np.int64)
    counts[:, strategy] = sizes
    return Draft(configuration, counts)


def balanced_stages(tables: Tables, strategy: int) -> tuple[int, ...] | None:
    """Layers of every stage, by the program over stages and layers; None if nothing fits."""
    layers, groups = tables.layers, tables.groups
    most = tables.most_layers(strategy)
    cuts = [0, *tables.instance.cut_ticks.tolist(), 0]
    # by boundary: value, largest forward, largest backward, boundary before
    states: list[dict[int, tuple[int, int, int, int]]] = [{0: (0, 0, 0, 0)}]
    for s in range(groups):
        reached: dict[int, tuple[int, int, int, int]] = {}
        moved = cuts[s] + cuts[s + 1]
        for start, (value, forward, backward, _) in states[s].items():
            last = layers - groups + s + 1
            for end in range(last if s == groups - 1 else start + 1, last + 1):
                if end - start > most[s]:
                    break
                ahead, back = _stage_ticks(tables, strategy, s, end - start)
                step = max(ahead + moved, forward) + max(back + moved, backward)
                if end not in reached or step < reached[end][0]:
                    largest = max(ahead, forward), max(back, backward)
                    reached[end] = (max(step, value), *largest, start)
        states.append(reached)
    if layers not in states[groups]:
        return None
    sizes, end = [], layers
    for state in reversed(states[1:]):
        sizes.append(end - state[end][3])
        end = state[end][3]
    return tuple(reversed(sizes))


def _stage_ticks(tables: Tables, strategy: int, group: int, size: int) -> tuple[int, int]:
    """Forward and backward time of a stage, transfers left out."""
    instance = tables.instance
    forward = int(instance.fixed_forward_ticks[group]) + size * int(tables.forward[strategy])
    backward = int(instance.fixed_backward_ticks[group]) + size * int(tables.backward[strategy])
    return forward, backward


def _schedule_ticks(bench: Workbench, draft: Draft) -> int:
    """RaNNC's estimate of the step: slowest forward and backward in every step of the schedule."""
    tables = bench.tables(draft.configuration)
    cuts = [0, *tables.instance.cut_ticks.tolist(), 0]
    times = []
    for s, row in enumerate(draft.counts):
        (strategy,) = np.flatnonzero(row).tolist()
        forward, backward = _stage_ticks(tables, strategy, s, int(row.sum()))
        moved = cuts[s] + cuts[s + 1]
        times.append((forward + moved, backward + moved))
    m, groups = tables.microbatches, tables.groups
    total = 0
    for step in range(m + groups - 1):
        busy = times[max(0, step - m + 1) : min(step + 1, groups)]
        total += max(forward for forward, _ in busy) + max(backward for _, backward in busy)
    return total + int((draft.counts @ tables.tail + tables.fixed_tail).max())
