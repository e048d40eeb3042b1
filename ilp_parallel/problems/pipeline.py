r"""The pipeline problem: contiguous stages and one strategy per layer, in integers.

Sets
----
layers ``l = 0..L-1`` in model order; device groups ``s = 0..p-1``; chunks ``c = 0..v-1``;
virtual stages ``j = 0..p*v-1`` in model order, virtual stage ``j`` living on device group
``j mod p`` as its chunk ``j div p`` (``v = 1``: virtual stage = device group);
strategies ``k``; layer classes ``q``.

Decision
--------
How many consecutive layers each virtual stage holds, and the strategy of every layer.

Time (integer ticks). With :math:`F_j, B_j` the forward and backward time of virtual stage ``j``
for one microbatch (layers + fixed part + resharding) and :math:`c_j` the one-way delay of the cut
``j | j+1``, device group ``s`` has

.. math::
    F'_s = \sum_{j \equiv s} (F_j + c_j), \quad B'_s = \sum_{j \equiv s} (B_j + c_{j-1}),
    \quad c_{-1} = c_{pv-1} = 0,

and :math:`\tau_s` is its once-per-step tail (gradient synchronisation left exposed + optimizer).
The objective is ``ceil(numerator / divisor)``:

* ``1f1b`` (v = 1): :math:`\sum_s (F'_s + B'_s) + (m-1) \max_s (F'_s + B'_s) + \max_s \tau_s`
* ``gpipe`` (v = 1):
  :math:`\sum_s (F'_s+B'_s) + (m-1) (\max_s F'_s + \max_s B'_s) + \max_s \tau_s`
* ``interleaved`` (v > 1): numerator
  :math:`\sum_s (F'_s + B'_s) + (mv - 1) \max_s (F'_s + B'_s) + v \max_s \tau_s`, divisor ``v``.

Folding. If all ``v`` chunks of a device group are to be equal, an instance with ``chunks = 1`` and
``fold = v`` has one layer for ``v`` layers of the model (their times, states and activations summed
by whoever builds it); the objective then uses ``v = fold``.

Memory (integer bytes) of device group ``s``: fixed + sum of layer states + the largest, over the
rows ``r`` of ``in_flight[s]``, of ``sum_c r_c * (activations of chunk c)`` + the largest layer
transient; at most ``capacity_bytes[s]``.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from ilp_parallel.problems.check import Check

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
Schedule = Literal["1f1b", "gpipe", "interleaved"]


@dataclass(frozen=True, slots=True)
class Policy:
    """A runtime that knows one global setting only.

    In every virtual stage the first ``min(prefix_layers, size)`` layers use strategy ``prefix``,
    all others use strategy ``rest``.
    """

    prefix: int
    prefix_layers: int
    rest: int


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """One ``weight * max_s`` term of the objective: over F', over B' or over their sum."""

    weight: int
    forward: bool
    backward: bool


@dataclass(frozen=True, slots=True)
class Objective:
    """``ceil((sum_s (F'_s + B'_s) + sum of bottlenecks + tail_weight * max tail) / divisor)``."""

    bottlenecks: tuple[Bottleneck, ...]
    tail_weight: int
    divisor: int

    def ticks(self, numerator: int) -> int:
        """Objective in whole ticks of a numerator (or of a lower bound on numerators)."""
        return -(-numerator // self.divisor)


def objective_of(schedule: Schedule, microbatches: int, chunks: int) -> Objective:
    """Weights of the objective of a schedule."""
    m, v = microbatches, chunks
    if schedule == "gpipe":
        split = (Bottleneck(m - 1, True, False), Bottleneck(m - 1, False, True))
        return Objective(split, tail_weight=1, divisor=1)
    return Objective((Bottleneck(m * v - 1, True, True),), tail_weight=v, divisor=v)


@dataclass(frozen=True, eq=False)
class PipelineInstance:
    """Complete integer data of one configuration. Arrays are int64 and never written to.

    Shapes: ``[Q, K]`` is class x strategy, ``[V]`` virtual stage (``p * v``), ``[p]`` device group.
    """

    stages: int
    chunks: int
    microbatches: int
    schedule: Schedule
    layer_class: IntArray  # [L]
    strategy_names: tuple[str, ...]  # [K]
    allowed: BoolArray  # [Q, K]
    forward_ticks: IntArray  # [Q, K] per microbatch
    backward_ticks: IntArray  # [Q, K] per microbatch, recomputation included
    tail_ticks: IntArray  # [Q, K] once per step
    state_bytes: IntArray  # [Q, K] weights, gradients, optimizer states
    activation_bytes: IntArray  # [Q, K] per microbatch in flight
    transient_bytes: IntArray  # [Q, K] largest one counts once
    fixed_forward_ticks: IntArray  # [V] embedding, head, ...
    fixed_backward_ticks: IntArray  # [V]
    fixed_tail_ticks: IntArray  # [p]
    fixed_bytes: IntArray  # [p] everything that no layer decides, in-flight copies included
    cut_ticks: IntArray  # [V - 1] one-way delay of the cut j | j+1
    capacity_bytes: IntArray  # [p]
    min_layers: IntArray  # [V]
    max_layers: IntArray  # [V]
    in_flight: tuple[IntArray, ...]  # per device group: [rows, v] microbatches alive per chunk
    reshard_forward_ticks: IntArray | None = None  # [K, K] from earlier to later layer
    reshard_backward_ticks: IntArray | None = None  # [K, K]
    policies: tuple[Policy, ...] | None = None  # None: every layer chooses freely
    fold: int = 1  # model layers, one per chunk of a device group, that one layer stands for

    def __post_init__(self) -> None:
        _require_consistent(self)

    @property
    def layers(self) -> int:
        """Number of layers L."""
        return len(self.layer_class)

    @property
    def strategies(self) -> int:
        """Number of strategies K."""
        return len(self.strategy_names)

    @property
    def virtual_stages(self) -> int:
        """Number of virtual stages p * v."""
        return self.stages * self.chunks

    @cached_property
    def objective(self) -> Objective:
        """Weights of the objective, derived from the schedule."""
        return objective_of(self.schedule, self.microbatches, self.chunks * self.fold)

    @cached_property
    def stage_forward_ticks(self) -> IntArray:
        """[V] the fixed part of F' of each virtual stage: fixed forward time + outgoing cut."""
        outgoing: IntArray = np.append(self.cut_ticks, 0)
        return self.fixed_forward_ticks + outgoing

    @cached_property
    def stage_backward_ticks(self) -> IntArray:
        """[V] the fixed part of B' of each virtual stage: fixed backward time + incoming cut."""
        incoming: IntArray = np.concatenate(([0], self.cut_ticks))
        return self.fixed_backward_ticks + incoming

    def reshard_ticks(self, earlier: int, later: int) -> tuple[int, int]:
        """Forward and backward resharding time between adjacent layers' strategies."""
        if self.reshard_forward_ticks is None or self.reshard_backward_ticks is None:
            return 0, 0
        return (
            int(self.reshard_forward_ticks[earlier, later]),
            int(self.reshard_backward_ticks[earlier, later]),
        )

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all data, hexadecimal."""
        state = hashlib.sha256()
        for field in fields(self):
            value = getattr(self, field.name)
            parts = value if field.name == "in_flight" else (value,)
            for part in parts:
                if isinstance(part, np.ndarray):
                    data = part.tobytes() + str(part.shape).encode()
                else:
                    data = repr(part).encode()
                state.update(field.name.encode() + b"=" + data + b";")
        return state.hexdigest()


@dataclass(frozen=True, slots=True)
class PipelineSolution:
    """Layers per virtual stage ``[V]`` and the strategy of every layer ``[L]``."""

    sizes: tuple[int, ...]
    strategies: tuple[int, ...]

    def stage_ranges(self) -> list[range]:
        """The layers of each virtual stage."""
        ends = np.cumsum(self.sizes).tolist()
        return [range(end - size, end) for end, size in zip(ends, self.sizes, strict=True)]


@dataclass(frozen=True, slots=True)
class PipelineEvaluation:
    """What a solution costs. Tuples are per device group; ticks and bytes are integers."""

    checks: tuple[Check, ...]
    forward_ticks: tuple[int, ...]  # F'
    backward_ticks: tuple[int, ...]  # B'
    tail_ticks: tuple[int, ...]
    state_bytes: tuple[int, ...]
    activation_bytes: tuple[int, ...]  # at the worst instant
    transient_bytes: tuple[int, ...]
    memory_bytes: tuple[int, ...]  # fixed part included
    numerator: int
    objective_ticks: int

    @property
    def feasible(self) -> bool:
        """Whether every check passed."""
        return all(check.passed for check in self.checks)


def evaluate(instance: PipelineInstance, solution: PipelineSolution) -> PipelineEvaluation:
    """Executable specification: every rule checked, the objective recomputed from scratch.

    Raises
    ------
    ValueError
        If the solution does not even have the shape of the instance.
    """
    _require_shape(instance, solution)
    forward, backward = _virtual_stage_ticks(instance, solution)
    groups = range(instance.stages)
    device_forward = tuple(sum(forward[s :: instance.stages]) for s in groups)
    device_backward = tuple(sum(backward[s :: instance.stages]) for s in groups)
    tail = tuple(_tail_ticks(instance, solution, s) for s in groups)
    memory = [_memory_bytes(instance, solution, s) for s in groups]
    totals = tuple(sum(parts) + int(instance.fixed_bytes[s]) for s, parts in enumerate(memory))
    numerator = objective_numerator(instance.objective, device_forward, device_backward, tail)
    checks = (
        *_size_checks(instance, solution),
        _allowed_check(instance, solution),
        _policy_check(instance, solution),
        *(
            _at_most(f"memory[{s}]", totals[s], int(instance.capacity_bytes[s]), "bytes")
            for s in groups
        ),
    )
    return PipelineEvaluation(
        checks=checks,
        forward_ticks=device_forward,
        backward_ticks=device_backward,
        tail_ticks=tail,
        state_bytes=tuple(parts[0] for parts in memory),
        activation_bytes=tuple(parts[1] for parts in memory),
        transient_bytes=tuple(parts[2] for parts in memory),
        memory_bytes=totals,
        numerator=numerator,
        objective_ticks=instance.objective.ticks(numerator),
    )


def objective_numerator(
    objective: Objective,
    forward: tuple[int, ...],
    backward: tuple[int, ...],
    tail: tuple[int, ...],
) -> int:
    """Numerator of the objective from the device groups' F', B' and tails."""
    total = sum(forward) + sum(backward) + objective.tail_weight * max(tail)
    for term in objective.bottlenecks:
        total += term.weight * max(
            f * term.forward + b * term.backward for f, b in zip(forward, backward, strict=True)
        )
    return total


