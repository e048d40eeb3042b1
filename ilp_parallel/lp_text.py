"""A Program as text in the LP format that most solvers read, with the families' names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ilp_parallel.program import INFINITY

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ilp_parallel.program import Family, Program

TERMS_PER_LINE = 8

_RESERVED = re.compile(
    r"^(?:[\d.]|e\d*$|(?:min|max|minimi[sz]e|maximi[sz]e|subject|such|st|s\.t\.|bounds?|free|"
    r"inf|infinity|gen|generals?|int|integers?|bin|binary|binaries|semi|sos\d?|end)$)",
    re.IGNORECASE,
)


def write_lp(program: Program) -> str:
    """The Program in LP format.

    Entry ``x[3,1]`` is called ``x(3,1)``; characters the format does not allow become ``_``, and a
    name taken already gets ``~2``, ``~3`` and so on. A row with two different ends is written
    twice, the lower one with the suffix ``~low``. All columns are integers.
    """
    columns = _names(program.columns)
    rows = _names(program.rows)
    families = ", ".join(f"{f.name}{list(f.shape)}" for f in program.columns)
    parts = [
        f"\\ {_legal(program.name)}: {program.column_count} columns, {program.row_count} rows",
        f"\\ columns {families}",
        "Minimize",
        *_objective(program, columns),
        "Subject To",
        *_rows(program, rows, columns),
        "Bounds",
        *_bounds(program, columns),
        "General",
        *(f" {name}" for name in columns),
        "End",
        "",
    ]
    return "\n".join(parts)


def _legal(label: str) -> str:
    """The label with legal characters only, and not like a number or a keyword."""
    name = re.sub(r"[^A-Za-z0-9_(),.]", "_", label.replace("[", "(").replace("]", ")"))
    return f"_{name}" if _RESERVED.match(name) else name


def _names(families: tuple[Family, ...]) -> list[str]:
    taken: dict[str, int] = {}
    names = []
    for family in families:
        for index in range(family.start, family.start + family.size):
            name = _legal(family.label(index))
            taken[name] = taken.get(name, 0) + 1
            names.append(name if taken[name] == 1 else f"{name}~{taken[name]}")
    return names


def _terms(entries: Iterable[tuple[int, str]]) -> Iterator[str]:
    """Lines of signed terms."""
    line: list[str] = []
    for coefficient, name in entries:
        line.append(f"{'-' if coefficient < 0 else '+'} {abs(coefficient)} {name}")
        if len(line) == TERMS_PER_LINE:
            yield "  " + " ".join(line)
            line = []
    if line:
        yield "  " + " ".join(line)


def _objective(program: Program, columns: list[str]) -> Iterator[str]:
    yield " cost:"
    yield from _terms((c, x) for c, x in zip(program.cost.tolist(), columns, strict=True) if c)
    if program.offset:
        yield f"  {'-' if program.offset < 0 else '+'} {abs(program.offset)}"


def _rows(program: Program, rows: list[str], columns: list[str]) -> Iterator[str]:
    ends, indices, values = (
        array.tolist() for array in (program.row_start, program.row_columns, program.row_values)
    )
    limits = zip(rows, program.row_lower.tolist(), program.row_upper.tolist(), strict=True)
    for row, (name, lower, upper) in enumerate(limits):
        place = range(ends[row], ends[row + 1])
        entries = [(values[i], columns[indices[i]]) for i in place] or [(0, columns[0])]
        for suffix, relation, limit in _sides(lower, upper):
            yield f" {name}{suffix}:"
            yield from _terms(entries)
            yield f"  {relation} {limit}"


def _sides(lower: int, upper: int) -> list[tuple[str, str, int]]:
    if lower == upper:
        return [("", "=", lower)]
    sides = []
    if upper < INFINITY:
        sides.append(("", "<=", upper))
    if lower > -INFINITY:
        sides.append(("~low" if sides else "", ">=", lower))
    return sides


def _bounds(program: Program, columns: list[str]) -> Iterator[str]:
    for name, lower, upper in zip(
        columns, program.lower.tolist(), program.upper.tolist(), strict=True
    ):
        low = str(lower) if lower > -INFINITY else "-inf"
        high = str(upper) if upper < INFINITY else "+inf"
        yield f" {low} <= {name} <= {high}"
