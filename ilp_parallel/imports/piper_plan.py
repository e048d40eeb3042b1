"""Plans of Piper's public planner: reading, writing, and its own price in floating point."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ilp_parallel.errors import InputError
from ilp_parallel.problems.piper import Stage, in_flight
from ilp_parallel.specs.documents import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ilp_parallel.imports.piper_instance import PiperFile
    from ilp_parallel.problems.piper import PiperInstance


class PiperStage(msgspec.Struct, frozen=True):
    """A stage as the published program writes it."""

    TMPCids: dict[str, str]  # node -> mode
    dataParallelDegree: int
    tensorParallelDegree: int
    nodes: list[int]


def parse_piper_plan(text: str, instance: PiperInstance) -> tuple[Stage, ...]:
    """The plan in a JSON text, first stage first.

    Raises
    ------
    InputError
        ``BAD_PIPER_PLAN`` where it is malformed or names what the instance lacks.
    """
    try:
        stages = msgspec.json.decode(text.encode(), type=list[PiperStage])
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
        raise _bad(shown(str(error).splitlines()[0])) from None
    return tuple(_stage(stage, instance) for stage in stages)


def _bad(reason: str) -> InputError:
    return InputError("BAD_PIPER_PLAN", reason, "give a plan of this instance, as Piper writes it")


def _stage(raw: PiperStage, instance: PiperInstance) -> Stage:
    place = {identifier: v for v, identifier in enumerate(instance.layer_ids)}
    unknown = [node for node in raw.nodes if node not in place]
    if unknown or raw.TMPCids.keys() != {str(node) for node in raw.nodes}:
        raise _bad(f"nodes and modes of a stage differ, or there is no node {shown(unknown)}")
    layers = sorted(place[node] for node in raw.nodes)
    picks = []
    for v in layers:
        name = raw.TMPCids[str(instance.layer_ids[v])]
        found = instance.modes[v].get(raw.tensorParallelDegree, ())
        names = [mode.name for mode in found]
        if name not in names:
            raise _bad(f"node {instance.layer_ids[v]} has no mode {shown(name)} there")
        picks.append(names.index(name))
    return Stage(tuple(layers), raw.dataParallelDegree, raw.tensorParallelDegree, tuple(picks))


def piper_plan(plan: Sequence[Stage], instance: PiperInstance) -> list[dict[str, object]]:
    """A plan in the published form, ready for JSON."""
    return [
        {
            "TMPCids": {
                str(instance.layer_ids[v]): instance.modes[v][stage.tensor_degree][k].name
                for v, k in zip(stage.layers, stage.modes, strict=True)
            },
            "dataParallelDegree": stage.data_degree,
            "nodes": [instance.layer_ids[v] for v in stage.layers],
            "tensorParallelDegree": stage.tensor_degree,
        }
        for stage in plan
    ]


def seconds_in_floats(file: PiperFile, plan: Sequence[Stage]) -> list[float]:
    """[stages] seconds per microbatch in double precision, term by term as published."""
    return [_float_seconds(file, stage) for stage in plan]


def _float_seconds(file: PiperFile, stage: Stage) -> float:
    ids = {file.nodes[v].id for v in stage.layers}
    degree, compute, moved, resync = stage.data_degree, 0.0, 0.0, 0.0
    for v, k in zip(stage.layers, stage.modes, strict=True):
        node = file.nodes[v]
        mode = node.TMPCs[str(stage.tensor_degree)][k]
        compute += float(mode.timePerSample)
        resync += 4.0 * (degree - 1) * float(mode.parameterSize) / (degree * file.mbsInBatch)
        for edge in file.edges:
            if edge.destId == node.id and edge.sourceId not in ids:
                sync = float(mode.syncTimeFw[str(edge.sourceId)])
                moved += 2.0 * (float(edge.communicationCost) + sync)
            if edge.sourceId == node.id and edge.destId not in ids:
                sync = float(mode.syncTimeBw[str(edge.destId)])
                moved += 2.0 * (float(edge.communicationCost) + sync)
    return compute / degree + (moved / degree + resync) / float(file.bandwidth)


def bytes_in_floats(file: PiperFile, plan: Sequence[Stage]) -> list[float]:
    """[stages] bytes of one device in double precision, as published."""
    return [
        sum(
            float(mode.memoryUsageA) * y + float(mode.memoryUsageB)
            for v, k in zip(stage.layers, stage.modes, strict=True)
            for mode in [file.nodes[v].TMPCs[str(stage.tensor_degree)][k]]
        )
        for stage, y in zip(plan, in_flight(plan), strict=True)
    ]
