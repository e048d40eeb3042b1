"""Plans that Megatron-LM can run, drawn at random, and one to change by hand."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from ilp_parallel.configuration import Configuration, Strategy
from ilp_parallel.costs.model import CostModel
from ilp_parallel.plan import Plan
from ilp_parallel.specs.cluster import ClusterSpec, DeviceSpec, LinkSpec
from ilp_parallel.specs.job import JobSpec
from ilp_parallel.specs.model import ModelSpec

if TYPE_CHECKING:
    from ilp_parallel.configuration import Zero
    from ilp_parallel.problems.pipeline import Schedule
    from ilp_parallel.specs.job import Precision

SELECTIVE = (("core_attn",), ("layernorm",), ("mlp",), ("core_attn", "layernorm", "mlp"))


def model(layers: int, heads: int = 16, kv_heads: int = 16, **changes: object) -> ModelSpec:
    plain = ModelSpec(
        name="small",
        layers=layers,
        hidden=64 * heads,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=64,
        ffn_hidden=256 * heads,
        vocab=50_000,
        gated_mlp=False,
        norm="layernorm",
        activation="gelu",
        qkv_bias=True,
        projection_bias=True,
        mlp_bias=True,
        learned_positions=4096,
        embedding_norm=False,
        tied_embeddings=True,
        dropout=True,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def cluster(devices: int, per_node: int, generation: str = "ampere") -> ClusterSpec:
    device = DeviceSpec(
        name="test",
        memory_bytes=80 * 2**30,
        peak_flops={"bf16": 3e14},
        vector_flops=2e13,
        memory_bandwidth_bytes_per_s=2e12,
        processors=108,
        generation=generation,
    )
    link = LinkSpec(bandwidth_bytes_per_s=1e11, latency_s=1e-5)
    nodes = max(1, devices // per_node)
    return ClusterSpec("test", device, nodes, min(per_node, devices), link, link)


def plan_of(
    sizes: tuple[int, ...],
    strategies: tuple[Strategy, ...],
    *,
    pipeline: int,
    tensor: int = 2,
    data: int = 4,
    microbatch: int = 1,
    microbatches: int = 12,
    sequence_parallel: bool = False,
    context: int = 1,
    per_node: int = 8,
    generation: str = "ampere",
) -> Plan:
    chunks = len(sizes) // pipeline
    configuration = Configuration(
        pipeline=pipeline,
        tensor=tensor,
        data=data,
        microbatch=microbatch,
        microbatches=microbatches,
        chunks=chunks,
        sequence_parallel=sequence_parallel,
        schedule="interleaved" if chunks > 1 else "1f1b",
        context=context,
    )
    return Plan(
        model=model(sum(sizes)),
        cluster=cluster(configuration.devices, per_node, generation),
        job=JobSpec(global_batch=microbatch * microbatches * data, sequence_length=2048),
        space="megatron",
        configuration=configuration,
        sizes=sizes,
        strategies=strategies,
    )


def random_sizes(rng: random.Random, pipeline: int, chunks: int) -> tuple[int, ...]:
    """Equal stages, equal but for the ends, or any."""
    kind = rng.choice(("even", "ends", "any"))
    if kind == "even":
        return (rng.randint(1, 6),) * (pipeline * chunks)
    if kind == "any":
        return tuple(rng.randint(1, 6) for _ in range(pipeline * chunks))
    row = [rng.randint(1, 6)] * pipeline
    row[0], row[-1] = rng.randint(1, 6), rng.randint(1, 6)
    return tuple(row) * chunks


def random_recompute(rng: random.Random, sizes: tuple[int, ...]) -> list[tuple[str, ...]]:
    """One policy of Megatron-LM, written out layer by layer."""
    kind = rng.choice(("none", "selective", "full", "block"))
    if kind == "block":
        first = rng.randint(1, 6)
        return [("full",) if i < first else () for size in sizes for i in range(size)]
    modules = {"none": (), "full": ("full",), "selective": rng.choice(SELECTIVE)}[kind]
    return [modules] * sum(sizes)


def random_plan(seed: int) -> Plan:
    rng = random.Random(seed)
    pipeline = rng.choice((1, 2, 3, 4, 6))
    chunks = rng.choice((1, 1, 2, 3)) if pipeline > 1 else 1
    sizes = random_sizes(rng, pipeline, chunks)
    zero = rng.choice(("0", "1", "2-buffer", "3-regather"))
    recompute = random_recompute(rng, sizes)
    tensor = rng.choice((1, 2, 4, 8))
    plan = plan_of(
        sizes,
        tuple(Strategy(zero, modules) for modules in recompute),  # type: ignore[arg-type]
        pipeline=pipeline,
        tensor=tensor,
        data=rng.choice((1, 2, 4)),
        microbatch=rng.choice((1, 2)),
        microbatches=pipeline * rng.randint(1, 4) if chunks > 1 else rng.randint(1, 20),
        sequence_parallel=tensor > 1 and rng.random() < 0.5,
        context=rng.choice((1, 1, 2, 4)),
        per_node=1,
        generation=rng.choice(("ampere", "hopper", "blackwell")),
    )
    return replace(plan, model=random_model(rng, sum(sizes)))


@dataclass(frozen=True, slots=True)
class Words:
    """What a framework's plans are drawn from."""

    zeros: tuple[Zero, ...]
    pipelines: tuple[int, ...] = (1, 2, 3, 4)
    chunks: tuple[int, ...] = (1,)
    schedules: tuple[Schedule, ...] = ("1f1b",)
    contexts: tuple[int, ...] = (1,)
    parallel: tuple[bool, ...] = (False, True)
    even_chunks: bool = False
    recompute: str = "all"  # all, per-layer, or per-stage
    uniform_zero: bool = True
    precision: Precision = "fsdp-fp32-master"


