"""The command line. Standard output carries the result only, standard error the progress."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, NoReturn, TypeVar, cast

import click

from ilp_parallel import __version__
from ilp_parallel.errors import InputError
from ilp_parallel.jobs import JobRequest, complete_job

if TYPE_CHECKING:
    from ilp_parallel.planner import SearchOptions, SearchProgress
    from ilp_parallel.solving import Answer

Format = Literal["table", "json", "md"]
Command = TypeVar("Command", bound=Callable[..., object])

EXIT = {"optimal": 0, "infeasible": 3, "feasible": 4, "unknown": 5}
"""Exit code by status; 1 internal error, 2 bad input, 6 rejected by a check."""
REJECTED = 6

_STARTED = time.perf_counter()


def job_options(command: Command) -> Command:
    """Options that describe the job."""
    for option in reversed(
        (
            click.option("--cluster", help="Device, nodes and devices per node, or a file."),
            click.option("--batch", type=int, help="Sequences per optimizer step."),
            click.option("--seq", "sequence", type=int, help="Tokens per sequence."),
            click.option("--precision", help="Precision recipe, e.g. megatron-bf16."),
            click.option("--optimizer", help="adam, sgd-momentum or sgd."),
            click.option("--attention", help="flash or unfused."),
            click.option("--stack", help="Software: megatron, deepspeed or torchtitan."),
            click.option("--intra-bw", "intra_bandwidth", help="Inside a node, e.g. 300GB/s."),
            click.option("--inter-bw", "inter_bandwidth", help="Between nodes, e.g. 25GB/s."),
            click.option("--reserve-gib", type=float, help="Memory of a device no plan may use."),
        )
    ):
        command = option(command)
    return command


def search_options(command: Command) -> Command:
    """Options that describe the search."""
    for option in reversed(
        (
            click.option("--space", default="megatron", show_default=True, help="Search space."),
            click.option(
                "--schedule", default="any", show_default=True, help="Or 1f1b, gpipe, ..."
            ),
            click.option("--fix", "fixed", multiple=True, metavar="K=V", help="Fix a decision."),
            click.option("--forbid", "forbidden", multiple=True, metavar="K=V", help="Forbid one."),
            click.option("--formulation", default="interval", show_default=True),
            click.option("--solver", default="highs", show_default=True),
            click.option("--time-limit", "time_limit_s", type=float, metavar="SECONDS"),
            click.option("--seed", type=int, default=0, show_default=True),
            click.option("--threads", type=int, default=1, show_default=True),
        )
    ):
        command = option(command)
    return command


def output_options(command: Command) -> Command:
    """How and where the result is written."""
    style = click.Choice(("table", "json", "md"))
    for option in (
        click.option("-o", "output", default="-", metavar="FILE", help="Write there; - is stdout."),
        click.option("--format", "style", type=style, default=None, help="table, json or md."),
    ):
        command = option(command)
    return command


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__)
def cli() -> None:
    """Prove optimal parallel training plans for large models."""


@cli.command()
@click.argument("model")
@job_options
@search_options
@output_options
@click.option("--cross-check", is_flag=True, help="Solve the winner again with CP-SAT.")
def solve(
    model: str, output: str, style: Format | None, cross_check: bool, **words: object
) -> None:
    """Prove the optimal plan of MODEL, a preset or a file."""
    from ilp_parallel.solving import answer_document
    from ilp_parallel.solving import solve as run

    started = _STARTED
    job = complete_job(_request(model, words))
    options = _search_options(words)
    with _Live(options) as live:
        answer = run(job, live.options, started=started)
        if cross_check:
            _cross_check(answer)
    style = _style(style, output)
    if style == "json":
        document = answer_document(answer)
        if answer.result.status == "infeasible":
            document["infeasibility"] = _infeasibility(answer)[0]
        text = _json(document)
    else:
        from ilp_parallel.report import answer_text

        text = answer_text(answer, style, _after(answer))
    _write(output, text)
    if answer.failed_checks:
        _fail(1, f"INTERNAL: verification failed: {answer.failed_checks[0].name}")
    sys.exit(EXIT[answer.result.status])


@cli.command()
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@job_options
@search_options
@output_options
def compare(models: tuple[str, ...], output: str, style: Format | None, **words: object) -> None:
    """Compare the proven optimum of each MODEL with the plans of named heuristics."""
    from ilp_parallel.comparing import compare_models, comparison_text

    words["space"] = "mixed"
    options = _search_options(words)
    jobs = [complete_job(_request(model, words)) for model in models]
    with _Live(options) as live:
        rows = compare_models(jobs, live.options)
    style = _style(style, output)
    document = {"schema": "ilp_parallel.compare/1", "rows": rows}
    _write(output, _json(document) if style == "json" else comparison_text(rows, style))


@cli.command()
@click.argument("model")
@job_options
@search_options
@output_options
def bounds(model: str, output: str, style: Format | None, **words: object) -> None:
    """Bounds on the winning configuration: work, Lagrangian, LP of each formulation, optimum."""
    from ilp_parallel.ladder import ladder, ladder_text

    job = complete_job(_request(model, words))
    options = _search_options(words)
    with _Live(options) as live:
        rungs = ladder(job, live.options)
    style = _style(style, output)
    document = {"schema": "ilp_parallel.bounds/1", "unit": "numerator ticks", "rungs": rungs}
    _write(output, _json(document) if style == "json" else ladder_text(rungs, style))


@cli.command()
@click.argument("plan_or_model", metavar="PLAN|MODEL")
@click.option("--plan", "words_of_plan", help='For a MODEL: "pp=8 tp=8 mbs=1 vpp=3 sp=on ...".')
@job_options
@output_options
def predict(
    plan_or_model: str,
    words_of_plan: str | None,
    output: str,
    style: Format | None,
    **words: object,
) -> None:
    """Break down the step time and memory of a plan.

    PLAN is a file written by solve -o. For a MODEL give --plan with pp, tp, mbs and, where wanted,
    vpp, sp (on, off), schedule, zero, recompute and stages=12,12,... (default: nearly even).
    """
    from ilp_parallel.costs.model import CostModel
    from ilp_parallel.plan_files import plan_document, read_plan
    from ilp_parallel.plan_words import plan_from_words

    if words_of_plan is None:
        plan = read_plan(plan_or_model)
    else:
        plan = plan_from_words(complete_job(_request(plan_or_model, words)), words_of_plan)
    prediction = CostModel(plan.model, plan.cluster, plan.job).terms(plan)
    style = _style(style, output)
    if style == "json":
        import msgspec

        document = {
            "schema": "ilp_parallel.predict/1",
            "fits": prediction.fits,
            **cast("dict[str, object]", msgspec.to_builtins(prediction)),
            "plan": plan_document(plan),
        }
        text = _json(document)
    else:
        from ilp_parallel.report import prediction_text

        text = prediction_text(plan, prediction, style)
    _write(output, text)
    sys.exit(0 if prediction.fits else REJECTED)


@cli.command()
@click.argument("file")
@output_options
def verify(file: str, output: str, style: Format | None) -> None:
    """Check the certificate in FILE without a solver."""
    from ilp_parallel.plan_files import read_certificate
    from ilp_parallel.verify import verify as check

    certificate = read_certificate(file)
    checks = check(certificate)
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
    _write(output, _json(document) if _style(style, output) == "json" else verdict + "\n")
    sys.exit(REJECTED if failed else 0)


@cli.command()
@click.argument("file")
@click.option("--to", "target", type=click.Choice(("megatron",)), required=True)
@click.option("-o", "output", default="-", metavar="FILE")
def export(file: str, target: str, output: str) -> None:
    """Write the plan in FILE as the options of a training framework."""
    from ilp_parallel.export.megatron import export_megatron
    from ilp_parallel.plan_files import read_plan

    del target
    _write(output, export_megatron(read_plan(file)).render().rstrip("\n") + "\n")


@cli.group()
def formulations() -> None:
    """Look at the integer programs."""


@formulations.command("list")
@output_options
def list_formulations(output: str, style: Format | None) -> None:
    """List the formulations and where they come from."""
    from formulations import PIPELINE

    rows = [(name, formulation.reference) for name, formulation in PIPELINE.items()]
    _listing("formulations", ("name", "source"), rows, output, style)


@formulations.command("show")
@click.argument("name")
def show_formulation(name: str) -> None:
    """Print the mathematics of a formulation."""
    from ilp_parallel.planner import get_formulation

    module = sys.modules[type(get_formulation(name)).__module__]
    _write("-", (module.__doc__ or "").strip() + "\n")


@formulations.command("write-lp")
@click.argument("name")
@click.argument("model")
@job_options
@search_options
@click.option("-o", "output", default="-", metavar="FILE")
def write_lp(name: str, model: str, output: str, **words: object) -> None:
    """Write the program of MODEL's winning configuration as a readable .lp file."""
    from ilp_parallel.lp_text import write_lp as lp_text
    from ilp_parallel.planner import get_formulation, require_applicable, search

    formulation = get_formulation(name)
    job = complete_job(_request(model, words))
    with _Live(_search_options(words)) as live:
        result = search(job.model, job.cluster, job.job, live.options)
    if result.instance is None:
        raise InputError("NO_PLAN", f"the search is {result.status}", "give more devices or time")
    require_applicable(formulation, result.instance)
    _write(output, lp_text(formulation.build(result.instance)))


