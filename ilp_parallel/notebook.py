"""Plans, certificates and tables as a notebook shows them: small HTML tables, and data frames.

Text and lines take the colour of the page they stand on, so that they can be read on dark and on
light; everything that comes from the user is escaped. Nothing here needs a solver.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Protocol, cast

from ilp_parallel.costs.model import CostModel

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import msgspec
    from pandas import DataFrame

    from ilp_parallel.certificate import Certificate, SearchStatus
    from ilp_parallel.costs.breakdown import Prediction
    from ilp_parallel.plan import Plan


class Printer(Protocol):
    """What IPython hands to ``_repr_pretty_`` for text beside HTML."""

    def text(self, text: str) -> None:
        """Add some text."""


Row = dict[str, object]
"""A row by column. Units are part of the names of columns: ``forward_s``, ``memory_bytes``."""

MOST_ROWS = 24
"""Rows that HTML shows of a longer table (chosen)."""

FATES = {
    "rule": "excluded by a rule",
    "memory": "does not fit",
    "no_strategy": "no strategy is left",
    "work": "its work alone takes as long",
    "lagrangian": "its Lagrangian bound is as long",
    "solved": "solved exactly",
    "open": "still open",
}
"""What the fates of configurations mean."""

_SHARES = ("share", "excess", "below_optimum")
"""Columns of fractions, which HTML shows in per cent."""

_WIDE = 8
"""Columns beyond which a table is wide (chosen)."""

_GIB = 1 << 30
_LINE = "1px solid color-mix(in srgb, currentColor 30%, transparent)"
_CELL = "padding:.15em .6em;background:transparent;color:inherit;border:0;"


@dataclass(frozen=True, slots=True, repr=False)
class Table:
    """Rows with the same columns, in a notebook an HTML table.

    Iterating and indexing give plain dictionaries with exact values; only HTML rounds.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]

    @classmethod
    def of(cls, title: str, rows: Sequence[Row]) -> Table:
        """A table of rows, with the columns of the first."""
        return cls(title, tuple(rows[0]) if rows else (), tuple(rows))

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __getitem__(self, index: int) -> Row:
        return self.rows[index]

    def to_frame(self) -> DataFrame | list[Row]:
        """The rows as a pandas data frame; where pandas is not installed, as a list.

        Integers stay integers, beside absent values too (pandas' ``Int64``).
        """
        rows = [dict(row) for row in self.rows]
        try:
            import pandas as pd
        except ImportError:
            return rows
        frame = pd.DataFrame(rows, columns=list(self.columns), dtype=object)
        with_gaps = {name: "Int64" for name in self.columns if self._has_gaps(name)}
        typed: DataFrame = frame.infer_objects().astype(with_gaps)
        return typed

    def _has_gaps(self, name: str) -> bool:
        """Whether a column holds integers and absent values."""
        return {type(row[name]) for row in self.rows} == {int, type(None)}

    def __repr__(self) -> str:
        return f"<Table {self.title}: {len(self)} rows>"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return table_html(self)


# --- tables -----------------------------------------------------------------------------------


def stage_table(plan: Plan, prediction: Prediction) -> Table:
    """One row per device group; times per microbatch, the tail once per step."""
    rows: list[Row] = []
    for group, stage in enumerate(prediction.stages):
        rows.append(
            {
                "stage": group,
                "layers": stage.layers,
                "strategies": _strategies(plan, group),
                "forward_s": stage.forward_s,
                "backward_s": stage.backward_s,
                "tail_s": stage.tail_s,
                "memory_bytes": stage.memory_bytes,
                "usable_bytes": stage.usable_bytes,
                "device_bytes": stage.device_bytes,
                "fits": stage.memory_bytes <= stage.usable_bytes,
            }
        )
    return Table.of("stages (per rank; forward and backward per microbatch, tail per step)", rows)


def term_table(prediction: Prediction) -> Table:
    """One row per device group and term; ``unit`` is s/microbatch, s/step or bytes."""
    rows: list[Row] = [
        {"stage": group, "term": term.name, "value": term.value, "unit": term.unit}
        for group, stage in enumerate(prediction.stages)
        for term in (*stage.microbatch_terms, *stage.step_terms, *stage.memory_terms)
    ]
    return Table.of("terms of time and memory (per rank)", rows)


