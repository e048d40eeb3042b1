"""What ``check`` judges, from a plan, from words, or from a file that may be no valid run."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from ilp_parallel.diagnosis.checking import Subject
from ilp_parallel.diagnosis.findings import Finding, file_findings, with_defaults
from ilp_parallel.diagnosis.mending import Decisions, decisions_of_plan
from ilp_parallel.errors import InputError
from ilp_parallel.export.megatron_flags import MegatronFlags
from ilp_parallel.export.megatron_reader import read_run
from ilp_parallel.imports.complete import job_from, model_from, plan_from
from ilp_parallel.imports.record import Imported
from ilp_parallel.imports.registry import read_texts
from ilp_parallel.imports.shell import read_launch
from ilp_parallel.jobs import CompleteJob
from ilp_parallel.plan_words import plan_from_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ilp_parallel.configuration import Zero
    from ilp_parallel.plan import Plan
    from ilp_parallel.problems.pipeline import Schedule
    from ilp_parallel.specs.cluster import ClusterSpec
    from ilp_parallel.specs.model import ModelSpec

CONTRADICTIONS = frozenset(
    (
        *("SIZES_DISAGREE", "MEGATRON_SIZES_DISAGREE", "DEGREES_NOT_WORLD_SIZE", "BATCH_IDENTITY"),
        *("DEGREES_NOT_POSITIVE", "DEVICES_DIFFER", "BATCH_DIFFERS", "CHUNKS_WITHOUT_INTERLEAVING"),
        *("MICROBATCHES_NOT_DIVISIBLE_BY_PP", "STAGES_DIFFER", "LAYERS_DIFFER", "MALFORMED_LAYOUT"),
        *("HEADS_NOT_DIVISIBLE_BY_TP", "ZERO_WITHOUT_DATA_PARALLEL", "MORE_STAGES_THAN_LAYERS"),
        *("DEVICES_NOT_DIVISIBLE", "BATCH_NOT_DIVISIBLE", "LAYERS_NOT_COVERED_ONCE"),
        *("SEQUENCE_NOT_DIVISIBLE_BY_CP", "CP_SHARE_TOO_SHORT", "SEQUENCE_LONGER_THAN_POSITIONS"),
        *("EXPERT_DEGREE_WITHOUT_EXPERTS", "EXPERTS_NOT_DIVISIBLE_BY_EP"),
        *("EXPERT_FFN_NOT_DIVISIBLE_BY_ETP", "EXPERT_DEGREES_NOT_DIVIDING_STAGE"),
    )
)
"""Codes of what was read well but makes no plan: a verdict, where all others are bad input."""

_SPLITTING = (
    *("--tensor-model-parallel-size", "--pipeline-model-parallel-size", "--context-parallel-size"),
    *("--num-layers-per-virtual-pipeline-stage", "--num-virtual-stages-per-pipeline-rank"),
    *("--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers"),
    *("--pipeline-model-parallel-layout", "--sequence-parallel"),
    *("--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split"),
    *("--microbatch-group-size-per-virtual-pipeline-stage", "--recompute-granularity"),
    *("--recompute-method", "--recompute-num-layers", "--recompute-modules"),
    *("--recompute-activations", "--use-megatron-fsdp", "--data-parallel-sharding-strategy"),
)
"""Options of Megatron-LM that split the work; without them the job alone is left."""


@dataclass(frozen=True, slots=True)
class ForeignRun:
    """A file of another program, and what the user said beside it."""

    files: Sequence[tuple[str, str]]  # text and origin
    form: str
    cluster: ClusterSpec | None
    model: ModelSpec | None
    vocab: int | None
    given: dict[str, object]  # fields of a JobSpec


def subject_of_plan(plan: Plan, assumed: tuple[str, ...], framework: str | None) -> Subject:
    """A plan that is one."""
    job = CompleteJob(plan.model, plan.cluster, plan.job, assumed)
    return Subject(job, decisions_of_plan(plan), plan, (), framework)


def subject_of_words(job: CompleteJob, words: str, framework: str | None) -> Subject:
    """A plan in a few words, which may contradict its job.

    Raises
    ------
    InputError
        ``BAD_PLAN_WORD``.
    """
    try:
        plan = plan_from_words(job, words)
    except InputError as error:
        if error.code not in CONTRADICTIONS:
            raise
        found = Finding(error.code, error.message, error.fix)
        return Subject(job, _decisions_of_words(words), None, (found,), framework)
    return Subject(job, decisions_of_plan(plan), plan, (), framework)


def subject_of_file(run: ForeignRun, framework: str | None, own: str | None) -> Subject:
    """A run of another program; its file is judged in its own words first.

    Parameters
    ----------
    framework
        The one that it is to run in.
    own
        The one that reads the file.

    Raises
    ------
    InputError
        If the file cannot be read, says too little, or states what no plan can.
    """
    text = run.files[0][0]
    findings: tuple[Finding, ...] = ()
    if framework == own:
        findings = file_findings(text, run.form, run.cluster, run.model)
    devices = None if run.cluster is None else run.cluster.devices
    try:
        found = read_texts(run.files, run.form, devices)
        job = _job(found, run)
        plan, assumed = plan_from(found, job)
    except InputError as error:
        if error.code not in CONTRADICTIONS and not findings:
            raise
        if error.code in CONTRADICTIONS and not findings:
            findings = (Finding(error.code, error.message, error.fix),)
        try:
            return _unplanned(run, findings, framework)
        except InputError:
            return Subject(None, None, None, findings, framework)
    job = CompleteJob(job.model, job.cluster, job.job, assumed)
    return Subject(job, decisions_of_plan(plan), plan, findings, framework)


def _unplanned(run: ForeignRun, findings: tuple[Finding, ...], framework: str | None) -> Subject:
    """A run that makes no plan: its job, and if they can be read its decisions.

    Raises
    ------
    InputError
        If the job itself cannot be.
    """
    if run.form == "megatron":
        flags = MegatronFlags.from_arguments(read_launch(run.files[0][0]).words)
        kept = [(name, values) for name, values in flags.items if name not in _SPLITTING]
        words = shlex.join(word for name, values in kept for word in (name, *values))
        bare = read_texts([(words, "options")], "megatron", None)
        return Subject(_job(bare, run), _decisions_of_flags(flags, run), None, findings, framework)
    if run.model is None or run.cluster is None:
        return Subject(None, None, None, findings, framework)
    given = {"global_batch": run.model.default_batch, **run.given}
    given.setdefault("sequence_length", run.model.default_sequence)
    stack = {"torchtitan": "torchtitan", "deepspeed": "deepspeed"}.get(run.form, "fsdp")
    silent = Imported(run.form, stack)  # type: ignore[arg-type]
    job = job_from(silent, run.model, run.cluster, given)
    note = "batch and sequence of the preset where no option states them"
    job = CompleteJob(job.model, job.cluster, job.job, (*job.assumed, note))
    return Subject(job, None, None, findings, framework)


def _job(found: Imported, run: ForeignRun) -> CompleteJob:
    model = model_from(found, run.model, run.vocab)
    return job_from(found, model, run.cluster, run.given)


def _decisions_of_words(words: str) -> Decisions:
    """Decisions of words that were read well."""
    given = dict(word.split("=", 1) for word in words.split())
    number = {key: int(given.get(key, "1")) for key in ("pp", "tp", "mbs", "vpp")}
    modules = given.get("recompute", "none")
    return Decisions(
        pp=number["pp"],
        tp=number["tp"],
        cp=int(given.get("cp", "1")),
        mbs=number["mbs"],
        vpp=number["vpp"],
        sp=given.get("sp", "on") == "on" and number["tp"] > 1,
        schedule=cast("Schedule", given.get("schedule", "1f1b").replace("interleaved", "1f1b")),
        zero=(cast("Zero", given.get("zero", "1")),),
        recompute=((),) if modules == "none" else (tuple(modules.split("+")),),
        stages=tuple(map(int, given["stages"].split(","))) if "stages" in given else None,
    )


def _decisions_of_flags(flags: MegatronFlags, run: ForeignRun) -> Decisions:
    """Decisions of Megatron-LM options; stages that cannot be read count as even."""
    whole = with_defaults(flags, run.model, 1)
    tensor = whole.integer("--tensor-model-parallel-size", 1)
    pipeline = whole.integer("--pipeline-model-parallel-size", 1)
    zero: Zero = "1" if whole.has("--use-distributed-optimizer") else "0"
    decided = Decisions(
        pp=pipeline,
        tp=tensor,
        cp=whole.integer("--context-parallel-size", 1),
        mbs=whole.integer("--micro-batch-size"),
        vpp=whole.integer("--num-virtual-stages-per-pipeline-rank", 1),
        sp=whole.has("--sequence-parallel") and tensor > 1,
        schedule="1f1b",
        zero=("3-regather",) if whole.has("--use-megatron-fsdp") else (zero,),
        recompute=((),),
    )
    try:
        read = read_run(whole)
    except InputError:
        full = whole.text("--recompute-granularity", "none") == "full"
        return replace(decided, recompute=(("full",),)) if full else decided
    kinds = tuple(dict.fromkeys(read.recompute))
    if len(kinds) > 1:  # the first layers of every stage, whatever the stages become
        block = whole.integer("--recompute-num-layers")
        return replace(decided, vpp=read.chunks, block=block)
    return replace(decided, vpp=read.chunks, recompute=kinds)
