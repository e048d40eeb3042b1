"""The number of nodes with the lowest cost per token: least devices x step time.

With a price per device-hour that is the least cost per token, and without one the most tokens per
second and device; the plan is the same. Every number of nodes up to that of the cluster is either
searched to the end or refuted by a bound on its step time, least bounds first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ilp_parallel.frontiers.nodes import Nodes, never
from ilp_parallel.frontiers.output import outcome_document, outcome_rows
from ilp_parallel.report import plan_text, render
from ilp_parallel.solving import versions

if TYPE_CHECKING:
    from collections.abc import Callable

    from ilp_parallel.frontiers.nodes import NodeAnswer
    from ilp_parallel.jobs import CompleteJob
    from ilp_parallel.planner import SearchOptions
    from ilp_parallel.report import Style

SCHEMA = "ilp_parallel.solve-rate/1"


@dataclass(frozen=True, slots=True)
class RateAnswer:
    """The best number of nodes and what refutes the others."""

    job: CompleteJob  # on the best number of nodes, or as given
    best: NodeAnswer | None
    outcomes: tuple[NodeAnswer, ...]  # by rising number of nodes

    @property
    def objective(self) -> int | None:
        """Device-ticks of a step."""
        if self.best is None or self.best.ticks is None:
            return None
        return self.best.devices * self.best.ticks

    @property
    def bound(self) -> int | None:
        """Device-ticks that no plan on any number of nodes beats."""
        products = [o.devices * o.bound_ticks for o in self.outcomes if o.bound_ticks is not None]
        known = [*products, *([] if self.objective is None else [self.objective])]
        return min(known, default=None)

    @property
    def status(self) -> str:
        """As of every solving verb."""
        if self.objective is None:
            return "infeasible" if self.bound is None else "unknown"
        return "optimal" if self.bound == self.objective else "feasible"

    @property
    def verified(self) -> bool:
        """Whether every certificate passed its checks."""
        return all(outcome.verified for outcome in self.outcomes)


def best_rate(job: CompleteJob, options: SearchOptions) -> RateAnswer:
    """The number of nodes, up to that of the cluster, with least devices x step time."""
    nodes = Nodes(job, options)
    floors = [nodes.floor(n) for n in range(1, job.cluster.nodes + 1)]
    outcomes = {f.nodes: f for f in floors}
    waiting = [f for f in floors if f.bound_ticks is not None]
    waiting.sort(key=lambda f: (f.devices * (f.bound_ticks or 0), f.nodes))
    best: NodeAnswer | None = None
    for floor in waiting:
        refuted = _refuted_by(best, floor.devices)
        if floor.bound_ticks is not None and refuted(floor.bound_ticks):
            continue
        outcome = outcomes[floor.nodes] = nodes.search(floor.nodes, refuted)
        if outcome.ticks is not None and not refuted(outcome.ticks):
            best = outcome
    chosen = job if best is None else nodes.job_on(best.nodes)
    return RateAnswer(chosen, best, tuple(outcomes[n] for n in sorted(outcomes)))


def _refuted_by(best: NodeAnswer | None, devices: int) -> Callable[[int], bool]:
    """Whether a step time on so many devices is no better than the best known."""
    if best is None or best.ticks is None:
        return never
    least = best.devices * best.ticks
    return lambda bound: devices * bound >= least


def rate_document(answer: RateAnswer, minimised: str, price: float | None) -> dict[str, object]:
    """The JSON of ``solve`` with this objective; ``price`` is per device-hour."""
    from ilp_parallel.plan_files import plan_document

    best, job = answer.best, answer.job
    plan = None if best is None or best.result is None else best.result.plan
    gap = None
    if answer.objective is not None and answer.bound is not None:
        over = answer.objective - answer.bound
        gap = over / answer.objective if over else 0.0
    return {
        "schema": SCHEMA,
        "minimised": minimised,
        "status": answer.status,
        "proof": "exact" if answer.verified and answer.status != "unknown" else None,
        "objective": answer.objective,
        "bound": answer.bound,
        "unit": "device-ticks",
        "gap": gap,
        "verified": answer.verified,
        "versions": versions(),
        "model": job.model.name,
        "cluster": job.cluster.name,
        "nodes": None if best is None else best.nodes,
        "devices": None if best is None else best.devices,
        **_figures(answer, price),
        "searched": [outcome_document(outcome, job.job.tick_ns) for outcome in answer.outcomes],
        "plan": None if plan is None else plan_document(plan),
    }


def _figures(answer: RateAnswer, price: float | None) -> dict[str, float | None]:
    """Rates of the best plan; None where there is none, or no price."""
    names = ("step_time_s", "tokens_per_second", "tokens_per_second_per_device")
    job, best = answer.job.job, answer.best
    if answer.objective is None or best is None or best.ticks is None:
        return dict.fromkeys((*names, "cost_per_million_tokens"))
    step = best.ticks * job.tick_ns * 1e-9
    rate = job.tokens_per_step / step
    cost = None if price is None else 1e6 * price / 3600 * best.devices / rate
    figures: dict[str, float | None] = dict(
        zip(names, (step, rate, rate / best.devices), strict=True)
    )
    return {**figures, "cost_per_million_tokens": cost}


def rate_text(
    answer: RateAnswer, options: SearchOptions, minimised: str, price: float | None, style: Style
) -> str:
    """The same for reading."""
    job, figures = answer.job, _figures(answer, price)
    lines = [
        f"space {options.space} · objective {minimised.replace('-', ' ')} · schedule "
        f"{'/'.join(options.schedules)} · precision {job.job.precision} · attention "
        f"{job.job.attention}",
        f"{job.model.name} · batch {job.job.global_batch} x {job.job.sequence_length} tokens · up "
        f"to {answer.outcomes[-1].nodes} nodes of {job.cluster.devices_per_node} x "
        f"{job.cluster.device.name}",
    ]
    if job.assumed:
        lines.append(f"assumed: {'; '.join(job.assumed)}")
    best = answer.best
    if best is None or best.result is None or best.result.plan is None:
        lines.append(f"{answer.status.upper()}: no plan")
    else:
        cost = figures["cost_per_million_tokens"]
        priced = "" if cost is None else f" · {cost:,.6g} per million tokens"
        verified = "yes" if answer.verified else "NO"
        lines += [
            "",
            f"{answer.status.upper()}: {best.nodes} nodes, {best.devices} devices: "
            f"{figures['tokens_per_second_per_device']:,.1f} tokens/s/device{priced} "
            f"(verified: {verified})",
            f"step time {figures['step_time_s']:.6f} s · "
            f"{figures['tokens_per_second']:,.0f} tokens/s",
            plan_text(best.result.plan),
        ]
    header = ("nodes", "outcome", "step time s", "at least s")
    table = render(
        "numbers of nodes", header, outcome_rows(answer.outcomes, job.job.tick_ns), style
    )
    return "\n".join(lines) + "\n\n" + table
