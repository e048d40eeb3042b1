"""Exact frontiers of step time against devices, cost or memory per device (epsilon constraint).

*Devices, cost*: every number of nodes up to that of the cluster is a search, ended as soon as its
bound is dominated by a point that is known. A point is on the frontier if no other number of nodes
does as well in both; that no plan does better is what the searches prove.

*Memory*: the job is solved again on devices with less and less memory. A plan needs the least
memory with which it still fits, so it is optimal for every limit from there to the one it was found
for, and the next limit lies below what it needs: the next lower multiple of a step, or a byte less.
With steps another plan may be as fast with less memory, by less than a step; byte by byte none is.
Step times never fall as memory does, so a search may stop at a plan as fast as the previous one,
whose bound it re-uses. The last limit is proven infeasible.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from ilp_parallel.costs.model import CostModel
from ilp_parallel.frontiers.nodes import Nodes
from ilp_parallel.instances import InstanceBuilder
from ilp_parallel.planner import search
from ilp_parallel.problems.pipeline import PipelineSolution, evaluate
from ilp_parallel.spaces import Pins, get_space
from ilp_parallel.specs.validate import DEVICE_LIMITS
from ilp_parallel.verify import verify

if TYPE_CHECKING:
    from collections.abc import Callable

    from ilp_parallel.frontiers.nodes import NodeAnswer
    from ilp_parallel.jobs import CompleteJob
    from ilp_parallel.plan import Plan
    from ilp_parallel.planner import SearchOptions, SearchProgress, SearchResult

Against = Literal["devices", "cost", "memory"]
_WIDEST = "mixed"


@dataclass(frozen=True, slots=True)
class Point:
    """A plan that no other one beats in both."""

    measure: int  # devices, device-ticks, or bytes a device must have
    ticks: int
    plan: Plan
    limit: int | None = None  # of memory, for which the plan was found


@dataclass(frozen=True, slots=True)
class Frontier:
    """Points by rising measure; ``refuted`` says what else was looked at."""

    against: Against
    points: tuple[Point, ...]
    outcomes: tuple[NodeAnswer, ...]  # by number of nodes; none for memory
    infeasible_bytes: int | None  # memory of a device with which no plan fits
    proven: bool  # every point is optimal and nothing was left open
    verified: bool  # every certificate passed its checks
    step_bytes: int = 0  # between limits of memory


# --- devices and cost ---------------------------------------------------------------------------


def frontier_over_nodes(
    job: CompleteJob,
    options: SearchOptions,
    against: Literal["devices", "cost"],
    say: Callable[[str], None],
) -> Frontier:
    """Step time against devices, or against devices x step time (cost at any price)."""
    nodes = Nodes(job, options)
    order = list(range(1, job.cluster.nodes + 1))
    if against == "cost":
        order.reverse()  # the quickest first; the cheapest are found on the way down
    found: list[Point] = []
    outcomes: dict[int, NodeAnswer] = {}
    for number in order:
        devices = number * nodes.per_node
        dominated = _dominated_by(found, against, devices)
        outcome = nodes.floor(number)
        if outcome.bound_ticks is not None and not dominated(outcome.bound_ticks):
            say(f"{number} nodes")
            outcome = nodes.search(number, dominated)
        outcomes[number] = outcome
        if outcome.result is None or outcome.result.plan is None or outcome.ticks is None:
            continue
        if not dominated(outcome.ticks):
            measure = _measure(against, devices, outcome.ticks)
            found.append(Point(measure, outcome.ticks, outcome.result.plan))
    points = _undominated(found)
    plans = {point.plan.cluster.devices for point in points}
    proven = all(
        o.proven if o.devices in plans else _settled(o, points, against) for o in outcomes.values()
    )
    listed = tuple(outcomes[n] for n in sorted(outcomes))
    return Frontier(against, points, listed, None, proven, all(o.verified for o in listed))


def _measure(against: Against, devices: int, ticks: int) -> int:
    return devices if against == "devices" else devices * ticks


def _dominated_by(points: list[Point], against: Against, devices: int) -> Callable[[int], bool]:
    """Whether a step time (or more) on so many devices is no better than one of the points."""
    known = tuple(points)

    def dominated(ticks: int) -> bool:
        measure = _measure(against, devices, ticks)
        return any(point.ticks <= ticks and point.measure <= measure for point in known)

    return dominated


def _settled(outcome: NodeAnswer, points: tuple[Point, ...], against: Against) -> bool:
    """Whether nothing on so many nodes can be on the frontier."""
    bound = outcome.bound_ticks
    return bound is None or _dominated_by(list(points), against, outcome.devices)(bound)


def _undominated(points: list[Point]) -> tuple[Point, ...]:
    """Points by rising measure and falling time."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda p: (p.measure, p.ticks)):
        if not kept or point.ticks < kept[-1].ticks:
            kept.append(point)
    return tuple(kept)