def configuration_table(certificate: Certificate) -> Table:
    """One row per configuration, and one per group of them that a rule excludes.

    ``bound`` is in ticks, ``numerator`` in ticks times the divisor of the objective.
    """
    rows: list[Row] = []
    for fate in certificate.fates:
        numerator: int | None = getattr(fate, "numerator", None)
        rows.append(
            {
                "configuration": fate.configuration,
                "fate": _tag(fate),
                "bound": getattr(fate, "bound", None),
                "numerator": numerator,
                "rule": None,
            }
        )
    rows += [
        {
            "configuration": refusal.degrees,
            "fate": "rule",
            "bound": None,
            "numerator": None,
            "rule": refusal.code,
        }
        for refusal in certificate.refusals
    ]
    return Table.of("configurations and what became of them", rows)


def fate_table(certificate: Certificate) -> Table:
    """Number of configurations by fate; of those excluded by rules, the number of groups."""
    counts = Counter(_tag(fate) for fate in certificate.fates)
    counts["rule"] = len(certificate.refusals)
    rows: list[Row] = [
        {"fate": fate, "configurations": counts[fate], "meaning": meaning}
        for fate, meaning in FATES.items()
        if counts[fate]
    ]
    return Table.of("configurations by fate", rows)


def _tag(fate: msgspec.Struct) -> str:
    return str(fate.__struct_config__.tag)


def _strategies(plan: Plan, group: int) -> str:
    """Strategies of a device group with the number of layers that use them."""
    ends = [sum(plan.sizes[: j + 1]) for j in range(len(plan.sizes))]
    held: Counter[str] = Counter()
    for j in range(group, len(plan.sizes), plan.configuration.pipeline):
        layers = plan.strategies[ends[j] - plan.sizes[j] : ends[j]]
        held.update(strategy.name for strategy in layers)
    if len(held) == 1:
        return next(iter(held))
    return ", ".join(f"{count} {name}" for name, count in held.items())


# --- HTML -------------------------------------------------------------------------------------


def table_html(table: Table) -> str:
    """A table; times in ms, memory in GiB, fractions in %, numbers right-aligned.

    Of a wide table the columns that say the same in every row become a line above it.
    """
    title, columns = _caption(table), _varying(table)
    head = "".join(
        f'<th scope="col" style="{_CELL}text-align:{_side(table, name)};font-weight:600;'
        f'border-bottom:{_LINE}">{escape(_heading(name))}</th>'
        for name in columns
    )
    body = "".join(
        "<tr>"
        + "".join(
            f'<td style="{_CELL}text-align:{_side(table, name)};white-space:normal">'
            f"{escape(_shown(name, row.get(name)))}</td>"
            for name in columns
        )
        + "</tr>"
        for row in table.rows[:MOST_ROWS]
    )
    more = len(table) - MOST_ROWS
    rest = f"<div>and {more} more rows</div>" if more > 0 else ""
    return (
        '<table style="border-collapse:collapse;font-variant-numeric:tabular-nums;color:inherit;'
        'margin:.3em 0">'
        f'<caption style="caption-side:top;text-align:left;color:inherit;font-style:italic">'
        f"{escape(title)}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{rest}"
    )


def _varying(table: Table) -> list[str]:
    """Columns that are worth showing."""
    if len(table.columns) <= _WIDE or len(table) < 2:
        return list(table.columns)
    first = table.rows[0]
    return [c for c in table.columns if any(row[c] != first[c] for row in table.rows)]


def _caption(table: Table) -> str:
    """The title, and what the columns left out say."""
    shown = _varying(table)
    same = {c: table.rows[0][c] for c in table.columns if c not in shown}
    parts = [f"{_heading(c)} {_shown(c, v)}" for c, v in same.items() if v is not None]
    return " · ".join([table.title, *parts])


