"""From a configuration to the integers of its pipeline instance (the only rounding there is).

Seconds become ticks and bytes become whole bytes, both rounded up, so a plan that fits in integers
fits, and the integer objective is never below the real one. :func:`rounding_ticks` bounds the
difference.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ilp_parallel.bounds import work_floor
from ilp_parallel.plan import Plan
from ilp_parallel.problems.pipeline import (
    BoolArray,
    IntArray,
    Objective,
    PipelineInstance,
    PipelineSolution,
    Policy,
    objective_of,
)
from ilp_parallel.schedules import in_flight_rows

if TYPE_CHECKING:
    from ilp_parallel.configuration import Configuration, Strategy, Zero
    from ilp_parallel.costs.layer import FloatArray
    from ilp_parallel.costs.model import CostModel
    from ilp_parallel.spaces import Pins, Space


Choices = tuple[tuple[int, tuple[tuple[int, int], ...]], ...]
"""Of each kind of layer: how many there are, and (time, tail) of the strategies that matter."""


class InstanceBuilder:
    """Builds the instances of one space; what only the space decides is computed once.

    Parameters
    ----------
    costs
        Prices of one model on one cluster for one job.
    space, pins
        What may be chosen.
    """

    def __init__(self, costs: CostModel, space: Space, pins: Pins) -> None:
        self.costs = costs
        self.space = space
        self._pins = pins
        self._allowed: dict[tuple[Zero, ...], BoolArray] = {}
        self._possible: dict[tuple[Zero, ...], bool] = {}
        self._names: dict[int, tuple[str, ...]] = {}
        self._policies: dict[tuple[tuple[Zero, ...], int], tuple[Policy, ...] | None] = {}
        self._choices: dict[tuple[object, ...], Choices | None] = {}
        self._layer_class = np.array(costs.model.layer_kinds, dtype=np.int64)
        self._per_kind = np.bincount(self._layer_class, minlength=costs.model.kind_count).tolist()
        self._tick_s = costs.job.tick_ns * 1e-9

    def block_floor(self, configuration: Configuration) -> int | None:
        """As :meth:`work_floor`, without recomputation and ZeRO: no layer table is priced.

        Never above it, since both only add to forward and backward of a block.
        """
        g, tick_s = configuration, self._tick_s
        if not self._any_allowed(g):
            return None
        groups = [
            (count, ((math.ceil(forward_s / tick_s) + math.ceil(backward_s / tick_s), 0),))
            for count, (forward_s, backward_s) in zip(
                self._per_kind, self.costs.blocks_s(g), strict=True
            )
        ]
        objective = objective_of(g.schedule, g.microbatches, g.chunks)
        return objective.ticks(work_floor(objective, groups, g.pipeline, self._end_ticks(g)))

    def work_floor(self, configuration: Configuration) -> int | None:
        """Ticks that no plan can beat, by the work alone; None if no strategy is allowed.

        No instance is built: of what is fixed only the ends of the model count, rounded down.
        """
        g, found = configuration, self.least_work(configuration)
        if found is None:
            return None
        objective = objective_of(g.schedule, g.microbatches, g.chunks)
        return objective.ticks(work_floor(objective, found[0], g.pipeline, found[1]))

    def least_work(self, configuration: Configuration) -> tuple[Choices, int] | None:
        """What layers may cost, and ticks of the ends per microbatch; None: no strategy is allowed.

        The ends are rounded down: sums in floating point never exceed the whole numbers that their
        parts are rounded up to.
        """
        key = self.costs.table_key(configuration)
        if key not in self._choices:
            self._choices[key] = self._undominated_times(configuration)
        choices = self._choices[key]
        if choices is None:
            return None
        return choices, self._end_ticks(configuration)

    def _end_ticks(self, configuration: Configuration) -> int:
        """Ticks of the ends per microbatch, rounded down."""
        work = self.costs.end_work(configuration)
        ends = math.floor((work.embedding_forward_s + work.head_forward_s) / self._tick_s)
        ends += math.floor((work.embedding_backward_s + work.head_backward_s) / self._tick_s)
        return ends

    def _undominated_times(self, configuration: Configuration) -> Choices | None:
        """Of each kind, (time, tail) of the allowed strategies that no other one beats in both."""
        table = self.costs.layer_table(configuration)
        allowed = self._allowed_strategies(configuration)
        time = _ceiling(table.forward_s / self._tick_s) + _ceiling(table.backward_s / self._tick_s)
        tail = _ceiling(table.tail_s / self._tick_s)
        groups = []
        for kind, count in enumerate(self._per_kind):
            pairs: list[tuple[int, int]] = []
            usable = allowed[kind]
            both = zip(time[kind, usable].tolist(), tail[kind, usable].tolist(), strict=True)
            for pair in sorted(both):
                if not pairs or pair[1] < pairs[-1][1]:
                    pairs.append(pair)
            if not pairs:
                return None
            groups.append((count, tuple(pairs)))
        return tuple(groups)

    def rounding_ticks(self, configuration: Configuration) -> int:
        """:func:`rounding_ticks` of the configuration's instance, without building it."""
        g, layers = configuration, self.costs.model.layers
        objective = objective_of(g.schedule, g.microbatches, g.chunks)
        return _rounding_ticks(objective, layers, g.pipeline, g.chunks, self._sizes(g)[1])

    def _sizes(self, configuration: Configuration) -> tuple[int, int]:
        """Least and most layers of a virtual stage."""
        layers, p, v = self.costs.model.layers, configuration.pipeline, configuration.chunks
        if v > 1 or self.space.even_stages:
            return layers // (p * v), layers // (p * v)
        return 1, layers - p + 1

    def build(self, configuration: Configuration) -> PipelineInstance:
        """The instance that is solved. Interleaved chunks of a device group are equal: folded."""
        unfolded = self.unfolded(configuration)
        return fold(unfolded) if configuration.chunks > 1 else unfolded

    def unfolded(self, configuration: Configuration) -> PipelineInstance:
        """The instance with every chunk of its own, as the simulator and the verifier want it."""
        costs = self.costs
        p, v = configuration.pipeline, configuration.chunks
        in_flight = in_flight_rows(configuration.schedule, p, v, configuration.microbatches)
        at_ends = [int(in_flight[s][:, -1 if s else 0].max()) for s in range(p)]
        table = costs.layer_table(configuration)
        stage = costs.stage_costs(configuration, at_ends)
        least, most = self._sizes(configuration)
        tick_s = self._tick_s
        return PipelineInstance(
            stages=p,
            chunks=v,
            microbatches=configuration.microbatches,
            schedule=configuration.schedule,
            layer_class=self._layer_class,
            strategy_names=self._strategy_names(table.strategies),
            allowed=self._allowed_strategies(configuration),
            forward_ticks=_ceiling(table.forward_s / tick_s),
            backward_ticks=_ceiling(table.backward_s / tick_s),
            tail_ticks=_ceiling(table.tail_s / tick_s),
            state_bytes=_ceiling(table.state_bytes),
            activation_bytes=_ceiling(table.activation_bytes),
            transient_bytes=_ceiling(table.transient_bytes),
            fixed_forward_ticks=_ceiling(stage.fixed_forward_s / tick_s),
            fixed_backward_ticks=_ceiling(stage.fixed_backward_s / tick_s),
            fixed_tail_ticks=_ceiling(stage.fixed_tail_s / tick_s),
            fixed_bytes=_ceiling(stage.fixed_bytes),
            cut_ticks=_ceiling(stage.cut_s / tick_s),
            capacity_bytes=np.full(p, stage.capacity_bytes, dtype=np.int64),
            min_layers=np.full(p * v, least, dtype=np.int64),
            max_layers=np.full(p * v, most, dtype=np.int64),
            in_flight=in_flight,
            policies=self._policies_of(configuration, most),
        )

    def _strategy_names(self, strategies: tuple[Strategy, ...]) -> tuple[str, ...]:
        key = len(strategies)
        if key not in self._names:
            self._names[key] = tuple(strategy.name for strategy in strategies)
        return self._names[key]

    def _allowed_strategies(self, configuration: Configuration) -> BoolArray:
        """[Q, K] what space and pins leave."""
        key = self.space.zero_of(configuration)
        if key not in self._allowed:
            strategies = self.costs.strategies(configuration)
            row = np.array([self._allow(strategy, key) for strategy in strategies])
            self._allowed[key] = np.tile(row, (self.costs.model.kind_count, 1))
        return self._allowed[key]

    def _allow(self, strategy: Strategy, zero: tuple[Zero, ...]) -> bool:
        return (
            strategy.zero in zero
            and strategy.recompute in self.space.recompute
            and self._pins.allow_strategy(strategy)
        )

    def _any_allowed(self, configuration: Configuration) -> bool:
        """Whether every kind of block has an allowed strategy."""
        key = self.space.zero_of(configuration)
        if key not in self._possible:
            allowed = self._allowed_strategies(configuration)
            self._possible[key] = bool(allowed.any(axis=1).all())
        return self._possible[key]

    def _policies_of(
        self, configuration: Configuration, largest_stage: int
    ) -> tuple[Policy, ...] | None:
        key = self.space.zero_of(configuration), largest_stage
        if key not in self._policies:
            strategies = self.costs.strategies(configuration)
            self._policies[key] = _policies(self.space, strategies, *key)
        return self._policies[key]


