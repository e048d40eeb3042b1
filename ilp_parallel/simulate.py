r"""Exact execution of a plan's schedule: makespan, timeline and memory curve, in integers.

The model: a device group runs one operation at a time, in the order of
:mod:`ilp_parallel.schedules`, each as soon as the operation before it on the device has ended and
its input is there. The forward of virtual stage ``j`` needs the forward of ``j - 1`` and
``c_{j-1}`` ticks of transfer; its backward needs the backward of ``j + 1`` and ``c_j`` ticks; the
backward of the last virtual stage needs its own forward. Where backwards are split, an operation
``B`` makes the input gradient, which is what is sent on, and an operation ``W`` of the same
microbatch and virtual stage, at any time after it, the weight gradient. Transfers occupy no device
and do not queue. What is proven about this model is in ``docs/time_model.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ilp_parallel.schedules import (
    BACKWARD,
    FORWARD,
    WEIGHT,
    OperationOrder,
    Placement,
    operation_order,
    placed,
)

if TYPE_CHECKING:
    from ilp_parallel.problems.pipeline import IntArray, PipelineInstance, PipelineSolution


class DeadlockError(ValueError):
    """Orders that wait for each other; ``stuck[s]`` operations of group ``s`` had run by then."""

    def __init__(self, stuck: tuple[int, ...]) -> None:
        super().__init__("the orders of the device groups deadlock")
        self.stuck = stuck


@dataclass(frozen=True, eq=False)
class StageTimes:
    """Times of one microbatch in ticks, per virtual stage; delays are not included in F and B."""

    stages: int
    forward_ticks: IntArray  # [V] F_j
    backward_ticks: IntArray  # [V] B_j; of the input gradient alone where backwards are split
    cut_ticks: IntArray  # [V - 1] c_j, one way
    weight_ticks: IntArray | None = None  # [V] W_j where backwards are split
    placement: Placement = "loop"

    @property
    def kinds(self) -> int:
        """Kinds of operations: two, or three where backwards are split."""
        return 2 if self.weight_ticks is None else 3

    @property
    def chunks(self) -> int:
        """Virtual stages per device group."""
        return len(self.forward_ticks) // self.stages


@dataclass(frozen=True, eq=False)
class Timeline:
    """When one device group runs what. Arrays ``[operations]`` follow ``order``."""

    order: OperationOrder
    start_ticks: IntArray
    end_ticks: IntArray


@dataclass(frozen=True, eq=False)
class MemoryCurve:
    """Memory of a device of one group: ``bytes_held[i]`` from ``times_ticks[i]`` on."""

    times_ticks: IntArray
    bytes_held: IntArray

    @property
    def peak_bytes(self) -> int:
        """Largest amount held."""
        return int(self.bytes_held.max())


@dataclass(frozen=True, eq=False)
class Simulation:
    """What happened. Tuples are per device group."""

    timelines: tuple[Timeline, ...]
    memory: tuple[MemoryCurve, ...]
    finish_ticks: tuple[int, ...]  # end of the last operation
    tail_ticks: tuple[int, ...]

    @property
    def makespan_ticks(self) -> int:
        """Length of the pipeline part."""
        return max(self.finish_ticks)

    @property
    def step_ticks(self) -> int:
        """Each device group starts its tail when its own last operation ends."""
        return max(f + t for f, t in zip(self.finish_ticks, self.tail_ticks, strict=True))

    @property
    def serial_step_ticks(self) -> int:
        """All tails wait for the whole pipeline, as the objective has it."""
        return self.makespan_ticks + max(self.tail_ticks)


@dataclass(frozen=True, eq=False)
class SplitBackward:
    """How the backward of every virtual stage is split. Arrays ``[V]``."""

    weight_ticks: IntArray  # of the backward's ticks those of the weight gradient
    kept_bytes: IntArray  # what a microbatch keeps alive between B and W


def simulate(
    instance: PipelineInstance,
    solution: PipelineSolution,
    *,
    order: tuple[OperationOrder, ...] | None = None,
    split: SplitBackward | None = None,
    placement: Placement = "loop",
) -> Simulation:
    """Run one step of a plan.

    Parameters
    ----------
    order
        One order per device group; default: the order of the instance's schedule.
    split
        Where the order has weight gradients of their own.
    placement
        Where virtual stages live. Cuts and fixed parts of ``instance`` are those of this placement.

    Raises
    ------
    ValueError
        If the solution does not have the shape of the instance, or an order is incomplete or
        deadlocks.
    """
    _require_shape(instance, solution)
    orders = order or tuple(
        operation_order(
            instance.schedule, instance.stages, instance.chunks, instance.microbatches, group
        )
        for group in range(instance.stages)
    )
    times = stage_times(instance, solution, split, placement)
    timelines = run(times, instance.microbatches, orders)
    by_group = placed(placement, instance.stages, instance.chunks)
    tail = _per_virtual_stage(instance, solution, instance.tail_ticks)[by_group].sum(axis=1)
    tail = tail + instance.fixed_tail_ticks
    return Simulation(
        timelines=timelines,
        memory=_memory_curves(instance, solution, timelines, by_group, split),
        finish_ticks=tuple(int(line.end_ticks[-1]) for line in timelines),
        tail_ticks=tuple(tail.tolist()),
    )


def stage_times(
    instance: PipelineInstance,
    solution: PipelineSolution,
    split: SplitBackward | None = None,
    placement: Placement = "loop",
) -> StageTimes:
    """F and B of every virtual stage: layers, fixed part, resharding with the later layer.

    ``split`` takes the weight gradients out of B.
    """
    forward = _per_virtual_stage(instance, solution, instance.forward_ticks)
    backward = _per_virtual_stage(instance, solution, instance.backward_ticks)
    if instance.reshard_forward_ticks is not None and instance.reshard_backward_ticks is not None:
        chosen = np.array(solution.strategies, dtype=np.int64)
        stage = np.repeat(np.arange(instance.virtual_stages), solution.sizes)[1:]
        np.add.at(forward, stage, instance.reshard_forward_ticks[chosen[:-1], chosen[1:]])
        np.add.at(backward, stage, instance.reshard_backward_ticks[chosen[:-1], chosen[1:]])
    backward = backward + instance.fixed_backward_ticks
    weight = None if split is None else split.weight_ticks
    return StageTimes(
        stages=instance.stages,
        forward_ticks=forward + instance.fixed_forward_ticks,
        backward_ticks=backward if weight is None else backward - weight,
        cut_ticks=instance.cut_ticks,
        weight_ticks=weight,
        placement=placement,
    )


def run(
    times: StageTimes, microbatches: int, orders: tuple[OperationOrder, ...]
) -> tuple[Timeline, ...]:
    """Start every operation as early as the orders and the data allow.

    An order is followed until its next operation lacks an input; the operation that makes the
    input wakes it. Each operation is looked at once or twice, so the run takes linear time.

    Raises
    ------
    ValueError
        If an order is incomplete.
    DeadlockError
        If the orders wait for each other.
    """
    lanes = [_Lane.of(times, microbatches, order, s) for s, order in enumerate(orders)]
    if len(lanes) != times.stages:
        raise ValueError(f"{len(lanes)} orders for {times.stages} device groups")
    operations = times.kinds * microbatches * len(times.forward_ticks)
    end: list[int] = [-1] * operations + [0]  # the last entry: an input that is always there
    sleeper: list[int] = [-1] * operations  # device group that waits for this operation
    clock, done = [0] * times.stages, [0] * times.stages
    awake = list(range(times.stages))
    while awake:
        group = awake.pop()
        lane, now = lanes[group], clock[group]
        for i in range(done[group], len(lane.own)):
            arrival = end[lane.needed[i]]
            if arrival < 0:
                sleeper[lane.needed[i]] = group
                done[group] = i
                break
            arrival += lane.delay[i]
            if arrival > now:
                now = arrival
            now += lane.duration[i]
            operation = lane.own[i]
            end[operation] = now
            if sleeper[operation] >= 0:
                awake.append(sleeper[operation])
        else:
            done[group] = len(lane.own)
        clock[group] = now
    if any(count < len(lane.own) for count, lane in zip(done, lanes, strict=True)):
        raise DeadlockError(tuple(done))
    return tuple(lane.timeline(end) for lane in lanes)


@dataclass(frozen=True, slots=True)
class _Lane:
    """One device group's operations as plain lists, for a fast loop."""

    order: OperationOrder
    own: list[int]  # identity of the operation
    needed: list[int]  # identity of its input
    delay: list[int]  # ticks from the end of the input to its arrival
    duration: list[int]

    @classmethod
    def of(cls, times: StageTimes, microbatches: int, order: OperationOrder, group: int) -> _Lane:
        """Operation ``(kind, virtual stage j, microbatch i)`` is ``(kind V + j) m + i``."""
        virtual, split = len(times.forward_ticks), times.weight_ticks
        kind = order.kind
        stage = placed(times.placement, times.stages, times.chunks)[group][order.chunk]
        own = (kind * virtual + stage) * microbatches + order.microbatch
        _require_complete(own, times, microbatches, group)
        backward = kind == BACKWARD
        neighbour = np.where(backward, stage + 1, stage - 1)
        needed = (kind * virtual + neighbour) * microbatches + order.microbatch
        own_input = (kind == WEIGHT) | (backward & (stage == virtual - 1))
        needed[own_input] = own[own_input] - virtual * microbatches
        needed[(kind == FORWARD) & (stage == 0)] = times.kinds * virtual * microbatches
        cuts = np.concatenate(([0], times.cut_ticks, [0]))
        delay = np.where(kind == WEIGHT, 0, cuts[np.where(backward, stage + 1, stage)])
        by_kind = (times.forward_ticks, times.backward_ticks)
        durations = np.stack(by_kind if split is None else (*by_kind, split))
        duration = durations[kind, stage]
        return cls(order, own.tolist(), needed.tolist(), delay.tolist(), duration.tolist())

    def timeline(self, end: list[int]) -> Timeline:
        """Starts and ends of this group's operations."""
        ends = np.array([end[operation] for operation in self.own], dtype=np.int64)
        return Timeline(self.order, ends - np.array(self.duration, dtype=np.int64), ends)


