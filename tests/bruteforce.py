"""Optimum by looking at every solution; judged by ``evaluate`` alone."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from ilp_parallel.problems.pipeline import PipelineInstance, PipelineSolution, evaluate

if TYPE_CHECKING:
    from collections.abc import Iterator


def compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """All ways to write ``total`` as ``parts`` positive integers, in order."""
    for bars in itertools.combinations(range(1, total), parts - 1):
        edges = (0, *bars, total)
        yield tuple(b - a for a, b in itertools.pairwise(edges))


def all_solutions(instance: PipelineInstance) -> Iterator[PipelineSolution]:
    for sizes in compositions(instance.layers, instance.virtual_stages):
        for strategies in itertools.product(range(instance.strategies), repeat=instance.layers):
            yield PipelineSolution(sizes, strategies)


def brute_force(instance: PipelineInstance) -> int | None:
    """Smallest numerator over all feasible solutions; None if there is none."""
    numerators = (
        evaluation.numerator
        for evaluation in (evaluate(instance, s) for s in all_solutions(instance))
        if evaluation.feasible
    )
    return min(numerators, default=None)
