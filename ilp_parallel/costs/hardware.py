"""How long work takes on one device and on the links it really uses."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ilp_parallel.costs import constants as c
from ilp_parallel.costs.profile import rates_of
from ilp_parallel.errors import InputError
from ilp_parallel.specs.validate import NEEDED_PRECISION

if TYPE_CHECKING:
    from ilp_parallel.costs.work import Work
    from ilp_parallel.specs.cluster import ClusterSpec
    from ilp_parallel.specs.job import JobSpec


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that run a collective: their ring bandwidth per rank and the latency of one pass."""

    ranks: int
    bandwidth_bytes_per_s: float
    latency_s: float  # base included

    def gather_s(self, size_bytes: float) -> float:
        """All-gather (or reduce-scatter) of ``size_bytes`` in total over the group."""
        if self.ranks == 1 or size_bytes == 0:
            return 0.0
        share = (self.ranks - 1) / self.ranks
        return self.latency_s + share * size_bytes / self.bandwidth_bytes_per_s

    def all_reduce_s(self, size_bytes: float) -> float:
        """All-reduce of ``size_bytes`` per rank: a reduce-scatter and an all-gather."""
        return 2.0 * self.gather_s(size_bytes)


@dataclass(frozen=True, slots=True)
class AllToAll:
    """Ranks that send each other equal shares, over the links inside and between nodes at once.

    As NCCL does it: one grouped call of sends and receives, so the two kinds of links run side by
    side, each device using its own share of the network.
    """

    ranks: int
    inside: float  # share of what a rank holds that goes to others in its node
    outside: float  # share that leaves the node
    intra_bytes_per_s: float
    inter_bytes_per_s: float
    latency_s: float

    def exchange_s(self, size_bytes: float) -> float:
        """Each rank holds ``size_bytes`` and keeps the share that is its own."""
        if self.ranks == 1 or size_bytes == 0:
            return 0.0
        near = self.inside * size_bytes / self.intra_bytes_per_s
        far = self.outside * size_bytes / self.inter_bytes_per_s
        return self.latency_s + max(near, far)


def _exposed_s(traffic_s: float, hiding_s: float, overlap: float) -> float:
    return traffic_s - min(overlap * traffic_s, max(hiding_s, 0.0))


