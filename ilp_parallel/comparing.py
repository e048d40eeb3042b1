"""The proven optimum beside the plans of named heuristics, per job."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ilp_parallel.baselines.heuristics import HEURISTICS, run_heuristic
from ilp_parallel.costs.model import CostModel
from ilp_parallel.planner import search
from ilp_parallel.report import render

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ilp_parallel.jobs import CompleteJob
    from ilp_parallel.plan import Plan
    from ilp_parallel.planner import SearchOptions
    from ilp_parallel.report import Style

Row = dict[str, object]


def compare_models(jobs: Sequence[CompleteJob], options: SearchOptions) -> list[Row]:
    """One row per job and method.

    ``excess`` is (value - optimum) / optimum, 0 only where they are equal; None where the method
    found no plan or the optimum is not proven.
    """
    return [row for job in jobs for row in _compare(job, options)]


def _compare(job: CompleteJob, options: SearchOptions) -> list[Row]:
    costs = CostModel(job.model, job.cluster, job.job)
    result = search(job.model, job.cluster, job.job, options)
    optimum = result.certificate.objective_ticks if result.status == "optimal" else None
    name = f"{options.space}, {result.status}"
    ticks = result.certificate.objective_ticks
    rows = [_row(job, name, ticks, optimum, result.search_s, result.plan)]
    for heuristic in HEURISTICS:
        found = run_heuristic(heuristic, costs)
        rows.append(_row(job, heuristic, found.objective_ticks, optimum, found.seconds, found.plan))
    return rows


def _row(
    job: CompleteJob,
    method: str,
    ticks: int | None,
    optimum: int | None,
    seconds: float,
    plan: Plan | None,
) -> Row:
    excess = None
    if ticks is not None and optimum is not None:
        excess = 0.0 if ticks == optimum else (ticks - optimum) / optimum
    return {
        "model": job.model.name,
        "cluster": job.cluster.name,
        "batch": job.job.global_batch,
        "sequence": job.job.sequence_length,
        "method": method,
        "objective": ticks,
        "step_time_s": None if ticks is None else ticks * job.job.tick_ns * 1e-9,
        "excess": excess,
        "seconds": seconds,
        "configuration": None if plan is None else plan.configuration.name,
    }


def comparison_text(rows: Sequence[Row], style: Style) -> str:
    """The comparison as a table."""
    lines = []
    for row in rows:
        step, excess = row["step_time_s"], row["excess"]
        lines.append(
            (
                f"{row['model']} on {row['cluster']}",
                str(row["method"]),
                "no plan" if step is None else f"{cast('float', step):.6f}",
                "-" if excess is None else f"{100 * cast('float', excess):.2f} %",
                f"{cast('float', row['seconds']):.2f}",
                str(row["configuration"] or ""),
            )
        )
    header = ("job", "method", "step time s", "above optimum", "s", "configuration")
    return render("proven optimum and heuristics", header, lines, style)
