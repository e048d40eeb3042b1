r"""Is there a plan whose slowest stage takes less than theta? Labels over downsets.

A label of a downset D says: the layers of D can be the last stages of a plan, each stage below
theta, on k devices with s replicas together. Fewer of both is never worse: k only counts, and a
smaller s means fewer microbatches in flight for the stages before. So only labels are kept that no
other label of D beats in both. Downsets are visited by size; a step from D' to D with tensor degree
t and data degree d turns (k, s) into (k + t d, s + d) if the stage's modes can be chosen below
theta with y = 1 + ceil(s / d) microbatches in flight.

What is left out, and why nothing is lost:

* a label on k devices whose rest V \ D needs more than K - k of them: stages below theta with
  degrees (t, d) do less than t d theta device-seconds, and the layers of the rest take at least the
  sum of min over t of t p_v(t); likewise for replicas, with min over t of p_v(t);
* for a step and a label, data degrees above the least one that is accepted: their labels are
  beaten. Below the limit on cost alone d >= (p + x - r) / (theta - r), which skips the small ones.

Arithmetic. Sums are floats; an answer within their margin of error is settled in exact integers.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ilp_parallel.piper.steps import StepPricer
from ilp_parallel.problems.sharding import runs

if TYPE_CHECKING:
    from fractions import Fraction

    from ilp_parallel.piper.steps import Step
    from ilp_parallel.piper.tables import Bools, Floats, Ints, Tables

_NONE = np.iinfo(np.int64).max

_FEW = 100
"""Stages priced in exact integers before compiled code is loaded (chosen): loading takes longer."""


_AT_ONCE = 20_000
"""Further data degrees of all rows looked at together rather than one by one (chosen)."""


class OutOfTimeError(Exception):
    """The deadline passed before the question was settled."""


@dataclass(slots=True)
class _Labels:
    """Labels of all downsets visited so far, in one growing table."""

    table: Ints  # [labels, 6] downset, devices, replicas, label before, tensor and data degree
    count: int = 0

    def append(self, rows: Ints) -> None:
        if self.count + len(rows) > len(self.table):
            grown = np.empty((2 * (self.count + len(rows)), 6), dtype=np.int64)
            grown[: self.count] = self.table[: self.count]
            self.table = grown
        self.table[self.count : self.count + len(rows)] = rows
        self.count += len(rows)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Steps into one downset at one variant, one for each label they start from."""

    label: Ints  # index of the label
    low: Ints  # its downset
    devices: Ints
    replicas: Ints
    base: Floats  # seconds of a stage with one replica
    resync: Floats  # seconds more for every further replica
    crossing: Floats  # part of base: edges over the boundary

    def pick(self, which: Ints) -> _Rows:
        return _Rows(
            self.label[which],
            self.low[which],
            self.devices[which],
            self.replicas[which],
            self.base[which],
            self.resync[which],
            self.crossing[which],
        )


