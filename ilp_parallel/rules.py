"""Rules on the degrees of a configuration, each with a reason code.

What mends each of them is in ``ilp_parallel.spaces.RULES``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ilp_parallel.spaces import Space
    from ilp_parallel.specs.cluster import ClusterSpec
    from ilp_parallel.specs.job import JobSpec, Stack
    from ilp_parallel.specs.model import ModelSpec

CONTEXT_TOKENS = 1024
"""Fewest tokens that a context rank may get of each sequence (a choice of the spaces).

A ring hides its traffic only if a rank computes on a block of keys for longer than it takes to
pass the block on: the block must have at least FLOP/s over bytes/s tokens (Liu et al. 2023, Ring
Attention, arXiv 2310.01889, section 3), 312e12 / 300e9 = 1040 on A100 with NVLink; key heads shared
by several query heads need fewer, slower links more. The limit excludes something:
with 512 tokens the optimum of GPT-3 on 16,384 devices would be 12 % faster under the cost model,
which prices attention over short blocks like that over long ones; on 1,024 and 2,048 devices
nothing changes, nor for llama3-8b, llama3-405b and megatron-1t as they are preset.
"""

RING_STACKS: tuple[Stack, ...] = ("megatron", "torchtitan", "fsdp", "jax")
"""Software with context parallelism by rings (DeepSpeed splits by heads, as Ulysses does)."""


class Degrees(NamedTuple):
    """How the devices are split: their product."""

    pipeline: int
    tensor: int
    context: int
    data: int

    @property
    def text(self) -> str:
        """As pins name them."""
        return f"pp={self.pipeline} tp={self.tensor} cp={self.context} dp={self.data}"

    @property
    def group(self) -> int:
        """Devices of a pipeline stage, over which experts fold."""
        return self.tensor * self.context * self.data


def context_rule(model: ModelSpec, job: JobSpec, space: Space, context: int) -> str | None:
    """Reason code of the first rule that a context degree breaks, whatever the other degrees are.

    Causal work is balanced by giving every rank two blocks of a sequence, one from each end, so
    twice the degree must divide it (Megatron-LM, ``arguments.py``); matrix units at fp8 further
    want multiples of 16 tokens. Rings pass blocks between calls of FlashAttention-2, never scores;
    Megatron-LM has none between encoder and decoder.
    """
    if context == 1:
        return None
    fp8 = job.precision.startswith("fp8")
    rules = (
        ("CP_NOT_IN_SPACE", not space.context),
        ("CP_NEEDS_FLASH_ATTENTION", job.attention != "flash"),
        ("CP_NOT_IN_STACK", job.stack not in RING_STACKS),
        ("CP_NOT_FOR_ENCODER_DECODER", model.encoder_decoder),
        ("SEQUENCE_NOT_DIVISIBLE_BY_CP", job.sequence_length % ((16 if fp8 else 2) * context) != 0),
        ("CP_SHARE_TOO_SHORT", job.sequence_length < CONTEXT_TOKENS * context),
    )
    return next((code for code, broken in rules if broken), None)


class ExpertDegrees(NamedTuple):
    """How the devices of a stage are split for routed experts."""

    expert: int
    expert_tensor: int


NO_EXPERTS = ExpertDegrees(1, 1)


def expert_degrees(model: ModelSpec, space: Space, degrees: Degrees) -> list[ExpertDegrees]:
    """Expert degrees of a space, in rising order.

    Experts fold over all ranks of a stage (Megatron-LM, ``parallel_state.py``): expert degree times
    expert tensor degree divides ``t c d``, the expert degree divides the number of experts of every
    kind of block. Inside an expert there is no tensor parallelism, or as much as outside.
    """
    counts = [e.count for e in model.all_experts]
    if not counts:
        return [NO_EXPERTS]
    most = math.gcd(*counts) if space.expert else 1
    return [
        ExpertDegrees(expert, inside)
        for inside in sorted({1, degrees.tensor})
        if all(e.ffn_hidden % inside == 0 for e in model.all_experts)
        for expert in divisors(most)
        if degrees.group % (expert * inside) == 0
    ]


def divisors(number: int) -> list[int]:
    """All divisors, in rising order."""
    small = [i for i in range(1, int(number**0.5) + 1) if number % i == 0]
    return sorted({*small, *(number // i for i in small)})


def degree_rule(
    model: ModelSpec, cluster: ClusterSpec, job: JobSpec, space: Space, degrees: Degrees
) -> str | None:
    """Reason code of the first rule that the degrees break."""
    pipeline, tensor, _, data = degrees
    mixer = model.state_space
    rules = (
        ("MORE_STAGES_THAN_LAYERS", pipeline > model.layers),
        ("LAYERS_NOT_DIVISIBLE_BY_PP", space.even_stages and model.layers % pipeline != 0),
        ("TP_CROSSES_NODE", cluster.devices_per_node % tensor != 0),
        ("HEADS_NOT_DIVISIBLE_BY_TP", model.heads % tensor != 0),
        (
            "KV_HEADS_NOT_DIVISIBLE_BY_TP",
            model.kv_heads % tensor != 0 and tensor % model.kv_heads != 0,
        ),
        (
            "STATE_SPACE_NOT_DIVISIBLE_BY_TP",
            mixer is not None and (mixer.heads % tensor or mixer.groups % tensor) != 0,
        ),
        ("FFN_NOT_DIVISIBLE_BY_TP", any(width % tensor != 0 for width in model.split_widths)),
        ("BATCH_NOT_DIVISIBLE_BY_DP", job.global_batch % data != 0),
    )
    return next((code for code, broken in rules if broken), None)
