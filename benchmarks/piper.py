"""Public inputs of Piper: our value, the published one, the gap and both times.

``python benchmarks/piper.py [TABLE ...]`` with the folder PIPER_DATA (default
``../shared/data/piper``). Tables: ``reference`` (every row of reference.csv), ``large`` (bert32 to
2,048 devices, gnmt), ``greedy`` (resnet against the published choice of modes). Every value is a
cold process; seconds are its processor time, start and imports included, and MiB its peak memory.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

DATA = Path(os.environ.get("PIPER_DATA", Path(__file__).parents[2] / "shared/data/piper"))

BERT = [("bert32a100", devices, {}) for devices in (8, 64, 512, 1024, 2048)]
GNMT = [("gnmt", devices, {}) for devices in (2, 4, 8)]
TIGHT = [
    ("gnmt", 4, {"memory-bytes": "2684354560", "bandwidth": "26843545600"}),
    ("gnmt", 4, {"memory-bytes": "1300000000", "bandwidth": "26843545600"}),
    ("gnmt", 8, {"memory-bytes": "2576980377.6", "bandwidth": "26843545600"}),
    ("gnmt", 8, {"memory-bytes": "900000000", "bandwidth": "26843545600"}),
]
RESNET = [
    ("resnet", devices, {"memory-bytes": memory, "bandwidth": "26843545600"})
    for devices, memory in (
        *((8, "8e9"), (12, "4e9"), (12, "6e9"), (16, "4e9"), (16, "5e9")),
        *((16, "5.5e9"), (16, "5.8e9"), (32, "1610612736"), (32, "3e9")),
    )
]


@dataclass(frozen=True)
class Run:
    document: dict[str, object]
    cpu_s: float
    peak_mib: float


def solve(name: str, devices: int, machine: dict[str, str], ablation: str = "full") -> Run:
    command = [sys.executable, "-m", "ilp_parallel", "solve", str(DATA / f"{name}.json")]
    command += ["--format-in", "piper", "--format", "json", "--ablation", ablation]
    command += ["--devices", str(devices)]
    for option, value in machine.items():
        command += [f"--{option}", value]
    one_thread = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    with tempfile.TemporaryFile("w+", encoding="utf-8") as out:
        process = subprocess.Popen(command, stdout=out, env=one_thread)
        _, _, usage = os.wait4(process.pid, 0)
        out.seek(0)
        document = json.load(out)
    return Run(document, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def line(*cells: object) -> None:
    print("|" + "|".join("" if cell is None else str(cell) for cell in cells) + "|", flush=True)


def header(*names: str) -> None:
    print()
    line(*names)
    line(*("---" for _ in names))


def reference() -> None:
    header(
        *("input", "devices", "bytes", "bytes/s", "microbatches", "mode", "status", "ours"),
        *("published", "gap to it", "CPU s", "its CPU s", "verdict"),
    )
    with (DATA / "reference.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    good = 0
    for row in rows:
        machine = {
            "memory-bytes": row["maxMemoryPerDevice_bytes"],
            "bandwidth": row["bandwidth_bytes_per_s"],
            "microbatches": row["mbsInBatch"],
        }
        found = solve(row["input"], int(row["maxDevices"]), machine, row["mode"])
        status, ours = found.document["status"], found.document["objective"]
        published = float(row["tps"]) if row["tps"] else None
        gap, holds = None, status == row["status"]
        if published is not None:
            gap = None if ours is None else ours / published - 1
            holds = status == "optimal" and bool(found.document["verified"]) and gap <= 1e-9
        good += holds
        shown = None if gap is None else f"{gap:.1e}"
        line(
            *(row["input"], *(row["maxDevices"], *machine.values()), row["mode"], status, ours),
            *(published, shown, f"{found.cpu_s:.2f}", row["cpu_s"], "ok" if holds else "DIFFERS"),
        )
    print(f"\n{good} of {len(rows)} rows: infeasible proven, or proven and not above the published")


def large() -> None:
    header("input", "devices", "memory", "status", "value", "bound", "CPU s", "MiB")
    for name, devices, machine in (*BERT, *GNMT, *TIGHT):
        found = solve(name, devices, machine)
        document = found.document
        line(
            *(name, devices, machine.get("memory-bytes", "as in the file"), document["status"]),
            *(document["objective"], document["bound"], f"{found.cpu_s:.2f}"),
            f"{found.peak_mib:.0f}",
        )


def greedy() -> None:
    header("input", "devices", "memory", "optimum", "piper_dp", "piper_dp above", "CPU s", "its")
    for name, devices, machine in RESNET:
        best = solve(name, devices, machine)
        theirs = solve(name, devices, machine, "piper_dp")
        excess = None
        if best.document["status"] == "optimal" and theirs.document["objective"] is not None:
            values = [Fraction(run.document["objective_exact"]) for run in (best, theirs)]
            excess = f"{float(values[1] / values[0] - 1):.3%}"
        line(
            *(name, devices, machine["memory-bytes"], best.document["objective"]),
            *(theirs.document["objective"], excess, f"{best.cpu_s:.2f}", f"{theirs.cpu_s:.2f}"),
        )


TABLES = {"reference": reference, "large": large, "greedy": greedy}


def main() -> None:
    if not DATA.is_dir():
        sys.exit(f"no folder {DATA}: set PIPER_DATA")
    for name in sys.argv[1:] or TABLES:
        TABLES[name]()


if __name__ == "__main__":
    main()