class ChainSearch:
    """Answers the question for one instance and any theta."""

    def __init__(self, tables: Tables, greedy: bool = False, deadline: float = math.inf) -> None:
        self.tables, self.instance = tables, tables.instance
        self._greedy, self._deadline = greedy, deadline
        self._pricer = StepPricer(self.instance, greedy)
        self._exact: dict[tuple[Step, int], Fraction | None] = {}
        self._hard = 0
        self._degrees = np.array(self.instance.data_degrees, dtype=np.int64)

    def chain(self, theta: Fraction | None) -> list[Step] | None:
        """Steps of a plan below theta (None: no limit), last stage first; None if none exists.

        Raises
        ------
        OutOfTimeError
            When the deadline passes.
        """
        if self.tables.unplaceable:
            return None
        self._theta, self._limit = theta, math.inf if theta is None else float(theta)
        last = len(self.tables.masks) - 1
        self._room = self._left_over()
        labels = _Labels(np.empty((1024, 6), dtype=np.int64))
        labels.append(np.array([[0, 0, 0, -1, 0, 0]], dtype=np.int64))
        devices, replicas = self._room
        for high in np.flatnonzero((devices > 0) & (replicas > 0)).tolist():
            if high and time.monotonic() > self._deadline:
                raise OutOfTimeError
            if high:
                labels.append(self._enter(high, labels))
        final = np.flatnonzero(labels.table[: labels.count, 0] == last)
        return self._unwind(labels.table, int(final[0])) if len(final) else None

    def stage_seconds(self, step: Step, in_flight: int) -> Fraction | None:
        """Exact time of a step, remembered."""
        key = (step, in_flight)
        if key not in self._exact:
            self._exact[key] = self._pricer.seconds(step, in_flight)
        return self._exact[key]

    def _left_over(self) -> tuple[Ints, Ints]:
        """[downsets] devices and replicas a label may use at most."""
        tables = self.tables
        margin = 1e-9 + tables.cost_margin / self._limit
        found = []
        for sums, total in (
            (tables.device_seconds, self.instance.devices),
            (tables.seconds, self.instance.replicas),
        ):
            needed = np.ceil((sums[-1] - sums) / self._limit - margin)
            needed[:-1] = np.maximum(needed[:-1], 1)
            found.append(total - np.minimum(np.maximum(needed, 0), total + 1).astype(np.int64))
        return found[0], found[1]

    def _enter(self, high: int, labels: _Labels) -> Ints:
        """New labels of a downset."""
        most = (int(self._room[0][high]), int(self._room[1][high]))
        start = self._starts(high, labels, most)
        frontier = np.full(most[0] + 1, _NONE)
        accepted: list[Ints] = []
        least = self.instance.tensor_degrees[0]
        for part in (start[:1], start[1:]):  # one stage for all of it may beat most other ways
            found = labels.table[part]
            useful = frontier[np.minimum(found[:, 1] + least, most[0])] > found[:, 2] + 1
            if not useful.any():
                continue
            for variant in range(len(self.tables.variants)):
                rows = self._rows(high, variant, found[useful], part[useful])
                self._steps(high, variant, rows, frontier, most[1], accepted)
        if not accepted:
            return np.empty((0, 6), dtype=np.int64)
        return _front(np.concatenate(accepted))

    def _starts(self, high: int, labels: _Labels, most: tuple[int, int]) -> Ints:
        """Labels of smaller downsets from which a stage may lead here."""
        tables, table = self.tables, labels.table[: labels.count]
        start = np.flatnonzero((table[:, 1] < most[0]) & (table[:, 2] < most[1]))
        low = table[start, 0]
        work = tables.device_seconds[high] - tables.device_seconds[low]
        if math.isfinite(self._limit):
            can = (most[0] - table[start, 1]) * self._limit + tables.cost_margin
            start, low = start[work <= can], low[work <= can]
        for word in tables.words:
            inside = word[low] & ~word[high] == 0
            start, low = start[inside], low[inside]
        return start

    def _rows(self, high: int, variant: int, found: Ints, start: Ints) -> _Rows:
        sums = self.tables.variants[variant]
        whole = sums.missing[found[:, 0]] == sums.missing[high]
        found, start = found[whole], start[whole]
        low = found[:, 0]
        passing = self.tables.passing(variant, high)
        heads = np.flatnonzero(passing)
        crossing = sums.enter[high] + sums.leave[low]
        if len(heads):
            crossing -= self.tables.member_float[low[:, None], heads] @ passing[heads]
        base = sums.time[high] - sums.time[low] + crossing
        resync = sums.resync[high] - sums.resync[low]
        return _Rows(start, low, found[:, 1], found[:, 2], base, resync, crossing)

    def _first_degrees(self, rows: _Rows) -> Ints:
        """Index of the least data degree at which the cost may be below theta."""
        margin = self.tables.cost_margin
        wanted = rows.base - rows.resync - margin
        room = self._limit - rows.resync + margin
        least = np.where(wanted <= 0, 1.0, np.inf)
        np.divide(wanted * (1 - 1e-12), room, out=least, where=(wanted > 0) & (room > 0))
        return np.searchsorted(self._degrees, np.ceil(least)).astype(np.int64)

    def _steps(
        self,
        high: int,
        variant: int,
        rows: _Rows,
        frontier: Ints,
        most_replicas: int,
        accepted: list[Ints],
    ) -> None:
        """Accept for every row the least data degree that works, if its label is not beaten."""
        tensor = self.tables.variants[variant].tensor
        index, is_last = self._first_degrees(rows), False
        while True:
            live = np.flatnonzero(index < len(self._degrees))
            degree = self._degrees[index[live]]
            devices, replicas = rows.devices[live] + tensor * degree, rows.replicas[live] + degree
            within = (devices < len(frontier)) & (replicas <= most_replicas)
            within &= frontier[np.minimum(devices, len(frontier) - 1)] > replicas
            if not within.any():
                return
            rows, index, degree = rows.pick(live[within]), index[live[within]], degree[within]
            reached = np.stack((devices[within], replicas[within]), axis=1)
            works = self._judge(high, variant, rows, (degree, reached), frontier)
            new = np.flatnonzero(works)
            if len(new):
                entry = np.empty((len(new), 6), dtype=np.int64)
                entry[:, 0], entry[:, 1:3] = high, reached[new]
                entry[:, 3], entry[:, 4], entry[:, 5] = rows.label[new], tensor, degree[new]
                accepted.append(entry)
            if is_last:
                return
            left = self._further(rows, index, tensor, (len(frontier) - 1, most_replicas))
            left[works] = 0
            is_last = int(left.sum()) <= _AT_ONCE
            rows = rows.pick(np.repeat(np.arange(len(left)), left if is_last else left > 0))
            index = runs(index + 1, left) if is_last else index[left > 0] + 1

    def _further(self, rows: _Rows, index: Ints, tensor: int, most: tuple[int, int]) -> Ints:
        """[rows] number of larger data degrees for which devices and replicas suffice."""
        largest = np.minimum((most[0] - rows.devices) // tensor, most[1] - rows.replicas)
        left: Ints = np.searchsorted(self._degrees, largest, side="right") - index - 1
        return left

    def _judge(
        self, high: int, variant: int, rows: _Rows, labels: tuple[Ints, Ints], frontier: Ints
    ) -> Bools:
        """Whether each stage can be below theta within memory; accepted labels enter frontier."""
        tables, sums, (degree, reached) = self.tables, self.tables.variants[variant], labels
        limit = self.instance.memory / self.instance.units_per_byte
        in_flight = 1 + -(-rows.replicas // degree)
        cost = rows.base + (degree - 1) * rows.resync - self._limit * degree
        margin = tables.memory_margin[0] + tables.memory_margin[1] * in_flight
        used = (sums.activation[high] - sums.activation[rows.low]) * in_flight
        used += sums.fixed[high] - sums.fixed[rows.low] - limit
        works: Bools = (cost < -tables.cost_margin) & (used <= -margin) & sums.plain
        self._enter_frontier(frontier, reached[works])
        open_ = np.flatnonzero(~works & (cost <= tables.cost_margin))
        open_ = open_[frontier[reached[open_, 0]] > reached[open_, 1]]
        if not len(open_):
            return works
        self._hard += len(open_)
        is_compiled = sums.modes is not None and self._hard > _FEW and self._theta is not None
        if not is_compiled:
            least = self._least_use(variant, high, rows.low[open_], in_flight[open_]) - limit
            if self._theta is None:
                sure = open_[least <= -margin[open_]]
                works[sure] = True
                self._enter_frontier(frontier, reached[sure])
                open_, least = open_[~works[open_]], least[~works[open_]]
            open_ = open_[least <= margin[open_]]
        open_ = open_[np.lexsort((reached[open_, 1], reached[open_, 0]))]
        labels = (degree[open_], reached[open_])
        rows = rows.pick(open_)
        works[open_] = self._knapsacks(high, variant, rows, labels, frontier, is_compiled)
        return works

    def _least_use(self, variant: int, high: int, low: Ints, in_flight: Ints) -> Floats:
        """Bytes of each stage with the smallest mode of every layer."""
        use = np.empty(len(low))
        for y in np.unique(in_flight).tolist():
            least, at = self.tables.smallest(variant, y), in_flight == y
            use[at] = least[high] - least[low[at]]
        return use

    def _knapsacks(
        self,
        high: int,
        variant: int,
        rows: _Rows,
        labels: tuple[Ints, Ints],
        frontier: Ints,
        is_compiled: bool,
    ) -> Bools:
        """The same by choosing modes: compiled, then exactly where that is too close to tell."""
        tables, sums, (degree, reached) = self.tables, self.tables.variants[variant], labels
        in_flight = 1 + -(-rows.replicas // degree)
        verdict = np.full(len(degree), 2, dtype=np.int8)
        if is_compiled and sums.modes is not None:
            from ilp_parallel.piper.kernel import judge

            limit = self.instance.memory / self.instance.units_per_byte
            limits = (self._limit, limit, tables.cost_margin, *tables.memory_margin)
            verdict = judge(
                tables.member.view(np.uint8), high, rows.low, reached, degree, in_flight,
                rows.crossing, sums.modes, np.array(limits), frontier, self._greedy,
            )  # fmt: skip
        works: Bools = verdict == 1
        for i in np.flatnonzero(verdict == 2).tolist():
            devices, replicas = reached[i].tolist()
            if frontier[devices] <= replicas:
                continue
            low, mask = int(rows.low[i]), self.tables.masks
            step = (mask[low], mask[high], sums.tensor, int(degree[i]))
            seconds = self.stage_seconds(step, int(in_flight[i]))
            if seconds is not None and (self._theta is None or seconds < self._theta):
                works[i] = True
                self._enter_frontier(frontier, reached[i : i + 1])
        return works

    @staticmethod
    def _enter_frontier(frontier: Ints, reached: Ints) -> None:
        if len(reached):
            np.minimum.at(frontier, reached[:, 0], reached[:, 1])
            np.minimum.accumulate(frontier, out=frontier)

    def _unwind(self, table: Ints, label: int) -> list[Step]:
        """Steps from all layers down to none, first stage of the pipeline first."""
        steps: list[Step] = []
        while table[label, 3] >= 0:
            before = int(table[label, 3])
            masks = self.tables.masks
            low, high = masks[int(table[before, 0])], masks[int(table[label, 0])]
            steps.append((low, high, int(table[label, 4]), int(table[label, 5])))
            label = before
        return steps


def _front(entries: Ints) -> Ints:
    """Labels that no other beats, one of each."""
    entries = entries[np.lexsort((entries[:, 2], entries[:, 1]))]
    lowest = np.minimum.accumulate(entries[:, 2])
    first = np.concatenate(([True], entries[1:, 2] < lowest[:-1]))
    return entries[first]
