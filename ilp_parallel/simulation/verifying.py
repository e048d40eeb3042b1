"""What a certificate about simulated step times is checked with; no solver, no formulation.

Without a pipeline (p = 1) the formula is the simulated time, so there the bounds and the dynamic
program of the formula are used. With one, a configuration is closed by memory or by a bound of
:mod:`ilp_parallel.simulation.bounding`, or stays open.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ilp_parallel.certificate import Solved
from ilp_parallel.configuration import Configuration
from ilp_parallel.simulate import simulate
from ilp_parallel.simulation.bounding import simulated_bound, simulated_floor
from ilp_parallel.spaces import Refusal, enumerate_configurations
from ilp_parallel.verify import Verification

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ilp_parallel.bounds import Multipliers
    from ilp_parallel.certificate import Fate
    from ilp_parallel.costs.model import CostModel
    from ilp_parallel.instances import InstanceBuilder
    from ilp_parallel.problems.check import Check
    from ilp_parallel.problems.pipeline import PipelineInstance, PipelineSolution, Schedule
    from ilp_parallel.spaces import Pins, Space


def simulated_configurations(
    costs: CostModel, space: Space, pins: Pins, schedules: tuple[Schedule, ...]
) -> Iterator[Configuration | Refusal]:
    """Configurations whose plans may be the quickest when played through, and refusals.

    By formula GPipe is never better than 1F1B and is left out beside it. When played it can be,
    where delays are long, so it follows as configurations of its own.
    """
    specs = (costs.model, costs.cluster, costs.job, space, pins)
    if "1f1b" not in schedules or "gpipe" not in schedules:
        yield from enumerate_configurations(*specs, schedules)
        return
    others: tuple[Schedule, ...] = tuple(s for s in schedules if s != "gpipe")
    yield from enumerate_configurations(*specs, others)
    for item in enumerate_configurations(*specs, ("gpipe",)):
        if isinstance(item, Configuration) and item.pipeline > 1:
            yield item


def floor_of(builder: InstanceBuilder, configuration: Configuration) -> int | None:
    """Ticks that no plan of a configuration can beat, without an instance."""
    if configuration.pipeline == 1:
        return builder.work_floor(configuration)
    found = builder.least_work(configuration)
    return None if found is None else simulated_floor(configuration, *found)


def played_ticks(unfolded: PipelineInstance, solution: PipelineSolution) -> int:
    """Simulated step time of a plan, chunk by chunk."""
    return simulate(unfolded, solution).step_ticks


class SimulatedVerification(Verification):
    """The checks with simulated times in place of those of the formula."""

    def enumerated(self) -> Iterator[Configuration | Refusal]:
        """See :func:`simulated_configurations`."""
        c = self._certificate
        return simulated_configurations(self._builder.costs, self._space, c.pins, c.schedules)

    def floors(self, configuration: Configuration) -> Iterator[int | None]:
        """See :func:`floor_of`."""
        yield floor_of(self._builder, configuration)

    def bound(
        self, configuration: Configuration, multipliers: Multipliers | None, claimed: int
    ) -> int:
        """Bound on the plans of the configuration when they are played."""
        if configuration.pipeline == 1:
            return super().bound(configuration, multipliers, claimed)
        unfolded = self._builder.unfolded(configuration)
        bound = simulated_bound(unfolded, multipliers)
        if bound == claimed or multipliers is None:
            return bound
        return simulated_bound(unfolded, multipliers, exact_stages=True)

    def value(self, unfolded: PipelineInstance, solution: PipelineSolution) -> int:
        """The simulated step time."""
        return played_ticks(unfolded, solution)

    def _fate(self, fate: Fate, configuration: Configuration) -> tuple[Check, int | None]:
        """Of a pipeline that is played, solving by formula says only whether any plan fits."""
        check, floor = super()._fate(fate, configuration)
        about_time = isinstance(fate, Solved) and (fate.numerator, fate.cutoff) != (None, None)
        if about_time and configuration.pipeline > 1:
            return replace(check, passed=False), floor
        return check, floor
