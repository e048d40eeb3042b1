"""Verbs and options that take what users have and give what their frameworks read."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import click

from ilp_parallel.cli.options import Command, job_options, job_request, task_words
from ilp_parallel.errors import InputError
from ilp_parallel.jobs import complete_job

if TYPE_CHECKING:
    from ilp_parallel.export.base import Export
    from ilp_parallel.imports.record import Imported
    from ilp_parallel.jobs import CompleteJob
    from ilp_parallel.plan import Plan
    from ilp_parallel.specs.cluster import ClusterSpec

FRAMEWORKS = (
    "megatron",
    "megatron-bridge",
    "torchtitan",
    "torchtitan-toml",
    "deepspeed",
    "accelerate",
    "colossalai",
    "galvatron",
)
"""Names of ``ilp_parallel.export.registry.EXPORTERS``, written out so that help needs no import."""

FORMS = ("megatron", "torchtitan", "deepspeed", "galvatron", "calculon")
"""Names of ``ilp_parallel.imports.registry.FORMS``, likewise."""

_TAKEN = ("form", "also", "of_model", "vocab", "nccl_intra", "nccl_inter")
"""Names of the options below in the words of a command."""


def exchange_options(command: Command) -> Command:
    """Options that take a run from a file of another program, and measured links."""
    for option in reversed(
        (
            click.option(
                "--format-in", "form", type=click.Choice(FORMS), help="Format of the file."
            ),
            click.option("--also", multiple=True, metavar="FILE", help="Further files (calculon)."),
            click.option("--model", "of_model", help="Model of the run, where its file is silent."),
            click.option("--vocab", type=int, help="Vocabulary of the model, likewise."),
            click.option("--nccl-intra", metavar="FILE", help="nccl-tests output inside a node."),
            click.option("--nccl-inter", metavar="FILE", help="nccl-tests output between nodes."),
        )
    ):
        command = option(command)
    return command


def exchanged_job(model: str, words: dict[str, object]) -> CompleteJob:
    """The job of a command: from MODEL and its options, or from a run in a foreign file.

    Raises
    ------
    InputError
        What :func:`~ilp_parallel.jobs.complete_job` or the importers raise.
    """
    taken = {name: words.pop(name) for name in _TAKEN if name in words}
    if taken.get("form") is None:
        for name, option in (("also", "--also"), ("of_model", "--model"), ("vocab", "--vocab")):
            if taken.get(name):
                raise InputError("FORMAT_MISSING", f"{option} without --format-in", "give it")
        job = complete_job(job_request(model, words))
        left_out = [text for text in job.model.sources if text.startswith("approximated: ")]
        job = replace(job, assumed=(*left_out, *job.assumed))
    else:
        job = _imported_job(_read(model, taken, words), taken, words)
    return _measured(job, taken)


def imported_plan(path: str, words: dict[str, object]) -> tuple[Plan, tuple[str, ...]]:
    """The plan of a run in a foreign file, and what was assumed; same errors."""
    from ilp_parallel.imports.complete import plan_from

    taken = {name: words.pop(name) for name in _TAKEN if name in words}
    found = _read(path, taken, words)
    return plan_from(found, _measured(_imported_job(found, taken, words), taken))


def _read(path: str, taken: dict[str, object], words: dict[str, object]) -> Imported:
    from ilp_parallel.imports.registry import read_files

    cluster = _cluster(words)
    paths = (path, *cast("tuple[str, ...]", taken.get("also") or ()))
    return read_files(paths, cast("str", taken["form"]), cluster.devices if cluster else None)


def _cluster(words: dict[str, object]) -> ClusterSpec | None:
    from ilp_parallel.specs.overrides import with_links
    from ilp_parallel.specs.readers import load_cluster

    notation = cast("str | None", words.get("cluster"))
    if notation is None:
        return None
    bandwidths = (words.get("intra_bandwidth"), words.get("inter_bandwidth"))
    return with_links(load_cluster(notation), *cast("tuple[str | None, str | None]", bandwidths))


def _imported_job(
    found: Imported, taken: dict[str, object], words: dict[str, object]
) -> CompleteJob:
    """The job of an imported run; options of the command come first."""
    from ilp_parallel.costs.profile import read_profile
    from ilp_parallel.imports.complete import job_from, model_from
    from ilp_parallel.jobs import profile_rates, with_layer_times
    from ilp_parallel.specs.overrides import reserve_bytes
    from ilp_parallel.specs.readers import load_model
    from ilp_parallel.specs.validate import check_job

    name = cast("str | None", taken.get("of_model"))
    model = model_from(
        found, None if name is None else load_model(name), cast("int | None", taken.get("vocab"))
    )
    cluster = _cluster(words) or found.cluster
    given: dict[str, object] = {
        "global_batch": words.get("batch"),
        "sequence_length": words.get("sequence"),
    }
    for option in ("precision", "optimizer", "attention", "norm_kernel", "stack"):
        if words.get(option) is not None:
            given[option] = words[option]
    if cluster is not None and words.get("reserve_gib") is not None:
        given["reserve_bytes"] = reserve_bytes(cluster, cast("float", words["reserve_gib"]))
    if cluster is not None and words.get("profile") is not None:
        profile = read_profile(cast("str", words["profile"]))
        stack = cast("str", given.get("stack", found.stack))
        given["rates"] = profile_rates(profile, cluster, stack)
    fields, adapters = task_words(words)
    job = job_from(found, model, cluster, given | fields)
    job = replace(job, assumed=(*job.assumed, *adapters))
    if words.get("layer_times") is not None:
        job = replace(job, job=with_layer_times(job.job, cast("str", words["layer_times"])))
        check_job(job.model, job.cluster, job.job)
    return job


def _measured(job: CompleteJob, taken: dict[str, object]) -> CompleteJob:
    intra = cast("str | None", taken.get("nccl_intra"))
    inter = cast("str | None", taken.get("nccl_inter"))
    if intra is None and inter is None:
        return job
    from ilp_parallel.imports.nccl import with_measured_links

    return with_measured_links(job, intra, inter)


@click.command("import")
@click.argument("file")
@job_options
@exchange_options
@click.option("-o", "output", default="-", metavar="FILE", help="Plan file; - is stdout.")
def import_(file: str, output: str, **words: object) -> None:
    """Turn a run in FILE, of the format --format-in, into a plan file.

    The plan is what predict, export and check take. What FILE leaves open is asked for by name or
    assumed; assumptions go to standard error.
    """
    from ilp_parallel.plan_files import plan_document, write_text

    if words.get("form") is None:
        raise InputError("FORMAT_MISSING", "no --format-in", f"give one of {', '.join(FORMS)}")
    plan, assumed = imported_plan(file, words)
    if assumed:
        sys.stderr.write(f"ASSUMED: {'; '.join(assumed)}\n")
    write_text(output, json.dumps(plan_document(plan), ensure_ascii=False) + "\n")


@click.command()
@click.argument("file")
@click.option("--to", "target", type=click.Choice(FRAMEWORKS), required=True)
@click.option("-o", "output", default="-", metavar="FILE", help="File, or a folder for all files.")
@click.option("--format", "style", type=click.Choice(("text", "json")), default="text")
def export(file: str, target: str, output: str, style: Literal["text", "json"]) -> None:
    """Write the plan in FILE as the options or files of a training framework.

    Warnings name what the framework cannot express; they go to standard error, and into the file
    where its format has comments.
    """
    from ilp_parallel.export.registry import export_plan
    from ilp_parallel.plan_files import read_plan, write_text

    found = export_plan(read_plan(file), target)
    if style == "json":
        write_text(output, json.dumps(_document(found), ensure_ascii=False, indent=1) + "\n")
        return
    for note in found.notes:
        sys.stderr.write(f"{note.code}: {note.text}\n")
    if output != "-" and Path(output).is_dir():
        for part in found.files:
            write_text(str(Path(output) / part.name), part.text)
        return
    write_text(output, found.text)
    for part in found.files[1:]:
        sys.stderr.write(f"COMPANION_FILE: {part.name} is needed too; give -o FOLDER\n")


def _document(found: Export) -> dict[str, object]:
    from ilp_parallel.plan_files import plan_document

    return {
        "schema": "ilp_parallel.export/1",
        "framework": found.framework,
        "files": {part.name: part.text for part in found.files},
        "warnings": [{"code": note.code, "text": note.text} for note in found.notes],
        "plan": plan_document(found.plan),
    }
