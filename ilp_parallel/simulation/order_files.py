"""A user's own schedule as JSON: a list of operations per device group, read strictly.

An operation is a letter and a microbatch, with its chunk after a dot where there are several:
``F3`` is the forward of microbatch 3, ``B3.1`` the backward of its part on chunk 1. With any ``W``
in the file backwards are split: ``B`` is the input gradient, ``W`` the weight gradient::

    {"schema": "ilp_parallel.order/1", "placement": "loop",
     "devices": [["F0", "F1", "B0", "B1"], ["F0", "B0", "F1", "B1"]]}

``placement`` may be ``v`` (two chunks, down the device groups and up again).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast, get_args

import numpy as np

from ilp_parallel.errors import InputError
from ilp_parallel.schedules import FORWARD, WEIGHT, OperationOrder, Placement
from ilp_parallel.specs.documents import MAX_RESULT_BYTES, read_document, shown
from ilp_parallel.zero_bubble import order_of

if TYPE_CHECKING:
    from collections.abc import Sequence

SCHEMA = "ilp_parallel.order/1"
_LETTERS = "FBW"  # by kind
_OPERATION = re.compile(r"([FBW])([0-9]{1,7})(?:\.([0-9]{1,4}))?")


@dataclass(frozen=True, slots=True)
class GivenOrder:
    """A schedule that a user wrote down."""

    placement: Placement
    orders: tuple[OperationOrder, ...]  # one per device group


def read_order(path: str, stages: int, chunks: int, microbatches: int) -> GivenOrder:
    """The schedule in a file, complete for a plan with these numbers.

    Raises
    ------
    InputError
        ``NOT_AN_ORDER``, ``BAD_OPERATION``, ``ORDER_NOT_OF_PLAN`` or ``ORDER_INCOMPLETE``, naming
        the device group and the operation.
    """
    data, name = read_document(path, MAX_RESULT_BYTES), shown(path)
    devices = data.get("devices")
    lists = isinstance(devices, list) and all(isinstance(one, list) for one in devices)
    if data.get("schema") != SCHEMA or not lists:
        raise InputError(
            "NOT_AN_ORDER", f"{name} is no order of schema {SCHEMA}", "see simulate --save-order"
        )
    placement = data.get("placement", "loop")
    if placement not in get_args(Placement):
        known = ", ".join(get_args(Placement))
        raise InputError("NOT_AN_ORDER", f"placement {shown(placement)}", f"use one of {known}")
    if placement == "v" and chunks != 2:
        what = f"placement v, a plan of {chunks} chunks per device"
        raise InputError("ORDER_NOT_OF_PLAN", what, "use a plan with vpp=2")
    lanes = [_operations(lane, s) for s, lane in enumerate(cast("list[list[object]]", devices))]
    if len(lanes) != stages:
        what = f"{len(lanes)} device groups in {name}, {stages} in the plan"
        raise InputError("ORDER_NOT_OF_PLAN", what, "give one list per pipeline rank")
    split = any(kind == WEIGHT for lane in lanes for kind, _, _ in lane)
    for group, lane in enumerate(lanes):
        _require_complete(lane, group, 3 if split else 2, chunks, microbatches)
    return GivenOrder(cast("Placement", placement), tuple(order_of(lane) for lane in lanes))


def _operations(lane: list[object], group: int) -> list[tuple[int, int, int]]:
    """``(kind, microbatch, chunk)`` of every word."""
    found = []
    for word in lane:
        match = _OPERATION.fullmatch(word) if isinstance(word, str) else None
        if match is None:
            raise InputError(
                "BAD_OPERATION", f"{shown(word)} on device group {group}", "write F3, B3.1 or W3"
            )
        found.append((_LETTERS.index(match[1]), int(match[2]), int(match[3] or 0)))
    return found


def _require_complete(
    lane: Sequence[tuple[int, int, int]], group: int, kinds: int, chunks: int, microbatches: int
) -> None:
    """Every operation once, and of each microbatch and chunk in the order F, B, W."""
    where = f"on device group {group}"
    seen: set[tuple[int, int, int]] = set()
    for operation in lane:
        kind, microbatch, chunk = operation
        if microbatch >= microbatches or chunk >= chunks:
            what = f"{_word(operation, chunks)} {where}, the plan has {microbatches} microbatches"
            raise InputError("ORDER_NOT_OF_PLAN", f"{what} and {chunks} chunks", "leave it out")
        if operation in seen:
            twice = f"{_word(operation, chunks)} is there twice {where}"
            raise InputError("ORDER_INCOMPLETE", twice, "keep one of them")
        if kind > FORWARD and (kind - 1, microbatch, chunk) not in seen:
            before = _word((kind - 1, microbatch, chunk), chunks)
            late = f"{_word(operation, chunks)} comes before {before} {where}"
            raise InputError("ORDER_INCOMPLETE", late, f"put {before} first")
        seen.add(operation)
    if len(seen) < kinds * chunks * microbatches:
        every = np.ndindex(kinds, microbatches, chunks)
        missing = next(operation for operation in every if operation not in seen)
        raise InputError("ORDER_INCOMPLETE", f"no {_word(missing, chunks)} {where}", "add it")


def _word(operation: tuple[int, int, int], chunks: int) -> str:
    kind, microbatch, chunk = operation
    return f"{_LETTERS[kind]}{microbatch}" + (f".{chunk}" if chunks > 1 else "")


def words_of(order: OperationOrder, chunks: int) -> list[str]:
    """The operations of a device group as words of a file."""
    columns = (order.kind.tolist(), order.microbatch.tolist(), order.chunk.tolist())
    return [_word(operation, chunks) for operation in zip(*columns, strict=True)]


def order_document(
    orders: Sequence[OperationOrder], placement: Placement, chunks: int
) -> dict[str, object]:
    """The JSON of a schedule, as :func:`read_order` reads it."""
    devices = [words_of(order, chunks) for order in orders]
    return {"schema": SCHEMA, "placement": placement, "devices": devices}