def fold(instance: PipelineInstance) -> PipelineInstance:
    """Equal chunks in one: a layer stands for the layers at its place in all chunks of its group.

    Exact: a solution of the folded instance and the same solution copied into every chunk have
    equal numerators, and equal memory because with equal chunks the activations are their number
    alive in all chunks together times those of one chunk.
    """
    p, v = instance.stages, instance.chunks

    def per_group(values: IntArray) -> IntArray:
        summed: IntArray = values.reshape(v, p).sum(axis=0)
        return summed

    return PipelineInstance(
        stages=p,
        chunks=1,
        microbatches=instance.microbatches,
        schedule=instance.schedule,
        layer_class=instance.layer_class[: instance.layers // v],
        strategy_names=instance.strategy_names,
        allowed=instance.allowed,
        forward_ticks=instance.forward_ticks * v,
        backward_ticks=instance.backward_ticks * v,
        tail_ticks=instance.tail_ticks * v,
        state_bytes=instance.state_bytes * v,
        activation_bytes=instance.activation_bytes,
        transient_bytes=instance.transient_bytes,
        fixed_forward_ticks=per_group(instance.stage_forward_ticks),
        fixed_backward_ticks=per_group(instance.stage_backward_ticks),
        fixed_tail_ticks=instance.fixed_tail_ticks,
        fixed_bytes=instance.fixed_bytes,
        cut_ticks=np.zeros(p - 1, dtype=np.int64),
        capacity_bytes=instance.capacity_bytes,
        min_layers=instance.min_layers[:p],
        max_layers=instance.max_layers[:p],
        in_flight=tuple(
            np.array([[int(rows.sum(axis=1).max())]], dtype=np.int64) for rows in instance.in_flight
        ),
        policies=instance.policies,
        fold=v,
    )


def unfold(solution: PipelineSolution, chunks: int) -> PipelineSolution:
    """A folded solution copied into every chunk."""
    return PipelineSolution(solution.sizes * chunks, solution.strategies * chunks)


def plan_of(
    costs: CostModel, space: Space, configuration: Configuration, solution: PipelineSolution
) -> Plan:
    """The plan of a (folded) solution."""
    whole = unfold(solution, configuration.chunks)
    strategies = costs.strategies(configuration)
    return Plan(
        model=costs.model,
        cluster=costs.cluster,
        job=costs.job,
        space=space.name,
        configuration=configuration,
        sizes=whole.sizes,
        strategies=tuple(strategies[k] for k in whole.strategies),
    )


def rounding_ticks(instance: PipelineInstance) -> int:
    """Upper bound on integer minus real objective of any solution, in ticks.

    Every rounded term adds less than one tick, as often as the objective counts it. ``fold`` terms
    are counted as often as they were summed.
    """
    chunks = instance.fold * instance.chunks
    layers, most = instance.layers * instance.fold, int(instance.max_layers.max())
    return _rounding_ticks(instance.objective, layers, instance.stages, chunks, most)


def _rounding_ticks(objective: Objective, layers: int, stages: int, chunks: int, most: int) -> int:
    """``most``: layers of a virtual stage."""
    largest = most * chunks
    weight = sum(term.weight for term in objective.bottlenecks)
    everywhere = 2 * layers + 4 * stages * chunks
    one_group = 2 * largest + 4 * chunks
    total = everywhere + weight * one_group + objective.tail_weight * (largest + 1)
    return objective.ticks(total) + 1


def _ceiling(values: FloatArray) -> IntArray:
    return np.ceil(values).astype(np.int64)


def _policies(
    space: Space, strategies: tuple[Strategy, ...], zero: tuple[Zero, ...], largest_stage: int
) -> tuple[Policy, ...] | None:
    """The policies of a space over the strategies of a configuration."""
    if space.freedom == "per-layer":
        return None
    usable = [k for k, s in enumerate(strategies) if s.zero in zero]
    policies = [Policy(k, 0, k) for k in usable]
    if space.freedom == "policy":
        by_name = {(s.zero, s.recompute): k for k, s in enumerate(strategies)}
        policies += [
            Policy(by_name[zero, ("full",)], block, by_name[zero, ()])
            for zero in dict.fromkeys(strategies[k].zero for k in usable)
            for block in range(1, largest_stage)
        ]
    return tuple(policies)
