r"""Lower bounds on the makespan of any schedule that keeps memory, in exact integers.

Notation, for stage ``j`` of a route with ``m`` microbatches: :math:`F_j, B_j, W_j` ticks,
:math:`c_j` delay to the next stage, and

.. math::
    head_j = \sum_{i<j} (F_i + c_i), \quad
    trip_j = F_j + \sum_{i>j} (F_i + B_i) + 2 \sum_{i \ge j} c_i, \quad
    back_j = \sum_{i<j} (c_i + B_i) + W_{first},

sums over the stages of the route. No ``F`` of stage ``j`` starts before :math:`head_j`; the ``B``
of a microbatch starts at least :math:`trip_j` after its ``F`` started; and after the end of a
``B`` of stage ``j`` the schedule lasts at least :math:`back_j`, for the input gradient must still
reach the first stage, whose ``W`` comes after its ``B``. (Sums run along paths of data
dependences.) "Operation number ``i``" of a kind counts from 0 in order of time.

*Order statistics.* Operation number ``i`` of kind ``B`` on a stage starts at least :math:`trip_j`
after number ``i`` of kind ``F``: of the ``i + 1`` microbatches with the earliest ``B``, one has an
``F`` numbered ``i`` or later.

Recomputation only makes ``B`` longer, offload only adds work on the link: every argument below uses
lower ends of both, and says where memory is concerned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ilp_parallel.problems.schedule import ScheduleInstance


@dataclass(frozen=True, slots=True)
class Bound:
    """A proven lower bound, by name, and the stage or device that gives it."""

    name: str
    ticks: int
    place: str


@dataclass(frozen=True, slots=True)
class _Stage:
    """One stage in Python integers, so that nothing overflows."""

    number: int
    device: int
    microbatches: int
    forward: int
    backward: int
    weight: int
    head: int
    trip: int
    back: int
    least_forward_memory: int  # what F holds at least until B, whatever is recomputed or offloaded
    forward_memory: int
    kept_memory: int  # between B and W
    weight_memory: int  # what W gives back


def lower_bounds(instance: ScheduleInstance) -> tuple[Bound, ...]:
    """All bounds of this module, best first."""
    stages = _stages(instance)
    found = [
        *_critical_path(stages),
        *(_load(instance, group) for group in _by_device(stages)),
        *(_gradients(group) for group in _by_device(stages)),
        *(bound for group in _by_device(stages) for bound in _warm_up(instance, group)),
        *_in_flight(instance, stages),
    ]
    best: dict[str, Bound] = {}
    for bound in found:
        if bound.name not in best or bound.ticks > best[bound.name].ticks:
            best[bound.name] = bound
    return tuple(sorted(best.values(), key=lambda b: (-b.ticks, b.name)))


def certainly_infeasible(instance: ScheduleInstance) -> str | None:
    """A reason why no schedule exists: a stage whose ``F`` does not fit alone; None if all do.

    While ``B`` runs everything that ``F`` takes without recomputation and offload is there. Where
    one microbatch fits on all stages of every device at once, microbatches can run one after the
    other. Between the two cases this answers None though no schedule may exist.
    """
    rooms = instance.capacity[instance.stage_device].tolist()
    for j, (need, room) in enumerate(zip(instance.forward_memory.tolist(), rooms, strict=True)):
        need += max(0, int(instance.backward_memory[j]))
        if need > room:
            return f"stage {j} needs {need} memory units, its device has {room}"
    return None


def _stages(instance: ScheduleInstance) -> tuple[_Stage, ...]:
    """Heads, trips and tails of every stage."""
    found = []
    f, b, w = (row.tolist() for row in instance.durations())
    cut = instance.cut_ticks.tolist()
    for r, count in enumerate(instance.microbatches.tolist()):
        low, high = int(instance.route_first[r]), int(instance.route_first[r + 1])
        for j in range(low, high):
            before, behind = range(low, j), range(j + 1, high)
            saved = max(int(instance.recompute_memory[j]), int(instance.offload_memory[j]))
            found.append(
                _Stage(
                    number=j,
                    device=int(instance.stage_device[j]),
                    microbatches=count,
                    forward=f[j],
                    backward=b[j],
                    weight=w[j],
                    head=sum(f[i] + cut[i] for i in before),
                    trip=f[j] + sum(f[i] + b[i] for i in behind) + 2 * sum(cut[j : high - 1]),
                    back=sum(cut[i] + b[i] for i in before) + w[low],
                    least_forward_memory=int(instance.forward_memory[j]) - saved,
                    forward_memory=int(instance.forward_memory[j]),
                    kept_memory=int(instance.forward_memory[j] + instance.backward_memory[j]),
                    weight_memory=-int(instance.weight_memory[j]),
                )
            )
    return tuple(found)


def _by_device(stages: tuple[_Stage, ...]) -> list[list[_Stage]]:
    devices = sorted({s.device for s in stages})
    return [[s for s in stages if s.device == d] for d in devices]


def _critical_path(stages: tuple[_Stage, ...]) -> Iterable[Bound]:
    r"""All microbatches through one stage, the last or the first of them on its way.

    :math:`C \ge head_j + (m-1) F_j + trip_j + B_j + back_j`: the last ``F`` starts after the
    others. :math:`C \ge head_j + trip_j + m B_j + back_j`: no ``B`` starts before the first could.
    :math:`C \ge head_j + trip_j + m B_j + W_j` and :math:`C \ge head_j + trip_j + B_j + m W_j`
    likewise, the latter because no ``W`` starts before the end of the first ``B``.
    """
    for s in stages:
        m = s.microbatches
        after = max(s.back, s.weight)
        ticks = max(
            s.head + (m - 1) * s.forward + s.trip + s.backward + after,
            s.head + s.trip + m * s.backward + after,
            s.head + s.trip + s.backward + m * s.weight,
        )
        yield Bound("critical_path", ticks, f"stage {s.number}")


def _load(instance: ScheduleInstance, group: list[_Stage]) -> Bound:
    r"""The work of a device, and the shortest way to it: :math:`C \ge \min_j head_j + load`.

    Where backwards are fused the last operation is a ``B``: :math:`\min_j back_j` is added.
    """
    work = sum(s.microbatches * (s.forward + s.backward + s.weight) for s in group)
    after = min(s.back for s in group) if instance.fused else 0
    ticks = min(s.head for s in group) + work + after
    return Bound("device_load", ticks, f"device {group[0].device}")


def _gradients(group: list[_Stage]) -> Bound:
    r"""Work that must come before the last ``B`` of a device, and the way home from there.

    Every ``F`` comes before some ``B``, thus :math:`C \ge \min_j head_j + \sum m (F + B) + \min_j
    back_j`.
    """
    work = sum(s.microbatches * (s.forward + s.backward) for s in group)
    ticks = min(s.head for s in group) + work + min(s.back for s in group)
    return Bound("device_gradients", ticks, f"device {group[0].device}")


def _warm_up(instance: ScheduleInstance, group: list[_Stage]) -> Iterable[Bound]:
    r"""Idle time before the first and after the last ``B`` that memory makes unavoidable.

    Let :math:`r = \min_j (head_j + trip_j)`; no ``B`` of the device starts before ``r``, so that
    only ``F`` runs, and all of it stays in memory: its work is at most :math:`X`, the largest work
    of ``F`` whose memory fits (and at most :math:`r - \min head_j`). All other work comes after
    ``r``: :math:`C \ge r + load - X`. An ``F`` that has begun counts with its memory and whole
    length, which only makes ``X`` larger. An offload gives back at most its amount per transfer
    that ended by ``r``; a recomputed ``F`` holds less: both are in ``X``.

    After the last ``B`` of the device only ``W`` runs, of microbatches that waited in memory at
    the end of that ``B``: at most :math:`Y` of work. What is neither in ``X`` nor in ``Y`` lies
    between: :math:`C \ge r + load - X - Y + \min_j back_j`, and with ``X = 0`` from the heads on.
    """
    room = int(instance.capacity[group[0].device])
    load = sum(s.microbatches * (s.forward + s.backward + s.weight) for s in group)
    head, home = min(s.head for s in group), min(s.back for s in group)
    first = min(s.head + s.trip for s in group)
    more = 0
    for s in group:
        if instance.offload_memory[s.number] > 0:
            each = max(int(instance.offload_ticks[s.number]), 1)
            more += ((first - head) // each + 1) * int(instance.offload_memory[s.number])
    recomputed = [
        s.forward_memory - max(int(instance.recompute_memory[s.number]), 0) for s in group
    ]
    items = [(s.forward, held, s.microbatches) for s, held in zip(group, recomputed, strict=True)]
    before = min(first - head, _most_work(items, room + more))
    place = f"device {group[0].device}"
    yield Bound("warm_up", first + load - before, place)
    if len(group) == 1:
        trip = _last_trip_idle(instance, group[0])
        yield Bound("warm_up_and_last_trip", first + load - before + trip, place)
        ticks = first + load - before + trip - _most_waiting(group, room) + home
        yield Bound("warm_up_last_trip_and_cool_down", ticks, place)
    after = _most_waiting(group, room)
    yield Bound("cool_down", head + load - after + home, place)
    yield Bound("warm_up_and_cool_down", first + load - before - after + home, place)


def _last_trip_idle(instance: ScheduleInstance, s: _Stage) -> int:
    r"""Idle ticks of a one-stage device between its last ``F`` and the ``B`` of that microbatch.

    If memory lets fewer than all ``F`` start before the first ``B`` ends, the last ``F`` starts
    after that, and its idle time is apart from that of the warm-up. At least :math:`trip_j - F_j`
    ticks lie between the end of the last ``F`` and the ``B`` of its microbatch. Meanwhile only
    ``B`` and ``W`` of microbatches that were in memory when that ``F`` started can run: with ``n``
    before their ``B``, the last one included, and ``u`` before their ``W``, :math:`n f + u k \le`
    capacity, at most :math:`(n - 1)(B_j + W_j) + u W_j`.
    """
    room = int(instance.capacity[s.device])
    if s.least_forward_memory <= 0 or s.kept_memory < 0:
        return 0
    fitting = room // s.least_forward_memory
    if fitting >= s.microbatches or instance.offers_offload:
        return 0
    most = 0
    for n in range(1, fitting + 1):
        rest = room - n * s.least_forward_memory
        waiting = s.microbatches - n
        if s.kept_memory > 0:
            waiting = min(waiting, rest // s.kept_memory)
        most = max(most, (n - 1) * (s.backward + s.weight) + waiting * s.weight)
    return max(0, s.trip - s.forward - most)


def _most_work(items: list[tuple[int, int, int]], room: int) -> int:
    """Most ticks of items (ticks, memory, count) within a memory; fractional if several."""
    if len(items) == 1:
        ticks, memory, count = items[0]
        return ticks * (count if memory <= 0 else min(count, room // memory))
    total, left = 0, room
    for ticks, memory, count in sorted(items, key=lambda i: -i[0] / max(i[1], 1e-9)):
        if memory * count <= left:
            total, left = total + ticks * count, left - max(memory, 0) * count
        else:
            return total + -(-ticks * left // memory)
    return total


def _most_waiting(group: list[_Stage], room: int) -> int:
    """Most work of ``W`` that can wait for the last ``B`` of a device to end.

    On one stage the last ``B`` holds all of its microbatch while it runs, the others what they
    keep.
    """
    if len(group) > 1:
        return _most_work([(s.weight, s.kept_memory, s.microbatches) for s in group], room)
    (s,) = group
    if s.kept_memory <= 0:
        return s.microbatches * s.weight
    during = max(s.forward_memory, s.kept_memory)
    waiting = 1 + max(0, room - during) // s.kept_memory
    return min(waiting, s.microbatches) * s.weight


def _in_flight(instance: ScheduleInstance, stages: tuple[_Stage, ...]) -> Iterable[Bound]:
    r"""Memory limits how many microbatches are on their way at once.

    Let ``k`` be how many fit between the start of ``F`` and the end of ``B`` of stage ``j``, each
    holding at least ``least_forward_memory``. ``F`` number ``i + k`` starts after the end of ``B``
    number ``i``, which by order statistics is at least :math:`trip_j + B_j` after the start of
    ``F`` number ``i``. With :math:`m - 1 = q k + r`: :math:`C \ge head_j + q (trip_j + B_j + e) +
    r F_j + trip_j + B_j + back_j`.

    The extra ``e`` is :math:`\min(B_j, W_j)` where nothing is recomputed or offloaded, ``F`` gives
    its memory back exactly in ``B`` and ``W``, and ``k`` microbatches leave less room than a ``W``
    gives back: with ``i + 1`` of ``B`` and ``i`` of ``W`` done, an ``F`` number ``i + k`` would
    not fit, so it also waits for another ``W`` or ``B``, which ends ``e`` after the end of ``B``
    number ``i`` at the earliest: another ``B`` runs after it, and number ``i`` of ``W`` starts
    after number ``i`` of ``B`` has ended.
    """
    for s in stages:
        room = int(instance.capacity[s.device])
        if s.least_forward_memory <= 0 or s.least_forward_memory > room:
            continue
        held = room // s.least_forward_memory
        extra = 0
        plain = s.least_forward_memory == s.forward_memory
        balanced = not instance.fused and s.kept_memory == s.weight_memory
        if plain and balanced and s.weight_memory > room - held * s.forward_memory:
            extra = min(s.backward, s.weight)
        rounds, rest = divmod(s.microbatches - 1, held)
        cycle = s.trip + s.backward
        ticks = s.head + rounds * (cycle + extra) + rest * s.forward + cycle
        yield Bound("in_flight", ticks + max(s.back, s.weight), f"stage {s.number}")
