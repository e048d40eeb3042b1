"""A comparison as text: tables for the terminal, markdown, CSV, and LaTeX for a paper."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, cast

from ilp_parallel.comparison.benchmarking import LEVELS, performance_profile, row_excess, summarise
from ilp_parallel.report import render

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ilp_parallel.comparison.benchmarking import MethodSummary
    from ilp_parallel.comparison.comparing import Row
    from ilp_parallel.report import Style

SCHEMA = "ilp_parallel.compare/1"

MOST_LISTED = 3
"""Most jobs whose rows are listed one by one in tables; more are summarised (chosen)."""

_SHOWN_LEVELS = (0, 10, 50, 100, 250)
_HEADER = ("method", "plans", "optimal", "≤ 1 %", "≤ 5 %", "≤ 10 %", "≤ 25 %")
_TAIL = ("median %", "90th %", "worst %", "median s")


def comparison_document(rows: Sequence[Row]) -> dict[str, object]:
    """Rows, summaries and profiles as plain data."""
    return {
        "schema": SCHEMA,
        "rows": list(rows),
        "summary": [_summary_document(summary) for summary in summarise(rows)],
        "profile": performance_profile(rows),
    }


def _summary_document(summary: MethodSummary) -> dict[str, object]:
    return {
        "method": summary.method,
        "jobs": summary.jobs,
        "plans": summary.plans,
        "optimal": summary.optimal,
        "within": {str(level / 1000): n for level, n in zip(LEVELS, summary.within, strict=True)},
        "median_excess": summary.median_excess,
        "p90_excess": summary.p90_excess,
        "worst_excess": summary.worst_excess,
        "median_s": summary.median_s,
        "total_s": summary.total_s,
    }


def comparison_text(rows: Sequence[Row], style: Style) -> str:
    """Tables: every row of a few jobs, or a summary by method of many.

    Markdown has the distances of every job as well.
    """
    if len({row["job"] for row in rows}) <= MOST_LISTED:
        return _listing(rows, style)
    header, lines = _summary_table(rows)
    parts = [render(_summary_title(rows), header, lines, style)]
    if style == "md":
        parts.append(render("above the optimum in %", *_matrix(rows), style))
    return "\n".join(parts)


def _listing(rows: Sequence[Row], style: Style) -> str:
    lines = []
    for row in rows:
        step = cast("float | None", row["step_time_s"])
        lines.append(
            (
                f"{row['model']} on {row['cluster']}",
                str(row["method"]),
                "no plan" if step is None else f"{step:.6f}",
                _percent(row_excess(row)),
                f"{cast('float', row['seconds']):.2f}",
                str(row["configuration"] or row["note"] or ""),
            )
        )
    header = ("job", "method", "step time s", "above optimum %", "s", "configuration")
    return render("the proven optimum, and what others reach", header, lines, style)


def _summary_title(rows: Sequence[Row]) -> str:
    """How many jobs there are, and how many of their optima are proven."""
    searches = [row for row in rows if row["role"] == "search"]
    proven = sum(row["optimum"] is not None for row in searches)
    return f"{len(searches)} jobs, {proven} optima proven; above the optimum, share of jobs"


def _summary_table(rows: Sequence[Row]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """One line per method, best first."""
    summaries = sorted(summarise(rows), key=_goodness)
    return (*_HEADER, *_TAIL), [_summary_line(summary) for summary in summaries]


def _goodness(summary: MethodSummary) -> tuple[float, float]:
    """Fewest jobs without a plan near the optimum first, counted over all levels."""
    return -float(sum(summary.within)), summary.median_excess or 0.0


def _summary_line(summary: MethodSummary) -> tuple[str, ...]:
    within = dict(zip(LEVELS, summary.within, strict=True))
    return (
        summary.method,
        str(summary.plans),
        *(f"{100 * within[level] / summary.jobs:.0f} %" for level in _SHOWN_LEVELS),
        _percent(summary.median_excess),
        _percent(summary.p90_excess),
        _percent(summary.worst_excess),
        f"{summary.median_s:.2f}",
    )


def _matrix(rows: Sequence[Row]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """One line per job: its optimum, and the distance of every method from it."""
    methods = list(dict.fromkeys(str(row["method"]) for row in rows if row["role"] != "search"))
    by_job: dict[object, list[Row]] = {}
    for row in rows:
        by_job.setdefault(row["job"], []).append(row)
    lines = []
    for job, mine in by_job.items():
        search, *others = mine
        step = cast("float | None", search["step_time_s"])
        found = {str(row["method"]): row for row in others}
        lines.append(
            (
                str(job),
                _job_name(search),
                "no plan" if step is None else f"{step:.6f}",
                *(_percent(row_excess(found[method])) for method in methods),
            )
        )
    return ("job", "what", "optimum s", *methods), lines


def _job_name(row: Row) -> str:
    """Model, cluster, batch x sequence, and the memory that is taken."""
    reserve = cast("int | None", row["reserve_bytes"])
    taken = "" if reserve is None else f", {reserve / 2**30:.0f} GiB taken"
    return f"{row['model']} on {row['cluster']}, {row['batch']} x {row['sequence']}{taken}"


def _percent(excess: float | None) -> str:
    """A distance in per cent; 0 only where it is none."""
    if excess is None:
        return "-"
    if excess == 0:
        return "0"
    return f"{100 * excess:.2f}" if excess >= 0.00005 else "<0.01"


def comparison_csv(rows: Sequence[Row]) -> str:
    """All rows, one a line, with a header; empty where there is no value."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def comparison_latex(rows: Sequence[Row]) -> str:
    """Two tables for a paper that loads ``booktabs`` and ``longtable``: methods, and all jobs."""
    header, lines = _summary_table(rows)
    title = _summary_title(rows)
    body = _latex_rows(header, lines)
    first = f"% {title}\n\\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}\n{body}\\end{{tabular}}\n"
    header, lines = _matrix(rows)
    body = _latex_rows(header, lines)
    second = (
        f"% above the proven optimum in %\n\\begin{{longtable}}{{ll{'r' * (len(header) - 2)}}}\n"
        f"{body}\\end{{longtable}}\n"
    )
    return f"{first}\n{second}"


def _latex_rows(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    def row(cells: Sequence[str]) -> str:
        return f"  {' & '.join(latex_escaped(cell) for cell in cells)} \\\\\n"

    inner = "".join(row(line) for line in lines)
    return f"  \\toprule\n{row(header)}  \\midrule\n{inner}  \\bottomrule\n"


def latex_escaped(text: str) -> str:
    """Text that LaTeX prints as it is."""
    special = {
        **{character: f"\\{character}" for character in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": "$<$",
        ">": "$>$",
        "≤": r"$\leq$",
    }
    return "".join(special.get(character, character) for character in text)
