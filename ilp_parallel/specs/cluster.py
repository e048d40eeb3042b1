"""A cluster of equal devices in equal nodes (NVLink domains)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MatrixPrecision = Literal["fp16", "bf16", "fp8"]


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """A link of one device: bytes per second in one direction, and seconds until the first."""

    bandwidth_bytes_per_s: float
    latency_s: float


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """One accelerator. Peaks are dense FLOP/s; a precision the device lacks is absent."""

    name: str
    memory_bytes: int  # as the device reports it
    peak_flops: dict[MatrixPrecision, float]
    vector_flops: float  # fp32 outside the matrix units
    memory_bandwidth_bytes_per_s: float
    processors: int  # streaming multiprocessors
    generation: str  # volta, ampere, hopper, blackwell
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """``nodes`` domains of ``devices_per_node`` devices each."""

    name: str
    device: DeviceSpec
    nodes: int
    devices_per_node: int
    intra: LinkSpec  # inside a node: per device, per direction
    inter: LinkSpec  # between nodes: per device, per direction
    device_hour_price: float | None = None  # in any currency

    @property
    def devices(self) -> int:
        """Number of devices N."""
        return self.nodes * self.devices_per_node
