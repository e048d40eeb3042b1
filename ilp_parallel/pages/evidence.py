"""Sections on how the plan runs and why others do not run faster."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, cast

from ilp_parallel.certificate import WorkBound
from ilp_parallel.diagnosis.memory_table import PARTS
from ilp_parallel.pages import charts
from ilp_parallel.pages.about import FATES
from ilp_parallel.pages.facts import CHANGE
from ilp_parallel.pages.html import Html, beside, details, el, joined, table
from ilp_parallel.pages.rivals import WITHIN_PERCENT
from ilp_parallel.predicting import FLOP_CONVENTION, step_shares

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ilp_parallel.frontiers.sensitivity import Recorded
    from ilp_parallel.pages.facts import Facts
    from ilp_parallel.pages.rivals import Rival
    from ilp_parallel.pages.timeline import TimelineData

GIB = charts.GIB


_LONG = re.compile(r"-?\d+\.\d{3,}")


def _shorter(number: re.Match[str]) -> str:
    return f"{float(number[0]):.2f}"


def chart(name: str, figure: Figure, label: str, caption: str = "") -> Html:
    """A figure as part of the page: its colours follow the style sheet, its names are its own."""
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        figure.savefig(
            buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None}
        )
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"([^>]*?) width="[^"]*"', r"\1\2", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"([^>]*?) height="[^"]*"', r"\1\2", svg, count=1)
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", svg)
    svg = re.sub(r"<[^>]*>", lambda tag: _LONG.sub(_shorter, tag[0]), svg)
    svg = re.sub(r"\s*\n\s*", " ", svg)
    svg = re.sub(r"font: (\d+(?:\.\d+)?)px [^;\"]*", r"font-size: \1px", svg)
    for colour, value in charts.COLOURS.items():
        svg = svg.replace(value, f"var(--{colour})")
    shown = el("div", Html(svg), attrs={"role": "img", "aria-label": label, "class": "chart"})
    below = [el("figcaption", caption)] if caption else []
    return el("figure", shown, *below, attrs={"id": f"chart-{name}"})


def timeline(facts: Facts, drawn: TimelineData | None) -> Html:
    """The simulated schedule; the page's script draws it."""
    if drawn is None or facts.played is None:
        return el("p", "This schedule is too long to be played for a page.")
    rows = []
    for s, line in enumerate(facts.played.simulation.timelines):
        busy = int((line.end_ticks - line.start_ticks).sum()) * facts.tick_s
        finish = facts.played.simulation.finish_ticks[s] * facts.tick_s
        tail = facts.played.simulation.tail_ticks[s] * facts.tick_s
        idle = 100 * (1 - busy / finish)
        start = int(line.start_ticks[0]) * facts.tick_s
        rows.append((f"{s}", *(f"{x:.4f}" for x in (start, busy, finish, tail)), f"{idle:.2f}"))
    header = ("stage", "first start s", "busy s", "last end s", "tail s", "idle before its end %")
    note = f"All {drawn.operations:,} operations are drawn."
    if drawn.drawn < drawn.operations:
        parts = ", ".join(f"{low:.3f} to {high:.3f} s" for low, high in drawn.windows_s)
        note = (
            f"Of {drawn.operations:,} operations {drawn.drawn:,} are drawn, those that start in "
            f"three parts of the step, its first, steady and last one ({parts}); hatched times are "
            "left out."
        )
    return joined(
        (
            _TIMELINE,
            el(
                "p",
                note,
                " A device group runs one operation at a time; numbers name the microbatch, with "
                "its chunk after a dot. Recomputation is drawn at the start of a backward, as its "
                "share of it. Sends are lines between stages, seen when zoomed in. Below: memory "
                "of the chosen stage, as allocated on each of its devices.",
                attrs={"class": "quiet"},
            ),
            details("Timeline as a table", table(header, rows, "simulated times by stage")),
        )
    )


_BUTTONS = (
    ("out", "−", "Zoom out"),  # noqa: RUF001
    ("in", "+", "Zoom in"),
    ("left", "←", "Earlier"),
    ("right", "→", "Later"),
    ("all", "Whole step", ""),
    ("start", "Start", ""),
    ("middle", "Steady state", ""),
    ("end", "End", ""),
)
_KEYS = (
    ("legend-f", "forward"),
    ("legend-b", "backward"),
    ("legend-r", "recomputation"),
    ("legend-t", "once per step: gradients, optimizer"),
    ("legend-s", "send"),
)
_TIMELINE = el(
    "figure",
    el(
        "div",
        *(
            el(
                "button",
                text,
                attrs={"type": "button", "data-act": act, **({"aria-label": say} if say else {})},
            )
            for act, text, say in _BUTTONS
        ),
        attrs={"class": "tools", "role": "toolbar", "aria-label": "Timeline"},
    ),
    el(
        "div",
        *(el("span", el("i", attrs={"class": key}), f" {name}") for key, name in _KEYS),
        attrs={"class": "legend"},
    ),
    el(
        "div",
        attrs={
            "id": "timeline-view",
            "tabindex": "0",
            "role": "group",
            "aria-describedby": "timeline-help",
            "aria-label": "Timeline of the simulated schedule",
        },
    ),
    el("p", attrs={"id": "timeline-readout", "role": "status"}),
    el(
        "figcaption",
        "Keys: + and - zoom, arrows left and right move, arrows up and down choose a stage, n and "
        "p step through its operations, Home and End jump, 0 shows the whole step. Drag to move; "
        "double-click, pinch or Ctrl with the wheel zooms.",
        attrs={"id": "timeline-help"},
    ),
    attrs={"id": "chart-timeline", "class": "wide"},
)