def facts_html(title: str, facts: Mapping[str, str]) -> str:
    """A heading and pairs of name and value."""
    rows = "".join(
        f'<tr><th scope="row" style="{_CELL}text-align:left;font-weight:400;opacity:.75">'
        f'{escape(name)}</th><td style="{_CELL}text-align:left">{escape(value)}</td></tr>'
        for name, value in facts.items()
    )
    return (
        f'<div style="font-weight:600;margin:.3em 0">{escape(title)}</div>'
        '<table style="border-collapse:collapse;color:inherit;margin:.3em 0">'
        f"<tbody>{rows}</tbody></table>"
    )


def framed(*parts: str) -> str:
    """Parts below each other, on whatever background there is."""
    return f'<div style="color:inherit;line-height:1.35">{"".join(parts)}</div>'


def plan_html(plan: Plan) -> str:
    """A plan: its configuration, predicted step, and stages."""
    prediction = CostModel(plan.model, plan.cluster, plan.job).terms(plan)
    title = f"Plan of {plan.model.name} on {plan.cluster.name}"
    facts = facts_html(title, plan_facts(plan, prediction))
    return framed(facts, table_html(stage_table(plan, prediction)))


def plan_facts(plan: Plan, prediction: Prediction) -> dict[str, str]:
    """What a plan is and what is predicted for it, in words."""
    g, job = plan.configuration, plan.job
    chunks = f", {g.chunks} chunks per device" if g.chunks > 1 else ""
    return {
        "job": f"{job.global_batch} x {job.sequence_length} tokens, {job.precision}, "
        f"{job.optimizer}, {job.stack}",
        "degrees": f"pipeline {g.pipeline}, tensor {g.tensor}"
        f"{' + sequence parallel' if g.sequence_parallel else ''}, context {g.context}, "
        f"data {g.data}",
        "batch": f"{g.microbatches} microbatches of {g.microbatch}, {g.schedule}{chunks}",
        "predicted step": f"{prediction.step_time_s:.6g} s, {prediction.tokens_per_s:,.0f} "
        f"tokens/s, MFU {100 * prediction.mfu:.1f} %",
        "fullest device": f"{prediction.device_bytes / _GIB:.1f} GiB, "
        + ("fits" if prediction.fits else "DOES NOT FIT"),
    }


def certificate_html(certificate: Certificate) -> str:
    """A certificate: the claim, and how every configuration was closed."""
    tick_s = certificate.job.tick_ns * 1e-9
    claim = claim_text(
        certificate.status, certificate.objective_ticks, certificate.bound_ticks, tick_s
    )
    facts = {
        "claim": claim,
        "space": f"{certificate.space} (version {certificate.space_version}), schedules "
        + ", ".join(certificate.schedules),
        "plan": "none" if certificate.plan is None else certificate.plan.configuration,
        "input": f"SHA-256 {certificate.input_hash[:16]}…",
    }
    title = f"Certificate for {certificate.model.name} on {certificate.cluster.name}"
    return framed(facts_html(title, facts), table_html(fate_table(certificate)))


def claim_text(
    status: SearchStatus, objective: int | None, bound: int | None, tick_s: float
) -> str:
    """What is claimed: status, and value and bound in ticks and seconds."""

    def text(ticks: int) -> str:
        return f"{ticks:,} ticks ({ticks * tick_s:.6f} s)"

    parts: list[str] = [status]
    parts += [] if objective is None else [f"step {text(objective)}"]
    parts += [] if bound is None or bound == objective else [f"bound {text(bound)}"]
    return ", ".join(parts)


def _heading(name: str) -> str:
    for ending, unit in (("_bytes", "GiB"), ("_s", "ms")):
        if name.endswith(ending) and name != ending:
            return f"{name.removesuffix(ending).replace('_', ' ')} {unit}"
    if name in _SHARES:
        return f"{name.replace('_', ' ')} %"
    return "s" if name == "seconds" else name.replace("_", " ")


def _side(table: Table, name: str) -> str:
    values = [row.get(name) for row in table.rows]
    numbers = [v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]
    return "right" if numbers else "left"


def _shown(name: str, value: object) -> str:
    """A value as people read it; None is a dash, never a zero."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name.endswith("_bytes"):
        return f"{cast('float', value) / _GIB:.2f}"
    if name.endswith("_s"):
        return f"{1e3 * cast('float', value):,.2f}"
    if name in _SHARES:
        return f"{100 * cast('float', value):.4g}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)
