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
from ilp_parallel.costs.ends import EndTail, EndWork, end_tail, end_work
from ilp_parallel.costs.hardware import Group, Machine
from ilp_parallel.costs.layer import FloatArray, LayerCosting, LayerPart
from ilp_parallel.costs.layer_times import MeasuredLayers
from ilp_parallel.costs.shapes import RankShapes, rank_shapes
from ilp_parallel.costs.states import (
    ExposedTraffic,
    StateCosting,
    ZeroPart,
    exposed_traffic,
    zero_part,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ilp_parallel.configuration import Configuration
    from ilp_parallel.costs.breakdown import Prediction
    from ilp_parallel.plan import Plan
    from ilp_parallel.specs.cluster import ClusterSpec
    from ilp_parallel.specs.job import JobSpec
    from ilp_parallel.specs.model import ModelSpec

_ALL = tuple(Strategy(zero, modules) for zero in ZERO_VARIANTS for modules in RECOMPUTE_SETS)
_REPLICATED = _ALL[: len(RECOMPUTE_SETS)]


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
        self._shapes: dict[tuple[int, int], RankShapes] = {}
        self._tables: dict[tuple[object, ...], LayerTable] = {}
        self._layers: dict[tuple[object, ...], LayerPart] = {}
        self._modelled: dict[tuple[object, ...], LayerPart] = {}
        self._measured = MeasuredLayers(job, self._modelled_part)
        self._ends: dict[tuple[object, ...], EndWork] = {}
        self._zeros: dict[tuple[int, ...], ZeroPart] = {}
        self._tails: dict[tuple[int, int, int], EndTail] = {}
        self._crossings: dict[tuple[int, int, int], FloatArray] = {}

    def strategies(self, configuration: Configuration) -> tuple[Strategy, ...]:
        """Strategies a layer may choose from, recomputation varying fastest.

        Every ZeRO variant with every recomputation set; without data parallelism ``0`` alone.
        """
        return _ALL if configuration.shards > 1 else _REPLICATED

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
        fixed[0] += tail.embedding.total + in_flight[0] * work.embedding_bytes
        fixed[-1] += (
            tail.head.total + in_flight[p - 1] * work.head_bytes + work.head_transient_bytes
        )
        return StageCosts(
            fixed_forward_s=forward,
            fixed_backward_s=backward,
            fixed_tail_s=once,
            fixed_bytes=fixed,
            cut_s=self._cut_s(configuration, work),
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
        degrees = (g.pipeline, g.tensor, g.context, g.data)
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
            part = self._modelled[key] = self._costing(configuration, kind).part()
        return part

    def end_work(self, configuration: Configuration) -> EndWork:
        """Embedding and head, per microbatch."""
        key = _block_key(configuration)
        part = self._ends.get(key)
        if part is None:
            part = self._ends[key] = end_work(self._costing(configuration))
        return part

    def zero_part(self, configuration: Configuration, kind: int = 0) -> ZeroPart:
        """A block's states and ZeRO traffic before overlap."""
        key = (kind, configuration.tensor, configuration.shards, configuration.pipeline)
        part = self._zeros.get(key)
        if part is None:
            parameters = float(self.shapes(configuration.tensor, kind).layer_parameters)
            group = self.data_group(configuration)
            adapters = c.ZERO3_ADAPTERS.get(self.job.stack)
            weights_group = self.data_group(configuration, adapters)
            part = zero_part(self.states, parameters, group, weights_group)
            self._zeros[key] = part
        return part

    def end_tail(self, configuration: Configuration) -> EndTail:
        """Embedding's and head's states and once-per-step time."""
        key = (configuration.tensor, configuration.shards, configuration.pipeline)
        part = self._tails.get(key)
        if part is None:
            inside = self.machine.inside_node(configuration.devices, configuration.devices)
            ends = self._link(inside)
            part = end_tail(
                self.states,
                self.model,
                self.shapes(configuration.tensor),
                self.data_group(configuration),
                ends,
                configuration.pipeline,
            )
            self._tails[key] = part
        return part

    def shapes(self, tensor: int, kind: int = 0) -> RankShapes:
        """What one rank holds of a block of a kind at a tensor degree."""
        key = (tensor, kind)
        if key not in self._shapes:
            self._shapes[key] = rank_shapes(self.model.of_kind(kind), tensor)
        return self._shapes[key]

    def data_group(self, configuration: Configuration, adapters: int | None = None) -> Group:
        """The ranks of a stage that hold the same weights: ``c d`` of them, ``t`` apart."""
        g = configuration
        return self.machine.group(g.shards, g.tensor, g.devices, adapters)

    def exposed_traffic(self, configuration: Configuration, kind: int = 0) -> ExposedTraffic:
        """ZeRO traffic of one block that no compute hides."""
        layer, zero = self.layer_part(configuration, kind), self.zero_part(configuration, kind)
        return exposed_traffic(zero, layer, self.machine.rates.overlap)

    def _costing(self, configuration: Configuration, kind: int = 0) -> LayerCosting:
        tensor = configuration.tensor
        return LayerCosting(
            model=self.model.of_kind(kind),
            job=self.job,
            machine=self.machine,
            shapes=self.shapes(tensor, kind),
            group=self.machine.group(tensor, 1, self.cluster.devices),
            ring=self.machine.group(configuration.context, tensor, self.cluster.devices),
            microbatch=configuration.microbatch,
            sequence_parallel=configuration.sequence_parallel and tensor > 1,
        )

    def _link(self, inside: bool) -> Group:
        """Two devices, in one node or not."""
        machine = self.machine
        base = machine.rates.collective_s
        if inside:
            return Group(2, machine.intra_bytes_per_s, base + machine.intra_latency_s)
        return Group(2, machine.inter_bytes_per_s, base + machine.inter_latency_s)

    def _cut_s(self, configuration: Configuration, work: EndWork) -> FloatArray:
        """One-way exposed delay of every cut between virtual stages.

        Each tensor-parallel rank sends its share (scatter/gather of Narayanan et al. 2021, section
        4.1; with sequence parallelism nothing else is there to send).
        """
        p, v = configuration.pipeline, configuration.chunks
        block = configuration.tensor * configuration.shards
        crosses = self._crossings.get((p, block, v))
        if crosses is None:
            crosses = self._crossings[p, block, v] = self._crossing(p, block, v)
        inside, outside = self._link(True), self._link(False)
        near = inside.latency_s + work.sent_bytes / inside.bandwidth_bytes_per_s
        far = outside.latency_s + work.sent_bytes / outside.bandwidth_bytes_per_s
        share = c.INTERLEAVED_SEND_EXPOSED if v > 1 else 1.0
        return (near + crosses * (far - near) + work.regather_s) * share

    def _crossing(self, pipeline: int, block: int, chunks: int) -> FloatArray:
        """[V - 1] 1.0 where a cut's link leaves a node; the last group sends to the first."""
        node = self.machine.devices_per_node
        starts = np.arange(pipeline, dtype=np.int64) * block
        leaves = starts // node != (starts + 2 * block - 1) // node
        leaves[-1] = pipeline * block > node
        crossing: FloatArray = np.tile(leaves.astype(np.float64), chunks)[:-1]
        return crossing


def _block_key(configuration: Configuration) -> tuple[int, ...]:
    """What a block's work depends on."""
    g = configuration
    return g.tensor, g.context, g.microbatch, g.sequence_parallel, g.expert, g.expert_tensor


def _flat(values: FloatArray, shape: tuple[int, ...]) -> FloatArray:
    """``[K]`` values by ZeRO variant and recomputation set."""
    flat: FloatArray = np.broadcast_to(values, shape).ravel()
    return flat


def _frozen(values: FloatArray) -> FloatArray:
    """Read-only, because tables are shared."""
    values.flags.writeable = False
    return values
