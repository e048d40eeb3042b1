"""Exact dynamic program of the pipeline problem: contents of stages, then labels over stages.

First level: the Pareto-optimal contents of every stage position (`stage_labels` in general,
`stage_knapsack` where the layers of a stage are interchangeable). Second level: `plan_labels`.
No solver is used and no code is shared with the integer programs, so the two can only agree by
both being right.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ilp_parallel.baselines.equal_layers import EqualLayers
from ilp_parallel.baselines.equal_policies import EqualPolicies
from ilp_parallel.baselines.general_layers import GeneralLayers, fixed_chunks_optimum
from ilp_parallel.baselines.kind_layers import KindLayers
from ilp_parallel.baselines.kind_policies import KindPolicies
from ilp_parallel.baselines.plan_labels import place_stages
from ilp_parallel.baselines.policies import policy_optimum
from ilp_parallel.errors import InputError
from ilp_parallel.problems.pipeline import evaluate

if TYPE_CHECKING:
    from ilp_parallel.problems.pipeline import PipelineInstance, PipelineSolution


@dataclass(frozen=True, slots=True)
class Optimum:
    """The proven cheapest numerator (below the cutoff, if one was given) and a solution with it."""

    numerator: int
    solution: PipelineSolution


def refuses(instance: PipelineInstance) -> str | None:
    """Why the dynamic program does not apply; None if it does."""
    if instance.chunks == 1:
        return None
    if (instance.min_layers != instance.max_layers).any():
        return "CHUNK_SIZES_NOT_FIXED: several chunks per device group need fixed sizes"
    if instance.reshard_forward_ticks is not None:
        return "RESHARDING_BETWEEN_CHUNKS: several chunks per device group need free resharding"
    return None


def two_level_dp(instance: PipelineInstance, cutoff: int | None = None) -> Optimum | None:
    """Solve exactly.

    Parameters
    ----------
    instance
        Any instance that :func:`refuses` accepts.
    cutoff
        Only solutions with a numerator strictly below it are looked for.

    Returns
    -------
    Optimum or None
        None proves that no feasible solution (below the cutoff) exists.

    Raises
    ------
    InputError
        If the dynamic program does not apply.
    """
    reason = refuses(instance)
    if reason is not None:
        raise InputError(*reason.split(": ", 1))
    if instance.schedule == "gpipe" and instance.reshard_forward_ticks is None:
        return _gpipe(instance, cutoff)
    return _solve(instance, cutoff)


def _gpipe(instance: PipelineInstance, cutoff: int | None) -> Optimum | None:
    """GPipe by way of a relaxation with one bottleneck.

    ``max F' + max B' >= max (F' + B')``, so the objective of 1F1B (with GPipe's memory) is a lower
    bound. Its optimum is GPipe's if GPipe's objective gives it the same value, as it does whenever
    one stage has both maxima; otherwise the general labels decide.
    """
    relaxed = _solve(replace(instance, schedule="1f1b"), cutoff)
    if relaxed is None:
        return None
    value = evaluate(instance, relaxed.solution).numerator
    if value == relaxed.numerator:
        return relaxed
    below = value if cutoff is None else min(value, cutoff)
    better = _solve(instance, below)
    if better is None and (cutoff is None or value < cutoff):
        return Optimum(value, relaxed.solution)
    return better


def _solve(instance: PipelineInstance, cutoff: int | None) -> Optimum | None:
    """The method that fits the instance."""
    if EqualPolicies.applies(instance):
        found = EqualPolicies(instance).optimum(cutoff)
    elif KindPolicies.applies(instance):
        found = KindPolicies(instance).optimum(cutoff)
    elif instance.policies is not None:
        found = policy_optimum(instance, cutoff)
    elif instance.chunks > 1:
        found = fixed_chunks_optimum(instance, cutoff)
    elif EqualLayers.applies(instance):
        stages = EqualLayers.prepare(instance, cutoff)
        found = None if stages is None else place_stages(instance, stages, stages.cutoff)
    elif KindLayers.applies(instance):
        kinds = KindLayers.prepare(instance, cutoff)
        found = None if kinds is None else place_stages(instance, kinds, kinds.cutoff)
    else:
        found = place_stages(instance, GeneralLayers(instance), cutoff)
    return Optimum(*found) if found else None