def memory(facts: Facts) -> Html:
    """Curves over time and bars by part."""
    parts: list[Html] = []
    if facts.played is not None:
        drawn = charts.curve_stages(facts.played)
        stages = facts.played.instance.stages
        which = "" if len(drawn) == stages else f" {len(drawn)} of {stages} stages are shown."
        parts.append(
            chart(
                "curves",
                charts.draw_memory_curves(facts.played, facts.tick_s),
                "Memory allocated on a device of each stage over the simulated step, with the most "
                "that may be allocated as a line",
                f"Allocated over time; the line is what may be allocated.{which}",
            )
        )
    parts.append(
        chart(
            "bars",
            charts.draw_memory_bars(facts.memories),
            "Memory of a device of each stage by part at its fullest instant",
            "By part, as the device sees it; equal stages share a bar.",
        )
    )
    rows = [
        (
            str(m.stage),
            str(m.in_flight),
            *(f"{m.parts[name] / GIB:.2f}" for name in PARTS),
            f"{m.allocated_bytes / GIB:.2f}",
            f"{m.usable_bytes / GIB:.2f}",
            f"{m.device_bytes / GIB:.2f}",
        )
        for m in facts.memories
    ]
    header = ("stage", "in flight", *PARTS, "allocated", "may allocate", "device")
    numbers = table(header, rows, "memory by stage and part (GiB on each device)")
    return joined(
        (
            beside(*parts),
            details("Memory as a table (GiB)", numbers),
        )
    )


def time_goes(facts: Facts) -> Html:
    """The waterfall of the step."""
    shares = step_shares(facts.plan.configuration, facts.prediction)
    step = facts.prediction.step_time_s
    rounded = facts.ticks * facts.tick_s
    rows: list[tuple[str, ...]] = [
        (s.term.replace("_", " "), s.part, f"{1e3 * s.seconds:,.2f}", f"{100 * s.share:.2f}")
        for s in shares
        if s.seconds > 0
    ]
    total = sum(s.seconds for s in shares)
    rows.append(("step", "", f"{1e3 * total:,.2f}", f"{100 * total / step:.2f}"))
    figure = chart(
        "waterfall",
        charts.draw_waterfall(shares, step),
        "Waterfall of the step time by term",
        f"The terms add up to {step:.6f} s, the step before times are rounded up to ticks "
        f"({rounded:.6f} s after). Seen from the stage with most work per microbatch.",
    )
    conventions = el("ul", *(el("li", line) for line in FLOP_CONVENTION))
    return joined(
        (
            beside(figure, table(("term", "part", "ms", "share %"), rows, "terms of the step")),
            details("How FLOPs are counted", conventions),
        )
    )


def ladder(facts: Facts) -> Html:
    """Bounds on the configuration of the plan."""
    rungs = (*facts.ladder.rungs, *facts.ladder.beside)
    rows = []
    for rung in rungs:
        step, below = rung["step_time_s"], rung["below_optimum"]
        rows.append(
            (
                str(rung["name"]),
                str(rung["kind"]),
                "-" if step is None else f"{step:.6f}",
                "-" if below is None else f"{0.0 - 100 * cast('float', below):+.4f}",
                f"{1e3 * cast('float', rung['seconds']):.2f}",
                str(rung["note"] or ""),
            )
        )
    header = ("rung", "kind", "step time s", "from optimum %", "took ms", "note")
    where = "" if facts.ladder_of == "page" else " The ladder is that of the file of --bounds."
    shown = [r for r in rungs if r["below_optimum"] is not None]
    parts: list[Html] = []
    if shown:
        parts.append(
            chart(
                "ladder",
                charts.draw_ladder(facts.ladder),
                "Ladder of bounds by their distance from the optimum of the configuration",
                "Bounds on the configuration of this plan. The simulated time is another measure "
                f"of the same plan, not a bound.{where}",
            )
        )
    parts.append(table(header, rows, "bounds with the time each took"))
    return beside(*parts)


