"""Is a configuration valid, does it fit, how fast is it, how far from optimal, what mends it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ilp_parallel.costs.model import CostModel
from ilp_parallel.diagnosis.alternatives import contrast, contrast_table, decisions_of, plan_ticks
from ilp_parallel.diagnosis.findings import memory_findings, plan_findings
from ilp_parallel.diagnosis.memory_table import memory_document, memory_rows, stage_memories
from ilp_parallel.diagnosis.mending import smallest_change
from ilp_parallel.errors import InputError
from ilp_parallel.plan_files import plan_document
from ilp_parallel.planner import search
from ilp_parallel.report import plan_text, render

if TYPE_CHECKING:
    from ilp_parallel.costs.breakdown import Prediction
    from ilp_parallel.diagnosis.findings import Finding
    from ilp_parallel.diagnosis.memory_table import StageMemory
    from ilp_parallel.diagnosis.mending import Decisions, Mending
    from ilp_parallel.jobs import CompleteJob
    from ilp_parallel.plan import Plan
    from ilp_parallel.planner import SearchOptions, SearchResult
    from ilp_parallel.report import Style

SCHEMA = "ilp_parallel.check/1"


@dataclass(frozen=True, slots=True)
class Subject:
    """What is checked: a job, what the user decided, and the plan if the two make one.

    ``findings`` are those of the file in its own words. Without a job there is no optimum, without
    decisions nothing can be mended.
    """

    job: CompleteJob | None
    decisions: Decisions | None
    plan: Plan | None
    findings: tuple[Finding, ...]
    framework: str | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answers. What needs a plan is None or empty where there is none."""

    subject: Subject
    invalid: tuple[Finding, ...]  # rules that are broken
    too_large: tuple[Finding, ...]  # stages that do not fit
    stages: tuple[StageMemory, ...]
    prediction: Prediction | None
    ticks: int | None  # step time of the plan
    optimum: SearchResult | None  # None where the rules leave no configuration
    space: str
    mending: Mending | None  # only of what is rejected

    @property
    def accepted(self) -> bool:
        """Whether the configuration is valid and fits."""
        return self.subject.plan is not None and not self.invalid and not self.too_large

    @property
    def optimum_ticks(self) -> int | None:
        """Step time of the optimum."""
        return None if self.optimum is None else self.optimum.certificate.objective_ticks

    @property
    def excess(self) -> float | None:
        """(plan - optimum) / optimum; below zero only for plans that the space does not hold."""
        if self.ticks is None or self.optimum_ticks is None:
            return None
        return (self.ticks - self.optimum_ticks) / self.optimum_ticks


def check(subject: Subject, options: SearchOptions) -> Verdict:
    """Judge a configuration, solve its job, and if it is rejected find the smallest change.

    Raises
    ------
    InputError
        ``UNKNOWN_FRAMEWORK``, or what the search raises.
    """
    plan, framework = subject.plan, subject.framework
    invalid = list(subject.findings)
    stages: tuple[StageMemory, ...] = ()
    prediction = None
    if plan is not None:
        if framework is not None:
            known = {found.code for found in invalid}
            invalid += [f for f in plan_findings(plan, framework) if f.code not in known]
        stages = stage_memories(plan)
        prediction = CostModel(plan.model, plan.cluster, plan.job).terms(plan)
    too_large = memory_findings(stages)
    rejected = plan is None or bool(invalid) or bool(too_large)
    mending = None
    if rejected and subject.job is not None and subject.decisions is not None:
        mending = smallest_change(
            subject.job,
            subject.decisions,
            lambda other: framework is None or not plan_findings(other, framework),
        )
    return Verdict(
        subject=subject,
        invalid=tuple(invalid),
        too_large=too_large,
        stages=stages,
        prediction=prediction,
        ticks=None if plan is None else plan_ticks(plan),
        optimum=None if subject.job is None else _optimum(subject.job, options),
        space=options.space,
        mending=mending,
    )


