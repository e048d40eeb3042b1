"""The verb pareto."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Literal, cast

import click

from ilp_parallel.cli.exchange import exchange_options, exchanged_job
from ilp_parallel.cli.objectives import price_of
from ilp_parallel.cli.options import (
    Format,
    Live,
    chosen_style,
    job_options,
    json_text,
    output_options,
    read_search_options,
    search_options,
    write_result,
)
from ilp_parallel.cli.report import require_picture
from ilp_parallel.specs.overrides import GIB
from ilp_parallel.specs.validate import require_in_range

if TYPE_CHECKING:
    from ilp_parallel.frontiers.pareto import Frontier
    from ilp_parallel.jobs import CompleteJob
    from ilp_parallel.planner import SearchOptions

STOPPED, INFEASIBLE = 4, 3


@click.command()
@click.argument("model")
@click.option(
    "--against",
    type=click.Choice(("memory", "devices", "cost")),
    default="memory",
    show_default=True,
    help="Memory per device, devices (whole nodes), or devices x step time.",
)
@click.option("--step-gib", default=1.0, show_default=True, help="Of memory; 0: every byte.")
@click.option("--price", type=float, help="Of a device-hour, for --against cost.")
@click.option("--csv", "csv_file", metavar="FILE", help="Write the points as CSV, too.")
@click.option("--plot", metavar="FILE", help="Draw the frontier: .svg or .png.")
@job_options
@exchange_options
@search_options
@output_options
def pareto(
    model: str,
    against: str,
    step_gib: float,
    price: float | None,
    csv_file: str | None,
    plot: str | None,
    output: str,
    style: Format | None,
    **words: object,
) -> None:
    """Print the exact frontier of step time against memory, devices or cost for MODEL.

    Devices and cost: over all numbers of nodes up to the cluster's. Memory: on devices with less
    and less of it. Every point is proven. --time-limit is that of each search; what it stops is
    not proven, and the exit code is 4.
    """
    from ilp_parallel.frontiers.pareto_output import (
        draw_frontier,
        frontier_csv,
        frontier_document,
        frontier_text,
    )
    from ilp_parallel.plan_files import require_target

    for path in (output, csv_file):
        if path is not None:
            require_target(path)
    require_picture(plot)
    require_in_range("step_gib", step_gib, (0.0, 1e4), "GiB")
    options, job = read_search_options(words), exchanged_job(model, words)
    priced = price_of(job, price, needed=False)
    with Live(options) as live:
        found = _frontier(job, live.options, against, math.ceil(step_gib * GIB))
    style = chosen_style(style, output)
    if style == "json":
        text = json_text(frontier_document(job, found, options.space, priced))
    else:
        text = frontier_text(job, found, options.space, priced, style)
    write_result(output, text)
    if csv_file is not None:
        write_result(csv_file, frontier_csv(found, priced))
    if plot is not None:
        from ilp_parallel.diagnosis.charts import write_figure

        write_figure(plot, draw_frontier(job, found, priced))
    if not found.verified:
        raise RuntimeError("a certificate failed its verification")
    if not found.points and found.proven:
        sys.exit(INFEASIBLE)
    sys.exit(0 if found.proven else STOPPED)


def _frontier(job: CompleteJob, options: SearchOptions, against: str, step_bytes: int) -> Frontier:
    from ilp_parallel.frontiers.pareto import frontier_over_memory, frontier_over_nodes

    def say(line: str) -> None:
        if options.progress is None:  # else the progress of each search is shown
            sys.stderr.write(f"{line}\n")

    if against == "memory":
        return frontier_over_memory(job, options, step_bytes, say)
    kind = cast("Literal['devices', 'cost']", against)
    return frontier_over_nodes(job, options, kind, say)
