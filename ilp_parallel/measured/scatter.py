"""Predicted against measured step times as a picture. Needs matplotlib (the extra ``plots``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ilp_parallel.diagnosis.charts import write_figure
from ilp_parallel.errors import InputError
from ilp_parallel.specs.documents import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ilp_parallel.measured.cases import PricedCase

BAND = 0.10
"""Half width of the band beside the diagonal, as a share (chosen)."""

_MARKERS = "osD^v"
_COLOURS = (  # Okabe and Ito's palette, which colour-blind readers tell apart, less its yellow
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000"),
)


def write_scatter(path: str, timed: Sequence[PricedCase]) -> None:
    """Write the picture whole or not at all; same cases, same bytes.

    Raises
    ------
    InputError
        ``NOTHING_TO_PLOT`` or ``CANNOT_WRITE``.
    """
    if not timed:
        raise InputError("NOTHING_TO_PLOT", "no timed run that the model describes", "drop --plot")
    write_figure(path, draw_scatter(timed))


def draw_scatter(timed: Sequence[PricedCase]) -> Figure:
    """Log-log scatter of the cases that have a time, coloured by source.

    A vertical line spans the completions of a case that has several.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 7.2), layout="constrained")
    axes = figure.add_subplot()
    by_source: dict[str, list[PricedCase]] = {}
    for priced in timed:
        by_source.setdefault(priced.case.run.source, []).append(priced)
    _draw_diagonal(axes, timed)
    for i, (source, members) in enumerate(sorted(by_source.items(), key=lambda e: -len(e[1]))):
        colour, marker = _COLOURS[i % len(_COLOURS)], _MARKERS[i % len(_MARKERS)]
        measured = [p.case.measured_s or 0.0 for p in members]
        lows = [min(p.completions_s) for p in members]
        highs = [max(p.completions_s) for p in members]
        axes.vlines(measured, lows, highs, color=colour, linewidth=0.8, alpha=0.35, zorder=2)
        axes.scatter(
            measured,
            [p.predicted_s for p in members],
            s=16,
            c=colour,
            marker=marker,
            alpha=0.65,
            linewidths=0,
            label=f"{shown(source)} ({len(members)})".replace("$", r"\$"),
            zorder=3,
        )
    axes.legend(
        loc="upper left",
        bbox_to_anchor=(1.01, 1.0),
        title="source (configurations)",
        alignment="left",
        frameon=False,
        markerscale=1.6,
    )
    return figure


def _draw_diagonal(axes: Axes, timed: Sequence[PricedCase]) -> None:
    """Square log axes that hold all cases, with the diagonal and the band beside it."""
    times = [t for p in timed for t in (p.case.measured_s or 0.0, *p.completions_s)]
    ends = np.array([min(times) / 1.3, max(times) * 1.3])
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
    axes.set_xlabel("measured step time (s)")
    axes.set_ylabel("predicted step time (s)")
    axes.set_title("Predicted against measured step time; lines span what rows leave open")
    axes.grid(which="major", color="0.9", zorder=0)
    axes.fill_between(
        ends, ends * (1 - BAND), ends * (1 + BAND), color="0.85", zorder=1, label=f"±{BAND:.0%}"
    )
    axes.plot(ends, ends, color="0.4", linewidth=1, zorder=1, label="predicted = measured")
