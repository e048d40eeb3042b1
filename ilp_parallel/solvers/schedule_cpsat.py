r"""CP-SAT model of the ``schedule`` family: intervals instead of rows.

Sets
----
Pairs ``(j, i)`` of a stage and a microbatch of its route; kinds ``F, B, W``; devices ``d``.

Variables
---------
An interval per operation; its start is an integer between what leads to it and what follows.
Per pair, where offered: :math:`r_{ji}` recompute, :math:`o_{ji}` offload, and intervals of the two
transfers, present if :math:`o_{ji}`. The makespan ``C``.

Objective
---------
.. math:: \min C

Constraints
-----------
(1) data (``data``): ``F`` after the ``F`` before it and the delay; ``B`` after the ``B`` behind
    it; ``W`` after ``B``.

(2) devices (``devices``): the intervals of a device do not overlap.

(3) memory (``memory``): where ``B`` and ``W`` give back what ``F`` takes, two intervals per pair,
    from the start of ``F`` to the end of ``B`` and on to the end of ``W``, hold their memory: a
    cumulative constraint per device. Elsewhere a reservoir, filled and emptied by the operations.

(4) order (``order``): operation ``i`` of a kind and stage ends before ``i + 1`` starts. Any
    schedule without transfers and recomputation can be renumbered so: sort the starts of each kind
    and stage; the ``i``-th smallest of values each above another list's are above that list's
    ``i``-th smallest, so (1) stays, and memory depends on counts alone. With transfers or
    recomputation the order is a restriction: bounds of the model are not used.

(5) transfers (``transfers``): after ``F``, away, back, before ``B``; no overlap on a link; the
    memory of an offloaded part is held from ``F`` to the end of the first and from the start of
    the second.

Parts of OR-Tools' presolve that gave false optima stay off, as in
:mod:`ilp_parallel.solvers.cpsat`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ilp_parallel.problems.schedule import B, F, ScheduleSolution, W

if TYPE_CHECKING:
    from collections.abc import Callable

    from ortools.sat.python import cp_model

    from ilp_parallel.problems.schedule import ScheduleInstance


@dataclass(frozen=True, slots=True)
class ScheduleOutcome:
    """What CP-SAT found: the best schedule, if any, and its bound where it holds for all."""

    solution: ScheduleSolution | None
    bound: int | None
    proven: bool  # the schedule is best, or there is none
    wall_s: float


def solve_schedule(
    instance: ScheduleInstance,
    low: int,
    high: int,
    hint: ScheduleSolution | None,
    time_limit_s: float,
    threads: int = 1,
    seed: int = 0,
    report: Callable[[int, int], None] = lambda *_: None,
) -> ScheduleOutcome:
    """Look for a schedule with a makespan from ``low`` to ``high``.

    ``hint`` may have a larger makespan than ``high``. ``bound`` and ``proven`` are about schedules
    up to ``high``: infeasible means that ``high + 1`` is a bound.
    """
    from ortools.sat.python import cp_model

    began = time.monotonic()
    model = _Model(instance, low, high)
    if hint is not None:
        model.hint(hint)

    class Watch(cp_model.CpSolverSolutionCallback):
        """Reports every schedule."""

        def on_solution_callback(self) -> None:
            report(round(self.objective_value), round(self.best_objective_bound))

    solver = cp_model.CpSolver()
    parameters = solver.parameters
    parameters.num_workers = threads
    parameters.random_seed = seed
    parameters.max_time_in_seconds = max(time_limit_s, 1e-3)
    parameters.keep_all_feasible_solutions_in_presolve = True
    parameters.presolve_inclusion_work_limit = 0
    status = solver.status_name(solver.solve(model.cp, Watch()))
    if status == "MODEL_INVALID":
        raise RuntimeError(f"CP-SAT refused the model: {model.cp.validate()}")
    exact = not (instance.offers_offload or instance.offers_recomputation)
    found = model.solution(solver) if status in ("OPTIMAL", "FEASIBLE") else None
    bound = None
    if exact:
        bound = high + 1 if status == "INFEASIBLE" else None
        if found is not None:
            bound = int(np.ceil(solver.best_objective_bound - 1e-6))
        elif status == "UNKNOWN":
            bound = max(low, int(np.ceil(solver.best_objective_bound - 1e-6)))
    proven = exact and status in ("OPTIMAL", "INFEASIBLE")
    return ScheduleOutcome(found, bound, proven, time.monotonic() - began)


class _Model:
    """Variables and constraint families of one instance."""

    def __init__(self, instance: ScheduleInstance, low: int, high: int) -> None:
        from ortools.sat.python import cp_model

        self.instance = instance
        self.cp = cp_model.CpModel()
        self.high = high
        self.stage = instance.pair_stage.tolist()
        self.device = instance.stage_device.tolist()
        self.ticks = instance.durations().tolist()
        self.makespan = self.cp.new_int_var(low, high, "makespan")
        self.recomputed = self._choices(instance.recompute_memory.tolist())
        self.offloaded = self._choices(instance.offload_memory.tolist())
        kinds = range(instance.kinds)
        self.start = [[self._start() for _ in self.stage] for _ in kinds]
        self.length = [[self._length(k, pair) for pair in range(instance.pairs)] for k in kinds]
        self.end = [[self._end(k, pair) for pair in range(instance.pairs)] for k in kinds]
        self.transfer_starts: dict[int, tuple[cp_model.IntVar, cp_model.IntVar]] = {}
        self.data()
        self.devices()
        self.order()
        self.transfers()
        self.memory()
        self.cp.minimize(self.makespan)

    def _start(self) -> cp_model.IntVar:
        return self.cp.new_int_var(0, self.high, "")

    def _choices(self, memory: list[int]) -> dict[int, cp_model.IntVar]:
        """A Boolean for every pair of a stage that offers something."""
        offered = [pair for pair, j in enumerate(self.stage) if memory[j] > 0]
        return {pair: self.cp.new_bool_var("") for pair in offered}

    def _length(self, kind: int, pair: int) -> cp_model.LinearExpr | int:
        ticks: int = self.ticks[kind][self.stage[pair]]
        if kind == B and pair in self.recomputed:
            again = int(self.instance.recompute_ticks[self.stage[pair]])
            return ticks + again * self.recomputed[pair]
        return ticks

    def _end(self, kind: int, pair: int) -> cp_model.LinearExpr:
        """Intervals want ends of one variable, also where the length is a choice."""
        start, length = self.start[kind][pair], self.length[kind][pair]
        if isinstance(length, int):
            return start + length
        end = self.cp.new_int_var(0, self.high, "")
        self.cp.add(end == start + length)
        return end

    def data(self) -> None:
        """(1) Inputs arrive before operations start; the makespan comes after all of them."""
        add, first = self.cp.add, self.instance.first_pair.tolist()
        ends = set((self.instance.route_first[1:] - 1).tolist())
        for pair, j in enumerate(self.stage):
            if j in ends:
                add(self.start[B][pair] >= self.end[F][pair])
            else:
                behind, cut = pair + first[j + 1] - first[j], int(self.instance.cut_ticks[j])
                add(self.start[F][behind] >= self.end[F][pair] + cut)
                add(self.start[B][pair] >= self.end[B][behind] + cut)
            last = B if self.instance.fused else W
            if last == W:
                add(self.start[W][pair] >= self.end[B][pair])
            add(self.makespan >= self.end[last][pair])

    def devices(self) -> None:
        """(2) One operation at a time."""
        for d in range(self.instance.devices):
            self.cp.add_no_overlap(
                [
                    self._interval(kind, pair)
                    for kind in range(self.instance.kinds)
                    for pair, j in enumerate(self.stage)
                    if self.device[j] == d
                ]
            )

    def _interval(self, kind: int, pair: int) -> cp_model.IntervalVar:
        length = self.length[kind][pair]
        if isinstance(length, int):
            return self.cp.new_fixed_size_interval_var(self.start[kind][pair], length, "")
        return self.cp.new_interval_var(self.start[kind][pair], length, self.end[kind][pair], "")

    def order(self) -> None:
        """(4) Microbatches of a kind and stage in the order of their numbers."""
        first = self.instance.first_pair.tolist()
        for j in range(self.instance.stages):
            for pair in range(first[j], first[j + 1] - 1):
                for kind in range(self.instance.kinds):
                    self.cp.add(self.start[kind][pair + 1] >= self.end[kind][pair])

    def transfers(self) -> None:
        """(5) Away and back between F and B, one at a time on a link."""
        lanes: list[list[cp_model.IntervalVar]] = [[] for _ in range(self.instance.devices)]
        for pair, present in self.offloaded.items():
            j = self.stage[pair]
            out, back = self._start(), self._start()
            away, home = int(self.instance.offload_ticks[j]), int(self.instance.reload_ticks[j])
            new = self.cp.new_optional_fixed_size_interval_var
            lanes[self.device[j]] += [new(out, away, present, ""), new(back, home, present, "")]
            self.cp.add(out >= self.end[F][pair]).only_enforce_if(present)
            self.cp.add(back >= out + away).only_enforce_if(present)
            self.cp.add(self.start[B][pair] >= back + home).only_enforce_if(present)
            if pair in self.recomputed:
                self.cp.add_at_most_one(present, self.recomputed[pair])
            self.transfer_starts[pair] = (out, back)
        for lane in lanes:
            if lane:
                self.cp.add_no_overlap(lane)

    def memory(self) -> None:
        """(3) What is held on every device stays within its capacity."""
        instance = self.instance
        given_back = instance.backward_memory + instance.weight_memory
        most = instance.forward_memory + np.maximum(instance.backward_memory, 0)
        balanced = bool(np.all(instance.forward_memory + given_back == 0))
        for d in range(instance.devices):
            mine = [pair for pair, j in enumerate(self.stage) if self.device[j] == d]
            room = int(instance.capacity[d])
            if sum(int(most[self.stage[pair]]) for pair in mine) <= room:
                continue  # everything at once fits
            if balanced:
                self._held_intervals(mine, room)
            else:
                self._reservoir(mine, room)

    def _held_intervals(self, mine: list[int], room: int) -> None:
        held: list[cp_model.IntervalVar] = []
        amount: list[int] = []

        def hold(begin: object, end: object, memory: int, present: object = None) -> None:
            if memory <= 0:
                return
            size = self.cp.new_int_var(0, self.high, "")
            if present is None:
                held.append(self.cp.new_interval_var(begin, size, end, ""))  # type: ignore[arg-type]
            else:
                held.append(
                    self.cp.new_optional_interval_var(begin, size, end, present, "")  # type: ignore[arg-type]
                )
            amount.append(memory)

        for pair in mine:
            j = self.stage[pair]
            begin, end = self.start[F][pair], self.end[B][pair]
            base = int(self.instance.forward_memory[j])
            if pair in self.recomputed:
                part = int(self.instance.recompute_memory[j])
                base -= part
                again = self.recomputed[pair]
                hold(begin, end, part, ~again)
                hold(self.start[B][pair], end, part, again)
            if pair in self.offloaded:
                part = int(self.instance.offload_memory[j])
                base -= part
                moved = self.offloaded[pair]
                out, back = self.transfer_starts[pair]
                hold(begin, end, part, ~moved)
                hold(begin, out + int(self.instance.offload_ticks[j]), part, moved)
                hold(back, end, part, moved)
            more = int(self.instance.backward_memory[j])
            if more > 0:
                hold(begin, self.end[W][pair], base)
                hold(self.start[B][pair], self.end[W][pair], more)
                continue
            hold(begin, end, base)
            if not self.instance.fused:
                hold(end, self.end[W][pair], -int(self.instance.weight_memory[j]))
        self.cp.add_cumulative(held, amount, room)

    def _reservoir(self, mine: list[int], room: int) -> None:
        if self.recomputed or self.offloaded:
            raise ValueError("offload and recomputation need F's memory back in B and W")
        times, changes = [], []
        for pair in mine:
            j = self.stage[pair]
            rises = int(self.instance.backward_memory[j]) > 0
            times += [self.start[F][pair], (self.start if rises else self.end)[B][pair]]
            changes += [
                int(self.instance.forward_memory[j]),
                int(self.instance.backward_memory[j]),
            ]
            if not self.instance.fused:
                times.append(self.end[W][pair])
                changes.append(int(self.instance.weight_memory[j]))
        least = min(0, sum(c for c in changes if c < 0))
        self.cp.add_reservoir_constraint(times, changes, least, room)

    def hint(self, hint: ScheduleSolution) -> None:
        """Start the search from a schedule."""
        for kind, row in enumerate(hint.start_ticks.tolist()):
            for variable, value in zip(self.start[kind], row, strict=True):
                self.cp.add_hint(variable, min(value, self.high))
        out, back = hint.offload_start, hint.reload_start
        for pair, moved in self.offloaded.items():
            self.cp.add_hint(moved, int(out is not None and out[pair] >= 0))
            if out is not None and back is not None and out[pair] >= 0:
                self.cp.add_hint(self.transfer_starts[pair][0], int(out[pair]))
                self.cp.add_hint(self.transfer_starts[pair][1], int(back[pair]))
        for pair, again in self.recomputed.items():
            self.cp.add_hint(again, int(hint.recomputed is not None and hint.recomputed[pair]))

    def solution(self, solver: cp_model.CpSolver) -> ScheduleSolution:
        """The schedule that the solver found."""
        start = np.array([[solver.value(s) for s in row] for row in self.start], dtype=np.int64)
        recomputed, out, back = None, None, None
        if self.recomputed:
            recomputed = np.zeros(self.instance.pairs, dtype=np.bool_)
            for pair, again in self.recomputed.items():
                recomputed[pair] = bool(solver.value(again))
        if self.offloaded:
            out, back = np.full((2, self.instance.pairs), -1, dtype=np.int64)
            for pair, moved in self.offloaded.items():
                if solver.value(moved):
                    out[pair], back[pair] = map(solver.value, self.transfer_starts[pair])
        return ScheduleSolution(start, recomputed, out, back)