def sensitivity(facts: Facts) -> Html:
    """The same plan on slightly other machines."""
    base = facts.prediction.step_time_s
    rows = [
        (s.name, f"{s.lowered_s:.4f}", f"{base:.4f}", f"{s.raised_s:.4f}")
        for s in facts.sensitivities
    ]
    share = f"{100 * CHANGE:.0f} %"
    caption = (
        f"Step time of this very plan when one rate is {share} lower or higher; whether another "
        "plan would then be better is not asked."
    )
    if facts.plan.job.layer_times:
        caption += " Measured layer times do not change with the rates."
    header = ("rate", f"{share} lower s", "as it is s", f"{share} higher s")
    drawn = beside(
        chart(
            "sensitivity",
            charts.draw_sensitivity(facts.sensitivities, base, CHANGE),
            "Change of the step time when one rate is lower or higher",
            caption,
        ),
        table(header, rows, "step time by rate"),
    )
    return drawn if facts.solved_again is None else joined((bought(facts.solved_again), drawn))


def bought(found: Recorded) -> Html:
    """What more of something would buy when the job is solved again."""
    rows = [
        (
            change.change,
            "-" if change.step_time_s is None else f"{change.step_time_s:.6f}",
            "-" if change.gain is None else f"{100 * change.gain:+.2f}",
            "the same"
            if change.configuration == found.configuration
            else str(change.configuration),
            change.status,
        )
        for change in found.changes
    ]
    header = ("change", "step time s", "saves %", "best configuration", "status")
    bottleneck = found.bottleneck or "none of these rates"
    return joined(
        (
            el("p", f"Bottleneck: {bottleneck}."),
            table(header, rows, "the job solved again for each changed cluster"),
            el(
                "p",
                f"Against {found.step_time_s:.6f} s as it is. Each line is a search with its own "
                "proof, made when the file was written and not checked again here.",
                attrs={"class": "quiet"},
            ),
        )
    )


def rivals(facts: Facts) -> Html:
    """Configurations whose bounds came nearest, and why they lost."""
    found = facts.rivals
    if found is None:
        return el(
            "p", "Without a certificate about step times there are no other plans to compare with."
        )
    if not found.rivals:
        return el("p", "No other configuration was closed by a bound.")
    ours = facts.ticks

    def row(rival: Rival) -> tuple[str, ...]:
        best = None if rival.contrast is None else rival.contrast.theirs_ticks
        return (
            rival.configuration,
            FATES[rival.fate],
            f"{rival.bound_ticks * facts.tick_s:.6f}",
            f"{100 * (rival.bound_ticks - ours) / ours:+.3f}",
            "-" if best is None else f"{best * facts.tick_s:.6f}",
            "-" if best is None else f"{100 * (best - ours) / ours:+.2f}",
            why(rival, facts.tick_s),
        )

    ranked = sorted(
        found.rivals,
        key=lambda r: (r.contrast is None, r.contrast.theirs_ticks if r.contrast else 0),
    )
    header = (
        *("configuration", "how it was closed", "bound s", "bound above this plan %"),
        *("its best plan s", "above this plan %", "why it lost"),
    )
    return joined(
        (
            table(header, [row(rival) for rival in ranked], "configurations that lost"),
            el(
                "p",
                f"The {len(ranked)} of {found.closed:,} configurations closed by a bound whose "
                "bounds are least, solved again for this page by the dynamic program where not "
                "too large, best plan first. The proof needs only that no bound is below the "
                "chosen plan, so one of the others may have a better plan than these.",
                attrs={"class": "quiet"},
            ),
        )
    )


def why(rival: Rival, tick_s: float) -> str:
    """The terms in which a rival's best plan loses most."""
    found = rival.contrast
    if not rival.solved:
        return "its bound suffices; large, so not solved again for this page"
    if found is None:
        return f"no plan of it that fits takes less than {WITHIN_PERCENT} % more"
    changes = sorted(
        zip(found.terms, found.ours_s, found.theirs_s, strict=True),
        key=lambda term: term[1] - term[2],
    )
    worst = [
        f"{term.replace('_', ' ')} {theirs - ours:+.3f} s"
        for term, ours, theirs in changes[:2]
        if theirs - ours > 1e-4
    ]
    gained = [
        f"{term.replace('_', ' ')} {theirs - ours:+.3f} s"
        for term, ours, theirs in changes[-1:]
        if ours - theirs > 1e-4
    ]
    memory_cost = found.theirs_ticks - rival.bound_ticks
    words = ["; ".join(worst)] if worst else []
    words += [f"gains {gained[0]}"] if gained else []
    if rival.fate == WorkBound.__struct_config__.tag:
        words.append(f"memory and balance cost {memory_cost * tick_s:.3f} s over its work alone")
    return "; ".join(words)
