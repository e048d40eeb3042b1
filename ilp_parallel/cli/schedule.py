"""The verb ``schedule``: the shortest order of work for the stages of a plan or a file."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ilp_parallel import __version__
from ilp_parallel.cli.options import (
    EXIT,
    Format,
    chosen_style,
    json_text,
    output_options,
    write_result,
)
from ilp_parallel.errors import InputError

if TYPE_CHECKING:
    from ilp_parallel.planner_schedule import ScheduleResult
    from ilp_parallel.problems.schedule import ScheduleInstance, ScheduleSolution
    from ilp_parallel.solving import Answer


@click.command()
@click.argument("target", metavar="PLAN|FILE")
@click.option("--case", type=int, default=None, help="Which case of a list of cases, from 0.")
@click.option("--whole-backwards", is_flag=True, help="Do not split backwards of a PLAN.")
@click.option("--time-limit", "time_limit_s", type=float, default=120.0, show_default=True)
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--cache", metavar="FOLDER", help="Keep schedules there, by hash of the instance.")
@click.option("--gantt", metavar="SVG", help="Draw the schedule and the memory of every device.")
@click.option("--pytorch", metavar="CSV", help="Write a schedule of torch.distributed.pipelining.")
@click.option("--zero-bubble", "listed", metavar="JSON", help="Write zero-bubble's list.")
@output_options
def schedule(
    target: str,
    case: int | None,
    whole_backwards: bool,
    time_limit_s: float,
    threads: int,
    seed: int,
    cache: str | None,
    gantt: str | None,
    pytorch: str | None,
    listed: str | None,
    output: str,
    style: Format | None,
) -> None:
    """Order forward and backward work for the shortest step within memory, and bound it."""
    from ilp_parallel.imports.schedule_instance import read_schedule_instance
    from ilp_parallel.plan_files import require_target
    from ilp_parallel.planner_schedule import SchedulePlanner

    began = time.monotonic()
    if not 0 < time_limit_s < 1e9:
        raise InputError("OUT_OF_RANGE", f"time limit {time_limit_s}", "use 0 to 1e9 seconds")
    for path in (output, gantt, pytorch, listed):
        if path is not None:
            require_target(path)
    instance = read_schedule_instance(target, case, whole_backwards)

    def report(stage: str, value: int | None, bound: int) -> None:
        shown = "-" if value is None else f"{value:,}"
        since = time.monotonic() - began
        click.echo(f"{since:.1f} s  {stage}: makespan {shown}  bound {bound:,} ticks", err=True)

    known = _from_cache(instance, cache)
    result = SchedulePlanner(instance, time_limit_s, threads, seed, report, known).run()
    if cache is not None and result.solution is not None:
        _to_cache(instance, cache, result.solution)
    if result.solution is not None:
        _write_beside(instance, result, gantt, pytorch, listed)
    elapsed_s = time.monotonic() - began
    if chosen_style(style, output) == "json":
        text = json_text(_document(instance, result, seed, elapsed_s))
    else:
        text = _text(instance, result, style == "md", elapsed_s)
    write_result(output, text)
    sys.exit(EXIT[result.status])


def takes_best_order(words: dict[str, object], objective: str) -> bool:
    """Whether ``solve`` is asked for ``--schedule optimal``; the search then takes any schedule.

    Raises
    ------
    InputError
        ``NO_BEST_ORDER`` for another objective than the step time.
    """
    if words["schedule"] != "optimal":
        return False
    if objective != "step-time":
        what = f"--schedule optimal with --objective {objective}"
        raise InputError("NO_BEST_ORDER", what, "leave one of them out")
    words["schedule"] = "any"
    return True


def best_orders(answer: Answer) -> tuple[dict[str, object], str]:
    """What re-optimised orders make of the best plans, as data and as text."""
    from ilp_parallel.planner_reschedule import (
        reschedule,
        rescheduling_document,
        rescheduling_text,
    )

    found = reschedule(answer)
    text = rescheduling_text(found, answer.job.job.tick_ns * 1e-9)
    return rescheduling_document(found), text


def _write_beside(
    instance: ScheduleInstance,
    result: ScheduleResult,
    gantt: str | None,
    pytorch: str | None,
    listed: str | None,
) -> None:
    """The files that were asked for beside the result."""
    from ilp_parallel.scheduling.files import pytorch_csv, zero_bubble_list
    from ilp_parallel.scheduling.picture import gantt_svg

    assert result.solution is not None
    assert result.evaluation is not None
    if gantt is not None:
        title = f"{instance.name}: {result.objective:,} ticks, bound {result.bound:,}"
        write_result(gantt, gantt_svg(instance, result.solution, result.evaluation, title))
    if pytorch is not None:
        write_result(pytorch, pytorch_csv(instance, result.solution))
    if listed is not None:
        write_result(listed, json_text(zero_bubble_list(instance, result.solution)))


def _cache_file(instance: ScheduleInstance, folder: str) -> Path:
    return Path(folder) / f"{instance.digest()}.json"


def _from_cache(instance: ScheduleInstance, folder: str | None) -> ScheduleSolution | None:
    """A schedule kept for this instance, if there is one; it is evaluated like any other."""
    from ilp_parallel.scheduling.files import solution_of_document
    from ilp_parallel.specs.documents import MAX_RESULT_BYTES, read_document

    if folder is None or not _cache_file(instance, folder).is_file():
        return None
    document = read_document(str(_cache_file(instance, folder)), MAX_RESULT_BYTES)
    return solution_of_document(instance, document)


def _to_cache(instance: ScheduleInstance, folder: str, solution: ScheduleSolution) -> None:
    from ilp_parallel.scheduling.files import schedule_document

    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError("FILE_UNWRITABLE", f"{folder}: {error}", "choose another") from None
    path = str(_cache_file(instance, folder))
    write_result(path, json_text(schedule_document(instance, solution)))


def _document(
    instance: ScheduleInstance, result: ScheduleResult, seed: int, elapsed_s: float
) -> dict[str, object]:
    """The result as plain data."""
    from ilp_parallel.scheduling.files import schedule_document

    loads = instance.device_load_ticks().tolist()
    evaluation = result.evaluation
    return {
        "schema": "ilp_parallel.schedule_result/1",
        "version": __version__,
        "status": result.status,
        "proof": result.proof,
        "objective": result.objective,
        "bound": result.bound,
        "unit": "ticks",
        "gap": result.gap,
        "verified": evaluation is not None and evaluation.feasible,
        "solver": result.found_by or None,
        "seed": seed,
        "reason": result.reason or None,
        "instance": {"name": instance.name, "hash": instance.digest()},
        "certificate": {"closed_by": result.bounds[0].name}
        | {"bounds": [{"name": b.name, "ticks": b.ticks, "place": b.place} for b in result.bounds]},
        "named": [
            {"name": n.name, "makespan": n.evaluation.makespan_ticks, "fits": n.fits}
            for n in result.named
        ],
        "load_ticks": loads,
        "peak_memory": None if evaluation is None else [use.peak for use in evaluation.memory],
        "checks": []
        if evaluation is None
        else [
            {"name": c.name, "passed": c.passed, "slack": c.slack, "unit": c.unit}
            for c in evaluation.checks
        ],
        "schedule": None
        if result.solution is None
        else schedule_document(instance, result.solution),
        "timing": {"total_s": elapsed_s},
    }


def _text(
    instance: ScheduleInstance, result: ScheduleResult, markdown: bool, elapsed_s: float
) -> str:
    """The result for people."""
    from ilp_parallel.scheduling.tables import named_table

    lines = [f"{instance.name}: {result.status}" + (f" ({result.reason})" if result.reason else "")]
    if result.objective is not None and result.evaluation is not None:
        busy = int(instance.device_load_ticks().sum())
        idle = 1 - busy / (instance.devices * result.objective)
        held = ", ".join(str(use.peak) for use in result.evaluation.memory)
        lines += [
            f"makespan {result.objective:,} ticks, bound {result.bound:,} "
            f"({result.bounds[0].name} of {result.bounds[0].place}), gap {result.gap:.4%}",
            f"idle {idle:.2%} of all device time; found by {result.found_by}",
            f"peak memory per device: {held}",
        ]
    lines += ["", *named_table(instance, result.named, result.objective, markdown)]
    return "\n".join([*lines, "", f"{elapsed_s:.1f} s"]) + "\n"
