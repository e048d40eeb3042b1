"""Steps of a chain of downsets, exactly: what one stage costs and which modes it takes."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from ilp_parallel.piper.knapsack import Choice, cheapest_choice, greedy_choice
from ilp_parallel.problems.piper import PiperInstance, Stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ilp_parallel.piper.knapsack import Option

Step = tuple[int, int, int, int]
"""Downset before and after (bit masks), tensor degree, data degree."""


class StepPricer:
    """Prices steps of one instance; ``greedy`` takes modes as the published program does."""

    def __init__(self, instance: PiperInstance, greedy: bool = False) -> None:
        self.instance = instance
        self._choose = greedy_choice if greedy else cheapest_choice
        self._entering, self._leaving = instance.in_edges(), instance.out_edges()

    def seconds(self, step: Step, in_flight: int) -> Fraction | None:
        """Time of the stage with ``in_flight`` microbatches; None if it does not fit."""
        found = self._best(step, in_flight)
        if found is None:
            return None
        return Fraction(found[0].cost, step[3] * self.instance.units_per_second)

    def stage(self, step: Step, in_flight: int) -> Stage | None:
        """The stage itself."""
        found = self._best(step, in_flight)
        if found is None:
            return None
        layers = members(step[1] & ~step[0])
        return Stage(layers, step[3], step[2], tuple(found[1]))

    def _best(self, step: Step, in_flight: int) -> tuple[Choice, Sequence[int]] | None:
        """The choice, and the index of the mode of each layer."""
        best: tuple[Choice, Sequence[int]] | None = None
        for names in self._names(step):
            options, numbers = self._options(step, in_flight, names)
            if not all(options):
                continue
            choice = self._choose(options, self.instance.memory)
            if choice is not None and (best is None or choice.cost < best[0].cost):
                best = choice, [numbers[v][k] for v, k in enumerate(choice.picks)]
        return best

    def _names(self, step: Step) -> Sequence[str | None]:
        """Mode names a stage may be restricted to; None for any mode of each layer."""
        if not self.instance.one_mode_per_stage:
            return [None]
        layers = members(step[1] & ~step[0])
        return sorted({m.name for v in layers for m in self.instance.modes[v].get(step[2], ())})

    def _options(
        self, step: Step, in_flight: int, name: str | None
    ) -> tuple[list[list[Option]], list[list[int]]]:
        low, high, tensor, data = step
        inside = high & ~low
        options: list[list[Option]] = []
        numbers: list[list[int]] = []
        for v in members(inside):
            row: list[Option] = []
            number: list[int] = []
            for k, mode in enumerate(self.instance.modes[v].get(tensor, ())):
                if name is not None and mode.name != name:
                    continue
                cost = mode.time + (data - 1) * mode.resync
                cost += self._crossing(self._entering[v], mode.enter, 0, inside)
                cost += self._crossing(self._leaving[v], mode.leave, 1, inside)
                row.append((cost, mode.activation * in_flight + mode.fixed))
                number.append(k)
            options.append(row)
            numbers.append(number)
        return options, numbers

    def _crossing(self, edges: Sequence[int], costs: Sequence[int], end: int, inside: int) -> int:
        """Cost of the edges whose other end lies outside the stage."""
        return sum(
            cost
            for edge, cost in zip(edges, costs, strict=True)
            if not inside >> self.instance.edges[edge][end] & 1
        )


def members(mask: int) -> tuple[int, ...]:
    """Bits of a mask, ascending."""
    found = []
    while mask:
        lowest = mask & -mask
        found.append(lowest.bit_length() - 1)
        mask ^= lowest
    return tuple(found)