def _require_complete(own: IntArray, times: StageTimes, microbatches: int, group: int) -> None:
    """Every operation of the group exactly once."""
    kinds = np.arange(times.kinds) * len(times.forward_ticks)
    stages = placed(times.placement, times.stages, times.chunks)[group]
    places = kinds[:, None, None] + stages[None, :, None]
    every = places * microbatches + np.arange(microbatches)
    if not np.array_equal(np.sort(own), np.sort(every.ravel())):
        raise ValueError(f"the order of device group {group} is not complete")


def _memory_curves(
    instance: PipelineInstance,
    solution: PipelineSolution,
    timelines: tuple[Timeline, ...],
    by_group: IntArray,
    split: SplitBackward | None,
) -> tuple[MemoryCurve, ...]:
    """Standing bytes, activations alive and the transient of the running operation."""
    state = _per_virtual_stage(instance, solution, instance.state_bytes)
    standing = state[by_group].sum(axis=1) + instance.fixed_bytes
    activation = _per_virtual_stage(instance, solution, instance.activation_bytes)[by_group]
    transient = _per_virtual_stage(instance, solution, instance.transient_bytes, np.maximum)
    transient = transient[by_group]
    kept = np.zeros_like(activation) if split is None else split.kept_bytes[by_group]
    return tuple(
        _memory_curve(line, int(standing[s]), activation[s], kept[s], transient[s])
        for s, line in enumerate(timelines)
    )


