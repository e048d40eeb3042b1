"""Everything a report says, gathered before a word of it is written."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from ilp_parallel.claims import is_plan_of
from ilp_parallel.costs.model import CostModel
from ilp_parallel.diagnosis.memory_table import StageMemory, stage_memories
from ilp_parallel.errors import InputError
from ilp_parallel.export.registry import EXPORTERS, export_plan
from ilp_parallel.frontiers.sensitivity import read_sensitivity
from ilp_parallel.instances import InstanceBuilder
from ilp_parallel.ladder import SCHEMA as LADDER_SCHEMA
from ilp_parallel.ladder import Ladder, quick_ladder
from ilp_parallel.pages.rivals import Rivals, find_rivals
from ilp_parallel.plan_files import certificate_of_document, plan_of_document
from ilp_parallel.playing import Played, play
from ilp_parallel.spaces import SPACES, Pins, get_space
from ilp_parallel.specs.documents import MAX_RESULT_BYTES, read_document, shown
from ilp_parallel.verify import verify as check_certificate

if TYPE_CHECKING:
    from collections.abc import Callable

    from ilp_parallel.certificate import Certificate
    from ilp_parallel.costs.breakdown import Prediction
    from ilp_parallel.export.base import Export
    from ilp_parallel.frontiers.sensitivity import Recorded
    from ilp_parallel.ladder import Rung
    from ilp_parallel.plan import Plan
    from ilp_parallel.specs.cluster import ClusterSpec, LinkSpec
    from ilp_parallel.specs.documents import Document

MOST_OPERATIONS = 2_000_000
"""Longest schedule that is played for a page (operations of all device groups, chosen): about two
seconds."""

MOST_CELLS = 12_000
"""Largest linear relaxation solved for a page (layer x strategy x stage triples, chosen): a few
tenths of a second together."""

CHANGE = 0.2
"""By which share rates are changed for the sensitivity (chosen)."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What the file claims of its plan, and whether it holds."""

    certificate: Certificate
    checks: int | None  # None: not checked
    failed: tuple[str, ...]
    assumed: tuple[str, ...]  # of the job, as solve noted it; not checked


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """Step time (s) of the same plan with one rate of the cluster lowered or raised."""

    name: str
    lowered_s: float
    raised_s: float


@dataclass(frozen=True, slots=True)
class Snippet:
    """A plan in the words of a framework, or why it has none."""

    framework: str
    title: str
    export: Export | None
    refusal: str | None


@dataclass(frozen=True, slots=True)
class Facts:
    """What a page is about. ``claim`` and what rests on it are None for a plan alone."""

    plan: Plan
    claim: Claim | None
    prediction: Prediction
    ticks: int  # step time in ticks of the job, rounded as every search rounds
    played: Played | None  # None: too long
    memories: tuple[StageMemory, ...]
    sensitivities: tuple[Sensitivity, ...]
    solved_again: Recorded | None  # sensitivity of the optimum, where the file has one
    ladder: Ladder
    ladder_of: Literal["page", "file"]
    rivals: Rivals | None
    snippets: tuple[Snippet, ...]

    @property
    def accepted(self) -> bool:
        """Whether no check failed."""
        return self.claim is None or not self.claim.failed

    @property
    def tick_s(self) -> float:
        """Seconds of a tick."""
        return self.plan.job.tick_ns * 1e-9


def gather(path: str, bounds: str | None = None, *, verify: bool = True) -> Facts:
    """Read a plan or result and work out what there is to say about it.

    Parameters
    ----------
    path
        File of ``solve -o``, or a plan alone; ``-`` is standard input.
    bounds
        File of ``bounds -o`` for the same job, whose ladder is shown instead of a short one.
    verify
        Whether the certificate is checked again.

    Raises
    ------
    InputError
        If a file cannot be read, holds no plan (``NO_PLAN``), or its parts are not about one plan.
    """
    document = read_document(path, MAX_RESULT_BYTES)
    if document.get("plan", document) is None:
        status = shown(document.get("status"))
        raise InputError("NO_PLAN", f"{shown(path)} has no plan ({status})", "see explain")
    plan = plan_of_document(document, path)
    claim = None
    if document.get("certificate") is not None:
        claim = _claim(certificate_of_document(document, path), document, plan, verify)
    costs = CostModel(plan.model, plan.cluster, plan.job)
    g = plan.configuration
    operations = 2 * g.microbatches * g.chunks * g.pipeline
    played = play(costs, plan) if operations <= MOST_OPERATIONS else None
    ticks = _ticks(plan)
    return Facts(
        plan=plan,
        claim=claim,
        prediction=costs.terms(plan),
        ticks=ticks,
        played=played,
        memories=stage_memories(plan),
        sensitivities=sensitivities(plan),
        solved_again=read_sensitivity(document),
        ladder=_ladder(costs, plan, claim, ticks, played, bounds),
        ladder_of="page" if bounds is None else "file",
        rivals=_rivals(costs, plan, claim),
        snippets=tuple(_snippet(plan, name) for name in EXPORTERS),
    )


def _ticks(plan: Plan) -> int:
    from ilp_parallel.diagnosis.alternatives import plan_ticks

    return plan_ticks(plan)


def _claim(certificate: Certificate, document: Document, plan: Plan, verify: bool) -> Claim:
    """The certificate, after a look at whether it is about this plan."""
    _require_about(certificate, plan)
    failed: tuple[str, ...] = ()
    checks = None
    if verify:
        found = check_certificate(certificate)
        checks, failed = len(found), tuple(c.name for c in found if not c.passed)
    instance = document.get("instance")
    assumed = instance.get("assumed") if isinstance(instance, dict) else None
    texts = assumed if isinstance(assumed, list) else []
    return Claim(certificate, checks, failed, tuple(t for t in texts if isinstance(t, str)))


