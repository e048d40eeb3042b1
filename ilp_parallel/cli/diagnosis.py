"""Verbs that judge and explain: memory, min-gpus, explain, check."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import click

from ilp_parallel.cli.exchange import exchange_options, exchanged_job
from ilp_parallel.cli.measured import given_plan
from ilp_parallel.cli.objectives import sensitivity_of, sensitivity_options
from ilp_parallel.cli.options import (
    REJECTED,
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
from ilp_parallel.errors import InputError
from ilp_parallel.jobs import CompleteJob
from ilp_parallel.spaces import SPACES, Pins
from ilp_parallel.specs.validate import require_in_range

if TYPE_CHECKING:
    from ilp_parallel.diagnosis.check_subjects import ForeignRun
    from ilp_parallel.diagnosis.checking import Subject
    from ilp_parallel.diagnosis.memory_table import StageMemory
    from ilp_parallel.plan import Plan
    from ilp_parallel.planner import SearchOptions

INFEASIBLE = 3
"""Exit code of a job that is proven infeasible."""

_STEP_TIME_LIMIT_S = 4.0
"""How long min-gpus looks for the best plan at the minimum, which is proven before (chosen)."""


@click.command()
@click.argument("plan_or_model", metavar="PLAN|MODEL")
@click.option("--plan", "words_of_plan", help='For a MODEL: "pp=8 tp=8 mbs=1 vpp=3 sp=on ...".')
@click.option("--plot", metavar="FILE", help="Draw a stacked bar per stage: .svg or .png.")
@job_options
@exchange_options
@output_options
def memory(
    plan_or_model: str,
    words_of_plan: str | None,
    plot: str | None,
    output: str,
    style: Format | None,
    **words: object,
) -> None:
    """Show the memory of a plan by stage and part, in GiB per device.

    PLAN is a file written by solve -o, or with --format-in a file of another program. For a MODEL
    give --plan; without it the plan is the proven optimum of space megatron.
    """
    from ilp_parallel.diagnosis.memory_table import memory_document, memory_rows, stage_memories
    from ilp_parallel.plan_files import require_target
    from ilp_parallel.report import plan_text, render

    require_target(output)
    if plot is not None:
        from ilp_parallel.diagnosis.charts import require_plot_target

        require_plot_target(plot)
    plan = _plan_or_optimum(plan_or_model, words_of_plan, words)
    stages = stage_memories(plan)
    fit = all(stage.fits for stage in stages)
    style = chosen_style(style, output)
    if style == "json":
        text = json_text(memory_document(plan, stages))
    else:
        table = render(
            "memory by stage (GiB per device; % of capacity)", *memory_rows(stages), style
        )
        usable = stages[0].usable_bytes / (1 << 30)
        text = (
            f"{plan_text(plan)}\n{plan.cluster.device.name}: "
            f"{stages[0].capacity_bytes / (1 << 30):.2f} GiB, of which {usable:.2f} may be "
            f"allocated · fits: {_fits_text(stages)}\n\n{table}"
        )
    write_result(output, text)
    if plot is not None:
        from ilp_parallel.diagnosis.charts import draw_memory, write_figure

        title = f"{plan.model.name} on {plan.cluster.name}\n{plan.configuration.name}"
        write_figure(plot, draw_memory(title, stages))
    sys.exit(0 if fit else REJECTED)


def _fits_text(stages: tuple[StageMemory, ...]) -> str:
    over = [str(stage.stage) for stage in stages if not stage.fits]
    return f"NO, stages {', '.join(over)} do not" if over else "yes"


def _plan_or_optimum(argument: str, words_of_plan: str | None, words: dict[str, object]) -> Plan:
    """The plan that is given, or the optimum of a model's job."""
    from ilp_parallel.planner import SearchOptions, search

    if words.get("form") is not None or words_of_plan is not None or _is_plan(argument):
        return given_plan(argument, words_of_plan, words)
    job = exchanged_job(argument, words)
    with Live(SearchOptions(space="megatron")) as live:
        found = search(job.model, job.cluster, job.job, live.options)
    if found.plan is None:
        fix = f"see explain {argument}" if found.status == "infeasible" else "give it more time"
        raise InputError("NO_PLAN", f"the search is {found.status}", fix)
    return found.plan


