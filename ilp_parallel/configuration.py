"""Names of what a plan fixes: the global configuration and the strategy of a layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ilp_parallel.problems.pipeline import Schedule  # noqa: TC001 (annotations are read)

Zero = Literal["0", "1", "2-buffer", "2-scatter", "3-keep", "3-regather"]
"""ZeRO as a schedule of traffic.

``0`` replicates everything; ``1`` shards the optimizer; ``2-buffer`` shards gradients too but
keeps the whole gradient buffer until the last microbatch (what 1 does in memory, one
reduce-scatter); ``2-scatter`` reduce-scatters each microbatch; ``3-keep`` shards weights, gathers
them in every forward and keeps them for backward; ``3-regather`` gathers them in every forward and
again in every backward.
"""

ZERO_VARIANTS: tuple[Zero, ...] = ("0", "1", "2-buffer", "2-scatter", "3-keep", "3-regather")

RECOMPUTE_SETS: tuple[tuple[str, ...], ...] = (
    (),
    ("core_attn",),
    ("layernorm",),
    ("core_attn", "layernorm"),
    ("mlp",),
    ("core_attn", "mlp"),
    ("layernorm", "mlp"),
    ("core_attn", "layernorm", "mlp"),
    ("full",),
)
"""Module sets recomputed in backward, named as Megatron-LM's ``--recompute-modules``."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """What one layer decides: which modules are recomputed, and what ZeRO shards."""

    zero: Zero
    recompute: tuple[str, ...]

    @property
    def name(self) -> str:
        """Stable name, for instance ``zero1/core_attn+mlp`` or ``zero3-keep/none``."""
        return f"zero{self.zero}/{'+'.join(self.recompute) or 'none'}"


@dataclass(frozen=True, slots=True, order=True)
class Configuration:
    """What is global in a plan; ``pipeline * tensor * context * data`` devices are used."""

    pipeline: int  # p
    tensor: int  # t
    data: int  # d
    microbatch: int  # b, sequences per rank and microbatch
    microbatches: int  # m, per step
    chunks: int  # v, virtual stages per device
    sequence_parallel: bool
    schedule: Schedule
    context: int = 1  # c, ranks that share a sequence
    expert: int = 1  # e, ranks that share the experts of a block
    expert_tensor: int = 1  # tensor degree inside an expert

    @property
    def devices(self) -> int:
        """Devices used."""
        return self.pipeline * self.tensor * self.context * self.data

    @property
    def shards(self) -> int:
        """Ranks that hold the same weights: ZeRO shards over data and context ranks alike."""
        return self.data * self.context

    @property
    def expert_shards(self) -> int:
        """Ranks that hold the same experts: ZeRO shards their states over these only.

        Experts fold over all ranks of a device group: ``t c d / (e t_e)``.
        """
        return self.tensor * self.shards // (self.expert * self.expert_tensor)

    @property
    def name(self) -> str:
        """Short unique name, for instance ``pp8 tp4 dp32 mbs2 m24 vpp12 sp interleaved``."""
        parts = [
            f"pp{self.pipeline} tp{self.tensor} dp{self.data}",
            f"cp{self.context}" if self.context > 1 else "",
            f"ep{self.expert}" if self.expert > 1 else "",
            f"etp{self.expert_tensor}" if self.expert_tensor > 1 else "",
            f"mbs{self.microbatch} m{self.microbatches}",
            f"vpp{self.chunks}" if self.chunks > 1 else "",
            "sp" if self.sequence_parallel else "",
            self.schedule,
        ]
        return " ".join(part for part in parts if part)
