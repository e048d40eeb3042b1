"""The search finds the best of all configurations of random small jobs of every kind of block."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from ilp_parallel.baselines.two_level_dp import two_level_dp
from ilp_parallel.configuration import Configuration
from ilp_parallel.costs.model import CostModel
from ilp_parallel.instances import InstanceBuilder
from ilp_parallel.planner import SearchOptions, search
from ilp_parallel.spaces import Pins, enumerate_configurations, get_space
from ilp_parallel.specs.job import LORA_TARGETS
from ilp_parallel.specs.model import Experts, Kind, LatentAttention, StateSpace
from ilp_parallel.specs.validate import check_job, check_model
from ilp_parallel.verify import verify
from tests.small_jobs import JOB, LONG_MODEL, node_with

if TYPE_CHECKING:
    from ilp_parallel.plan import Plan
    from ilp_parallel.specs.cluster import ClusterSpec
    from ilp_parallel.specs.job import JobSpec
    from ilp_parallel.specs.model import ModelSpec

SEEDS = range(30)
BASE = replace(LONG_MODEL, hidden=1024, ffn_hidden=4096, head_dim=128, vocab=8192)
EXPERTS = Experts(4, 2, 2048, shared_ffn_hidden=1024)
DENSE = Kind("dense", 4096)
MOE = Kind("moe", 0, experts=EXPERTS)
MODELS: dict[str, ModelSpec] = {
    "experts": replace(BASE, experts=EXPERTS),
    "in turn": replace(BASE, kinds=(DENSE, MOE), order=(0, 1, 0, 1)),
    "dense first": replace(
        BASE,
        layers=5,
        kinds=(DENSE, MOE, Kind("mtp", 0, experts=EXPERTS, predicts=True)),
        order=(0, 1, 1, 1, 2),
        latent=LatentAttention(512, 256, 64, 128),
    ),
    "windows": replace(BASE, kinds=(DENSE, Kind("window", 4096, window=256)), order=(1, 0, 1, 0)),
    "encoder": replace(
        BASE,
        kinds=(Kind("encoder", 4096, causal=False), Kind("decoder", 4096, cross_attention=True)),
        order=(0, 0, 1, 1),
    ),
    "hybrid": replace(
        BASE,
        kinds=(Kind("mamba", 0, mixer="state-space"), Kind("mlp", 4096, mixer="none"), DENSE),
        order=(0, 1, 2, 0, 1),
        layers=5,
        state_space=StateSpace(heads=16, head_dim=64, groups=4, state=64, kernel=4),
    ),
}


def random_job(seed: int) -> tuple[ModelSpec, ClusterSpec, JobSpec]:
    """One of the models on four devices with little or much memory, short or long sequences."""
    rng = np.random.default_rng(seed)
    model = list(MODELS.values())[seed % len(MODELS)]
    batch, length = [(8, 1024), (4, 4096), (2, 8192)][rng.integers(3)]
    job = replace(JOB, global_batch=batch, sequence_length=length)
    if seed % 5 == 3:
        job = replace(job, task="lora", lora_rank=8, lora_targets=LORA_TARGETS)
    if seed % 5 == 4:
        job = replace(job, document_lengths=(length // 2, length // 4, length // 4))
    cluster = node_with(float(rng.choice([1.3, 2.0, 2.4, 4.0, 80.0])))
    if seed % 2:
        cluster = replace(cluster, nodes=4, devices_per_node=1)
    check_model(model)
    check_job(model, cluster, job)
    return model, cluster, job


def enumerated_optimum(
    model: ModelSpec, cluster: ClusterSpec, job: JobSpec, space: str
) -> int | None:
    """Least objective over all configurations; no bound and no cutoff is used."""
    builder = InstanceBuilder(CostModel(model, cluster, job), get_space(space), Pins())
    schedules, values = SearchOptions().schedules, []
    for item in enumerate_configurations(model, cluster, job, builder.space, Pins(), schedules):
        if isinstance(item, Configuration):
            instance = builder.build(item)
            found = two_level_dp(instance)
            if found is not None:
                values.append(instance.objective.ticks(found.numerator))
    return min(values, default=None)


CHOSEN: dict[tuple[int, str], Plan | None] = {}


@pytest.mark.parametrize("space", ["megatron", "mixed"])
@pytest.mark.parametrize("seed", SEEDS)
def test_search_equals_enumeration(seed: int, space: str) -> None:
    specs = random_job(seed)
    result = search(*specs, SearchOptions(space=space))
    optimum = enumerated_optimum(*specs, space)
    certificate = result.certificate
    assert certificate.objective_ticks == certificate.bound_ticks == optimum
    assert result.status == ("infeasible" if optimum is None else "optimal")
    assert all(check.passed for check in verify(certificate))
    CHOSEN[seed, space] = result.plan


def test_the_random_jobs_show_every_dimension() -> None:
    """Some of the optima have expert ranks, context ranks, pipelines, chunks, mixed strategies."""
    if len(CHOSEN) < 2 * len(SEEDS):
        pytest.skip("the jobs were solved by other processes")
    plans = [plan for plan in CHOSEN.values() if plan is not None]
    configurations = [plan.configuration for plan in plans]
    assert any(g.expert > 1 for g in configurations)
    assert any(g.context > 1 for g in configurations)
    assert any(g.pipeline > 1 for g in configurations)
    assert any(g.chunks > 1 for g in configurations)
    assert any(len(set(plan.strategies)) > 1 for plan in plans)
    assert any(plan is None for plan in CHOSEN.values())
