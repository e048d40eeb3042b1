"""Public throughput files: our chain optimum, the published value, the gap, both CPU times.

The folder is PLACEMENT_DATA, else ``../shared/data/device_placement``; arguments name inputs.
"""

from __future__ import annotations

import csv
import os
import sys
import time
from pathlib import Path

from ilp_parallel.imports.placement_instance import read_placement_instance
from ilp_parallel.planner_placement import plan_placement

DATA = Path(os.environ.get("PLACEMENT_DATA", "../shared/data/device_placement"))


def published() -> dict[tuple[str, str], tuple[str, str]]:
    """Value and CPU seconds of the published exact program, by granularity and input."""
    with (DATA / "reference.csv").open(newline="") as file:
        return {
            (row["granularity"], row["input"]): (row["max_load_full_precision"], row["cpu_s"])
            for row in csv.DictReader(file)
            if row["variant"] == "dp"
        }


def main(wanted: list[str]) -> None:
    """Print one Markdown row per file."""
    known = published()
    print("| graph | input | ours | status | published | gap | ideals | our CPU s | their CPU s |")
    print("|---|---|---|---|---|---|---|---|---|")
    for path in sorted((DATA / "throughput").glob("*/*.json")):
        if wanted and path.stem not in wanted:
            continue
        began = time.process_time()
        instance = read_placement_instance(str(path))
        result = plan_placement(instance, "chain")
        took = time.process_time() - began
        ticks = result.objective_ticks
        ours = None if ticks is None else ticks / instance.ticks_per_unit
        value, seconds = known.get((path.parent.name, path.stem), ("", ""))
        gap = f"{float(value) / ours - 1:.2e}" if value and ours else ""
        cells = (path.parent.name, path.stem, ours, result.status, value or "-", gap or "-")
        print("|", " | ".join(map(str, cells)), f"| {result.ideals} | {took:.2f} | {seconds} |")


if __name__ == "__main__":
    main(sys.argv[1:])
