"""The answer to an infeasible job in words: what conflicts, what is short, and what would do."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from ilp_parallel.diagnosis.feasibility import (
    Question,
    fitting_plan,
    refusals,
    shortage,
    smallest_cluster,
)
from ilp_parallel.diagnosis.relaxations import relaxations
from ilp_parallel.diagnosis.requirements import Relaxer, corrections, find_conflict
from ilp_parallel.problems.pipeline import Schedule
from ilp_parallel.spaces import RULES, get_space

if TYPE_CHECKING:
    from collections.abc import Callable

    from ilp_parallel.diagnosis.feasibility import NodeSearch, Refutation, Shortage
    from ilp_parallel.diagnosis.relaxations import Relaxation
    from ilp_parallel.diagnosis.requirements import Conflict, Requirement
    from ilp_parallel.jobs import CompleteJob
    from ilp_parallel.plan import Plan
    from ilp_parallel.planner import SearchOptions

SCHEMA = "ilp_parallel.explain/1"
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a job is infeasible; ``plan`` fits where it is not, and the rest is empty then."""

    question: Question
    plan: Plan | None
    conflict: Conflict | None
    codes: tuple[str, ...]  # rules behind a conflict that memory has no part in
    lack: Shortage | None
    corrections: tuple[tuple[Requirement, ...], ...]  # least sets whose surrender makes it feasible
    relaxations: tuple[Relaxation, ...]


def question_of(job: CompleteJob, options: SearchOptions) -> Question:
    """The question of feasibility behind a search."""
    space = get_space(options.space)
    return Question(job.model, job.cluster, job.job, space, options.pins, options.schedules)


def explain_job(question: Question, say: Callable[[str], None]) -> Explanation:
    """Everything there is to say about an infeasible job; every statement is proven.

    Parameters
    ----------
    question
        The job and its limits.
    say
        Takes lines of progress.
    """
    plan = fitting_plan(question)
    if plan is not None:
        return Explanation(question, plan, None, (), None, (), ())
    relaxer = Relaxer(question, get_args(Schedule))
    say(f"infeasible; {len(relaxer.requirements)} requirements, looking for a conflict")
    conflict = find_conflict(relaxer)
    say(f"{len(conflict.members)} of them conflict, looking for what would do")
    given_up = corrections(relaxer)
    single = [members[0] for members in given_up if len(members) == 1]
    found = []
    for relaxation in relaxations(relaxer, single):
        say(f"{relaxation.requirement.text}: {relaxation.change}")
        found.append(relaxation)
    kinds = {member.kind for member in conflict.members}
    codes = () if "memory" in kinds else _codes(relaxer, conflict)
    return Explanation(
        question=question,
        plan=None,
        conflict=conflict,
        codes=codes,
        lack=shortage(question),
        corrections=tuple(given_up),
        relaxations=tuple(found),
    )


def _codes(relaxer: Relaxer, conflict: Conflict) -> tuple[str, ...]:
    """Rules that exclude what the conflicting requirements leave, the most frequent first.

    A fixed degree may divide no number of devices looked at, so multiples of it are looked at too.
    """
    counts: Counter[str] = Counter()
    reduced = relaxer.reduced(conflict.members)
    degrees = [
        value for key in ("pp", "tp", "cp", "dp") for value in reduced.pins.fixed.get(key, ())
    ]
    multiples = [reduced.on_nodes(int(value)) for value in degrees]
    for question in (*relaxer.questions(conflict.members), *multiples):
        counts.update(item.code for item in refusals(question) if item.code in RULES)
    return tuple(code for code, _ in counts.most_common(3))


def explanation_document(found: Explanation) -> dict[str, object]:
    """The JSON of ``explain`` for a job."""
    conflict = found.conflict
    return {
        "schema": SCHEMA,
        "status": "infeasible" if found.plan is None else "feasible",
        "proof": "exact",
        "model": found.question.model.name,
        "cluster": found.question.cluster.name,
        "plan": None if found.plan is None else found.plan.configuration.name,
        "conflict": None
        if conflict is None
        else {
            "requirements": [_requirement(member) for member in conflict.members],
            "irreducible": not conflict.undecided,
            "smallest": conflict.smallest,
            "undecided": [_requirement(member) for member in conflict.undecided],
            "codes": list(found.codes),
        },
        "shortage": None if found.lack is None else _shortage_document(found.lack),
        "corrections": [[_requirement(r) for r in members] for members in found.corrections],
        "relaxations": [
            {
                "requirement": _requirement(relaxation.requirement),
                "change": relaxation.change,
                "refuted": relaxation.refuted,
                "plan": None if relaxation.plan is None else relaxation.plan.configuration.name,
            }
            for relaxation in found.relaxations
        ],
    }


