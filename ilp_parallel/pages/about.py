"""Sections on what the plan is and how far it is proven: summary, certificate, cluster, stages."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ilp_parallel.jobs import link_text
from ilp_parallel.pages.html import Html, definitions, details, el, joined, table
from ilp_parallel.spaces import NOT_SEARCHED, RULES, get_space
from ilp_parallel.specs.layer_times import layer_times_text

if TYPE_CHECKING:
    from ilp_parallel.certificate import Certificate
    from ilp_parallel.pages.facts import Claim, Facts
    from ilp_parallel.plan import Plan

GIB = 1 << 30

FATES = {
    "memory": "does not fit: the layers find no room",
    "no_strategy": "no strategy is left by space and pins",
    "work": "its work alone takes at least as long",
    "lagrangian": "its Lagrangian bound is at least as long",
    "solved": "solved exactly",
    "open": "still open when the search stopped",
}
"""What became of a configuration, by the tag of its fate."""


def verdict(facts: Facts) -> tuple[str, str, str]:
    """Class, short verdict, and a sentence that says what it rests on."""
    claim = facts.claim
    if claim is None:
        return "plain", "Plan without certificate", "The file holds a plan only; nothing is proven."
    certificate = claim.certificate
    if claim.failed:
        names = ", ".join(claim.failed[:3])
        sentence = f"{len(claim.failed)} of {claim.checks} checks failed: {names}."
        return "bad", "Certificate rejected", sentence
    if claim.checks is None:
        sentence = f"The file says {certificate.status}; this page was made with --no-verify."
        return "plain", "Not checked", sentence
    checked = f"{claim.checks} checks of the certificate passed when this page was made."
    played = " when its schedule is played through" if _is_played(certificate) else ""
    if certificate.status == "optimal":
        return "good", "Proven optimal", f"No plan of the space is faster{played}. {checked}"
    if played:
        return "plain", f"Simulated step, gap {_gap(certificate)}", checked
    return "plain", f"Stopped early, gap {_gap(certificate)}", checked


def _is_played(certificate: Certificate) -> bool:
    """Whether value and bound are simulated times, not those of the formula."""
    return certificate.minimised == "simulated-step-time"


def _gap(certificate: Certificate) -> str:
    objective, bound = certificate.objective_ticks, certificate.bound_ticks
    if objective is None or bound is None:
        return "unknown"
    return "0 %" if objective == bound else f"{100 * (objective - bound) / objective:.3g} %"


def summary(facts: Facts) -> Html:
    """The numbers that everybody asks for first."""
    kind, word, sentence = verdict(facts)
    return joined(
        (
            el(
                "p",
                el("strong", word, attrs={"class": f"verdict {kind}"}),
                " ",
                sentence,
                attrs={"class": "lead"},
            ),
            el("div", *(_card(*card) for card in _figures(facts)), attrs={"class": "cards"}),
            definitions(_choices(facts.plan)),
        )
    )


def _figures(facts: Facts) -> list[tuple[str, str, str]]:
    """Name, value and note of each figure."""
    step = facts.ticks * facts.tick_s
    prediction, plan = facts.prediction, facts.plan
    fullest = max(facts.memories, key=lambda memory: memory.device_bytes)
    cards = [("step time", f"{step:.6f} s", "in whole ticks")]
    if facts.claim is not None:
        certificate = facts.claim.certificate
        bound = certificate.bound_ticks
        shown = "none" if bound is None else f"{bound * facts.tick_s:.6f} s"
        note = "of the simulated step, " if _is_played(certificate) else ""
        cards.append(("bound", shown, f"{note}gap {_gap(certificate)}"))
    cards += [
        (
            "throughput",
            f"{plan.job.tokens_per_step / step:,.0f} tokens/s",
            f"{plan.job.tokens_per_step / step / plan.configuration.devices:,.0f} per device",
        ),
        (
            "model FLOP utilisation",
            f"{100 * prediction.mfu:.1f} %",
            f"hardware {100 * prediction.hfu:.1f} %",
        ),
        (
            "fullest device",
            f"{fullest.device_bytes / GIB:.1f} GiB",
            f"of {fullest.capacity_bytes / GIB:.1f} GiB, stage {fullest.stage}"
            + ("" if prediction.fits else ": does NOT fit"),
        ),
    ]
    if facts.played is not None:
        simulated = facts.played.simulation.step_ticks * facts.tick_s
        change = 100 * (simulated / step - 1)
        cards.append(("simulated step", f"{simulated:.6f} s", f"{change:+.2f} % against step time"))
    return cards


def _card(name: str, value: str, note: str) -> Html:
    return el(
        "div",
        el("span", name, attrs={"class": "name"}),
        el("span", value, attrs={"class": "value"}),
        el("span", note, attrs={"class": "note"}),
        attrs={"class": "card"},
    )


def _choices(plan: Plan) -> list[tuple[str, str]]:
    """The job and the configuration in words."""
    g, job = plan.configuration, plan.job
    tensor = f"{g.tensor}" + (" with sequence parallelism" if g.sequence_parallel else "")
    schedule = g.schedule + (f", {g.chunks} chunks on each device" if g.chunks > 1 else "")
    mixes = Counter(strategy.name for strategy in plan.strategies)
    pairs = [
        ("model", f"{plan.model.name}: {plan.model.parameters / 1e9:.1f} B parameters, "
         f"{plan.model.layers} layers"),
        ("job", f"{job.global_batch} sequences of {job.sequence_length} tokens per step, "
         f"{job.precision}, {job.optimizer}, {job.attention} attention, stack {job.stack}"),
        ("parallel degrees", f"pipeline {g.pipeline}, tensor {tensor}, context {g.context}, "
         f"data {g.data}: {g.devices} devices"),
        ("microbatches", f"{g.microbatches} of {g.microbatch} sequences on each rank"),
        ("schedule", schedule),
        ("strategies (layers)", ", ".join(f"{name} ({n})" for name, n in mixes.most_common(6))),
    ]  # fmt: skip
    measured = layer_times_text(job.layer_times, job.sequence_length)
    return [*pairs, ("layer times", measured)] if measured else pairs


def proof(facts: Facts) -> Html:
    """What was searched, how every configuration was closed, and what was not looked at."""
    claim = facts.claim
    if claim is None:
        return el(
            "p",
            "This plan was given without a certificate. Run solve for the same job to learn how "
            "far it is from the optimum.",
        )
    certificate = claim.certificate
    counts = Counter(str(fate.__struct_config__.tag) for fate in certificate.fates)
    rows = [(FATES[tag], f"{counts[tag]:,}") for tag in FATES if counts[tag]]
    by_rule = Counter(refusal.code for refusal in certificate.refusals)
    rules = [(RULES.get(code, ""), code, f"{n:,}") for code, n in by_rule.most_common()]
    return joined(
        (
            definitions(_claims(claim)),
            table(("what became of it", "configurations"), rows, "configurations by fate"),
            details(
                f"{len(certificate.refusals):,} groups of configurations excluded by rules",
                table(
                    ("what would bring it back", "reason code", "groups"),
                    rules,
                    "groups of configurations excluded by rules",
                ),
            ),
            el(
                "p",
                "Check it again without any solver: ",
                el("code", "ilp-parallel verify RESULT"),
                ". Optimal is meant under the cost model; how well that predicts measured runs is "
                "a separate question.",
            ),
        )
    )


def _claims(claim: Claim) -> list[tuple[str, str]]:
    """What the certificate says, name by name."""
    certificate = claim.certificate
    objective = certificate.objective_ticks
    value = "none" if objective is None else f"{objective:,} ticks"
    bound = certificate.bound_ticks
    return [
        ("status in the file", certificate.status),
        ("objective", certificate.minimised.replace("-", " ")),
        ("value", value),
        ("bound", "none" if bound is None else f"{bound:,} ticks"),
        ("gap", _gap(certificate)),
        ("tick", f"{certificate.job.tick_ns:,} ns; times are rounded up to ticks"),
        ("proof", _proof_words(claim)),
        ("searched", _searched(certificate)),
        ("not searched", ", ".join(NOT_SEARCHED)),
        ("assumed", "; ".join(claim.assumed) or "nothing"),
        ("solved by", _solved_by(certificate)),
        ("hash of the input", certificate.input_hash),
    ]


def _proof_words(claim: Claim) -> str:
    if claim.failed:
        return "none: rejected"
    if claim.checks is None:
        return "not checked for this page"
    return f"exact: every bound derived again in integers ({claim.checks:,} checks)"


def _searched(certificate: Certificate) -> str:
    space = get_space(certificate.space)
    pins = [f"{k}={'/'.join(v)}" for k, v in certificate.pins.fixed.items()]
    pins += [f"{k} not {'/'.join(v)}" for k, v in certificate.pins.forbidden.items()]
    return (
        f"space {space.name} (version {certificate.space_version}): {space.summary}; schedules "
        f"{', '.join(certificate.schedules)}; {len(certificate.fates):,} configurations"
        + (f"; pinned: {', '.join(pins)}" if pins else "")
    )


def _solved_by(certificate: Certificate) -> str:
    names = {name for fate in certificate.fates for name in getattr(fate, "by", ())}
    return ", ".join(sorted(names)) or "bounds alone"


def cluster(facts: Facts) -> Html:
    """The machine."""
    spec = facts.plan.cluster
    device = spec.device
    peaks = ", ".join(f"{name} {peak / 1e12:,.0f}" for name, peak in device.peak_flops.items())
    reserve = ", ".join(f"{t.name} {t.value / GIB:.2f}" for t in facts.prediction.reserve_terms)
    usable = facts.memories[0].usable_bytes / GIB
    return definitions(
        [
            ("cluster", f"{spec.name}: {spec.nodes} nodes of {spec.devices_per_node} devices"),
            ("device", device.name),
            ("dense matrix peak", f"{peaks} TFLOP/s"),
            (
                "memory",
                f"{device.memory_bytes / GIB:.2f} GiB at "
                f"{device.memory_bandwidth_bytes_per_s / 1e9:,.0f} GB/s",
            ),
            ("of it usable", f"{usable:.2f} GiB; kept back (GiB when full): {reserve}"),
            ("links inside a node", f"{link_text(spec.intra)} per device and direction"),
            ("links between nodes", f"{link_text(spec.inter)} per device and direction"),
        ]
    )


def stage_map(facts: Facts) -> Html:
    """Which layers and devices belong to which stage."""
    plan, g = facts.plan, facts.plan.configuration
    ends = [0]
    for size in plan.sizes:
        ends.append(ends[-1] + size)
    per_stage = g.devices // g.pipeline
    node = plan.cluster.devices_per_node
    rows = []
    for s, stage in enumerate(facts.prediction.stages):
        own = range(s, len(plan.sizes), g.pipeline)
        layers = [layer for j in own for layer in range(ends[j], ends[j + 1])]
        mix = Counter(plan.strategies[layer].name for layer in layers)
        first, last = s * per_stage, (s + 1) * per_stage - 1
        rows.append(
            (
                f"{s}",
                _runs([(ends[j], ends[j + 1] - 1) for j in own], s == 0, s == g.pipeline - 1),
                ", ".join(f"{name} ({n})" for name, n in mix.most_common()),
                _span(first, last),
                _span(first // node, last // node),
                f"{1e3 * stage.forward_s:.1f}",
                f"{1e3 * stage.backward_s:.1f}",
                f"{1e3 * stage.tail_s:.1f}",
            )
        )
    header = (
        *("stage", "layers (from 0)", "strategy (layers)", "device ranks", "nodes"),
        *("forward ms", "backward ms", "once per step ms"),
    )
    return joined(
        (
            _map_bars(facts, ends),
            table(header, rows, "stages; times of one microbatch"),
            el(
                "p",
                f"Ranks count tensor first, then context and data, then pipeline; a stage has "
                f"{per_stage} devices.",
                attrs={"class": "quiet"},
            ),
        )
    )


def _span(first: int, last: int) -> str:
    return f"{first}" if first == last else f"{first} to {last}"


def _runs(runs: list[tuple[int, int]], first: bool, last: bool) -> str:
    texts = [f"{low}" if low == high else f"{low}-{high}" for low, high in runs]
    if len(texts) > 6:
        texts = [*texts[:3], "...", *texts[-2:]]
    words = ["embedding"] * first + [", ".join(texts)] + ["head"] * last
    return "; ".join(words)


MOST_CELLS = 640
"""Most virtual stages drawn in the map (chosen)."""


def _map_bars(facts: Facts, ends: list[int]) -> Html:
    """The model from the first to the last layer, each run in the row of its stage."""
    plan, p = facts.plan, facts.plan.configuration.pipeline
    if len(plan.sizes) > MOST_CELLS:
        return Html("")
    whole = plan.model.layers
    rows = []
    for s in range(p):
        cells = []
        for j in range(s, len(plan.sizes), p):
            left, width = 100 * ends[j] / whole, 100 * plan.sizes[j] / whole
            style = f"left:{left:.3f}%;width:{width:.3f}%"
            low, high = ends[j], ends[j + 1] - 1
            title = f"stage {s}, chunk {j // p}: layers {low} to {high}"
            cells.append(el("span", attrs={"style": style, "title": title}))
        rows.append(
            el(
                "div",
                el("b", f"{s}"),
                el("div", *cells, attrs={"class": "lane"}),
                attrs={"class": "row"},
            )
        )
    label = f"Map of {whole} layers: which stage holds which, the first layer on the left"
    figure = el("div", *rows, attrs={"class": "map", "role": "img", "aria-label": label})
    return el(
        "figure",
        figure,
        el("figcaption", f"Layers 0 to {whole - 1} from left to right; a row is a stage."),
        attrs={"id": "chart-map", "class": "wide"},
    )
