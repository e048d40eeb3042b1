"""Configurations that came nearest to the chosen one, and why they lost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ilp_parallel.alternatives import Contrast, contrast
from ilp_parallel.baselines.two_level_dp import two_level_dp
from ilp_parallel.certificate import LagrangianBound, Open, WorkBound
from ilp_parallel.instances import InstanceBuilder, plan_of
from ilp_parallel.spaces import Refusal, enumerate_configurations, get_space

if TYPE_CHECKING:
    from ilp_parallel.certificate import Certificate, Fate
    from ilp_parallel.configuration import Configuration
    from ilp_parallel.costs.model import CostModel
    from ilp_parallel.plan import Plan

HOW_MANY = 6
"""Rivals shown (chosen)."""

WITHIN = 2
"""Rivals' plans are looked for up to this multiple of the chosen step time (chosen)."""


@dataclass(frozen=True, slots=True)
class Rival:
    """A configuration that was closed by a bound; ticks of the objective.

    ``plan`` is its best one, None where none takes less than ``WITHIN`` times the chosen one.
    """

    configuration: str
    fate: str
    bound_ticks: int
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
    limit = WITHIN * (certificate.objective_ticks or 0)
    rivals = [
        _rival(builder, plan, fate, fate.bound, found[fate.configuration], limit)
        for fate in nearest
        if fate.configuration in found
    ]
    return Rivals(tuple(rivals), len(bounded))


def _rival(
    builder: InstanceBuilder,
    plan: Plan,
    fate: Fate,
    bound: int,
    configuration: Configuration,
    limit_ticks: int,
) -> Rival:
    instance = builder.build(configuration)
    kind = str(fate.__struct_config__.tag)
    optimum = two_level_dp(instance, limit_ticks * instance.objective.divisor)
    if optimum is None:
        return Rival(configuration.name, kind, bound, None, None)
    best = plan_of(builder.costs, builder.space, configuration, optimum.solution)
    return Rival(configuration.name, kind, bound, best, contrast(plan, best))