class Machine:
    """Rates of a cluster's device under a job's precision and software stack."""

    def __init__(self, cluster: ClusterSpec, job: JobSpec) -> None:
        device = cluster.device
        precision = NEEDED_PRECISION[job.precision]
        peak = device.peak_flops.get(precision)
        if peak is None:
            known = "/".join(sorted(device.peak_flops))
            raise InputError(
                "PRECISION_NOT_ON_DEVICE",
                f"{device.name} has no {precision} matrix units (it has {known})",
                f"use another --precision than {job.precision}",
            )
        rates = self.rates = job.rates or rates_of(device.generation, job.stack)
        half = device.peak_flops.get("bf16") or device.peak_flops.get("fp16") or peak
        self.peak_flops = peak
        self.matmul_flops = peak * (rates.matmul_fp8 if precision == "fp8" else rates.matmul)
        self.batched_flops = half * rates.matmul * c.BATCHED_ATTENTION_SHARE
        kernel = c.FLASH1_FACTOR if job.attention == "flash1" else 1.0
        self.flash_forward_flops = half * rates.attention * kernel
        self.flash_backward_flops = self.flash_forward_flops * c.FLASH_BACKWARD_RATE
        self.stream_bytes_per_s = device.memory_bandwidth_bytes_per_s * rates.stream
        self.matrix_bytes = 1 if precision == "fp8" else 2
        # prologue and epilogue take their time however fast the inner loop is
        self.inner_half = c.INNER_HALF * peak / device.processors / c.INNER_PACE
        self.lost_tiles = c.HALF_WAVE * device.processors
        self.intra_bytes_per_s = cluster.intra.bandwidth_bytes_per_s * rates.intra
        self.inter_bytes_per_s = cluster.inter.bandwidth_bytes_per_s * rates.inter
        self.intra_latency_s = cluster.intra.latency_s
        self.inter_latency_s = cluster.inter.latency_s
        self.devices_per_node = cluster.devices_per_node
        nodes = cluster.devices / cluster.devices_per_node
        self.straggling = 1.0 + rates.straggler * max(0.0, math.log2(nodes))

    def matmul_s(self, rows: float, columns: float, inner: float) -> float:
        """One ``rows x inner`` by ``inner x columns`` product: compute or operand traffic."""
        tiles = rows * columns / (c.TILE_ROWS * c.TILE_COLUMNS)
        share = tiles / (tiles + self.lost_tiles) * inner / (inner + self.inner_half)
        compute = 2.0 * rows * columns * inner / (self.matmul_flops * share)
        operands = self.matrix_bytes * (rows + columns) * inner + 2.0 * rows * columns
        return max(compute, operands / self.stream_bytes_per_s) + c.KERNEL_LAUNCH_S

    def grouped_matmul_s(self, groups: int, rows: float, columns: float, inner: float) -> float:
        """So many equal products in one kernel: their tiles share the waves, operands add up."""
        tiles = groups * max(1.0, rows / c.TILE_ROWS) * max(1.0, columns / c.TILE_COLUMNS)
        share = tiles / (tiles + self.lost_tiles) * inner / (inner + self.inner_half)
        # a tile that is not full takes the time of a full one
        full = max(rows, c.TILE_ROWS) * max(columns, c.TILE_COLUMNS)
        compute = 2.0 * groups * full * inner / (self.matmul_flops * share)
        operands = self.matrix_bytes * (rows + columns) * inner + 2.0 * rows * columns
        return max(compute, groups * operands / self.stream_bytes_per_s) + c.KERNEL_LAUNCH_S

    def stream_s(self, traffic_bytes: float, kernels: int) -> float:
        """Memory-bound kernels that move ``traffic_bytes`` in all (fused minimum)."""
        traffic = traffic_bytes * self.rates.stream_factor
        return traffic / self.stream_bytes_per_s + kernels * c.KERNEL_LAUNCH_S

    def pass_s(self, work: Work) -> float:
        """Seconds of a pass: the device's, or the host's where it is slower, and stragglers."""
        device_s = work.device_s
        waiting_s = max(0.0, work.kernels * self.rates.host_s - device_s)
        return (device_s + waiting_s) * self.straggling

    def exposed_s(self, traffic_s: float, hiding_s: float) -> float:
        """Seconds of data-parallel traffic that remain visible beside ``hiding_s`` of compute."""
        return _exposed_s(traffic_s, hiding_s, self.rates.overlap)

    def tensor_exposed_s(self, traffic_s: float, hiding_s: float) -> float:
        """Seconds of tensor-parallel traffic that remain visible beside ``hiding_s`` of matmul."""
        return _exposed_s(traffic_s, hiding_s, self.rates.tensor_overlap)

    def inside_node(self, block: int, devices: int) -> bool:
        """Whether every aligned block of consecutive ranks stays inside one node."""
        node = self.devices_per_node
        return block <= node and (node % block == 0 or devices <= node)

    def group(self, ranks: int, stride: int, devices: int, adapters: int | None = None) -> Group:
        """Ranks ``stride`` apart, as tensor (stride 1) and data (stride t) groups are.

        A ring that leaves its node uses one network adapter per member inside the node, or at most
        ``adapters``.
        """
        base = self.rates.collective_s
        if self.inside_node(ranks * stride, devices):
            latency = base + (ranks - 1) * self.intra_latency_s
            return Group(ranks, self.intra_bytes_per_s, latency)
        members = max(1, min(ranks, self.devices_per_node // stride))
        nodes = -(-ranks // members)
        bandwidth = self.inter_bytes_per_s * min(members, adapters or members)
        if members > 1:
            bandwidth = min(self.intra_bytes_per_s, bandwidth)
        # a ring passes every rank: no tree shortens an all-gather or a reduce-scatter
        hops = nodes * ((members - 1) * self.intra_latency_s + self.inter_latency_s)
        return Group(ranks, bandwidth, base + hops)

    def pair(self, inside: bool) -> Group:
        """Two devices, in one node or not."""
        base = self.rates.collective_s
        if inside:
            return Group(2, self.intra_bytes_per_s, base + self.intra_latency_s)
        return Group(2, self.inter_bytes_per_s, base + self.inter_latency_s)

    def all_to_all(self, ranks: int, stride: int, devices: int) -> AllToAll:
        """Ranks ``stride`` apart that exchange tokens, as expert groups do."""
        together = self.inside_node(ranks * stride, devices)
        members = ranks if together else max(1, min(ranks, self.devices_per_node // stride))
        far = 0.0 if together else self.inter_latency_s
        return AllToAll(
            ranks=ranks,
            inside=(members - 1) / ranks,
            outside=(ranks - members) / ranks,
            intra_bytes_per_s=self.intra_bytes_per_s,
            inter_bytes_per_s=self.inter_bytes_per_s,
            latency_s=self.rates.collective_s + self.intra_latency_s + far,
        )
