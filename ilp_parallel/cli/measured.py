"""Verbs about the cost model: what it predicts for a plan, and how well it meets measured runs."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import click

from ilp_parallel.cli.exchange import exchange_options, exchanged_job, imported_plan
from ilp_parallel.cli.options import (
    REJECTED,
    Format,
    chosen_style,
    job_options,
    json_text,
    output_options,
    profile_option,
    write_result,
)
from ilp_parallel.errors import InputError
from ilp_parallel.jobs import profile_rates, with_layer_times

if TYPE_CHECKING:
    from ilp_parallel.plan import Plan


@click.command()
@click.argument("plan_or_model", metavar="PLAN|MODEL")
@click.option("--plan", "words_of_plan", help='For a MODEL: "pp=8 tp=8 mbs=1 vpp=3 sp=on ...".')
@job_options
@exchange_options
@output_options
def predict(
    plan_or_model: str,
    words_of_plan: str | None,
    output: str,
    style: Format | None,
    **words: object,
) -> None:
    """Break down the step time and memory of a plan.

    PLAN is a file written by solve -o; of the options of a job it takes --profile and --layer-times
    only. For a MODEL give --plan with pp, tp, mbs and, where wanted, vpp, sp (on, off), schedule,
    zero, recompute and stages=12,12,... (default: nearly even). With --format-in PLAN is a file of
    another program.
    """
    from ilp_parallel.costs.model import CostModel
    from ilp_parallel.predicting import prediction_document

    plan = given_plan(plan_or_model, words_of_plan, words)
    prediction = CostModel(plan.model, plan.cluster, plan.job).terms(plan)
    style = chosen_style(style, output)
    if style == "json":
        text = json_text(prediction_document(plan, prediction))
    else:
        from ilp_parallel.report import prediction_text

        text = prediction_text(plan, prediction, style)
    write_result(output, text)
    sys.exit(0 if prediction.fits else REJECTED)


def given_plan(argument: str, words_of_plan: str | None, words: dict[str, object]) -> Plan:
    """The plan that a command is about: of a plan file, a foreign file, or a model and words.

    Raises
    ------
    InputError
        What the readers raise, or ``TWO_PLANS``.
    """
    if words.get("form") is not None:
        if words_of_plan is not None:
            raise InputError("TWO_PLANS", "--plan and --format-in", "give one of them")
        plan, assumed = imported_plan(argument, words)
        if assumed:
            sys.stderr.write(f"ASSUMED: {'; '.join(assumed)}\n")
        return plan
    if words_of_plan is not None:
        from ilp_parallel.plan_words import plan_from_words

        return plan_from_words(exchanged_job(argument, words), words_of_plan)
    words |= {"also": words.get("also") or None}
    return _plan_of_file(argument, words)


def _plan_of_file(path: str, words: dict[str, object]) -> Plan:
    """The plan in a file, under the rates of a profile and with layer times where given."""
    from ilp_parallel.costs.profile import read_profile
    from ilp_parallel.plan_files import read_plan
    from ilp_parallel.specs.documents import is_path
    from ilp_parallel.specs.validate import check_job

    if not is_path(path):
        raise InputError("NO_PLAN", f"{path} is no plan file", "give --plan 'pp=8 ...'")
    kept = ("profile", "layer_times")
    others = [name for name, value in words.items() if name not in kept and value is not None]
    if others:
        raise InputError("PLAN_HAS_ITS_JOB", f"{others[0]} given too", "leave it out")
    plan, profile = read_plan(path), cast("str | None", words["profile"])
    layer_times = cast("str | None", words["layer_times"])
    if profile is not None:
        rates = profile_rates(read_profile(profile), plan.cluster, plan.job.stack)
        plan = replace(plan, job=replace(plan.job, rates=rates))
    if layer_times is not None:
        plan = replace(plan, job=with_layer_times(plan.job, layer_times))
        check_job(plan.model, plan.cluster, plan.job)
    return plan


@click.command()
@click.argument("folder")
@profile_option
@click.option("--plot", metavar="FILE", help="Draw predicted against measured: .svg or .png.")
@output_options
def validate(
    folder: str, profile: str | None, plot: str | None, output: str, style: Format | None
) -> None:
    """Compare the cost model with the measured runs in FOLDER.

    FOLDER holds any number of CSV files, one row a run; files without the columns of a run are
    passed over.
    """
    from ilp_parallel.costs.profile import read_profile
    from ilp_parallel.diagnosis.charts import require_plot_target
    from ilp_parallel.measured.scatter import write_scatter
    from ilp_parallel.measured.validation_report import (
        validate_folder,
        validation_document,
        validation_text,
    )
    from ilp_parallel.plan_files import require_target

    require_target(output)
    if plot is not None:
        require_plot_target(plot)
    result = validate_folder(folder, None if profile is None else read_profile(profile))
    if plot is not None:
        write_scatter(plot, result.validation.timed)
    style = chosen_style(style, output)
    if style == "json":
        text = json_text(validation_document(result))
    else:
        text = validation_text(result, style)
    write_result(output, text)
