"""Many runs of the list scheduler, until one meets the bound."""

from __future__ import annotations

import time
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from ilp_parallel.problems.schedule import operation_ticks
from ilp_parallel.scheduling.dispatch import Policy, dispatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ilp_parallel.problems.schedule import ScheduleInstance, ScheduleSolution


def search(
    instance: ScheduleInstance,
    bound: int,
    deadline: float,
    report: Callable[[int], None] = lambda _: None,
) -> ScheduleSolution | None:
    """The best schedule of all policies; ends when it meets ``bound`` or at ``deadline``.

    ``deadline`` is a reading of :func:`time.monotonic`.
    """
    best: ScheduleSolution | None = None
    least = 2**62
    for policy in policies(instance):
        if time.monotonic() > deadline or least <= bound:
            break
        found = dispatch(instance, policy)
        if found is None:
            continue
        makespan = int((found.start_ticks + operation_ticks(instance, found)).max())
        if makespan < least:
            best, least = found, makespan
            report(least)
    return best


def policies(instance: ScheduleInstance) -> Iterator[Policy]:
    """Policies for every way to limit what is in flight, the most promising first."""
    habits = [(False, 0.0, 1.0, False), (False, 0.5, 1.0, False), (False, 1.0, 1.0, False)]
    every = set(product((False, True), (0.0, 0.3, 0.6, 1.0), (0.0, 0.5, 1.0), (False, True)))
    rest = sorted(every - set(habits))
    limits = list(dict.fromkeys(_limits(instance)))
    for chosen in (habits, rest):
        for limit in limits:
            for first, weight, forward, eager in chosen:
                yield Policy(limit, first, weight, forward, eager)


def _limits(instance: ScheduleInstance) -> Iterator[tuple[int, ...]]:
    """Microbatches in flight per stage: a multiple of what its round trip needs, and a few more.

    A stage keeps busy with a round trip's length over the time a microbatch takes of the busiest
    device. Memory and the number of microbatches cap it.
    """
    count = instance.microbatches[instance.stage_route]
    room = instance.capacity[instance.stage_device] // np.maximum(instance.forward_memory, 1)
    most = np.maximum(1, np.minimum(count, room))
    behind = _behind(instance)
    period = max(1, int(instance.device_load_ticks().max()) // int(instance.microbatches.sum()))
    trip = _round_trips(instance) / period
    yield tuple(most.tolist())
    for more in range(0, 2 * instance.devices):
        for multiple in (1, 2):
            wanted = multiple * behind + more + 1
            yield tuple(np.clip(wanted, 1, most).tolist())
        if more < 4:
            for share in (0.5, 0.75, 1.0, 1.25, 1.5, 2.0):
                wanted = np.ceil(share * trip).astype(np.int64) + more
                yield tuple(np.clip(wanted, 1, most).tolist())


def _behind(instance: ScheduleInstance) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """[V] stages of the route after each stage."""
    return instance.route_first[1:][instance.stage_route] - 1 - np.arange(instance.stages)


def _round_trips(instance: ScheduleInstance) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """[V] ticks from the start of ``F`` to the end of ``B`` of a microbatch that never waits."""
    work = instance.forward_ticks + instance.backward_ticks
    trip = work + 2 * instance.cut_ticks
    for j in reversed(range(instance.stages - 1)):
        if instance.stage_route[j] == instance.stage_route[j + 1]:
            trip[j] += trip[j + 1]
    return trip
