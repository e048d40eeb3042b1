"""Made-up runs: rows of a table with the columns of a run, whose times follow from the model.

The times are the cost model's own, times a stated factor: what ``validate`` must find is known.
"""

from __future__ import annotations

import csv
from dataclasses import fields
from typing import TYPE_CHECKING

import msgspec

from ilp_parallel.measured.plans import ordered, plans_of, predicted
from ilp_parallel.measured.runs import Run

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

COLUMNS = tuple(field.name for field in fields(Run))

ROW: dict[str, object] = {
    "row_id": "toy-0",
    "source_id": "toy",
    "framework": "Megatron-LM 1.0.0",
    "task": "pretrain",
    "model": "toy-llama-13b",
    "family": "",
    "arch_kind": "dense",
    "layers": 40,
    "hidden": 5120,
    "heads": 40,
    "kv_heads": 40,
    "ffn": 13824,
    "gated_mlp": 1,
    "vocab": 32000,
    "seq_len": 2048,
    "gpu": "A100",
    "gpu_mem_gb": 80,
    "gpus_per_node": 8,
    "n_gpus": 64,
    "tp": 2,
    "pp": 2,
    "dp": 16,
    "cp": 1,
    "ep": 1,
    "vpp": 1,
    "seq_par": 1,
    "mbs": 1,
    "gbs": 512,
    "recompute": "none",
    "zero": 1,
    "precision": "bf16",
    "status": "ok",
    "quality": "A",
}
"""A 13 B model on 64 A100-80GB: fits, and leaves nothing open."""


def run_of(**changes: object) -> Run:
    """A run like ``ROW`` but for the changes; without a time unless one is given."""
    row = {**dict.fromkeys(COLUMNS), **ROW, **changes}
    cells = {name: None if value is None else str(value) for name, value in row.items()}
    return msgspec.convert(
        {k: v or None for k, v in cells.items()} | _texts(row), Run, strict=False
    )


def _texts(row: dict[str, object]) -> dict[str, str]:
    """Text columns that may be empty in a row of our own making."""
    return {"family": str(row["family"] or "none")}


def said(run: Run) -> float:
    """What the model says of a run: the step time (s) of its assumed completion."""
    return predicted(run, ordered(run, plans_of(run))[0])[0]


def timed(factor: float, **changes: object) -> Run:
    """A run whose measured time is ``factor`` times what the model says of it."""
    seconds = said(run_of(**changes))
    return run_of(**changes, step_time_canon_s=factor * seconds)


def out_of_memory(**changes: object) -> Run:
    """A run that ran out of memory."""
    return run_of(**changes, status="OOM", quality="M")


def write_table(path: Path, runs: Iterable[Run], **more: object) -> Path:
    """A CSV file of runs, with ``more`` as further columns."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*COLUMNS, *more])
        writer.writeheader()
        for run in runs:
            cells = {name: getattr(run, name) for name in COLUMNS}
            for name, value in cells.items():
                cells[name] = int(value) if isinstance(value, bool) else value
            writer.writerow({**cells, **more})
    return path
