"""Optimum by looking at every solution; the winner is judged by ``evaluate``.

All strategy sequences of one composition of sizes are priced at once with numpy, in the simplest
possible way: one array entry per sequence, one addition per layer.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ilp_parallel.problems.pipeline import (
    PipelineInstance,
    PipelineSolution,
    evaluate,
    policy_strategies,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

IntArray = npt.NDArray[np.int64]


def compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """All ways to write ``total`` as ``parts`` positive integers, in order."""
    for bars in itertools.combinations(range(1, total), parts - 1):
        edges = (0, *bars, total)
        yield tuple(b - a for a, b in itertools.pairwise(edges))


def all_solutions(instance: PipelineInstance) -> Iterator[PipelineSolution]:
    """Every solution with at least one layer in each virtual stage, feasible or not."""
    for sizes in compositions(instance.layers, instance.virtual_stages):
        for strategies in itertools.product(range(instance.strategies), repeat=instance.layers):
            yield PipelineSolution(sizes, strategies)


def brute_force(instance: PipelineInstance) -> int | None:
    """Smallest numerator over all feasible solutions; None if there is none."""
    best = best_solution(instance)
    if best is None:
        return None
    evaluation = evaluate(instance, best)
    assert evaluation.feasible
    return evaluation.numerator


def best_solution(instance: PipelineInstance) -> PipelineSolution | None:
    """First best feasible solution in lexicographic order of sizes and strategies."""
    product = itertools.product(range(instance.strategies), repeat=instance.layers)
    sequences = np.array(list(product), dtype=np.int64)
    sequences = sequences[instance.allowed[instance.layer_class, sequences].all(axis=1)]
    best: tuple[int, PipelineSolution] | None = None
    for sizes in compositions(instance.layers, instance.virtual_stages):
        if np.any(sizes < instance.min_layers) or np.any(sizes > instance.max_layers):
            continue
        candidates = sequences
        if instance.policies is not None:
            wanted = np.array([policy_strategies(p, sizes) for p in instance.policies])
            follows = (sequences[:, None, :] == wanted[None, :, :]).all(axis=2).any(axis=1)
            candidates = sequences[follows]
        numerators, fits = _price(instance, sizes, candidates)
        for i in np.flatnonzero(fits)[np.argsort(numerators[fits], kind="stable")][:1]:
            if best is None or numerators[i] < best[0]:
                solution = PipelineSolution(sizes, tuple(candidates[i].tolist()))
                best = int(numerators[i]), solution
    return None if best is None else best[1]


def _price(
    instance: PipelineInstance, sizes: tuple[int, ...], sequences: IntArray
) -> tuple[IntArray, npt.NDArray[np.bool_]]:
    """Numerator of every sequence, and whether it fits in memory."""
    groups = instance.stages
    stage_of = np.repeat(np.arange(instance.virtual_stages), sizes)
    shape = (len(sequences), groups)
    zeros = np.zeros(shape, dtype=np.int64)
    forward = zeros + instance.stage_forward_ticks.reshape(-1, groups).sum(axis=0)
    backward = zeros + instance.stage_backward_ticks.reshape(-1, groups).sum(axis=0)
    tail = zeros + instance.fixed_tail_ticks
    state = zeros + instance.fixed_bytes
    transient = zeros.copy()
    activation = np.zeros((len(sequences), groups, instance.chunks), dtype=np.int64)
    for layer, j in enumerate(stage_of.tolist()):
        s, chunk = j % groups, j // groups
        q, k = instance.layer_class[layer], sequences[:, layer]
        forward[:, s] += instance.forward_ticks[q, k]
        backward[:, s] += instance.backward_ticks[q, k]
        if instance.reshard_forward_ticks is not None and layer > 0:
            assert instance.reshard_backward_ticks is not None
            forward[:, s] += instance.reshard_forward_ticks[sequences[:, layer - 1], k]
            backward[:, s] += instance.reshard_backward_ticks[sequences[:, layer - 1], k]
        tail[:, s] += instance.tail_ticks[q, k]
        state[:, s] += instance.state_bytes[q, k]
        activation[:, s, chunk] += instance.activation_bytes[q, k]
        transient[:, s] = np.maximum(transient[:, s], instance.transient_bytes[q, k])
    alive = [
        (activation[:, s, :] @ instance.in_flight[s].T).max(axis=1, initial=0)
        for s in range(groups)
    ]
    fits = (state + np.stack(alive, axis=1) + transient <= instance.capacity_bytes).all(axis=1)
    numerator = forward.sum(axis=1) + backward.sum(axis=1)
    numerator += instance.objective.tail_weight * tail.max(axis=1, initial=0)
    for term in instance.objective.bottlenecks:
        numerator += term.weight * (forward * term.forward + backward * term.backward).max(
            axis=1, initial=0
        )
    return numerator, fits
