"""What the schedule family reaches: ``make bench-schedule``; CPU seconds of this process.

Zero-bubble's cases are read from the file ``ZERO_BUBBLE_CASES`` names.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np

from ilp_parallel.imports.schedule_instance import read_schedule_instance
from ilp_parallel.planner_schedule import SchedulePlanner, ScheduleResult, periodic_schedule
from ilp_parallel.problems.schedule import ScheduleInstance, evaluate
from ilp_parallel.scheduling.placements import (
    PlacementClass,
    StageNumbers,
    instance_of,
    with_offload,
)

DEFAULT_CASES = "../shared/data/zero_bubble/instances.json"
UNIFORM = {
    "F=B=W": StageNumbers(10, 10, 10),
    "10,11,8 delay 1": StageNumbers(10, 11, 8, 1),
    "fused 10,20": StageNumbers(10, 20, None, 0),
}


def solved(instance: ScheduleInstance, limit_s: float) -> tuple[ScheduleResult, float]:
    """The result and its CPU seconds."""
    began = time.process_time()
    result = SchedulePlanner(instance, limit_s).run()
    return result, time.process_time() - began


def row(instance: ScheduleInstance, result: ScheduleResult, cpu_s: float) -> str:
    """One line of a table."""
    best = result.best_named
    named = "-" if best is None else f"{best.name} {best.evaluation.makespan_ticks:,}"
    gap = "-" if result.gap is None else f"{result.gap:.3%}"
    value = "-" if result.objective is None else f"{result.objective:,}"
    return (
        f"| {instance.name} | {result.status} | {value} | {result.bound:,} | {gap} | "
        f"{result.bounds[0].name} | {result.found_by} | {named} | {cpu_s:.2f} |"
    )


HEAD = (
    "| instance | status | makespan | bound | gap | bound by | found by | best that has a name "
    "| CPU s |\n|---|---|---:|---:|---:|---|---|---|---:|"
)


def cases() -> None:
    """Every zero-bubble case, within the published program's cap of 120 s."""
    path = os.environ.get("ZERO_BUBBLE_CASES", DEFAULT_CASES)
    print(f"\nZero-bubble cases\n\n{HEAD}")
    for number in range(len(json.loads(Path(path).read_text(encoding="utf-8")))):
        instance = read_schedule_instance(path, number)
        print(row(instance, *solved(instance, 120.0)), flush=True)


def uniform(most_devices: int, most_microbatches: int) -> None:
    """All uniform instances up to a size, at the memory of p and of 2p microbatches, 10 s each."""
    print("\nUniform instances, 10 s each\n")
    print("| times | memory | instances | proven | worst CPU s | not proven |")
    print("|---|---|---:|---:|---:|---|")
    for name, numbers in UNIFORM.items():
        for multiple in (1, 2):
            worst, proven, missed, count = 0.0, 0, [], 0
            for p in range(1, most_devices + 1):
                for m in range(1, most_microbatches + 1):
                    result, cpu_s = solved(instance_of(numbers, p, m, 2 * p * multiple), 10.0)
                    count += 1
                    proven += result.status == "optimal"
                    worst = max(worst, cpu_s)
                    if result.status != "optimal":
                        missed.append(f"p={p} m={m} gap {result.gap or 1:.2%}")
            shown = "; ".join(missed[:6]) or "none"
            print(
                f"| {name} | {multiple}p | {count} | {proven} | {worst:.2f} | {shown} |", flush=True
            )


def large() -> None:
    """Many microbatches: idle time above the proven minimum, as a share of 1F1B's idle time."""
    print("\nMany microbatches\n")
    print("| p, m | times | memory | status | idle above bound / 1F1B's idle | periodic | CPU s |")
    print("|---|---|---|---|---:|---:|---:|")
    for p, m in ((16, 64), (8, 256)):
        for name, numbers in UNIFORM.items():
            for multiple in (1, 2):
                instance = instance_of(numbers, p, m, 2 * p * multiple)
                result, cpu_s = solved(instance, 120.0)
                reference = next(r for r in result.named if r.name == "1f1b")
                load = int(instance.device_load_ticks().max())
                idle = (reference.evaluation.makespan_ticks or 0) - load
                share = ((result.objective or 0) - result.bound) / idle
                steady = (periodic_makespan(instance) - result.bound) / idle
                print(
                    f"| {p}, {m} | {name} | {multiple}p | {result.status} | {share:.1%} | "
                    f"{steady:.1%} | {cpu_s:.2f} |",
                    flush=True,
                )


