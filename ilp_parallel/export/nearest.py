"""The plan nearest to a given one that a framework can express, and what it costs.

Only recomputation and precision are adapted: they change time and memory, both of which are
predicted again. Degrees, stages, schedule and ZeRO are never changed in silence; what has no
option there is refused by the exporter.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from ilp_parallel.costs.model import CostModel
from ilp_parallel.errors import InputError
from ilp_parallel.export.base import Note, recomputed

if TYPE_CHECKING:
    from ilp_parallel.costs.breakdown import Prediction
    from ilp_parallel.export.base import Exporter, Layers
    from ilp_parallel.plan import Plan
    from ilp_parallel.specs.job import Precision


def nearest(plan: Plan, exporter: Exporter) -> tuple[Plan, tuple[Note, ...]]:
    """The plan itself, or the fastest expressible one that differs in recomputation or precision.

    Raises
    ------
    InputError
        ``NEAREST_PLAN_DOES_NOT_FIT`` if the plan fits its devices and no expressible one does.
    """
    precision = exporter.precision(plan) or plan.job.precision
    policies = exporter.recomputations(plan)
    changed = precision != plan.job.precision
    if not changed and recomputed(plan) in policies:
        return plan, ()
    job = replace(plan.job, precision=cast("Precision", precision))
    base = replace(plan, job=job)
    before = CostModel(plan.model, plan.cluster, plan.job).terms(plan)
    found, after = _fastest(base, policies, before)
    if before.fits and not after.fits:
        raise InputError(
            "NEAREST_PLAN_DOES_NOT_FIT",
            f"{exporter.title} can only run this plan with {_difference(plan, found)}, which needs "
            f"{_worst(after)} of the usable memory",
            "solve with --space uniform, or with --fix recompute=...",
        )
    return found, tuple(_notes(plan, found, before, after, exporter.title))


def _fastest(base: Plan, policies: list[Layers], before: Prediction) -> tuple[Plan, Prediction]:
    """The plan's own policy if it is one; else the fastest policy that fits, else the lightest."""
    if recomputed(base) in policies:
        policies = [recomputed(base)]
    costs = CostModel(base.model, base.cluster, base.job)
    priced = []
    for number, policy in enumerate(policies):
        plan = _with_recomputation(base, policy)
        prediction = costs.terms(plan)
        short = before.fits and not prediction.fits
        rank = (short, _load(prediction) if short else prediction.step_time_s, number)
        priced.append((rank, plan, prediction))
    _, plan, prediction = min(priced, key=lambda entry: entry[0])
    return plan, prediction


def _with_recomputation(plan: Plan, policy: Layers) -> Plan:
    pairs = zip(plan.strategies, policy, strict=True)
    return replace(plan, strategies=tuple(replace(s, recompute=modules) for s, modules in pairs))


def _notes(
    plan: Plan, found: Plan, before: Prediction, after: Prediction, title: str
) -> list[Note]:
    """What was changed and what it costs."""
    change = (
        f"predicted step time {before.step_time_s:.6g} s -> {after.step_time_s:.6g} s "
        f"({100 * (after.step_time_s / before.step_time_s - 1):+.2f} %), heaviest stage "
        f"{_worst(before)} -> {_worst(after)} of usable memory"
    )
    notes = []
    if recomputed(plan) != recomputed(found):
        notes.append(
            Note(
                "RECOMPUTATION_NOT_EXPRESSIBLE",
                f"{title} cannot recompute as planned ({_policy(plan)}); nearest is "
                f"{_policy(found)}: {change}.",
            )
        )
    if plan.job.precision != found.job.precision:
        notes.append(
            Note(
                "PRECISION_RECIPE_DIFFERS",
                f"Planned for {plan.job.precision}; {title} trains as {found.job.precision}: "
                f"{change}.",
            )
        )
    return notes


def _difference(plan: Plan, found: Plan) -> str:
    parts = []
    if recomputed(plan) != recomputed(found):
        parts.append(f"recomputation {_policy(found)} instead of {_policy(plan)}")
    if plan.job.precision != found.job.precision:
        parts.append(f"precision {found.job.precision} instead of {plan.job.precision}")
    return " and ".join(parts)


def _policy(plan: Plan) -> str:
    """Layers by what they recompute, for instance ``12 x full, 20 x none``."""
    counts: dict[str, int] = {}
    for modules in recomputed(plan):
        name = "+".join(modules) or "none"
        counts[name] = counts.get(name, 0) + 1
    return ", ".join(f"{number} x {name}" for name, number in sorted(counts.items()))


def _load(prediction: Prediction) -> float:
    return max(stage.memory_bytes / max(stage.usable_bytes, 1) for stage in prediction.stages)


def _worst(prediction: Prediction) -> str:
    return f"{100 * _load(prediction):.1f} %"
