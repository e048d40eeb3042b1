"""One plan under any schedule: makespan, memory curves, and how far bounds say it is from best.

A plan is priced for its own schedule. Under another one the same layers on the same devices take
the same time; what changes is the order, and with it what is alive. For ``zb-v`` the two chunks of
a device group trade places (``V``), so that both ends of the model are on the first group.

Split backwards. Half the time of a block's backward matrix multiplications counts as weight
gradient: both gradients of a multiplication have equal FLOPs. Everything else of the backward,
recomputation and the ends of the model included, stays in ``B``, so the two add up to the plan's
own backward. Between ``B`` and ``W`` a block counts as keeping all activations that it has without
recomputation. That is an upper estimate: ``W`` wants inputs and output gradients of the
multiplications, 32 of the 34 bytes per token and hidden unit that ``B`` wants with flash attention
(Qi et al. 2023, arXiv:2401.10241, table 1).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, cast, get_args

import numpy as np

from ilp_parallel.costs.model import CostModel
from ilp_parallel.errors import InputError
from ilp_parallel.instances import InstanceBuilder
from ilp_parallel.playing import WIDEST
from ilp_parallel.problems.pipeline import PipelineSolution, Schedule
from ilp_parallel.schedule_bounds import in_flight_bound, lower_bound, work_bound
from ilp_parallel.schedules import BACKWARD, FORWARD, OperationOrder, operation_order
from ilp_parallel.simulate import (
    DeadlockError,
    Simulation,
    SplitBackward,
    StageTimes,
    simulate,
    stage_times,
)
from ilp_parallel.simulation.order_files import GivenOrder, words_of
from ilp_parallel.spaces import Pins, get_space
from ilp_parallel.zero_bubble import ZERO_BUBBLE, zero_bubble_order

if TYPE_CHECKING:
    from ilp_parallel.plan import Plan
    from ilp_parallel.problems.pipeline import IntArray, PipelineInstance

Replayable = Literal["1f1b", "gpipe", "interleaved", "zb-h1", "zb-v"]
REPLAYABLE: tuple[Replayable, ...] = get_args(Replayable)
_CHUNKS = {"1f1b": (1, 1), "gpipe": (1, 1), "zb-h1": (1, 1), "zb-v": (2, 2)}


@dataclass(frozen=True, slots=True)
class Replay:
    """What the simulator made of a plan under a schedule."""

    schedule: str  # a name, or "given"
    given: GivenOrder  # its order, whether given or built
    instance: PipelineInstance  # cuts and fixed parts as they are under this schedule
    solution: PipelineSolution
    times: StageTimes
    simulation: Simulation
    bound_ticks: int  # no order that keeps as much alive has a shorter pipeline part

    @property
    def fits(self) -> bool:
        """Whether no device group ever holds more than it may."""
        pairs = zip(self.simulation.memory, self.instance.capacity_bytes, strict=True)
        return all(curve.peak_bytes <= capacity for curve, capacity in pairs)


def replay(
    plan: Plan, schedule: Replayable | None = None, given: GivenOrder | None = None
) -> Replay:
    """Run one step of a plan under its own schedule, another one, or a given order.

    Raises
    ------
    InputError
        ``SCHEDULE_NEEDS_CHUNKS`` if the schedule does not exist for the plan, ``ORDER_DEADLOCKS``
        for a given order whose device groups wait for each other.
    """
    g = plan.configuration
    costs = CostModel(plan.model, plan.cluster, plan.job)
    instance = InstanceBuilder(costs, get_space(WIDEST), Pins()).unfolded(g)
    index = {strategy: k for k, strategy in enumerate(costs.strategies(g))}
    solution = PipelineSolution(plan.sizes, tuple(index[s] for s in plan.strategies))
    name = schedule or g.schedule
    own = given is None and name == g.schedule
    if given is None:
        given = _named_order(plan, name)
    if not own:
        instance = _as_ordered(instance, costs, plan, given)
    split = None
    if given.orders[0].weight is not None:
        split = _split(costs, plan, instance, solution)
    try:
        done = simulate(
            instance, solution, order=given.orders, split=split, placement=given.placement
        )
    except DeadlockError as error:
        raise _deadlock(error, given, g.chunks) from None
    times = stage_times(instance, solution, split, given.placement)
    bound = _bound(times, given, name if own else None, g.microbatches)
    shown = name if schedule is not None or own else "given"
    return Replay(shown, given, instance, solution, times, done, bound)


def _named_order(plan: Plan, schedule: str) -> GivenOrder:
    """The order of a schedule for the numbers of a plan."""
    g = plan.configuration
    least, most = _CHUNKS.get(schedule, (2, g.chunks))
    if not least <= g.chunks <= most:
        need = f"{least}" if schedule != "interleaved" else "at least 2"
        raise InputError(
            "SCHEDULE_NEEDS_CHUNKS",
            f"{schedule} has {need} chunks per device, the plan {g.chunks}",
            "choose another schedule, or a plan with vpp to suit",
        )
    groups = range(g.pipeline)
    if schedule in ZERO_BUBBLE:
        orders = (zero_bubble_order(schedule, g.pipeline, g.microbatches, s) for s in groups)
        return GivenOrder("v" if schedule == "zb-v" else "loop", tuple(orders))
    named = cast("Schedule", schedule)
    return GivenOrder(
        "loop",
        tuple(operation_order(named, g.pipeline, g.chunks, g.microbatches, s) for s in groups),
    )


def _as_ordered(
    instance: PipelineInstance, costs: CostModel, plan: Plan, given: GivenOrder
) -> PipelineInstance:
    """The instance with the ends' memory as the order keeps them alive, and placed as it says."""
    g, last = plan.configuration, plan.configuration.pipeline - 1
    folded = given.placement == "v"
    alive = [0] * g.pipeline
    alive[last] = _most_alive(given.orders[0 if folded else last], g.chunks - 1)
    first = _most_alive(given.orders[0], 0)
    if last == 0:
        first = max(first, alive[0])
    alive[0] = first
    stage = costs.stage_costs(g, alive)
    held, tail, cuts = stage.fixed_bytes.copy(), stage.fixed_tail_s.copy(), instance.cut_ticks
    if folded:
        tied = costs.end_tail(g).tied_s if last else 0.0
        plain = costs.buffer_bytes(g) + costs.workspace_bytes
        if last:
            held[0] += held[last] - plain
            held[last] = plain
            tail[0] += tail[last] - 2 * tied  # both copies are on one device
            tail[last] = 0.0
        down = cuts[:last]
        cuts = np.concatenate((down, [0], down[::-1]))
    tick_s = plan.job.tick_ns * 1e-9
    return replace(
        instance,
        fixed_bytes=np.ceil(held).astype(np.int64),
        fixed_tail_ticks=np.ceil(tail / tick_s).astype(np.int64),
        cut_ticks=cuts,
    )


