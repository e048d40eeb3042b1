"""Named schedules as orders of every device, compared within their placement class.

``plain``: ``gpipe``, ``1f1b``, ``eager-1f1b`` (Zhuang et al. 2022, arXiv:2211.05322: twice the
warm-up), ``zb-h1``, ``zb-h2`` (Qi et al. 2023, arXiv:2401.10241: the warm-up of ``eager-1f1b``, and
weight gradients that wait), ``zb-1p`` and ``zb-2p`` (the same paper's automatic schedule with the
memory of ``p`` and ``2p`` microbatches), ``zb-greedy`` (that schedule at the memory given).
``loop``: ``interleaved``. ``v``: ``zb-v``, ``dualpipe-v``. ``bidirectional``: ``dualpipe``.

``dualpipe`` (DeepSeek-AI 2024, arXiv:2412.19437, figure 5) sends half of the microbatches from
either end. The devices of one half mirror those of the other, so that its order is that of its
folded form ``dualpipe-v`` with both directions as chunks, which we write down once. Forwards and
backwards that the authors run overlapped are run one after the other here: no time is gained by
overlap, and none is charged for it.

Where an instance has ``W`` apart, schedules that do not split backwards run ``B`` and ``W`` as
one: the gradient is sent on when both have ended.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import numpy as np

from ilp_parallel.problems.schedule import (
    B,
    DeadlockError,
    F,
    ScheduleSolution,
    W,
    evaluate,
    replay,
)
from ilp_parallel.schedules import operation_order
from ilp_parallel.scheduling.dispatch import Policy, dispatch
from ilp_parallel.zero_bubble import zero_bubble_order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ilp_parallel.problems.pipeline import Schedule
    from ilp_parallel.problems.schedule import Evaluation, ScheduleInstance
    from ilp_parallel.schedules import OperationOrder
    from ilp_parallel.scheduling.placements import PlacementClass

_Operation = tuple[int, int, int]  # kind, microbatch, chunk


@dataclass(frozen=True, slots=True)
class NamedResult:
    """A named schedule on an instance."""

    name: str
    solution: ScheduleSolution
    evaluation: Evaluation

    @property
    def fits(self) -> bool:
        """Whether it keeps memory too."""
        return self.evaluation.feasible


def placement_of(instance: ScheduleInstance) -> PlacementClass | None:
    """The placement class of an instance; None for one that has no name."""
    p, lane = instance.devices, instance.stage_device
    down = np.arange(p)
    if len(instance.microbatches) == 1:
        if np.array_equal(lane, down):
            return "plain"
        if len(lane) == 2 * p and np.array_equal(lane, np.concatenate((down, down[::-1]))):
            return "v"
        if len(lane) % p == 0 and np.array_equal(lane, np.tile(down, len(lane) // p)):
            return "loop"
    elif len(instance.microbatches) == 2 and len(lane) == 2 * p:
        same = instance.microbatches[0] == instance.microbatches[1]
        if same and np.array_equal(lane, np.concatenate((down, down[::-1]))):
            return "bidirectional"
    return None


def named_schedules(instance: ScheduleInstance) -> tuple[NamedResult, ...]:
    """Every named schedule of the placement class that exists for the numbers of the instance."""
    placement = placement_of(instance)
    found = []
    for name, build in {} if placement is None else _NAMED[placement].items():
        try:
            solution = build(instance)
        except (ValueError, DeadlockError):
            continue
        if solution is not None:
            found.append(NamedResult(name, solution, evaluate(instance, solution)))
    return tuple(found)


def _replayed(
    instance: ScheduleInstance, orders: list[list[_Operation]], stage: Callable[[int, int], int]
) -> ScheduleSolution:
    """Orders of (kind, microbatch, chunk) per device as a schedule; fused ones lose their ``W``."""
    pairs, first = instance.pairs, instance.first_pair.tolist()
    return replay(
        instance,
        [
            [
                kind * pairs + first[stage(d, chunk)] + microbatch
                for kind, microbatch, chunk in order
                if kind < instance.kinds
            ]
            for d, order in enumerate(orders)
        ],
    )


def _whole(
    instance: ScheduleInstance, orders: list[list[_Operation]], stage: Callable[[int, int], int]
) -> ScheduleSolution:
    """Orders with whole backwards: gradients are sent on when ``W`` has ended as well."""
    if instance.fused:
        return _replayed(instance, orders, stage)
    whole = replace(
        instance,
        fused=True,
        backward_ticks=instance.backward_ticks + instance.weight_ticks,
        weight_ticks=np.zeros_like(instance.weight_ticks),
    )
    start = _replayed(whole, orders, stage).start_ticks
    weights = start[B] + instance.backward_ticks[instance.pair_stage]
    return ScheduleSolution(np.vstack((start, weights)))


def _shipped(schedule: str) -> Callable[[ScheduleInstance], ScheduleSolution]:
    """A schedule whose orders the package knows already."""

    def build(instance: ScheduleInstance) -> ScheduleSolution:
        p, m = instance.devices, int(instance.microbatches[0])
        chunks = instance.stages // p
        groups = range(p)
        if schedule in ("zb-h1", "zb-v"):
            known = "zb-h1" if schedule == "zb-h1" else "zb-v"
            orders = [zero_bubble_order(known, p, m, s) for s in groups]  # type: ignore[arg-type]
            return _replayed(instance, [_listed(o) for o in orders], _stage_of(instance))
        name = cast("Schedule", schedule)
        orders = [operation_order(name, p, chunks, m, s) for s in groups]
        return _whole(instance, [_listed(o) for o in orders], _stage_of(instance))

    return build


def _listed(order: OperationOrder) -> list[_Operation]:
    """An order as a list of (kind, microbatch, chunk)."""
    arrays = (order.kind.tolist(), order.microbatch.tolist(), order.chunk.tolist())
    return list(zip(*arrays, strict=True))


def _stage_of(instance: ScheduleInstance) -> Callable[[int, int], int]:
    """Stage of a device's chunk in one-route placements."""
    p = instance.devices
    folded = placement_of(instance) == "v"
    return lambda d, chunk: 2 * p - 1 - d if folded and chunk else chunk * p + d


