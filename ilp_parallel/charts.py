"""Pictures of results. They need matplotlib (the extra ``plots``), imported only when drawing."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ilp_parallel.errors import InputError
from ilp_parallel.memory_table import PARTS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ilp_parallel.memory_table import StageMemory

_COLOURS = dict(
    zip(
        PARTS,
        (  # Okabe and Ito's palette, which colour-blind readers tell apart, and a grey
            *("#0072b2", "#56b4e9", "#009e73", "#e69f00"),
            *("#d55e00", "#cc79a7", "#f0e442", "#bbbbbb"),
        ),
        strict=True,
    )
)
_GIB = 1 << 30
_MOST_LABELS = 32
"""Most stages that are labelled one by one (chosen)."""


def draw_memory(title: str, stages: tuple[StageMemory, ...]) -> Figure:
    """One stacked bar per stage, with lines at the capacity and at what may be filled."""
    from matplotlib.figure import Figure

    width = min(16.0, max(6.4, 3.2 + 0.45 * len(stages)))
    figure = Figure(figsize=(width, 5.4), layout="constrained")
    axes = figure.add_subplot()
    places = list(range(len(stages)))
    bottoms = [0.0] * len(stages)
    for name in PARTS:
        heights = [stage.parts[name] / _GIB for stage in stages]
        if any(heights):
            axes.bar(places, heights, 0.8, bottoms, label=name, color=_COLOURS[name], zorder=2)
        bottoms = [below + height for below, height in zip(bottoms, heights, strict=True)]
    capacity = stages[0].capacity_bytes / _GIB
    axes.axhline(capacity, color="black", linewidth=1.5, zorder=3, label="capacity")
    over = [place for place, stage in zip(places, stages, strict=True) if not stage.fits]
    if over:
        tops = [bottoms[place] + 0.03 * capacity for place in over]
        axes.scatter(over, tops, marker="x", color="#d55e00", zorder=4, label="does not fit")
    axes.set(xlabel="pipeline stage", ylabel="GiB per device")
    axes.set_title(title.replace("$", r"\$"), fontsize=10)
    axes.set_ylim(0, 1.12 * max(capacity, *bottoms))
    step = -(-len(stages) // _MOST_LABELS)
    axes.set_xticks(places[::step], [str(stages[place].stage) for place in places[::step]])
    axes.grid(axis="y", color="0.9", zorder=0)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(
        handles[::-1],
        labels[::-1],
        loc="upper left",
        bbox_to_anchor=(1.01, 1.0),
        frameon=False,
    )
    return figure


def write_figure(path: str, figure: Figure) -> None:
    """Write a picture whole or not at all; the same figure gives the same bytes.

    Raises
    ------
    InputError
        ``CANNOT_WRITE``.
    """
    import matplotlib

    target = Path(path)
    kind = target.suffix.lower()[1:]
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".ilp_parallel-")
        try:
            with os.fdopen(handle, "wb") as file, matplotlib.rc_context({"svg.hashsalt": "ilp"}):
                metadata = {"Date": None} if kind == "svg" else {}
                figure.savefig(file, format=kind, dpi=150, metadata=metadata)
            os.chmod(temporary, 0o644)
            os.replace(temporary, target)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError("CANNOT_WRITE", f"{path}: {reason}", "choose another --plot") from None
