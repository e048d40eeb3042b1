"""Verbs and options that show: the report of a plan, pictures of bounds, the anytime curve."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ilp_parallel.cli.options import REJECTED, write_result
from ilp_parallel.errors import InputError

if TYPE_CHECKING:
    from ilp_parallel.ladder import Ladder
    from ilp_parallel.planner import SearchOptions, SearchProgress
    from ilp_parallel.solving import Answer


@click.command()
@click.argument("file", metavar="PLAN|RESULT")
@click.option("-o", "output", default="-", metavar="FILE", help="Page; - is stdout.")
@click.option("--bounds", metavar="FILE", help="Ladder from bounds -o, with all its rungs.")
@click.option(
    "--verify/--no-verify", default=True, help="Check the certificate again (default), or do not."
)
def report(file: str, output: str, bounds: str | None, verify: bool) -> None:
    """Write one self-contained HTML page about the plan in FILE.

    FILE is what solve -o wrote, or a plan alone, which has no certificate. The page needs no
    network. The exit code is 6 if the certificate is rejected or the plan does not fit.
    """
    from ilp_parallel.pages.facts import gather
    from ilp_parallel.pages.page import render_page
    from ilp_parallel.plan_files import require_target

    require_target(output)
    _require_matplotlib()
    facts = gather(file, bounds, verify=verify)
    write_result(output, render_page(facts))
    sys.exit(0 if facts.accepted and facts.prediction.fits else REJECTED)


def _require_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        fix = "pip install 'ilp-parallel[plots]'"
        raise InputError("NO_MATPLOTLIB", "matplotlib is not installed", fix) from None


def require_picture(path: str | None) -> None:
    """Refuse a path that cannot become a picture; None is no picture."""
    if path is not None:
        from ilp_parallel.diagnosis.charts import require_plot_target

        require_plot_target(path)


def draw_bounds(path: str, title: str, found: Ladder) -> None:
    """Draw a ladder of bounds."""
    from ilp_parallel.diagnosis.charts import write_figure
    from ilp_parallel.pages.charts import draw_ladder

    write_figure(path, draw_ladder(found, title))


class Traced:
    """Records the searches of a command where a file is given; else it does nothing.

    Raises
    ------
    InputError
        For a path that cannot be written, or whose ending is unknown.
    """

    def __init__(self, path: str | None, options: SearchOptions) -> None:
        self._path, self.options = path, options
        if path is None:
            return
        from ilp_parallel.anytime import Recorder
        from ilp_parallel.plan_files import require_target

        kind = Path(path).suffix.lower()
        if kind == ".csv":
            require_target(path)
        elif kind in (".svg", ".png"):
            require_picture(path)
        else:
            raise InputError("UNKNOWN_TRACE", f"--trace {path}", "end it in .csv, .svg or .png")
        self._recorder = recorder = Recorder()
        shown = options.progress

        def progress(found: SearchProgress) -> None:
            recorder(found)
            if shown is not None:
                shown(found)

        self.options = replace(options, progress=progress)

    def write(self, answer: Answer) -> None:
        """Write the curves of what was searched."""
        if self._path is None:
            return
        from ilp_parallel.anytime import curves_csv

        curves = self._recorder.curves(answer)
        if self._path.lower().endswith(".csv"):
            write_result(self._path, curves_csv(curves))
            return
        from ilp_parallel.diagnosis.charts import write_figure
        from ilp_parallel.pages.charts import draw_anytime

        title = f"{answer.job.model.name} on {answer.job.cluster.name}"
        write_figure(self._path, draw_anytime(curves, title))
