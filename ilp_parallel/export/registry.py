"""All exporters by name, and the one function that uses them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ilp_parallel.errors import InputError
from ilp_parallel.export import (
    accelerate,
    bridge,
    colossalai,
    deepspeed,
    galvatron,
    megatron,
    torchtitan,
)
from ilp_parallel.export.base import Export
from ilp_parallel.export.nearest import nearest

if TYPE_CHECKING:
    from ilp_parallel.export.base import Exporter
    from ilp_parallel.plan import Plan

EXPORTERS: dict[str, Exporter] = {
    exporter.name: exporter
    for exporter in (
        megatron.EXPORTER,
        bridge.EXPORTER,
        torchtitan.RECIPE,
        torchtitan.TOML,
        deepspeed.EXPORTER,
        accelerate.EXPORTER,
        colossalai.EXPORTER,
        galvatron.EXPORTER,
    )
}
"""Frameworks that plans are exported to."""


def export_plan(plan: Plan, target: str) -> Export:
    """Write a plan in the words of a framework.

    Raises
    ------
    InputError
        ``UNKNOWN_FRAMEWORK``; ``NOT_EXPRESSIBLE_IN_...`` naming everything the framework has no
        option for; ``NEAREST_PLAN_DOES_NOT_FIT``; or the code of the first rule of the framework
        that the plan breaks.
    """
    exporter = EXPORTERS.get(target)
    if exporter is None:
        known = ", ".join(EXPORTERS)
        raise InputError("UNKNOWN_FRAMEWORK", f"no exporter {target!r}", f"use one of {known}")
    g = plan.configuration
    missing = list(exporter.lacks(plan))
    if g.expert * g.expert_tensor > 1 and not exporter.experts:
        missing.append(f"expert degrees ep={g.expert} etp={g.expert_tensor}")
    if exporter.precision(plan) is None:
        missing.append(f"precision recipe {plan.job.precision}")
    if missing:
        code = f"NOT_EXPRESSIBLE_IN_{target.upper().replace('-', '_')}"
        raise InputError(code, "; ".join(missing), exporter.advice)
    found, changes = nearest(plan, exporter)
    written = exporter.write(found)
    for violation in written.violations:
        fix = f"this plan cannot run in {exporter.title}"
        raise InputError(violation.code, violation.message, fix)
    return Export(target, found, written.files, changes + written.notes)