def _is_plan(argument: str) -> bool:
    """Whether an argument is a file with a plan (or standard input), not a model."""
    from ilp_parallel.plan_files import PLAN_SCHEMA
    from ilp_parallel.specs.documents import MAX_RESULT_BYTES, is_path, read_document

    if argument == "-":
        return True
    if not is_path(argument):
        return False
    data = read_document(argument, MAX_RESULT_BYTES)
    return data.get("schema") == PLAN_SCHEMA or "plan" in data


@click.command("min-gpus")
@click.argument("model")
@click.option("--device", help="Device by name, e.g. h100-80gb; or give --cluster.")
@click.option("--per-node", type=int, default=8, show_default=True, help="Devices per node.")
@click.option("--most-nodes", type=int, default=4096, show_default=True, help="Try no more.")
@click.option("--tokens-per-second", type=float, help="Reach so much, beside fitting.")
@job_options
@exchange_options
@search_options
@output_options
def min_gpus(
    model: str,
    device: str | None,
    per_node: int,
    most_nodes: int,
    tokens_per_second: float | None,
    output: str,
    style: Format | None,
    **words: object,
) -> None:
    """Find the fewest whole nodes that can train MODEL, every smaller number refuted.

    With --tokens-per-second: that can train it so fast. The number of nodes in --cluster does not
    matter. The step time is that of the best plan at the minimum; unless --time-limit is given, the
    search for it stops after 4 seconds and says how far from optimal it may be (with a rate to
    reach it is not stopped).
    """
    from ilp_parallel.diagnosis.minimum import (
        minimum_document,
        minimum_text,
        smallest_reaching,
        smallest_training,
    )
    from ilp_parallel.plan_files import require_target

    require_target(output)
    if most_nodes < 1:
        raise InputError("OUT_OF_RANGE", f"--most-nodes {most_nodes}", "use at least 1")
    if device is not None:
        if words["cluster"] is not None:
            raise InputError("TWO_CLUSTERS", "--device and --cluster", "give one of them")
        words["cluster"] = f"{device}:1x{per_node}"
    options = read_search_options(words)
    if tokens_per_second is not None:
        require_in_range("tokens_per_second", tokens_per_second, (1e-6, 1e15), "tokens/s")
    elif options.time_limit_s is None:
        options = replace(options, time_limit_s=_STEP_TIME_LIMIT_S)
    job = exchanged_job(model, words)
    job = replace(job, cluster=replace(job.cluster, nodes=1))
    with Live(options) as live:
        if tokens_per_second is None:
            found = smallest_training(job, live.options, most_nodes)
        else:
            found = smallest_reaching(job, live.options, most_nodes, tokens_per_second)
    style = chosen_style(style, output)
    text = minimum_text(found, style) if style != "json" else json_text(minimum_document(found))
    write_result(output, text)
    if found.nodes.smallest is None:
        sys.exit(5)
    sys.exit(0)


