"""What named schedules cost against the best one, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ilp_parallel.problems.schedule import ScheduleInstance
    from ilp_parallel.scheduling.named import NamedResult


def named_table(
    instance: ScheduleInstance,
    named: tuple[NamedResult, ...],
    best_ticks: int | None,
    markdown: bool = False,
) -> list[str]:
    """Lines of a table: makespan, idle share, price against the best, whether memory suffices."""
    busy = int(instance.device_load_ticks().sum())
    rows = [("schedule", "makespan", "idle", "price", "memory")]
    for result in named:
        ticks = result.evaluation.makespan_ticks or 0
        price = "-" if not best_ticks or not result.fits else f"{ticks / best_ticks - 1:+.2%}"
        idle = 1 - busy / (instance.devices * max(ticks, 1))
        fits = "fits" if result.fits else "exceeded"
        rows.append((result.name, f"{ticks:,}", f"{idle:.2%}", price, fits))
    if markdown:
        head, *body = ["| " + " | ".join(row) + " |" for row in rows]
        return [head, "|---|---:|---:|---:|---|", *body]
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    return [
        "  ".join(
            cell.ljust(width) if i in (0, 4) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
