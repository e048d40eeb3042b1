"""The least cost of a stage of a given size, solved exactly as a problem of one stage."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ilp_parallel.baselines.two_level_dp import two_level_dp
from ilp_parallel.lagrangian import PRODUCT_LIMIT

if TYPE_CHECKING:
    from ilp_parallel.problems.pipeline import IntArray, PipelineInstance

AROUND = (3, 2)
"""Sizes solved: from so much below to so much above an even share (chosen)."""


class ExactStages:
    """Stages of an instance with one class of layers and one (folded) chunk per device group.

    Parameters
    ----------
    instance
        Whose memory, strategies and policies count.
    cost
        ``[1, K]`` ticks of a layer under each strategy, to be minimised in sum.
    """

    def __init__(self, instance: PipelineInstance, cost: IntArray) -> None:
        self._instance, self._cost = instance, cost
        self._known: dict[tuple[bytes, int, int, int], int] = {}

    def raise_to(self, costs: IntArray, stages: range) -> None:
        """Raise lower bounds ``[p, n]`` in place, on some stages, where the exact value is larger.

        Sizes that cannot be, and stages that the cheapest strategy fits, are left as they are.
        """
        instance = self._instance
        even = -(-instance.layers // instance.stages)
        cheapest = int(np.where(instance.allowed, self._cost, PRODUCT_LIMIT).min())
        for s in stages:
            least = max(even - AROUND[0], int(instance.min_layers[s]), 1)
            most = min(even + AROUND[1], int(instance.max_layers[s]), costs.shape[1] - 1)
            for n in range(least, most + 1):
                if costs[s, n] < PRODUCT_LIMIT and not self._cheapest_fits(s, n, cheapest):
                    costs[s, n] = max(int(costs[s, n]), self._least(s, n))

    def _cheapest_fits(self, stage: int, size: int, cheapest: int) -> bool:
        """Whether one strategy for all layers is both cheapest and light enough."""
        instance = self._instance
        alive = int(instance.in_flight[stage].max())
        layer = instance.state_bytes[0] + alive * instance.activation_bytes[0]
        held = size * layer + instance.transient_bytes[0] + int(instance.fixed_bytes[stage])
        good = instance.allowed[0] & (self._cost[0] == cheapest)
        return bool((good & (held <= int(instance.capacity_bytes[stage]))).any())

    def _least(self, stage: int, size: int) -> int:
        instance = self._instance
        fixed, capacity = int(instance.fixed_bytes[stage]), int(instance.capacity_bytes[stage])
        key = (instance.in_flight[stage].tobytes(), fixed, capacity, size)
        if key not in self._known:
            optimum = two_level_dp(self._alone(stage, size))
            self._known[key] = PRODUCT_LIMIT if optimum is None else optimum.numerator
        return self._known[key]

    def _alone(self, stage: int, size: int) -> PipelineInstance:
        """The stage as a whole problem: one microbatch, no tails, nothing fixed but memory."""
        instance, nothing = self._instance, np.zeros(1, dtype=np.int64)
        sizes = np.array([size], dtype=np.int64)
        return replace(
            instance,
            stages=1,
            microbatches=1,
            schedule="1f1b",
            layer_class=instance.layer_class[:size],
            forward_ticks=self._cost,
            backward_ticks=np.zeros_like(self._cost),
            tail_ticks=np.zeros_like(self._cost),
            fixed_forward_ticks=nothing,
            fixed_backward_ticks=nothing,
            fixed_tail_ticks=nothing,
            fixed_bytes=instance.fixed_bytes[stage : stage + 1],
            cut_ticks=nothing[:0],
            capacity_bytes=instance.capacity_bytes[stage : stage + 1],
            min_layers=sizes,
            max_layers=sizes,
            in_flight=(instance.in_flight[stage],),
            fold=1,
        )
