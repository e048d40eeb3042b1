"""Pipeline schedules: when every stage runs the forward and backward work of every microbatch.

A *route* is a chain of virtual stages that its microbatches walk forward and back; a plain, looped
or ``V``-shaped placement has one route, a bidirectional one two. Every pair of a stage and a
microbatch of its route has a forward ``F``, an input-gradient ``B`` and, unless backwards are
fused, a weight-gradient ``W``. A device runs one operation at a time. ``F`` waits for the ``F``
before it on the route and the delay of the cut, ``B`` for the ``B`` after it (at the end of the
route for its own ``F``), ``W`` for its own ``B``. The schedule minimises the makespan, the end of
the last operation, counted from 0.

Memory of a device changes when an operation starts, if it rises, and when it ends, if it falls:
``F`` by ``forward_memory``, and so on. Two choices a pair may have lower it between ``F`` and
``B``: *recomputation* (``B`` takes ``recompute_ticks`` longer, and ``recompute_memory`` is held
only while ``B`` runs) and *offload* (``offload_memory`` is given back when a transfer to the host
ends and taken again when the transfer back, which ends before ``B``, starts). The host link of a
device carries one transfer at a time, in both directions together.
"""

from __future__ import annotations

import hashlib
from collections import deque
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ilp_parallel.problems.check import Check

if TYPE_CHECKING:
    from collections.abc import Sequence

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

F, B, W = 0, 1, 2
"""Kinds of operations; also the rows of :attr:`ScheduleSolution.start_ticks`."""


@dataclass(frozen=True, slots=True, eq=False)
class ScheduleInstance:
    """Stages are numbered route by route, ``V`` in all; memory is in units of the source.

    A *pair* ``first_pair[j] + i`` is microbatch ``i`` of its route on stage ``j``.
    """

    name: str
    devices: int
    fused: bool  # B includes the weight gradient and there is no W
    route_first: IntArray  # [routes + 1] first stage of each route
    microbatches: IntArray  # [routes]
    stage_device: IntArray  # [V]
    forward_ticks: IntArray  # [V]
    backward_ticks: IntArray  # [V]
    weight_ticks: IntArray  # [V], 0 where fused
    cut_ticks: IntArray  # [V] one way from a stage to the next; 0 at the end of a route
    forward_memory: IntArray  # [V] >= 0
    backward_memory: IntArray  # [V] > 0 where W wants what was to be recomputed
    weight_memory: IntArray  # [V] <= 0
    capacity: IntArray  # [devices]
    recompute_ticks: IntArray  # [V]
    recompute_memory: IntArray  # [V] 0 where recomputation is not offered
    offload_memory: IntArray  # [V] 0 where offload is not offered
    offload_ticks: IntArray  # [V]
    reload_ticks: IntArray  # [V]

    @property
    def stages(self) -> int:
        """Number of virtual stages on all routes."""
        return len(self.stage_device)

    @property
    def kinds(self) -> int:
        """Two kinds of operations where backwards are fused, otherwise three."""
        return 2 if self.fused else 3

    @property
    def stage_route(self) -> IntArray:
        """[V] route of each stage."""
        lengths = np.diff(self.route_first)
        return np.repeat(np.arange(len(lengths)), lengths)

    @property
    def first_pair(self) -> IntArray:
        """[V + 1] where the pairs of each stage begin."""
        return np.concatenate(([0], np.cumsum(self.microbatches[self.stage_route])))

    @property
    def pairs(self) -> int:
        """Number of pairs."""
        return int(self.first_pair[-1])

    @property
    def pair_stage(self) -> IntArray:
        """[pairs] stage of each pair."""
        return np.repeat(np.arange(self.stages), self.microbatches[self.stage_route])

    @property
    def offers_offload(self) -> bool:
        """Whether any stage may offload."""
        return bool(self.offload_memory.any())

    @property
    def offers_recomputation(self) -> bool:
        """Whether any stage may recompute."""
        return bool(self.recompute_memory.any())

    def durations(self) -> IntArray:
        """[3, V] ticks of F, B and W without recomputation."""
        return np.stack((self.forward_ticks, self.backward_ticks, self.weight_ticks))

    def device_load_ticks(self) -> IntArray:
        """[devices] work of every device without recomputation."""
        work = self.durations().sum(axis=0) * self.microbatches[self.stage_route]
        return np.bincount(self.stage_device, work, self.devices).astype(np.int64)

    def digest(self) -> str:
        """SHA-256 of everything but the name."""
        found = hashlib.sha256()
        for field in fields(self):
            if field.name != "name":
                value = np.asarray(getattr(self, field.name), dtype=np.int64)
                found.update(f"{field.name}{value.tolist()}".encode())
        return found.hexdigest()