def _optimum(job: CompleteJob, options: SearchOptions) -> SearchResult | None:
    try:
        return search(job.model, job.cluster, job.job, options)
    except InputError as error:
        if error.code.startswith("UNKNOWN"):
            raise
        return None


def differences(plan: Plan, other: Plan) -> dict[str, tuple[str, str]]:
    """Decisions in which two plans differ: theirs, in the words of ``--fix``."""
    ours, theirs = decisions_of(plan), decisions_of(other)
    keys = [*dict.fromkeys((*ours, *theirs))]
    found = {
        key: ("/".join(ours.get(key, ("-",))), "/".join(theirs.get(key, ("-",)))) for key in keys
    }
    pairs = {key: pair for key, pair in found.items() if pair[0] != pair[1]}
    if not pairs and plan.sizes != other.sizes:
        pairs["stages"] = (",".join(map(str, plan.sizes)), ",".join(map(str, other.sizes)))
    return pairs


def check_document(verdict: Verdict) -> dict[str, object]:
    """The JSON of ``check``; docs/diagnosis.md says what each field means."""
    v, job = verdict, verdict.subject.job
    tick_s = _tick_s(job)
    plan, optimum = v.subject.plan, v.optimum
    memory = None if plan is None else memory_document(plan, v.stages)
    return {
        "schema": SCHEMA,
        "verdict": "accepted" if v.accepted else "rejected",
        "model": None if job is None else job.model.name,
        "cluster": None if job is None else job.cluster.name,
        "framework": v.subject.framework,
        "assumed": [] if job is None else list(job.assumed),
        "configuration": None if plan is None else plan.configuration.name,
        "valid": plan is not None and not v.invalid,
        "violations": [_finding(found) for found in v.invalid],
        "fits": None if plan is None else not v.too_large,
        "memory_findings": [_finding(found) for found in v.too_large],
        "memory": memory,
        "step_time_s": None if v.ticks is None else v.ticks * tick_s,
        "tokens_per_second": None
        if v.ticks is None or job is None
        else job.job.tokens_per_step / (v.ticks * tick_s),
        "mfu": None if v.prediction is None else v.prediction.mfu,
        "optimum": {
            "space": v.space,
            "status": "no configuration" if optimum is None else optimum.status,
            "step_time_s": None if v.optimum_ticks is None else v.optimum_ticks * tick_s,
            "excess": v.excess,
            "configuration": None
            if optimum is None or optimum.plan is None
            else optimum.plan.configuration.name,
            "differences": None
            if plan is None or optimum is None or optimum.plan is None
            else {
                key: {"plan": ours, "optimum": theirs}
                for key, (ours, theirs) in differences(plan, optimum.plan).items()
            },
            "plan": None
            if optimum is None or optimum.plan is None
            else plan_document(optimum.plan),
        },
        "mending": _mending_document(v),
    }


def _tick_s(job: CompleteJob | None) -> float:
    return 0.0 if job is None else job.job.tick_ns * 1e-9


def _finding(found: Finding) -> dict[str, str]:
    return {"code": found.code, "message": found.message, "fix": found.fix}


def _mending_document(v: Verdict) -> dict[str, object] | None:
    if v.mending is None:
        return None
    mend = v.mending.mend
    return {
        "changes": None
        if mend is None
        else [{"decision": c.key, "from": c.before, "to": c.after} for c in mend.changes],
        "configuration": None if mend is None else mend.plan.configuration.name,
        "step_time_s": None if mend is None else mend.step_time_s,
        "tried": list(v.mending.tried),
        "fitting": list(v.mending.fitting),
        "rejected_by_rules": v.mending.rejected,
        "plan": None if mend is None else plan_document(mend.plan),
    }


