"""Models, machines and jobs the cost tests share."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ilp_parallel.configuration import Configuration
from ilp_parallel.costs.hardware import Machine
from ilp_parallel.costs.layer import ExpertGroups, LayerCosting
from ilp_parallel.costs.shapes import rank_shapes
from ilp_parallel.specs.job import JobSpec
from ilp_parallel.specs.model import ModelSpec
from ilp_parallel.specs.readers import load_cluster

if TYPE_CHECKING:
    from ilp_parallel.problems.pipeline import Schedule

A100 = load_cluster("a100-80gb:16x8")
GPT = ModelSpec(
    name="gpt",
    layers=24,
    hidden=2048,
    heads=16,
    kv_heads=16,
    head_dim=128,
    ffn_hidden=8192,
    vocab=51200,
    gated_mlp=False,
    norm="layernorm",
    activation="gelu",
    qkv_bias=True,
    projection_bias=True,
    mlp_bias=True,
    learned_positions=2048,
    embedding_norm=False,
    tied_embeddings=True,
    dropout=True,
)
LLAMA = replace(
    GPT,
    name="llama",
    hidden=4096,
    heads=32,
    kv_heads=8,
    ffn_hidden=14336,
    gated_mlp=True,
    norm="rmsnorm",
    activation="silu",
    qkv_bias=False,
    projection_bias=False,
    mlp_bias=False,
    learned_positions=0,
    tied_embeddings=False,
    dropout=False,
)
JOB = JobSpec(global_batch=256, sequence_length=2048)
UNFUSED = replace(JOB, precision="megatron-fp16", attention="unfused")


def gpt(layers: int, hidden: int, heads: int) -> ModelSpec:
    """A GPT of this size."""
    return replace(
        GPT,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn_hidden=4 * hidden,
    )


def layer(
    model: ModelSpec,
    job: JobSpec = JOB,
    tensor: int = 1,
    microbatch: int = 1,
    sequence_parallel: bool = False,
    context: int = 1,
    machine: Machine | None = None,
    expert: int = 1,
    expert_tensor: int = 1,
) -> LayerCosting:
    """One block on one rank of ``A100``, or of another machine of as many devices."""
    machine = machine or Machine(A100, job)
    groups = ExpertGroups(
        machine.all_to_all(expert, expert_tensor, A100.devices),
        machine.group(expert_tensor, 1, A100.devices),
    )
    return LayerCosting(
        model=model,
        job=job,
        machine=machine,
        shapes=rank_shapes(model, tensor, expert, expert_tensor),
        group=machine.group(tensor, 1, A100.devices),
        ring=machine.group(context, tensor, A100.devices),
        experts=groups if model.experts else None,
        microbatch=microbatch,
        sequence_parallel=sequence_parallel,
    )


def configuration(
    pipeline: int = 1,
    tensor: int = 1,
    data: int = 1,
    microbatch: int = 1,
    microbatches: int = 8,
    chunks: int = 1,
    sequence_parallel: bool = False,
    schedule: Schedule | None = None,
    context: int = 1,
    expert: int = 1,
) -> Configuration:
    """A configuration with small defaults; interleaved exactly when it has chunks."""
    return Configuration(
        pipeline=pipeline,
        tensor=tensor,
        data=data,
        microbatch=microbatch,
        microbatches=microbatches,
        chunks=chunks,
        sequence_parallel=sequence_parallel,
        schedule=schedule or ("interleaved" if chunks > 1 else "1f1b"),
        context=context,
        expert=expert,
    )
