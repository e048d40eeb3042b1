r"""``random``, ``annealing`` and ``mcmc``: plans sampled with random numbers.

``random``. Uniform sampling, the yardstick of every other search: a configuration, then one
strategy for all layers or, as often, one for each device group, stages even. No source.

``annealing``. Simulated annealing (Kirkpatrick, Gelatt and Vecchi, Science 220, 1983) over complete
plans: a move changes the degrees to near ones, moves one layer over a cut, or changes some layers
of one device group. The energy is the logarithm of the step time, with memory that is exceeded as
a penalty; the temperature falls geometrically.

``mcmc``. FlexFlow's search (Jia, Zaharia and Aiken, "Beyond data and model parallelism for deep
neural networks", MLSys'19, section 6.2; ``FFModel::mcmc_optimize`` and ``rewrite`` of its
``model.cc``): from data parallelism on, a random part gets a random configuration; faster plans are
accepted, slower ones with probability ``exp(-alpha * difference)``, times in milliseconds, with an
``alpha`` of 1; every megabyte exceeded on a device counts a millisecond; after each hundredth of
the budget the search returns to the best plan. Departures: an operator's configuration is its
degrees and its devices, which all layers share here or almost so; a proposal therefore draws, each
as often, new degrees for the whole model, a new cut between two stages, or a new strategy for one
layer. FlexFlow has neither pipeline schedules nor recomputation; its search is used on both.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ilp_parallel.baselines.named.workbench import EVERY_SCHEDULE, Draft, Workbench

if TYPE_CHECKING:
    from ilp_parallel.baselines.named.workbench import Effort, IntArray, Price
    from ilp_parallel.configuration import Configuration
    from ilp_parallel.costs.model import CostModel
    from ilp_parallel.plan import Plan

HOTTEST, COLDEST = 0.3, 0.001
"""First and last temperature of ``annealing``, in units of the logarithm of the time (chosen)."""

OVERFLOW_WEIGHT = 10.0
"""Energy for each whole capacity of the cluster that is exceeded (chosen)."""

NEAR = 2.0
"""Degrees are near if their logarithms to base 2 differ by so much in sum: one factor of two moved
from one degree to another (chosen)."""

MCMC_ALPHA = 1.0
"""Per millisecond (``searchAlpha`` of FlexFlow's defaults)."""


def random_plans(costs: CostModel, effort: Effort) -> tuple[Plan, int] | None:
    """The best of so many random plans; None if none of them fits."""
    sampler = _Sampler(costs, effort)
    if not sampler.every:
        return None
    for _ in range(effort.evaluations):
        if sampler.bench.expired:
            break
        configuration = sampler.any_configuration()
        counts = sampler.uniform_counts(configuration)
        if sampler.rng.random() < 0.5:
            for row in counts:
                size = int(row.sum())
                row[:] = 0
                row[sampler.any_strategy(configuration)] = size
        sampler.bench.offer(Draft(configuration, counts))
    return sampler.bench.result()


def annealing(costs: CostModel, effort: Effort) -> tuple[Plan, int] | None:
    """The best plan met while cooling down; None if none of them fits."""
    sampler = _Sampler(costs, effort)
    if not sampler.every:
        return None
    configuration = sampler.any_configuration()
    current = Draft(configuration, sampler.uniform_counts(configuration))
    energy = sampler.energy(current, sampler.bench.offer(current))
    for step in range(1, effort.evaluations):
        if sampler.bench.expired:
            break
        temperature = HOTTEST * (COLDEST / HOTTEST) ** (step / effort.evaluations)
        proposal = sampler.near(current)
        other = sampler.energy(proposal, sampler.bench.offer(proposal))
        if accepted((energy - other) / temperature, sampler.rng.random()):
            current, energy = proposal, other
    return sampler.bench.result()


def mcmc(costs: CostModel, effort: Effort) -> tuple[Plan, int] | None:
    """The best plan FlexFlow's proposals meet; None if none of them fits."""
    sampler = _Sampler(costs, effort)
    if not sampler.every:
        return None
    start = max(sampler.every, key=lambda g: (g.data, -g.pipeline, -g.microbatch))
    current = best = sampler.bench.uniform(start, 0)
    cost = lowest = sampler.milliseconds(current, sampler.bench.offer(current))
    span = min(max(effort.evaluations // 100, 1), 1000)
    for step in range(1, effort.evaluations):
        if sampler.bench.expired:
            break
        if step % span == 0:
            current, cost = best, lowest
        proposal = sampler.proposal(current)
        other = sampler.milliseconds(proposal, sampler.bench.offer(proposal))
        if other < lowest:
            best, lowest = proposal, other
        if accepted(MCMC_ALPHA * (cost - other), sampler.rng.random()):
            current, cost = proposal, other
    return sampler.bench.result()


def accepted(exponent: float, draw: float) -> bool:
    """Metropolis: always if the exponent is positive, else with its exponential as probability."""
    return exponent > 0 or draw < math.exp(exponent)


class _Sampler:
    """Random plans of one job and their neighbours."""

    def __init__(self, costs: CostModel, effort: Effort) -> None:
        self.bench = Workbench(costs, effort)
        self.rng = np.random.default_rng(effort.seed)
        self.every = self.bench.configurations(EVERY_SCHEDULE, split_sequences=True)
        self._features = np.array([_features(g) for g in self.every])
        self._index = {g: i for i, g in enumerate(self.every)}
        self._tick_ms = costs.job.tick_ns * 1e-6

    def any_configuration(self) -> Configuration:
        """One of all configurations."""
        return self.every[int(self.rng.integers(len(self.every)))]

    def any_strategy(self, configuration: Configuration) -> int:
        """One of the strategies that are allowed."""
        return int(self.rng.choice(self.bench.tables(configuration).allowed))

    def uniform_counts(self, configuration: Configuration) -> IntArray:
        """Even stages, one random strategy."""
        return self.bench.uniform(configuration, self.any_strategy(configuration)).counts

    def energy(self, draft: Draft, price: Price) -> float:
        """Energy of ``annealing``: no unit."""
        instance = self.bench.tables(draft.configuration).instance
        exceeded = price.overflow_bytes / int(instance.capacity_bytes.sum())
        return math.log(max(price.ticks, 1)) + OVERFLOW_WEIGHT * exceeded

    def milliseconds(self, draft: Draft, price: Price) -> float:
        """Cost of ``mcmc``: step time, and a millisecond per megabyte exceeded on any device."""
        configuration = draft.configuration
        devices = configuration.devices // configuration.pipeline
        return price.ticks * self._tick_ms + price.overflow_bytes * devices * 1e-6

    def near(self, draft: Draft) -> Draft:
        """A neighbour for ``annealing``."""
        kind = int(self.rng.integers(3))
        if kind == 0:
            here = self._features[self._index[draft.configuration]]
            distance = np.abs(self._features - here).sum(axis=1)
            near = np.flatnonzero((distance > 0) & (distance <= NEAR))
            if len(near):
                return self._carried_over(draft, self.every[int(self.rng.choice(near))])
        if kind == 1:
            moved = self._cut_moved(draft)
            if moved is not None:
                return moved
        return self._changed(draft, most=draft.counts.sum())

    def proposal(self, draft: Draft) -> Draft:
        """A proposal of ``mcmc``."""
        kind = int(self.rng.integers(3))
        if kind == 0:
            return self._carried_over(draft, self.any_configuration())
        if kind == 1:
            moved = self._cut_moved(draft)
            if moved is not None:
                return moved
        return self._changed(draft, most=1)

    def _carried_over(self, draft: Draft, configuration: Configuration) -> Draft:
        """The most frequent strategy everywhere in other degrees, stages even."""
        old = self.bench.costs.strategies(draft.configuration)
        frequent = old[int(draft.counts.sum(axis=0).argmax())]
        zero = frequent.zero
        if draft.configuration.shards == 1:
            variants = sorted({s.zero for s in self.bench.costs.strategies(configuration)})
            zero = variants[int(self.rng.integers(len(variants)))]
        return self.bench.uniform(
            configuration, self.bench.strategy(configuration, zero, frequent.recompute)
        )

    def _cut_moved(self, draft: Draft) -> Draft | None:
        """A layer moved over one cut; None if there is no cut that may move."""
        groups = len(draft.counts)
        if groups == 1 or draft.configuration.chunks > 1:
            return None
        cut = int(self.rng.integers(groups - 1))
        giver, taker = (cut, cut + 1) if self.rng.random() < 0.5 else (cut + 1, cut)
        if draft.counts[giver].sum() == 1:
            return None
        counts = draft.counts.copy()
        k = int(self.rng.choice(np.flatnonzero(counts[giver])))
        counts[giver, k] -= 1
        counts[taker, k] += 1
        return Draft(draft.configuration, counts)

    def _changed(self, draft: Draft, most: int) -> Draft:
        """Some layers of one device group, at most so many, in another strategy."""
        counts = draft.counts.copy()
        sizes = counts.sum(axis=1)
        group = int(self.rng.choice(len(counts), p=sizes / sizes.sum()))
        shares = counts[group] / counts[group].sum()
        old = int(self.rng.choice(len(shares), p=shares))
        number = int(self.rng.integers(1, min(int(counts[group, old]), most) + 1))
        counts[group, old] -= number
        counts[group, self.any_strategy(draft.configuration)] += number
        return Draft(draft.configuration, counts)


def _features(configuration: Configuration) -> list[float]:
    """Logarithms of what a configuration fixes; the number of microbatches follows."""
    g = configuration
    degrees = (g.pipeline, g.tensor, g.data, g.context, g.microbatch, g.chunks)
    return [*(math.log2(degree) for degree in degrees), float(g.sequence_parallel)]