@cli.command()
@output_options
def models(output: str, style: Format | None) -> None:
    """List the model presets."""
    from ilp_parallel.specs.readers import load_model, model_names

    rows = []
    for name in model_names():
        spec = load_model(name)
        rows.append(
            (
                name,
                f"{spec.parameters / 1e9:.2f}",
                str(spec.layers),
                str(spec.hidden),
                str(spec.heads),
                spec.default_cluster or "",
                str(spec.default_batch or ""),
                str(spec.default_sequence or ""),
            )
        )
    header = ("model", "B parameters", "layers", "hidden", "heads", "cluster", "batch", "seq")
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
    rows: list[tuple[str, ...]],
    output: str,
    style: Format | None,
) -> None:
    from ilp_parallel.report import render

    chosen = _style(style, output)
    if chosen == "json":
        _write(output, _json([dict(zip(header, row, strict=True)) for row in rows]))
    else:
        _write(output, render(title, header, rows, chosen))


# --- from words to options -----------------------------------------------------------------


def _request(model: str, words: dict[str, object]) -> JobRequest:
    names = JobRequest.__dataclass_fields__.keys() & words.keys()
    return JobRequest(model=model, **{name: words[name] for name in names})  # type: ignore[arg-type]


def _search_options(words: dict[str, object]) -> SearchOptions:
    from typing import get_args

    from ilp_parallel.planner import ANY_SCHEDULE, SearchOptions
    from ilp_parallel.problems.pipeline import Schedule
    from ilp_parallel.spaces import Pins

    schedule = cast("str", words["schedule"])
    if schedule != "any" and schedule not in get_args(Schedule):
        known = ", ".join(("any", *get_args(Schedule)))
        raise InputError("UNKNOWN_SCHEDULE", f"no schedule {schedule!r}", f"use one of {known}")
    time_limit_s = cast("float | None", words["time_limit_s"])
    if time_limit_s is not None and not 0 <= time_limit_s < 1e9:
        raise InputError("OUT_OF_RANGE", f"time limit {time_limit_s}", "use 0 to 1e9 seconds")
    return SearchOptions(
        space=cast("str", words["space"]),
        schedules=ANY_SCHEDULE if schedule == "any" else (cast("Schedule", schedule),),
        pins=Pins.parse(
            cast("tuple[str, ...]", words["fixed"]), cast("tuple[str, ...]", words["forbidden"])
        ),
        formulation=cast("str", words["formulation"]),
        solver=cast("str", words["solver"]),
        time_limit_s=time_limit_s,
        seed=cast("int", words["seed"]),
        threads=cast("int", words["threads"]),
    )