def explanation_text(found: Explanation) -> str:
    """The same in words."""
    job = (
        f"{found.question.model.name} on {found.question.cluster.name}, "
        f"batch {found.question.job.global_batch} x {found.question.job.sequence_length} tokens"
    )
    if found.plan is not None:
        name = found.plan.configuration.name
        return f"FEASIBLE: {job}: for instance {name} fits; solve finds the fastest\n"
    assert found.conflict is not None
    lines = [f"INFEASIBLE (proven): {job}: no plan fits", "", *_conflict_lines(found.conflict)]
    lines += [f"  rule {code}: {RULES[code]}" for code in found.codes]
    if found.lack is not None:
        lines += ["", _shortage_text(found.lack)]
    lines += ["", *_relaxation_lines(found)]
    return "\n".join(lines) + "\n"


def _conflict_lines(conflict: Conflict) -> list[str]:
    count = len(conflict.members)
    kind = "no smaller set conflicts" if conflict.smallest else "irreducible"
    if conflict.undecided:
        kind = "not shown irreducible: time ran out"
    head = f"these {count} requirements alone cannot hold together, any fewer of them can"
    if count == 1:
        head = "this requirement alone cannot be met"
    lines = [f"{head} ({kind}):", *(f"  {member.text}" for member in conflict.members)]
    if conflict.undecided:
        names = ", ".join(member.text for member in conflict.undecided)
        lines.append(f"  not decided in time, so kept: {names}")
    return lines


def _relaxation_lines(found: Explanation) -> list[str]:
    if found.relaxations:
        lines = ["any one of these would do, all else as asked:"]
        for r in found.relaxations:
            if r.plan is None:
                lines.append(f"  {r.requirement.text}: {r.change} does; refuted: {r.refuted}")
            else:
                name = r.plan.configuration.name
                lines.append(f"  {r.change} (fits: {name}); refuted: {r.refuted}")
        return lines
    if not found.corrections:
        return ["giving up any three requirements does not suffice"]
    lines = ["no single requirement suffices; giving up all of one of these lines does:"]
    return lines + [f"  {' and '.join(r.text for r in members)}" for members in found.corrections]


def _requirement(requirement: Requirement) -> dict[str, str]:
    return {"kind": requirement.kind, "text": requirement.text}


def explain_infeasible(job: CompleteJob, options: SearchOptions) -> tuple[dict[str, object], str]:
    """In short, as data and as text: what is short, and the fewest nodes that would do."""
    question = question_of(job, options)
    lack, nodes = shortage(question), smallest_cluster(question)
    document: dict[str, object] = {
        "shortage": None if lack is None else _shortage_document(lack),
        "smallest_nodes": nodes.smallest,
        "refuted_nodes": list(nodes.refuted),
        "stopped": nodes.stopped,
    }
    lines = [] if lack is None else [_shortage_text(lack)]
    lines.append(nodes_text(nodes, job.cluster.devices_per_node))
    return document, "\n".join(lines)


def _shortage_document(lack: Shortage) -> dict[str, object]:
    return {
        "configuration": lack.configuration.name,
        "strategy": lack.strategy,
        "stage": lack.stage,
        "needed_bytes": lack.needed_bytes,
        "usable_bytes": lack.usable_bytes,
        "missing_bytes": lack.missing_bytes,
        "largest_part": lack.parts[0].name,
        "parts_bytes": {part.name: part.value for part in lack.parts},
    }


def _shortage_text(lack: Shortage) -> str:
    parts = ", ".join(f"{part.name} {part.value / _GIB:.1f}" for part in lack.parts)
    return (
        f"closest to fitting: {lack.configuration.name} with {lack.strategy}: stage {lack.stage} "
        f"needs {lack.needed_bytes / _GIB:.1f} GiB of {lack.usable_bytes / _GIB:.1f} usable, "
        f"{lack.missing_bytes / _GIB:.1f} GiB short; most of it {lack.parts[0].name}\n"
        f"parts of that stage (GiB): {parts}"
    )


def nodes_text(nodes: NodeSearch, devices_per_node: int) -> str:
    """The fewest nodes, or that there is no answer."""
    if nodes.smallest is None:
        return f"no number of nodes up to {len(nodes.refuted)} would do ({nodes.stopped})"
    refuted = f"1 to {nodes.smallest - 1} refuted one by one" if nodes.refuted else "none smaller"
    return (
        f"smallest number of whole nodes that would do: {nodes.smallest} "
        f"({nodes.smallest * devices_per_node} devices; {refuted})"
    )


def refutation_text(refutation: Refutation) -> str:
    """Why a number of nodes does not do."""
    if refutation.states_bytes is not None and refutation.usable_bytes is not None:
        return (
            f"states of the blocks alone take {refutation.states_bytes / _GIB:,.1f} GiB, all "
            f"devices together may allocate {refutation.usable_bytes / _GIB:,.1f}"
        )
    if refutation.bound_ticks is not None:
        by = "the bound of its search" if refutation.searched else "work alone"
        return f"too slow by {by}: a step takes at least {refutation.bound_ticks:,} ticks"
    if refutation.searched:
        return "proven infeasible by its search"
    if not refutation.configurations:
        return "the rules leave no configuration"
    name, most = max(refutation.configurations, key=lambda entry: entry[1])
    count = len(refutation.configurations)
    return f"{count} lightest configurations refuted; the roomiest, {name}, holds {most} layers"