@click.command()
@click.argument("job_or_plan", metavar="MODEL|PLAN")
@click.option("--instead", multiple=True, metavar="K=V", help="For a PLAN: the other choice.")
@click.option("--plan", "words_of_plan", help='For a MODEL: a plan as "pp=8 tp=8 mbs=1 ...".')
@sensitivity_options
@job_options
@exchange_options
@search_options
@output_options
def explain(
    job_or_plan: str,
    instead: tuple[str, ...],
    sensitivity: bool,
    workers: int,
    words_of_plan: str | None,
    output: str,
    style: Format | None,
    **words: object,
) -> None:
    """Explain why a job is infeasible, or why a plan is as it is.

    For the job of a MODEL that no plan fits: a smallest set of requirements that conflict, and the
    smallest relaxations that would do. For a PLAN with --instead tp=4: the best plan with that
    choice and what it costs, term by term; without --instead each decision of the plan in turn.
    With --sensitivity, of a plan or a job: what more memory, FLOP/s or bandwidth would buy, each
    solved again for the changed cluster.
    """
    from ilp_parallel.plan_files import require_target

    require_target(output)
    options = read_search_options(words)
    style = chosen_style(style, output)
    if sensitivity:
        if instead:
            raise InputError("TWO_QUESTIONS", "--sensitivity and --instead", "give one of them")
        job, plan = _job_of(job_or_plan, words_of_plan, words)
        if plan is not None and _defaulted("space") and plan.space in SPACES:
            options = replace(options, space=plan.space)
        with Live(options) as live:
            shown = sensitivity_of(job, live.options, workers)
        if shown is None:
            fix = f"see explain {job_or_plan}"
            raise InputError("NO_PLAN", "no plan fits the job as it is", fix)
        write_result(output, shown.alone(options.space, plan, style))
        return
    if (
        instead
        or words_of_plan is not None
        or (words.get("form") is None and _is_plan(job_or_plan))
    ):
        _explain_plan(job_or_plan, words_of_plan, instead, words, options, output, style)
        return
    from ilp_parallel.diagnosis.explaining import (
        explain_job,
        explanation_document,
        explanation_text,
        question_of,
    )

    found = explain_job(question_of(exchanged_job(job_or_plan, words), options), _say)
    json_wanted = style == "json"
    text = json_text(explanation_document(found)) if json_wanted else explanation_text(found)
    write_result(output, text)
    sys.exit(INFEASIBLE if found.plan is None else 0)


def _say(line: str) -> None:
    """A line of progress."""
    sys.stderr.write(f"{line}\n")


_SEARCH_WORDS = (
    *("space", "schedule", "fixed", "forbidden"),
    *("formulation", "solver", "time_limit_s", "seed", "threads"),
)
"""Words of a command that are not about the job, which a plan brings along."""


def _explain_plan(
    argument: str,
    words_of_plan: str | None,
    instead: tuple[str, ...],
    words: dict[str, object],
    options: SearchOptions,
    output: str,
    style: Format,
) -> None:
    """Explain a plan: one alternative, or one for every decision."""
    from ilp_parallel.diagnosis.alternatives import (
        alternatives_document,
        alternatives_text,
        best_with,
        every_other,
    )

    plan = _plan_alone(argument, words_of_plan, words)
    if _defaulted("space") and plan.space in SPACES:
        options = replace(options, space=plan.space)
    with Live(options) as live:
        if instead:
            found = [best_with(plan, live.options, Pins.parse(instead, ()), " ".join(instead))]
        else:
            found = list(every_other(plan, live.options, _say))
    if style == "json":
        text = json_text(alternatives_document(plan, found, options.space))
    else:
        text = alternatives_text(plan, found, options.space, style)
    write_result(output, text)
    nothing = len(found) == 1 and found[0].status == "infeasible"
    sys.exit(INFEASIBLE if nothing else 0)


def _job_of(
    argument: str, words_of_plan: str | None, words: dict[str, object]
) -> tuple[CompleteJob, Plan | None]:
    """The job of a plan, and the plan, or that of a model."""
    if words_of_plan is None and words.get("form") is None and not _is_plan(argument):
        return exchanged_job(argument, words), None
    plan = _plan_alone(argument, words_of_plan, words)
    return CompleteJob(plan.model, plan.cluster, plan.job, ()), plan


def _plan_alone(argument: str, words_of_plan: str | None, words: dict[str, object]) -> Plan:
    """The plan of a command whose other words are about a search."""
    about_job = {name: value for name, value in words.items() if name not in _SEARCH_WORDS}
    return given_plan(argument, words_of_plan, about_job)


def _defaulted(name: str) -> bool:
    """Whether the user left an option to its default."""
    source = click.get_current_context().get_parameter_source(name)
    return source is click.core.ParameterSource.DEFAULT


