"""The cost model: a configuration's layer table and stage costs, in seconds and bytes.

Everything is memoised on exactly what it depends on: a block's work on (tensor, microbatch,
sequence parallelism), ZeRO on (tensor, data, pipeline), so that a configuration costs a few numpy
operations. The same inputs always give bit-identical numbers. ``docs/cost_model.md`` explains all
terms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ilp_parallel.configuration import RECOMPUTE_SETS, ZERO_VARIANTS, Strategy
from ilp_parallel.costs import constants as c
from ilp_parallel.costs.cuts import CutCosting
from ilp_parallel.costs.ends import EndTail, EndWork, end_tail, end_work
from ilp_parallel.costs.hardware import Group, Machine
from ilp_parallel.costs.layer import ExpertGroups, FloatArray, LayerCosting, LayerPart
from ilp_parallel.costs.layer_times import MeasuredLayers
from ilp_parallel.costs.shapes import EndShapes, Lora, RankShapes, end_shapes, rank_shapes
from ilp_parallel.costs.states import (
    ExposedTraffic,
    StateCosting,
    ZeroPart,
    exposed_traffic,
    variants_of,
    zero_part,
)
from ilp_parallel.costs.work import NO_WORK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ilp_parallel.configuration import Configuration
    from ilp_parallel.costs.breakdown import Prediction
    from ilp_parallel.costs.work import Passes
    from ilp_parallel.plan import Plan
    from ilp_parallel.specs.cluster import ClusterSpec
    from ilp_parallel.specs.job import JobSpec
    from ilp_parallel.specs.model import ModelSpec

_ALL = tuple(Strategy(zero, modules) for zero in ZERO_VARIANTS for modules in RECOMPUTE_SETS)


@dataclass(frozen=True, slots=True)
class LayerTable:
    """One block of each kind on one rank under every strategy; float64 arrays ``[Q, K]``."""

    strategies: tuple[Strategy, ...]
    forward_s: FloatArray  # per microbatch
    backward_s: FloatArray  # per microbatch, recomputation included
    tail_s: FloatArray  # once per step
    state_bytes: FloatArray
    activation_bytes: FloatArray  # per microbatch alive
    transient_bytes: FloatArray  # the largest of a device counts once


@dataclass(frozen=True, slots=True)
class StageCosts:
    """What no layer decides, per rank. ``V = pipeline * chunks`` virtual stages, ``p`` groups."""

    fixed_forward_s: FloatArray  # [V]
    fixed_backward_s: FloatArray  # [V]
    fixed_tail_s: FloatArray  # [p]
    fixed_bytes: FloatArray  # [p]
    cut_s: FloatArray  # [V - 1] one-way exposed delay of the cut j | j+1
    capacity_bytes: int  # usable per device


class CostModel:
    """Prices configurations of one model on one cluster for one job.

    Parameters
    ----------
    model, cluster, job
        What is trained, where and how.

    Raises
    ------
    InputError
        ``PRECISION_NOT_ON_DEVICE`` if the device lacks the recipe's matrix precision.
    """

    def __init__(self, model: ModelSpec, cluster: ClusterSpec, job: JobSpec) -> None:
        self.model = model
        self.cluster = cluster
        self.job = job
        self.machine = Machine(cluster, job)
        self.states = StateCosting(job, self.machine)
        self._shapes: dict[tuple[int, ...], RankShapes] = {}
        self._end_shapes: dict[int, EndShapes] = {}
        self._tables: dict[tuple[object, ...], LayerTable] = {}
        self._layers: dict[tuple[object, ...], LayerPart] = {}
        self._modelled: dict[tuple[object, ...], LayerPart] = {}
        self._passes: dict[tuple[object, ...], Passes] = {}
        self._seconds: dict[tuple[int, ...], tuple[tuple[float, float], ...]] = {}
        self._views = model.views
        lora = job.task == "lora"
        self._lora = Lora(job.lora_rank, job.lora_targets) if lora else None
        self._experts = [view.experts for view in model.views]
        self._measured = MeasuredLayers(job, self._modelled_part)
        self._ends: dict[tuple[object, ...], EndWork] = {}
        self._zeros: dict[tuple[int, ...], ZeroPart] = {}
        self._tails: dict[tuple[int, ...], EndTail] = {}
        self._cuts = CutCosting(self.machine)

    def strategies(self, configuration: Configuration) -> tuple[Strategy, ...]:
        """Strategies a layer may choose from, recomputation varying fastest.

        Every ZeRO variant with every recomputation set; without data parallelism ``0`` alone.
        """
        return _ALL[: len(variants_of(configuration.shards)) * len(RECOMPUTE_SETS)]

    def layer_table(self, configuration: Configuration) -> LayerTable:
        """Price one block under every strategy of ``configuration``.

        Neither schedule nor chunks matter: configurations that differ only there share one table,
        whose arrays are read-only.
        """
        key = self.table_key(configuration)
        table = self._tables.get(key)
        if table is None:
            table = self._tables[key] = self._layer_table(configuration)
        return table

    @staticmethod
    def table_key(configuration: Configuration) -> tuple[int, ...]:
        """What a layer table depends on."""
        return (*_block_key(configuration), configuration.data, configuration.pipeline)

    def _layer_table(self, configuration: Configuration) -> LayerTable:
        kinds = [self._kind_table(configuration, q) for q in range(self.model.kind_count)]
        stacked = {name: _frozen(np.stack([k[name] for k in kinds])) for name in kinds[0]}
        return LayerTable(self.strategies(configuration), **stacked)

    def _kind_table(self, configuration: Configuration, kind: int) -> dict[str, FloatArray]:
        """The columns of the table for one kind of block, ``[K]`` each."""
        layer, zero = self.layer_part(configuration, kind), self.zero_part(configuration, kind)
        traffic = self.exposed_traffic(configuration, kind)
        backward_s = layer.backward_s + layer.recompute_s + traffic.backward_s
        once_s = zero.optimizer_s[:, None] + traffic.next_forward_s + traffic.last_backward_s
        transient_bytes = zero.transient_bytes[:, None] + layer.transient_bytes
        shape = transient_bytes.shape
        return {
            "forward_s": _flat(layer.forward_s + traffic.forward_s, shape),
            "backward_s": _flat(backward_s, shape),
            "tail_s": _flat(once_s, shape),
            "state_bytes": _flat(zero.state_bytes[:, None], shape),
            "activation_bytes": _flat(layer.activation_bytes, shape),
            "transient_bytes": _flat(transient_bytes, shape),
        }

    def stage_costs(self, configuration: Configuration, in_flight: Sequence[int]) -> StageCosts:
        """Price what no layer decides.

        Parameters
        ----------
        configuration
            The configuration.
        in_flight
            ``[p]``: microbatches alive at once on each device group, for the buffers of the first
            and the last virtual stage.
        """
        work, tail = self.end_work(configuration), self.end_tail(configuration)
        p = configuration.pipeline
        virtual = p * configuration.chunks
        forward, backward = np.zeros(virtual), np.zeros(virtual)
        forward[0] += work.embedding_forward_s
        backward[0] += work.embedding_backward_s
        forward[-1] += work.head_forward_s
        backward[-1] += work.head_backward_s
        once = np.zeros(p)
        once[0] += tail.embedding_s
        once[-1] += tail.head_s
        if p > 1:
            once[0] += tail.tied_s
            once[-1] += tail.tied_s
        fixed = np.full(p, self.buffer_bytes(configuration) + self.workspace_bytes)
        fixed += work.passing_bytes * np.asarray(in_flight)
        fixed[0] += tail.embedding.total + in_flight[0] * work.embedding_bytes
        fixed[-1] += (
            tail.head.total + in_flight[p - 1] * work.head_bytes + work.head_transient_bytes
        )
        return StageCosts(
            fixed_forward_s=forward,
            fixed_backward_s=backward,
            fixed_tail_s=once,
            fixed_bytes=fixed,
            cut_s=self._cuts.delays_s(configuration, work),
            capacity_bytes=self.capacity_bytes(configuration),
        )

    def terms(self, plan: Plan) -> Prediction:
        """Break a plan's step time and memory down by stage and term."""
        from ilp_parallel.costs.breakdown import predict

        return predict(self, plan)

    def reserve_bytes(self, configuration: Configuration) -> tuple[int, int, int]:
        """Bytes of a device no plan may use: context, communicators, allocator slack when full.

        An explicit ``job.reserve_bytes`` stands for all three and is given as the first.
        """
        if self.job.reserve_bytes is not None:
            return self.job.reserve_bytes, 0, 0
        device = self.cluster.device
        context = c.CONTEXT_BYTES.get(device.generation, c.CONTEXT_BYTES["unknown"])
        g = configuration
        degrees = (g.pipeline, g.tensor, g.context, g.data, g.expert)
        communicators = sum(degree > 1 for degree in degrees) * c.COMMUNICATOR_BYTES
        left = max(0, device.memory_bytes - context - communicators)
        return context, communicators, left - int(left / (1 + c.ALLOCATOR_SLACK))

    def capacity_bytes(self, configuration: Configuration) -> int:
        """Bytes that may be allocated on a device."""
        return self.cluster.device.memory_bytes - sum(self.reserve_bytes(configuration))

    def device_bytes(self, configuration: Configuration, allocated_bytes: float) -> float:
        """What the device holds when a program has allocated so much."""
        *fixed, _ = self.reserve_bytes(configuration)
        slack = 0.0 if self.job.reserve_bytes is not None else c.ALLOCATOR_SLACK
        return sum(fixed) + (1 + slack) * allocated_bytes

    def buffer_bytes(self, configuration: Configuration) -> float:
        """Communication buckets, and tensors between stages.

        One being sent, one being received, and the last input of every chunk.
        """
        buckets = c.BUCKET_BYTES[self.job.stack] if configuration.shards > 1 else 0
        tensors = 2 + configuration.chunks if configuration.pipeline > 1 else 0
        return buckets + tensors * self.end_work(configuration).boundary_bytes

    @property
    def workspace_bytes(self) -> int:
        """Workspaces of matrix libraries."""
        table = c.WORKSPACE_BYTES
        return table.get(self.cluster.device.generation, table["unknown"])

    def layer_part(self, configuration: Configuration, kind: int = 0) -> LayerPart:
        """A block's time (measured where the job's is) and activations, whatever ZeRO does."""
        key = (kind, *_block_key(configuration))
        part = self._layers.get(key)
        if part is None:
            modelled = self._modelled_part(configuration, kind)
            part = self._layers[key] = self._measured.scaled(modelled, configuration)
        return part

    def _modelled_part(self, configuration: Configuration, kind: int = 0) -> LayerPart:
        """The same by the model alone."""
        key = (kind, *_block_key(configuration))
        part = self._modelled.get(key)
        if part is None:
            passes = self._own_passes(configuration, kind), self._routed_passes(configuration, kind)
            part = self._modelled[key] = self._costing(configuration, kind).part(*passes)
        return part

    def blocks_s(self, configuration: Configuration) -> tuple[tuple[float, float], ...]:
        """Forward and backward seconds of a block of each kind, without the rest of its price.

        They are those of :meth:`layer_part`. Experts are priced apart from what surrounds them,
        because neither needs the other's degrees: sums of two tables take the place of a large one.
        """
        key = _block_key(configuration)
        seconds = self._seconds.get(key)
        if seconds is None:
            kinds = range(self.model.kind_count)
            seconds = tuple(self._block_s(configuration, kind) for kind in kinds)
            self._seconds[key] = seconds
        return seconds

    def _block_s(self, configuration: Configuration, kind: int) -> tuple[float, float]:
        if self.job.layer_times:
            part = self.layer_part(configuration, kind)
            return part.forward_s, part.backward_s
        own = self._own_passes(configuration, kind)
        routed = self._routed_passes(configuration, kind)
        pass_s = self.machine.pass_s
        return pass_s(own[0] + routed[0]), pass_s(own[1] + routed[1])

    def _own_passes(self, configuration: Configuration, kind: int) -> Passes:
        key = (kind, *_work_key(configuration))
        passes = self._passes.get(key)
        if passes is None:
            passes = self._passes[key] = self._costing(configuration, kind).own_passes()
        return passes

    def _routed_passes(self, configuration: Configuration, kind: int) -> Passes:
        g, experts = configuration, self._experts[kind]
        if experts is None:
            return NO_WORK
        key = (experts, *_work_key(g), g.expert, g.expert_tensor)
        passes = self._passes.get(key)
        if passes is None:
            passes = self._passes[key] = self._costing(g, kind).routed_passes()
        return passes

    def end_work(self, configuration: Configuration) -> EndWork:
        """Embedding and head, per microbatch."""
        key = _block_key(configuration)
        part = self._ends.get(key)
        if part is None:
            part = self._ends[key] = end_work(self._costing(configuration, self.last_kind))
        return part

    def zero_part(self, configuration: Configuration, kind: int = 0) -> ZeroPart:
        """A block's states and ZeRO traffic before overlap."""
        g = configuration
        key = (kind, g.tensor, g.shards, g.pipeline, g.expert, g.expert_tensor)
        part = self._zeros.get(key)
        if part is None:
            part = self._zeros[key] = self._zero_part(configuration, kind)
        return part

    def _zero_part(self, configuration: Configuration, kind: int) -> ZeroPart:
        """Routed experts are held by fewer ranks than the other weights of their block."""
        shapes, variants = self.shapes(configuration, kind), variants_of(configuration.shards)
        adapters = c.ZERO3_ADAPTERS.get(self.job.stack)
        groups = self.data_group(configuration), self.data_group(configuration, adapters)
        own, routed = shapes.own, shapes.routed
        part = zero_part(self.states, float(own.trained), *groups, variants, float(own.frozen))
        if not shapes.experts:
            return part
        groups = self.expert_group(configuration), self.expert_group(configuration, adapters)
        return part + zero_part(
            self.states, float(routed.trained), *groups, variants, float(routed.frozen)
        )

    def end_tail(self, configuration: Configuration) -> EndTail:
        """Embedding's and head's states and once-per-step time."""
        key = (configuration.tensor, configuration.shards, configuration.pipeline)
        part = self._tails.get(key)
        if part is None:
            inside = self.machine.inside_node(configuration.devices, configuration.devices)
            ends = self.machine.pair(inside)
            part = end_tail(
                self.states,
                self.model,
                self.end_shapes(configuration.tensor),
                self.data_group(configuration),
                ends,
                configuration.pipeline,
                self._lora is not None,
            )
            self._tails[key] = part
        return part

    @property
    def last_kind(self) -> int:
        """Kind of the model's last block."""
        return self.model.layer_kinds[-1]

    def shapes(self, configuration: Configuration, kind: int = 0) -> RankShapes:
        """What one rank holds of a block of a kind."""
        g = configuration
        key = (kind, g.tensor, g.expert, g.expert_tensor)
        if key not in self._shapes:
            self._shapes[key] = rank_shapes(self._views[kind], *key[1:], self._lora)
        return self._shapes[key]

    def end_shapes(self, tensor: int) -> EndShapes:
        """What one rank holds of the two ends."""
        if tensor not in self._end_shapes:
            self._end_shapes[tensor] = end_shapes(self.model, tensor)
        return self._end_shapes[tensor]

    def data_group(self, configuration: Configuration, adapters: int | None = None) -> Group:
        """The ranks of a stage that hold the same weights: ``c d`` of them, ``t`` apart."""
        g = configuration
        return self.machine.group(g.shards, g.tensor, g.devices, adapters)

    def expert_group(self, configuration: Configuration, adapters: int | None = None) -> Group:
        """The ranks of a stage that hold the same experts, ``e t_e`` apart."""
        g = configuration
        stride = g.expert * g.expert_tensor
        return self.machine.group(g.expert_shards, stride, g.devices, adapters)

    def exposed_traffic(self, configuration: Configuration, kind: int = 0) -> ExposedTraffic:
        """ZeRO traffic of one block that no compute hides."""
        layer, zero = self.layer_part(configuration, kind), self.zero_part(configuration, kind)
        return exposed_traffic(zero, layer, self.machine.rates.overlap)

    def _costing(self, configuration: Configuration, kind: int) -> LayerCosting:
        g, machine, devices = configuration, self.machine, self.cluster.devices
        model = self._views[kind]
        experts = None
        if model.experts is not None:
            exchange = machine.all_to_all(g.expert, g.expert_tensor, devices)
            experts = ExpertGroups(exchange, machine.group(g.expert_tensor, 1, devices))
        return LayerCosting(
            model=model,
            job=self.job,
            machine=machine,
            shapes=self.shapes(configuration, kind),
            group=machine.group(g.tensor, 1, devices),
            ring=machine.group(g.context, g.tensor, devices),
            experts=experts,
            microbatch=g.microbatch,
            sequence_parallel=g.sequence_parallel and g.tensor > 1,
        )


def _work_key(configuration: Configuration) -> tuple[int, ...]:
    """What a block's work depends on, routed experts apart."""
    g = configuration
    return g.tensor, g.context, g.microbatch, g.sequence_parallel


def _block_key(configuration: Configuration) -> tuple[int, ...]:
    """What a block's work depends on."""
    return (*_work_key(configuration), configuration.expert, configuration.expert_tensor)


def _flat(values: FloatArray, shape: tuple[int, ...]) -> FloatArray:
    """``[K]`` values by ZeRO variant and recomputation set."""
    flat: FloatArray = np.broadcast_to(values, shape).ravel()
    return flat


def _frozen(values: FloatArray) -> FloatArray:
    """Read-only, because tables are shared."""
    values.flags.writeable = False
    return values
