r"""Exact cuts: exclude an integer point that a float solver took for feasible.

Let the row :math:`\sum_i a_i x_i \le u` be broken at the integer point :math:`x^*`. It is broken as
well wherever :math:`x_i \ge t_i` for all :math:`a_i > 0` and :math:`x_i \le t_i` for all
:math:`a_i < 0`, with :math:`t = x^*`. The excess over ``u`` is first spent on moving the ``t_i``
towards the bounds that make their condition void, the larger coefficients last; ``n`` conditions
remain. The cut says that not all of them hold.

For a 0/1 column the condition is the column itself (or its complement). Otherwise an indicator
:math:`z_i \in \{0, 1\}` stands for it, by

.. math::
    x_i - t_i + 1 \le (U_i - t_i + 1)\, z_i \quad (a_i > 0), \qquad
    t_i - x_i + 1 \le (t_i - L_i + 1)\, z_i \quad (a_i < 0),

and :math:`\sum_i z_i \le n - 1`. Every integer point that keeps the row keeps the cut.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ilp_parallel.program import INFINITY, Family

if TYPE_CHECKING:
    from ilp_parallel.program import IntArray, Program


@dataclass(frozen=True, slots=True)
class _Condition:
    """``sign * x[column] >= sign * threshold``."""

    column: int
    sign: int
    threshold: int


def with_cut(program: Program, row: int, values: IntArray) -> Program | None:
    """The Program with a cut (and its indicator columns) for a row that ``values`` breaks.

    New columns and rows come last. None if a column of the row that needs an indicator is
    unbounded on that side.
    """
    conditions = _conditions(program, row, values)
    indicator_count = 0
    cut: list[tuple[int, int]] = []  # column, coefficient
    links: list[tuple[list[tuple[int, int]], int]] = []  # entries, upper
    limit = len(conditions) - 1
    for condition in conditions:
        lower, upper = int(program.lower[condition.column]), int(program.upper[condition.column])
        if (lower, upper) == (0, 1):
            cut.append((condition.column, condition.sign))
            limit -= condition.sign < 0
            continue
        end = upper if condition.sign > 0 else lower
        if abs(end) >= INFINITY:
            return None
        span = condition.sign * (end - condition.threshold) + 1
        z = program.column_count + indicator_count
        indicator_count += 1
        cut.append((z, 1))
        entries = [(condition.column, condition.sign), (z, -span)]
        links.append((entries, condition.sign * condition.threshold - 1))
    return _extended(program, indicator_count, [*links, (cut, limit)])


def _conditions(program: Program, row: int, values: IntArray) -> list[_Condition]:
    """The conditions that remain after spending the excess."""
    place = slice(int(program.row_start[row]), int(program.row_start[row + 1]))
    columns = program.row_columns[place].tolist()
    coefficients = program.row_values[place].tolist()
    activity = sum(a * int(values[c]) for a, c in zip(coefficients, columns, strict=True))
    above = activity > int(program.row_upper[row])
    turn = 1 if above else -1  # a row broken from below is its negative broken from above
    excess = activity - int(program.row_upper[row]) if above else -activity
    excess += 0 if above else int(program.row_lower[row])
    conditions = []
    for coefficient, column in sorted(
        zip(coefficients, columns, strict=True), key=lambda entry: (abs(entry[0]), entry[1])
    ):
        sign = turn if coefficient > 0 else -turn
        end = int(program.lower[column] if sign > 0 else program.upper[column])
        room = abs(int(values[column]) - end)
        moved = min(room, (excess - 1) // abs(coefficient))
        excess -= moved * abs(coefficient)
        if moved < room:
            conditions.append(_Condition(column, sign, int(values[column]) - sign * moved))
    return conditions


def _extended(
    program: Program, indicators: int, rows: list[tuple[list[tuple[int, int]], int]]
) -> Program:
    """The Program with 0/1 columns and ``<=`` rows appended."""
    tag = len(program.rows)

    def longer(old: IntArray, new: list[int]) -> IntArray:
        return np.concatenate([old, np.array(new, dtype=np.int64)])

    sizes = [len(entries) for entries, _ in rows]
    flat = [entry for entries, _ in rows for entry in entries]
    return replace(
        program,
        columns=(
            *program.columns,
            Family(f"cut_indicator_{tag}", program.column_count, (indicators,)),
        ),
        rows=(*program.rows, Family(f"cut_{tag}", program.row_count, (len(rows),))),
        cost=longer(program.cost, [0] * indicators),
        lower=longer(program.lower, [0] * indicators),
        upper=longer(program.upper, [1] * indicators),
        implied=np.concatenate([program.implied, np.zeros(indicators, dtype=np.bool_)]),
        row_start=longer(program.row_start, (program.row_start[-1] + np.cumsum(sizes)).tolist()),
        row_columns=longer(program.row_columns, [column for column, _ in flat]),
        row_values=longer(program.row_values, [value for _, value in flat]),
        row_lower=longer(program.row_lower, [-INFINITY] * len(rows)),
        row_upper=longer(program.row_upper, [upper for _, upper in rows]),
    )
