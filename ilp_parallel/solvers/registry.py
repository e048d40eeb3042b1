"""Solvers by name. An adapter, and the solver behind it, is imported when first asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from ilp_parallel.errors import InputError

if TYPE_CHECKING:
    from ilp_parallel.solvers.outcome import Solver

SOLVERS: dict[str, tuple[str, str]] = {
    "highs": ("ilp_parallel.solvers.highs", "HighsSolver"),
    "cp-sat": ("ilp_parallel.solvers.cpsat", "CpSatSolver"),
    "cbc": ("ilp_parallel.solvers.pulp_cbc", "CbcSolver"),
    "scip": ("ilp_parallel.solvers.scip", "ScipSolver"),
}
"""Module and class of each adapter."""


def get_solver(name: str) -> Solver:
    """The adapter called ``name``.

    Raises
    ------
    InputError
        ``UNKNOWN_SOLVER`` if there is none.
    """
    if name not in SOLVERS:
        raise InputError("UNKNOWN_SOLVER", f"solver {name!r}", f"use one of {', '.join(SOLVERS)}")
    module, adapter = SOLVERS[name]
    solver: Solver = getattr(importlib.import_module(module), adapter)()
    return solver
