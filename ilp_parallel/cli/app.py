"""The command line. Standard output carries the result only, standard error the progress."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, NoReturn, cast

import click

from ilp_parallel import __version__
from ilp_parallel.cli.calibrate import calibrate
from ilp_parallel.cli.compare import compare
from ilp_parallel.cli.diagnosis import check, explain, memory, min_gpus
from ilp_parallel.cli.exchange import exchange_options, exchanged_job, export, import_
from ilp_parallel.cli.measured import predict, validate
from ilp_parallel.cli.objectives import (
    RATES,
    objective_options,
    processes,
    require_alone,
    sensitivity_of,
    sensitivity_options,
    solve_rate,
)
from ilp_parallel.cli.options import (
    EXIT,
    REJECTED,
    Format,
    Live,
    chosen_style,
    job_options,
    job_request,
    json_text,
    output_options,
    read_search_options,
    search_options,
    write_result,
)
from ilp_parallel.cli.pareto import pareto
from ilp_parallel.cli.piper import FORM, piper_options, solve_piper, take_piper_words
from ilp_parallel.cli.place import place
from ilp_parallel.cli.report import Traced, draw_bounds, report, require_picture
from ilp_parallel.cli.schedule import best_orders, schedule, takes_best_order
from ilp_parallel.cli.shard import shard
from ilp_parallel.cli.simulate import simulate
from ilp_parallel.errors import InputError
from ilp_parallel.jobs import complete_job

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ilp_parallel.solving import Answer

_STARTED = time.perf_counter()


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__)
def cli() -> None:
    """Prove optimal parallel training plans for large models."""


for _command in (predict, simulate, validate, calibrate, memory, min_gpus, explain, check):
    cli.add_command(_command)
for _command in (report, compare, pareto, shard, schedule, place):
    cli.add_command(_command)


@cli.command()
@click.argument("model")
@job_options
@exchange_options
@piper_options
@search_options
@output_options
@click.option("--cross-check", is_flag=True, help="Solve the winner again with CP-SAT.")
@click.option("--trace", metavar="FILE", help="Bound and incumbent over time: .csv, .svg or .png.")
@click.option("--no-superset", is_flag=True, help="Search the space alone: quicker.")
@objective_options
@sensitivity_options
def solve(
    model: str,
    output: str,
    style: Format | None,
    cross_check: bool,
    trace: str | None,
    objective: str,
    price: float | None,
    sensitivity: bool,
    workers: int,
    no_superset: bool,
    **words: object,
) -> None:
    """Prove the optimal plan of MODEL, a preset or a file.

    With --format-in piper MODEL is a file of Piper's planner, which states all costs itself.
    """
    started = _STARTED
    of_piper = take_piper_words(words)
    if words["form"] == FORM:
        limit_s = cast("float | None", words["time_limit_s"])
        solve_piper(model, of_piper, limit_s, output, style, started)
    from ilp_parallel.plan_files import require_target
    from ilp_parallel.solving import MINIMISED, answer_document
    from ilp_parallel.solving import solve as run

    require_target(output)
    beside = {"cross_check": cross_check, "trace": trace, "sensitivity": sensitivity}
    require_alone(objective, beside)
    job = exchanged_job(model, words)
    reordered = takes_best_order(words, objective)
    options = read_search_options(words)
    if objective in RATES:
        text, status = solve_rate(job, options, objective, price, chosen_style(style, output))
        write_result(output, text)
        sys.exit(EXIT[status])
    with Live(options) as live, processes(workers) as executor:
        traced = Traced(trace, live.options)
        kind = MINIMISED[objective]
        answer = run(
            job,
            traced.options,
            started=started,
            minimised=kind,
            executor=executor,
            with_superset=not no_superset,
        )
        if cross_check:
            _cross_check(answer)
        more = sensitivity_of(job, live.options, workers) if sensitivity else None
    traced.write(answer)
    found = best_orders(answer) if reordered else None
    style = chosen_style(style, output)
    if style == "json":
        document = answer_document(answer)
        if answer.result.status == "infeasible":
            document["infeasibility"] = _infeasibility(answer)[0]
        if more is not None:
            document["sensitivity"] = more.document
        if found is not None:
            document["schedule"] = found[0]
        text = json_text(document)
    else:
        from ilp_parallel.report import answer_text

        extra = [] if more is None else [more.text(style)]
        if found is not None:
            extra.append(found[1])
        text = answer_text(answer, style, "\n".join([*extra, _after(answer)]))
    write_result(output, text)
    if answer.failed_checks:
        _fail(1, f"INTERNAL: verification failed: {answer.failed_checks[0].name}")
    sys.exit(EXIT[answer.result.status])


@cli.command()
@click.argument("model")
@job_options
@search_options
@click.option("--plot", metavar="FILE", help="Draw the ladder: .svg or .png.")
@output_options
def bounds(
    model: str, plot: str | None, output: str, style: Format | None, **words: object
) -> None:
    """Bounds on the winning configuration: work, Lagrangian, LP of each formulation, optimum.

    Beside them the plans of the heuristics and the simulated time of the winning plan.
    """
    from ilp_parallel.ladder import ladder, ladder_document, ladder_text
    from ilp_parallel.plan_files import require_target

    require_target(output)
    require_picture(plot)
    job = complete_job(job_request(model, words))
    options = read_search_options(words)
    with Live(options) as live:
        found = ladder(job, live.options)
    style = chosen_style(style, output)
    text = json_text(ladder_document(found)) if style == "json" else ladder_text(found, style)
    write_result(output, text)
    if plot is not None:
        draw_bounds(plot, f"{job.model.name} on {job.cluster.name}", found)


@cli.command()
@click.argument("file")
@output_options
def verify(file: str, output: str, style: Format | None) -> None:
    """Check the certificate in FILE, and what the file says beside it, without a solver."""
    from ilp_parallel.claims import verify_file

    certificate, checks = verify_file(file)
    failed = [c.name for c in checks if not c.passed]
    document = {
        "schema": "ilp_parallel.verify/1",
        "verified": not failed,
        "checks": len(checks),
        "failed": failed,
        "status": certificate.status,
        "objective": certificate.objective_ticks,
        "bound": certificate.bound_ticks,
    }
    verdict = f"accepted: {len(checks)} checks passed ({certificate.status})"
    if failed:
        verdict = f"REJECTED: {len(failed)} of {len(checks)} checks failed: " + ", ".join(
            failed[:10]
        )
    write_result(
        output, json_text(document) if chosen_style(style, output) == "json" else verdict + "\n"
    )
    sys.exit(REJECTED if failed else 0)


for _command in (export, import_):
    cli.add_command(_command)


@cli.group()
def formulations() -> None:
    """Look at the integer programs."""


@formulations.command("list")
@output_options
def list_formulations(output: str, style: Format | None) -> None:
    """List the formulations and where they come from."""
    from formulations import PIPELINE, PIPELINE_CHOICE

    rows = [(name, formulation.reference) for name, formulation in PIPELINE.items()]
    rows += [(name, choice.reference) for name, choice in PIPELINE_CHOICE.items()]
    _listing("formulations", ("name", "source"), rows, output, style)


@formulations.command("show")
@click.argument("name")
def show_formulation(name: str) -> None:
    """Print the mathematics of a formulation."""
    from formulations import PIPELINE_CHOICE
    from ilp_parallel.programs import get_formulation

    formulation = PIPELINE_CHOICE.get(name) or get_formulation(name)
    module = sys.modules[type(formulation).__module__]
    write_result("-", (module.__doc__ or "").strip() + "\n")


@formulations.command("write-lp")
@click.argument("name")
@click.argument("model")
@job_options
@search_options
@click.option("-o", "output", default="-", metavar="FILE")
def write_lp(name: str, model: str, output: str, **words: object) -> None:
    """Write the program of MODEL's winning configuration as a readable .lp file."""
    from ilp_parallel.lp_text import write_lp as lp_text
    from ilp_parallel.planner import search
    from ilp_parallel.programs import get_formulation, require_applicable

    formulation = get_formulation(name)
    job = complete_job(job_request(model, words))
    with Live(read_search_options(words)) as live:
        result = search(job.model, job.cluster, job.job, live.options)
    if result.instance is None:
        raise InputError("NO_PLAN", f"the search is {result.status}", "give more devices or time")
    require_applicable(formulation, result.instance)
    write_result(output, lp_text(formulation.build(result.instance)))


