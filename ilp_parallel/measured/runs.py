"""Measured training runs from CSV files, as typed records.

The columns are those of a public compilation of runs; only those named in ``_COLUMNS`` are read.
An empty cell is None: what it may stand for is decided in ``plans.py``, never here.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from ilp_parallel.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Status = Literal["ok", "OOM", "OOM_or_crash", "error", "unsupported"]


@dataclass(frozen=True, slots=True)
class Run:
    """One row: a run with its time, or one that did not fit. Degrees are per model replica."""

    row_id: str
    source_id: str
    framework: str  # with its release
    task: str
    model: str
    family: str
    arch_kind: str
    layers: int | None
    hidden: int | None
    heads: int | None
    kv_heads: int | None
    ffn: int | None
    gated_mlp: bool | None
    vocab: int | None
    seq_len: int | None
    gpu: str
    gpu_mem_gb: float | None
    gpus_per_node: int | None
    inter_node_net: str | None
    n_gpus: int | None
    tp: int | None
    pp: int | None
    dp: int | None
    cp: int | None
    ep: int | None
    vpp: int | None
    seq_par: bool | None
    mbs: int | None
    gbs: int | None
    recompute: str | None
    zero: int | None
    precision: str | None
    attn_kernel: str | None
    status: Status
    quality: str
    peak_mem_gb: float | None
    step_time_canon_s: float | None

    @property
    def source(self) -> str:
        """The source, models with experts apart."""
        return f"{self.source_id}{EXPERTS}" if self.arch_kind == "moe" else self.source_id

    @property
    def stack_name(self) -> str:
        """The framework without its release number."""
        return _RELEASE.sub("", self.framework).strip()

    @property
    def release(self) -> tuple[int, ...]:
        """The framework's release number, for ordering; () where none is printed."""
        match = _RELEASE.search(self.framework)
        return tuple(int(part) for part in re.findall(r"\d+", match[0])) if match else ()

    @property
    def configuration_key(self) -> tuple[object, ...]:
        """Everything that was decided: rows with equal keys repeat one configuration."""
        return (*self.group_key, *(getattr(self, name) for name in _DECIDED))

    @property
    def group_key(self) -> tuple[object, ...]:
        """What a planner is given: model, cluster, batch, kernels, precision, software."""
        return (self.stack_name, *(getattr(self, name) for name in _GIVEN))

    @property
    def timed(self) -> bool:
        """Whether the row has a trustworthy time."""
        good = self.status == "ok" and self.quality in ("A", "B")
        return good and self.step_time_canon_s is not None


_RELEASE = re.compile(r"\bv?\d+(\.\d+)+\b")
_GIVEN = (
    *("source_id", "task", "model", "family", "layers", "hidden", "heads", "kv_heads", "ffn"),
    *("vocab", "seq_len", "gpu", "gpu_mem_gb", "n_gpus", "gbs", "precision", "attn_kernel"),
)
_DECIDED = ("tp", "pp", "dp", "cp", "ep", "vpp", "seq_par", "mbs", "recompute", "zero")

EXPERTS = ", experts"
"""Ends the name of a source's runs with experts, which no rate is fitted to."""

MAX_FILE_BYTES = 1 << 26
"""Largest CSV file read (bytes, chosen)."""


def read_runs(folder: str) -> tuple[Run, ...]:
    """All runs of the CSV files of a folder that have these columns; files sorted by name.

    Raises
    ------
    InputError
        NOT_A_FOLDER, NO_RUNS, or BAD_RUN with file and line.
    """
    root = Path(folder)
    if not root.is_dir():
        raise InputError("NOT_A_FOLDER", folder, "give the folder that holds the CSV files")
    runs = [run for path in sorted(root.rglob("*.csv")) for run in _read_file(path)]
    return tuple(runs)


def _read_file(path: Path) -> Iterator[Run]:
    if path.stat().st_size > MAX_FILE_BYTES:
        raise InputError("FILE_TOO_LARGE", str(path), f"split it below {MAX_FILE_BYTES} bytes")
    names = [field.name for field in fields(Run)]
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        if not set(names) <= set(rows.fieldnames or ()):
            return
        for row in rows:
            cells = {name: row[name] or None for name in names}
            try:
                yield msgspec.convert(cells, Run, strict=False)
            except msgspec.ValidationError as error:
                where = f"{path}, line {rows.line_num}: {error}"
                raise InputError("BAD_RUN", where, "mend or remove the row") from None


def distinct(runs: Iterable[Run]) -> list[tuple[Run, ...]]:
    """Runs grouped by configuration, those of the newest release first; order of first sight."""
    groups: dict[tuple[object, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(run.configuration_key, []).append(run)
    return [
        tuple(sorted(group, key=lambda run: run.release, reverse=True)) for group in groups.values()
    ]