def _virtual_stage_ticks(
    instance: PipelineInstance, solution: PipelineSolution
) -> tuple[list[int], list[int]]:
    """F and B of each virtual stage plus its cuts; resharding counts with the later layer."""
    forward = [int(ticks) for ticks in instance.stage_forward_ticks]
    backward = [int(ticks) for ticks in instance.stage_backward_ticks]
    for j, layers in enumerate(solution.stage_ranges()):
        for layer in layers:
            q, k = int(instance.layer_class[layer]), solution.strategies[layer]
            forward[j] += int(instance.forward_ticks[q, k])
            backward[j] += int(instance.backward_ticks[q, k])
            if layer > 0:
                reshard = instance.reshard_ticks(solution.strategies[layer - 1], k)
                forward[j] += reshard[0]
                backward[j] += reshard[1]
    return forward, backward


def _device_layers(
    instance: PipelineInstance, solution: PipelineSolution, group: int
) -> list[list[int]]:
    """The layers of a device group, one list per chunk."""
    return [list(layers) for layers in solution.stage_ranges()[group :: instance.stages]]


def _tail_ticks(instance: PipelineInstance, solution: PipelineSolution, group: int) -> int:
    """Once-per-step time of a device group."""
    return int(instance.fixed_tail_ticks[group]) + sum(
        int(instance.tail_ticks[instance.layer_class[layer], solution.strategies[layer]])
        for layers in _device_layers(instance, solution, group)
        for layer in layers
    )