@cli.command()
@output_options
def models(output: str, style: Format | None) -> None:
    """List the model presets: blocks by kind, parameters in all and those that a token passes.

    Prediction blocks are not among the parameters, as in the sizes that makers publish.
    """
    from ilp_parallel.specs.blocks import block_text
    from ilp_parallel.specs.readers import load_model, model_names

    rows = []
    for name in model_names():
        spec = load_model(name)
        rows.append(
            (
                name,
                f"{spec.main_parameters / 1e9:.2f}",
                f"{spec.main_active_parameters / 1e9:.2f}",
                block_text(spec),
                str(spec.hidden),
                str(spec.heads),
                spec.default_cluster or "",
                str(spec.default_batch or ""),
                str(spec.default_sequence or ""),
            )
        )
    header = (
        *("model", "B parameters", "B active", "blocks", "hidden", "heads"),
        *("cluster", "batch", "seq"),
    )
    _listing("model presets and their default jobs", header, rows, output, style)


@cli.command()
@output_options
def clusters(output: str, style: Format | None) -> None:
    """List the device presets."""
    from ilp_parallel.jobs import link_text
    from ilp_parallel.specs.readers import cluster_names, load_cluster

    rows = []
    for name in cluster_names():
        spec = load_cluster(name)
        peaks = spec.device.peak_flops
        peak = peaks.get("bf16") or peaks.get("fp16") or 0.0
        rows.append(
            (
                name,
                f"{spec.device.memory_bytes / 2**30:.1f}",
                f"{peak / 1e12:.0f}",
                f"{spec.device.memory_bandwidth_bytes_per_s / 1e9:.0f}",
                str(spec.devices_per_node),
                link_text(spec.intra),
                link_text(spec.inter),
            )
        )
    header = ("device", "GiB", "TFLOP/s 16 bit", "GB/s memory", "per node", "in node", "between")
    _listing("devices (notation: DEVICE:NODESxDEVICES_PER_NODE)", header, rows, output, style)


