"""Charts of a report, and the pictures of ``bounds --plot`` and ``solve --trace``.

They need matplotlib (the extra ``plots``), imported only when drawing. Figures are narrow, so that
their text stays readable on a telephone. A page replaces the colours of ``COLOURS`` by variables of
its style sheet, which has them for light and dark.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, cast

import numpy as np

from ilp_parallel.diagnosis.memory_table import PARTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ilp_parallel.anytime import AnytimeCurve
    from ilp_parallel.diagnosis.memory_table import StageMemory
    from ilp_parallel.ladder import Ladder, Rung
    from ilp_parallel.pages.facts import Sensitivity
    from ilp_parallel.playing import Played
    from ilp_parallel.predicting import Share
    from ilp_parallel.simulate import MemoryCurve

COLOURS = {  # Okabe and Ito's palette, which colour-blind readers tell apart, and greys
    "ink": "#1b1f24",
    "quiet": "#57606b",
    "grid": "#d8dee5",
    "s1": "#0072b2",
    "s2": "#e69f00",
    "s3": "#009e73",
    "s4": "#d55e00",
    "s5": "#cc79a7",
    "s6": "#56b4e9",
    "s7": "#f0e442",
    "s8": "#9aa3ae",
    "limit": "#b3261e",
    "on1": "#fffffe",  # text on s1
}
_PART_COLOURS = dict(zip(PARTS, ("s1", "s6", "s3", "s2", "s4", "s5", "s7", "s8"), strict=True))
_KIND_COLOURS = {"bound": "s1", "optimum": "s3", "heuristic": "s4", "simulated": "s5"}
_PHASE_COLOURS = {"microbatches": "s1", "bubble": "s8", "once per step": "s3"}

GIB = 1 << 30
WIDTH = 4.5
"""Width of a figure (inches of 72 units)."""

CURVES = 8
"""Most memory curves in one chart (chosen)."""

_BUCKETS = 160
"""Points in time at which a long memory curve keeps its least and largest value (chosen)."""

_LINEAR = 1e-3
"""Distances from the optimum (%) below which the ladder's axis is linear (chosen)."""


def _colour(name: str) -> str:
    return COLOURS[name]


