"""Performance profile and box plot of a comparison. They need matplotlib (extra ``plots``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ilp_parallel.comparison.benchmarking import judged, performance_profile, row_excess, summarise
from ilp_parallel.comparison.comparing import REACH
from ilp_parallel.diagnosis.charts import write_figure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ilp_parallel.comparison.comparing import Row

_COLOURS = (  # Okabe and Ito's palette, which colour-blind readers tell apart, less its yellow
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00"),
)
_DASHES = ("-", "--", ":")
_FLOOR = 0.0001
"""Smallest distance on the logarithmic axis; what is nearer, optimal plans too, lies there."""
_CEILING = 10.0
"""Largest distance on it."""


def write_comparison(path: str, rows: Sequence[Row]) -> None:
    """Write the picture; letters in an SVG stay letters, which makes it a third smaller.

    Raises
    ------
    InputError
        ``CANNOT_WRITE``.
    """
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none"}):
        write_figure(path, draw_comparison(rows))


def draw_comparison(rows: Sequence[Row]) -> Figure:
    """Profile above, boxes of the distances from the optimum below; best methods first."""
    from matplotlib.figure import Figure

    summaries = sorted(summarise(rows), key=lambda s: (-sum(s.within), s.median_excess or 0.0))
    methods = [summary.method for summary in summaries]
    jobs = max((summary.jobs for summary in summaries), default=0)
    figure = Figure(figsize=(9.6, 9.0), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1.15, 1.0))
    _draw_profile(above, rows, methods)
    _draw_boxes(below, rows, methods)
    above.set_title(f"Distance from the proven optimum on {jobs} jobs", fontsize=11)
    below.set_xlabel("step time above the proven optimum")
    below.set_xlim(_FLOOR, _CEILING)
    below.set_xticks([_FLOOR, 0.001, 0.01, 0.1, 1.0, _CEILING])
    below.set_xticklabels(["≤ 0.01 %", "0.1 %", "1 %", "10 %", "100 %", "1000 %"])
    above.minorticks_off()
    below.minorticks_off()
    return figure


def _draw_profile(axes: Axes, rows: Sequence[Row], methods: list[str]) -> None:
    """Share of jobs within a distance, as steps that hold up to the end of the axis."""
    profile = performance_profile(rows)
    for i, method in enumerate(methods):
        steps = profile[method]
        places = [_FLOOR, *(_placed(excess) for excess, _ in steps), _CEILING]
        shares = [0.0, *(share for _, share in steps)]
        shares.append(shares[-1])
        # at the left end the share of what lies there, not nothing
        shares[0] = max((s for e, s in steps if e <= _FLOOR), default=0.0)
        colour, dash = _style(i, method)
        axes.step(places, shares, where="post", color=colour, linestyle=dash, label=method)
    axes.set(xscale="log", ylim=(0, 1.02), ylabel="share of jobs within that distance")
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1.0], ["0", "25 %", "50 %", "75 %", "100 %"])
    axes.grid(color="0.9")
    axes.set_axisbelow(True)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, title="best first")


def _draw_boxes(axes: Axes, rows: Sequence[Row], methods: list[str]) -> None:
    """Quartiles with whiskers from the 5th to the 95th percentile, and the number without plan."""
    values: dict[str, list[float]] = {method: [] for method in methods}
    missing = dict.fromkeys(methods, 0)
    for row in judged(rows):
        excess = row_excess(row)
        if excess is None:
            missing[str(row["method"])] += 1
        else:
            values[str(row["method"])].append(_placed(excess))
    places = list(range(len(methods), 0, -1))
    for place, method in zip(places, methods, strict=True):
        if values[method]:
            _draw_box(axes, place, np.array(values[method]))
    axes.set_yticks(places, methods)
    for place, method in zip(places, methods, strict=True):
        if missing[method]:
            axes.annotate(
                f"no plan: {missing[method]}",
                (1.01, place),
                xycoords=("axes fraction", "data"),
                va="center",
                fontsize=9,
            )
    axes.grid(axis="x", color="0.9")
    axes.set_axisbelow(True)


def _draw_box(axes: Axes, place: int, values: npt.NDArray[np.float64]) -> None:
    """One box at a height."""
    low, first, middle, third, high = np.percentile(values, (5, 25, 50, 75, 95))
    axes.hlines(place, low, high, color="0.3", zorder=2)
    axes.barh(
        place, third - first, 0.6, first, color="#cfe3f1", edgecolor="0.3", linewidth=1, zorder=3
    )
    axes.vlines(middle, place - 0.3, place + 0.3, color="#d55e00", linewidth=2.5, zorder=4)
    outside = values[(values < low) | (values > high)]
    axes.scatter(outside, np.full(len(outside), place), s=6, color="0.4", zorder=2)


def _style(i: int, method: str) -> tuple[str, str]:
    """Colour and dash of a line; black for what is no heuristic."""
    if method == REACH:
        return "black", "-."
    return _COLOURS[i % len(_COLOURS)], _DASHES[i // len(_COLOURS) % len(_DASHES)]


def _placed(excess: float) -> float:
    return min(max(excess, _FLOOR), _CEILING)
