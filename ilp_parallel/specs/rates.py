"""What share of its data sheet a device reaches under a software stack."""

from __future__ import annotations

from dataclasses import dataclass

RATE_LIMITS: dict[str, tuple[float, float]] = {
    "matmul": (0.01, 1.0),
    "matmul_fp8": (0.01, 1.0),
    "attention": (0.01, 1.0),
    "stream": (0.01, 1.0),
    "intra": (0.01, 1.0),
    "inter": (0.01, 1.0),
    "stream_factor": (0.5, 20.0),
    "host_s": (0.0, 1e-2),
    "collective_s": (0.0, 1e-1),
    "overlap": (0.0, 1.0),
    "tensor_overlap": (0.0, 1.0),
    "straggler": (0.0, 1.0),
}
"""Least and largest value of each rate (chosen)."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates of one device generation (first six) under one software stack (the others).

    Shares are dimensionless. ``docs/cost_model.md`` says where each one enters.
    """

    matmul: float  # of the 16-bit matrix peak, for a matmul without edge effects
    matmul_fp8: float  # of the fp8 matrix peak
    attention: float  # of the 16-bit matrix peak: FlashAttention-2 forward, long sequences
    stream: float  # of the memory bandwidth
    intra: float  # of the link inside a node, large messages
    inter: float  # of the network, large messages
    stream_factor: float  # memory traffic of elementwise work over the fused minimum
    host_s: float  # seconds the host needs to issue one kernel
    collective_s: float  # seconds lost per collective beside the latency of its links
    overlap: float  # of data- and context-parallel traffic that may hide behind compute
    tensor_overlap: float  # of tensor-parallel traffic that may hide behind the matmul beside it
    straggler: float  # growth of a step's work per doubling of the nodes that must agree
