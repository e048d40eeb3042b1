r"""Policies over equal layers: only the sizes of the stages are left to choose.

Under one policy a stage of ``n`` layers takes ``X(n)`` whatever its position: ``min(n, h)`` layers
at the prefix's pace, the others at the rest's. Memory limits the size of every stage. All policies
are bounded at once; what is left is solved by running through the limits on the largest X and the
largest tail, each limit being an upper bound on every size, and a shortest path over boundaries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ilp_parallel.problems.pipeline import PipelineSolution, policy_strategies

if TYPE_CHECKING:
    from ilp_parallel.problems.pipeline import IntArray, PipelineInstance

_NEVER = 2**60


class EqualPolicies:
    """Tables [policies, n] of one instance, n = 0..largest size of any stage."""

    def __init__(self, instance: PipelineInstance) -> None:
        self._instance = instance
        policies = instance.policies or ()
        self._policies = policies
        prefix = np.array([policy.prefix for policy in policies], dtype=np.int64)
        rest = np.array([policy.rest for policy in policies], dtype=np.int64)
        head = np.array([policy.prefix_layers for policy in policies], dtype=np.int64)
        sizes = np.arange(int(instance.max_layers.max()) + 1)
        first = np.minimum(head[:, None], sizes)  # [policies, n] layers at the prefix
        other = sizes - first

        def mix(values: IntArray) -> IntArray:
            mixed: IntArray = first * values[prefix][:, None] + other * values[rest][:, None]
            return mixed

        self._time = mix((instance.forward_ticks + instance.backward_ticks)[0])
        self._tail = mix(instance.tail_ticks[0])
        self._fixed_time = instance.stage_forward_ticks + instance.stage_backward_ticks
        refused = ~instance.allowed[0]
        bad = (first > 0) & refused[prefix][:, None] | (other > 0) & refused[rest][:, None]
        transient = np.maximum(
            np.where(first > 0, instance.transient_bytes[0][prefix][:, None], 0),
            np.where(other > 0, instance.transient_bytes[0][rest][:, None], 0),
        )
        state, activation = mix(instance.state_bytes[0]), mix(instance.activation_bytes[0])
        self._most = np.stack(  # [policies, p] largest size that fits; memory rises with the size
            [
                np.minimum(
                    np.argmin(self._fits(s, state, activation, transient, bad), axis=1) - 1,
                    int(instance.max_layers[s]),
                )
                for s in range(instance.stages)
            ],
            axis=1,
        )

    def _fits(
        self,
        stage: int,
        state: IntArray,
        activation: IntArray,
        transient: IntArray,
        bad: npt.NDArray[np.bool_],
    ) -> npt.NDArray[np.bool_]:
        """[policies, n + 1] whether a size fits a stage; the last column is false."""
        instance = self._instance
        alive = int(instance.in_flight[stage].max())
        room = int(instance.capacity_bytes[stage] - instance.fixed_bytes[stage])
        fits = ~bad & (state + alive * activation + transient <= room)
        fits[:, 0] = True
        return np.concatenate([fits, np.zeros((len(fits), 1), dtype=np.bool_)], axis=1)

    @staticmethod
    def applies(instance: PipelineInstance) -> bool:
        """Whether layers are interchangeable, with policies and one bottleneck term."""
        return (
            instance.policies is not None
            and len(instance.forward_ticks) == 1
            and instance.reshard_forward_ticks is None
            and instance.chunks == 1
            and len(instance.objective.bottlenecks) == 1
        )

    def optimum(self, cutoff: int | None) -> tuple[int, PipelineSolution] | None:
        """Cheapest solution over all policies, strictly below the cutoff."""
        best = _NEVER if cutoff is None else cutoff
        found: tuple[int, PipelineSolution] | None = None
        bounds = self._bounds()
        for index in np.argsort(bounds, kind="stable").tolist():
            if bounds[index] >= best:
                break
            result = self._one_policy(index, best)
            if result is not None:
                best, sizes = result
                strategies = policy_strategies(self._policies[index], sizes)
                found = best, PipelineSolution(sizes, strategies)
        return found

    def _bounds(self) -> IntArray:
        """[policies] lower bounds: the L-th smallest joint cost of a size, and the least sum."""
        instance, objective = self._instance, self._instance.objective
        weight, tail_weight = objective.bottlenecks[0].weight, objective.tail_weight
        joint = weight * self._time + tail_weight * self._tail  # [policies, n]
        fixed = weight * self._fixed_time + tail_weight * instance.fixed_tail_ticks
        sizes = np.arange(joint.shape[1])
        possible = (sizes > 0) & (sizes <= self._most[:, :, None])
        costs = np.where(possible, joint[:, None, :] + fixed[:, None], _NEVER)
        flat = costs.reshape(len(costs), -1)
        place = min(instance.layers, flat.shape[1]) - 1
        peak = np.partition(flat, place, axis=1)[:, place]
        fits = (self._most >= instance.min_layers).all(axis=1)
        fits &= self._most.sum(axis=1) >= instance.layers
        per_layer = np.where(sizes > 0, self._time / np.maximum(sizes, 1), np.inf).min(axis=1)
        least = np.floor(per_layer * instance.layers).astype(np.int64) - 1
        total = least + int(self._fixed_time.sum())
        return np.where(fits, np.minimum(peak, _NEVER) + total, _NEVER)

    def _one_policy(self, index: int, cutoff: int) -> tuple[int, tuple[int, ...]] | None:
        """Best sizes under one policy with a numerator below the cutoff."""
        instance, objective = self._instance, self._instance.objective
        weight, tail_weight = objective.bottlenecks[0].weight, objective.tail_weight
        most = self._most[index]
        times = self._time[index][None, :] + self._fixed_time[:, None]  # [p, n]
        tails = self._tail[index][None, :] + instance.fixed_tail_ticks[:, None]
        least_sum = self._least_sum(times, most)
        best: tuple[int, tuple[int, ...]] | None = None
        for time_limit in self._limits(times, most):
            if least_sum + weight * time_limit >= cutoff:
                break
            within = np.minimum(most, (times <= time_limit).sum(axis=1) - 1)
            for tail_limit in self._limits(tails, within):
                floor = least_sum + weight * time_limit + tail_weight * tail_limit
                if floor >= cutoff:
                    break
                high = np.minimum(within, (tails <= tail_limit).sum(axis=1) - 1)
                path = self._shortest(times, high)
                if path is None:
                    continue
                total, sizes = path
                stages = np.arange(instance.stages)
                value = (
                    total
                    + weight * int(times[stages, sizes].max())
                    + tail_weight * int(tails[stages, sizes].max())
                )
                if value < cutoff:
                    cutoff, best = value, (value, sizes)
                if total == least_sum:
                    break
        return best

    def _least_sum(self, times: IntArray, most: IntArray) -> int:
        path = self._shortest(times, most)
        return _NEVER if path is None else path[0]

    def _limits(self, table: IntArray, most: IntArray) -> list[int]:
        """Values of a table [p, n] at which the possible sizes change, from the first that works.

        Both tables rise with the size, so the L-th smallest value is the first that works.
        """
        instance = self._instance
        if (most < instance.min_layers).any() or int(most.sum()) < instance.layers:
            return []
        sizes = np.arange(table.shape[1])
        values = np.sort(table[(sizes > 0) & (sizes <= most[:, None])])
        smallest = table[np.arange(instance.stages), instance.min_layers].max()
        first = max(values[instance.layers - 1], smallest)
        limits: list[int] = np.unique(values[values >= first]).tolist()
        return limits

    def _shortest(self, times: IntArray, high: IntArray) -> tuple[int, tuple[int, ...]] | None:
        """Least sum of times over all partitions with sizes up to ``high``, and the sizes."""
        instance = self._instance
        low = instance.min_layers
        if (high < low).any() or not int(low.sum()) <= instance.layers <= int(high.sum()):
            return None
        length = np.full(instance.layers + 1, _NEVER, dtype=np.int64)
        length[0] = 0
        chosen = []
        for s in range(instance.stages):
            sizes = range(int(low[s]), int(high[s]) + 1)
            options = np.full((len(sizes), len(length)), _NEVER, dtype=np.int64)
            for row, size in enumerate(sizes):
                options[row, size:] = length[: len(length) - size] + times[s, size]
            pick = options.argmin(axis=0)
            chosen.append(pick + int(low[s]))
            length = np.minimum(options[pick, np.arange(len(length))], _NEVER)
        if length[-1] >= _NEVER:
            return None
        boundary = instance.layers
        path: list[int] = []
        for pick in reversed(chosen):
            path.insert(0, int(pick[boundary]))
            boundary -= path[0]
        return int(length[-1]), tuple(path)
