"""Why a job fits nowhere, and how many whole nodes would do."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from ilp_parallel.baselines.two_level_dp import two_level_dp
from ilp_parallel.bounds import memory_shortfall
from ilp_parallel.configuration import Configuration
from ilp_parallel.costs.model import CostModel
from ilp_parallel.instances import InstanceBuilder, plan_of
from ilp_parallel.problems.pipeline import PipelineSolution
from ilp_parallel.spaces import enumerate_configurations

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ilp_parallel.costs.breakdown import Term
    from ilp_parallel.problems.pipeline import PipelineInstance, Schedule
    from ilp_parallel.spaces import Pins, Space
    from ilp_parallel.specs.cluster import ClusterSpec
    from ilp_parallel.specs.job import JobSpec
    from ilp_parallel.specs.model import ModelSpec


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
class NodeSearch:
    """Numbers of nodes tried from 1 upwards: all refuted but the last, if one was found."""

    smallest: int | None
    refuted: tuple[int, ...]
    stopped: str | None  # why the search ended without an answer
    too_small: tuple[int, ...] = ()  # those refuted by the size of the states alone


def shortage(
    model: ModelSpec,
    cluster: ClusterSpec,
    job: JobSpec,
    space: Space,
    pins: Pins,
    schedules: tuple[Schedule, ...],
) -> Shortage | None:
    """The least shortage of all configurations; None if the rules leave none or one has none."""
    costs = CostModel(model, cluster, job)
    builder = InstanceBuilder(costs, space, pins)
    best: tuple[int, Configuration, PipelineInstance, int, int] | None = None
    for configuration in _configurations(model, cluster, job, space, pins, schedules):
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
    prediction = costs.terms(plan_of(costs, space, configuration, solution))
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
    model: ModelSpec,
    cluster: ClusterSpec,
    job: JobSpec,
    space: Space,
    pins: Pins,
    schedules: tuple[Schedule, ...],
    *,
    most_nodes: int = 4096,
    time_limit_s: float = 30.0,
) -> NodeSearch:
    """The fewest whole nodes on which the job fits, every smaller number refuted.

    Fitting is not monotone in the number of nodes (degrees must divide), so numbers are tried one
    by one from 1 upwards. A number is refuted by :func:`states_exceed_devices` or, configuration by
    configuration, by :func:`fits`.
    """
    started = time.perf_counter()
    too_small: list[int] = []
    refuted: list[int] = []
    for nodes in range(1, most_nodes + 1):
        if time.perf_counter() - started > time_limit_s:
            stopped = f"stopped after {time_limit_s:g} s"
            return NodeSearch(None, tuple(refuted), stopped, tuple(too_small))
        tried = replace(cluster, nodes=nodes)
        if states_exceed_devices(model, tried, job):
            too_small.append(nodes)
        elif fits(model, tried, job, space, pins, schedules):
            return NodeSearch(nodes, tuple(refuted), None, tuple(too_small))
        refuted.append(nodes)
    stopped = f"stopped at {most_nodes} nodes"
    return NodeSearch(None, tuple(refuted), stopped, tuple(too_small))


def states_exceed_devices(model: ModelSpec, cluster: ClusterSpec, job: JobSpec) -> bool:
    """Whether the blocks' states exceed what all devices have together, however they are sharded.

    Every parameter of a block keeps its weight, gradient and optimizer state somewhere, at least
    once. In exact integers; the byte per block and device covers the cost model's rounding.
    """
    costs = CostModel(model, cluster, job)
    per_parameter = Fraction(costs.states.state(1.0, "0", 1).total)
    alone = Configuration(1, 1, 1, 1, 1, 1, False, "1f1b")  # fewest communicators
    usable = costs.capacity_bytes(alone) + model.layers
    return model.layers * model.layer_parameters * per_parameter > cluster.devices * usable


def fits(
    model: ModelSpec,
    cluster: ClusterSpec,
    job: JobSpec,
    space: Space,
    pins: Pins,
    schedules: tuple[Schedule, ...],
) -> bool:
    """Whether any configuration has a feasible plan, exactly."""
    builder = InstanceBuilder(CostModel(model, cluster, job), space, pins)
    found = _configurations(model, cluster, job, space, pins, _lightest(schedules, pins))
    by_memory = sorted(found, key=lambda c: (c.microbatch, -c.tensor, not c.sequence_parallel))
    return any(_feasible(builder.build(configuration)) for configuration in by_memory)


def _lightest(schedules: tuple[Schedule, ...], pins: Pins) -> tuple[Schedule, ...]:
    """1F1B alone where it may be chosen, for it fits wherever another schedule fits.

    GPipe keeps at least as many microbatches alive. Interleaving with v >= 2 equal chunks keeps
    ``2(p-s-1) + (v-1)p + 1`` chunk activations, each a v-th of a stage, which is
    ``p - 1 + s(v-2) >= 0`` more than 1F1B's ``v(p-s)``; the same layers may be held at even sizes.
    """
    pinned = "schedule" in pins.fixed or "schedule" in pins.forbidden or not pins.allow("vpp", "1")
    return ("1f1b",) if "1f1b" in schedules and not pinned else schedules


def _configurations(
    model: ModelSpec,
    cluster: ClusterSpec,
    job: JobSpec,
    space: Space,
    pins: Pins,
    schedules: tuple[Schedule, ...],
) -> Iterator[Configuration]:
    for item in enumerate_configurations(model, cluster, job, space, pins, schedules):
        if isinstance(item, Configuration):
            yield item


def _feasible(instance: PipelineInstance) -> bool:
    if not instance.allowed.any() or memory_shortfall(instance) is not None:
        return False
    return two_level_dp(instance) is not None


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