@dataclass(frozen=True, slots=True, eq=False)
class ScheduleSolution:
    """Starts of all operations. Without transfers and recomputation the last three are None."""

    start_ticks: IntArray  # [kinds, pairs]
    recomputed: BoolArray | None = None  # [pairs]
    offload_start: IntArray | None = None  # [pairs], -1: not offloaded
    reload_start: IntArray | None = None  # [pairs], -1: not offloaded


@dataclass(frozen=True, slots=True, eq=False)
class MemoryUse:
    """Memory of one device: ``held[i]`` from ``times_ticks[i]`` on, until the next time."""

    times_ticks: IntArray
    held: IntArray

    @property
    def peak(self) -> int:
        """Largest amount held."""
        return int(self.held.max(initial=0))


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """Makespan (None if the shape is wrong), memory per device and the verdict of every rule."""

    makespan_ticks: int | None
    memory: tuple[MemoryUse, ...]
    checks: tuple[Check, ...]

    @property
    def feasible(self) -> bool:
        """Whether every rule holds."""
        return all(check.passed for check in self.checks)


class DeadlockError(ValueError):
    """Orders that wait for each other."""


def evaluate(instance: ScheduleInstance, solution: ScheduleSolution) -> Evaluation:
    """Check a schedule against every rule and price it exactly."""
    shape = _shape_check(instance, solution)
    if not shape.passed:
        return Evaluation(None, (), (shape,))
    start = solution.start_ticks
    end = start + operation_ticks(instance, solution)
    memory = tuple(_memory_use(instance, solution, end, d) for d in range(instance.devices))
    checks = [
        shape,
        _at_least("starts_at_zero", start.ravel()),
        _data_check(instance, start, end),
        _overlap_check(instance, start, end),
        _memory_check(instance, memory),
    ]
    if solution.offload_start is not None or solution.reload_start is not None:
        checks += _transfer_checks(instance, solution, start, end)
    if solution.recomputed is not None:
        offered = instance.recompute_memory[instance.pair_stage] > 0
        wrong = int((solution.recomputed & ~offered).sum())
        checks.append(Check("recomputation_is_offered", wrong == 0, -wrong, "pairs"))
    return Evaluation(int(end.max()), memory, tuple(checks))


def operation_ticks(instance: ScheduleInstance, solution: ScheduleSolution) -> IntArray:
    """[kinds, pairs] how long operations take, recomputation included."""
    ticks = instance.durations()[: instance.kinds, instance.pair_stage]
    if solution.recomputed is not None:
        ticks[B] += solution.recomputed * instance.recompute_ticks[instance.pair_stage]
    return ticks


def _shape_check(instance: ScheduleInstance, solution: ScheduleSolution) -> Check:
    """One start for every operation, and transfers in pairs."""
    wrong = int(solution.start_ticks.shape != (instance.kinds, instance.pairs))
    out, back = solution.offload_start, solution.reload_start
    wrong += int((out is None) != (back is None))
    for part in (solution.recomputed, out, back):
        wrong += int(part is not None and part.shape != (instance.pairs,))
    if not wrong and out is not None and back is not None:
        wrong = int(((out < 0) != (back < 0)).sum())
    return Check("every_operation_once", wrong == 0, -wrong, "arrays")


def _at_least(name: str, slack: IntArray) -> Check:
    """A rule that holds where no slack is negative."""
    least = int(slack.min(initial=2**62))
    return Check(name, least >= 0, least, "ticks")


