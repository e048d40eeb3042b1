"""The verb simulate: a plan played through event by event, or many random ones."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from ilp_parallel.cli.exchange import exchange_options
from ilp_parallel.cli.measured import given_plan
from ilp_parallel.cli.options import (
    REJECTED,
    Format,
    chosen_style,
    job_options,
    json_text,
    output_options,
    write_result,
)
from ilp_parallel.cli.report import require_picture
from ilp_parallel.errors import InputError

if TYPE_CHECKING:
    from ilp_parallel.plan import Plan
    from ilp_parallel.simulation.replaying import Replay


@click.command()
@click.argument("plan_or_model", metavar="PLAN|RESULT|MODEL", required=False)
@click.option("--plan", "words_of_plan", help='For a MODEL: "pp=8 tp=8 mbs=1 vpp=3 sp=on ...".')
@click.option("--schedule", help="1f1b, gpipe, interleaved, zb-h1 or zb-v; default: the plan's.")
@click.option("--order", "order_file", metavar="FILE", help="A schedule of your own, as JSON.")
@click.option("--save-order", metavar="FILE", help="Write the order that was run, as JSON.")
@click.option("--curves", metavar="FILE", help="Write the memory curves, as CSV.")
@click.option("--plot", metavar="FILE", help="Draw the memory curves: .svg or .png.")
@click.option("--study", is_flag=True, help="Formula and bounds against simulation instead.")
@click.option("--plans", default=60, show_default=True, help="Of --study: random plans a line.")
@click.option("--seed", default=0, show_default=True, help="Of --study.")
@job_options
@exchange_options
@output_options
def simulate(
    plan_or_model: str | None,
    words_of_plan: str | None,
    schedule: str | None,
    order_file: str | None,
    save_order: str | None,
    curves: str | None,
    plot: str | None,
    study: bool,
    plans: int,
    seed: int,
    output: str,
    style: Format | None,
    **words: object,
) -> None:
    """Run one step of a plan, exactly: makespan, idle time and memory of every device group.

    PLAN is a file written by solve -o; for a MODEL give --plan. The schedule may be another one
    than the plan's, or an order of your own. With --study random plans are run, without any PLAN,
    and the step time by formula and the proven bounds are compared with what comes out. Exit code
    6 if the plan does not fit under the schedule.
    """
    from ilp_parallel.plan_files import require_target

    for path in (output, save_order, curves):
        if path is not None:
            require_target(path)
    require_picture(plot)
    style = chosen_style(style, output)
    if study:
        write_result(output, _study(plans, seed, style))
        return
    if plan_or_model is None:
        raise InputError("NO_PLAN", "nothing to simulate", "name a plan file, or give --study")
    if schedule is not None and order_file is not None:
        raise InputError("TWO_SCHEDULES", "--schedule and --order", "give one of them")
    plan = given_plan(plan_or_model, words_of_plan, words)
    replayed = _replayed(plan, schedule, order_file)
    from ilp_parallel.simulation.output import replay_document, replay_text

    text = (
        json_text(replay_document(plan, replayed))
        if style == "json"
        else replay_text(plan, replayed, style)
    )
    write_result(output, text)
    _write_beside(plan, replayed, save_order, curves, plot)
    sys.exit(0 if replayed.fits else REJECTED)


def _replayed(plan: Plan, schedule: str | None, order_file: str | None) -> Replay:
    from ilp_parallel.simulation.order_files import read_order
    from ilp_parallel.simulation.replaying import REPLAYABLE, replay

    if schedule is not None and schedule not in REPLAYABLE:
        known = ", ".join(REPLAYABLE)
        raise InputError("UNKNOWN_SCHEDULE", f"no schedule {schedule!r}", f"use one of {known}")
    g = plan.configuration
    given = None
    if order_file is not None:
        given = read_order(order_file, g.pipeline, g.chunks, g.microbatches)
    return replay(plan, schedule, given)


def _write_beside(
    plan: Plan, replayed: Replay, save_order: str | None, curves: str | None, plot: str | None
) -> None:
    """The files that were asked for beside the result."""
    if save_order is not None:
        from ilp_parallel.simulation.order_files import order_document

        given = replayed.given
        document = order_document(given.orders, given.placement, plan.configuration.chunks)
        write_result(save_order, json_text(document))
    if curves is not None:
        from ilp_parallel.simulation.output import curves_csv

        write_result(curves, curves_csv(plan, replayed))
    if plot is not None:
        from ilp_parallel.diagnosis.charts import write_figure
        from ilp_parallel.pages.charts import draw_memory_curves
        from ilp_parallel.playing import Played

        played = Played(replayed.instance, replayed.solution, replayed.simulation)
        write_figure(plot, draw_memory_curves(played, plan.job.tick_ns * 1e-9))


def _study(plans: int, seed: int, style: Format) -> str:
    from ilp_parallel.simulation.study import study, study_document, study_text

    if not 1 <= plans <= 100_000:
        raise InputError("OUT_OF_RANGE", f"--plans {plans}", "use 1 to 100000")
    if seed < 0:
        raise InputError("OUT_OF_RANGE", f"--seed {seed}", "use 0 or more")
    found = study(plans, seed, _say)
    return json_text(study_document(found, seed)) if style == "json" else study_text(found, style)


def _say(line: str) -> None:
    """A line of progress."""
    sys.stderr.write(f"{line}\n")