def _eager_1f1b(instance: ScheduleInstance) -> ScheduleSolution:
    """Warm-up of ``2 (p - s - 1)`` forwards, then one forward and one whole backward in turn."""
    p, m = instance.devices, int(instance.microbatches[0])
    return _whole(instance, [_doubled(p, m, s, None) for s in range(p)], lambda d, _: d)


def _zb_h2(instance: ScheduleInstance) -> ScheduleSolution:
    """The same warm-up; every ``W`` as many backwards late as there are forwards fewer."""
    p, m = instance.devices, int(instance.microbatches[0])
    return _replayed(instance, [_doubled(p, m, s, 2 * s) for s in range(p)], lambda d, _: d)


def _doubled(devices: int, microbatches: int, rank: int, late: int | None) -> list[_Operation]:
    """The order of a device with the doubled warm-up; ``late`` None leaves out ``W``."""
    m, warm = microbatches, min(microbatches, 2 * (devices - rank - 1))
    order: list[_Operation] = [(F, i, 0) for i in range(warm)]
    for i in range(m):
        order += [(F, warm + i, 0)] if warm + i < m else []
        order.append((B, i, 0))
        order += [(W, i - late, 0)] if late is not None and i >= late else []
    if late is not None:
        order += [(W, i, 0) for i in range(max(0, m - late), m)]
    return order


def _automatic(multiple: int | None) -> Callable[[ScheduleInstance], ScheduleSolution | None]:
    """Zero-bubble's automatic schedule with the memory of so many times ``p`` microbatches."""

    def build(instance: ScheduleInstance) -> ScheduleSolution | None:
        room = instance.capacity[instance.stage_device]
        most = room // np.maximum(instance.forward_memory, 1)
        if multiple is not None:
            if np.any(most < multiple * instance.devices):
                return None
            most = np.full(instance.stages, multiple * instance.devices)
        limits = tuple(np.maximum(most, 1).tolist())
        found = None
        for patience in (0.0, 0.5, 1.0):
            for weights_first in (False, True):
                policy = Policy(limits, weight_patience=patience, eager_weight=weights_first)
                solution = dispatch(instance, policy)
                if solution is not None:
                    end = int(solution.start_ticks.max())
                    found = min(found or (end, solution), (end, solution), key=lambda x: x[0])
        return None if found is None else found[1]

    return build


