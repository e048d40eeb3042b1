"""The schedule instance of a plan: its stages stay, the order of their work is open.

One chunk per device: backwards are split as :mod:`ilp_parallel.simulation.replaying` says. With
interleaving backwards stay fused. What an operation adds to memory is read off the event
simulator's own curve; standing memory and the largest transient of a device come off its capacity.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ilp_parallel.errors import InputError
from ilp_parallel.schedules import placed
from ilp_parallel.scheduling.placements import StageNumbers, instance_of
from ilp_parallel.simulation.replaying import replay

if TYPE_CHECKING:
    from ilp_parallel.plan import Plan
    from ilp_parallel.problems.schedule import IntArray, ScheduleInstance
    from ilp_parallel.scheduling.placements import PlacementClass
    from ilp_parallel.simulation.replaying import Replay


def instance_of_plan(plan: Plan, fused: bool = False) -> ScheduleInstance:
    """The instance of a plan, in ticks of its job and bytes.

    Raises
    ------
    InputError
        ``NO_ROOM_FOR_ACTIVATIONS`` if what stands on a device fills it.
    """
    g = plan.configuration
    split = not fused and g.chunks == 1
    played = replay(plan, "zb-h1" if split else None)
    by_group = placed("loop", g.pipeline, g.chunks)
    changes = np.zeros((3, g.pipeline * g.chunks), dtype=np.int64)
    room = np.zeros(g.pipeline, dtype=np.int64)
    for group in range(g.pipeline):
        per_chunk, free = _read_off(played, group, g.chunks)
        changes[:, by_group[group]] = per_chunk
        room[group] = free
    if np.any(room <= 0):
        group = int(np.argmin(room))
        raise InputError(
            "NO_ROOM_FOR_ACTIVATIONS", f"device group {group} is full", "choose a plan that fits"
        )
    times = played.times
    numbers = StageNumbers(
        times.forward_ticks,
        times.backward_ticks,
        times.weight_ticks,
        times.cut_ticks,
        changes[0],
        changes[1],
        changes[2],
    )
    placement: PlacementClass = "plain" if g.chunks == 1 else "loop"
    name = f"{plan.model.name} {g.name}"
    return instance_of(numbers, g.pipeline, g.microbatches, room, placement, g.chunks, name)


def _read_off(played: Replay, group: int, chunks: int) -> tuple[IntArray, int]:
    """[3, chunks] memory changes of a device group, and what it has left for activations."""
    curve = played.simulation.memory[group]
    order = played.simulation.timelines[group].order
    during, after = curve.bytes_held.reshape(-1, 2).T
    standing = int(after[-1])
    before = np.concatenate(([standing], after[:-1]))
    transient = int((during - np.maximum(before, after)).max())
    changes = np.zeros((3, chunks), dtype=np.int64)
    changes[order.kind, order.chunk] = after - before
    return changes, int(played.instance.capacity_bytes[group]) - standing - transient
