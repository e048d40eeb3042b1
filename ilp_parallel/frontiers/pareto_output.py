"""A frontier as JSON, table, CSV and picture."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from ilp_parallel.frontiers.output import outcome_document
from ilp_parallel.report import render
from ilp_parallel.solving import versions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ilp_parallel.frontiers.pareto import Frontier, Point
    from ilp_parallel.jobs import CompleteJob
    from ilp_parallel.report import Style

SCHEMA = "ilp_parallel.pareto/1"
UNITS = {"devices": "devices", "memory": "GiB per device", "cost": "device-seconds per step"}
COLUMNS = ("measure", "unit", "step_time_s", "tokens_per_second", "devices", "configuration")
_GIB = 1 << 30


def measured(found: Frontier, point: Point, price: float | None) -> tuple[float, str]:
    """The measure of a point, and its unit; a cost is per million tokens where there is a price."""
    job = point.plan.job
    if found.against == "devices":
        return point.measure, UNITS["devices"]
    if found.against == "memory":
        return point.measure / _GIB, UNITS["memory"]
    seconds = point.measure * job.tick_ns * 1e-9
    if price is None:
        return seconds, UNITS["cost"]
    return 1e6 * price * seconds / 3600 / job.tokens_per_step, "price per million tokens"


def frontier_document(
    job: CompleteJob, found: Frontier, space: str, price: float | None
) -> dict[str, object]:
    """The JSON of ``pareto``."""
    return {
        "schema": SCHEMA,
        "against": found.against,
        "status": "optimal" if found.proven else "feasible",
        "proof": "exact" if found.verified else None,
        "verified": found.verified,
        "versions": versions(),
        "model": job.model.name,
        "cluster": job.cluster.name,
        "space": space,
        "assumed": list(job.assumed),
        "memory_step_bytes": found.step_bytes if found.against == "memory" else None,
        "infeasible_memory_bytes": found.infeasible_bytes,
        "points": [_point_document(found, point, price) for point in found.points],
        "searched": [outcome_document(outcome, job.job.tick_ns) for outcome in found.outcomes],
    }


def _point_document(found: Frontier, point: Point, price: float | None) -> dict[str, object]:
    plan, (value, unit) = point.plan, measured(found, point, price)
    step = point.ticks * plan.job.tick_ns * 1e-9
    return {
        "measure": value,
        "unit": unit,
        "objective": point.ticks,
        "step_time_s": step,
        "tokens_per_second": plan.job.tokens_per_step / step,
        "devices": plan.cluster.devices,
        "memory_bytes": point.measure if found.against == "memory" else None,
        "limit_bytes": point.limit,
        "configuration": plan.configuration.name,
        "stages": list(plan.sizes),
    }


def frontier_text(
    job: CompleteJob, found: Frontier, space: str, price: float | None, style: Style
) -> str:
    """The same for reading."""
    proven = "every point proven" if found.proven else "NOT ALL PROVEN: a search was stopped"
    lines = [
        f"space {space} · step time against {found.against} · {proven}, verified: "
        f"{'yes' if found.verified else 'NO'}",
        f"{job.model.name} on {job.cluster.name} · batch {job.job.global_batch} x "
        f"{job.job.sequence_length} tokens",
    ]
    if found.step_bytes:
        apart = f"{found.step_bytes / _GIB:g} GiB"
        lines.append(f"limits {apart} apart: a plan as fast may need less, by less than {apart}")
    if found.infeasible_bytes is not None:
        lines.append(f"with {found.infeasible_bytes / _GIB:.2f} GiB per device no plan fits")
    settled = sum(o.reason != "search" or o.refuted for o in found.outcomes)
    if found.outcomes:
        lines.append(f"{settled} of {len(found.outcomes)} numbers of nodes refuted by bounds")
    rows = []
    unit = UNITS[found.against]
    for point in found.points:
        value, unit = measured(found, point, price)
        step = point.ticks * point.plan.job.tick_ns * 1e-9
        rate = point.plan.job.tokens_per_step / step
        name = point.plan.configuration.name
        rows.append((f"{value:,.6g}", f"{step:.6f}", f"{rate:,.0f}", name))
    header = (unit, "step time s", "tokens/s", "configuration")
    return "\n".join(lines) + "\n\n" + render("frontier", header, rows, style)


def frontier_csv(found: Frontier, price: float | None) -> str:
    """One line per point."""
    text = io.StringIO()
    text.write(",".join(COLUMNS) + "\n")
    for point in found.points:
        value, unit = measured(found, point, price)
        step = point.ticks * point.plan.job.tick_ns * 1e-9
        rate = point.plan.job.tokens_per_step / step
        plan = point.plan
        fields = (f"{value:.9g}", unit, f"{step:.9g}", f"{rate:.9g}", str(plan.cluster.devices))
        text.write(",".join((*fields, plan.configuration.name)) + "\n")
    return text.getvalue()


def draw_frontier(job: CompleteJob, found: Frontier, price: float | None) -> Figure:
    """Points joined by steps: between two points nothing is better than the left one."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.6), layout="constrained")
    axes = figure.add_subplot()
    shown = [measured(found, point, price) for point in found.points]
    values = [value for value, _ in shown]
    steps = [point.ticks * point.plan.job.tick_ns * 1e-9 for point in found.points]
    axes.step(values, steps, where="post", color="#0072b2", linewidth=1.2)
    axes.scatter(values, steps, color="#0072b2", zorder=3)
    unit = shown[0][1] if shown else UNITS[found.against]
    axes.set(xlabel=unit, ylabel="step time (s)")
    axes.set_title(f"{job.model.name} on {job.cluster.name}".replace("$", r"\$"), fontsize=10)
    axes.grid(color="0.9")
    return figure