def folded_order(devices: int, microbatches: int, rank: int) -> Iterator[_Operation]:
    """``dualpipe-v`` on device ``rank``: chunk 0 comes from this end, chunk 1 from the other.

    ``microbatches`` are those of each chunk, at least ``2 devices - rank``, or fewer are skipped
    by the caller. The phases: forwards of chunk 0; forwards of both; backwards of chunk 1 with
    forwards of chunk 1; the steady state; and the same in reverse, with weight gradients left for
    the end.
    """
    done = {(kind, chunk): 0 for kind in range(3) for chunk in range(2)}
    ahead = devices - rank - 1

    def following(kind: int, chunk: int) -> _Operation:
        done[kind, chunk] += 1
        return kind, done[kind, chunk] - 1, chunk

    def whole_backward(chunk: int) -> list[_Operation]:
        return [following(B, chunk), following(W, chunk)]

    for _ in range(2 * ahead):
        yield following(F, 0)
    for _ in range(rank + 1):
        yield following(F, 0)
        yield following(F, 1)
    for _ in range(ahead):
        yield from whole_backward(1)
        yield following(F, 1)
    for _ in range(microbatches - 2 * devices + rank + 1):
        yield following(F, 0)
        yield from whole_backward(1)
        yield following(F, 1)
        yield from whole_backward(0)
    for _ in range(ahead):
        yield from whole_backward(1)
        yield following(F, 1)
        yield from whole_backward(0)
    waiting: list[int] = []  # chunks whose weight gradient is left for later
    for i in range(rank + 1):
        for chunk in (1, 0):
            late = 2 * i + (chunk == 0) >= rank + 1
            yield following(B, chunk)
            if late:
                waiting.append(chunk)
            else:
                yield following(W, chunk)
    for _ in range(ahead):
        if waiting:
            yield following(W, waiting.pop(0))
        yield following(B, 0)
        waiting.append(0)
    for chunk in waiting:
        yield following(W, chunk)


def _dualpipe_v(instance: ScheduleInstance) -> ScheduleSolution:
    p, m = instance.devices, int(instance.microbatches[0])
    if m < 2 * p:
        raise ValueError(f"{m} microbatches, at least {2 * p} wanted")
    return _replayed(instance, [list(folded_order(p, m, s)) for s in range(p)], _stage_of(instance))


def _dualpipe(instance: ScheduleInstance) -> ScheduleSolution:
    """Device ``d`` of the first half and its mirror ``p - 1 - d`` run the folded order of ``d``."""
    p, m = instance.devices, int(instance.microbatches[0])
    if p % 2 or m < p:
        raise ValueError(f"{p} devices, {m} microbatches each way: an even p <= m is wanted")
    orders = [list(folded_order(p // 2, m, min(d, p - 1 - d))) for d in range(p)]

    def stage(d: int, chunk: int) -> int:
        route = chunk if d < p // 2 else 1 - chunk
        return d if route == 0 else 2 * p - 1 - d

    return _replayed(instance, orders, stage)


_NAMED: dict[str, dict[str, Callable[[ScheduleInstance], ScheduleSolution | None]]] = {
    "plain": {
        "gpipe": _shipped("gpipe"),
        "1f1b": _shipped("1f1b"),
        "eager-1f1b": _eager_1f1b,
        "zb-h1": _shipped("zb-h1"),
        "zb-h2": _zb_h2,
        "zb-1p": _automatic(1),
        "zb-2p": _automatic(2),
        "zb-greedy": _automatic(None),
    },
    "loop": {"interleaved": _shipped("interleaved"), "zb-greedy": _automatic(None)},
    "v": {
        "zb-v": _shipped("zb-v"),
        "dualpipe-v": _dualpipe_v,
        "zb-greedy": _automatic(None),
    },
    "bidirectional": {"dualpipe": _dualpipe, "zb-greedy": _automatic(None)},
}