def _style(style: Format | None, output: str) -> Format:
    """Files get JSON unless told otherwise, the terminal a table."""
    return style or ("table" if output == "-" else "json")


# --- what surrounds a result ---------------------------------------------------------------


class _Live:
    """Progress on standard error while searching; the first Ctrl-C stops the search in order."""

    def __init__(self, options: SearchOptions) -> None:
        from dataclasses import replace

        self._stop = False
        self._shown = 0.0
        self._is_terminal = sys.stderr.isatty()
        self.options = replace(
            options,
            progress=self._progress if self._is_terminal else None,
            cancelled=lambda: self._stop,
        )

    def __enter__(self) -> _Live:
        self._previous = signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._previous)
        if self._shown:
            sys.stderr.write("\r\x1b[K")

    def _interrupt(self, *_: object) -> None:
        if self._stop:
            raise KeyboardInterrupt
        self._stop = True

    def _progress(self, progress: SearchProgress) -> None:
        now = time.perf_counter()
        if now - self._shown < 0.1:
            return
        self._shown = now

        def text(ticks: int | None) -> str:
            return "-" if ticks is None else f"{ticks:,}"

        sys.stderr.write(
            f"\r\x1b[K{progress.elapsed_s:.1f} s  incumbent {text(progress.incumbent)}  "
            f"bound {text(progress.bound)} ticks  open {progress.open_configurations}"
        )
        sys.stderr.flush()


def _cross_check(answer: Answer) -> None:
    """Solve the winning configuration again with CP-SAT; a difference is an internal error."""
    from ilp_parallel.planner import DisagreementError, solve_configuration

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
        return f"Megatron-LM: {error}"


def _infeasibility(answer: Answer) -> tuple[dict[str, object], str]:
    """What is short and how many nodes would do, as data and as text."""
    from ilp_parallel.explaining import explain_infeasible

    return explain_infeasible(answer.job, answer.options)


def _json(document: object) -> str:
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def _write(output: str, text: str) -> None:
    from ilp_parallel.plan_files import write_text

    write_text(output, text)


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