def periodic_makespan(instance: ScheduleInstance) -> int:
    """Makespan around the steady state of the periodic program alone."""
    found = periodic_schedule(instance, time.monotonic() + 120.0)
    assert found is not None
    makespan = evaluate(instance, found).makespan_ticks
    assert makespan is not None
    return makespan


def memories() -> None:
    """Bubble share of 1F1B, of the best named schedule that fits, and of the best schedule."""
    print("\nIdle share by memory\n")
    print("| p, m | times | memory | 1F1B | best named that fits | best | bound | status | CPU s |")
    print("|---|---|---|---:|---|---:|---:|---|---:|")
    for p, m in ((4, 8), (4, 16), (8, 16)):
        for name, numbers in list(UNIFORM.items())[:2]:
            one = np.ones(p, dtype=np.int64)
            half = instance_of(numbers, p, m, p)
            choices = {
                "1F1B's": instance_of(numbers, p, m, 2 * p),
                "ZB-2p's": instance_of(numbers, p, m, 4 * p),
                "half of 1F1B's": half,
                "half, offload 6 + 6 ticks": with_offload(half, 2 * one, 6 * one, 6 * one),
                "half, offload 12 + 12 ticks": with_offload(half, 2 * one, 12 * one, 12 * one),
            }
            for memory, instance in choices.items():
                result, cpu_s = solved(instance, 60.0)
                work = int(instance.device_load_ticks().sum())

                def idle(ticks: int | None, work: int = work, p: int = p) -> str:
                    return "-" if not ticks else f"{1 - work / (p * ticks):.2%}"

                reference = next(r for r in result.named if r.name == "1f1b").evaluation
                best = result.best_named
                named = "-"
                if best is not None:
                    named = f"{best.name} {idle(best.evaluation.makespan_ticks)}"
                print(
                    f"| {p}, {m} | {name} | {memory} | {idle(reference.makespan_ticks)} | {named} "
                    f"| {idle(result.objective)} | {idle(result.bound)} | {result.status} "
                    f"| {cpu_s:.1f} |",
                    flush=True,
                )


def placements() -> None:
    """One model in every placement: two half stages per device, or two whole ones (DualPipe)."""
    print(f"\nPlacements (p = 4 and 8; F, B, W = 20, 22, 16 per device and microbatch)\n\n{HEAD}")
    kinds: list[tuple[PlacementClass, int, int]] = [
        ("plain", 1, 2),
        ("loop", 2, 1),
        ("v", 2, 1),
        ("bidirectional", 1, 2),
    ]
    for p, m in ((4, 16), (8, 32)):
        for placement, chunks, scale in kinds:
            numbers = StageNumbers(10 * scale, 11 * scale, 8 * scale, 0, 2 * scale, -scale, -scale)
            room = 4 * (p + (placement == "bidirectional"))
            instance = instance_of(numbers, p, m, room, placement, chunks)
            print(row(instance, *solved(instance, 60.0)), flush=True)


TABLES = {
    "cases": cases,
    "large": large,
    "placements": placements,
    "memories": memories,
    "uniform": lambda: uniform(8, 16),
}


def main() -> None:
    """Print the tables asked for, by default all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=", ".join(TABLES))
    chosen = parser.parse_args().tables or list(TABLES)
    if unknown := set(chosen) - TABLES.keys():
        parser.error(f"no table {', '.join(sorted(unknown))}; use {', '.join(TABLES)}")
    for name in chosen:
        TABLES[name]()


if __name__ == "__main__":
    main()
