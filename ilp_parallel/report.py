"""Results as text for a terminal or as markdown. Nothing is computed here that JSON lacks."""

from __future__ import annotations

import io
from collections import Counter
from typing import TYPE_CHECKING, Literal

from rich import box
from rich.console import Console
from rich.table import Table

from ilp_parallel.jobs import link_text
from ilp_parallel.predicting import FLOP_CONVENTION, step_shares, throughput
from ilp_parallel.solving import SUPERSET
from ilp_parallel.spaces import NOT_SEARCHED
from ilp_parallel.specs.layer_times import layer_times_text
from ilp_parallel.specs.tasks import task_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ilp_parallel.costs.breakdown import Prediction, StagePrediction, Term
    from ilp_parallel.plan import Plan
    from ilp_parallel.solving import Answer

Style = Literal["table", "md"]
_GIB = 1 << 30


def render(title: str, header: Sequence[str], rows: Sequence[Sequence[str]], style: Style) -> str:
    """A table; the first column is left-aligned, the others right-aligned."""
    table = Table(
        title=None if style == "md" else title,
        title_justify="left",
        title_style="bold",
        box=box.MARKDOWN if style == "md" else box.SIMPLE_HEAD,
        pad_edge=style == "md",
    )
    for column, name in enumerate(header):
        table.add_column(name, justify="left" if column == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    text = io.StringIO()
    Console(file=text, width=200 if style == "md" else 118, markup=False).print(table)
    lines = (line.rstrip() for line in text.getvalue().splitlines())
    body = "\n".join(line for line in lines if line)
    return f"**{title}**\n\n{body}\n" if style == "md" else f"{body}\n"


def answer_text(answer: Answer, style: Style, extra: str = "") -> str:
    """Everything ``solve`` prints: header, verdict, plan, stages, how it was proven."""
    parts = [header_text(answer), verdict_text(answer)]
    if answer.result.plan is not None and answer.prediction is not None:
        parts.append(plan_text(answer.result.plan))
        parts.append(stages_table(answer.result.plan, answer.prediction, style))
    parts.append(proof_text(answer))
    if extra:
        parts.append(extra)
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def header_text(answer: Answer) -> str:
    """What was asked, and what was assumed or left out."""
    job, options = answer.job, answer.options
    names = "/".join(options.schedules)
    lines = [
        f"space {options.space} · objective {answer.minimised_text} · schedule {names} · "
        f"precision {job.job.precision} · attention {job.job.attention} · "
        f"links in node {link_text(job.cluster.intra)}, "
        f"between nodes {link_text(job.cluster.inter)}",
        f"not searched: {', '.join(NOT_SEARCHED)}",
        f"{job.model.name}: {job.model.parameters / 1e9:.1f} B parameters, "
        f"{job.model.layers} layers · {job.cluster.name}: {job.cluster.devices} devices · "
        f"batch {job.job.global_batch} x {job.job.sequence_length} tokens · "
        f"{job.job.optimizer}, {job.job.stack}",
    ]
    measured = layer_times_text(job.job.layer_times, job.job.sequence_length)
    lines += [text for text in (task_text(job.job), measured) if text]
    if job.assumed:
        lines.append(f"assumed: {'; '.join(job.assumed)}")
    return "\n".join(lines)


def verdict_text(answer: Answer) -> str:
    """Status, value, bound, gap; and the superset's optimum."""
    result, certificate = answer.result, answer.result.certificate
    step, bound = (
        answer.seconds(certificate.objective_ticks),
        answer.seconds(certificate.bound_ticks),
    )
    lines = []
    if step is None:
        words = {"infeasible": "INFEASIBLE: no plan fits", "unknown": "UNKNOWN: stopped early"}
        lines.append(words[result.status])
    else:
        assert bound is not None and answer.gap is not None
        name = "OPTIMAL" if result.status == "optimal" else "STOPPED EARLY"
        if certificate.minimised != "step-time" and name != "OPTIMAL":
            name = "FEASIBLE"
        lines.append(
            f"{name}: {answer.minimised_text} {step:.6f} s, bound {bound:.6f} s, "
            f"gap {100 * answer.gap:.3g} % (proof: {answer.proof}, "
            f"verified: {'yes' if answer.verified else 'NO'})"
        )
        lines.append(_rates_text(answer, step))
    if answer.superset is not None:
        lines.append(_superset_text(answer, step))
    lines += [f"check failed: {check.name}" for check in answer.failed_checks]
    return "\n".join(lines)


def _rates_text(answer: Answer, step: float) -> str:
    tokens = answer.job.job.tokens_per_step / step
    prediction = answer.prediction
    parts = [
        f"{tokens:,.0f} tokens/s",
        f"{tokens / answer.job.cluster.devices:,.0f} tokens/s/device",
    ]
    if prediction is not None:
        parts.append(f"model FLOP utilisation {100 * prediction.mfu:.1f} %")
    simulated = answer.seconds(answer.simulated_ticks)
    if simulated is not None:
        parts.append(f"simulated {simulated:.6f} s")
    return " · ".join(parts)


def _superset_text(answer: Answer, step: float | None) -> str:
    assert answer.superset is not None
    certificate = answer.superset.certificate
    best = answer.seconds(certificate.objective_ticks)
    if best is None:
        return f"optimum of the superset {SUPERSET}: {answer.superset.status}"
    price = "" if step is None else f" ({100 * (step - best) / step:.3g} % below this space)"
    return f"optimum of the superset {SUPERSET}: {best:.6f} s, {answer.superset.status}{price}"


def plan_text(plan: Plan) -> str:
    """The configuration in one line."""
    g = plan.configuration
    parts = [
        f"pipeline {g.pipeline}",
        f"tensor {g.tensor}" + (" + sequence parallel" if g.sequence_parallel else ""),
        f"data {g.data}",
        f"context {g.context}, expert {g.expert} (expert tensor {g.expert_tensor})",
        f"microbatch {g.microbatch} x {g.microbatches}",
        g.schedule + (f", {g.chunks} chunks per device" if g.chunks > 1 else ""),
    ]
    return "plan: " + " · ".join(parts)


def stages_table(plan: Plan, prediction: Prediction, style: Style) -> str:
    """Per stage: layers, strategies, times, memory by part; equal neighbours share a row."""
    header = (
        "stage",
        "layers",
        "strategies",
        "fwd+bwd ms",
        "tail ms",
        "states",
        "activ.",
        "trans.",
        "other",
        "GiB",
        "% usable",
    )
    mixes = [_mix(plan, s) for s in range(plan.configuration.pipeline)]
    rows: list[tuple[str, ...]] = []
    first = 0
    for s, stage in enumerate(prediction.stages):
        following = prediction.stages[s + 1] if s + 1 < len(prediction.stages) else None
        row = _stage_row(stage, mixes[s])
        if following is not None and _stage_row(following, mixes[s + 1]) == row:
            continue
        label = str(s) if s == first else f"{first}-{s}"
        rows.append((label, *row))
        first = s + 1
    return render("stages (times per microbatch; memory in GiB)", header, rows, style)


def _mix(plan: Plan, group: int) -> str:
    """How many layers of a device group use which strategy."""
    p, ends = plan.configuration.pipeline, [0]
    for size in plan.sizes:
        ends.append(ends[-1] + size)
    counts = Counter(
        plan.strategies[layer].name
        for j in range(group, len(plan.sizes), p)
        for layer in range(ends[j], ends[j + 1])
    )
    if len(counts) == 1:
        return next(iter(counts))
    return " ".join(f"{n}x{name}" for name, n in sorted(counts.items()))


def _stage_row(stage: StagePrediction, mix: str) -> tuple[str, ...]:
    memory = {term.name: term.value for term in stage.memory_terms}
    states = sum(
        memory[name]
        for name in ("weights", "gradients", "optimizer", "embedding_states", "head_states")
    )
    activations = memory["activations"] + memory["embedding_activations"]
    transient = memory["transient"]
    other = stage.memory_bytes - states - activations - transient
    gib = [f"{size / _GIB:.1f}" for size in (states, activations, transient, other)]
    return (
        str(stage.layers),
        mix,
        f"{1e3 * (stage.forward_s + stage.backward_s):.1f}",
        f"{1e3 * stage.tail_s:.1f}",
        *gib,
        f"{stage.memory_bytes / _GIB:.1f}",
        f"{100 * stage.memory_bytes / stage.usable_bytes:.0f}",
    )


def proof_text(answer: Answer) -> str:
    """How the configurations were closed, and how long it took."""
    words = {
        "rule": "excluded by rules (groups)",
        "memory": "do not fit",
        "no_strategy": "without a strategy",
        "work": "closed by work alone",
        "lagrangian": "closed by Lagrangian bounds",
        "solved": "solved exactly",
        "open": "still open",
    }
    counts = answer.result.fates
    fates = ", ".join(f"{counts[kind]} {word}" for kind, word in words.items() if kind in counts)
    lines = [f"configurations: {fates}"]
    dp = answer.seconds(answer.result.dp_ticks)
    if dp is not None:
        solver = f"{answer.result.solver} {answer.result.solver_version or ''}".rstrip()
        beside = f"equal to {answer.options.formulation} on {solver}"
        if not answer.result.confirmed:
            beside = f"no time for {answer.options.formulation} on {solver} to confirm it"
        lines.append(f"dynamic program {dp:.6f} s, {beside}")
    floor = answer.seconds(answer.result.rounding_floor_ticks)
    if floor is not None:
        lines.append(f"no plan beats {floor:.6f} s even before times are rounded up to ticks")
    lines.append(f"search and verification {answer.search_s:.2f} s, total {answer.total_s:.2f} s")
    return "\n".join(lines)


def prediction_text(plan: Plan, prediction: Prediction, style: Style) -> str:
    """Breakdown of a plan: the step, where its time goes, each stage's terms, memory by part."""
    rates = throughput(plan, prediction)
    per_device = f"{prediction.tokens_per_s_per_device:,.0f} tokens/s/device"
    measured = layer_times_text(plan.job.layer_times, plan.job.sequence_length)
    lines = [
        plan_text(plan),
        *([measured] if measured else []),
        f"step time {prediction.step_time_s:.6f} s (not rounded up to ticks) · "
        f"{prediction.tokens_per_s:,.0f} tokens/s · {per_device}",
        f"per device: model {rates.model_flops / 1e12:.1f} TFLOP/s, MFU "
        f"{100 * prediction.mfu:.1f} % · hardware {rates.hardware_flops / 1e12:.1f} TFLOP/s, HFU "
        f"{100 * prediction.hfu:.1f} % · dense peak {rates.peak_flops / 1e12:.0f} TFLOP/s",
        *FLOP_CONVENTION,
        f"fits: {'yes' if prediction.fits else 'NO'} · fullest device: "
        f"{prediction.allocated_bytes / _GIB:.1f} GiB allocated at the peak, "
        f"{prediction.device_bytes / _GIB:.1f} GiB seen on the device",
    ]
    tables = [
        _shares_table(plan, prediction, style),
        _terms_table("per microbatch (ms)", prediction, "microbatch_terms", 1e3, style),
        _terms_table("once per step (ms)", prediction, "step_terms", 1e3, style),
        stages_table(plan, prediction, style),
        _terms_table("peak memory (GiB)", prediction, "memory_terms", 1 / _GIB, style),
    ]
    reserve = ", ".join(f"{t.name} {t.value / _GIB:.2f}" for t in prediction.reserve_terms)
    usable = prediction.stages[0].usable_bytes / _GIB
    return (
        "\n".join(lines)
        + "\n\n"
        + "\n".join(tables)
        + f"usable {usable:.2f} GiB; on each device beside it: {reserve}\n"
    )


def _shares_table(plan: Plan, prediction: Prediction, style: Style) -> str:
    """Parts of the step, the largest first; together they are the step."""
    shares = step_shares(plan.configuration, prediction)
    ranked = sorted((s for s in shares if s.seconds), key=lambda s: -s.seconds)
    rows: list[tuple[str, ...]] = []
    rows += [(s.term, s.part, f"{1e3 * s.seconds:.2f}", f"{100 * s.share:.1f} %") for s in ranked]
    rows.append(("step", "", f"{1e3 * prediction.step_time_s:.2f}", "100.0 %"))
    return render("where the time goes", ("term", "part", "ms", "share"), rows, style)


def _terms_table(title: str, prediction: Prediction, kind: str, scale: float, style: Style) -> str:
    """Terms x (first, heaviest, last stage), with the share of the heaviest."""

    def terms(stage: StagePrediction) -> tuple[Term, ...]:
        found: tuple[Term, ...] = getattr(stage, kind)
        return found

    totals = [sum(term.value for term in terms(stage)) for stage in prediction.stages]
    heaviest = totals.index(max(totals))
    picked = sorted({0, heaviest, len(totals) - 1})
    header = ("term", *(f"stage {s}" for s in picked), f"share of stage {heaviest}")
    rows = []
    for i, term in enumerate(terms(prediction.stages[0])):
        values = [terms(prediction.stages[s])[i].value for s in picked]
        if any(values):
            share = 100 * terms(prediction.stages[heaviest])[i].value / max(totals)
            shown = [f"{value * scale:.2f}" for value in values]
            rows.append((term.name, *shown, f"{share:.1f} %"))
    sums = [f"{totals[s] * scale:.2f}" for s in picked]
    rows.append(("total", *sums, "100.0 %"))
    return render(title, header, rows, style)
