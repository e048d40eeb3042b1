"""A model and a machine small enough to solve every configuration by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ilp_parallel.specs.job import JobSpec
from ilp_parallel.specs.readers import load_cluster
from tests.costs.cases import gpt

if TYPE_CHECKING:
    from ilp_parallel.specs.cluster import ClusterSpec

GIB = 2**30
MODEL = gpt(layers=4, hidden=2048, heads=8)
NODE = load_cluster("a100-80gb:1x4")
JOB = JobSpec(global_batch=8, sequence_length=1024, reserve_bytes=GIB)
LONG_JOB = replace(JOB, global_batch=2, sequence_length=8192)
"""Few and long sequences: many configurations have context ranks, at 4 GiB the best one too."""
LONG_MODEL = replace(MODEL, learned_positions=0)
"""The same with rotary positions, for sequences of any length."""


def node_with(memory_gib: float) -> ClusterSpec:
    """The node with less memory per device."""
    device = replace(NODE.device, memory_bytes=int(memory_gib * GIB))
    return replace(NODE, device=device)