def _figure(
    height: float, left: float, bottom: float = 0.48, top: float = 0.12, right: float = 0.15
) -> tuple[Figure, Axes]:
    """A figure with one pair of axes; all margins in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height))
    axes = figure.add_axes(
        (left / WIDTH, bottom / height, (WIDTH - left - right) / WIDTH, 1 - (bottom + top) / height)
    )
    _dress(axes)
    return figure, axes


def _dress(axes: Axes) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(_colour("grid"))
    axes.tick_params(colors=_colour("quiet"), labelsize=9.5, length=3)
    axes.xaxis.label.set(color=_colour("quiet"), size=9.5)
    axes.yaxis.label.set(color=_colour("quiet"), size=9.5)


def _plain(text: str) -> str:
    """A text that matplotlib must not read as mathematics."""
    return text.replace("$", r"\$")


def _rows(axes: Axes, labels: Sequence[str]) -> None:
    """One labelled row per entry, the first on top."""
    axes.set_yticks(range(len(labels)), [_plain(label) for label in labels])
    axes.tick_params(axis="y", labelcolor=_colour("ink"), length=0)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.grid(axis="x", color=_colour("grid"), linewidth=0.7)
    axes.set_axisbelow(True)


def _legend(figure: Figure, axes: Axes, height: float, columns: int) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="upper left",
        bbox_to_anchor=(0.0, 1.0),
        ncols=columns,
        frameon=False,
        fontsize=9,
        labelcolor=_colour("ink"),
        handlelength=1.1,
        columnspacing=1.2,
    )


def draw_waterfall(shares: Sequence[Share], step_s: float) -> Figure:
    """Terms of the step, each beginning where the one above it ends; the last row is the step."""
    order = tuple(_PHASE_COLOURS)
    shown = sorted(
        (s for s in shares if s.seconds > 0), key=lambda s: (order.index(s.part), -s.seconds)
    )
    height = 0.95 + 0.235 * (len(shown) + 1)
    figure, axes = _figure(height, left=1.72, top=0.36)
    start = 0.0
    named: set[str] = set()
    for row, share in enumerate(shown):
        label = None if share.part in named else share.part
        named.add(share.part)
        colour = _colour(_PHASE_COLOURS[share.part])
        axes.barh(row, share.seconds, 0.7, start, color=colour, label=label)
        text = f"{_seconds(share.seconds)}, {100 * share.share:.1f} %"
        _beside(axes, start, start + share.seconds, row, text, step_s)
        start += share.seconds
    axes.barh(len(shown), step_s, 0.7, color=_colour("ink"))
    _rows(axes, [*(s.term.replace("_", " ") for s in shown), "step"])
    axes.set_xlim(0, 1.02 * step_s)
    axes.set_xlabel("seconds of one step (s)")
    _legend(figure, axes, height, 3)
    return figure


def _beside(axes: Axes, start: float, end: float, row: int, text: str, whole: float) -> None:
    """A text in a wide bar, else right of it, or left of it where there is more room."""
    if end - start > 0.5 * whole:
        x = end - 0.012 * whole
        axes.text(x, row, text, va="center", ha="right", fontsize=9, color=_colour("on1"))
        return
    left = start > whole - end
    x = start - 0.012 * whole if left else end + 0.012 * whole
    align = "right" if left else "left"
    axes.text(x, row, text, va="center", ha=align, fontsize=9, color=_colour("ink"))


def _seconds(value: float) -> str:
    return f"{value:.3f} s" if value >= 0.1 else f"{1e3 * value:.2f} ms"


def draw_memory_bars(memories: Sequence[StageMemory]) -> Figure:
    """A stacked bar per stage; equal neighbours share one."""
    rows = _merged(memories)
    height = 1.35 + 0.26 * len(rows)
    figure, axes = _figure(height, left=0.62, top=0.76)
    starts = np.zeros(len(rows))
    for part in PARTS:
        sizes = np.array([memory.parts[part] / GIB for _, memory in rows])
        if sizes.any():
            colour = _colour(_PART_COLOURS[part])
            axes.barh(range(len(rows)), sizes, 0.72, starts, color=colour, label=part)
        starts += sizes
    capacity = memories[0].capacity_bytes / GIB
    axes.axvline(capacity, color=_colour("limit"), linewidth=1.6, label="capacity")
    for row, (_, memory) in enumerate(rows):
        if not memory.fits:
            axes.plot(starts[row] + 0.02 * capacity, row, "x", color=_colour("limit"))
    _rows(axes, [label for label, _ in rows])
    axes.set_xlim(0, 1.04 * max(capacity, float(starts.max())))
    axes.set_xlabel("GiB on each device at the fullest instant")
    axes.set_ylabel("stage")
    _legend(figure, axes, height, 4)
    return figure


def _merged(memories: Sequence[StageMemory]) -> list[tuple[str, StageMemory]]:
    """Neighbours whose parts are alike to a hundredth of a GiB under one label."""
    rows: list[tuple[str, StageMemory]] = []
    for memory in memories:
        alike = rows and all(
            abs(rows[-1][1].parts[part] - memory.parts[part]) < GIB / 100 for part in PARTS
        )
        if alike:
            first = rows[-1][0].partition("-")[0]
            rows[-1] = (f"{first}-{memory.stage}", memory)
        else:
            rows.append((str(memory.stage), memory))
    return rows


def curve_stages(played: Played) -> list[int]:
    """Stages whose memory curve is drawn: all, or evenly spaced ones with the fullest."""
    stages = played.instance.stages
    if stages <= CURVES:
        return list(range(stages))
    peaks = [curve.peak_bytes for curve in played.simulation.memory]
    spaced = np.linspace(0, stages - 1, CURVES - 1).round().astype(int).tolist()
    return sorted({*spaced, peaks.index(max(peaks))})


def draw_memory_curves(played: Played, tick_s: float) -> Figure:
    """What a device of each stage has allocated over the step, against what may be allocated."""
    from matplotlib.figure import Figure

    stages = curve_stages(played)
    height = 0.7 + 0.74 * len(stages)
    figure = Figure(figsize=(WIDTH, height))
    limit = int(played.instance.capacity_bytes.max()) / GIB
    top = 1.06 * max(limit, *(c.peak_bytes / GIB for c in played.simulation.memory))
    end = played.simulation.step_ticks * tick_s
    for row, stage in enumerate(stages):
        place = (0.125, (height - 0.18 - 0.74 * (row + 1) + 0.1) / height, 0.855, 0.5 / height)
        axes = figure.add_axes(place)
        _dress(axes)
        times, held = _thinned(played.simulation.memory[stage])
        own = int(played.instance.capacity_bytes[stage]) / GIB
        axes.fill_between(times * tick_s, held / GIB, step="post", color=_colour("s1"), linewidth=0)
        axes.axhline(own, color=_colour("limit"), linewidth=1.2)
        axes.set(xlim=(0, end), ylim=(0, top))
        axes.set_yticks([0, round(own)])
        axes.text(
            0.0,
            1.04 * top,
            f"stage {stage}, peak {held.max() / GIB:.1f} GiB",
            fontsize=9,
            color=_colour("ink"),
        )
        if stage != stages[-1]:
            axes.tick_params(labelbottom=False)
    axes.set_xlabel("seconds of the simulated step (s); height: GiB per device")
    return figure


def _thinned(curve: MemoryCurve) -> tuple[np.ndarray, np.ndarray]:
    """Times and bytes; of a long curve the least and the largest value in each stretch of time."""
    standing = curve.bytes_held[-1:]  # all activations are gone, as before the first operation
    times = np.concatenate(([0], curve.times_ticks))
    held = np.concatenate((standing, curve.bytes_held))
    if len(times) <= 4 * _BUCKETS:
        return times, held
    bucket = (times * _BUCKETS) // (int(times[-1]) + 1)
    order = np.lexsort((held, bucket))
    first = np.flatnonzero(np.diff(bucket[order], prepend=-1))
    last = np.append(first[1:], len(order)) - 1
    kept = np.unique(np.concatenate((order[first], order[last], [0, len(times) - 1])))
    return times[kept], held[kept]


def draw_sensitivity(sensitivities: Sequence[Sensitivity], base_s: float, change: float) -> Figure:
    """Step time of the same plan when a rate is lower or higher; the most sensitive on top."""

    def largest(s: Sensitivity) -> float:
        return max(abs(s.lowered_s - base_s), abs(s.raised_s - base_s))

    shown = sorted(sensitivities, key=largest, reverse=True)
    height = 1.0 + 0.4 * len(shown)
    figure, axes = _figure(height, left=1.5, top=0.36)
    sides = (
        ("lowered_s", "s4", f"{100 * change:.0f} % lower"),
        ("raised_s", "s1", f"{100 * change:.0f} % higher"),
    )
    most = max(*(100 * largest(s) / base_s for s in shown), 1e-6)
    for field, colour, label in sides:
        changes = [100 * (getattr(s, field) / base_s - 1) for s in shown]
        axes.barh(range(len(shown)), changes, 0.55, color=_colour(colour), label=label)
        for row, value in enumerate(changes):
            aside = 0.03 * most if value >= 0 else -0.03 * most
            align = "left" if value >= 0 else "right"
            text = f"{value:+.2f} %"
            axes.text(
                value + aside, row, text, va="center", ha=align, fontsize=9, color=_colour("ink")
            )
    axes.axvline(0, color=_colour("quiet"), linewidth=1)
    _rows(axes, [s.name for s in shown])
    axes.set_xlim(-1.45 * most, 1.45 * most)
    axes.set_xlabel("change of the step time (%)")
    _legend(figure, axes, height, 2)
    return figure


def draw_ladder(ladder: Ladder, title: str | None = None) -> Figure:
    """Rungs by their distance from the optimum on an axis that is linear only near zero."""
    rungs = [r for r in (*ladder.rungs, *ladder.beside) if r["below_optimum"] is not None]
    height = 0.98 + 0.25 * len(rungs) + (0.25 if title else 0)
    above = any(cast("float", rung["below_optimum"]) < 0 for rung in rungs)
    right = 0.3 if above else 1.3  # room for texts right of the optimum
    figure, axes = _figure(height, left=1.5, top=0.62 if title else 0.36, right=right)
    named: set[str] = set()
    for row, rung in enumerate(rungs):
        kind = str(rung["kind"])
        distance = -100.0 * cast("float", rung["below_optimum"])
        colour = _colour(_KIND_COLOURS.get(kind, "quiet"))
        label = None if kind in named else _plain(kind)
        named.add(kind)
        axes.plot([0, distance], [row, row], color=colour, linewidth=1.4)
        axes.plot(distance, row, "o", color=colour, markersize=5, label=label)
        align, aside = ("right", -7) if distance > 0 else ("left", 7)
        x = 0.0 if distance else distance
        axes.annotate(
            _value(rung, distance),
            (x, row),
            xytext=(aside, 0),
            textcoords="offset points",
            va="center",
            ha=align,
            fontsize=9,
            color=_colour("ink"),
        )
    _distance_axis(axes, [-100.0 * cast("float", r["below_optimum"]) for r in rungs])
    _rows(axes, [str(rung["name"]) for rung in rungs])
    _legend(figure, axes, height, 4)
    if title:
        figure.suptitle(_plain(title), x=0.01, y=0.99, ha="left", va="top", fontsize=10)
        figure.legends[0].set_bbox_to_anchor((0.0, 1 - 0.24 / height))
    return figure


def _value(rung: Rung, distance: float) -> str:
    seconds = f"{rung['step_time_s']:.4f} s"
    if not distance:
        return seconds
    return f"{seconds}, {distance:+.3g} %" if abs(distance) >= 1e-3 else f"{seconds}, <0.001 %"


def _distance_axis(axes: Axes, distances: Sequence[float]) -> None:
    """Logarithmic to both sides of a short linear stretch, with readable ticks."""
    axes.axvline(0, color=_colour("quiet"), linewidth=1)
    low, high = min(0.0, *distances), max(0.0, *distances)
    axes.set_xscale("symlog", linthresh=_LINEAR, linscale=0.3)
    least, most = -(10.0 ** _exponent(-low)), 10.0 ** _exponent(high)
    axes.set_xlim(1.5 * least, 1.5 * most)
    ticks = [0.0]
    for edge, used in ((least, low < 0), (most, high > 0)):
        if not used:
            continue
        sign = 1 if edge > 0 else -1
        ticks += [sign * 10.0**k for k in range(-2, _exponent(abs(edge)) + 1, 2)]
    axes.set_xticks(ticks, [f"{t:+g}" if t else "0" for t in ticks])
    axes.minorticks_off()
    axes.set_xlabel("from the optimum (%), logarithmic")


def _exponent(value: float) -> int:
    """Power of ten at least as large as a distance, and at least a hundredth of a per cent."""
    return max(-2, math.ceil(math.log10(value))) if value > 0 else -2


def draw_anytime(curves: Sequence[AnytimeCurve], title: str) -> Figure:
    """Bound and incumbent of each search over time."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 2.9 * len(curves) + 0.4), layout="constrained")
    figure.suptitle(_plain(title), fontsize=10)
    for row, curve in enumerate(curves):
        axes = figure.add_subplot(len(curves), 1, row + 1)
        _dress(axes)
        for field, colour, label in (("bound", "s1", "bound"), ("incumbent", "s4", "incumbent")):
            points = [
                (moment.elapsed_s, ticks * curve.tick_s)
                for moment in curve.moments
                if (ticks := getattr(moment, field)) is not None
            ]
            if points:
                x, y = zip(*points, strict=True)
                marker = "o" if len(points) < 20 else None
                axes.plot(
                    x, y, drawstyle="steps-post", marker=marker, markersize=4,
                    color=_colour(colour), label=label,
                )  # fmt: skip
        axes.set_xlabel("seconds of the search (s)")
        axes.set_ylabel("step time (s)")
        axes.set_title(f"space {curve.space}", fontsize=9, loc="left")
        axes.grid(color=_colour("grid"), linewidth=0.7)
        axes.legend(frameon=False, fontsize=9, loc="lower right")
    return figure
