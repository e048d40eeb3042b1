"""Seconds of one pass through a block, by kind of work."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Work:
    """Seconds of one pass, by kind of work."""

    matmul_s: float = 0.0
    attention_s: float = 0.0
    memory_bound_s: float = 0.0
    tensor_traffic_s: float = 0.0  # what stays exposed
    context_traffic_s: float = 0.0  # what stays exposed
    expert_traffic_s: float = 0.0  # exchange of tokens between experts
    kernels: float = 0.0  # that the host issues one by one

    def __add__(self, other: Work) -> Work:
        return Work(
            self.matmul_s + other.matmul_s,
            self.attention_s + other.attention_s,
            self.memory_bound_s + other.memory_bound_s,
            self.tensor_traffic_s + other.tensor_traffic_s,
            self.context_traffic_s + other.context_traffic_s,
            self.expert_traffic_s + other.expert_traffic_s,
            self.kernels + other.kernels,
        )

    @property
    def compute_s(self) -> float:
        """Seconds without traffic."""
        return self.matmul_s + self.attention_s + self.memory_bound_s

    @property
    def device_s(self) -> float:
        """Seconds of everything on the device."""
        traffic = self.tensor_traffic_s + self.context_traffic_s + self.expert_traffic_s
        return self.compute_s + traffic


Passes = tuple[Work, Work]
"""Forward and backward."""

NO_WORK: Passes = (Work(), Work())
