"""Step times by formula beside simulated ones, over random plans: how far, by delay and depth.

Plans have equal layers per stage with times varied by 3 % either way, a ratio B/F uniform in [1.9,
2.4] per stage (recomputation differs), an embedding of 0.06 and a head of 0.3 layers' forward time,
and delays given relative to one layer's forward time, varied by 50 % either way. One chunk:
``p`` in {4, 8, 16, 32}; interleaved: ``p`` in {4, 8, 16} and 2 or 4 chunks. ``m`` is p, 4p or 16p.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from ilp_parallel import schedule_bounds as bounds
from ilp_parallel.report import render
from ilp_parallel.schedules import operation_order
from ilp_parallel.simulate import StageTimes, run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ilp_parallel.report import Style

SCHEMA = "ilp_parallel.simulate-study/1"
Studied = Literal["1f1b", "interleaved"]
DELAYS = (0.0, 0.05, 0.5, 5.0)
"""Delay of a cut, in forward times of a layer."""
MULTIPLES = (1, 4, 16)
"""Microbatches, in stages."""
_LAYER_TICKS = 10_000.0


@dataclass(frozen=True, slots=True)
class Spread:
    """Shares over the plans of one kind, as (least, mean, largest).

    ``formula`` over the simulated makespan, less one; else what a bound is below the makespan.
    """

    schedule: Studied
    delay: float
    multiple: int
    plans: int
    formula: tuple[float, float, float]
    any_order: tuple[float, float, float]  # LB1, and LB2 for one chunk
    own_order: tuple[float, float, float]  # LB3 too


def study(plans: int, seed: int, say: Callable[[str], None] = lambda line: None) -> list[Spread]:
    """A line of figures for every schedule, delay and number of microbatches.

    Parameters
    ----------
    plans
        How many are drawn for each line.
    seed
        Of the draw; every line has its own stream.
    say
        Is told what is done.
    """
    found = []
    for schedule, delay, multiple in _lines():
        say(f"{schedule}, delay {delay:g}, m = {multiple} p")
        line = [("1f1b", "interleaved").index(schedule), round(100 * delay), multiple]
        rng = np.random.default_rng([seed, *line])
        shares = [_shares(rng, schedule, delay, multiple) for _ in range(plans)]
        columns = [(min(c), sum(c) / len(c), max(c)) for c in zip(*shares, strict=True)]
        found.append(Spread(schedule, delay, multiple, plans, *columns))
    return found


def _lines() -> Iterator[tuple[Studied, float, int]]:
    kinds: tuple[Studied, ...] = ("1f1b", "interleaved")
    for schedule in kinds:
        for delay in DELAYS:
            for multiple in MULTIPLES:
                yield schedule, delay, multiple


def _shares(
    rng: np.random.Generator, schedule: Studied, delay: float, multiple: int
) -> tuple[float, float, float]:
    """Formula over simulation less one, and gaps of the bounds, for one random plan."""
    stages = int(rng.choice([4, 8, 16, 32] if schedule == "1f1b" else [4, 8, 16]))
    chunks = 1 if schedule == "1f1b" else int(rng.choice([2, 4]))
    times, m = _random_times(rng, stages, chunks, delay), multiple * stages
    orders = tuple(operation_order(schedule, stages, chunks, m, s) for s in range(stages))
    simulated = max(int(line.end_ticks[-1]) for line in run(times, m, orders))
    general = bounds.work_bound(times, m)
    if chunks == 1:
        held = [min(m, stages - s) for s in range(stages)]
        general = max(general, bounds.in_flight_bound(times, m, held))
    own = bounds.lower_bound(times, schedule, m)
    formula = formula_makespan(times, m)
    return formula / simulated - 1, 1 - general / simulated, 1 - own / simulated


def _random_times(rng: np.random.Generator, stages: int, chunks: int, delay: float) -> StageTimes:
    virtual = stages * chunks
    layers = 1 if chunks > 1 else int(rng.integers(1, 9))
    forward = _LAYER_TICKS * layers * rng.uniform(0.97, 1.03, virtual)
    backward = forward * rng.uniform(1.9, 2.4, virtual)
    for place, share in ((0, 0.06), (-1, 0.3)):
        forward[place] += share * _LAYER_TICKS
        backward[place] += 2 * share * _LAYER_TICKS
    cuts = delay * _LAYER_TICKS * rng.uniform(0.5, 1.5, virtual - 1)
    f, b, c = (values.round().astype(np.int64) for values in (forward, backward, cuts))
    return StageTimes(stages, f, b, c)


def formula_makespan(times: StageTimes, microbatches: int) -> float:
    """The pipeline part of the objective of 1F1B and of interleaving, not rounded up."""
    into, outof = np.append(0, times.cut_ticks), np.append(times.cut_ticks, 0)
    busy = times.forward_ticks + times.backward_ticks + into + outof
    groups = busy.reshape(times.chunks, times.stages).sum(axis=0)
    longest, v = int(groups.max()), times.chunks
    return (int(groups.sum()) + (microbatches * v - 1) * longest) / v


def study_document(found: list[Spread], seed: int) -> dict[str, object]:
    """The JSON of ``simulate --study``."""

    def spread(shares: tuple[float, float, float]) -> dict[str, float]:
        return dict(zip(("least", "mean", "largest"), shares, strict=True))

    return {
        "schema": SCHEMA,
        "seed": seed,
        "lines": [
            {
                "schedule": line.schedule,
                "delay": line.delay,
                "microbatches_per_stage": line.multiple,
                "plans": line.plans,
                "formula_over_simulated": spread(line.formula),
                "gap_of_bounds_for_any_order": spread(line.any_order),
                "gap_of_bounds_for_this_order": spread(line.own_order),
            }
            for line in found
        ],
    }


def study_text(found: list[Spread], style: Style) -> str:
    """The same for reading."""

    def percent(shares: tuple[float, float, float]) -> str:
        return " / ".join(f"{0.0 + 100 * share:.2f}" for share in shares)

    rows = [
        (
            line.schedule,
            f"{line.delay:g}",
            f"{line.multiple}p" if line.multiple > 1 else "p",
            str(line.plans),
            percent(line.formula),
            percent(line.any_order),
            percent(line.own_order) if line.schedule == "1f1b" else "",
        )
        for line in found
    ]
    header = (
        *("schedule", "delay", "m", "plans", "T over simulated"),
        *("gap of LB1, LB2", "gap with LB3"),
    )
    title = "step time by formula and bounds against simulation (%: least / mean / largest)"
    return render(title, header, rows, style)