# --- memory -------------------------------------------------------------------------------------


def frontier_over_memory(
    job: CompleteJob, options: SearchOptions, step_bytes: int, say: Callable[[str], None]
) -> Frontier:
    """Step time against the memory of a device.

    Parameters
    ----------
    job, options
        The job with the most memory; the time limit is that of each search.
    step_bytes
        Only limits that lie a multiple of it below the job's memory are looked at; 0: every byte.
    say
        Is told what is done.
    """
    most = limit = job.cluster.device.memory_bytes
    found: list[Point] = []
    proven = verified = True
    infeasible: int | None = None
    while limit >= DEVICE_LIMITS["memory_bytes"][0]:
        say(f"{limit / (1 << 30):.2f} GiB per device")
        tried = with_memory(job, limit)
        previous = found[-1].ticks if found else None
        result, stopped_at_bound = _search(tried, options, previous)
        certificate = result.certificate
        verified &= all(check.passed for check in verify(certificate))
        plan, ticks = result.plan, certificate.objective_ticks
        if plan is None or ticks is None:
            infeasible = limit if certificate.status == "infeasible" else None
            proven &= infeasible is not None
            break
        proven &= certificate.status == "optimal" or stopped_at_bound
        needed = needed_bytes(plan)
        if found and found[-1].ticks == ticks:
            found.pop()  # as fast with less memory
        found.append(Point(needed, ticks, plan, limit))
        limit = _next_limit(most, needed, step_bytes)
    points = tuple(reversed(found))
    return Frontier("memory", points, (), infeasible, proven, verified, step_bytes)


def _next_limit(most: int, needed: int, step_bytes: int) -> int:
    """The largest limit to look at that is less than what a plan needs."""
    if step_bytes == 0:
        return needed - 1
    steps = (most - needed) // step_bytes + 1
    return most - steps * step_bytes


def _search(
    job: CompleteJob, options: SearchOptions, least: int | None
) -> tuple[SearchResult, bool]:
    """Search; whether a plan was found that is as fast as any plan with more memory."""
    met, shown, cancelled = False, options.progress, options.cancelled

    def progress(state: SearchProgress) -> None:
        nonlocal met
        met |= least is not None and state.incumbent is not None and state.incumbent <= least
        if shown is not None:
            shown(state)

    def stop() -> bool:
        return met or (cancelled is not None and cancelled())

    watched = replace(options, progress=progress, cancelled=stop)
    result = search(job.model, job.cluster, job.job, watched)
    ticks = result.certificate.objective_ticks
    return result, least is not None and ticks is not None and ticks <= least


def with_memory(job: CompleteJob, memory_bytes: int) -> CompleteJob:
    """The same job on devices of another memory."""
    device = replace(job.cluster.device, memory_bytes=memory_bytes)
    return replace(job, cluster=replace(job.cluster, device=device))


def needed_bytes(plan: Plan) -> int:
    """The least memory of a device, as it reports it, with which a plan fits.

    What may be allocated grows with the memory, so bisection finds it.
    """
    g = plan.configuration
    costs = CostModel(plan.model, plan.cluster, plan.job)
    instance = InstanceBuilder(costs, get_space(_WIDEST), Pins()).unfolded(g)
    index = {strategy: k for k, strategy in enumerate(costs.strategies(g))}
    solution = PipelineSolution(plan.sizes, tuple(index[s] for s in plan.strategies))
    allocated = max(evaluate(instance, solution).memory_bytes)

    def fits(memory_bytes: int) -> bool:
        device = replace(plan.cluster.device, memory_bytes=memory_bytes)
        smaller = replace(plan.cluster, device=device)
        return CostModel(plan.model, smaller, plan.job).capacity_bytes(g) >= allocated

    low, high = 0, plan.cluster.device.memory_bytes  # of these high fits and low does not
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            high = middle
        else:
            low = middle
    return high
