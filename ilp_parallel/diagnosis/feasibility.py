"""Whether a job fits anywhere, why not, and how many whole nodes would do: exact, in integers.

Time plays no part here, so nothing is searched. Blocks are alike and choose freely, so the most
layers that a device group ``s`` holds with strategy ``k`` is

    n_sk = floor((capacity_s - fixed_s - transient_k) / (state_k + in flight_s * activations_k)),

and mixing strategies on one group never holds more than the lightest of them alone: the largest
transient of a mix is one of its strategies', and among strategies up to that transient one has the
lightest layers. Sizes that add up to all layers exist exactly if ``sum_s n_s`` reaches them and
every ``n_s`` its least size, where ``n_s = max_k n_sk`` if layers choose freely, and ``n_s = n_sk``
for one ``k`` if all groups share a policy. Policies that recompute a block of layers at the head of
a stage hold no more than the one that recomputes all: its layers are lighter, its transient is
among those of the block.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from ilp_parallel.configuration import Configuration
from ilp_parallel.costs.model import CostModel
from ilp_parallel.instances import InstanceBuilder, plan_of
from ilp_parallel.problems.pipeline import PipelineSolution
from ilp_parallel.spaces import Refusal, enumerate_configurations

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ilp_parallel.costs.breakdown import Term
    from ilp_parallel.plan import Plan
    from ilp_parallel.problems.pipeline import IntArray, PipelineInstance, Schedule
    from ilp_parallel.spaces import Pins, Space
    from ilp_parallel.specs.cluster import ClusterSpec
    from ilp_parallel.specs.job import JobSpec
    from ilp_parallel.specs.model import ModelSpec


@dataclass(frozen=True, slots=True)
class Question:
    """A job and what may be chosen for it."""

    model: ModelSpec
    cluster: ClusterSpec
    job: JobSpec
    space: Space
    pins: Pins
    schedules: tuple[Schedule, ...]

    def on_nodes(self, nodes: int) -> Question:
        """The same on another number of nodes."""
        kind = self.cluster.name.partition(":")[0]
        name = f"{kind}:{nodes}x{self.cluster.devices_per_node}"
        return replace(self, cluster=replace(self.cluster, name=name, nodes=nodes))


@dataclass(frozen=True, slots=True)
class Shortage:
    """The configuration that comes closest to fitting, with its lightest strategy, even stages."""

    configuration: Configuration
    strategy: str
    stage: int  # the heaviest one
    parts: tuple[Term, ...]  # bytes, the largest first
    needed_bytes: int
    usable_bytes: int

    @property
    def missing_bytes(self) -> int:
        """What the heaviest stage needs beyond what is usable."""
        return self.needed_bytes - self.usable_bytes


@dataclass(frozen=True, slots=True)
class Refutation:
    """Why a number of nodes does not do.

    Either ``states_bytes``, what the blocks' states take on all devices together, exceeds
    ``usable_bytes`` of all devices. Or each of ``configurations`` was refuted by itself, with the
    most layers that fit it (there are none where the rules leave none); every other one is heavier
    than one of them. Or every plan takes at least ``bound_ticks``, which is too long, by the work
    of the configurations alone or by the bound of a search.
    """

    nodes: int
    configurations: tuple[tuple[str, int], ...] | None
    states_bytes: int | None = None
    usable_bytes: int | None = None
    bound_ticks: int | None = None
    searched: bool = False


@dataclass(frozen=True, slots=True)
class NodeSearch:
    """Numbers of nodes tried one by one: all refuted but the last, if one was found."""

    smallest: int | None
    refutations: tuple[Refutation, ...]
    plan: Plan | None  # one that fits the smallest number, not the fastest
    stopped: str | None  # why the search ended without an answer

    @property
    def refuted(self) -> tuple[int, ...]:
        """Numbers of nodes that do not do."""
        return tuple(refutation.nodes for refutation in self.refutations)


def fitting_plan(question: Question) -> Plan | None:
    """Any plan that fits, not the fastest; None if there is none, exactly."""
    return _fitting(question)[0]


def fits(question: Question) -> bool:
    """Whether any configuration has a plan that fits, exactly."""
    return fitting_plan(question) is not None


def shortage(question: Question) -> Shortage | None:
    """The least shortage of all configurations; None if the rules leave none or one has none."""
    q = question
    costs = CostModel(q.model, q.cluster, q.job)
    builder = InstanceBuilder(costs, q.space, q.pins)
    best: tuple[int, Configuration, PipelineInstance, int, int] | None = None
    for configuration in _lightest(q):
        instance = builder.build(configuration)
        if not instance.allowed.any():
            continue
        missing, stage, strategy = _least_missing(instance)
        if best is None or missing < best[0]:
            best = missing, configuration, instance, stage, strategy
    if best is None or best[0] <= 0:
        return None
    missing, configuration, instance, stage, strategy = best
    solution = PipelineSolution(_even_sizes(instance), (strategy,) * instance.layers)
    prediction = costs.terms(plan_of(costs, q.space, configuration, solution))
    parts = sorted(prediction.stages[stage].memory_terms, key=lambda term: -term.value)
    usable = int(instance.capacity_bytes[stage])
    return Shortage(
        configuration=configuration,
        strategy=instance.strategy_names[strategy],
        stage=stage,
        parts=tuple(term for term in parts if term.value > 0),
        needed_bytes=usable + missing,
        usable_bytes=usable,
    )


def smallest_cluster(
    question: Question,
    *,
    least_nodes: int = 1,
    most_nodes: int = 4096,
    time_limit_s: float = 30.0,
) -> NodeSearch:
    """The fewest whole nodes on which the job fits, every smaller number refuted.

    Fitting is not monotone in the number of nodes (degrees must divide), so neither doubling nor
    bisection would be valid: numbers are tried one by one from ``least_nodes`` upwards. A number is
    refuted by :func:`states_exceed_devices` or, configuration by configuration, exactly.
    """
    started = time.perf_counter()
    refuted: list[Refutation] = []
    for nodes in range(least_nodes, most_nodes + 1):
        if time.perf_counter() - started > time_limit_s:
            return NodeSearch(None, tuple(refuted), None, f"stopped after {time_limit_s:g} s")
        tried = question.on_nodes(nodes)
        needed, usable = states_and_room(tried)
        if needed > usable:
            refuted.append(Refutation(nodes, None, -int(-needed // 1), usable))
            continue
        plan, configurations = _fitting(tried)
        if plan is not None:
            return NodeSearch(nodes, tuple(refuted), plan, None)
        refuted.append(Refutation(nodes, configurations))
    return NodeSearch(None, tuple(refuted), None, f"stopped at {most_nodes} nodes")


def states_exceed_devices(question: Question) -> bool:
    """Whether the blocks' states exceed what all devices have together, however they are sharded.

    Every parameter of a block keeps its weight, gradient and optimizer state somewhere, at least
    once. In exact integers; the byte per block and device covers the cost model's rounding.
    """
    needed, usable = states_and_room(question)
    return needed > usable


def refusals(question: Question) -> tuple[Refusal, ...]:
    """Groups of configurations that a rule excludes, those that pins exclude left out."""
    q = question
    found = enumerate_configurations(q.model, q.cluster, q.job, q.space, q.pins, q.schedules)
    return tuple(item for item in found if isinstance(item, Refusal) and item.concerns(q.pins))


def states_and_room(question: Question) -> tuple[Fraction, int]:
    """Bytes of all blocks' states, once; bytes that all devices may allocate together."""
    model, cluster = question.model, question.cluster
    costs = CostModel(model, cluster, question.job)
    whole = costs.states.state(1.0, "0", 1)
    per_parameter = Fraction(whole.weights if question.job.task == "lora" else whole.total)
    alone = Configuration(1, 1, 1, 1, 1, 1, False, "1f1b")  # fewest communicators
    usable = costs.capacity_bytes(alone) + model.layers
    blocks = sum(view.layers * view.layer_parameters for view in model.views)
    return blocks * per_parameter, cluster.devices * usable