def _rivals(costs: CostModel, plan: Plan, claim: Claim | None) -> Rivals | None:
    """Runner-ups by formula; bounds on simulated times do not compare with these."""
    if claim is None or claim.certificate.minimised != "step-time":
        return None
    return find_rivals(costs, plan, claim.certificate)


def _require_about(certificate: Certificate, plan: Plan) -> None:
    """Refuse a certificate of another plan."""
    if not is_plan_of(certificate, plan):
        raise InputError(
            "CERTIFICATE_OF_ANOTHER_PLAN",
            "plan and certificate of the file differ",
            "write both again with solve -o",
        )


def sensitivities(plan: Plan) -> tuple[Sensitivity, ...]:
    """Step time of the same plan on clusters that differ in one rate."""
    return tuple(
        Sensitivity(
            name,
            *(_step_s(plan, changed(plan.cluster, 1.0 + sign * CHANGE)) for sign in (-1, 1)),
        )
        for name, changed in _CHANGES.items()
    )


def _step_s(plan: Plan, cluster: ClusterSpec) -> float:
    other = replace(plan, cluster=cluster)
    return CostModel(plan.model, cluster, plan.job).terms(other).step_time_s


def _matrix(cluster: ClusterSpec, factor: float) -> ClusterSpec:
    peaks = {name: factor * peak for name, peak in cluster.device.peak_flops.items()}
    return replace(cluster, device=replace(cluster.device, peak_flops=peaks))


def _memory(cluster: ClusterSpec, factor: float) -> ClusterSpec:
    bandwidth = factor * cluster.device.memory_bandwidth_bytes_per_s
    device = replace(cluster.device, memory_bandwidth_bytes_per_s=bandwidth)
    return replace(cluster, device=device)


def _faster(link: LinkSpec, factor: float) -> LinkSpec:
    return replace(link, bandwidth_bytes_per_s=factor * link.bandwidth_bytes_per_s)


def _intra(cluster: ClusterSpec, factor: float) -> ClusterSpec:
    return replace(cluster, intra=_faster(cluster.intra, factor))


def _inter(cluster: ClusterSpec, factor: float) -> ClusterSpec:
    return replace(cluster, inter=_faster(cluster.inter, factor))


_CHANGES: dict[str, Callable[[ClusterSpec, float], ClusterSpec]] = {
    "matrix rate (FLOP/s)": _matrix,
    "memory bandwidth": _memory,
    "link inside a node": _intra,
    "link between nodes": _inter,
}


def _ladder(
    costs: CostModel,
    plan: Plan,
    claim: Claim | None,
    ticks: int,
    played: Played | None,
    path: str | None,
) -> Ladder:
    """A ladder that is quick to climb, or the one of a file."""
    if path is not None:
        if claim is None:
            fix = "give the result of solve"
            raise InputError("BOUNDS_WITHOUT_CERTIFICATE", "--bounds with a plan alone", fix)
        found = _read_ladder(path)
        if found.input_hash != claim.certificate.input_hash:
            fix = "run bounds with the options of solve"
            raise InputError("LADDER_OF_ANOTHER_JOB", f"{shown(path)} is of another search", fix)
        return found
    space = plan.space if plan.space in SPACES else "mixed"
    pins = Pins() if claim is None else claim.certificate.pins
    instance = InstanceBuilder(costs, get_space(space), pins).build(plan.configuration)
    simulated = None if played is None else played.simulation.step_ticks
    return quick_ladder(instance, plan, ticks, simulated, MOST_CELLS)


def _read_ladder(path: str) -> Ladder:
    """The ladder of a file; names and notes are kept as text, numbers checked."""
    data = read_document(path, MAX_RESULT_BYTES)
    lists = [data.get(key) for key in ("rungs", "beside")]
    if data.get("schema") != LADDER_SCHEMA or not all(isinstance(v, list) for v in lists):
        raise _no_ladder(path)
    rungs, beside = ([_read_rung(path, rung) for rung in v] for v in lists if isinstance(v, list))
    instance = data.get("instance")
    digest = instance.get("hash") if isinstance(instance, dict) else None
    return Ladder(rungs, beside, digest if isinstance(digest, str) else None)


def _read_rung(path: str, rung: object) -> Rung:
    if not isinstance(rung, dict):
        raise _no_ladder(path)
    texts = [rung.get(key) for key in ("name", "kind")]
    numbers = [rung.get(key) for key in ("value", "seconds", "step_time_s", "below_optimum")]
    note = rung.get("note")
    if (
        not all(isinstance(text, str) for text in texts)
        or not all(n is None or (isinstance(n, (int, float)) and abs(n) < 1e30) for n in numbers)
        or not isinstance(numbers[1], (int, float))
        or not (note is None or isinstance(note, str))
    ):
        raise _no_ladder(path)
    keys = ("name", "kind", "value", "seconds", "step_time_s", "below_optimum", "note")
    floats = [None if n is None else float(n) for n in numbers]
    return dict(zip(keys, (*texts, *floats, note), strict=True))


def _no_ladder(path: str) -> InputError:
    return InputError("NOT_A_LADDER", f"{shown(path)} is no ladder", "write one with bounds -o")


def _snippet(plan: Plan, name: str) -> Snippet:
    title = EXPORTERS[name].title
    try:
        return Snippet(name, title, export_plan(plan, name), None)
    except InputError as error:
        return Snippet(name, title, None, str(error))
