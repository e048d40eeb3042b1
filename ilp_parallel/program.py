"""Solver-neutral integer programs: sparse rows in named families, integers throughout.

A formulation builds a :class:`Program`, a solver adapter runs it. All data are int64, so that a
solution vector can be re-checked exactly; ``INFINITY`` marks an absent bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

INFINITY = 2**62
"""An absent bound; ``-INFINITY`` from below. Larger than any number a Program may hold."""


@dataclass(frozen=True, slots=True)
class Family:
    """A named, consecutive block of columns or rows with named axes.

    ``axes`` holds one label tuple per axis; entry ``(a, b)`` is called ``name[a,b]``.
    A family without axes is a single column or row.
    """

    name: str
    start: int
    shape: tuple[int, ...]
    axes: tuple[tuple[str, ...], ...] = ()

    @property
    def size(self) -> int:
        """Number of entries."""
        return int(np.prod(self.shape, dtype=np.int64))

    def label(self, index: int) -> str:
        """Readable name of the entry at absolute position ``index``."""
        if not self.shape:
            return self.name
        place = np.unravel_index(index - self.start, self.shape)
        names = [self.axes[axis][i] if self.axes else str(int(i)) for axis, i in enumerate(place)]
        return f"{self.name}[{','.join(names)}]"


@dataclass(frozen=True, eq=False)
class Program:
    r"""Minimise ``offset + cost @ x`` subject to ``row_lower <= A x <= row_upper`` and bounds.

    ``A`` is compressed by rows: row ``i`` has the columns
    ``row_columns[row_start[i]:row_start[i + 1]]`` with the coefficients ``row_values[...]``.

    Every column takes integer values. Where ``implied`` is true, integrality follows from that of
    the other columns (for some optimal solution), so a solver may treat the column as continuous.
    """

    name: str
    columns: tuple[Family, ...]
    rows: tuple[Family, ...]
    cost: IntArray  # [columns]
    offset: int
    lower: IntArray  # [columns]
    upper: IntArray  # [columns]
    implied: BoolArray  # [columns]
    row_start: IntArray  # [rows + 1]
    row_columns: IntArray  # [non-zeros]
    row_values: IntArray  # [non-zeros]
    row_lower: IntArray  # [rows]
    row_upper: IntArray  # [rows]

    @property
    def column_count(self) -> int:
        """Number of columns."""
        return len(self.cost)

    @property
    def row_count(self) -> int:
        """Number of rows."""
        return len(self.row_lower)

    @property
    def contradicts_itself(self) -> bool:
        """Whether a row or column has its lower end above its upper end."""
        return bool(np.any(self.lower > self.upper) or np.any(self.row_lower > self.row_upper))

    def objective(self, values: IntArray) -> int:
        """Objective of an integer vector, exactly."""
        return self.offset + sum(
            int(c) * int(x) for c, x in zip(self.cost, values, strict=True) if c
        )

    def activities(self, values: IntArray) -> IntArray:
        """[rows] ``A @ values``, exactly.

        Raises
        ------
        OverflowError
            If a sum does not fit into 64 bits.
        """
        coefficients, factors = self.row_values, values[self.row_columns]
        magnitude = np.abs(coefficients.astype(np.float64)) * np.abs(factors.astype(np.float64))
        if magnitude.sum() >= INFINITY:  # int64 might wrap around: Python's integers instead
            coefficients, factors = coefficients.astype(object), factors.astype(object)
        products = np.append(coefficients * factors, 0)
        sums = np.add.reduceat(products, self.row_start[:-1]) if self.row_count else products[:0]
        return np.where(np.diff(self.row_start) > 0, sums, 0).astype(np.int64)

    def violated_rows(self, values: IntArray) -> IntArray:
        """Indices of the rows that an integer vector breaks, exactly."""
        activity = self.activities(values)
        return np.flatnonzero((activity < self.row_lower) | (activity > self.row_upper))

    def within_bounds(self, values: IntArray) -> bool:
        """Whether an integer vector respects all column bounds."""
        return bool(np.all((values >= self.lower) & (values <= self.upper)))


class ProgramBuilder:
    """Collects columns and rows family by family; :meth:`build` makes the Program.

    ``add_*`` methods take whole numpy blocks, so that a million non-zeros take about a second.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._columns: list[Family] = []
        self._rows: list[Family] = []
        self._column_parts: list[tuple[IntArray, IntArray, IntArray, BoolArray]] = []
        self._row_parts: list[tuple[IntArray, IntArray]] = []
        self._entries: list[tuple[IntArray, IntArray, IntArray]] = []
        self._column_count = 0
        self._row_count = 0
        self.offset = 0

    def add_columns(
        self,
        name: str,
        shape: tuple[int, ...] = (),
        *,
        lower: int | IntArray = 0,
        upper: int | IntArray = 1,
        cost: int | IntArray = 0,
        implied: bool = False,
        axes: tuple[tuple[str, ...], ...] = (),
    ) -> IntArray:
        """Add a family of columns; returns their indices in the given shape."""
        family = Family(name, self._column_count, shape, axes)
        size = family.size

        def flat(value: int | IntArray) -> IntArray:
            return np.broadcast_to(np.asarray(value, dtype=np.int64), shape).reshape(size).copy()

        self._columns.append(family)
        self._column_parts.append(
            (flat(cost), flat(lower), flat(upper), np.full(size, implied, dtype=np.bool_))
        )
        self._column_count += size
        return np.arange(family.start, self._column_count, dtype=np.int64).reshape(shape)

    def add_rows(
        self,
        name: str,
        shape: tuple[int, ...] = (),
        *,
        lower: int | IntArray = -INFINITY,
        upper: int | IntArray = INFINITY,
        axes: tuple[tuple[str, ...], ...] = (),
    ) -> IntArray:
        """Add a family of empty rows; returns their indices in the given shape."""
        family = Family(name, self._row_count, shape, axes)
        size = family.size

        def flat(value: int | IntArray) -> IntArray:
            return np.broadcast_to(np.asarray(value, dtype=np.int64), shape).reshape(size).copy()

        self._rows.append(family)
        self._row_parts.append((flat(lower), flat(upper)))
        self._row_count += size
        return np.arange(family.start, self._row_count, dtype=np.int64).reshape(shape)

    def add_entries(
        self, rows: int | IntArray, columns: int | IntArray, values: int | IntArray
    ) -> None:
        """Add coefficients; the three arguments broadcast. Repeated places add up."""
        r, c, v = np.broadcast_arrays(
            np.asarray(rows, dtype=np.int64),
            np.asarray(columns, dtype=np.int64),
            np.asarray(values, dtype=np.int64),
        )
        self._entries.append((r.ravel(), c.ravel(), v.ravel()))

    def cap_objective(self, name: str, most: int) -> None:
        """Add a row that keeps the objective of the columns there are, offset included, at most so.

        A bound on the objective would do; not every solver takes one.
        """
        cost = np.concatenate([part[0] for part in self._column_parts])
        row = self.add_rows(name, upper=most - self.offset)
        used = np.flatnonzero(cost)
        self.add_entries(row, used, cost[used])

    def build(self) -> Program:
        """The finished Program."""
        empty = np.zeros(0, dtype=np.int64)
        cost, lower, upper, implied = (
            np.concatenate([empty, *(part[i] for part in self._column_parts)]) for i in range(4)
        )
        row_lower, row_upper = (
            np.concatenate([empty, *(part[i] for part in self._row_parts)]) for i in range(2)
        )
        start, columns, values = self._compressed()
        return Program(
            name=self._name,
            columns=tuple(self._columns),
            rows=tuple(self._rows),
            cost=cost.astype(np.int64),
            offset=self.offset,
            lower=lower.astype(np.int64),
            upper=upper.astype(np.int64),
            implied=implied.astype(np.bool_),
            row_start=start,
            row_columns=columns,
            row_values=values,
            row_lower=row_lower,
            row_upper=row_upper,
        )

    def _compressed(self) -> tuple[IntArray, IntArray, IntArray]:
        """Row starts, column indices and values; equal places summed, zeros dropped."""
        empty = np.zeros(0, dtype=np.int64)
        rows, columns, values = (
            np.concatenate([empty, *(part[i] for part in self._entries)]) for i in range(3)
        )
        width = max(self._column_count, 1)
        place, inverse = np.unique(rows * width + columns, return_inverse=True)
        summed = np.zeros(len(place), dtype=np.int64)
        np.add.at(summed, inverse, values)
        place, summed = place[summed != 0], summed[summed != 0]
        rows, columns = np.divmod(place, width)
        start = np.searchsorted(rows, np.arange(self._row_count + 1)).astype(np.int64)
        return start, columns, summed