def _data_check(instance: ScheduleInstance, start: IntArray, end: IntArray) -> Check:
    """Inputs are there when operations start."""
    slack = []
    first = instance.first_pair
    for r, count in enumerate(instance.microbatches.tolist()):
        low, high = int(instance.route_first[r]), int(instance.route_first[r + 1])
        shape = (high - low, count)
        part = slice(int(first[low]), int(first[high]))
        f_start, f_end = start[F, part].reshape(shape), end[F, part].reshape(shape)
        b_start, b_end = start[B, part].reshape(shape), end[B, part].reshape(shape)
        cut = instance.cut_ticks[low : high - 1, None]
        slack.append((f_start[1:] - f_end[:-1] - cut).ravel())
        slack.append((b_start[:-1] - b_end[1:] - cut).ravel())
        slack.append(b_start[-1] - f_end[-1])
    if not instance.fused:
        slack.append(start[W] - end[B])
    return _at_least("data_dependences", np.concatenate(slack))


def _overlap_check(instance: ScheduleInstance, start: IntArray, end: IntArray) -> Check:
    """A device runs one operation at a time."""
    device = np.broadcast_to(instance.stage_device[instance.pair_stage], start.shape)
    return _at_least("one_at_a_time", _gaps(device.ravel(), start.ravel(), end.ravel()))


def _gaps(lane: IntArray, start: IntArray, end: IntArray) -> IntArray:
    """Room between each activity and those before it in its lane; negative where they overlap.

    Activities that take no time may lie anywhere but inside another one.
    """
    order = np.lexsort((end, start, lane))
    lane, start, end = lane[order], start[order], end[order]
    same = lane[1:] == lane[:-1]
    gaps: IntArray = (start[1:] - end[:-1])[same]
    return gaps


def _transfer_checks(
    instance: ScheduleInstance, solution: ScheduleSolution, start: IntArray, end: IntArray
) -> list[Check]:
    """F, then away, then back, then B; one transfer at a time on a link; only where offered."""
    out, back = solution.offload_start, solution.reload_start
    assert out is not None
    assert back is not None
    moved = np.flatnonzero(out >= 0)
    stage = instance.pair_stage[moved]
    out, back = out[moved], back[moved]
    out_end, back_end = out + instance.offload_ticks[stage], back + instance.reload_ticks[stage]
    order = np.concatenate((out - end[F, moved], back - out_end, start[B, moved] - back_end))
    lane = np.tile(instance.stage_device[stage], 2)
    both = np.concatenate((out, back)), np.concatenate((out_end, back_end))
    wrong = int((instance.offload_memory[stage] == 0).sum())
    if solution.recomputed is not None:
        wrong += int(solution.recomputed[moved].sum())
    return [
        _at_least("away_and_back_between_f_and_b", order),
        _at_least("one_transfer_at_a_time", _gaps(lane, *both)),
        Check("offload_is_offered", wrong == 0, -wrong, "pairs"),
    ]


def _memory_check(instance: ScheduleInstance, memory: tuple[MemoryUse, ...]) -> Check:
    """No device ever holds more than it may."""
    pairs = zip(instance.capacity.tolist(), memory, strict=True)
    slack = min(capacity - use.peak for capacity, use in pairs)
    return Check("memory", slack >= 0, slack, "memory units")


def _memory_use(
    instance: ScheduleInstance, solution: ScheduleSolution, end: IntArray, device: int
) -> MemoryUse:
    """The curve of one device; what is given back at an instant is free at that instant."""
    mine = np.flatnonzero(instance.stage_device[instance.pair_stage] == device)
    stage, start = instance.pair_stage[mine], solution.start_ticks[:, mine]
    again = np.zeros(len(mine), dtype=np.int64)
    if solution.recomputed is not None:
        again = solution.recomputed[mine] * instance.recompute_memory[stage]
    changes = [
        (start[F], instance.forward_memory[stage] - again),
        (start[B], again + np.maximum(instance.backward_memory[stage], 0)),
        (end[B, mine], np.minimum(instance.backward_memory[stage], 0)),
    ]
    if not instance.fused:
        changes.append((end[W, mine], instance.weight_memory[stage]))
    out, back = solution.offload_start, solution.reload_start
    if out is not None and back is not None:
        moved = out[mine] >= 0
        held = instance.offload_memory[stage][moved]
        changes.append((out[mine][moved] + instance.offload_ticks[stage][moved], -held))
        changes.append((back[mine][moved], held))
    times = np.concatenate([when for when, _ in changes])
    amount = np.concatenate([change for _, change in changes])
    instants, place = np.unique(times, return_inverse=True)
    net = np.zeros(len(instants), dtype=np.int64)
    np.add.at(net, place, amount)
    return MemoryUse(instants, np.cumsum(net))


