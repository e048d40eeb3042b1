r"""Policies over a chain of layers of several kinds: only the boundaries are left to choose.

Under one policy the stage that holds the layers ``[i, j)`` has the first ``min(h, j - i)`` at the
prefix's pace and the others at the rest's, whatever its position: times, tails and memory of all
ranges are differences of prefix sums. What is left is a path through the boundaries with the least
``sum + w max X + gamma max tail``, found by running through the limits on the largest X and the
largest tail, each limit taking steps away from a shortest path.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ilp_parallel.problems.pipeline import PipelineSolution, policy_strategies

if TYPE_CHECKING:
    from ilp_parallel.problems.pipeline import IntArray, PipelineInstance, Policy

BoolArray = npt.NDArray[np.bool_]
_NEVER = 2**60


class KindPolicies:
    """Tables of one instance, one chunk per device group and one bottleneck.

    Ranges are ``[L + 1, L + 1]``: row first boundary, column last boundary.
    """

    def __init__(self, instance: PipelineInstance) -> None:
        self._instance = instance
        self._time = self._prefix(instance.forward_ticks + instance.backward_ticks)
        self._fixed_time = instance.stage_forward_ticks + instance.stage_backward_ticks
        place = np.arange(instance.layers + 1)
        self._first, self._last = place[:, None], place[None, :]
        size = self._last - self._first
        self._sized = (size >= instance.min_layers[:, None, None]) & (
            size <= instance.max_layers[:, None, None]
        )

    @staticmethod
    def applies(instance: PipelineInstance) -> bool:
        """Whether there are policies, one chunk per group, free resharding and one bottleneck."""
        return (
            instance.policies is not None
            and instance.reshard_forward_ticks is None
            and instance.chunks == 1
            and len(instance.objective.bottlenecks) == 1
        )

    def optimum(self, cutoff: int | None) -> tuple[int, PipelineSolution] | None:
        """Cheapest solution over all policies, strictly below the cutoff."""
        best = _NEVER if cutoff is None else cutoff
        found: tuple[int, PipelineSolution] | None = None
        policies = self._instance.policies or ()
        bounds = [self._quick_bound(policy) for policy in policies]
        for index in np.argsort(bounds, kind="stable").tolist():
            if bounds[index] >= best:
                break
            result = _OnePolicy(self, policies[index]).optimum(best)
            if result is not None:
                best, sizes = result
                found = best, PipelineSolution(sizes, policy_strategies(policies[index], sizes))
        return found

    def _quick_bound(self, policy: Policy) -> int:
        """Every layer at the faster pace, some group holding an equal share of the time."""
        weight = self._instance.objective.bottlenecks[0].weight
        used = [policy.rest] if policy.prefix_layers == 0 else [policy.prefix, policy.rest]
        total = int(np.diff(self._time[used], axis=1).min(axis=0).sum())
        total += int(self._fixed_time.sum())
        return total + weight * -(-total // self._instance.stages)

    # --- ranges under one policy -----------------------------------------------------------------

    def _prefix(self, table: IntArray) -> IntArray:
        """[K, L + 1] sums over the first layers under each strategy, from a table [Q, K]."""
        layers = table[self._instance.layer_class].T
        start = np.zeros((len(layers), 1), dtype=np.int64)
        return np.concatenate([start, np.cumsum(layers, axis=1)], axis=1)

    def _mixed(self, policy: Policy, prefix: IntArray) -> IntArray:
        """[L + 1, L + 1] sums over ranges: first layers at the prefix, others at the rest."""
        middle = np.minimum(self._first + policy.prefix_layers, self._last)
        head = prefix[policy.prefix]
        rest = prefix[policy.rest]
        sums: IntArray = head[middle] - head[self._first] + rest[self._last] - rest[middle]
        return sums

    def times(self, policy: Policy) -> IntArray:
        """X of every range without fixed parts."""
        return self._mixed(policy, self._time)

    @cached_property
    def _tables(self) -> tuple[IntArray, IntArray, IntArray]:
        """Prefix sums [K, L + 1] of tail, state and activation."""
        instance = self._instance
        tables = (instance.tail_ticks, instance.state_bytes, instance.activation_bytes)
        tail, state, activation = (self._prefix(table) for table in tables)
        return tail, state, activation

    def tails(self, policy: Policy) -> IntArray:
        """Tail of every range without fixed parts."""
        return self._mixed(policy, self._tables[0])

    def fits(self, policy: Policy) -> BoolArray:
        """[p, L + 1, L + 1] ranges of allowed size, strategy and memory."""
        instance = self._instance
        _, state, activation = self._tables
        states, activations = self._mixed(policy, state), self._mixed(policy, activation)
        allowed = self._mixed(policy, self._prefix((~instance.allowed).astype(np.int64))) == 0
        needed = states + self._largest_transient(policy)
        alive = np.array([int(rows.max()) for rows in instance.in_flight], dtype=np.int64)
        room = instance.capacity_bytes - instance.fixed_bytes
        memory = needed + alive[:, None, None] * activations
        within = (memory <= room[:, None, None]) & allowed & self._sized
        return np.asarray(within, dtype=np.bool_)

    def _largest_transient(self, policy: Policy) -> IntArray:
        """[L + 1, L + 1] largest transient of a range: by kind, where the range has that kind."""
        instance = self._instance
        largest: IntArray = np.zeros_like(self._last + self._first)
        for kind, transient in enumerate(instance.transient_bytes):
            for strategy in {policy.prefix, policy.rest}:
                mine = np.zeros_like(instance.state_bytes)
                mine[kind, strategy] = 1
                present = self._mixed(policy, self._prefix(mine)) > 0
                largest = np.where(present, np.maximum(largest, transient[strategy]), largest)
        return largest


class _OnePolicy:
    """Best boundaries under one policy."""

    def __init__(self, tables: KindPolicies, policy: Policy) -> None:
        instance = self._instance = tables._instance
        self._times = tables.times(policy)[None] + tables._fixed_time[:, None, None]
        self._tails = tables.tails(policy)[None] + instance.fixed_tail_ticks[:, None, None]
        self._fits = tables.fits(policy)

    def optimum(self, cutoff: int) -> tuple[int, tuple[int, ...]] | None:
        """Least numerator below the cutoff, and the sizes."""
        objective = self._instance.objective
        weight, tail_weight = objective.bottlenecks[0].weight, objective.tail_weight
        whole = self._shortest(self._fits)
        if whole is None:
            return None
        best: tuple[int, tuple[int, ...]] | None = None
        for time_limit in self._limits(self._times, self._fits):
            if whole[0] + weight * time_limit >= cutoff:
                break
            quick = self._fits & (self._times <= time_limit)
            for tail_limit in self._limits(self._tails, quick):
                if whole[0] + weight * time_limit + tail_weight * tail_limit >= cutoff:
                    break
                path = self._shortest(quick & (self._tails <= tail_limit))
                if path is None:
                    continue
                value = path[0] + weight * path[1] + tail_weight * path[2]
                if value < cutoff:
                    cutoff, best = value, (value, path[3])
                if path[0] == whole[0]:
                    break
        return best

    def _limits(self, values: IntArray, steps: BoolArray) -> list[int]:
        """Values [p, L + 1, L + 1] of steps, rising, from the first that leaves a path."""
        candidates = np.unique(values[steps])
        low, high = 0, len(candidates)
        while low < high:
            middle = (low + high) // 2
            if self._reaches(steps & (values <= candidates[middle])):
                high = middle
            else:
                low = middle + 1
        found: list[int] = candidates[low:].tolist()
        return found

    def _reaches(self, steps: BoolArray) -> bool:
        """Whether the steps lead from the first to the last boundary."""
        reached = np.zeros(self._instance.layers + 1, dtype=np.bool_)
        reached[0] = True
        for step in steps:
            reached = step[reached].any(axis=0)
        return bool(reached[-1])

    def _shortest(self, steps: BoolArray) -> tuple[int, int, int, tuple[int, ...]] | None:
        """Least sum of X over paths of steps; its largest X, largest tail and sizes."""
        length = np.full(self._instance.layers + 1, _NEVER, dtype=np.int64)
        length[0] = 0
        before = []
        for step, times in zip(steps, self._times, strict=True):
            total = np.where(step, length[:, None] + times, _NEVER)
            before.append(total.argmin(axis=0))
            length = np.minimum(total.min(axis=0), _NEVER)
        if length[-1] >= _NEVER:
            return None
        ends = [self._instance.layers]
        for choice in reversed(before):
            ends.insert(0, int(choice[ends[0]]))
        places = np.arange(len(ends) - 1), np.array(ends[:-1]), np.array(ends[1:])
        return (
            int(length[-1]),
            int(self._times[places].max()),
            int(self._tails[places].max()),
            tuple(np.diff(ends).tolist()),
        )