def _fitting(question: Question) -> tuple[Plan | None, tuple[tuple[str, int], ...]]:
    """A plan that fits, and the configurations refuted before with the most layers they hold."""
    q = question
    costs = CostModel(q.model, q.cluster, q.job)
    builder = InstanceBuilder(costs, q.space, q.pins)
    refuted: list[tuple[str, int]] = []
    for configuration in _lightest(q):
        instance = builder.build(configuration)
        found = _fitting_solution(instance)
        if isinstance(found, PipelineSolution):
            return plan_of(costs, q.space, configuration, found), tuple(refuted)
        refuted.append((configuration.name, found * instance.fold))
    return None, tuple(refuted)


def _lightest(question: Question) -> Iterator[Configuration]:
    """Configurations one of which fits if any does.

    1F1B alone where it may be chosen: GPipe keeps at least as many microbatches alive, and
    interleaving with v >= 2 equal chunks keeps ``2(p-s-1) + (v-1)p + 1`` chunk activations, each a
    v-th of a stage, which is ``p - 1 + s(v-2) >= 0`` more than 1F1B's ``v(p-s)``; the same layers
    may be held at even sizes.

    Of microbatches that differ in size alone the smallest one: a number alive is ``min(m, w)``
    (GPipe: m) with ``m`` in inverse proportion to the size ``b``, so ``b min(m, w)`` does not fall
    as ``b`` grows, and everything else that depends on ``b`` grows with it.
    """
    q, schedules = question, question.schedules
    pinned = "schedule" in q.pins.fixed or "schedule" in q.pins.forbidden
    if "1f1b" in schedules and not pinned and q.pins.allow("vpp", "1"):
        schedules = ("1f1b",)
    seen: set[Configuration] = set()
    for item in enumerate_configurations(q.model, q.cluster, q.job, q.space, q.pins, schedules):
        if isinstance(item, Refusal):
            continue
        kind = replace(item, microbatch=1, microbatches=1)
        if kind not in seen:  # sizes come in rising order
            seen.add(kind)
            yield item


