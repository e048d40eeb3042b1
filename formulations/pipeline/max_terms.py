"""Columns for the ``max`` terms of the objective, shared by all formulations of the family."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from ilp_parallel.problems.pipeline import PipelineInstance
    from ilp_parallel.program import ProgramBuilder

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class MaxTerms:
    """Column indices: one bottleneck per term of the objective, and the largest tail."""

    bottlenecks: IntArray  # [D]
    tail: IntArray  # []


def add_max_terms(
    builder: ProgramBuilder,
    instance: PipelineInstance,
    lower: IntArray,
    upper: IntArray,
) -> MaxTerms:
    """Bounded integer columns with the objective's weights.

    ``lower`` and ``upper`` are ``[D + 1]`` ticks: each bottleneck, then the largest tail.
    """
    objective = instance.objective
    bottlenecks = builder.add_columns(
        "bottleneck",
        (len(objective.bottlenecks),),
        lower=lower[:-1],
        upper=upper[:-1],
        cost=np.array([term.weight for term in objective.bottlenecks], dtype=np.int64),
        implied=True,
        axes=(tuple(_name(term.forward, term.backward) for term in objective.bottlenecks),),
    )
    tail = builder.add_columns(
        "largest_tail",
        lower=int(lower[-1]),
        upper=int(upper[-1]),
        cost=objective.tail_weight,
        implied=True,
    )
    return MaxTerms(bottlenecks, tail)


def _name(forward: bool, backward: bool) -> str:
    if forward and backward:
        return "forward+backward"
    return "forward" if forward else "backward"
