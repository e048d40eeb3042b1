r"""Disjunctive formulation of schedules with big-M: the model of the literature, for comparison.

Sets
----
Operations ``a`` of kind ``F, B, W`` of a pair (stage, microbatch); devices ``d``; unordered pairs
``{a, b}`` of operations of one device whose order is open.

Parameters
----------
:math:`n_a` duration and :math:`c_{ab}` delay from ``a`` to its follower ``b`` (ticks);
:math:`f_a, g_a, h_a` memory changes of F, B, W; :math:`H_d` capacity; :math:`M` horizon (ticks).

Variables --------- :math:`s_a \in [0, M]` start; :math:`y_{ab} \in \{0,1\}` 1 if ``a`` is before
``b``; :math:`C` makespan.

Objective
---------
.. math:: \min C

Constraints
-----------
(1) data (``data``): :math:`s_b \ge s_a + n_a + c_{ab}` where ``b`` needs ``a``.

(2) order of microbatches (``order``): :math:`s_{a'} \ge s_a + n_a`, ``a'`` the same on the next
    microbatch; no loss, see :mod:`ilp_parallel.solvers.schedule_cpsat`.

(3) disjunction (``before``, ``after``): :math:`s_b \ge s_a + n_a - M (1 - y_{ab})` and
    :math:`s_a \ge s_b + n_b - M y_{ab}`. At :math:`y = 1/2` they say little: the bound is weak.

(4) memory (``memory``): when ``F`` number ``a`` starts, what operations before it changed and its
    own :math:`f_a` is at most :math:`H_d`.

(5) makespan (``makespan``): :math:`C \ge s_a + n_a` for the last kind.

Source: Qi et al. 2023 (arXiv:2401.10241, appendix) state such a program and found it too slow; the
memory rows count as theirs do. Offload and recomputation are refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ilp_parallel.problems.schedule import F, ScheduleSolution, successors
from ilp_parallel.program import Program, ProgramBuilder

if TYPE_CHECKING:
    from ilp_parallel.problems.schedule import IntArray, ScheduleInstance


def refuses(instance: ScheduleInstance) -> str | None:
    """None if the formulation applies; otherwise ``REASON_CODE: sentence``."""
    if instance.offers_offload or instance.offers_recomputation:
        return "CHOICES_NOT_MODELLED: offload and recomputation are not in this formulation"
    if np.any(instance.backward_memory > 0):
        return "MEMORY_RISES: a B that takes memory is not in this formulation"
    return None


def build(instance: ScheduleInstance, horizon: int) -> Program:
    """The program for makespans up to ``horizon`` ticks."""
    builder = ProgramBuilder(f"{instance.name}:big_m")
    makespan = builder.add_columns("C", (1,), upper=horizon, cost=1)
    s = builder.add_columns("s", (instance.kinds, instance.pairs), upper=horizon).ravel()
    open_pairs = _open_pairs(instance)
    y = builder.add_columns("y", (len(open_pairs),))
    data(builder, instance, s)
    order(builder, instance, s)
    disjunction(builder, instance, (s, y, open_pairs), horizon)
    memory(builder, instance, y, open_pairs)
    last_ends(builder, instance, s, makespan)
    return builder.build()


def decode(instance: ScheduleInstance, values: IntArray) -> ScheduleSolution:
    """The schedule of a solution vector."""
    count = instance.kinds * instance.pairs
    return ScheduleSolution(values[1 : 1 + count].reshape(instance.kinds, instance.pairs))


def _ticks(instance: ScheduleInstance) -> IntArray:
    """[operations] durations."""
    return instance.durations()[: instance.kinds, instance.pair_stage].ravel()


def _fixed_before(instance: ScheduleInstance, a: int, b: int) -> bool:
    """Whether ``a`` is before ``b`` in every schedule that (1) and (2) allow, both on one stage."""
    kind_a, pair_a = divmod(a, instance.pairs)
    kind_b, pair_b = divmod(b, instance.pairs)
    stage = instance.pair_stage
    return bool(stage[pair_a] == stage[pair_b] and kind_a <= kind_b and pair_a <= pair_b)


def _open_pairs(instance: ScheduleInstance) -> list[tuple[int, int]]:
    """Pairs of operations of a device in either order."""
    lane = np.tile(instance.stage_device[instance.pair_stage], instance.kinds)
    found = []
    for d in range(instance.devices):
        mine = np.flatnonzero(lane == d).tolist()
        for i, a in enumerate(mine):
            found += [
                (a, b)
                for b in mine[i + 1 :]
                if not _fixed_before(instance, a, b) and not _fixed_before(instance, b, a)
            ]
    return found


def data(builder: ProgramBuilder, instance: ScheduleInstance, s: IntArray) -> None:
    """(1) s[b] - s[a] >= n[a] + c[a,b]."""
    arcs = [(a, b, c) for a, later in enumerate(successors(instance)) for b, c in later]
    if not arcs:
        return
    a, b, c = np.array(arcs, dtype=np.int64).T
    rows = builder.add_rows("data", (len(arcs),), lower=_ticks(instance)[a] + c)
    builder.add_entries(rows, s[b], 1)
    builder.add_entries(rows, s[a], -1)


def order(builder: ProgramBuilder, instance: ScheduleInstance, s: IntArray) -> None:
    """(2) s[next microbatch] - s[a] >= n[a]."""
    stage = instance.pair_stage
    pair = np.flatnonzero(stage[1:] == stage[:-1])
    a = (np.arange(instance.kinds)[:, None] * instance.pairs + pair).ravel()
    rows = builder.add_rows("order", (len(a),), lower=_ticks(instance)[a])
    builder.add_entries(rows, s[a + 1], 1)
    builder.add_entries(rows, s[a], -1)


def disjunction(
    builder: ProgramBuilder,
    instance: ScheduleInstance,
    columns: tuple[IntArray, IntArray, list[tuple[int, int]]],
    horizon: int,
) -> None:
    """(3) s[b] - s[a] - M y >= n[a] - M and s[a] - s[b] + M y >= n[b]."""
    s, y, open_pairs = columns
    a, b = np.array(open_pairs, dtype=np.int64).reshape(-1, 2).T
    ticks = _ticks(instance)
    big = horizon + int(ticks.max(initial=0))
    before = builder.add_rows("before", (len(y),), lower=ticks[a] - big)
    after = builder.add_rows("after", (len(y),), lower=ticks[b])
    for rows, sign in ((before, 1), (after, -1)):
        builder.add_entries(rows, s[b], sign)
        builder.add_entries(rows, s[a], -sign)
        builder.add_entries(rows, y, -sign * big)


def memory(
    builder: ProgramBuilder,
    instance: ScheduleInstance,
    y: IntArray,
    open_pairs: list[tuple[int, int]],
) -> None:
    """(4) changes of operations before a forward, and its own, stay within the capacity."""
    stage, pairs = instance.pair_stage, instance.pairs
    by_kind = (instance.forward_memory, instance.backward_memory, instance.weight_memory)
    change = np.stack(by_kind)[: instance.kinds, stage].ravel().tolist()
    lane = np.tile(instance.stage_device[stage], instance.kinds).tolist()
    held = np.zeros(pairs, dtype=np.int64)  # by operations that are surely before
    entries = []
    for forward in range(pairs):
        for other in range(instance.kinds * pairs):
            same = lane[other] == lane[forward]
            if same and (other == forward or _fixed_before(instance, other, forward)):
                held[forward] += change[other]
    for column, (a, b) in zip(y.tolist(), open_pairs, strict=True):
        if a < pairs:  # a is a forward: b is before it unless y
            entries.append((a, column, -change[b]))
            held[a] += change[b]
        if b < pairs:
            entries.append((b, column, change[a]))
    capacity = instance.capacity[instance.stage_device[stage]]
    rows = builder.add_rows("memory", (pairs,), upper=capacity - held)
    if entries:
        row, columns, values = np.array(entries, dtype=np.int64).T
        builder.add_entries(rows[row], columns, values)


def last_ends(
    builder: ProgramBuilder, instance: ScheduleInstance, s: IntArray, makespan: IntArray
) -> None:
    """(5) C - s[a] >= n[a] for the last kind."""
    last = (instance.kinds - 1) * instance.pairs + np.arange(instance.pairs)
    rows = builder.add_rows("makespan", (instance.pairs,), lower=_ticks(instance)[last])
    builder.add_entries(rows, makespan, 1)
    builder.add_entries(rows, s[last], -1)


assert F == 0  # forwards are the first operations, which ``memory`` relies on
