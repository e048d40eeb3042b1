"""Rules of expert parallelism in Megatron-LM, for files that state no plan yet.

Megatron-LM commit d98e8a64: ``ps`` is megatron/core/parallel_state.py, ``args``
megatron/training/arguments.py. Expert parallelism folds over tensor, context and data ranks: the
ranks of one pipeline stage are split anew into expert tensor, expert and expert data ranks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ilp_parallel.export.base import Violation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ilp_parallel.export.megatron_flags import MegatronFlags


@dataclass(frozen=True, slots=True)
class ExpertDegrees:
    """Degrees of a run with experts; the expert tensor degree is the tensor degree if absent."""

    tensor: int
    pipeline: int
    context: int
    expert: int
    expert_tensor: int

    @property
    def world_multiple(self) -> int:
        """What the number of devices must be a multiple of (ps:822, ps:870)."""
        dense = self.tensor * self.pipeline * self.context
        return math.lcm(dense, self.expert_tensor * self.expert * self.pipeline)

    def expert_data(self, devices: int) -> int:
        """Ranks that hold the same experts (ps:884)."""
        return devices // (self.expert_tensor * self.expert * self.pipeline)


def read_expert_degrees(flags: MegatronFlags) -> ExpertDegrees:
    """The degrees of a run, defaults as Megatron-LM's (args:588)."""
    tensor = flags.integer("--tensor-model-parallel-size", 1)
    return ExpertDegrees(
        tensor=tensor,
        pipeline=flags.integer("--pipeline-model-parallel-size", 1),
        context=flags.integer("--context-parallel-size", 1),
        expert=flags.integer("--expert-model-parallel-size", 1),
        expert_tensor=flags.integer("--expert-tensor-parallel-size", tensor),
    )


def expert_groups(flags: MegatronFlags, devices: int) -> Iterator[Violation]:
    """Expert groups divide the devices and the experts; tensor ranks need sequence parallelism."""
    if not flags.has("--num-experts"):
        return
    degrees, experts = read_expert_degrees(flags), flags.integer("--num-experts")
    group = degrees.expert_tensor * degrees.expert * degrees.pipeline
    if devices % group:
        yield Violation(
            "EXPERT_GROUP_NOT_DIVIDING_WORLD",
            f"devices={devices}, etp*ep*pp={degrees.expert_tensor}*{degrees.expert}*"
            f"{degrees.pipeline}={group}; a multiple of {degrees.world_multiple} would do",
        )
    if experts % degrees.expert:
        yield Violation("EXPERTS_NOT_DIVISIBLE_BY_EP", f"experts={experts}, ep={degrees.expert}")
    if degrees.tensor > 1 and not flags.has("--sequence-parallel"):
        yield Violation("EXPERTS_NEED_SEQUENCE_PARALLEL", f"tp={degrees.tensor} (args:1433)")
