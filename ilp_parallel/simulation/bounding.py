r"""Lower bounds on the simulated step time of every plan of a configuration, in exact integers.

What is bounded is ``Simulation.step_ticks``: the end of the last tail, each device group starting
its tail when its own last operation ends. Notation of ``docs/time_model.md``; ``X = F + B``, delays
apart, and :math:`\tau` the tail. For every plan and every device group ``s``:

* ``1f1b``: :math:`S + (m - w_s) X_s + (w_s - 1) \max(F_s, B_s) + \tau_0` with
  :math:`w_s = \min(m, p - s)` (LB2, and stage 0 ends last but for its tail), and, for ``m > p``,
  :math:`S + \lfloor (m - 1) / p \rfloor S + \tau_0` (LB3 with the cycle from the first to the last
  stage and back, which pays all delays);
* ``gpipe``: :math:`S + (m - 1) X_s + \tau_0` (Theorem 8);
* ``interleaved``: :math:`H_s + m X_s + \tau_0` with :math:`H_s` over chunks 0 (LB1);
* any of them: :math:`\sum_{j<s} (F_j + c_j) + m X_s + \tau_s`.

Over all plans of a configuration each sum is at least the sum of least parts, and the largest of
the terms that depend on ``s`` is at least the least limit under which the layers can still be
placed. What ``n`` layers on device group ``s`` take at least is that of the Lagrangian bound
(:mod:`ilp_parallel.bounds`), for which :math:`\max(F, B) \ge B \ge \rho X`, ``rho`` the least share
of the backward of any strategy. Where layers are of several kinds, memory is left out. With *exact
stages* the least times of stages of about even size are solved exactly in its place.

*Floor*: the same with less, without an instance. With :math:`a_s` the weight of :math:`X_s` beside
``S``, :math:`\max_s a_s X_s \ge S / \sum_s (1 / a_s)`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from ilp_parallel.bounds import Multipliers
from ilp_parallel.instances import fold
from ilp_parallel.lagrangian import PRODUCT_LIMIT, LagrangianTables, weights
from ilp_parallel.simulation.exact_stages import ExactStages

if TYPE_CHECKING:
    from ilp_parallel.configuration import Configuration
    from ilp_parallel.instances import Choices
    from ilp_parallel.problems.pipeline import IntArray, PipelineInstance, Schedule

_SCALE = 1 << 40
_SHARE = 1 << 20  # so that products with any time stay within 64 bits
_MANY = 2**40


def simulated_floor(configuration: Configuration, choices: Choices, ends_ticks: int) -> int:
    """Ticks that no plan of a configuration of several stages can beat, by its work alone.

    Parameters
    ----------
    configuration
        With at least two stages.
    choices, ends_ticks
        As :meth:`~ilp_parallel.instances.InstanceBuilder.least_work` gives them.
    """
    g, m = configuration, configuration.microbatches
    whole = ends_ticks + sum(n * min(time for time, _ in pairs) for n, pairs in choices)
    tail = min(tail for _, pairs in choices for _, tail in pairs)
    both = sum(n * min(m * time + tail for time, tail in pairs) for n, pairs in choices)
    average = -(-(both + m * ends_ticks) // g.pipeline)
    if g.schedule == "interleaved":
        layers = sum(n for n, _ in choices)
        least = min(time for _, pairs in choices for time, _ in pairs)
        way = (g.pipeline - 1) * (layers // (g.pipeline * g.chunks)) * least
        busiest = max(m * layers // g.pipeline * least + way, -(-m * whole // g.pipeline))
        return max(busiest + layers // g.pipeline * tail, average)
    longest = whole + whole * _SCALE // _harmonic(g.schedule, g.pipeline, m) if m > 1 else whole
    if g.schedule == "1f1b" and m > g.pipeline:
        longest = max(longest, whole + (m - 1) // g.pipeline * whole)
    return max(longest + tail, average)


@lru_cache(maxsize=4096)
def _harmonic(schedule: Schedule, stages: int, microbatches: int) -> int:
    """At least ``_SCALE`` times the sum of ``1 / a_s``; ``max(F, B)`` counts as half of X."""
    total = 0
    for s in range(stages):
        held = min(microbatches, stages - s) if schedule == "1f1b" else 1
        halves = 2 * (microbatches - held) + held - 1
        total += -(-2 * _SCALE // halves)
    return total


def simulated_multipliers(unfolded: PipelineInstance) -> Multipliers | None:
    """Good multipliers for :func:`simulated_bound`; None where memory is left out."""
    if len(unfolded.forward_ticks) > 1 or not unfolded.allowed.any():
        return None
    instance = fold(unfolded) if unfolded.chunks > 1 else unfolded
    tables = LagrangianTables(instance)
    even = -(-instance.layers // instance.stages)
    sizes: IntArray = np.clip(even, instance.min_layers, instance.max_layers)
    denominator, part = tables.best_multipliers(tables.time, sizes)
    costs = tables.stage_costs(tables.time, denominator, part)
    rows = tuple(tuple(row) for row in part.tolist())
    return Multipliers(denominator, rows, tables.layer_price(tables.time, costs), 1, ())


def simulated_bound(
    unfolded: PipelineInstance, multipliers: Multipliers | None, *, exact_stages: bool = False
) -> int:
    """Ticks that no plan of the instance can beat when its schedule is played through.

    Parameters
    ----------
    unfolded
        Of a configuration with at least two stages and some strategy for every layer.
    multipliers
        Of memory and number of layers; None leaves memory out.
    exact_stages
        Solve stages of about even size exactly; only with multipliers.

    Raises
    ------
    ValueError
        If the multipliers do not have the shape of the instance or are negative.
    """
    return _Floor(unfolded, multipliers, exact_stages).bound()


class _Floor:
    """Least times of ``n`` layers on every device group, and the bounds that they add up to."""

    def __init__(
        self, unfolded: PipelineInstance, multipliers: Multipliers | None, exact: bool
    ) -> None:
        self._unfolded, self._multipliers = unfolded, multipliers
        self._folded = fold(unfolded) if unfolded.chunks > 1 else unfolded
        self._exact = exact
        self._m, self._p, self._v = unfolded.microbatches, unfolded.stages, unfolded.chunks
        allowed = unfolded.allowed
        time = unfolded.forward_ticks + unfolded.backward_ticks
        self._time = np.where(allowed, time, _MANY)
        self._least_forward = int(np.where(allowed, unfolded.forward_ticks, _MANY).min())
        self._least_tail = int(np.where(allowed, unfolded.tail_ticks, _MANY).min())
        pairs = (unfolded.backward_ticks[allowed].tolist(), time[allowed].tolist())
        shares = [(b * _SHARE) // x for b, x in zip(*pairs, strict=True) if x > 0]
        self._share = min(shares, default=0)  # of the backward in the time, times _SHARE
        both = unfolded.fixed_forward_ticks + unfolded.fixed_backward_ticks
        self._fixed = both.reshape(self._v, self._p)  # [v, p]
        self._cuts = np.append(unfolded.cut_ticks, 0)

    def bound(self) -> int:
        """The best of the bounds."""
        if self._multipliers is None:
            return self._without_memory()
        tables, chosen = LagrangianTables(self._folded), self._multipliers
        part = tables.checked(tables.time, chosen.sum_part, chosen.sum_denominator)
        if abs(chosen.layer_price) > tables.largest_price:
            raise ValueError("multiplier of the number of layers too large")
        costs = tables.stage_costs(tables.time, chosen.sum_denominator, part)
        if self._exact:
            self._solved(1, 0).raise_to(costs, range(self._p))
        if self._v == 1:
            return max(self._by_first_stage(tables, costs), self._ends(tables, None))
        size = self._folded.layers // self._p
        busy = costs[:, size].tolist()
        whole = sum(busy) + int(self._fixed.sum()) + 2 * int(self._cuts.sum())
        return max(self._even_chunks(busy, whole), self._ends(tables, size))

    def _solved(self, time_weight: int, tail_weight: int) -> ExactStages:
        """Stages solved exactly for weighed time and tail."""
        folded = self._folded
        time = folded.forward_ticks + folded.backward_ticks
        return ExactStages(folded, time_weight * time + tail_weight * folded.tail_ticks)

    def _joint_costs(
        self, tables: LagrangianTables, time_weight: int, stages: range
    ) -> IntArray | None:
        """[p, n] of weighed time plus tail, exact on some stages if wanted; None: out of range."""
        assert self._multipliers is not None
        weight, tail_weight = weights(self._folded.objective)
        tail = (tables.joint - weight * tables.time) // tail_weight
        shift = time_weight.bit_length()  # with larger costs go larger multipliers
        denominator = self._multipliers.sum_denominator >> shift
        if denominator < 1:
            return None
        part = self._multipliers.sum_part
        rows = tuple(tuple(time_weight * x >> shift for x in row) for row in part)
        cost = time_weight * tables.time + tail
        costs = tables.stage_costs(cost, denominator, tables.checked(cost, rows, denominator))
        if self._exact:
            self._solved(time_weight, 1).raise_to(costs, stages)
        return costs

    # --- one chunk ---------------------------------------------------------------------------

    def _added(self, stages: IntArray, layers_ticks: IntArray) -> IntArray:
        """What stages add to S if their layers take at least so long: X and ``max(F, B)`` weighed.

        Shapes broadcast.
        """
        m, unfolded = self._m, self._unfolded
        held = np.minimum(m, self._p - stages)
        if unfolded.schedule == "gpipe":
            held = np.ones_like(stages)
        backward = (layers_ticks * self._share) // _SHARE + unfolded.fixed_backward_ticks[stages]
        time = layers_ticks + self._fixed[0, stages]
        added: IntArray = (m - held) * time + (held - 1) * backward
        return added

    def _weighted(self, costs: IntArray) -> IntArray:
        """[p, n] what device group s adds to S where it holds n layers."""
        fits = costs < PRODUCT_LIMIT
        added = self._added(np.arange(self._p)[:, None], np.where(fits, costs, 0))
        limited: IntArray = np.where(fits, np.minimum(added, PRODUCT_LIMIT), PRODUCT_LIMIT)
        return limited

    @property
    def _cycles(self) -> int:
        """How often LB3 goes from the first stage to the last and back beyond once."""
        cyclic = self._unfolded.schedule == "1f1b" and self._m > self._p
        return (self._m - 1) // self._p if cyclic else 0

    def _by_first_stage(self, tables: LagrangianTables, costs: IntArray) -> int:
        """The least, over the layers of the first stage, of what it and all others then take.

        Its tail follows everything, so few layers there are good for the tail, and bad for others.
        """
        assert self._multipliers is not None
        price, layers, around = self._multipliers.layer_price, self._folded.layers, 1 + self._cycles
        sizes = np.arange(costs.shape[1])
        usable = (sizes >= self._folded.min_layers[:, None]) & (costs < PRODUCT_LIMIT)
        paid = np.where(usable, costs - price * sizes, PRODUCT_LIMIT).min(axis=1)[1:].tolist()
        if max(paid) >= PRODUCT_LIMIT:
            return PRODUCT_LIMIT
        once, cyclic = (self._joint_costs(tables, w, range(1)) for w in (1, around))
        weighted = self._weighted(costs)
        limits = np.sort(weighted[1:, 1:].ravel())
        fixed = int(self._fixed.sum()) + 2 * int(self._cuts.sum())
        best = PRODUCT_LIMIT
        for size in np.flatnonzero(usable[0]).tolist():
            left = layers - size
            if not self._p - 1 <= left <= len(limits):
                continue
            limit = max(int(limits[left - 1]), int(weighted[0, size]))
            if limit >= PRODUCT_LIMIT:
                continue
            own, others = int(costs[0, size]), sum(paid) + price * left + fixed
            least = size * self._least_tail
            joint = own + least if once is None else int(once[0, size])
            turning = around * own + least if cyclic is None else int(cyclic[0, size])
            best = min(best, max(joint + others + limit, turning + around * others))
        return best + int(self._unfolded.fixed_tail_ticks[0])

    # --- several chunks, all of one size -----------------------------------------------------

    def _even_chunks(self, busy: list[int], whole: int) -> int:
        """LB1: the way down the first chunks and up again, and the work of one group."""
        way, best = 0, whole
        for s, layers_ticks in enumerate(busy):
            fixed = self._fixed[:, s].tolist()
            best = max(best, way + self._m * (layers_ticks + sum(fixed)))
            way += -(-layers_ticks // self._v) + fixed[0] + 2 * int(self._cuts[s])
        size = int(self._unfolded.min_layers[0]) * self._v
        return best + size * self._least_tail + int(self._unfolded.fixed_tail_ticks[0])

    # --- time and tail together --------------------------------------------------------------

    def _ends(self, tables: LagrangianTables, size: int | None) -> int:
        """The work of one group and its own tail, from when it can start; any schedule."""
        costs = self._joint_costs(tables, self._m, range(self._p))
        if costs is None:
            return 0
        fixed = self._m * self._fixed.sum(axis=0) + self._unfolded.fixed_tail_ticks + self._starts()
        joint = np.minimum(costs + fixed[:, None], PRODUCT_LIMIT)
        if size is None:
            return tables.least_peak(joint)
        return int(joint[:, size].max())

    def _starts(self) -> IntArray:
        """[p] when the first operation of every device group can start."""
        forward = self._unfolded.fixed_forward_ticks + self._cuts
        forward = forward + self._unfolded.min_layers * self._least_forward
        starts: IntArray = np.concatenate(([0], np.cumsum(forward[: self._p - 1])))
        return starts

    # --- layers of several kinds -------------------------------------------------------------

    def _without_memory(self) -> int:
        """Every layer at its quickest, memory left out."""
        per_layer: list[int] = self._time.min(axis=1)[self._unfolded.layer_class].tolist()
        whole = sum(per_layer) + int(self._fixed.sum()) + 2 * int(self._cuts.sum())
        if self._v > 1:
            size = int(self._unfolded.min_layers[0])
            ranges = [sum(per_layer[j * size : (j + 1) * size]) for j in range(self._p * self._v)]
            groups = [sum(ranges[s :: self._p]) for s in range(self._p)]
            return self._even_chunks(groups, whole)
        added = max(self._least_limit(per_layer), self._cycles * whole)
        first = self._least_tail * int(self._unfolded.min_layers[0])
        return whole + added + first + int(self._unfolded.fixed_tail_ticks[0])

    def _least_limit(self, per_layer: list[int]) -> int:
        """Least limit on what a stage adds under which consecutive ranges hold all layers."""
        low, high = 0, max(self._adds(s, sum(per_layer)) for s in range(self._p))
        while low < high:
            middle = (low + high) // 2
            if self._places_all(per_layer, middle):
                high = middle
            else:
                low = middle + 1
        return low

    def _adds(self, stage: int, layers_ticks: int) -> int:
        return int(self._added(np.array(stage), np.array(layers_ticks)))

    def _places_all(self, per_layer: list[int], limit: int) -> bool:
        """Whether stages that take as many layers as they may have taken all in the end."""
        placed = 0
        for s in range(self._p):
            ticks, last = 0, placed + int(self._unfolded.max_layers[s])
            while placed < min(len(per_layer), last):
                if self._adds(s, ticks + per_layer[placed]) > limit:
                    break
                ticks += per_layer[placed]
                placed += 1
        return placed == len(per_layer)