def _memory_curve(
    line: Timeline, standing: int, activation: IntArray, kept: IntArray, transient: IntArray
) -> MemoryCurve:
    """Two points per operation: when it starts, and when it has ended.

    A backward gives back its activations (``B`` of a split one in exchange for what ``W`` needs,
    rebuilt where it was to be recomputed), and ``W`` what it needed.
    """
    kind, chunk = line.order.kind, line.order.chunk
    change = np.choose(kind, (activation[chunk], kept[chunk] - activation[chunk], -kept[chunk]))
    after = standing + np.cumsum(change)
    during = np.maximum(after, after - change) + transient[chunk]
    return MemoryCurve(
        times_ticks=np.column_stack((line.start_ticks, line.end_ticks)).ravel(),
        bytes_held=np.column_stack((during, after)).ravel(),
    )


def _per_virtual_stage(
    instance: PipelineInstance,
    solution: PipelineSolution,
    table: IntArray,
    combine: np.ufunc = np.add,
) -> IntArray:
    """[V] sum (or maximum) of a class x strategy table over the layers of each virtual stage."""
    per_layer = table[instance.layer_class, np.array(solution.strategies, dtype=np.int64)]
    first_layers = np.cumsum((0, *solution.sizes[:-1]))
    combined: IntArray = combine.reduceat(per_layer, first_layers)
    return combined


def _require_shape(instance: PipelineInstance, solution: PipelineSolution) -> None:
    """Enough to simulate; whether the plan is feasible is for ``evaluate`` to say."""
    if len(solution.sizes) != instance.virtual_stages or min(solution.sizes) < 1:
        raise ValueError(f"sizes {solution.sizes} for {instance.virtual_stages} virtual stages")
    if not sum(solution.sizes) == len(solution.strategies) == instance.layers:
        raise ValueError(f"{sum(solution.sizes)} layers placed, {instance.layers} expected")