def _most_alive(order: OperationOrder, chunk: int) -> int:
    """Most microbatches of a chunk between their forward and their (input) backward."""
    own = order.kind[order.chunk == chunk]
    return int(np.cumsum((own == FORWARD).astype(np.int64) - (own == BACKWARD)).max())


def _split(
    costs: CostModel, plan: Plan, instance: PipelineInstance, solution: PipelineSolution
) -> SplitBackward:
    """Weight gradients of every virtual stage, and what is kept for them."""
    g, tick_s = plan.configuration, plan.job.tick_ns * 1e-9
    weight = np.zeros(plan.model.kind_count)
    for kind in range(plan.model.kind_count):
        part = costs.layer_part(g, kind)
        matmuls = part.backward.matmul_s / part.backward.device_s
        weight[kind] = 0.5 * matmuls * part.backward_s
    per_kind = np.floor(weight / tick_s).astype(np.int64)
    strategies = costs.strategies(g)
    plain = {s.zero: k for k, s in enumerate(strategies) if not s.recompute}
    menu = np.array([plain[strategies[k].zero] for k in solution.strategies], dtype=np.int64)
    kept = instance.activation_bytes[instance.layer_class, menu]
    starts = np.cumsum((0, *solution.sizes[:-1]))
    return SplitBackward(
        weight_ticks=np.add.reduceat(per_kind[instance.layer_class], starts),
        kept_bytes=np.add.reduceat(kept, starts),
    )


def _bound(times: StageTimes, given: GivenOrder, own: str | None, microbatches: int) -> int:
    """The best bound that applies."""
    if own is not None:
        return lower_bound(times, cast("Schedule", own), microbatches)
    bound = work_bound(times, microbatches)
    if times.chunks == 1 and times.weight_ticks is None:
        alive = [_most_alive(order, 0) for order in given.orders]
        bound = max(bound, in_flight_bound(times, microbatches, alive))
    return bound


def _deadlock(error: DeadlockError, given: GivenOrder, chunks: int) -> InputError:
    """Which operation every device group that is not done waits to run."""
    waiting = []
    for group, (order, done) in enumerate(zip(given.orders, error.stuck, strict=True)):
        if done < len(order.microbatch):
            waiting.append(f"group {group} at {words_of(order, chunks)[done]}")
    listed = ", ".join(waiting[:6]) + (", ..." if len(waiting) > 6 else "")
    return InputError("ORDER_DEADLOCKS", listed, "run what they wait for earlier")


def idle_share(replayed: Replay) -> tuple[IntArray, IntArray]:
    """``[p]`` busy ticks, and ticks between the start of the step and the last end on the group."""
    lines = replayed.simulation.timelines
    busy = np.array([int((line.end_ticks - line.start_ticks).sum()) for line in lines])
    return busy, np.array(replayed.simulation.finish_ticks)