@click.command()
@click.argument("file", metavar="PLAN|FILE|MODEL")
@click.option("--for", "framework", help="Framework whose rules it must keep.")
@click.option("--plan", "words_of_plan", help='For a MODEL: "pp=8 tp=8 mbs=1 vpp=3 sp=on ...".')
@job_options
@exchange_options
@search_options
@output_options
def check(
    file: str,
    framework: str | None,
    words_of_plan: str | None,
    output: str,
    style: Format | None,
    **words: object,
) -> None:
    """Judge a configuration: valid, fitting, how fast, how far from optimal, and what mends it.

    FILE is a plan, or with --format-in a file of another program; or give a MODEL and --plan. All
    broken rules are named at once. A file is judged for its own framework unless --for says
    otherwise. Exit code 0: valid and fits, 6: rejected.
    """
    from ilp_parallel.diagnosis.checking import check as judge
    from ilp_parallel.diagnosis.checking import check_document, check_text
    from ilp_parallel.plan_files import require_target

    require_target(output)
    options = read_search_options(words)
    style = chosen_style(style, output)
    subject = _subject(file, framework, words_of_plan, words)
    if _defaulted("space") and subject.framework not in (None, "megatron", "megatron-bridge"):
        options = replace(options, space="mixed")
    with Live(options) as live:
        verdict = judge(subject, live.options)
    text = json_text(check_document(verdict)) if style == "json" else check_text(verdict, style)
    write_result(output, text)
    sys.exit(0 if verdict.accepted else REJECTED)


def _subject(
    file: str, framework: str | None, words_of_plan: str | None, words: dict[str, object]
) -> Subject:
    """What is to be judged."""
    from ilp_parallel.diagnosis.check_subjects import (
        subject_of_file,
        subject_of_plan,
        subject_of_words,
    )
    from ilp_parallel.diagnosis.findings import OWN_FRAMEWORK
    from ilp_parallel.export.registry import EXPORTERS

    if framework is not None and framework not in EXPORTERS:
        known = ", ".join(EXPORTERS)
        raise InputError("UNKNOWN_FRAMEWORK", f"no framework {framework!r}", f"use one of {known}")
    form = cast("str | None", words.get("form"))
    about_job = {name: value for name, value in words.items() if name not in _SEARCH_WORDS}
    if form is not None:
        own = OWN_FRAMEWORK.get(form)
        return subject_of_file(_foreign_run(file, form, about_job), framework or own, own)
    if words_of_plan is not None:
        return subject_of_words(exchanged_job(file, about_job), words_of_plan, framework)
    plan = given_plan(file, None, about_job)
    if framework is None and plan.space == "megatron":
        framework = "megatron"
    return subject_of_plan(plan, (), framework)


def _foreign_run(file: str, form: str, words: dict[str, object]) -> ForeignRun:
    """A file of another program with the options that go with it."""
    from ilp_parallel.cli.options import task_words
    from ilp_parallel.diagnosis.check_subjects import ForeignRun
    from ilp_parallel.specs.documents import read_text
    from ilp_parallel.specs.overrides import reserve_bytes, with_links
    from ilp_parallel.specs.readers import load_cluster, load_model

    cluster = None
    if words.get("cluster") is not None:
        bandwidths = (words.get("intra_bandwidth"), words.get("inter_bandwidth"))
        links = cast("tuple[str | None, str | None]", bandwidths)
        cluster = with_links(load_cluster(cast("str", words["cluster"])), *links)
    names = {"batch": "global_batch", "sequence": "sequence_length"}
    kept = ("batch", "sequence", "precision", "optimizer", "attention", "norm_kernel", "stack")
    given = {names.get(n, n): words[n] for n in kept if words.get(n) is not None}
    given |= task_words(words)[0]
    for name in ("profile", "layer_times", "nccl_intra", "nccl_inter"):
        if words.get(name) is not None:
            option = f"--{name.replace('_', '-')}"
            raise InputError("NOT_WITH_FORMAT_IN", option, "import the file, then check the plan")
    if cluster is not None and words.get("reserve_gib") is not None:
        given["reserve_bytes"] = reserve_bytes(cluster, cast("float", words["reserve_gib"]))
    model = words.get("of_model")
    paths = (file, *cast("tuple[str, ...]", words.get("also") or ()))
    return ForeignRun(
        files=[(read_text(path), path) for path in paths],
        form=form,
        cluster=cluster,
        model=None if model is None else load_model(cast("str", model)),
        vocab=cast("int | None", words.get("vocab")),
        given=given,
    )
