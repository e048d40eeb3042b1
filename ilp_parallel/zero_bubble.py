r"""Zero-bubble schedules as orders of work: backwards split in input and weight gradients.

The weight gradient ``W`` of a microbatch feeds no other stage, so it can fill what would be idle.

* ``zb-h1`` (Qi et al. 2023, arXiv:2401.10241, section 3.1): 1F1B, but device group ``s`` runs the
  ``W`` of a microbatch ``s`` backwards later, so that every group keeps as many microbatches alive,
  ``p``, as the first one does in 1F1B. With equal stages, no delays, ``W <= F``, ``W <= B`` and
  ``m >= p`` it idles ``(p - 1)(F + B - W)``, where 1F1B idles ``(p - 1)(F + B + W)``.
* ``zb-v`` (Qi et al. 2024, arXiv:2405.15362, section 2): two chunks per device group, placed in a
  ``V``; a microbatch that has gone down comes straight up again. With ``F = B = W``, no delays and
  ``m >= 2p - 1`` no group idles between its first and its last operation, with ``2p`` chunks alive.

Groups fill, alternate and drain; what each phase runs is written down below. Where there are fewer
microbatches than a phase wants, those that do not exist are skipped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from ilp_parallel.schedules import BACKWARD, FORWARD, WEIGHT, OperationOrder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ZeroBubble = Literal["zb-h1", "zb-v"]
ZERO_BUBBLE: tuple[ZeroBubble, ...] = get_args(ZeroBubble)

_Operation = tuple[int, int, int]  # kind, microbatch, chunk


def zero_bubble_order(
    schedule: ZeroBubble, stages: int, microbatches: int, group: int
) -> OperationOrder:
    """Order in which device group ``group`` (0 .. ``stages - 1``) runs its operations.

    ``zb-h1`` has one chunk per device group, ``zb-v`` two.

    Raises
    ------
    ValueError
        If a number is out of range.
    """
    if stages < 1 or microbatches < 1 or not 0 <= group < stages:
        raise ValueError(f"group {group} of {stages} stages, {microbatches} microbatches")
    if schedule == "zb-h1":
        return order_of(_h1(stages, microbatches, group))
    wanted = max(microbatches, 2 * stages - 1)
    return order_of(op for op in _v(stages, wanted, group) if op[1] < microbatches)


def order_of(operations: Iterable[_Operation]) -> OperationOrder:
    """The order with these operations; it is split if there is a weight gradient among them."""
    kind, microbatch, chunk = np.array(list(operations), dtype=np.int64).reshape(-1, 3).T
    weight = kind == WEIGHT
    return OperationOrder(kind == BACKWARD, microbatch, chunk, weight if weight.any() else None)


def _h1(stages: int, microbatches: int, group: int) -> Iterator[_Operation]:
    """1F1B with every ``W`` as many backwards late as there are groups before this one."""
    warmup = min(microbatches, stages - group - 1)
    for i in range(warmup):
        yield FORWARD, i, 0
    for i in range(microbatches):
        if warmup + i < microbatches:
            yield FORWARD, warmup + i, 0
        yield BACKWARD, i, 0
        if i >= group:
            yield WEIGHT, i - group, 0
    for i in range(max(0, microbatches - group), microbatches):
        yield WEIGHT, i, 0


def _v(stages: int, microbatches: int, group: int) -> Iterator[_Operation]:
    """The phases of the ``V``, for at least ``2p - 1`` microbatches; chunk 0 goes down, 1 up."""
    done = {(kind, chunk): 0 for kind in range(3) for chunk in range(2)}

    def following(kind: int, chunk: int) -> _Operation:
        done[kind, chunk] += 1
        return kind, done[kind, chunk] - 1, chunk

    for _ in range(2 * (stages - group) - 1):  # until the first microbatch has come up again
        yield following(FORWARD, 0)
    for _ in range(group):  # down and up in turn, while the backward of the first is on its way
        yield following(FORWARD, 1)
        yield following(FORWARD, 0)
    for _ in range(stages - group):  # up, and back from there with both gradients
        yield following(FORWARD, 1)
        yield following(BACKWARD, 1)
        yield following(WEIGHT, 1)
    while done[FORWARD, 1] < microbatches:  # one of everything in turn
        if done[FORWARD, 0] < microbatches:
            yield following(FORWARD, 0)
        yield following(BACKWARD, 0)
        yield following(WEIGHT, 0)
        yield following(FORWARD, 1)
        yield following(BACKWARD, 1)
        yield following(WEIGHT, 1)
    for _ in range(group):  # drain: weight gradients wait while others wait for input gradients
        yield following(BACKWARD, 0)
        yield following(BACKWARD, 1)
    while done[BACKWARD, 0] < microbatches:
        yield following(BACKWARD, 0)
        yield following(WEIGHT, 0)
    for chunk in (1, 0):
        while done[WEIGHT, chunk] < microbatches:
            yield following(WEIGHT, chunk)