def _memory_bytes(
    instance: PipelineInstance, solution: PipelineSolution, group: int
) -> tuple[int, int, int]:
    """States, activations at the worst instant, and the largest transient of a device group."""
    chunks = _device_layers(instance, solution, group)

    def look_up(table: IntArray, layer: int) -> int:
        return int(table[instance.layer_class[layer], solution.strategies[layer]])

    state = sum(look_up(instance.state_bytes, layer) for layers in chunks for layer in layers)
    per_chunk = [
        sum(look_up(instance.activation_bytes, layer) for layer in layers) for layers in chunks
    ]
    activation = max(
        sum(int(alive) * held for alive, held in zip(row, per_chunk, strict=True))
        for row in instance.in_flight[group]
    )
    transient = max(
        (look_up(instance.transient_bytes, layer) for layers in chunks for layer in layers),
        default=0,
    )
    return state, activation, transient


def _at_most(name: str, value: int, limit: int, unit: str) -> Check:
    return Check(name, value <= limit, limit - value, unit)


def _size_checks(instance: PipelineInstance, solution: PipelineSolution) -> list[Check]:
    """Every layer placed exactly once; each virtual stage within its limits."""
    missing = abs(instance.layers - sum(solution.sizes))
    checks = [Check("layers_placed", missing == 0, -missing, "layers")]
    for j, size in enumerate(solution.sizes):
        slack = min(int(instance.max_layers[j]) - size, size - int(instance.min_layers[j]))
        checks.append(Check(f"stage_size[{j}]", slack >= 0, slack, "layers"))
    return checks


