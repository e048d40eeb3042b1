"""Instances of the ``schedule`` family from a few numbers, for every placement.

``plain``: one stage per device. ``loop``: stage ``j`` of ``v p`` on device ``j mod p``. ``v``: two
chunks, down the devices and up again. ``bidirectional``: two routes in opposite directions, each
with half of the microbatches; every device holds the weights of two stages.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from ilp_parallel.problems.schedule import IntArray, ScheduleInstance

if TYPE_CHECKING:
    from collections.abc import Sequence

PlacementClass = Literal["plain", "loop", "v", "bidirectional"]


@dataclass(frozen=True, slots=True)
class StageNumbers:
    """What a microbatch does on the stages of one route: one number for all, or one per stage."""

    forward_ticks: int | Sequence[int] | IntArray
    backward_ticks: int | Sequence[int] | IntArray
    weight_ticks: int | Sequence[int] | IntArray | None  # None: backwards are fused
    cut_ticks: int | Sequence[int] | IntArray = 0  # one way, one per cut
    forward_memory: int | Sequence[int] | IntArray = 2
    backward_memory: int | Sequence[int] | IntArray = -1
    weight_memory: int | Sequence[int] | IntArray = -1


def instance_of(
    numbers: StageNumbers,
    devices: int,
    microbatches: int,
    capacity: int | Sequence[int] | IntArray,
    placement: PlacementClass = "plain",
    chunks: int = 1,
    name: str = "",
) -> ScheduleInstance:
    """The instance with these numbers; ``chunks`` counts for ``loop`` alone.

    Fused backwards give back everything at the end of ``B``: memory of ``W`` is added to that of
    ``B``. ``microbatches`` are those of all routes together.

    Raises
    ------
    ValueError
        If numbers do not fit together.
    """
    down = np.arange(devices)
    lanes = {
        "plain": down,
        "loop": np.tile(down, chunks),
        "v": np.concatenate((down, down[::-1])),
        "bidirectional": np.concatenate((down, down[::-1])),
    }[placement]
    routes = 2 if placement == "bidirectional" else 1
    if microbatches < routes or devices < 1 or microbatches % routes:
        raise ValueError(f"{microbatches} microbatches on {routes} routes, {devices} devices")
    length = len(lanes) // routes

    def per_stage(value: int | Sequence[int] | IntArray) -> IntArray:
        return np.tile(np.broadcast_to(np.asarray(value, dtype=np.int64), length), routes)

    cuts = np.broadcast_to(np.asarray(numbers.cut_ticks, dtype=np.int64), length - 1)
    fused = numbers.weight_ticks is None
    given_back = per_stage(numbers.backward_memory)
    zeros = np.zeros(len(lanes), dtype=np.int64)
    return ScheduleInstance(
        name=name or f"{placement} p={devices} m={microbatches}",
        devices=devices,
        fused=fused,
        route_first=np.arange(routes + 1, dtype=np.int64) * length,
        microbatches=np.full(routes, microbatches // routes, dtype=np.int64),
        stage_device=lanes.astype(np.int64),
        forward_ticks=per_stage(numbers.forward_ticks),
        backward_ticks=per_stage(numbers.backward_ticks),
        weight_ticks=zeros if numbers.weight_ticks is None else per_stage(numbers.weight_ticks),
        cut_ticks=np.tile(np.append(cuts, 0), routes),
        forward_memory=per_stage(numbers.forward_memory),
        backward_memory=given_back + (per_stage(numbers.weight_memory) if fused else 0),
        weight_memory=zeros if fused else per_stage(numbers.weight_memory),
        capacity=np.broadcast_to(np.asarray(capacity, dtype=np.int64), devices).copy(),
        recompute_ticks=zeros,
        recompute_memory=zeros,
        offload_memory=zeros,
        offload_ticks=zeros,
        reload_ticks=zeros,
    )


def with_offload(
    instance: ScheduleInstance, memory: IntArray, out_ticks: IntArray, back_ticks: IntArray
) -> ScheduleInstance:
    """The instance with a host link on every device; arrays are per stage."""
    return replace(
        instance, offload_memory=memory, offload_ticks=out_ticks, reload_ticks=back_ticks
    )


def with_recomputation(
    instance: ScheduleInstance, memory: IntArray, ticks: IntArray
) -> ScheduleInstance:
    """The instance with recomputation before ``B`` allowed; arrays are per stage."""
    return replace(instance, recompute_memory=memory, recompute_ticks=ticks)