def _listing(
    title: str,
    header: tuple[str, ...],
    rows: Sequence[tuple[str, ...]],
    output: str,
    style: Format | None,
) -> None:
    from ilp_parallel.report import render

    chosen = chosen_style(style, output)
    if chosen == "json":
        write_result(output, json_text([dict(zip(header, row, strict=True)) for row in rows]))
    else:
        write_result(output, render(title, header, rows, chosen))


def _cross_check(answer: Answer) -> None:
    """Solve the winning configuration again with CP-SAT; a difference is an internal error."""
    from ilp_parallel.planner import DisagreementError
    from ilp_parallel.programs import solve_configuration

    if answer.result.instance is None or answer.result.certificate.plan is None:
        return
    from ilp_parallel.problems.pipeline import evaluate

    solution = answer.result.certificate.plan.solution
    expected = evaluate(answer.result.instance, solution).numerator
    outcome = solve_configuration(answer.result.instance, "interval", "cp-sat", expected + 1)
    if outcome.status != "optimal" or outcome.objective != expected:
        raise DisagreementError(f"CP-SAT: {outcome.status} {outcome.objective}, not {expected}")


def _after(answer: Answer) -> str:
    """The Megatron-LM command of a plan in its space, or why there is no plan."""
    if answer.result.status == "infeasible":
        return _infeasibility(answer)[1]
    if answer.result.plan is None or answer.options.space != "megatron":
        return ""
    from ilp_parallel.export.megatron import export_megatron

    try:
        return export_megatron(answer.result.plan).render()
    except InputError as error:
        return f"Megatron-LM cannot run this plan: {error.code}: {error.message}"


def _infeasibility(answer: Answer) -> tuple[dict[str, object], str]:
    """What is short and how many nodes would do, as data and as text."""
    from ilp_parallel.diagnosis.explaining import explain_infeasible

    return explain_infeasible(answer.job, answer.options)


def _fail(code: int, line: str) -> NoReturn:
    sys.stderr.write(line.replace("\n", " ") + "\n")
    sys.exit(code)


def main() -> None:
    """Run the command line; bad input is one line and exit code 2."""
    try:
        cli.main(standalone_mode=False)
    except InputError as error:
        _fail(2, str(error))
    except click.UsageError as error:
        _fail(2, f"USAGE: {error.format_message()}")
    except (click.Abort, KeyboardInterrupt):
        _fail(5, "CANCELLED: interrupted before there was a result")
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        if os.environ.get("ILP_PARALLEL_DEBUG"):
            raise
        _fail(1, f"INTERNAL: {type(error).__name__}: {error}; set ILP_PARALLEL_DEBUG=1 for details")
