"""The simulated schedule as compact data for the page's own chart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ilp_parallel.costs.breakdown import Prediction
    from ilp_parallel.playing import Played
    from ilp_parallel.problems.pipeline import IntArray
    from ilp_parallel.simulate import Timeline

MOST_DRAWN = 36_000
"""Most operations in a page (chosen): about 300 KB."""


@dataclass(frozen=True, slots=True)
class TimelineData:
    """What the chart draws: ``data`` for the script, and how many operations it leaves out."""

    data: dict[str, object]
    operations: int
    drawn: int
    windows_s: tuple[tuple[float, float], ...]  # parts of the step that are drawn


def timeline_data(
    played: Played, prediction: Prediction, tick_s: float, most: int = MOST_DRAWN
) -> TimelineData:
    """Operations of every device group, or of the first, a middle and the last part of the step.

    Starts are kept as idle ticks before each operation, operations as one number, ``(microbatch *
    chunks + chunk) * 2 + backward``; a chunk's operations all take equally long.
    """
    simulation, instance = played.simulation, played.instance
    windows = _windows(simulation.timelines, simulation.step_ticks, most)
    groups = []
    drawn = 0
    for stage, line in enumerate(simulation.timelines):
        group = _group(played, prediction, stage)
        parts = [_part(line, window, instance.chunks) for window in windows]
        drawn += sum(len(part["codes"]) for part in parts)
        groups.append({**group, "parts": [_with_memory(played, stage, p) for p in parts]})
    data: dict[str, object] = {
        "tick": tick_s,
        "step": simulation.step_ticks,
        "makespan": simulation.makespan_ticks,
        "chunks": instance.chunks,
        "stages": instance.stages,
        "cuts": instance.cut_ticks.tolist(),
        "windows": [list(window) for window in windows],
        "groups": groups,
    }
    operations = sum(len(line.start_ticks) for line in simulation.timelines)
    ends = tuple((low * tick_s, high * tick_s) for low, high in windows)
    return TimelineData(data, operations, drawn, ends)


def _windows(
    timelines: tuple[Timeline, ...], step_ticks: int, most: int
) -> tuple[tuple[int, int], ...]:
    """Stretches of time, each with a third of the operations that may be drawn."""
    starts = np.sort(np.concatenate([line.start_ticks for line in timelines]))
    count = len(starts)
    if count <= most:
        return ((0, step_ticks),)
    third = most // 3
    middle = count // 2
    return (
        (0, int(starts[third])),
        (int(starts[middle - third // 2]), int(starts[middle + third // 2])),
        (int(starts[count - third]), step_ticks),
    )


def _group(played: Played, prediction: Prediction, stage: int) -> dict[str, object]:
    """Durations and sizes of a device group."""
    instance, simulation = played.instance, played.simulation
    line, p = simulation.timelines[stage], instance.stages
    duration = line.end_ticks - line.start_ticks
    chunks = range(instance.chunks)
    forward, backward = (
        [int(duration[(line.order.chunk == c) & (line.order.backward == b)][0]) for c in chunks]
        for b in (False, True)
    )
    terms = {term.name: term.value for term in prediction.stages[stage].microbatch_terms}
    again = terms["recomputation"] / max(prediction.stages[stage].backward_s, 1e-12)
    curve = simulation.memory[stage]
    return {
        "forward": forward,
        "backward": backward,
        "recompute": round(min(again, 1.0), 6),
        "finish": simulation.finish_ticks[stage],
        "tail": simulation.tail_ticks[stage],
        "virtual": [c * p + stage for c in chunks],
        "standing": int(curve.bytes_held[-1]),
        "capacity": int(instance.capacity_bytes[stage]),
        "peak": curve.peak_bytes,
    }


def _part(line: Timeline, window: tuple[int, int], chunks: int) -> dict[str, list[int]]:
    """The operations that start in a window."""
    chosen = (line.start_ticks >= window[0]) & (line.start_ticks < window[1])
    starts, ends = line.start_ticks[chosen], line.end_ticks[chosen]
    order = line.order
    codes: IntArray = (order.microbatch * chunks + order.chunk) * 2 + order.backward
    before = np.concatenate(([0], ends[:-1])) if len(ends) else ends
    return {
        "gaps": (starts - before).tolist(),
        "codes": codes[chosen].tolist(),
        "places": np.flatnonzero(chosen)[:1].tolist(),
    }


def _with_memory(played: Played, stage: int, part: dict[str, list[int]]) -> dict[str, object]:
    """Adds the memory during and after each operation of the part, in MiB."""
    curve = played.simulation.memory[stage]
    place, count = (part["places"] or [0])[0], len(part["codes"])
    during_after = curve.bytes_held[2 * place : 2 * (place + count)].reshape(-1, 2)
    mib: IntArray = -(-during_after // (1 << 20))
    palette, index = np.unique(mib, axis=0, return_inverse=True)
    return {
        "gaps": part["gaps"],
        "codes": part["codes"],
        "levels": palette.tolist(),
        "held": index.ravel().tolist(),
    }
