"""Schedules as files: our JSON, zero-bubble's list, PyTorch's schedule CSV."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ilp_parallel.errors import InputError
from ilp_parallel.problems.schedule import (
    ScheduleSolution,
    device_orders,
    operation_ticks,
)

if TYPE_CHECKING:
    from ilp_parallel.problems.schedule import IntArray, ScheduleInstance
    from ilp_parallel.specs.documents import Document

SCHEDULE_SCHEMA = "ilp_parallel.schedule/1"


def schedule_document(instance: ScheduleInstance, solution: ScheduleSolution) -> dict[str, object]:
    """A schedule as plain data; rows are kinds, entries pairs, as in the instance."""

    def listed(part: IntArray | None) -> list[int] | None:
        return None if part is None else part.tolist()

    return {
        "schema": SCHEDULE_SCHEMA,
        "instance": instance.digest(),
        "start_ticks": solution.start_ticks.tolist(),
        "recomputed": None
        if solution.recomputed is None
        else np.flatnonzero(solution.recomputed).tolist(),
        "offload_start": listed(solution.offload_start),
        "reload_start": listed(solution.reload_start),
    }


def solution_of_document(instance: ScheduleInstance, document: Document) -> ScheduleSolution | None:
    """The schedule in a document; None if it belongs to another instance or is malformed."""
    if document.get("instance") != instance.digest():
        return None
    try:
        start = np.array(document["start_ticks"], dtype=np.int64)
        listed = document.get("recomputed")
        recomputed = None
        if listed is not None:
            recomputed = np.zeros(instance.pairs, dtype=np.bool_)
            recomputed[np.array(listed, dtype=np.int64)] = True
        out, back = (
            None if part is None else np.array(part, dtype=np.int64)
            for part in (document.get("offload_start"), document.get("reload_start"))
        )
    except (KeyError, TypeError, ValueError, OverflowError, IndexError):
        return None
    return ScheduleSolution(start, recomputed, out, back)


def zero_bubble_list(
    instance: ScheduleInstance, solution: ScheduleSolution
) -> list[list[dict[str, object]]]:
    """Per device its operations with start and end, named as zero-bubble's scheduler does."""
    end = solution.start_ticks + operation_ticks(instance, solution)
    found = []
    for device, order in enumerate(device_orders(instance, solution)):
        lane: list[dict[str, object]] = []
        for op in order:
            kind, stage, microbatch, chunk = _parts(instance, op)
            pair = op % instance.pairs
            lane.append(
                {
                    "type": "FBW"[kind],
                    "stage": device,
                    "minibatch": microbatch,
                    "chunk": chunk,
                    "virtual_stage": stage,
                    "start_time": int(solution.start_ticks[kind, pair]),
                    "completion_time": int(end[kind, pair]),
                }
            )
        found.append(lane)
    return found


def pytorch_csv(instance: ScheduleInstance, solution: ScheduleSolution) -> str:
    """The compute-only schedule file of ``torch.distributed.pipelining``: a row per rank.

    ``2F5`` is the forward of microbatch 5 on stage 2, ``B`` a whole backward, ``I`` and ``W`` its
    two parts.

    Raises
    ------
    InputError
        ``NOT_IN_PYTORCH`` for more than one route, transfers or recomputation.
    """
    plain = solution.offload_start is None and solution.recomputed is None
    if len(instance.microbatches) > 1 or not plain:
        what = "routes in two directions, offload and recomputation have no action in the file"
        raise InputError("NOT_IN_PYTORCH", what, "export JSON instead")
    letters = "FB" if instance.fused else "FIW"
    rows = []
    for order in device_orders(instance, solution):
        actions = []
        for op in order:
            kind, stage, microbatch, _ = _parts(instance, op)
            actions.append(f"{stage}{letters[kind]}{microbatch}")
        rows.append(",".join(actions))
    return "\n".join(rows) + "\n"


def _parts(instance: ScheduleInstance, op: int) -> tuple[int, int, int, int]:
    """Kind, stage, microbatch over all routes, and chunk of an operation."""
    kind, pair = divmod(op, instance.pairs)
    stage = int(instance.pair_stage[pair])
    route = int(instance.stage_route[stage])
    before = int(instance.microbatches[:route].sum())
    microbatch = before + pair - int(instance.first_pair[stage])
    mine = np.flatnonzero(instance.stage_device == instance.stage_device[stage])
    return kind, stage, microbatch, int(np.searchsorted(mine, stage))
