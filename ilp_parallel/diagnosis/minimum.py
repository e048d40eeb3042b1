"""The fewest whole nodes that can train a model, and how fast they are at best."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

from ilp_parallel.diagnosis.alternatives import plan_ticks
from ilp_parallel.diagnosis.explaining import question_of, refutation_text
from ilp_parallel.diagnosis.feasibility import NodeSearch, Refutation, smallest_cluster
from ilp_parallel.frontiers.nodes import Nodes
from ilp_parallel.planner import search
from ilp_parallel.report import plan_text, render

if TYPE_CHECKING:
    from ilp_parallel.frontiers.nodes import NodeAnswer
    from ilp_parallel.jobs import CompleteJob
    from ilp_parallel.plan import Plan
    from ilp_parallel.planner import SearchOptions, SearchResult
    from ilp_parallel.report import Style

SCHEMA = "ilp_parallel.min-gpus/1"


@dataclass(frozen=True, slots=True)
class Minimum:
    """The answer; ``job`` is the one on the smallest cluster, ``result`` its proven optimum."""

    job: CompleteJob
    space: str
    nodes: NodeSearch
    result: SearchResult | None
    target_tokens_per_second: float | None = None

    @property
    def plan(self) -> Plan | None:
        """The best plan found at the minimum, or if none was found in time any that fits."""
        best = None if self.result is None else self.result.plan
        return self.nodes.plan if best is None else best

    @property
    def step_time_s(self) -> float | None:
        """Seconds of a step of that plan."""
        return None if self.plan is None else plan_ticks(self.plan) * self.job.job.tick_ns * 1e-9

    @property
    def bound_s(self) -> float | None:
        """No plan at the minimum has a shorter step; equal to the step time where it is optimal."""
        ticks = None if self.result is None else self.result.certificate.bound_ticks
        return None if ticks is None else ticks * self.job.job.tick_ns * 1e-9


def smallest_training(job: CompleteJob, options: SearchOptions, most_nodes: int) -> Minimum:
    """Try numbers of nodes from 1 upwards, then search on the first that is not refuted.

    Fitting is not monotone in the number of nodes, so every smaller number is refuted by itself
    (:func:`~ilp_parallel.diagnosis.feasibility.smallest_cluster`).
    """
    question = question_of(job, options)
    nodes = smallest_cluster(question, most_nodes=most_nodes)
    if nodes.smallest is None:
        return Minimum(job, options.space, nodes, None)
    cluster = question.on_nodes(nodes.smallest).cluster
    smallest = replace(job, cluster=cluster)
    result = search(smallest.model, cluster, smallest.job, options)
    return Minimum(smallest, options.space, nodes, result)


def smallest_reaching(
    job: CompleteJob,
    options: SearchOptions,
    most_nodes: int,
    tokens_per_second: float,
    time_limit_s: float = 600.0,
) -> Minimum:
    """The fewest whole nodes with a plan that reaches a rate; every smaller number is refuted.

    Step times are not monotone in the number of nodes either, so each number is refuted by itself:
    by memory, rules, work, or the bound of a search, whose certificate was verified.
    """
    started, nodes = time.perf_counter(), Nodes(job, options)
    longest = _ticks_for(job, tokens_per_second)
    refuted: list[Refutation] = []

    def answer(found: NodeAnswer | None, stopped: str | None) -> Minimum:
        result = None if found is None else found.result
        smallest = None if found is None else found.nodes
        plan = None if result is None else result.plan
        tried = NodeSearch(smallest, tuple(refuted), plan, stopped)
        own = job if found is None else nodes.job_on(found.nodes)
        return Minimum(own, options.space, tried, result, tokens_per_second)

    for number in range(1, most_nodes + 1):
        if time.perf_counter() - started > time_limit_s:
            return answer(None, f"stopped after {time_limit_s:g} s")
        found = nodes.floor(number)
        if found.bound_ticks is not None and found.bound_ticks <= longest:
            found = nodes.search(number, refuted=lambda bound: bound > longest)
            if found.ticks is not None and found.ticks <= longest and found.verified:
                return answer(found, None)
            if found.bound_ticks is not None and found.bound_ticks <= longest:
                return answer(None, f"{number} nodes could not be settled within the time limit")
            if not found.verified:
                return answer(None, f"the proof for {number} nodes failed its verification")
        refuted.append(_refutation(found, nodes))
    return answer(None, f"stopped at {most_nodes} nodes")


def _ticks_for(job: CompleteJob, tokens_per_second: float) -> int:
    """The longest step, in ticks, that reaches a rate."""
    rate = Fraction(tokens_per_second)
    return int(job.job.tokens_per_step * 10**9 / (rate * job.job.tick_ns))


def _refutation(found: NodeAnswer, nodes: Nodes) -> Refutation:
    if found.reason == "memory":
        needed, usable = nodes.states_and_room(found.nodes)
        return Refutation(found.nodes, None, states_bytes=needed, usable_bytes=usable)
    searched = found.reason == "search"
    if found.bound_ticks is None and not searched:
        return Refutation(found.nodes, ())
    return Refutation(found.nodes, None, bound_ticks=found.bound_ticks, searched=searched)


def minimum_document(found: Minimum) -> dict[str, object]:
    """The JSON of ``min-gpus``."""
    nodes, per_node = found.nodes.smallest, found.job.cluster.devices_per_node
    result = found.result
    return {
        "schema": SCHEMA,
        "status": "unknown" if nodes is None else "optimal",
        "proof": None if nodes is None else "exact",
        "model": found.job.model.name,
        "device": found.job.cluster.device.name,
        "devices_per_node": per_node,
        "space": found.space,
        "assumed": list(found.job.assumed),
        "target_tokens_per_second": found.target_tokens_per_second,
        "nodes": nodes,
        "devices": None if nodes is None else nodes * per_node,
        "stopped": found.nodes.stopped,
        "refuted": [
            {
                "nodes": refutation.nodes,
                "reason": refutation_text(refutation),
                "states_bytes": refutation.states_bytes,
                "usable_bytes": refutation.usable_bytes,
                "bound_s": None
                if refutation.bound_ticks is None
                else refutation.bound_ticks * found.job.job.tick_ns * 1e-9,
                "configurations": None
                if refutation.configurations is None
                else [
                    {"configuration": name, "most_layers": most}
                    for name, most in refutation.configurations
                ],
            }
            for refutation in found.nodes.refutations
        ],
        "step_time_s": found.step_time_s,
        "bound_s": found.bound_s,
        "step_time_status": None if result is None else result.status,
        "tokens_per_second": None
        if found.step_time_s is None
        else found.job.job.tokens_per_step / found.step_time_s,
        "configuration": None if found.plan is None else found.plan.configuration.name,
    }


def minimum_text(found: Minimum, style: Style) -> str:
    """The same for reading."""
    nodes, per_node, job = found.nodes.smallest, found.job.cluster.devices_per_node, found.job
    what = (
        f"{job.model.name}, batch {job.job.global_batch} x {job.job.sequence_length} tokens, "
        f"{job.job.precision}, on nodes of {per_node} x {job.cluster.device.name}, "
        f"space {found.space}"
    )
    if found.target_tokens_per_second is not None:
        what = f"at least {found.target_tokens_per_second:,g} tokens/s: {what}"
    lines = []
    if nodes is None:
        lines.append(f"no number of nodes was found: {found.nodes.stopped}: {what}")
    else:
        lines.append(f"MINIMUM: {nodes} nodes, {nodes * per_node} devices (proven): {what}")
    if found.result is not None and found.step_time_s is not None:
        rate = job.job.tokens_per_step / found.step_time_s
        status: str = found.result.status
        if status != "optimal" and found.bound_s is not None:
            status = f"stopped early, none is below {found.bound_s:.6f} s"
        lines.append(f"step time there {found.step_time_s:.6f} s ({status}), {rate:,.0f} tokens/s")
    if found.plan is not None:
        lines.append(plan_text(found.plan))
    rows = [(str(r.nodes), refutation_text(r)) for r in found.nodes.refutations]
    if not rows:
        return "\n".join(lines) + "\nthere is no smaller number\n"
    if len(rows) > 20:
        rows = [*rows[:8], ("...", f"{len(rows) - 16} more, see --format json"), *rows[-8:]]
    table = render("refuted", ("nodes", "why"), rows, style)
    return "\n".join(lines) + "\n\n" + table