def replay(
    instance: ScheduleInstance,
    orders: Sequence[Sequence[int]],
    recomputed: BoolArray | None = None,
) -> ScheduleSolution:
    """Start everything as early as orders and data allow, without transfers to the host.

    Parameters
    ----------
    orders
        Per device its operations in order; an operation is ``kind * pairs + pair``.

    Raises
    ------
    DeadlockError
        If the orders wait for each other.
    ValueError
        If an operation is missing, doubled or on another device.
    """
    _require_complete(instance, orders)
    empty = ScheduleSolution(np.zeros((instance.kinds, instance.pairs), np.int64), recomputed)
    ticks = operation_ticks(instance, empty).ravel().tolist()
    after = successors(instance)
    waits = [0] * len(ticks)
    for order in orders:
        for earlier, later in pairwise(order):
            after[earlier].append((later, 0))
    for followers in after:
        for later, _ in followers:
            waits[later] += 1
    start = [0] * len(ticks)
    ready = deque(op for op, count in enumerate(waits) if not count)
    done = 0
    while ready:
        op = ready.popleft()
        done += 1
        finish = start[op] + ticks[op]
        for later, delay in after[op]:
            start[later] = max(start[later], finish + delay)
            waits[later] -= 1
            if not waits[later]:
                ready.append(later)
    if done < len(ticks):
        raise DeadlockError("the orders of the devices deadlock")
    starts = np.array(start, dtype=np.int64).reshape(instance.kinds, instance.pairs)
    return ScheduleSolution(starts, recomputed)


def successors(instance: ScheduleInstance) -> list[list[tuple[int, int]]]:
    """Per operation those that need its output, with the delay in ticks."""
    pairs, first = instance.pairs, instance.first_pair.tolist()
    after: list[list[tuple[int, int]]] = [[] for _ in range(instance.kinds * pairs)]
    ends = set((instance.route_first[1:] - 1).tolist())
    for j in range(instance.stages):
        count, cut = first[j + 1] - first[j], int(instance.cut_ticks[j])
        for pair in range(first[j], first[j + 1]):
            if j in ends:
                after[pair].append((pairs + pair, 0))
            else:
                after[pair].append((pair + count, cut))
                after[pairs + pair + count].append((pairs + pair, cut))
            if not instance.fused:
                after[pairs + pair].append((2 * pairs + pair, 0))
    return after


def _require_complete(instance: ScheduleInstance, orders: Sequence[Sequence[int]]) -> None:
    """Every operation once, on its own device."""
    lane = np.tile(instance.stage_device[instance.pair_stage], instance.kinds)
    given = np.concatenate([np.asarray(order, dtype=np.int64) for order in orders])
    where = np.repeat(np.arange(len(orders)), [len(order) for order in orders])
    if not np.array_equal(np.sort(given), np.arange(len(lane))):
        raise ValueError("an operation is missing or doubled")
    if not np.array_equal(lane[given], where):
        raise ValueError("an operation is on another device")


def device_orders(instance: ScheduleInstance, solution: ScheduleSolution) -> list[list[int]]:
    """Per device its operations by start; the inverse of :func:`replay` where nothing is idle."""
    start = solution.start_ticks
    end = start + operation_ticks(instance, solution)
    lane = np.tile(instance.stage_device[instance.pair_stage], instance.kinds)
    order = np.lexsort((end.ravel(), start.ravel(), lane))
    return [order[lane[order] == d].tolist() for d in range(instance.devices)]
