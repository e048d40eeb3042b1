"""Named heuristics: how plans are found without a proof, priced by the same evaluation."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ilp_parallel.baselines.two_level_dp import two_level_dp
from ilp_parallel.configuration import Configuration, Strategy
from ilp_parallel.instances import InstanceBuilder, plan_of
from ilp_parallel.problems.pipeline import PipelineSolution, evaluate
from ilp_parallel.rules import divisors
from ilp_parallel.spaces import Pins, context_degrees, enumerate_configurations, get_space

if TYPE_CHECKING:
    from ilp_parallel.costs.model import CostModel
    from ilp_parallel.plan import Plan
    from ilp_parallel.problems.pipeline import Schedule

_SCHEDULES: tuple[Schedule, ...] = ("1f1b", "interleaved")


@dataclass(frozen=True, slots=True)
class HeuristicResult:
    """What a heuristic came up with; plan and objective are None where it found nothing."""

    name: str
    plan: Plan | None
    objective_ticks: int | None
    seconds: float


Heuristic = Callable[["CostModel"], tuple["Plan", int] | None]


def megatron_rules(costs: CostModel) -> tuple[Plan, int] | None:
    """The rules of Narayanan et al., SC'21, sections 3 and 5.

    Tensor parallelism inside a node only, as much as the model's heads allow; then as little
    pipeline parallelism as makes the model fit; the rest is data parallelism, with the distributed
    optimizer. Stages are even, interleaved with as many chunks as divide the layers (at most
    four); the microbatch size is tried. Recomputation only if it does not fit otherwise: none, then
    the attention core, then everything. Where the stages do not divide the layers (the paper's
    models always do) they are nearly even, the first ones larger. Context parallelism comes last:
    only if nothing of this fits are sequences split, over 2, 4, 8, ... ranks, with everything tried
    again (Llama 3, arXiv 2407.21783, section 3.3.2, splits long sequences only).
    """
    megatron = get_space("megatron")
    for context in context_degrees(costs.model, costs.cluster, costs.job, megatron):
        for modules in ((), ("core_attn",), ("full",)):
            for pipeline, tensor in _growing_pipeline(costs):
                found = [
                    priced
                    for configuration in _by_rules(costs, pipeline, tensor, context)
                    if (priced := _price_uniform(costs, configuration, modules)) is not None
                ]
                if found:
                    return min(found, key=lambda pair: pair[1])
    return None


def _growing_pipeline(costs: CostModel) -> Iterator[tuple[int, int]]:
    """(pipeline, tensor) with the largest tensor degree inside a node, pipeline growing."""
    model, cluster = costs.model, costs.cluster
    tensor = max(
        t
        for t in range(1, cluster.devices_per_node + 1)
        if cluster.devices_per_node % t == 0
        and model.heads % t == 0
        and model.ffn_hidden % t == 0
        and (model.kv_heads % t == 0 or t % model.kv_heads == 0)
    )
    for pipeline in range(1, model.layers + 1):
        if cluster.devices % (pipeline * tensor) == 0:
            yield pipeline, tensor


def _by_rules(
    costs: CostModel, pipeline: int, tensor: int, context: int
) -> Iterator[Configuration]:
    """The microbatch sizes to try at given degrees."""
    data, unused = divmod(costs.cluster.devices, pipeline * tensor * context)
    if unused or costs.job.global_batch % data:
        return
    per_rank = costs.job.global_batch // data
    for microbatch in (1, 2, 4, 8):
        microbatches, left = divmod(per_rank, microbatch)
        if left:
            continue
        chunks = 1
        per_stage, uneven = divmod(costs.model.layers, pipeline)
        if pipeline > 1 and not uneven and microbatches % pipeline == 0:
            chunks = max(v for v in (1, 2, 3, 4) if per_stage % v == 0)
        yield Configuration(
            pipeline=pipeline,
            tensor=tensor,
            data=data,
            microbatch=microbatch,
            microbatches=microbatches,
            chunks=chunks,
            sequence_parallel=tensor > 1 and costs.job.sequence_length // context % tensor == 0,
            schedule="interleaved" if chunks > 1 else "1f1b",
            context=context,
            expert=_expert_degree(costs, tensor * context * data),
        )


def _expert_degree(costs: CostModel, group: int) -> int:
    """As many expert ranks as a node holds, so that exchanges of tokens stay inside.

    Advice of Megatron-Core for mixtures of experts (``megatron/core/transformer/moe/README.md``).
    """
    counts = [experts.count for experts in costs.model.all_experts]
    most = math.gcd(*counts, group) if counts else 1
    return max(e for e in divisors(most) if e <= costs.cluster.devices_per_node)


def _price_uniform(
    costs: CostModel, configuration: Configuration, modules: tuple[str, ...]
) -> tuple[Plan, int] | None:
    """Plan and ticks with one strategy everywhere and even stages; None if it does not fit."""
    space = get_space("mixed")
    builder = InstanceBuilder(costs, space, Pins())
    instance = builder.build(configuration)
    wanted = Strategy("1" if configuration.shards > 1 else "0", modules)
    k = costs.strategies(configuration).index(wanted)
    size, extra = divmod(instance.layers, instance.stages)
    sizes = tuple(size + (s < extra) for s in range(instance.stages))
    solution = PipelineSolution(sizes, (k,) * instance.layers)
    evaluation = evaluate(instance, solution)
    if not evaluation.feasible:
        return None
    return plan_of(costs, space, configuration, solution), evaluation.objective_ticks


def uniform_sweep(costs: CostModel) -> tuple[Plan, int] | None:
    """What people sweep by hand: every configuration of space ``uniform``, every single strategy.

    Exact within that grid (the policies of one configuration are compared in one table).
    """
    space = get_space("uniform")
    builder = InstanceBuilder(costs, space, Pins())
    best: tuple[int, Configuration, PipelineSolution] | None = None
    for configuration in enumerate_configurations(
        costs.model, costs.cluster, costs.job, space, Pins(), _SCHEDULES
    ):
        if not isinstance(configuration, Configuration):
            continue
        instance = builder.build(configuration)
        cutoff = None if best is None else (best[0] - 1) * instance.objective.divisor + 1
        optimum = two_level_dp(instance, cutoff)
        if optimum is not None:
            ticks = instance.objective.ticks(optimum.numerator)
            best = ticks, configuration, optimum.solution
    if best is None:
        return None
    return plan_of(costs, space, best[1], best[2]), best[0]


HEURISTICS: dict[str, Heuristic] = {
    "megatron_rules": megatron_rules,
    "uniform_sweep": uniform_sweep,
}
"""All heuristics by name."""


def run_heuristic(name: str, costs: CostModel) -> HeuristicResult:
    """Run a heuristic of the registry and time it."""
    started = time.perf_counter()
    found = HEURISTICS[name](costs)
    seconds = time.perf_counter() - started
    plan, ticks = found if found is not None else (None, None)
    return HeuristicResult(name, plan, ticks, seconds)
