"""Pictures of results. They need matplotlib (the extra ``plots``), imported only when drawing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ilp_parallel.diagnosis.memory_table import PARTS
from ilp_parallel.errors import InputError
from ilp_parallel.plan_files import replacing, require_target
from ilp_parallel.specs.documents import shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ilp_parallel.diagnosis.memory_table import StageMemory

KINDS = (".svg", ".png")

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


def require_plot_target(path: str) -> None:
    """Refuse a path that cannot become a picture, before anything long is started.

    Raises
    ------
    InputError
        ``UNKNOWN_PICTURE``, ``NO_MATPLOTLIB`` or ``CANNOT_WRITE``.
    """
    if Path(path).suffix.lower() not in KINDS:
        raise InputError("UNKNOWN_PICTURE", shown(path), f"end it in {' or '.join(KINDS)}")
    require_target(path)
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        fix = "pip install 'ilp-parallel[plots]'"
        raise InputError("NO_MATPLOTLIB", "matplotlib is not installed", fix) from None


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

    kind = Path(path).suffix.lower()[1:]
    metadata = {"Date": None} if kind == "svg" else {}
    with (
        replacing(path, "choose another --plot") as file,
        matplotlib.rc_context({"svg.hashsalt": "ilp"}),
    ):
        figure.savefig(file, format=kind, dpi=150, metadata=metadata)
