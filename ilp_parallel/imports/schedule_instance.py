"""Schedule instances from files: zero-bubble's cases, our own instances, and plans."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ilp_parallel.errors import InputError
from ilp_parallel.scheduling.placements import (
    PlacementClass,
    StageNumbers,
    instance_of,
    with_offload,
    with_recomputation,
)
from ilp_parallel.specs.documents import MAX_RESULT_BYTES

if TYPE_CHECKING:
    from ilp_parallel.problems.schedule import IntArray, ScheduleInstance

_LARGEST_TICKS = 2**40
"""Sums of this many ticks and operations stay far below 63 bits."""

_MOST_OPERATIONS = 2_000_000

_PerStage = int | list[int]


class ZeroBubbleCase(msgspec.Struct, forbid_unknown_fields=True):
    """A case of the zero-bubble repository: numbers for all stages, or one per stage.

    Times are in ticks, memory in the file's units; ``comm`` is the one-way delay of every cut.
    Where ``w`` is null, ``b`` is a whole backward. What has a default here is ours.
    """

    p: int
    m: int
    f: _PerStage
    b: _PerStage
    w: _PerStage | None
    comm: _PerStage
    mem_f: _PerStage
    mem_b: _PerStage
    mem_w: _PerStage
    max_mem: _PerStage
    placement: PlacementClass = "plain"
    chunks: int = 1
    offload_mem: _PerStage = 0
    offload: _PerStage = 0  # ticks of a transfer to the host
    reload: _PerStage = 0  # ticks of a transfer from the host
    recompute_mem: _PerStage = 0
    recompute: _PerStage = 0  # ticks that B then takes longer

    @property
    def length(self) -> int:
        """Stages of a route."""
        return self.p * {"v": 2, "loop": self.chunks}.get(self.placement, 1)


def read_schedule_instance(
    path: str, case: int | None, whole_backwards: bool = False
) -> ScheduleInstance:
    """The instance in a file: a case, case ``case`` of a list of cases, or a plan of ``solve``.

    Backwards of a plan are split unless ``whole_backwards`` is set; cases say it themselves.

    Raises
    ------
    InputError
        ``FILE_UNREADABLE``, ``BAD_SCHEDULE_FILE``, ``CASE_MISSING`` or what a plan file may lack.
    """
    data = _content(path)
    if isinstance(data, dict) and ("schema" in data or "plan" in data):
        from ilp_parallel.plan_files import plan_of_document
        from ilp_parallel.scheduling.from_plan import instance_of_plan

        return instance_of_plan(plan_of_document(data, path), whole_backwards)
    if isinstance(data, list):
        if case is None and len(data) != 1:
            fix = f"give --case 0 to {len(data) - 1}"
            raise InputError("CASE_MISSING", f"{path} holds {len(data)} cases", fix)
        index = case or 0
        if not 0 <= index < len(data):
            fix = f"use 0 to {len(data) - 1}"
            raise InputError("CASE_MISSING", f"{path} has no case {index}", fix)
        data = data[index]
    try:
        found = msgspec.convert(data, ZeroBubbleCase)
    except msgspec.ValidationError as error:
        fix = "give p, m, f, b, w, comm, mem_f, mem_b, mem_w, max_mem"
        raise InputError("BAD_SCHEDULE_FILE", f"{path}: {error}", fix) from None
    name = Path(path).stem + ("" if case is None else f" case {case}")
    return instance_of_case(found, name)


def instance_of_case(case: ZeroBubbleCase, name: str) -> ScheduleInstance:
    """The instance of one case.

    Raises
    ------
    InputError
        ``BAD_SCHEDULE_FILE`` where a number is out of range or a list has a wrong length.
    """
    _require_sound(case)
    numbers = StageNumbers(case.f, case.b, case.w, _cuts(case), case.mem_f, case.mem_b, case.mem_w)
    made = instance_of(
        numbers, case.p, case.m, case.max_mem, case.placement, case.chunks, name=name
    )

    def per_stage(value: _PerStage) -> IntArray:
        one = np.broadcast_to(np.asarray(value, dtype=np.int64), case.length)
        return np.tile(one, made.stages // case.length)

    moved = (per_stage(case.offload_mem), per_stage(case.offload), per_stage(case.reload))
    made = with_offload(made, *moved)
    return with_recomputation(made, per_stage(case.recompute_mem), per_stage(case.recompute))


def _content(path: str) -> object:
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_RESULT_BYTES + 1)
        if len(content) > MAX_RESULT_BYTES:
            raise InputError("FILE_TOO_LARGE", f"{path} exceeds {MAX_RESULT_BYTES} bytes")
        return json.loads(content)
    except OSError as error:
        raise InputError("FILE_UNREADABLE", f"{path}: {error}", "check the path") from None
    except (ValueError, RecursionError) as error:
        fix = "give zero-bubble cases or a plan"
        raise InputError("BAD_SCHEDULE_FILE", f"{path} is no JSON: {error}", fix) from None


def _cuts(case: ZeroBubbleCase) -> _PerStage:
    return case.comm if case.length > 1 or isinstance(case.comm, list) else []


def _require_sound(case: ZeroBubbleCase) -> None:
    """Numbers in range, lists of the right length."""

    def refuse(what: str, fix: str) -> None:
        raise InputError("BAD_SCHEDULE_FILE", what, fix)

    if not 1 <= case.p <= 1024 or not case.m >= 1 or case.p * case.m * 3 > _MOST_OPERATIONS:
        refuse(f"p={case.p}, m={case.m}", f"use p to 1024 and 3 p m to {_MOST_OPERATIONS}")
    if case.placement == "bidirectional" and case.m % 2:
        refuse(f"m={case.m} microbatches from two ends", "use an even number")
    if not 1 <= case.chunks <= 1024 or (case.chunks > 1 and case.placement != "loop"):
        refuse(f"chunks={case.chunks} of placement {case.placement}", "chunks are for loop")
    lengths = {"comm": case.length - 1, "max_mem": case.p}
    names = ("f", "b", "w", "comm", "mem_f", "mem_b", "mem_w", "max_mem")
    for name in (*names, "offload_mem", "offload", "reload", "recompute_mem", "recompute"):
        value = 0 if name == "w" and case.w is None else getattr(case, name)
        sign, length = (-1 if name in ("mem_b", "mem_w") else 1), lengths.get(name, case.length)
        if isinstance(value, list) and len(value) != length:
            refuse(f"{name} has {len(value)} values", f"give {length}, or one number")
        values = value if isinstance(value, list) else [value]
        wrong = [v for v in values if not 0 <= sign * v <= _LARGEST_TICKS]
        if wrong:
            low, high = sorted((0, sign * _LARGEST_TICKS))
            refuse(f"{name}={wrong[0]}", f"use {low} to {high}")
    held = [
        np.broadcast_to(np.asarray(part, dtype=np.int64), case.length)
        for part in (case.mem_f, case.mem_b, case.mem_w, case.offload_mem, case.recompute_mem)
    ]
    if np.any(held[0] + held[1] + held[2] < 0):
        refuse("B and W give back more than F takes", "check mem_f, mem_b and mem_w")
    if np.any(held[3] + held[4] > held[0]):
        refuse("more is offloaded or recomputed than F takes", "lower offload_mem, recompute_mem")
    if np.any(held[3] + held[4] > 0) and np.any(held[0] + held[1] + held[2] != 0):
        refuse("B and W keep something for good", "with offload or recomputation give it all back")
