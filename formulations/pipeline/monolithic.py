r"""Monolithic formulation: the choice among configurations inside the model.

Sets
----
configurations ``g = 0..G-1``, each an instance with a Program of a base formulation,
:math:`\min o_g + c_g x_g` subject to :math:`\ell_g \le A_g x_g \le u_g`, bounds
:math:`\underline{x}_g \le x_g \le \overline{x}_g`, and an objective in units of
:math:`1/d_g` ticks; :math:`D` the least common multiple of the divisors :math:`d_g`.

Variables
---------
:math:`z_g \in \{0,1\}` whether configuration ``g`` is chosen; :math:`x_g` its own columns, all zero
otherwise.

Objective (units of ``1/D`` ticks)
----------------------------------
.. math:: \min \sum_g (D / d_g) (o_g z_g + c_g x_g)

Constraints
-----------
(1) one configuration (``one_configuration``): :math:`\sum_g z_g = 1`.

(2) rows from above (``rows_above``): :math:`A_g x_g \le u_g z_g` where ``u`` is finite.

(3) rows from below (``rows_below``): :math:`A_g x_g \ge \ell_g z_g` where ``l`` is finite.

(4) columns from above (``columns_above``): :math:`x_g \le \overline{x}_g z_g`.

(5) columns from below (``columns_below``): :math:`x_g \ge \underline{x}_g z_g` where it is not 0.

This is the disjunctive model of Balas (1979): its relaxation is the convex hull of the union of
the relaxations of the configurations, so its bound is the least of theirs, and nothing is gained
over solving them one by one with bounds, which is what a search over configurations does.

Source: E. Balas, Disjunctive programming, Annals of Discrete Mathematics 5 (1979) 3-51.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ilp_parallel.program import INFINITY, ProgramBuilder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from formulations.base import Formulation
    from formulations.pipeline.labels import BoolArray, IntArray
    from ilp_parallel.problems.pipeline import PipelineInstance, PipelineSolution
    from ilp_parallel.program import Program


@dataclass(frozen=True, slots=True)
class _Block:
    """One configuration inside the joint model."""

    program: Program
    choice: int  # column of z
    columns: IntArray  # [columns of the program]


@dataclass(frozen=True, slots=True)
class _Model:
    """What the constraint families see."""

    builder: ProgramBuilder
    blocks: list[_Block]


def _one_configuration(model: _Model) -> None:
    """(1) ``sum_g z_g = 1``."""
    row = model.builder.add_rows("one_configuration", lower=1, upper=1)
    model.builder.add_entries(row, np.array([block.choice for block in model.blocks]), 1)


def _rows_above(model: _Model) -> None:
    """(2) ``A x <= u z``."""
    for block in model.blocks:
        limit = block.program.row_upper
        kept = limit < INFINITY
        rows = model.builder.add_rows("rows_above", (int(kept.sum()),), upper=0)
        _copy_rows(model.builder, block, kept, rows, limit)


def _rows_below(model: _Model) -> None:
    """(3) ``A x >= l z``."""
    for block in model.blocks:
        limit = block.program.row_lower
        kept = limit > -INFINITY
        rows = model.builder.add_rows("rows_below", (int(kept.sum()),), lower=0)
        _copy_rows(model.builder, block, kept, rows, limit)


def _copy_rows(
    builder: ProgramBuilder, block: _Block, kept: BoolArray, rows: IntArray, limit: IntArray
) -> None:
    """The kept rows of a block, their limit multiplied by z and moved to the left."""
    program = block.program
    row_of_entry = np.repeat(np.arange(program.row_count), np.diff(program.row_start))
    used = kept[row_of_entry]
    place = np.cumsum(kept) - 1
    columns = block.columns[program.row_columns[used]]
    builder.add_entries(rows[place[row_of_entry[used]]], columns, program.row_values[used])
    builder.add_entries(rows, block.choice, -limit[kept])


def _columns_above(model: _Model) -> None:
    """(4) ``x <= upper z``."""
    for block in model.blocks:
        rows = model.builder.add_rows("columns_above", block.columns.shape, upper=0)
        model.builder.add_entries(rows, block.columns, 1)
        model.builder.add_entries(rows, block.choice, -block.program.upper)


def _columns_below(model: _Model) -> None:
    """(5) ``x >= lower z`` where the lower bound is not 0."""
    for block in model.blocks:
        kept = np.flatnonzero(block.program.lower != 0)
        rows = model.builder.add_rows("columns_below", kept.shape, lower=0)
        model.builder.add_entries(rows, block.columns[kept], 1)
        model.builder.add_entries(rows, block.choice, -block.program.lower[kept])


FAMILIES: dict[int, Callable[[_Model], None]] = {
    1: _one_configuration,
    2: _rows_above,
    3: _rows_below,
    4: _columns_above,
    5: _columns_below,
}
"""Builder of each numbered constraint family; the row families have the function's name."""


@dataclass(frozen=True, slots=True)
class Monolithic:
    """Several configurations in one Program; for teaching and cross-checks on small instances."""

    base: Formulation
    name: str = "monolithic"
    reference: str = "Balas, Disjunctive programming, 1979"

    def refuses(self, instances: Sequence[PipelineInstance]) -> str | None:
        """Whatever the base formulation refuses."""
        return next((r for i in instances if (r := self.base.refuses(i)) is not None), None)

    def build(self, instances: Sequence[PipelineInstance]) -> Program:
        """The joint Program; its objective is in units of ``1 / common_divisor(instances)``."""
        common = common_divisor(instances)
        builder = ProgramBuilder(f"{self.name}-{self.base.name}")
        blocks = []
        for index, instance in enumerate(instances):
            program = self.base.build(instance)
            scale = common // instance.objective.divisor
            choice = builder.add_columns(f"configuration{index}", cost=scale * program.offset)
            parts = [
                builder.add_columns(
                    f"{family.name}@{index}",
                    family.shape,
                    lower=np.minimum(program.lower[own], 0).reshape(family.shape),
                    upper=np.maximum(program.upper[own], 0).reshape(family.shape),
                    cost=(scale * program.cost[own]).reshape(family.shape),
                    implied=bool(program.implied[own].all()),
                    axes=family.axes,
                ).reshape(-1)
                for family in program.columns
                for own in (slice(family.start, family.start + family.size),)
            ]
            blocks.append(_Block(program, int(choice), np.concatenate(parts)))
        for add in FAMILIES.values():
            add(_Model(builder, blocks))
        return builder.build()

    def decode(
        self, instances: Sequence[PipelineInstance], values: IntArray
    ) -> tuple[int, PipelineSolution]:
        """The chosen configuration and its solution."""
        first = 0
        for index, instance in enumerate(instances):
            count = self.base.build(instance).column_count
            if values[first] == 1:
                return index, self.base.decode(instance, values[first + 1 : first + 1 + count])
            first += 1 + count
        raise ValueError("no configuration is chosen")


def common_divisor(instances: Sequence[PipelineInstance]) -> int:
    """Least common multiple of the divisors of the objectives."""
    return math.lcm(*(instance.objective.divisor for instance in instances))
