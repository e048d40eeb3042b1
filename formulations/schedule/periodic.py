r"""Periodic formulation of schedules: one steady-state period, to be repeated any number of times.

Microbatch ``i`` runs operation ``a`` (a kind on a stage) at :math:`s_a + i P`. For one route.

Sets
----
Operations ``a`` of kind ``F, B, W`` and stage; pairs ``{a, b}`` of operations of one device.

Parameters
----------
:math:`P` period, at least the load of every device (ticks); :math:`n_a, c_{ab}, f, g, h, H_d` as in
:mod:`formulations.schedule.big_m`; :math:`M` largest start, :math:`K` = largest number of periods.

Variables --------- :math:`s_a \in [0, M]`; :math:`k_{ab} \in [-K, K]` periods between ``a`` and
the ``b`` that comes after it; :math:`u_j, v_j \in [1, K]` microbatches between ``F`` and the end
of ``B``, and of ``W``, of stage ``j`` when an ``F`` starts, itself included.

Objective
---------
.. math:: \min \sum_a s_a

Constraints
-----------
(1) data (``data``): :math:`s_b \ge s_a + n_a + c_{ab}`.

(2) no overlap, whatever microbatches are concerned (``apart``):
    :math:`n_a \le s_b - s_a + P k_{ab} \le P - n_b`.

(3) in flight (``in_flight``): :math:`s_{F_j} + P u_j \ge s_{B_j} + n_{B_j}`, for :math:`v_j` with
    ``W``: the microbatches after which ``B`` and ``W`` have ended.

(4) memory (``memory``): :math:`f_j u_j + (f_j + g_j)(v_j - u_j) \le H_d`; fused: :math:`f_j u_j
    \le H_d`. For one stage per device, and where ``h`` gives back the rest. Memory peaks when an
    ``F`` starts.

Any ``m`` microbatches run in the order of this timetable keep memory: those before the first and
after the last, which are missing in fill and drain, held a non-negative amount. Started as early
as order and data allow, fill and drain are exact for that order.

Source: periodic event scheduling (Serafini and Ukovich 1989) as used in modulo scheduling.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from ilp_parallel.problems.schedule import B, F, W
from ilp_parallel.program import Program, ProgramBuilder

if TYPE_CHECKING:
    from ilp_parallel.problems.schedule import IntArray, ScheduleInstance


def refuses(instance: ScheduleInstance) -> str | None:
    """None if the formulation applies; otherwise ``REASON_CODE: sentence``."""
    if instance.offers_offload or instance.offers_recomputation:
        return "CHOICES_NOT_MODELLED: offload and recomputation are not in this formulation"
    if np.any(instance.backward_memory > 0):
        return "MEMORY_RISES: a B that takes memory is not in this formulation"
    if len(instance.microbatches) > 1 or instance.stages != instance.devices:
        return "ONE_STAGE_PER_DEVICE: the formulation is for one route and one stage per device"
    given_back = instance.backward_memory + instance.weight_memory
    if np.any(instance.forward_memory + given_back != 0):
        return "MEMORY_LEAKS: B and W must give back what F takes"
    return None


def build(instance: ScheduleInstance, period: int) -> Program:
    """The program for a period in ticks; infeasible if no timetable has that period."""
    builder = ProgramBuilder(f"{instance.name}:periodic")
    shape = (instance.kinds, instance.stages)
    n = instance.durations()[: instance.kinds]
    longest = 2 * int(n.sum() + 2 * instance.cut_ticks.sum()) + period
    most = longest // period + 2
    s = builder.add_columns("s", shape, upper=longest, cost=1)
    alive = builder.add_columns(
        "in_flight", (instance.kinds - 1, instance.stages), lower=1, upper=most
    )
    data(builder, instance, s, n)
    apart(builder, s, n, (period, most))
    in_flight(builder, s, n, alive, period)
    memory(builder, instance, alive)
    return builder.build()


def decode(instance: ScheduleInstance, values: IntArray, period: int) -> list[list[int]]:
    """Per device the operations of all microbatches in the order of the timetable."""
    count, pairs = int(instance.microbatches[0]), instance.pairs
    s = values[: instance.kinds * instance.stages].reshape(instance.kinds, instance.stages)
    ends = s + instance.durations()[: instance.kinds]
    i = np.arange(count)
    orders = []
    for d in range(instance.devices):
        (j,) = np.flatnonzero(instance.stage_device == d).tolist()
        when = (s[:, j][:, None] + i * period).ravel()
        until = (ends[:, j][:, None] + i * period).ravel()
        own = np.arange(instance.kinds)[:, None] * pairs + int(instance.first_pair[j]) + i
        orders.append(own.ravel()[np.lexsort((until, when))].tolist())
    return orders


def microbatches_alive(instance: ScheduleInstance, values: IntArray) -> tuple[int, ...]:
    """Per stage the microbatches between ``F`` and the end of ``B`` in the steady state."""
    first = instance.kinds * instance.stages
    return tuple(values[first : first + instance.stages].tolist())


def data(builder: ProgramBuilder, instance: ScheduleInstance, s: IntArray, n: IntArray) -> None:
    """(1) s[b] - s[a] >= n[a] + c[a,b]."""
    cut = instance.cut_ticks[:-1]
    chains = [
        (s[F, :-1], s[F, 1:], n[F, :-1] + cut),
        (s[B, 1:], s[B, :-1], n[B, 1:] + cut),
        (s[F, -1:], s[B, -1:], n[F, -1:]),
    ]
    if not instance.fused:
        chains.append((s[B], s[W], n[B]))
    for number, (a, b, least) in enumerate(chains):
        rows = builder.add_rows(f"data{number}", (len(a),), lower=least)
        builder.add_entries(rows, b, 1)
        builder.add_entries(rows, a, -1)


def apart(builder: ProgramBuilder, s: IntArray, n: IntArray, numbers: tuple[int, int]) -> None:
    """(2) n[a] <= s[b] - s[a] + P k[a,b] <= P - n[b], for two kinds on one stage."""
    period, most = numbers
    for a, b in combinations(range(len(s)), 2):
        k = builder.add_columns(f"k{a}{b}", (s.shape[1],), lower=-most, upper=most)
        rows = builder.add_rows(f"apart{a}{b}", (s.shape[1],), lower=n[a], upper=period - n[b])
        builder.add_entries(rows, s[b], 1)
        builder.add_entries(rows, s[a], -1)
        builder.add_entries(rows, k, period)


def in_flight(
    builder: ProgramBuilder, s: IntArray, n: IntArray, alive: IntArray, period: int
) -> None:
    """(3) s[F] - s[a] + P u >= n[a] for B and W."""
    for kind in range(1, len(s)):
        rows = builder.add_rows(f"in_flight{kind}", (s.shape[1],), lower=n[kind])
        builder.add_entries(rows, s[F], 1)
        builder.add_entries(rows, s[kind], -1)
        builder.add_entries(rows, alive[kind - 1], period)


def memory(builder: ProgramBuilder, instance: ScheduleInstance, alive: IntArray) -> None:
    """(4) f u + (f + g)(v - u) <= H."""
    kept = instance.forward_memory + instance.backward_memory
    rows = builder.add_rows(
        "memory", (instance.stages,), upper=instance.capacity[instance.stage_device]
    )
    if instance.fused:
        builder.add_entries(rows, alive[0], instance.forward_memory)
        return
    builder.add_entries(rows, alive[0], instance.forward_memory - kept)
    builder.add_entries(rows, alive[1], kept)