def random_plan_in(words: Words, seed: int) -> Plan:
    """A plan that a framework with these words can express."""
    rng = random.Random(seed)
    pipeline = rng.choice(words.pipelines)
    chunks = rng.choice(words.chunks) if pipeline > 1 else 1
    sizes = random_sizes(rng, pipeline, chunks)
    if chunks > 1 and words.even_chunks:
        sizes = (rng.randint(1, 4),) * (pipeline * chunks)
    recompute: list[tuple[str, ...]]
    if words.recompute == "per-layer":
        recompute = [rng.choice(((), ("full",))) for _ in range(sum(sizes))]
    elif words.recompute == "per-stage" and pipeline > 1:
        counts = [rng.randint(0, size) for size in sizes]
        pairs = zip(sizes, counts, strict=True)
        recompute = [("full",) if i < n else () for size, n in pairs for i in range(size)]
    else:
        recompute = [rng.choice(((), ("full",)))] * sum(sizes)
    zeros = [rng.choice(words.zeros)] * sum(sizes)
    if not words.uniform_zero:
        zeros = [rng.choice((zeros[0], "3-regather")) for _ in zeros]
    tensor = rng.choice((1, 2, 4))
    data = rng.choice((1, 2, 4))
    context = rng.choice(words.contexts)
    if "0" in words.zeros and data * context == 1:
        zeros = ["0"] * sum(sizes)
    rounds = pipeline * rng.randint(1, 4)
    plan = plan_of(
        sizes,
        tuple(Strategy(z, modules) for z, modules in zip(zeros, recompute, strict=True)),
        pipeline=pipeline,
        tensor=tensor,
        data=data,
        microbatch=rng.choice((1, 2)),
        microbatches=rounds,
        sequence_parallel=tensor > 1 and rng.choice(words.parallel),
        context=context,
        per_node=1,
    )
    schedule = rng.choice(words.schedules) if chunks == 1 and pipeline > 1 else None
    configuration = plan.configuration
    if schedule is not None:
        configuration = replace(configuration, schedule=schedule)
    shapes = replace(plan.model, kv_heads=8, tied_embeddings=False)
    job = replace(plan.job, precision=words.precision)
    return replace(plan, configuration=configuration, model=shapes, job=job)


def plans_in(words: Words) -> st.SearchStrategy[Plan]:
    """Hypothesis strategy of the plans above."""
    return st.integers(0, 2**32 - 1).map(lambda seed: random_plan_in(words, seed))


def random_model(rng: random.Random, layers: int) -> ModelSpec:
    if rng.random() < 0.5:
        return model(layers, kv_heads=rng.choice((2, 8, 16)), tied_embeddings=rng.random() < 0.5)
    return model(
        layers,
        gated_mlp=True,
        activation="silu",
        norm="rmsnorm",
        qkv_bias=rng.random() < 0.5,
        projection_bias=False,
        mlp_bias=False,
        learned_positions=0,
        dropout=False,
    )


plans = st.integers(0, 2**32 - 1).map(random_plan)
"""Hypothesis strategy: a seed is drawn and shrunk, the plan follows from it."""


def with_memory(plan: Plan, gib: float) -> Plan:
    """The plan on devices of another memory, nothing of it reserved."""
    device = replace(plan.cluster.device, memory_bytes=int(gib * 2**30))
    job = replace(plan.job, reserve_bytes=0)
    return replace(plan, cluster=replace(plan.cluster, device=device), job=job)


def fits(plan: Plan) -> bool:
    return CostModel(plan.model, plan.cluster, plan.job).terms(plan).fits


def least_memory(plan: Plan) -> Plan:
    """The plan on the smallest devices it fits, to a MiB."""
    low, high = 0, 1 << 20
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(with_memory(plan, middle / 1024)) else (middle, high)
    return with_memory(plan, high / 1024)
