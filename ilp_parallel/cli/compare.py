"""The verb compare: the proven optimum beside named heuristics, on jobs or a benchmark set."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Literal, cast

import click

from ilp_parallel.cli.options import (
    Live,
    job_options,
    job_request,
    json_text,
    read_search_options,
    run_options,
    write_result,
)
from ilp_parallel.errors import InputError
from ilp_parallel.jobs import complete_job

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ilp_parallel.comparison.comparing import Methods, Row
    from ilp_parallel.jobs import CompleteJob

Format = Literal["table", "json", "csv", "latex", "md"]

_BY_ENDING: dict[str, Format] = {".csv": "csv", ".tex": "latex", ".md": "md"}


@click.command()
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@click.option("--set", "set_name", metavar="NAME|FILE", help="A benchmark set, e.g. pipeline.")
@click.option("--heuristics", metavar="A,B", help="Some only; the default is all.")
@click.option("--spaces", is_flag=True, help="Optima of narrower spaces in place of heuristics.")
@click.option("--evaluations", type=int, default=5000, show_default=True, help="Plans sampled.")
@click.option("--heuristic-limit", type=float, metavar="SECONDS", help="For each heuristic.")
@click.option("--workers", type=int, help="Processes; the default is one per core for a set.")
@click.option("--plot", metavar="FILE", help="Profile and box plot: .svg or .png.")
@job_options
@run_options
@click.option(
    "--format",
    "style",
    type=click.Choice(("table", "json", "csv", "latex", "md")),
    help="table, json, csv, latex or md.",
)
@click.option("-o", "output", default="-", metavar="FILE", help="Write there; - is stdout.")
def compare(
    models: tuple[str, ...],
    set_name: str | None,
    plot: str | None,
    workers: int | None,
    style: Format | None,
    output: str,
    **words: object,
) -> None:
    """Compare the proven optimum of each MODEL with the plans of named heuristics.

    With --spaces with the proven optima of narrower spaces: what a runtime cannot express costs
    the difference. With --set the jobs are those of a benchmark set, in as many processes as there
    are cores.
    """
    from ilp_parallel.comparison.comparing import compare_models
    from ilp_parallel.plan_files import require_target

    require_target(output)
    if plot is not None:
        from ilp_parallel.diagnosis.charts import require_plot_target

        require_plot_target(plot)
    if workers is not None and not 1 <= workers <= 1024:
        raise InputError("OUT_OF_RANGE", f"--workers {workers}", "use 1 to 1024")
    methods = _methods(words)
    names, jobs = _jobs(models, set_name, words)
    words |= {"space": "mixed", "schedule": "any", "fixed": (), "forbidden": ()}
    options = read_search_options(words)
    processes = workers or (1 if set_name is None else os.cpu_count() or 1)
    with Live(options) as live:
        rows = compare_models(jobs, live.options, methods, processes, _Counter(len(jobs)))
    rows = [{**row, "job": names[cast("int", row["job"])]} for row in rows]
    write_result(output, _text(rows, style or _default_style(output)))
    if plot is not None:
        from ilp_parallel.comparison.charts import write_comparison

        write_comparison(plot, rows)


def _methods(words: dict[str, object]) -> Methods:
    """The heuristics and what each may spend, or the narrower spaces."""
    from ilp_parallel.baselines.named.workbench import Effort
    from ilp_parallel.comparison.comparing import narrower_spaces, read_methods

    if words["spaces"]:
        if words["heuristics"] is not None:
            raise InputError("TWO_QUESTIONS", "--spaces and --heuristics", "give one of them")
        return narrower_spaces("mixed")
    evaluations = cast("int", words["evaluations"])
    limit = cast("float | None", words["heuristic_limit"])
    seed = cast("int", words["seed"])
    if not 1 <= evaluations <= 10**9:
        raise InputError("OUT_OF_RANGE", f"--evaluations {evaluations}", "use 1 to 1e9")
    if limit is not None and not 0 <= limit < 1e9:
        raise InputError("OUT_OF_RANGE", f"--heuristic-limit {limit}", "use 0 to 1e9 seconds")
    if seed < 0:
        raise InputError("OUT_OF_RANGE", f"--seed {seed}", "use 0 or more")
    return read_methods(cast("str | None", words["heuristics"]), Effort(seed, evaluations, limit))


def _jobs(
    models: tuple[str, ...], set_name: str | None, words: dict[str, object]
) -> tuple[list[str], list[CompleteJob]]:
    """Names and jobs: those of the models, or those of the set."""
    if (set_name is None) == (not models):
        raise InputError(
            "MODEL_OR_SET", "give models, or --set, and not both", "use --set pipeline"
        )
    if set_name is None:
        if len(models) > 1 and words["layer_times"] is not None:
            message = f"--layer-times with {len(models)} models"
            raise InputError("LAYER_TIMES_OF_ONE_MODEL", message, "give one model")
        return list(models), [complete_job(job_request(model, words)) for model in models]
    from ilp_parallel.comparison.benchmarking import read_set
    from ilp_parallel.jobs import JobRequest

    given = [name for name in JobRequest.__dataclass_fields__ if words.get(name) is not None]
    if given:
        raise InputError("SET_HAS_ITS_OWN_JOBS", f"--set with {given[0]}", "leave it away")
    found = read_set(set_name)
    return [name for name, _ in found], [job for _, job in found]


def _default_style(output: str) -> Format:
    """A table for the terminal; of a file its ending says what it holds, else JSON."""
    if output == "-":
        return "table"
    return _BY_ENDING.get(os.path.splitext(output)[1].lower(), "json")


def _text(rows: Sequence[Row], style: Format) -> str:
    from ilp_parallel.comparison import output as to

    if style == "json":
        return json_text(to.comparison_document(rows))
    if style == "csv":
        return to.comparison_csv(rows)
    if style == "latex":
        return to.comparison_latex(rows)
    return to.comparison_text(rows, style)


class _Counter:
    """How many jobs are ready, on standard error of a terminal."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._shown = jobs > 1 and sys.stderr.isatty()

    def __call__(self, ready: int) -> None:
        """Show it; the line goes when all are ready."""
        if self._shown:
            text = f"{ready} of {self._jobs} jobs" if ready < self._jobs else ""
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()
