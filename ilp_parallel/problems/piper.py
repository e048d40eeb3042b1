r"""Piper's problem: stages of a layer graph, each with its own data and tensor degree.

A plan is an ordered list of stages i = 1..m. Stage i has a non-empty set V_i of layers, a data
degree d_i, a tensor degree t_i and one mode per layer, a mode being a way to run the layer at t_i
(with or without recomputation). The V_i partition the layers and no edge leads to an earlier stage.

.. math::
   \min \max_i T_i, \qquad T_i = \frac{1}{d_i} \Bigl( \sum_{v \in V_i} p_v
   + (d_i - 1) \sum_{v \in V_i} r_v + \sum_{(u,v) \text{ enters } V_i} e_{uv}
   + \sum_{(v,x) \text{ leaves } V_i} l_{vx} \Bigr)

with p the seconds per microbatch of the chosen mode, r_v = 4 w_v / (N B) the resynchronisation of
its w bytes of weights, e_uv = 2 (c_uv + syncFw_v[u]) / B and l_vx = 2 (c_vx + syncBw_v[x]) / B; B
is the bandwidth in bytes per second, N the number of microbatches per step. Subject to

* sum_i d_i t_i <= K devices, d_i divides N, sum_i d_i <= min(N, K);
* y_i = ceil((d_i + ... + d_m) / d_i) microbatches in flight, and
  sum over V_i of (a_v y_i + b_v) <= M bytes.

Source: Tarnawski, Narayanan, Phanishayee, "Piper: Multidimensional planner for DNN
parallelization", NeurIPS'21, as its public code prices it.

Everything here is an integer: seconds times ``units_per_second`` and bytes times
``units_per_byte``, both chosen so that the decimals of a file are met exactly. A stage's time is a
rational with denominator d_i, so objectives are ``Fraction`` and compare with ``==``.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from ilp_parallel.problems.check import Check

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Mode:
    """One way to run a layer at one tensor degree."""

    name: str
    time: int  # time units per microbatch, forward and backward
    resync: int  # time units per microbatch and further replica
    activation: int  # memory units per microbatch in flight
    fixed: int  # memory units
    enter: tuple[int, ...]  # time units, per in-edge of the layer, where it crosses a boundary
    leave: tuple[int, ...]  # time units, per out-edge of the layer, likewise


@dataclass(frozen=True, slots=True, eq=False)
class PiperInstance:
    """A layer graph with its modes, and the machine. Layers and edges are numbered from 0."""

    name: str
    layer_ids: tuple[int, ...]  # as in the file
    layer_names: tuple[str, ...]
    edges: tuple[tuple[int, int], ...]
    modes: tuple[Mapping[int, tuple[Mode, ...]], ...]  # per layer: tensor degree -> modes
    devices: int
    microbatches: int  # per optimizer step
    memory: int  # memory units of one device
    units_per_second: int
    units_per_byte: int
    data_degrees: tuple[int, ...]  # ascending; divisors of microbatches
    tensor_degrees: tuple[int, ...]  # ascending
    one_mode_per_stage: bool = False  # all layers of a stage use the mode of one name

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.layer_ids)

    @property
    def replicas(self) -> int:
        """Most replicas of all stages together."""
        return min(self.microbatches, self.devices)

    def in_edges(self) -> list[list[int]]:
        """[layers] edges that enter each layer; the order of ``Mode.enter``."""
        return self._incident(1)

    def out_edges(self) -> list[list[int]]:
        """[layers] edges that leave each layer; the order of ``Mode.leave``."""
        return self._incident(0)

    def _incident(self, end: int) -> list[list[int]]:
        incident: list[list[int]] = [[] for _ in range(self.layers)]
        for number, edge in enumerate(self.edges):
            incident[edge[end]].append(number)
        return incident


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage: its layers ascending, and the index of the mode of each at the tensor degree."""

    layers: tuple[int, ...]
    data_degree: int
    tensor_degree: int
    modes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Seconds per microbatch of the slowest stage (None if a plan is malformed), and the rules."""

    objective: Fraction | None
    stage_seconds: tuple[Fraction, ...]
    checks: tuple[Check, ...]

    @property
    def feasible(self) -> bool:
        """Whether every rule holds."""
        return all(check.passed for check in self.checks)


def evaluate(instance: PiperInstance, plan: Sequence[Stage]) -> Evaluation:
    """Check a plan against every rule and price it, exactly."""
    shape = _shape_checks(instance, plan)
    if not all(check.passed for check in shape):
        return Evaluation(None, (), shape)
    seconds = tuple(stage_seconds(instance, stage) for stage in plan)
    checks = (
        *shape,
        _order_check(instance, plan),
        *_degree_checks(instance, plan),
        _mode_check(instance, plan),
        _memory_check(instance, plan),
    )
    return Evaluation(max(seconds), seconds, checks)


def stage_seconds(instance: PiperInstance, stage: Stage) -> Fraction:
    """T_i: time of a stage per microbatch."""
    inside, units = set(stage.layers), 0
    entering, leaving = instance.in_edges(), instance.out_edges()
    for v, mode in _chosen(instance, stage):
        units += mode.time + (stage.data_degree - 1) * mode.resync
        units += sum(
            cost
            for edge, cost in zip(entering[v], mode.enter, strict=True)
            if instance.edges[edge][0] not in inside
        )
        units += sum(
            cost
            for edge, cost in zip(leaving[v], mode.leave, strict=True)
            if instance.edges[edge][1] not in inside
        )
    return Fraction(units, stage.data_degree * instance.units_per_second)


def in_flight(plan: Sequence[Stage]) -> tuple[int, ...]:
    """[stages] y_i: microbatches whose activations a replica of each stage keeps."""
    counts: list[int] = []
    replicas = 0
    for stage in reversed(plan):
        replicas += stage.data_degree
        counts.append(-(-replicas // stage.data_degree))
    return tuple(reversed(counts))


def _chosen(instance: PiperInstance, stage: Stage) -> list[tuple[int, Mode]]:
    return [
        (v, instance.modes[v][stage.tensor_degree][k])
        for v, k in zip(stage.layers, stage.modes, strict=True)
    ]


def _shape_checks(instance: PiperInstance, plan: Sequence[Stage]) -> tuple[Check, ...]:
    """Whether the stages partition the layers and every mode exists."""
    placed = sorted(v for stage in plan for v in stage.layers)
    wrong = len(set(placed) ^ set(range(instance.layers))) + len(placed) - len(set(placed))
    empty = sum(not stage.layers for stage in plan) + sum(s.data_degree < 1 for s in plan)
    missing = sum(
        len(stage.modes) != len(stage.layers)
        or not all(
            0 <= k < len(instance.modes[v].get(stage.tensor_degree, ()))
            for v, k in zip(stage.layers, stage.modes, strict=False)
            if 0 <= v < instance.layers
        )
        for stage in plan
    )
    return (
        Check("every_layer_in_one_stage", wrong == 0, -wrong, "layers"),
        Check("no_empty_stage", empty == 0, -empty, "stages"),
        Check("modes_exist", missing == 0, -missing, "stages"),
    )


def _order_check(instance: PiperInstance, plan: Sequence[Stage]) -> Check:
    place = {v: i for i, stage in enumerate(plan) for v in stage.layers}
    backwards = sum(place[u] > place[v] for u, v in instance.edges)
    return Check("edges_lead_forwards", backwards == 0, -backwards, "edges")


def _degree_checks(instance: PiperInstance, plan: Sequence[Stage]) -> tuple[Check, ...]:
    used = sum(stage.data_degree * stage.tensor_degree for stage in plan)
    replicas = sum(stage.data_degree for stage in plan)
    odd = sum(
        stage.data_degree not in instance.data_degrees
        or stage.tensor_degree not in instance.tensor_degrees
        or instance.microbatches % stage.data_degree != 0
        for stage in plan
    )
    left, spare = instance.devices - used, instance.replicas - replicas
    return (
        Check("devices", left >= 0, left, "devices"),
        Check("replicas", spare >= 0, spare, "replicas"),
        Check("degrees_allowed", odd == 0, -odd, "stages"),
    )


def _mode_check(instance: PiperInstance, plan: Sequence[Stage]) -> Check:
    mixed = 0
    if instance.one_mode_per_stage:
        mixed = sum(len({m.name for _, m in _chosen(instance, stage)}) > 1 for stage in plan)
    return Check("one_mode_per_stage", mixed == 0, -mixed, "stages")


def _memory_check(instance: PiperInstance, plan: Sequence[Stage]) -> Check:
    """The tightest stage; slack in memory units of the instance."""
    slack = min(
        instance.memory - sum(m.activation * y + m.fixed for _, m in _chosen(instance, stage))
        for stage, y in zip(plan, in_flight(plan), strict=True)
    )
    unit = "bytes" if instance.units_per_byte == 1 else f"bytes/{instance.units_per_byte}"
    return Check("memory", slack >= 0, slack, unit)
