"""What a plan's step time and memory consist of, per stage and term."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ilp_parallel.configuration import RECOMPUTE_SETS
from ilp_parallel.costs.work import Work
from ilp_parallel.schedules import in_flight_rows

if TYPE_CHECKING:
    from ilp_parallel.configuration import Configuration
    from ilp_parallel.costs.model import CostModel
    from ilp_parallel.plan import Plan
    from ilp_parallel.specs.job import JobSpec
    from ilp_parallel.specs.model import ModelSpec


@dataclass(frozen=True, slots=True)
class Term:
    """One named part; ``unit`` is ``s/microbatch``, ``s/step`` or ``bytes``."""

    name: str
    value: float
    unit: str


@dataclass(frozen=True, slots=True)
class StagePrediction:
    """One device group, per rank. The terms of each kind add up to the totals beside them."""

    layers: int
    microbatch_terms: tuple[Term, ...]  # add up to forward_s + backward_s
    step_terms: tuple[Term, ...]  # add up to tail_s
    memory_terms: tuple[Term, ...]  # add up to memory_bytes
    forward_s: float  # F': per microbatch, outgoing sends included
    backward_s: float  # B'
    tail_s: float  # once per step
    memory_bytes: float  # peak of what the program has allocated
    usable_bytes: int  # most that it may allocate
    device_bytes: float  # peak of what the device holds: context, communicators, slack on top

    @property
    def allocated_bytes(self) -> float:
        """Peak of what the program has allocated, as ``torch.cuda.max_memory_allocated``."""
        return self.memory_bytes


@dataclass(frozen=True, slots=True)
class Prediction:
    """A plan's step.

    Model FLOPs: ``6 x`` matrix parameters that a token passes (output matrix included, input
    embedding not) ``x`` tokens, and ``12 x layers x query width x sequence x tokens`` for
    attention, counted in full although it is causal, but only in a window and in a document. Frozen
    matrices have no weight gradient: ``4 x``; adapters are not counted. Hardware FLOPs add what is
    recomputed. Utilisations are shares of the matrix peak of the devices the plan uses.
    """

    stages: tuple[StagePrediction, ...]
    reserve_terms: tuple[Term, ...]  # bytes of a full device outside ``usable_bytes``
    step_time_s: float
    tokens_per_s: float
    tokens_per_s_per_device: float
    model_flops: float  # per step, all devices
    hardware_flops: float  # per step, all devices
    mfu: float
    hfu: float

    @property
    def fits(self) -> bool:
        """Whether the device peak of every stage fits: what it allocates is at most usable."""
        return all(stage.memory_bytes <= stage.usable_bytes for stage in self.stages)

    @property
    def allocated_bytes(self) -> float:
        """Largest allocated peak of any device."""
        return max(stage.memory_bytes for stage in self.stages)

    @property
    def device_bytes(self) -> float:
        """Largest device peak."""
        return max(stage.device_bytes for stage in self.stages)


def model_flops(model: ModelSpec, job: JobSpec) -> float:
    """FLOPs of one step by the convention of :class:`Prediction`."""
    length = sum(n * n for n in job.documents) / job.sequence_length
    mixing = sum(view.layers * _mixing_flops(view, length) for view in model.views)
    matrices = flops_per_parameter(job) * model.active_matrix_parameters
    return job.tokens_per_step * (matrices + mixing)


def flops_per_parameter(job: JobSpec) -> float:
    """FLOPs per token and element of a matrix: forward, input gradient, and weight gradient."""
    return 4.0 if job.task == "lora" else 6.0


def _mixing_flops(model: ModelSpec, length: float) -> float:
    """FLOPs of a token in the mixer of a block, forward and backward."""
    if model.mixer == "state-space" and model.state_space is not None:
        space = model.state_space
        return 12.0 * space.state * space.heads * space.head_dim
    if model.mixer == "none":
        return 0.0
    keys = min(model.window or length, length) + length * model.cross_attention
    return 6.0 * keys * (model.score_width + model.context_width)


def step_time_s(
    configuration: Configuration,
    forward_s: list[float],
    backward_s: list[float],
    tail_s: list[float],
) -> float:
    """Seconds of one step from the device groups' F', B' and tails (the problem's objective)."""
    m, v = configuration.microbatches, configuration.chunks
    both = [f + b for f, b in zip(forward_s, backward_s, strict=True)]
    if configuration.schedule == "gpipe":
        return sum(both) + (m - 1) * (max(forward_s) + max(backward_s)) + max(tail_s)
    return (sum(both) + (m * v - 1) * max(both)) / v + max(tail_s)


def predict(costs: CostModel, plan: Plan) -> Prediction:
    """Price a plan term by term from the parts the layer table is made of."""
    configuration = plan.configuration
    stages = _Stages(costs, plan)
    groups = tuple(stages.group(s) for s in range(configuration.pipeline))
    step = step_time_s(
        configuration,
        [stage.forward_s for stage in groups],
        [stage.backward_s for stage in groups],
        [stage.tail_s for stage in groups],
    )
    useful = model_flops(plan.model, plan.job)
    hardware = useful + stages.recomputed_flops()
    peak = costs.machine.peak_flops * configuration.devices * step
    tokens_per_s = plan.job.tokens_per_step / step
    names = ("context", "communicators", "fragmentation")
    if plan.job.reserve_bytes is not None:
        names = ("reserve", *names[1:])
    reserve = costs.reserve_bytes(configuration)
    return Prediction(
        stages=groups,
        reserve_terms=tuple(
            Term(name, float(size), "bytes") for name, size in zip(names, reserve, strict=True)
        ),
        step_time_s=step,
        tokens_per_s=tokens_per_s,
        tokens_per_s_per_device=tokens_per_s / configuration.devices,
        model_flops=useful,
        hardware_flops=hardware,
        mfu=useful / peak,
        hfu=hardware / peak,
    )


Choice = tuple[int, int, int]
"""Kind of a block, its ZeRO variant and its recomputation set."""


class _Stages:
    """The plan's layers by device group, with the parts that price them."""

    def __init__(self, costs: CostModel, plan: Plan) -> None:
        g = self._configuration = plan.configuration
        self._costs = costs
        kinds = range(plan.model.kind_count)
        self._layers = [costs.layer_part(g, kind) for kind in kinds]
        self._zeros = [costs.zero_part(g, kind) for kind in kinds]
        self._traffic = [costs.exposed_traffic(g, kind) for kind in kinds]
        self._ends, self._tail = costs.end_work(g), costs.end_tail(g)
        index = {s: k for k, s in enumerate(costs.strategies(g))}
        chosen = [divmod(index[s], len(RECOMPUTE_SETS)) for s in plan.strategies]
        layers = [(q, z, r) for q, (z, r) in zip(plan.model.layer_kinds, chosen, strict=True)]
        ends = np.cumsum(plan.sizes).tolist()
        self._virtual = [
            layers[end - size : end] for end, size in zip(ends, plan.sizes, strict=True)
        ]
        self._rows = in_flight_rows(g.schedule, g.pipeline, g.chunks, g.microbatches)
        self._in_flight = [int(rows[:, -1].max()) for rows in self._rows]
        self._in_flight[0] = int(self._rows[0][:, 0].max())
        self._fixed = costs.stage_costs(g, self._in_flight)

    def group(self, group: int) -> StagePrediction:
        """Everything about one device group."""
        p, fixed = self._configuration.pipeline, self._fixed
        chunks = self._virtual[group::p]
        layers = [choice for chunk in chunks for choice in chunk]
        outgoing = float(np.append(fixed.cut_s, 0.0)[group::p].sum())
        incoming = float(np.append(0.0, fixed.cut_s)[group::p].sum())
        microbatch = self._microbatch_terms(group, layers, incoming + outgoing)
        forward = (
            sum(self._layers[q].forward_s for q, _, _ in layers)
            + sum(float(self._traffic[q].forward_s[z, 0]) for q, z, _ in layers)
            + float(fixed.fixed_forward_s[group::p].sum())
            + outgoing
        )
        step, memory = self._step_terms(group, layers), self._memory_terms(group, chunks)
        allocated = sum(term.value for term in memory)
        return StagePrediction(
            layers=len(layers),
            microbatch_terms=microbatch,
            step_terms=step,
            memory_terms=memory,
            forward_s=forward,
            backward_s=sum(term.value for term in microbatch) - forward,
            tail_s=sum(term.value for term in step),
            memory_bytes=allocated,
            usable_bytes=fixed.capacity_bytes,
            device_bytes=self._costs.device_bytes(self._configuration, allocated),
        )

    def recomputed_flops(self) -> float:
        """FLOPs recomputed in one step on all devices."""
        g = self._configuration
        layers = [(q, r) for chunk in self._virtual for q, _, r in chunk]
        flops = sum(float(self._layers[q].recompute_flops[r]) for q, r in layers)
        return flops * g.tensor * g.shards * g.microbatches

    def _first(self, group: int) -> bool:
        return group == 0

    def _last(self, group: int) -> bool:
        return group == self._configuration.pipeline - 1

    def _microbatch_terms(
        self, group: int, layers: list[Choice], sends_s: float
    ) -> tuple[Term, ...]:
        """Forward and backward of one microbatch through the group."""
        ends = self._ends
        parts = [self._layers[q] for q, _, _ in layers]
        both = sum((part.forward + part.backward for part in parts), Work())
        slack = sum(part.forward_s + part.backward_s for part in parts) - both.device_s
        embedding = ends.embedding_forward_s + ends.embedding_backward_s
        head = ends.head_forward_s + ends.head_backward_s
        traffic = self._traffic
        zero = sum(
            float(traffic[q].forward_s[z, 0] + traffic[q].backward_s[z, r]) for q, z, r in layers
        )
        expert = {"expert_traffic": both.expert_traffic_s} if both.expert_traffic_s else {}
        return _terms(
            "s/microbatch",
            matmul=both.matmul_s,
            attention=both.attention_s,
            memory_bound=both.memory_bound_s,
            tensor_traffic=both.tensor_traffic_s,
            context_traffic=both.context_traffic_s,
            **expert,
            host_and_stragglers=max(0.0, slack),
            recomputation=sum(float(self._layers[q].recompute_s[r]) for q, _, r in layers),
            zero_traffic=zero,
            embedding=embedding if self._first(group) else 0.0,
            head_and_loss=head if self._last(group) else 0.0,
            pipeline_sends=sends_s,
        )

    def _step_terms(self, group: int, layers: list[Choice]) -> tuple[Term, ...]:
        """Once per step, after the last backward."""
        traffic, tail = self._traffic, self._tail
        at_end = self._first(group) or self._last(group)
        return _terms(
            "s/step",
            gradient_sync=sum(float(traffic[q].last_backward_s[z, r]) for q, z, r in layers),
            weight_gather=sum(float(traffic[q].next_forward_s[z, 0]) for q, z, _ in layers),
            optimizer=sum(float(self._zeros[q].optimizer_s[z]) for q, z, _ in layers),
            embedding=tail.embedding_s if self._first(group) else 0.0,
            head=tail.head_s if self._last(group) else 0.0,
            tied_embeddings=tail.tied_s if at_end else 0.0,
        )

    def _memory_terms(self, group: int, chunks: list[list[Choice]]) -> tuple[Term, ...]:
        """Bytes at the group's worst instant."""
        parts, zeros, ends, tail = self._layers, self._zeros, self._ends, self._tail
        layers = [choice for chunk in chunks for choice in chunk]
        held = [sum(float(parts[q].activation_bytes[r]) for q, _, r in chunk) for chunk in chunks]
        transients = [
            float(zeros[q].transient_bytes[z] + parts[q].transient_bytes[r]) for q, z, r in layers
        ]
        alive = self._in_flight[group]
        first, last = self._first(group), self._last(group)
        passing = {"passing_tensors": alive * ends.passing_bytes} if ends.passing_bytes else {}
        return _terms(
            "bytes",
            weights=sum(float(zeros[q].weights_bytes[z]) for q, z, _ in layers),
            gradients=sum(float(zeros[q].gradients_bytes[z]) for q, z, _ in layers),
            optimizer=sum(float(zeros[q].optimizer_bytes[z]) for q, z, _ in layers),
            activations=max(float(row @ held) for row in self._rows[group]),
            transient=max(transients, default=0.0),
            embedding_states=tail.embedding.total if first else 0.0,
            embedding_activations=alive * ends.embedding_bytes if first else 0.0,
            head_states=tail.head.total if last else 0.0,
            logits=alive * ends.head_bytes + ends.head_transient_bytes if last else 0.0,
            **passing,
            communication_buffers=self._costs.buffer_bytes(self._configuration),
            workspaces=float(self._costs.workspace_bytes),
        )


def _terms(unit: str, **values: float) -> tuple[Term, ...]:
    return tuple(Term(name, value, unit) for name, value in values.items())
