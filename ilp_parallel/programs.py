"""Formulations by name, and one instance solved once by one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from formulations import PIPELINE
from ilp_parallel.errors import InputError
from ilp_parallel.solvers.outcome import SolveOptions
from ilp_parallel.solvers.registry import get_solver

if TYPE_CHECKING:
    from formulations.base import Formulation
    from ilp_parallel.problems.pipeline import PipelineInstance
    from ilp_parallel.solvers.outcome import Outcome

FORMULATIONS = tuple(PIPELINE)
"""Names of the formulations, weakest relaxation first."""


def get_formulation(name: str) -> Formulation:
    """The formulation of that name.

    Raises
    ------
    InputError
        ``UNKNOWN_FORMULATION``.
    """
    if name not in PIPELINE:
        raise InputError(
            "UNKNOWN_FORMULATION", f"no formulation {name!r}", f"use one of {', '.join(PIPELINE)}"
        )
    return PIPELINE[name]


def require_applicable(formulation: Formulation, instance: PipelineInstance) -> None:
    """Refuse a pair of formulation and instance before anything is built.

    Raises
    ------
    InputError
        With the formulation's own reason code.
    """
    reason = formulation.refuses(instance)
    if reason is not None:
        code, _, sentence = reason.partition(": ")
        raise InputError(code, sentence.partition("; ")[0], "use --formulation interval")


def solve_configuration(
    instance: PipelineInstance,
    formulation: str,
    solver: str,
    cutoff: int | None = None,
    time_limit_s: float | None = None,
) -> Outcome:
    """Solve one instance once.

    Raises
    ------
    InputError
        Unknown names, or a formulation that does not apply.
    """
    chosen = get_formulation(formulation)
    require_applicable(chosen, instance)
    options = SolveOptions(time_limit_s=time_limit_s)
    return get_solver(solver)(chosen.build(instance, cutoff), options)
