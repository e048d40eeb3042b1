"""Configurations that came nearest to the chosen one, and why they lost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ilp_parallel.baselines.two_level_dp import two_level_dp
from ilp_parallel.certificate import LagrangianBound, Open, WorkBound
from ilp_parallel.diagnosis.alternatives import Contrast, contrast
from ilp_parallel.instances import InstanceBuilder, plan_of
from ilp_parallel.spaces import Refusal, enumerate_configurations, get_space

if TYPE_CHECKING:
    from ilp_parallel.certificate import Certificate
    from ilp_parallel.configuration import Configuration
    from ilp_parallel.costs.model import CostModel
    from ilp_parallel.plan import Plan

HOW_MANY = 6
"""Rivals shown (chosen)."""

WITHIN_PERCENT = 10
"""Rivals' plans are looked for up to this much above the chosen step time (chosen)."""

MOST_CELLS = 200_000
"""Most (layer, strategy, stage) triples of rivals solved for a page (chosen): about a second."""


@dataclass(frozen=True, slots=True)
class Rival:
    """A configuration that was closed by a bound; ticks of the objective.

    ``plan`` is its best one where it was ``solved`` again; None where all take over
    ``WITHIN_PERCENT`` longer.
    """

    configuration: str
    fate: str
    bound_ticks: int
    solved: bool
    plan: Plan | None
    contrast: Contrast | None


@dataclass(frozen=True, slots=True)
class Rivals:
    """The rivals with the least bounds, the least first, out of ``closed`` configurations."""

    rivals: tuple[Rival, ...]
    closed: int


def find_rivals(costs: CostModel, plan: Plan, certificate: Certificate) -> Rivals:
    """Solve again the configurations whose bounds come nearest to the chosen plan."""
    bounded = [
        fate for fate in certificate.fates if isinstance(fate, (WorkBound, LagrangianBound, Open))
    ]
    nearest = sorted(bounded, key=lambda fate: (fate.bound, fate.configuration))[:HOW_MANY]
    wanted = {fate.configuration for fate in nearest}
    space = get_space(certificate.space)
    found = {
        g.name: g
        for g in enumerate_configurations(
            certificate.model,
            certificate.cluster,
            certificate.job,
            space,
            certificate.pins,
            certificate.schedules,
        )
        if not isinstance(g, Refusal) and g.name in wanted
    }
    builder = InstanceBuilder(costs, space, certificate.pins)
    limit = (certificate.objective_ticks or 0) * (100 + WITHIN_PERCENT) // 100
    left = MOST_CELLS
    rivals = []
    for fate in nearest:
        configuration = found.get(fate.configuration)
        if configuration is None:  # a certificate that names what is not there is rejected
            continue
        instance = builder.build(configuration)
        cells = instance.layers * instance.strategies * instance.virtual_stages
        kind = str(fate.__struct_config__.tag)
        rival = Rival(configuration.name, kind, fate.bound, cells <= left, None, None)
        if rival.solved:
            left -= cells
            rival = _solved(rival, builder, plan, configuration, limit)
        rivals.append(rival)
    return Rivals(tuple(rivals), len(bounded))


def _solved(
    rival: Rival,
    builder: InstanceBuilder,
    plan: Plan,
    configuration: Configuration,
    limit_ticks: int,
) -> Rival:
    """The rival with its best plan, if that takes at most ``limit_ticks``."""
    instance = builder.build(configuration)
    optimum = two_level_dp(instance, limit_ticks * instance.objective.divisor + 1)
    if optimum is None:
        return rival
    best = plan_of(builder.costs, builder.space, configuration, optimum.solution)
    return replace(rival, plan=best, contrast=contrast(plan, best))
