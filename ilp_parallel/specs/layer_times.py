"""Times of a block that somebody measured, to be used in place of modelled ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

LAYER_TIME_LIMITS: dict[str, tuple[float, float]] = {
    "tensor": (1, 1 << 16),
    "microbatch": (1, 1 << 30),
    "sequence_length": (1, 1 << 30),
    "forward_s": (1e-9, 1e3),
    "backward_s": (1e-9, 1e3),
}
"""Least and largest figures of a layer time (chosen)."""

MAX_LAYER_TIMES = 10_000
"""Most layer times of one job (chosen): far more than anybody measures."""


@dataclass(frozen=True, slots=True)
class LayerTime:
    """One block on one rank and microbatch, without recomputation.

    Exposed tensor-parallel traffic is part of the times; traffic of data parallelism and between
    stages is not. They hold with and without sequence parallelism alike.
    """

    tensor: int  # degree
    microbatch: int  # sequences per rank
    sequence_length: int  # tokens
    forward_s: float
    backward_s: float | None = None  # None: in the modelled ratio to forward

    @property
    def case(self) -> tuple[int, int, int]:
        """What was measured: tensor degree, microbatch and sequence length."""
        return self.tensor, self.microbatch, self.sequence_length

    @property
    def words(self) -> str:
        """The same for messages."""
        return "tensor={}, microbatch={}, sequence_length={}".format(*self.case)


def layer_times_text(times: Iterable[LayerTime], sequence_length: int) -> str:
    """In words: which layer times a job of this sequence length uses; empty where it has none."""
    rows: dict[int, list[int]] = {}
    others: set[int] = set()
    for time in times:
        if time.sequence_length == sequence_length:
            rows.setdefault(time.tensor, []).append(time.microbatch)
        else:
            others.add(time.sequence_length)
    if rows:
        listed = "; ".join(f"tensor {t}: microbatch {_ranges(rows[t])}" for t in sorted(rows))
        return f"layer times measured ({listed}), elsewhere modelled ones scaled to them"
    if others:
        return f"layer times modelled: those measured are of sequence length {_ranges(others)}"
    return ""


def _ranges(numbers: Iterable[int]) -> str:
    """Sorted numbers, neighbours as a range: ``1-4, 8``."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    words = [str(first) if first == last else f"{first}-{last}" for first, last in runs]
    return ", ".join(words if len(words) <= 8 else [*words[:7], f"... {words[-1]}"])
