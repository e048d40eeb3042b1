r"""A Program in floating point, scaled by powers of two so that no digit is lost.

A float solver accepts a row within an absolute tolerance of about 1e-6. Rows whose largest
coefficient exceeds :data:`SCALED_MAXIMUM` are multiplied by :math:`2^{-k}`; with coefficients of
1e11 (memory in bytes) the tolerance is then worth 0.1 to 0.2 units. The objective is treated alike,
and implied columns with bounds beyond :data:`SCALED_MAXIMUM` (maxima in ticks) are counted in
multiples of a power of two: with bounds of 1e10 HiGHS 1.16.0 was seen to claim false optima.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ilp_parallel.errors import InputError
from ilp_parallel.program import INFINITY

if TYPE_CHECKING:
    from ilp_parallel.program import IntArray, Program

FloatArray = npt.NDArray[np.float64]

SCALED_MAXIMUM = 2**20
"""Largest coefficient left in a row or in the objective.

A compromise: times the usual tolerance of 1e-6 it makes an error of one unit, and it stays within
the span of coefficients that simplex codes handle well.
"""

LARGEST_EXACT = 2**53
"""Integers up to here are exact as IEEE 754 doubles."""


@dataclass(frozen=True, slots=True, eq=False)
class ScaledModel:
    """Float data of a Program; absent bounds are infinite.

    The solver minimises ``cost @ x``; :meth:`unscaled` and :meth:`point` turn its values into the
    Program's, :meth:`start` the Program's into its own.
    """

    cost: FloatArray  # [columns]
    lower: FloatArray  # [columns]
    upper: FloatArray  # [columns]
    row_values: FloatArray  # [non-zeros]
    row_lower: FloatArray  # [rows]
    row_upper: FloatArray  # [rows]
    cost_scale: float  # power of two; cost = cost_scale * the Program's cost
    offset: int
    column_scale: FloatArray  # [columns] powers of two; the Program's column in units of it

    def point(self, values: FloatArray) -> FloatArray:
        """Column values in the Program's units."""
        found: FloatArray = values * self.column_scale
        return found

    def start(self, values: IntArray) -> FloatArray:
        """Values of the first columns of the Program in the solver's units."""
        found: FloatArray = values / self.column_scale[: len(values)]
        return found

    def unscaled(self, value: float) -> float:
        """Objective in the Program's units, offset included."""
        return value / self.cost_scale + self.offset


def scale(program: Program, largest: int = SCALED_MAXIMUM) -> ScaledModel:
    """Float data of a Program; ``largest``, a power of two, is what rows are scaled to.

    Raises
    ------
    InputError
        ``PROGRAM_TOO_LARGE_FOR_FLOATS`` if a number is not exact as a double.
    """
    _require_exact(program)
    starts = program.row_start
    columns = _column_scale(program)
    values = program.row_values * columns[program.row_columns]
    sizes = np.diff(starts)
    peaks = np.zeros(program.row_count, dtype=np.float64)
    filled = sizes > 0
    if filled.any():
        peaks[filled] = np.maximum.reduceat(np.abs(values), starts[:-1][filled])
    factor = _power_of_two(peaks / largest)
    cost = program.cost * columns
    peak_cost = float(np.abs(cost).max(initial=0))
    cost_scale = float(_power_of_two(np.array([peak_cost / SCALED_MAXIMUM]))[0])
    return ScaledModel(
        cost=cost * cost_scale,
        lower=_with_infinity(program.lower) / columns,
        upper=_with_infinity(program.upper) / columns,
        row_values=values * np.repeat(factor, sizes),
        row_lower=_with_infinity(program.row_lower) * factor,
        row_upper=_with_infinity(program.row_upper) * factor,
        cost_scale=cost_scale,
        offset=program.offset,
        column_scale=columns,
    )


def _column_scale(program: Program) -> FloatArray:
    """[columns] units that bring the finite bounds of implied columns down; 1 elsewhere."""
    largest = np.maximum(
        np.where(np.abs(program.lower) < INFINITY, np.abs(program.lower), 0),
        np.where(np.abs(program.upper) < INFINITY, np.abs(program.upper), 0),
    )
    units: FloatArray = 1.0 / _power_of_two(largest / SCALED_MAXIMUM)
    return np.where(program.implied, units, 1.0)


def _power_of_two(excess: FloatArray) -> FloatArray:
    """Per entry the power of two that brings it down to 1; 1 if it is below."""
    factor: FloatArray = np.exp2(-np.ceil(np.log2(np.maximum(excess, 1.0))))
    return factor


def _with_infinity(bounds: IntArray) -> FloatArray:
    absent = np.abs(bounds) >= INFINITY
    return np.where(absent, np.copysign(np.inf, bounds), bounds.astype(np.float64))


def _require_exact(program: Program) -> None:
    bounds = (program.lower, program.upper, program.row_lower, program.row_upper)
    finite = [np.abs(b)[np.abs(b) < INFINITY].max(initial=0) for b in bounds]
    values = [np.abs(v).max(initial=0) for v in (program.cost, program.row_values)]
    largest = max(int(v) for v in (*finite, *values))
    if largest > LARGEST_EXACT:
        raise InputError(
            "PROGRAM_TOO_LARGE_FOR_FLOATS",
            f"{program.name} holds {largest}, above 2**53",
            "use solver cp-sat",
        )
