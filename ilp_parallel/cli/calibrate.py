"""The verb that fits the cost model's rates to measured runs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from ilp_parallel.cli.options import json_text, write_result
from ilp_parallel.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ilp_parallel.costs.profile import Profile
    from ilp_parallel.measured.calibration import Calibration
    from ilp_parallel.measured.held_out import HeldOut, Left


@click.command()
@click.argument("folder")
@click.option("-o", "--output", metavar="FILE", default="-", help="Profile to write; - is stdout.")
@click.option("--name", default="calibrated", show_default=True, help="Name of the profile.")
@click.option("--prior", metavar="FILE", help="Profile to start from and to stay near.")
@click.option(
    "--leave-out",
    "left",
    type=click.Choice(["source", "model"]),
    help="Write no profile; tell the errors of each source, or model, when left out of the fit.",
)
@click.option("--only", metavar="SOURCE", help="With --leave-out: of this source alone.")
def calibrate(
    folder: str,
    output: str,
    name: str,
    prior: str | None,
    left: Left | None,
    only: str | None,
) -> None:
    """Fit the rates of the cost model to the measured runs in FOLDER.

    FOLDER is read as by validate. The profile written can be given to any verb as --profile.
    """
    from ilp_parallel.costs.profile import profile_document
    from ilp_parallel.measured.calibration import calibrate as fitted
    from ilp_parallel.measured.cases import cases_of
    from ilp_parallel.measured.held_out import held_out
    from ilp_parallel.measured.runs import read_runs
    from ilp_parallel.plan_files import require_target

    if only is not None and left is None:
        raise InputError("ONLY_WITHOUT_LEAVE_OUT", f"--only {only}", "add --leave-out source")
    _require_scipy()
    require_target(output)
    start = _prior(prior)
    # runs with experts test what the rates of the others say of them
    runs = [run for run in read_runs(folder) if run.arch_kind != "moe"]
    if only is not None and only not in {run.source_id for run in runs}:
        raise InputError("NO_SUCH_SOURCE", f"--only {only}", "use a source of the folder")
    if left is not None:
        write_result(output, _held_out_text(held_out(runs, start, left, _say, only)))
        return
    calibration = fitted(cases_of(runs)[0], start, name, _say)
    click.echo(_fits_text(calibration), err=True)
    write_result(output, json_text(profile_document(calibration.profile)))


def _require_scipy() -> None:
    from importlib.util import find_spec

    if find_spec("scipy") is None:
        raise InputError(
            "EXTRA_MISSING", "calibrate needs scipy", "pip install 'ilp-parallel[calibrate]'"
        )


def _prior(path: str | None) -> Profile:
    from ilp_parallel.costs.profile import prior_profile, read_profile

    return prior_profile() if path is None else read_profile(path)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _fits_text(calibration: Calibration) -> str:
    from ilp_parallel.report import render

    tables = []
    for fit in calibration.fits:
        rows = [
            (owner or "device", name, f"{rate.value:.4g}", f"{rate.standard_error:.2g}")
            for (owner, name), rate in fit.rates.items()
            if rate.standard_error is not None
        ]
        title = (
            f"{fit.generation}: {fit.cases} configurations of {', '.join(fit.sources)}; "
            f"median error {100 * fit.median_error:.1f} %"
        )
        tables.append(render(title, ("of", "rate", "fitted", "std. error"), rows, "table"))
    return "\n".join(tables)


def _held_out_text(found: Sequence[HeldOut]) -> str:
    from ilp_parallel.measured.held_out import macro_error
    from ilp_parallel.report import render

    header = ("left out", "config.", "median", "p90", "bias", ">= 7 B", "tau", "mean regret", "p90")
    rows = [
        (
            held.group,
            str(held.source.n_configurations),
            *map(_percent, (held.source.median_error, held.source.p90_error, held.source.bias)),
            "-" if held.source.from_7b is None else _percent(held.source.from_7b.median_error),
            "-" if held.source.kendall is None else f"{held.source.kendall:.2f}",
            _percent(held.source.regret_mean),
            _percent(held.source.regret_p90),
        )
        for held in found
    ]
    mean, worst = macro_error(found)
    table = render("errors of what was left out of the fit (%)", header, rows, "table")
    return f"{table}\nmodels >= 7 B: mean {_percent(mean)} %, worst {_percent(worst)} %\n"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"