def _most_layers(instance: PipelineInstance) -> tuple[IntArray, IntArray]:
    """[p, usable strategies] most layers of each device group; indices of those strategies."""
    usable = np.flatnonzero(instance.allowed[0])
    alive = np.array([int(rows.max()) for rows in instance.in_flight], dtype=np.int64)
    layer = instance.state_bytes[0, usable] + alive[:, None] * instance.activation_bytes[0, usable]
    room = (instance.capacity_bytes - instance.fixed_bytes)[:, None]
    room = room - instance.transient_bytes[0, usable]
    most = np.where(room >= 0, room // np.maximum(layer, 1), 0)
    return np.minimum(most, instance.max_layers[:, None]), usable


def _fitting_solution(instance: PipelineInstance) -> PipelineSolution | int:
    """Sizes and strategies that fit, as even as they can be; else the most layers that fit.

    No layer fits where a device group cannot hold the least that it must.
    """
    if not instance.allowed.any():
        return 0
    most, usable = _most_layers(instance)
    held = np.where(most >= instance.min_layers[:, None], most, -instance.layers)
    if instance.policies is None:
        chosen = held.argmax(axis=1)
    else:
        chosen = np.full(instance.stages, int(held.sum(axis=0).argmax()))
    limits = held[np.arange(instance.stages), chosen]
    if (limits < 0).any():
        return 0
    if int(limits.sum()) < instance.layers:
        return int(limits.sum())
    sizes = instance.min_layers.copy()
    while int(sizes.sum()) < instance.layers:
        growing = np.where(sizes < limits, sizes, instance.layers + 1)
        sizes[int(growing.argmin())] += 1
    pairs = zip(sizes.tolist(), usable[chosen].tolist(), strict=True)
    return PipelineSolution(
        tuple(sizes.tolist()), tuple(k for size, k in pairs for _ in range(size))
    )


def _even_sizes(instance: PipelineInstance) -> tuple[int, ...]:
    each, extra = divmod(instance.layers, instance.stages)
    return tuple(each + (s < extra) for s in range(instance.stages))


def _least_missing(instance: PipelineInstance) -> tuple[int, int, int]:
    """Missing bytes, stage and strategy: the best strategy for the stage that is worst with it."""
    sizes = np.array(_even_sizes(instance), dtype=np.int64)
    alive = np.array([int(rows.max()) for rows in instance.in_flight], dtype=np.int64)
    usable = np.flatnonzero(instance.allowed[0])
    layer = instance.state_bytes[0, usable] + alive[:, None] * instance.activation_bytes[0, usable]
    needed = sizes[:, None] * layer + instance.transient_bytes[0, usable]
    missing = needed + (instance.fixed_bytes - instance.capacity_bytes)[:, None]
    worst = missing.max(axis=0)
    strategy = int(worst.argmin())
    stage = int(missing[:, strategy].argmax())
    return int(worst[strategy]), stage, int(usable[strategy])
