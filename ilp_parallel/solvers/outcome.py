"""What every solver adapter returns: status, solution and report, absent values being None."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Callable

    from ilp_parallel.program import Program

IntArray = npt.NDArray[np.int64]
Status = Literal["optimal", "feasible", "infeasible", "unknown"]
Termination = Literal["proven", "time_limit", "cancelled", "solver_limit"]


@dataclass(frozen=True, slots=True)
class SolveOptions:
    """How to run a solver. ``None`` means no limit; nothing is limited silently."""

    time_limit_s: float | None = None
    seed: int = 0
    threads: int = 1
    warm_start: IntArray | None = None  # integer values of all columns
    progress: Callable[[Progress], None] | None = None
    cancelled: Callable[[], bool] | None = None  # polled; true stops the solver


@dataclass(frozen=True, slots=True)
class Progress:
    """A progress report: the incumbent's value and the dual bound, where known."""

    elapsed_s: float
    incumbent: int | None
    bound: float | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one run.

    ``objective`` is the exact integer objective of ``values`` (re-evaluated, offset included).
    ``bound`` is the solver's claim in floating point or, where it works in integers, exact; a
    claim by the solver is a hint, never a proof.
    ``optimal`` means: the solver closed the gap and the re-evaluated integer vector breaks no row.
    """

    status: Status
    termination: Termination
    objective: int | None
    bound: float | None
    values: IntArray | None
    solver: str
    version: str
    seed: int
    build_s: float
    solve_s: float
    cuts_added: int = 0  # exact cuts for rows broken within the solver's tolerance
    messages: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Features:
    """What an adapter can do; an unsupported request is refused before solving."""

    warm_start: bool
    seed: bool
    progress: bool
    cancellation: bool
    relaxation: bool  # can solve the linear relaxation
    exact_integers: bool  # works in integer arithmetic


class Solver(Protocol):
    """A solver adapter: a callable from Program to Outcome with declared features."""

    name: str
    features: Features

    def __call__(self, program: Program, options: SolveOptions) -> Outcome:
        """Solve to proven optimality or until a limit."""
        ...

    def relaxation(self, program: Program) -> float | None:
        """Value of the linear relaxation; None if infeasible. Only with that feature."""
        ...
