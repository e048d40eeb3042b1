"""A model and a machine small enough to solve every configuration by itself."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, get_args

from ilp_parallel.costs.profile import (
    ANY,
    DEVICE_RATES,
    STACK_RATES,
    Profile,
    Rate,
    profile_document,
)
from ilp_parallel.specs.job import JobSpec, Stack
from ilp_parallel.specs.rates import Rates
from ilp_parallel.specs.readers import load_cluster
from tests.costs.cases import gpt

if TYPE_CHECKING:
    from ilp_parallel.specs.cluster import ClusterSpec

GIB = 2**30
MODEL = gpt(layers=4, hidden=2048, heads=8)
NODE = load_cluster("a100-80gb:1x4")
RATES = Rates(
    matmul=0.8635,
    matmul_fp8=0.6,
    attention=0.661,
    stream=0.9107,
    intra=0.5622,
    inter=0.688,
    stream_factor=1.049,
    host_s=8e-6,
    collective_s=1.666e-5,
    overlap=0.6075,
    tensor_overlap=0.7173,
    straggler=0.002678,
)
"""Fixed, so that fitting the shipped rates again moves no test."""
JOB = JobSpec(global_batch=8, sequence_length=1024, reserve_bytes=GIB, rates=RATES)
LONG_JOB = replace(JOB, global_batch=2, sequence_length=8192)
"""Few and long sequences: many configurations have context ranks, at 4 GiB the best one too."""
LONG_MODEL = replace(MODEL, learned_positions=0)
"""The same with rotary positions, for sequences of any length."""


def fixed_profile() -> dict[str, object]:
    """A profile document that has ``RATES`` for every generation and stack."""
    rates = {n: Rate(value, "assumed", "a test") for n, value in asdict(RATES).items()}
    device = {name: rates[name] for name in DEVICE_RATES}
    software = {name: rates[name] for name in STACK_RATES}
    stacks = {stack: {ANY: software} for stack in get_args(Stack)}
    return profile_document(Profile("fixed", {ANY: device}, stacks))


def node_with(memory_gib: float) -> ClusterSpec:
    """The node with less memory per device."""
    device = replace(NODE.device, memory_bytes=int(memory_gib * GIB))
    return replace(NODE, device=device)
