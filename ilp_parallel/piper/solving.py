"""One entrance to the exact search, its restrictions, and the published heuristics."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ilp_parallel.errors import InputError
from ilp_parallel.piper.ablations import ABLATIONS, ablated
from ilp_parallel.piper.equal import EQUAL, equal_partition
from ilp_parallel.piper.reasons import Reason, why_infeasible
from ilp_parallel.piper.search import PiperPlanner, PiperResult
from ilp_parallel.problems.piper import evaluate
from ilp_parallel.specs.documents import shown

if TYPE_CHECKING:
    from collections.abc import Callable
    from fractions import Fraction

    from ilp_parallel.problems.piper import PiperInstance, Stage

PIPER_DP = "piper_dp"
"""The published dynamic program: the same search with its greedy choice of modes."""

_SEARCH, _ALL = "bisection over chains of downsets", "enumeration"

MODES = (*ABLATIONS, *EQUAL, PIPER_DP)
"""What ``--ablation`` takes."""


@dataclass(frozen=True, slots=True)
class PiperAnswer:
    """A result, re-checked by ``evaluate``."""

    status: Literal["optimal", "feasible", "infeasible", "unknown"]
    objective: Fraction | None  # seconds per microbatch
    bound: Fraction | None  # of the restricted problem
    plan: tuple[Stage, ...] | None
    stage_seconds: tuple[Fraction, ...]
    verified: bool
    downsets: int | None
    solver: str
    reason: Reason | None = None  # of an infeasible problem

    @property
    def gap(self) -> float | None:
        """(objective - bound) / objective, 0 only where they are equal."""
        if self.objective is None or self.bound is None:
            return None
        if self.objective == self.bound:
            return 0.0
        return max(float((self.objective - self.bound) / self.objective), math.ulp(0.0))


def solve_instance(
    instance: PiperInstance,
    mode: str = "full",
    deadline: float = math.inf,
    progress: Callable[[Fraction | None, Fraction], None] | None = None,
) -> PiperAnswer:
    """Solve under a restriction or with a heuristic of ``MODES``.

    Parameters
    ----------
    deadline
        On the clock of ``time.monotonic``.
    progress
        Called with the best value and the bound, in seconds per microbatch.

    Raises
    ------
    InputError
        ``UNKNOWN_ABLATION``, ``TOO_MANY_DOWNSETS``, or what ``equal_partition`` raises.
    """
    if mode not in MODES:
        message = f"no ablation {shown(mode)}"
        raise InputError("UNKNOWN_ABLATION", message, f"use one of {', '.join(MODES)}")
    if mode in EQUAL:
        return _equal(instance, mode)
    heuristic = mode == PIPER_DP
    limited = instance if heuristic else ablated(instance, mode)
    planner = PiperPlanner(limited, greedy=heuristic, deadline=deadline, progress=progress)
    result = planner.run()
    if heuristic and result.status == "optimal":
        result = PiperResult(
            "feasible", result.objective, planner.work_bound(), result.plan, 0, result.downsets
        )
    return _answer(limited, result, PIPER_DP if heuristic else _SEARCH)


def _equal(instance: PiperInstance, rule: str) -> PiperAnswer:
    found = equal_partition(instance, rule)
    if found is None:
        reason = why_infeasible(instance)
        if reason.code == "STAGES_TOO_LARGE":
            reason = Reason("NO_EQUAL_PARTITION_FITS", "every equal partition exceeds the memory")
        return PiperAnswer("infeasible", None, None, None, (), False, None, _ALL, reason)
    result = PiperResult("optimal", found[0], found[0], found[1], 0, 0)
    return _answer(instance, result, _ALL)


def _answer(instance: PiperInstance, result: PiperResult, solver: str) -> PiperAnswer:
    seconds: tuple[Fraction, ...] = ()
    verified = result.plan is not None
    if result.plan is not None:
        verdict = evaluate(instance, result.plan)
        verified = verdict.feasible and verdict.objective == result.objective
        seconds = verdict.stage_seconds
    return PiperAnswer(
        result.status,
        result.objective,
        result.bound,
        result.plan,
        seconds,
        verified,
        result.downsets or None,
        solver,
        why_infeasible(instance) if result.status == "infeasible" else None,
    )
