"""Plans of a search with the order of their work re-optimised, and whether the best one stays best.

The search prices plans for named schedules. Here the best plans get the shortest order found for
their stages, weight gradients split off (:mod:`ilp_parallel.planner_schedule`), and the step is
its makespan and the longest tail. No plan of a configuration, whatever its order, is quicker than
its *floor*: the device group with the most work runs it and its own tail, and the average group
has

    (sum over layers of the least m (F + B) + tail, and m times the ends) / p

of both. Without a pipeline the order changes nothing, so there a proven search has settled all
plans. What comes out best is proven to be when no floor that is left lies below its step. Floors
leave out memory and the fill of the pipeline, so that this is rarely so: the configurations that
they do not exclude are counted, those of the re-optimised plans among them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ilp_parallel.baselines.two_level_dp import two_level_dp
from ilp_parallel.costs.model import CostModel
from ilp_parallel.errors import InputError
from ilp_parallel.instances import InstanceBuilder, plan_of
from ilp_parallel.planner_schedule import SchedulePlanner, ScheduleResult
from ilp_parallel.scheduling.from_plan import instance_of_plan
from ilp_parallel.scheduling.tables import named_table
from ilp_parallel.simulation.replaying import replay
from ilp_parallel.spaces import Refusal, enumerate_configurations, get_space

if TYPE_CHECKING:
    from ilp_parallel.configuration import Configuration
    from ilp_parallel.plan import Plan
    from ilp_parallel.problems.schedule import ScheduleInstance
    from ilp_parallel.solving import Answer

MOST_PLANS = 5
"""Plans whose schedules are re-optimised (chosen)."""

SECONDS_PER_PLAN = 20.0


@dataclass(frozen=True, slots=True)
class Rescheduled:
    """One plan with its order re-optimised; ticks of the job."""

    plan: Plan
    instance: ScheduleInstance
    result: ScheduleResult
    tail_ticks: int

    @property
    def step_ticks(self) -> int | None:
        """Makespan and the longest tail."""
        value = self.result.objective
        return None if value is None else value + self.tail_ticks


@dataclass(frozen=True, slots=True)
class Rescheduling:
    """The re-optimised plans, best first, and what is known of the others."""

    plans: tuple[Rescheduled, ...]
    chosen: str  # the configuration that the search chose
    open_floors: dict[str, int] = field(default_factory=dict)  # below the best step, not looked at

    @property
    def stays_best(self) -> bool | None:
        """Whether the search's plan is still the best one; None without any."""
        return self.plans[0].plan.configuration.name == self.chosen if self.plans else None

    @property
    def proven(self) -> bool:
        """Whether no plan priced by the same rule can be quicker than the first one.

        Of a configuration only its best plan by formula is re-optimised; others are excluded by
        the floor or not at all.
        """
        return bool(self.plans) and not self.open_floors


def reschedule(answer: Answer) -> Rescheduling:
    """Re-optimise the schedules of the best plans of a search."""
    result = answer.result
    job = answer.job
    costs = CostModel(job.model, job.cluster, job.job)
    space = get_space(answer.options.space)
    pins = answer.options.pins
    builder = InstanceBuilder(costs, space, pins)
    specs = (costs.model, costs.cluster, costs.job, space, pins)
    floors: list[tuple[int, int, Configuration]] = []
    for item in enumerate_configurations(*specs, answer.options.schedules):
        if isinstance(item, Refusal):
            continue
        floor, guess = _floor(builder, item), builder.work_floor(item)
        if floor is not None and guess is not None:
            floors.append((guess, floor, item))
    floors.sort(key=lambda entry: (entry[0], entry[2].name))
    found: list[Rescheduled] = []
    chosen = "" if result.plan is None else result.plan.configuration.name
    if result.plan is not None:
        found += _rescheduled(result.plan)
    for _, floor, configuration in floors:
        if len(found) >= MOST_PLANS:
            break
        known = min((f.step_ticks for f in found if f.step_ticks is not None), default=None)
        skipped = configuration.name == chosen or configuration.schedule != "1f1b"
        if skipped or (known is not None and floor >= known):
            continue
        optimum = two_level_dp(builder.build(configuration))
        if optimum is not None:
            found += _rescheduled(plan_of(costs, space, configuration, optimum.solution))
    found.sort(key=lambda f: (f.step_ticks or 2**62, f.plan.configuration.name))
    best = found[0].step_ticks if found else None
    proven = result.certificate.objective_ticks if result.status == "optimal" else None
    settled = best is not None and proven is not None and best <= proven
    below = {
        c.name: floor
        for _, floor, c in floors
        if best is not None and floor < best and not (settled and c.pipeline == 1)
    }
    return Rescheduling(tuple(found), chosen, below)


def _floor(builder: InstanceBuilder, configuration: Configuration) -> int | None:
    """Ticks that no plan of a configuration can beat in any order."""
    least = builder.least_work(configuration)
    if least is None:
        return None
    choices, ends = least
    m = configuration.microbatches
    both = sum(n * min(m * ticks + tail for ticks, tail in pairs) for n, pairs in choices)
    return -(-(both + m * ends) // configuration.pipeline)


def _rescheduled(plan: Plan) -> list[Rescheduled]:
    """The plan with the best order found, backwards split or not; nothing where none fits."""
    tail = max(replay(plan).simulation.tail_ticks)
    found = []
    for fused in (False, True) if plan.configuration.chunks == 1 else (True,):
        try:
            instance = instance_of_plan(plan, fused)
        except InputError:
            continue
        result = SchedulePlanner(instance, SECONDS_PER_PLAN).run()
        if result.objective is not None:
            found.append(Rescheduled(plan, instance, result, tail))
    return sorted(found, key=lambda f: f.result.objective or 0)[:1]


def rescheduling_document(found: Rescheduling) -> dict[str, object]:
    """The result as plain data."""
    return {
        "stays_best": found.stays_best,
        "proven": found.proven,
        "not_excluded": len(found.open_floors),
        "least_floor": min(found.open_floors.values(), default=None),
        "plans": [
            {
                "configuration": f.plan.configuration.name,
                "step": f.step_ticks,
                "makespan": f.result.objective,
                "bound": f.result.bound,
                "status": f.result.status,
                "named": {n.name: n.evaluation.makespan_ticks for n in f.result.named if n.fits},
            }
            for f in found.plans
        ],
    }


def rescheduling_text(found: Rescheduling, tick_s: float) -> str:
    """The result for people: the plans, the verdict, and the price of named schedules."""
    if not found.plans:
        return "schedule: no plan whose order could be re-optimised"
    lines = ["schedules re-optimised (step with the best order, its makespan, bound):"]
    for f in found.plans:
        step = (f.step_ticks or 0) * tick_s
        r = f.result
        lines.append(
            f"  {f.plan.configuration.name}: {step:.6g} s, {r.objective:,} ticks, "
            f"bound {r.bound:,} ({r.bounds[0].name}), {r.status}"
        )
    verdict = "stays best" if found.stays_best else "is no longer best"
    proof = "proven" if found.proven else f"{len(found.open_floors)} configurations not excluded"
    lines.append(f"the plan of the search {verdict} among these ({proof})")
    own = next((f for f in found.plans if f.plan.configuration.name == found.chosen), None)
    if own is not None:
        lines.append("")
        lines += named_table(own.instance, own.result.named, own.result.objective)
    return "\n".join(lines) + "\n"
