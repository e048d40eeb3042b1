"""Whatever the ``megatron`` space holds, Megatron-LM's options can say."""

from __future__ import annotations

import itertools
import random

import pytest

from ilp_parallel.configuration import RECOMPUTE_SETS, Configuration, Strategy
from ilp_parallel.export.megatron import export_megatron
from ilp_parallel.export.megatron_reader import parse_megatron
from ilp_parallel.plan import Plan
from ilp_parallel.spaces import Pins, enumerate_configurations, get_space
from ilp_parallel.specs.job import JobSpec
from ilp_parallel.specs.readers import load_cluster, load_model


def random_sizes(rng: random.Random, layers: int, configuration: Configuration) -> tuple[int, ...]:
    """Equal chunks if interleaved, else any cut into non-empty stages."""
    stages = configuration.pipeline * configuration.chunks
    if configuration.chunks > 1:
        return (layers // stages,) * stages
    cuts = [0, *sorted(rng.sample(range(1, layers), stages - 1)), layers]
    return tuple(end - start for start, end in itertools.pairwise(cuts))


def random_strategies(rng: random.Random, sizes: tuple[int, ...]) -> tuple[Strategy, ...]:
    """One set for all layers, or a fully recomputed block at the head of every virtual stage."""
    zero = rng.choice(get_space("megatron").zero)
    modules = rng.choice((*RECOMPUTE_SETS, None))
    if modules is not None:
        return (Strategy(zero, modules),) * sum(sizes)
    block = rng.randint(1, max(sizes))
    return tuple(
        Strategy(zero, ("full",) if i < block else ()) for size in sizes for i in range(size)
    )


@pytest.mark.parametrize(
    ("name", "cluster", "batch", "tokens"),
    [
        ("gpt3", "a100-80gb:16x8", 192, 2048),
        ("llama3-70b", "h100-80gb:8x8", 128, 8192),
        ("llama2-7b", "gb200:1x72", 144, 4096),
    ],
)
def test_random_plans_of_the_space_are_exported_and_read_back(
    name: str, cluster: str, batch: int, tokens: int
) -> None:
    rng = random.Random(name)
    model, machine = load_model(name), load_cluster(cluster)
    job = JobSpec(global_batch=batch, sequence_length=tokens)
    found = enumerate_configurations(
        model, machine, job, get_space("megatron"), Pins(), ("1f1b", "interleaved")
    )
    configurations = [entry for entry in found if isinstance(entry, Configuration)]
    assert any(configuration.chunks > 1 for configuration in configurations)
    for configuration in rng.sample(configurations, min(80, len(configurations))):
        sizes = random_sizes(rng, model.layers, configuration)
        strategies = random_strategies(rng, sizes)
        plan = Plan(model, machine, job, "megatron", configuration, sizes, strategies)
        export = export_megatron(plan)
        read = parse_megatron(export.flags.arguments, export.devices)
        assert read == (configuration, sizes, strategies)
