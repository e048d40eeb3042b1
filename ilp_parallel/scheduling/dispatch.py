"""A list scheduler: every device, when idle, takes one of the operations it could run.

After zero-bubble's automatic schedule (Qi et al. 2023, arXiv:2401.10241, section 3.2 and appendix):
forwards fill the wait for the first backward as far as memory goes, then backwards go before
forwards, and weight gradients fill what would be idle or free memory that a forward needs. Our
dispatcher looks at arrivals that are already known and may wait for one of them rather than start
something that would delay it. Microbatches of a stage go in order.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ilp_parallel.problems.schedule import B, F, ScheduleSolution, W, successors

if TYPE_CHECKING:
    from ilp_parallel.problems.schedule import ScheduleInstance


@dataclass(frozen=True, slots=True)
class Policy:
    """What a device prefers.

    ``limits`` caps the microbatches between F and the end of B on every stage; the share of an
    operation by which a known arrival of something better may be delayed is ``patience`` (1: start
    whatever is ready).
    """

    limits: tuple[int, ...]
    forward_first: bool = False
    weight_patience: float = 0.5
    forward_patience: float = 1.0
    eager_weight: bool = False  # weight gradients before forwards


def dispatch(instance: ScheduleInstance, policy: Policy) -> ScheduleSolution | None:
    """A schedule that keeps all rules, or None if the devices get stuck."""
    return _Dispatcher(instance, policy).run()


class _Dispatcher:
    """State of one run. Operations are ``kind * pairs + pair``."""

    def __init__(self, instance: ScheduleInstance, policy: Policy) -> None:
        self.policy = policy
        self.pairs, self.kinds, self.devices = instance.pairs, instance.kinds, instance.devices
        self.after = successors(instance)
        self.first = instance.first_pair.tolist()
        self.count = np.diff(instance.first_pair).tolist()
        self.device = instance.stage_device.tolist()
        self.pair_stage = instance.pair_stage.tolist()
        self.ticks = instance.durations().tolist()
        self.change = np.stack(
            (instance.forward_memory, instance.backward_memory, instance.weight_memory)
        ).tolist()
        self.capacity = instance.capacity.tolist()
        self.arrival: list[int] = [-1] * (self.kinds * self.pairs)
        for j in instance.route_first[:-1].tolist():
            self.arrival[self.first[j] : self.first[j + 1]] = [0] * self.count[j]
        self.start = [-1] * (self.kinds * self.pairs)
        self.next = [[0] * instance.stages for _ in range(self.kinds)]
        self.held = [0] * self.devices
        self.free_at = [0] * self.devices
        self.mine: list[list[int]] = [[] for _ in range(self.devices)]
        for j in reversed(range(instance.stages)):  # deeper stages are looked at first
            self.mine[self.device[j]].append(j)

    def run(self) -> ScheduleSolution | None:
        """Events in order of time; a device is looked at when it or an input becomes free."""
        events = [(0, d) for d in range(self.devices)]
        left = len(self.start)
        seen = -1
        while events:
            now, d = heapq.heappop(events)
            if self.free_at[d] > now:
                continue
            chosen = self._choose(d, now)
            if chosen is None:
                continue
            left -= 1
            for when, where in self._begin(d, now, *chosen):
                heapq.heappush(events, (when, where))
            seen = now
        if left:
            return None
        assert seen >= 0
        starts = np.array(self.start, dtype=np.int64).reshape(self.kinds, self.pairs)
        return ScheduleSolution(starts)

    def _begin(self, d: int, now: int, kind: int, j: int) -> list[tuple[int, int]]:
        """Start the next operation of a kind on a stage; returns who is to be woken when."""
        op = kind * self.pairs + self.first[j] + self.next[kind][j]
        self.next[kind][j] += 1
        self.start[op] = now
        end = now + self.ticks[kind][j]
        self.held[d] += self.change[kind][j]
        self.free_at[d] = end
        woken = [(end, d)]
        for later, delay in self.after[op]:
            self.arrival[later] = end + delay
            where = self.device[self.pair_stage[later % self.pairs]]
            if where != d or delay:
                woken.append((end + delay, where))
        return woken

    def _arrival(self, kind: int, j: int) -> int:
        """When the next operation of a kind can start; -1 if that is not known or none is left."""
        i = self.next[kind][j]
        return self.arrival[kind * self.pairs + self.first[j] + i] if i < self.count[j] else -1

    def _choose(self, d: int, now: int) -> tuple[int, int] | None:
        """Kind and stage of what device ``d`` starts now."""
        policy = self.policy
        backward = self._earliest(B, d, now)
        if backward is not None and not self._fits(B, backward):
            backward = None  # a weight gradient that gives memory back comes first
        forward, starved = self._forward(d, now)
        if backward is not None and not (policy.forward_first and forward is not None):
            return B, backward
        weight = self._earliest(W, d, now) if self.kinds > W else None
        if forward is not None and not (policy.eager_weight and weight is not None):
            if self._may_delay(B, d, now, self.ticks[F][forward], policy.forward_patience):
                return F, forward
            forward = None
        if weight is None:
            return (F, forward) if forward is not None else None
        if starved:
            return W, weight
        length, patience = self.ticks[W][weight], policy.weight_patience
        if self._may_delay(B, d, now, length, patience) and self._may_delay(
            F, d, now, length, patience
        ):
            return W, weight
        return None

    def _earliest(self, kind: int, d: int, now: int) -> int | None:
        """Stage whose next operation of a kind has been ready for longest."""
        best, since = None, now + 1
        for j in self.mine[d]:
            ready = self._arrival(kind, j)
            if 0 <= ready < since:
                best, since = j, ready
        return best

    def _forward(self, d: int, now: int) -> tuple[int | None, bool]:
        """Deepest stage with a forward that may start, and whether memory keeps one back."""
        starved = False
        for j in self.mine[d]:
            if not 0 <= self._arrival(F, j) <= now or not self._admits(j):
                continue
            if self._fits(F, j):
                return j, False
            starved = True
        return None, starved

    def _fits(self, kind: int, j: int) -> bool:
        """Whether memory suffices for an operation of a stage now."""
        d = self.device[j]
        return bool(self.change[kind][j] <= max(0, self.capacity[d] - self.held[d]))

    def _admits(self, j: int) -> bool:
        return self.next[F][j] - self.next[B][j] < self.policy.limits[j]

    def _may_delay(self, kind: int, d: int, now: int, length: int, patience: float) -> bool:
        """Whether something of ``length`` may start although an operation of a kind is on its way.

        The delay, from the arrival to the end, must be at most ``patience`` of the length.
        """
        for j in self.mine[d]:
            if kind == F and not (self._admits(j) and self._fits(F, j)):
                continue
            ready = self._arrival(kind, j)
            if ready > now and now + length - ready > patience * length:
                return False
        return True
