"""The least bottleneck: bisection until the bounds meet, each answer exact.

``ChainSearch`` decides whether a plan below theta exists. A plan found lowers the incumbent to its
exact value; a refuted theta raises the bound to it. The search ends with theta equal to the
incumbent: when nothing below it exists, bound and value are the same rational number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

from ilp_parallel.piper.chains import ChainSearch, OutOfTimeError
from ilp_parallel.piper.tables import Tables
from ilp_parallel.problems.piper import Stage, evaluate

if TYPE_CHECKING:
    from collections.abc import Callable

    from ilp_parallel.piper.steps import Step
    from ilp_parallel.problems.piper import PiperInstance

_CLOSE = Fraction(1, 10**7)
"""Relative gap below which bisection stops and the incumbent itself is asked for (chosen)."""

_FIRST_RISE = Fraction(1, 1000)
"""Relative distance of the first question from the bound (chosen); it grows fourfold."""

_LAST_RISE = 2
"""Beyond this relative distance the next question has no limit (chosen)."""

_PATIENCE = 4
"""Refutations in a row after which the incumbent itself is asked for (chosen)."""


@dataclass(frozen=True, slots=True)
class PiperResult:
    """Outcome of a search. ``bound`` is 0 before anything is known; equal values mean optimal."""

    status: Literal["optimal", "feasible", "infeasible", "unknown"]
    objective: Fraction | None
    bound: Fraction | None
    plan: tuple[Stage, ...] | None
    questions: int
    downsets: int


class PiperPlanner:
    """Exact search; with ``greedy`` the published program's choice of modes instead."""

    def __init__(
        self,
        instance: PiperInstance,
        *,
        greedy: bool = False,
        deadline: float = math.inf,
        progress: Callable[[Fraction | None, Fraction], None] | None = None,
    ) -> None:
        self.instance, self._greedy = instance, greedy
        self.tables = Tables(instance)
        self._search = ChainSearch(self.tables, greedy, deadline)
        self._deadline, self._progress = deadline, progress
        self._questions = 0
        self._value: Fraction | None = None
        self._plan: tuple[Stage, ...] | None = None
        self._bound = self.work_bound()

    def run(self) -> PiperResult:
        """Search until proven or out of time."""
        try:
            self._gallop()
            if self._value is None and not self._ask(None):
                return self._result("infeasible")
            refuted = 0
            while self._value is not None and self._bound < self._value:
                self._report()
                close = self._value - self._bound <= self._value * _CLOSE
                middle = Fraction(float((self._bound + self._value) / 2))
                if close or refuted >= _PATIENCE or not self._bound < middle < self._value:
                    middle = self._value
                refuted = 0 if self._ask(middle) else refuted + 1
        except OutOfTimeError:
            return self._result("unknown" if self._value is None else "feasible")
        return self._result("optimal")

    def _gallop(self) -> None:
        """Questions from the bound upwards: the low ones are quick, and most values lie there."""
        rise = _FIRST_RISE
        while self._bound and rise < _LAST_RISE:
            self._report()
            if self._ask(Fraction(float(self._bound * (1 + rise)))):
                return
            rise *= 4

    def _ask(self, theta: Fraction | None) -> bool:
        self._questions += 1
        steps = self._search.chain(theta)
        if steps is None:
            if theta is not None:
                self._bound = max(self._bound, theta)
            return False
        plan = self._built(steps)
        value = evaluate(self.instance, plan).objective
        assert value is not None and (theta is None or value < theta)
        if self._value is None or value < self._value:
            self._value, self._plan = value, plan
        return True

    def _built(self, steps: list[Step]) -> tuple[Stage, ...]:
        """The stages of a chain, modes chosen for the replicas it really has."""
        from ilp_parallel.piper.steps import StepPricer

        pricer, replicas, plan = StepPricer(self.instance, self._greedy), 0, []
        for step in reversed(steps):
            replicas += step[3]
            stage = pricer.stage(step, -(-replicas // step[3]))
            assert stage is not None
            plan.append(stage)
        return tuple(reversed(plan))

    def work_bound(self) -> Fraction:
        """Device-seconds of all layers over all devices, and of each layer at its best degrees."""
        instance = self.instance
        work, single = Fraction(0), Fraction(0)
        for by_degree in instance.modes:
            options = [(t, m) for t in instance.tensor_degrees for m in by_degree.get(t, ())]
            if not options:
                continue
            work += min(t * mode.time for t, mode in options)
            least = min(
                Fraction(mode.time + (d - 1) * mode.resync, d)
                for t, mode in options
                for d in instance.data_degrees[:1] + instance.data_degrees[-1:]
            )
            single = max(single, least)
        return max(work / instance.devices, single) / instance.units_per_second

    def _report(self) -> None:
        if self._progress is not None:
            self._progress(self._value, self._bound)

    def _result(
        self, status: Literal["optimal", "feasible", "infeasible", "unknown"]
    ) -> PiperResult:
        bound = None if status == "infeasible" else self._bound
        if status == "optimal":
            assert self._value is not None
            bound = self._value
        return PiperResult(
            status, self._value, bound, self._plan, self._questions, len(self.tables.masks)
        )