def check_text(verdict: Verdict, style: Style) -> str:
    """The verdict in words and tables."""
    v, job = verdict, verdict.subject.job
    what = "no job that can be trained"
    if job is not None:
        batch = f"batch {job.job.global_batch} x {job.job.sequence_length} tokens"
        what = f"{job.model.name} on {job.cluster.name}, {batch}"
    target = f", for {v.subject.framework}" if v.subject.framework else ""
    lines = [f"{'ACCEPTED' if v.accepted else 'REJECTED'}: {what}{target}"]
    if job is not None and job.assumed:
        lines.append(f"assumed: {'; '.join(job.assumed)}")
    if v.subject.plan is not None:
        lines.append(plan_text(v.subject.plan))
    lines += ["", *_finding_lines(v)]
    if job is not None and v.prediction is not None and v.ticks is not None:
        step = v.ticks * _tick_s(job)
        lines += [
            "",
            f"speed: step time {step:.6f} s, {job.job.tokens_per_step / step:,.0f} tokens/s, model "
            f"FLOP utilisation {100 * v.prediction.mfu:.1f} %"
            + (" (if it fitted)" if v.too_large else ""),
        ]
    if job is not None:
        lines += ["", *_optimum_lines(v)]
    if v.mending is not None:
        lines += ["", *_mending_lines(v.mending)]
    parts = ["\n".join(lines) + "\n"]
    if v.stages:
        title = "memory by stage (GiB per device; % of capacity)"
        parts.append(render(title, *memory_rows(v.stages), style))
    if v.subject.plan is not None and v.optimum is not None and v.optimum.plan is not None:
        parts.append(
            contrast_table(contrast(v.subject.plan, v.optimum.plan), ("plan", "optimum"), style)
        )
    return "\n".join(parts)


def _finding_lines(v: Verdict) -> list[str]:
    def line(found: Finding) -> str:
        return f"  {found.code}: {found.message}" + (f"; {found.fix}" if found.fix else "")

    lines = ["valid: yes" if not v.invalid else "valid: NO"]
    if v.subject.framework is None and not v.invalid:
        lines = ["valid: makes a plan; no framework's rules were checked (give --for)"]
    lines += map(line, v.invalid)
    if v.subject.plan is None:
        return [*lines, "fits: not known, as it makes no plan"]
    return [*lines, "fits: NO" if v.too_large else "fits: yes", *map(line, v.too_large)]


def _optimum_lines(v: Verdict) -> list[str]:
    result = v.optimum
    if result is None or result.plan is None or v.optimum_ticks is None:
        status = "the rules leave no configuration" if result is None else result.status
        return [f"optimum of space {v.space}: {status}; see explain"]
    step = v.optimum_ticks * _tick_s(v.subject.job)
    lines = [f"optimum of space {v.space}: {step:.6f} s ({result.status})"]
    if v.excess is not None and v.subject.plan is not None:
        word = "slower" if v.excess > 0 else "faster: the space does not hold the plan"
        far = f"{100 * abs(v.excess):.2f} % {word}" if v.excess else "as fast"
        lines[0] += f"; this plan is {far}"
        pairs = differences(v.subject.plan, result.plan).items()
        changes = ", ".join(f"{key} {ours} -> {theirs}" for key, (ours, theirs) in pairs)
        lines.append(f"  what it does differently: {changes or 'nothing'}")
    else:
        lines.append(f"  {plan_text(result.plan)}")
    return lines


def _mending_lines(mending: Mending) -> list[str]:
    names = ("nothing changed", "single changes", "pairs of changes")
    tried = ", ".join(
        f"{count} {name} ({fit} fit)" if count > 1 else name
        for name, count, fit in zip(names, mending.tried, mending.fitting, strict=False)
    )
    mend = mending.mend
    if mend is None:
        return [
            f"smallest change: no single one and no pair of decisions will do; tried: {tried}; the "
            "optimum above changes more"
        ]
    changes = ", ".join(f"{c.key} {c.before} -> {c.after}" for c in mend.changes)
    if not mend.changes:
        changes = "no decision: write the options anew, as export does"
    return [
        f"smallest change: {changes} (step time {mend.step_time_s:.6f} s, the fastest of its kind)",
        f"  gives {mend.plan.configuration.name}; tried: {tried}; {mending.rejected} faster ones "
        "break a rule",
    ]