def _allowed_check(instance: PipelineInstance, solution: PipelineSolution) -> Check:
    """Only strategies that the layer's class allows."""
    refused = sum(
        not bool(instance.allowed[q, k])
        for q, k in zip(instance.layer_class, solution.strategies, strict=True)
    )
    return Check("strategies_allowed", refused == 0, -refused, "layers")


def _policy_check(instance: PipelineInstance, solution: PipelineSolution) -> Check:
    """If there are policies, the strategies follow one of them; slack: layers that deviate."""
    if instance.policies is None:
        return Check("policy", True, 0, "layers")
    deviating = min(
        sum(
            k != wanted
            for k, wanted in zip(
                solution.strategies, policy_strategies(policy, solution.sizes), strict=True
            )
        )
        for policy in instance.policies
    )
    return Check("policy", deviating == 0, -deviating, "layers")


def policy_strategies(policy: Policy, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Strategy of every layer when all virtual stages follow a policy."""
    strategies: list[int] = []
    for size in sizes:
        prefix = min(policy.prefix_layers, size)
        strategies += [policy.prefix] * prefix + [policy.rest] * (size - prefix)
    return tuple(strategies)


def _require_shape(instance: PipelineInstance, solution: PipelineSolution) -> None:
    if len(solution.sizes) != instance.virtual_stages or min(solution.sizes) < 0:
        raise ValueError(f"{len(solution.sizes)} sizes for {instance.virtual_stages} stages")
    if len(solution.strategies) != instance.layers or sum(solution.sizes) != instance.layers:
        raise ValueError(f"{len(solution.strategies)} strategies for {instance.layers} layers")
    if not all(0 <= k < instance.strategies for k in solution.strategies):
        raise ValueError("strategy index out of range")


def _require_consistent(instance: PipelineInstance) -> None:
    """Shapes agree and signs make sense; an instance that passes can be solved."""
    classes = int(instance.layer_class.max()) + 1
    per_class = (classes, instance.strategies)
    virtual, groups = (instance.virtual_stages,), (instance.stages,)
    shapes = {
        "allowed": per_class,
        "forward_ticks": per_class,
        "backward_ticks": per_class,
        "tail_ticks": per_class,
        "state_bytes": per_class,
        "activation_bytes": per_class,
        "transient_bytes": per_class,
        "fixed_forward_ticks": virtual,
        "fixed_backward_ticks": virtual,
        "fixed_tail_ticks": groups,
        "fixed_bytes": groups,
        "cut_ticks": (instance.virtual_stages - 1,),
        "capacity_bytes": groups,
        "min_layers": virtual,
        "max_layers": virtual,
    }
    arrays = []
    for name, shape in shapes.items():
        array = getattr(instance, name)
        if array.shape != shape:
            raise ValueError(f"{name} has shape {array.shape}, expected {shape}")
        if name != "capacity_bytes":
            arrays.append(array.ravel())
    if np.concatenate(arrays).min() < 0:
        raise ValueError("an entry is negative")
    if len(instance.in_flight) != instance.stages:
        raise ValueError("in_flight needs one table per device group")
    if any(rows.ndim != 2 or rows.shape[1] != instance.chunks for rows in instance.in_flight):
        raise ValueError("in_flight rows need one entry per chunk")
    if (instance.schedule == "interleaved") != (instance.chunks * instance.fold > 1):
        raise ValueError("interleaving and only interleaving has more than one chunk")
    if instance.stages < 1 or instance.microbatches < 1 or instance.min_layers.min() < 1:
        raise ValueError("stages, microbatches and layers per stage are at least 1")
