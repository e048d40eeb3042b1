"""Runtimes with one global setting: every policy fixes all strategies once the sizes are known."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ilp_parallel.baselines.plan_labels import place_stages
from ilp_parallel.baselines.stage_labels import (
    Frontier,
    fixed_point,
    split_directions,
    strategy_points,
)
from ilp_parallel.problems.pipeline import PipelineSolution, evaluate, policy_strategies

if TYPE_CHECKING:
    from ilp_parallel.problems.pipeline import PipelineInstance, Policy

IntArray = npt.NDArray[np.int64]


def policy_optimum(
    instance: PipelineInstance, cutoff: int | None
) -> tuple[int, PipelineSolution] | None:
    """Cheapest solution over all policies, strictly below the cutoff."""
    best: tuple[int, PipelineSolution] | None = None
    for bound, policy in _by_bound(instance):
        limit = cutoff if best is None else best[0]
        if limit is not None and bound >= limit:
            break
        found = _one_policy(instance, policy, limit)
        if found is not None:
            best = found
    return best


def _by_bound(instance: PipelineInstance) -> list[tuple[int, Policy]]:
    """Allowed policies, the smallest lower bound first.

    Bound: every layer at the faster of the policy's two strategies, some device group holding at
    least an equal share of the total.
    """
    objective = instance.objective
    result = []
    fixed = int((instance.stage_forward_ticks + instance.stage_backward_ticks).sum())
    joint = len(objective.bottlenecks) == 1
    for policy in instance.policies or ():
        used = [policy.rest] if policy.prefix_layers == 0 else [policy.prefix, policy.rest]
        times = (instance.forward_ticks + instance.backward_ticks)[:, used].min(axis=1)
        total = fixed + int(times[instance.layer_class].sum())
        share = -(-total // instance.stages) if joint else 0
        result.append((total + share * sum(t.weight for t in objective.bottlenecks), policy))
    return sorted(result, key=lambda pair: pair[0])


def _one_policy(
    instance: PipelineInstance, policy: Policy, cutoff: int | None
) -> tuple[int, PipelineSolution] | None:
    if (instance.min_layers == instance.max_layers).all():
        return _fixed_sizes(instance, policy, cutoff)
    return place_stages(instance, _PolicyContents(instance, policy, cutoff), cutoff)


def _fixed_sizes(
    instance: PipelineInstance, policy: Policy, cutoff: int | None
) -> tuple[int, PipelineSolution] | None:
    sizes = tuple(int(size) for size in instance.min_layers)
    if sum(sizes) != instance.layers:
        return None
    solution = PipelineSolution(sizes, policy_strategies(policy, sizes))
    evaluation = evaluate(instance, solution)
    if not evaluation.feasible or (cutoff is not None and evaluation.numerator >= cutoff):
        return None
    return evaluation.numerator, solution


class _PolicyContents:
    """The single content of every range under one policy; one chunk per device group."""

    def __init__(self, instance: PipelineInstance, policy: Policy, cutoff: int | None) -> None:
        self._instance = instance
        self._policy = policy
        self._cutoff = cutoff
        self._added = [strategy_points(instance, s)[:, :, 0] for s in range(instance.stages)]
        self._fixed = [fixed_point(instance, s) for s in range(instance.stages)]
        self._after = np.append(np.cumsum(instance.min_layers[::-1])[::-1], 0).tolist()

    def frontiers(
        self, stage: int, start: int, entry: int | None
    ) -> dict[int, dict[int | None, Frontier]]:
        """The content of every size; what exceeds the memory is left out."""
        instance = self._instance
        longest = min(
            int(instance.max_layers[stage]), instance.layers - self._after[stage + 1] - start
        )
        result: dict[int, dict[int | None, Frontier]] = {}
        most = self._most_time()
        for size in range(int(instance.min_layers[stage]), longest + 1):
            strategies = np.array(policy_strategies(self._policy, (size,)), dtype=np.int64)
            point = self._point(stage, start, entry, strategies)
            if point is None or (most is not None and int(point[:-1].sum()) > most):
                break
            last = int(strategies[-1]) if instance.reshard_forward_ticks is not None else None
            result[size] = {last: Frontier(point[None, :], strategies[None, :])}
        return result

    def _most_time(self) -> int | None:
        """Largest time of one stage that stays below the cutoff (one bottleneck term only)."""
        if self._cutoff is None or split_directions(self._instance):
            return None
        return self._cutoff // (1 + self._instance.objective.bottlenecks[0].weight)

    def _point(
        self, stage: int, start: int, entry: int | None, strategies: IntArray
    ) -> IntArray | None:
        """Bottleneck columns and tail of one content; None if it is refused."""
        instance = self._instance
        classes = instance.layer_class[start : start + len(strategies)]
        if not instance.allowed[classes, strategies].all():
            return None
        rows = self._added[stage][classes, strategies]
        point = self._fixed[stage] + rows.sum(axis=0)
        point[-1] = rows[:, -1].max()
        head = len(instance.objective.bottlenecks) + 1
        if (point[head:-1] + point[-1] > int(instance.capacity_bytes[stage])).any():
            return None
        columns: IntArray = point[:head].copy()
        forward, backward = instance.reshard_forward_ticks, instance.reshard_backward_ticks
        if forward is not None and backward is not None:
            before = strategies[:-1] if entry is None else np.append(entry, strategies[:-1])
            after = strategies[len(strategies) - len(before) :]
            moved = int(forward[before, after].sum()), int(backward[before, after].sum())
            if split_directions(instance):
                columns[:2] += moved
            else:
                columns[0] += sum(moved)
        return columns

    def completion_bound(self, stage: int, boundary: int) -> tuple[int, int, int]:
        """What the later stages cost at least: their fixed parts."""
        del boundary
        fixed = self._fixed[stage:]
        sums = sum(int(point[: len(self._instance.objective.bottlenecks)].sum()) for point in fixed)
        return sums, 0, 0
