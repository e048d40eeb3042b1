r"""Time-indexed formulation of schedules: a binary per operation and start; for small instances.

Sets ---- Operations ``a`` as in :mod:`formulations.schedule.big_m`; instants :math:`t = 0 \dots T
- 1` (ticks).

Parameters
----------
As there; ``T`` horizon.

Variables --------- :math:`x_{at} \in \{0,1\}` ``a`` starts at ``t``; :math:`C` makespan.
:math:`X_{at} = \sum_{u \le t} x_{au}`.

Objective
---------
.. math:: \min C

Constraints
-----------
(1) one start (``one_start``): :math:`\sum_t x_{at} = 1`.

(2) data (``data``): :math:`X_{bt} \le X_{a, t - n_a - c_{ab}}` for all ``t``, which is stronger
    than a row on the starts.

(3) order of microbatches (``order``): :math:`X_{a't} \le X_{a, t - n_a}`.

(4) devices (``device``): :math:`\sum_a (X_{at} - X_{a, t - n_a}) \le 1` over the operations of a
    device.

(5) memory (``memory``): :math:`\sum f_a X_{at} + \sum g_a X_{a, t - n_a} + \sum h_a X_{a, t - n_a}
    \le H_d` over the F, B and W of a device.

(6) makespan (``makespan``): :math:`C \ge \sum_t (t + n_a) x_{at}` for the last kind.

Its linear relaxation is a bound on every schedule of a makespan up to ``T``.

Source: the time-indexed model of scheduling (Pritsker et al. 1969). Refuses what ``big_m`` refuses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from formulations.schedule.big_m import refuses
from ilp_parallel.problems.schedule import F, ScheduleSolution, successors
from ilp_parallel.program import Program, ProgramBuilder

if TYPE_CHECKING:
    from ilp_parallel.problems.schedule import IntArray, ScheduleInstance

__all__ = ["build", "decode", "refuses"]


def build(instance: ScheduleInstance, horizon: int) -> Program:
    """The program for makespans up to ``horizon`` ticks."""
    builder = ProgramBuilder(f"{instance.name}:time_indexed")
    makespan = builder.add_columns("C", (1,), upper=horizon, cost=1)
    ticks = instance.durations()[: instance.kinds, instance.pair_stage].ravel()
    instants = np.arange(horizon)
    upper = (instants[None, :] + ticks[:, None] <= horizon).astype(np.int64)
    x = builder.add_columns("x", (len(ticks), horizon), upper=upper)
    rows = builder.add_rows("one_start", (len(ticks),), lower=1, upper=1)
    builder.add_entries(rows[:, None], x, 1)
    data(builder, instance, x, ticks)
    order(builder, instance, x, ticks)
    device(builder, instance, x, ticks)
    memory(builder, instance, x, ticks)
    last = slice((instance.kinds - 1) * instance.pairs, None)
    ends = builder.add_rows("makespan", (instance.pairs,), lower=0)
    builder.add_entries(ends, makespan, 1)
    builder.add_entries(ends[:, None], x[last], -(instants[None, :] + ticks[last, None]))
    return builder.build()


def decode(instance: ScheduleInstance, values: IntArray) -> ScheduleSolution:
    """The schedule of a solution vector."""
    x = values[1:].reshape(instance.kinds * instance.pairs, -1)
    return ScheduleSolution(x.argmax(axis=1).reshape(instance.kinds, instance.pairs))


def _cumulate(builder: ProgramBuilder, rows: IntArray, x: IntArray, value: int, late: int) -> None:
    """Add ``value * X[t - late]`` to row ``t`` for every instant."""
    t, u = np.tril_indices(len(rows))
    seen = u <= t - late
    builder.add_entries(rows[t[seen]], x[u[seen]], value)


def data(builder: ProgramBuilder, instance: ScheduleInstance, x: IntArray, n: IntArray) -> None:
    """(2) X[b,t] <= X[a, t - n - c]."""
    for a, later in enumerate(successors(instance)):
        for b, delay in later:
            rows = builder.add_rows(f"data[{a},{b}]", (x.shape[1],), upper=0)
            _cumulate(builder, rows, x[b], 1, 0)
            _cumulate(builder, rows, x[a], -1, int(n[a]) + delay)


def order(builder: ProgramBuilder, instance: ScheduleInstance, x: IntArray, n: IntArray) -> None:
    """(3) X[next microbatch, t] <= X[a, t - n]."""
    stage = instance.pair_stage
    for pair in np.flatnonzero(stage[1:] == stage[:-1]).tolist():
        for kind in range(instance.kinds):
            a = kind * instance.pairs + pair
            rows = builder.add_rows(f"order[{a}]", (x.shape[1],), upper=0)
            _cumulate(builder, rows, x[a + 1], 1, 0)
            _cumulate(builder, rows, x[a], -1, int(n[a]))


def device(builder: ProgramBuilder, instance: ScheduleInstance, x: IntArray, n: IntArray) -> None:
    """(4) sum of X[a,t] - X[a, t - n] <= 1."""
    lane = np.tile(instance.stage_device[instance.pair_stage], instance.kinds)
    for d in range(instance.devices):
        rows = builder.add_rows(f"device[{d}]", (x.shape[1],), upper=1)
        for a in np.flatnonzero(lane == d).tolist():
            _cumulate(builder, rows, x[a], 1, 0)
            _cumulate(builder, rows, x[a], -1, int(n[a]))


def memory(builder: ProgramBuilder, instance: ScheduleInstance, x: IntArray, n: IntArray) -> None:
    """(5) what has been taken and not given back."""
    by_kind = (instance.forward_memory, instance.backward_memory, instance.weight_memory)
    change = np.stack(by_kind)[: instance.kinds, instance.pair_stage].ravel()
    lane = np.tile(instance.stage_device[instance.pair_stage], instance.kinds)
    for d in range(instance.devices):
        room = int(instance.capacity[d])
        rows = builder.add_rows(f"memory[{d}]", (x.shape[1],), upper=room)
        for a in np.flatnonzero(lane == d).tolist():
            late = 0 if a // instance.pairs == F else int(n[a])
            _cumulate(builder, rows, x[a], int(change[a]), late)
