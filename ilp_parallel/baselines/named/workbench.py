"""What the named heuristics share: configurations, tables of integers, prices, and the budget."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ilp_parallel.configuration import Configuration, Strategy
from ilp_parallel.instances import InstanceBuilder, plan_of
from ilp_parallel.problems.pipeline import PipelineSolution, evaluate, objective_numerator
from ilp_parallel.spaces import Pins, enumerate_configurations, get_space

if TYPE_CHECKING:
    from ilp_parallel.configuration import Zero
    from ilp_parallel.costs.model import CostModel
    from ilp_parallel.plan import Plan
    from ilp_parallel.problems.pipeline import PipelineInstance, Schedule

IntArray = npt.NDArray[np.int64]

EVERY_SCHEDULE: tuple[Schedule, ...] = ("1f1b", "interleaved")
NO_RECOMPUTATION: tuple[str, ...] = ()
FULL_RECOMPUTATION: tuple[str, ...] = ("full",)


@dataclass(frozen=True, slots=True)
class Effort:
    """What a heuristic may spend.

    Sampling methods price ``evaluations`` plans from the random numbers of ``seed``, so that the
    same effort gives the same plan anywhere. ``seconds`` of wall clock, where given, end any
    heuristic early with the best plan so far, which then depends on the machine.
    """

    seed: int = 0
    evaluations: int = 5000
    seconds: float | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Draft:
    """A plan whose layers are alike: ``counts`` ``[p, K]``, layers by device group and strategy.

    With several chunks per device group the layers of one chunk, which stand for those of all.
    """

    configuration: Configuration
    counts: IntArray


@dataclass(frozen=True, slots=True)
class Price:
    """Objective of a draft, and by how many bytes its device groups exceed their memory."""

    ticks: int
    overflow_bytes: int

    @property
    def fits(self) -> bool:
        """Whether every device group fits."""
        return self.overflow_bytes == 0


class Tables:
    """The integers of one (folded) instance by device group and strategy."""

    def __init__(self, instance: PipelineInstance) -> None:
        self.instance = instance
        self.groups = instance.stages
        self.layers = instance.layers
        self.forward = instance.forward_ticks[0]
        self.backward = instance.backward_ticks[0]
        self.time = self.forward + self.backward
        self.tail = instance.tail_ticks[0]
        self.transient = instance.transient_bytes[0]
        self.fixed_tail = instance.fixed_tail_ticks
        self.fixed_forward = instance.stage_forward_ticks
        self.fixed_backward = instance.stage_backward_ticks
        self.fixed_time = self.fixed_forward + self.fixed_backward
        self.room = instance.capacity_bytes - instance.fixed_bytes
        alive = np.array([int(rows.max()) for rows in instance.in_flight], dtype=np.int64)
        self.memory: IntArray = instance.state_bytes + alive[:, None] * instance.activation_bytes
        self.allowed: IntArray = np.flatnonzero(instance.allowed[0])

    @property
    def microbatches(self) -> int:
        """Microbatches per step."""
        return self.instance.microbatches

    def most_layers(self, strategy: int) -> list[int]:
        """Per device group, how many layers of one strategy fit."""
        left = np.maximum(self.room - self.transient[strategy], -1)
        needed = self.memory[:, strategy]
        most = np.where(needed > 0, left // np.maximum(needed, 1), self.layers)
        fitting: IntArray = np.where(left < 0, 0, np.minimum(most, self.layers))
        return [int(number) for number in fitting]

    @cached_property
    def floor_ticks(self) -> int:
        """No plan of the instance is faster: all work at its cheapest and spread evenly."""
        objective = self.instance.objective
        work = int(self.fixed_time.sum()) + self.layers * int(self.time[self.allowed].min())
        once = int(self.fixed_tail.sum()) + self.layers * int(self.tail[self.allowed].min())
        slowest, tail = -(-work // self.groups), -(-once // self.groups)
        weight = objective.bottlenecks[0].weight
        return objective.ticks(work + weight * slowest + objective.tail_weight * tail)

    def price(self, counts: IntArray) -> Price:
        """What :func:`~ilp_parallel.problems.pipeline.evaluate` says, in a few array operations."""
        objective = self.instance.objective
        forward = (counts @ self.forward + self.fixed_forward).tolist()
        backward = (counts @ self.backward + self.fixed_backward).tolist()
        tail = (counts @ self.tail + self.fixed_tail).tolist()
        numerator = objective_numerator(objective, tuple(forward), tuple(backward), tuple(tail))
        largest = np.where(counts > 0, self.transient, 0).max(axis=1)
        needed = (counts * self.memory).sum(axis=1) + largest
        overflow = int(np.maximum(needed - self.room, 0).sum())
        return Price(objective.ticks(numerator), overflow)


class Workbench:
    """Configurations and prices of one job in space ``mixed``, and the best draft offered so far.

    Parameters
    ----------
    costs
        Prices of one model on one cluster for one job.
    effort
        What may be spent; the clock starts now.
    """

    def __init__(self, costs: CostModel, effort: Effort) -> None:
        self.costs = costs
        self.effort = effort
        self._space = get_space("mixed")
        self._builder = InstanceBuilder(costs, self._space, Pins())
        self._tables: dict[Configuration, Tables] = {}
        self._best: tuple[int, Draft] | None = None
        self._started = time.perf_counter()

    @property
    def expired(self) -> bool:
        """Whether the wall clock has run out."""
        limit = self.effort.seconds
        return limit is not None and time.perf_counter() - self._started >= limit

    def configurations(
        self,
        schedules: tuple[Schedule, ...] = ("1f1b",),
        split_sequences: bool = False,
    ) -> list[Configuration]:
        """The configurations of the space; only if asked for those with context ranks."""
        found = enumerate_configurations(
            self.costs.model,
            self.costs.cluster,
            self.costs.job,
            self._space,
            Pins(),
            schedules,
        )
        return [
            item
            for item in found
            if isinstance(item, Configuration) and (split_sequences or item.context == 1)
        ]

    def tables(self, configuration: Configuration) -> Tables:
        """The integers of a configuration, built once."""
        if configuration not in self._tables:
            self._tables[configuration] = Tables(self._builder.build(configuration))
        return self._tables[configuration]

    def by_floor(self, configurations: list[Configuration]) -> list[Configuration]:
        """Most promising first."""
        return sorted(configurations, key=lambda g: (self.tables(g).floor_ticks, g))

    def strategy(self, configuration: Configuration, zero: Zero, recompute: tuple[str, ...]) -> int:
        """Index of a strategy; ``zero`` means nothing where one rank holds each copy."""
        wanted = Strategy(zero if configuration.shards > 1 else "0", recompute)
        return self.costs.strategies(configuration).index(wanted)

    def uniform(self, configuration: Configuration, strategy: int) -> Draft:
        """One strategy everywhere and even stages."""
        tables = self.tables(configuration)
        counts = np.zeros((tables.groups, len(tables.time)), dtype=np.int64)
        counts[:, strategy] = even_sizes(tables.layers, tables.groups)
        return Draft(configuration, counts)

    @property
    def best_ticks(self) -> int | None:
        """Value of the best draft offered so far that fits."""
        return None if self._best is None else self._best[0]

    def hopeless(self, configuration: Configuration) -> bool:
        """Whether nothing of a configuration can beat the best draft offered so far."""
        best = self.best_ticks
        return best is not None and self.tables(configuration).floor_ticks >= best

    def offer(self, draft: Draft) -> Price:
        """Price a draft and keep it if it fits and is the best so far."""
        price = self.tables(draft.configuration).price(draft.counts)
        if price.fits and (self._best is None or price.ticks < self._best[0]):
            self._best = price.ticks, draft
        return price

    def result(self) -> tuple[Plan, int] | None:
        """Plan and ticks of the best draft, by the evaluation; None if nothing fits.

        Raises
        ------
        RuntimeError
            If the evaluation does not confirm the price: a fault of this package.
        """
        if self._best is None:
            return None
        ticks, draft = self._best
        solution = solution_of(draft)
        evaluation = evaluate(self.tables(draft.configuration).instance, solution)
        if not evaluation.feasible or evaluation.objective_ticks != ticks:
            raise RuntimeError(f"{draft.configuration.name}: the evaluation rejects a draft")
        return plan_of(self.costs, self._space, draft.configuration, solution), ticks


def solution_of(draft: Draft) -> PipelineSolution:
    """The solution that a draft stands for, strategies in rising order within a stage."""
    strategies = np.arange(draft.counts.shape[1])
    order = [k for row in draft.counts for k in np.repeat(strategies, row).tolist()]
    return PipelineSolution(tuple(draft.counts.sum(axis=1).tolist()), tuple(order))


def even_sizes(layers: int, groups: int) -> list[int]:
    """Nearly equal sizes, the first ones larger."""
    size, extra = divmod(layers, groups)
    return [size + (s < extra) for s in range(groups)]
