"""Transfers to the host fitted into a given order of work: an offload heuristic after OptPipe's.

Every device walks its order. Where memory does not suffice for the next ``F``, or for a part that
has to come back, it evicts the part whose ``B`` comes last in the order; a part comes back a fixed
number of operations before its ``B``. Each such decision is an arc of a graph, and all operations
and transfers start as early as its longest paths allow.

Source: OptPipe (Li et al. 2025, arXiv:2510.05186) starts its integer program from a heuristic that
offloads what is needed latest; the graph is ours.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from ilp_parallel.problems.schedule import (
    B,
    F,
    ScheduleSolution,
    device_orders,
    evaluate,
    successors,
)
from ilp_parallel.scheduling.dispatch import dispatch
from ilp_parallel.scheduling.search import policies

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ilp_parallel.problems.schedule import ScheduleInstance

_AHEAD = (1, 2, 3, 4, 6, 8, 12)
"""Operations between the start of a transfer back and its ``B`` (chosen)."""


def offload_schedule(
    instance: ScheduleInstance, bound: int, deadline: float
) -> ScheduleSolution | None:
    """The best schedule with transfers found for the orders of a list scheduler with more memory.

    ``deadline`` is a reading of :func:`time.monotonic`.
    """
    best: ScheduleSolution | None = None
    least = 2**62
    seen: set[tuple[tuple[int, ...], ...]] = set()
    for factor in (4, 2, 3, 1):
        wide = replace(instance, capacity=instance.capacity * factor)
        for number, policy in enumerate(policies(wide)):
            if number > 400 or time.monotonic() > deadline or least <= bound:
                break
            base = dispatch(wide, policy)
            orders = [] if base is None else device_orders(wide, base)
            key = tuple(tuple(order) for order in orders)
            if base is None or key in seen:
                continue
            seen.add(key)
            for ahead in _AHEAD:
                found = with_transfers(instance, orders, ahead)
                if found is None:
                    continue
                makespan = evaluate(instance, found).makespan_ticks
                if makespan is not None and makespan < least:
                    best, least = found, makespan
    return best


def with_transfers(
    instance: ScheduleInstance, orders: Sequence[Sequence[int]], ahead: int
) -> ScheduleSolution | None:
    """The schedule of these orders, parts coming back ``ahead`` operations early; None if stuck."""
    graph = _Graph.of(instance)
    for device, order in enumerate(orders):
        if not _Walk(instance, graph, list(order), device, ahead).run():
            return None
    start = graph.longest_paths()
    if start is None:
        return None
    count = instance.kinds * instance.pairs
    starts = np.array(start[:count], dtype=np.int64).reshape(instance.kinds, instance.pairs)
    out, back = np.full((2, instance.pairs), -1, dtype=np.int64)
    for pair in graph.moved:
        out[pair], back[pair] = start[count + pair], start[count + instance.pairs + pair]
    solution = ScheduleSolution(starts, None, out, back)
    return solution if evaluate(instance, solution).feasible else None


@dataclass(slots=True)
class _Graph:
    """Operations, then transfers away, then transfers back; arcs carry a delay."""

    ticks: list[int]
    after: list[list[tuple[int, int]]]
    moved: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, instance: ScheduleInstance) -> _Graph:
        stage = instance.pair_stage
        ticks = [
            *instance.durations()[: instance.kinds, stage].ravel().tolist(),
            *instance.offload_ticks[stage].tolist(),
            *instance.reload_ticks[stage].tolist(),
        ]
        after = successors(instance) + [[] for _ in range(2 * instance.pairs)]
        return cls(ticks, after)

    def longest_paths(self) -> list[int] | None:
        """Earliest starts; None where there is a cycle."""
        waits = [0] * len(self.ticks)
        for followers in self.after:
            for later, _ in followers:
                waits[later] += 1
        start = [0] * len(self.ticks)
        ready = deque(node for node, count in enumerate(waits) if not count)
        done = 0
        while ready:
            node = ready.popleft()
            done += 1
            for later, delay in self.after[node]:
                start[later] = max(start[later], start[node] + self.ticks[node] + delay)
                waits[later] -= 1
                if not waits[later]:
                    ready.append(later)
        return start if done == len(self.ticks) else None


class _Walk:
    """One device: memory along its order, and who waits for which transfer."""

    def __init__(
        self, instance: ScheduleInstance, graph: _Graph, order: list[int], device: int, ahead: int
    ) -> None:
        self.graph, self.order, self.ahead = graph, order, ahead
        self.pairs = instance.pairs
        self.away = instance.kinds * instance.pairs
        self.home = self.away + instance.pairs
        by_kind = (instance.forward_memory, instance.backward_memory, instance.weight_memory)
        self.change = [row[instance.pair_stage].tolist() for row in by_kind]
        self.part = instance.offload_memory[instance.pair_stage].tolist()
        self.left = int(instance.capacity[device])
        self.backward_at = {
            op % self.pairs: i for i, op in enumerate(order) if op // self.pairs == B
        }
        self.resident: set[int] = set()
        self.coming: dict[int, list[int]] = {}
        self.last_transfer = -1
        self.waiting: list[int] = []  # transfers that what comes next must wait for

    def run(self) -> bool:
        """Walk the order; False where memory cannot be made."""
        previous = -1
        for place, op in enumerate(self.order):
            kind, pair = divmod(op, self.pairs)
            if previous >= 0:
                self.graph.after[previous].append((op, 0))
            for returning in self.coming.pop(place, ()):
                if not self._take(self.part[returning], self.home + returning, place):
                    return False
                if previous >= 0:
                    self.graph.after[previous].append((self.home + returning, 0))
                self._on_link(self.home + returning)
                self.graph.after[self.home + returning].append((B * self.pairs + returning, 0))
            if kind == F:
                if not self._take(self.change[F][pair], op, place):
                    return False
                if self.part[pair] > 0:
                    self.resident.add(pair)
            else:
                self.left -= self.change[kind][pair]
                self.resident.discard(pair)
            previous = op
        return True

    def _take(self, memory: int, taker: int, place: int) -> bool:
        """Make room for ``taker``; later takers wait for the same transfers through the order."""
        while self.left < memory:
            possible = [p for p in self.resident if self.backward_at[p] - self.ahead > place]
            if not possible:
                return False
            victim = max(possible, key=lambda p: (self.backward_at[p], -p))
            self.resident.remove(victim)
            self.graph.moved.add(victim)
            self.graph.after[victim].append((self.away + victim, 0))
            self.graph.after[self.away + victim].append((taker, 0))
            self._on_link(self.away + victim)
            self.left += self.part[victim]
            self.coming.setdefault(self.backward_at[victim] - self.ahead, []).append(victim)
        self.left -= memory
        return True

    def _on_link(self, transfer: int) -> None:
        if self.last_transfer >= 0:
            self.graph.after[self.last_transfer].append((transfer, 0))
        self.last_transfer = transfer
