r"""Pipeline schedules as orders of work, and the activations that an order keeps alive.

A device group runs ``n = m * v`` forward and ``n`` backward operations, one per microbatch and
chunk. Every schedule here has the same shape: ``warmup`` forwards, then one forward and one
backward in turn, then the backwards that are left:

* ``gpipe`` (Huang et al. 2019, arXiv:1811.06965): ``warmup = m``;
* ``1f1b`` (Narayanan et al. 2019, PipeDream, doi:10.1145/3341301.3359646, with a flush):
  ``warmup = min(m, p - s - 1)``;
* ``interleaved`` (Narayanan et al. 2021, arXiv:2104.04473, as in Megatron-LM with groups of ``p``
  microbatches): ``warmup = min(m * v, 2 (p - s - 1) + (v - 1) p)``. The ``k``-th forward belongs to
  microbatch ``p * (k div pv) + k mod p`` and chunk ``c = (k mod pv) div p``; the ``k``-th backward
  to the same microbatch and chunk ``v - 1 - c``. ``m`` is a multiple of ``p``.

Activations of a microbatch on a chunk are alive from the start of its forward to the end of its
backward.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from ilp_parallel.problems.pipeline import BoolArray, IntArray, Schedule

FORWARD, BACKWARD, WEIGHT = range(3)
"""Kinds of operations; a weight gradient is one of its own where backwards are split."""

Placement = Literal["loop", "v"]
"""Where virtual stages live. ``loop``: ``j`` on device group ``j mod p``; ``v`` (two chunks): down
the device groups and up again, so that the first and the last one share a group."""


@dataclass(frozen=True, eq=False)
class OperationOrder:
    """What one device group runs, in this order. Arrays have shape ``[2 * m * v]``.

    Where backwards are split, ``backward`` is the input gradient, ``weight`` the weight gradient,
    and the shape is ``[3 * m * v]``.
    """

    backward: BoolArray  # false: forward, or weight
    microbatch: IntArray
    chunk: IntArray
    weight: BoolArray | None = None  # None: backwards are whole

    @property
    def kind(self) -> IntArray:
        """``FORWARD``, ``BACKWARD`` or ``WEIGHT`` of every operation."""
        kind = self.backward.astype(np.int64)
        return kind if self.weight is None else kind + 2 * self.weight


def placed(placement: Placement, stages: int, chunks: int) -> IntArray:
    """``[p, v]``: the virtual stage that is each chunk of each device group.

    Raises
    ------
    ValueError
        If the placement does not exist for these numbers.
    """
    virtual = np.arange(stages * chunks, dtype=np.int64).reshape(chunks, stages)
    if placement == "v":
        if chunks != 2:
            raise ValueError(f"a V has two chunks per device group, not {chunks}")
        virtual[1] = virtual[1, ::-1].copy()
    by_group: IntArray = virtual.T
    return by_group


def operation_order(
    schedule: Schedule, stages: int, chunks: int, microbatches: int, group: int
) -> OperationOrder:
    """Order in which device group ``group`` (0 .. ``stages - 1``) runs its operations.

    Raises
    ------
    ValueError
        If the schedule does not exist for these numbers.
    """
    _require_possible(schedule, stages, chunks, microbatches)
    count = microbatches * chunks
    warmup = warmup_forwards(schedule, stages, chunks, microbatches, group)
    microbatch, chunk = _forward_sequence(stages, chunks, count)
    index = np.arange(count)
    forward_place = index + np.maximum(index - warmup, 0)
    backward_place = index + np.minimum(warmup + index + 1, count)
    backward = np.zeros(2 * count, dtype=np.bool_)
    backward[backward_place] = True
    both_microbatches, both_chunks = np.empty((2, 2 * count), dtype=np.int64)
    both_microbatches[forward_place] = both_microbatches[backward_place] = microbatch
    both_chunks[forward_place] = chunk
    both_chunks[backward_place] = chunks - 1 - chunk
    return OperationOrder(backward, both_microbatches, both_chunks)


def warmup_forwards(
    schedule: Schedule, stages: int, chunks: int, microbatches: int, group: int
) -> int:
    """Forwards that a device group runs before it starts to alternate."""
    if schedule == "gpipe":
        return microbatches
    behind = stages - group - 1
    if schedule == "1f1b":
        return min(microbatches, behind)
    return min(microbatches * chunks, 2 * behind + (chunks - 1) * stages)


def in_flight_rows(
    schedule: Schedule, stages: int, chunks: int, microbatches: int
) -> tuple[IntArray, ...]:
    """Microbatches alive per chunk at the worst instants of each device group.

    Returns
    -------
    One read-only table ``[rows, chunks]`` per device group. For any activation sizes, the largest
    ``row @ sizes`` is the largest amount ever alive. Only Pareto-maximal vectors are listed,
    and of a straight run of them (each the midpoint of its neighbours) only the two ends, which
    decide the maximum.

    Raises
    ------
    ValueError
        If the schedule does not exist for these numbers.

    Notes
    -----
    While a device group alternates, ``warmup + 1`` activations are alive after each forward, so no
    such vector dominates another; all earlier and later ones are dominated by one of them. After
    the forward ``k`` and the backward ``k - warmup - 1`` the vector depends on ``k mod pv`` only,
    and ``warmup < (v + 1) p``. Hence ``3 p`` microbatches already show every vector.
    """
    _require_possible(schedule, stages, chunks, microbatches)
    if schedule == "interleaved":
        return _interleaved_rows(stages, chunks, min(microbatches, 3 * stages))
    return _single_chunk_rows(schedule, stages, microbatches)


@cache
def _single_chunk_rows(schedule: Schedule, stages: int, microbatches: int) -> tuple[IntArray, ...]:
    """One number per device group: ``min(m, warmup + 1)``."""
    alive = (
        min(microbatches, warmup_forwards(schedule, stages, 1, microbatches, s) + 1)
        for s in range(stages)
    )
    return tuple(_frozen(np.array([[count]], dtype=np.int64)) for count in alive)


@cache
def _interleaved_rows(stages: int, chunks: int, microbatches: int) -> tuple[IntArray, ...]:
    """Turning points of the walk of the alive vector through the alternating phase."""
    count, period = microbatches * chunks, stages * chunks
    _, chunk = _forward_sequence(stages, chunks, count)
    unit = np.eye(chunks, dtype=np.int64)
    forwards = np.cumsum(unit[chunk], axis=0)  # done after the k-th
    backwards = np.concatenate(  # done before the k-th
        [np.zeros((1, chunks), dtype=np.int64), np.cumsum(unit[chunks - 1 - chunk], axis=0)]
    )
    tables = []
    for s in range(stages):
        warmup = warmup_forwards("interleaved", stages, chunks, microbatches, s)
        if warmup == count:
            tables.append(_frozen(forwards[-1:].copy()))
            continue
        length = min(count - warmup, period)
        walk = forwards[warmup : warmup + length] - backwards[:length]
        step = np.diff(walk, axis=0)
        turning = np.ones(length, dtype=np.bool_)
        turning[1:-1] = np.any(step[1:] != step[:-1], axis=1)
        tables.append(_frozen(np.unique(walk[turning], axis=0)))
    return tuple(tables)


def _forward_sequence(stages: int, chunks: int, count: int) -> tuple[IntArray, IntArray]:
    """Microbatch and chunk of the ``k``-th forward, ``k = 0 .. count - 1``."""
    index = np.arange(count, dtype=np.int64)
    if chunks == 1:
        return index, np.zeros_like(index)
    cycle, place = np.divmod(index, stages * chunks)
    return cycle * stages + place % stages, place // stages


def _frozen(rows: IntArray) -> IntArray:
    """Read-only, because the tables are shared between callers."""
    rows.flags.writeable = False
    return rows


def _require_possible(schedule: Schedule, stages: int, chunks: int, microbatches: int) -> None:
    if min(stages, chunks, microbatches) < 1:
        raise ValueError("stages, chunks and microbatches are at least 1")
    if (schedule == "interleaved") != (chunks > 1):
        raise ValueError("interleaving and only interleaving has more than one chunk")
    if schedule == "interleaved" and microbatches % stages:
        raise ValueError(f"{microbatches} microbatches are no multiple of {stages} stages")
