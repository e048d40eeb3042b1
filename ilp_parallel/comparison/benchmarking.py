"""Benchmark sets, and what a comparison over many jobs says about each method."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, cast

import msgspec

from ilp_parallel.errors import InputError
from ilp_parallel.jobs import JobRequest, complete_job
from ilp_parallel.specs.documents import MAX_DOCUMENT_BYTES, is_path, read_document, shown
from ilp_parallel.specs.readers import data_root

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ilp_parallel.comparison.comparing import Row
    from ilp_parallel.jobs import CompleteJob

SCHEMA = "ilp_parallel.benchmark/1"

MOST_JOBS = 10_000
"""Most jobs of a set (chosen: a day of searches)."""

LEVELS = (0, 1, 10, 50, 100, 250, 500, 1000)
"""Distances from the optimum at which fractions are tabulated, in thousandths of the optimum."""


class _Job(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One job of a set: a preset or path, and what :class:`JobRequest` may be given."""

    id: str
    model: str
    cluster: str
    batch: int
    sequence: int
    reserve_gib: float | None = None


class _Set(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    schema: str
    seed: int
    jobs: list[_Job]


def set_names() -> list[str]:
    """Names of the sets that come with the program, sorted."""
    return sorted(path.stem for path in (data_root() / "benchmarks").glob("*.json"))


def read_set(name_or_path: str) -> list[tuple[str, CompleteJob]]:
    """Name and job of every entry of a set.

    Raises
    ------
    InputError
        ``UNKNOWN_BENCHMARK``, ``BAD_BENCHMARK``, or whatever is wrong with one of the jobs.
    """
    path = name_or_path
    if name_or_path in set_names():
        path = str(data_root() / "benchmarks" / f"{name_or_path}.json")
    elif not is_path(name_or_path):
        fix = f"use one of {', '.join(set_names())}, or a file"
        raise InputError("UNKNOWN_BENCHMARK", f"no benchmark set {shown(name_or_path)}", fix)
    try:
        found = msgspec.convert(read_document(path, MAX_DOCUMENT_BYTES), _Set)
    except msgspec.ValidationError as error:
        raise _bad(path, str(error)) from None
    if found.schema != SCHEMA:
        raise _bad(path, f"schema {shown(found.schema)}")
    if not 0 < len(found.jobs) <= MOST_JOBS or len({job.id for job in found.jobs}) < len(
        found.jobs
    ):
        raise _bad(path, f"it needs 1 to {MOST_JOBS:,} jobs, each with an id of its own")
    return [(job.id, _complete(job)) for job in found.jobs]


def _bad(path: str, what: str) -> InputError:
    return InputError("BAD_BENCHMARK", f"{shown(path)}: {what}", "see benchmarks/make_set.py")


def _complete(job: _Job) -> CompleteJob:
    return complete_job(
        JobRequest(
            model=job.model,
            cluster=job.cluster,
            batch=job.batch,
            sequence=job.sequence,
            reserve_gib=job.reserve_gib,
        )
    )


@dataclass(frozen=True, slots=True)
class MethodSummary:
    """One method over all jobs whose optimum is proven.

    ``within[i]`` is the number of jobs on which its plan is within ``LEVELS[i]`` thousandths of
    the optimum, compared in integers; excesses are over the jobs on which it has a plan.
    """

    method: str
    jobs: int
    plans: int
    within: tuple[int, ...]
    median_excess: float | None
    p90_excess: float | None
    worst_excess: float | None
    median_s: float
    total_s: float

    @property
    def optimal(self) -> int:
        """Jobs on which its plan is optimal."""
        return self.within[0]


def summarise(rows: Sequence[Row]) -> list[MethodSummary]:
    """One summary per method, in the order of the rows."""
    by_method: dict[str, list[Row]] = {}
    for row in judged(rows):
        by_method.setdefault(cast("str", row["method"]), []).append(row)
    return [_summary(method, mine) for method, mine in by_method.items()]


def judged(rows: Sequence[Row]) -> list[Row]:
    """Rows of methods on jobs whose optimum is proven; the searches' own rows are left out."""
    return [row for row in rows if row["optimum"] is not None and row["role"] != "search"]


def _summary(method: str, rows: Sequence[Row]) -> MethodSummary:
    excesses = sorted(excess for row in rows if (excess := row_excess(row)) is not None)
    seconds = [cast("float", row["seconds"]) for row in rows]
    return MethodSummary(
        method=method,
        jobs=len(rows),
        plans=len(excesses),
        within=tuple(sum(_is_within(row, level) for row in rows) for level in LEVELS),
        median_excess=median(excesses) if excesses else None,
        p90_excess=excesses[-(-9 * len(excesses) // 10) - 1] if excesses else None,
        worst_excess=excesses[-1] if excesses else None,
        median_s=median(seconds),
        total_s=sum(seconds),
    )


def row_excess(row: Row) -> float | None:
    """Distance of a row's plan from the optimum, relative to it; None without a plan."""
    return cast("float | None", row["excess"])


def _is_within(row: Row, thousandths: int) -> bool:
    """Whether a plan costs at most so many thousandths more than the optimum, in integers."""
    excess, optimum = cast("int | None", row["excess_ticks"]), cast("int", row["optimum"])
    return excess is not None and 1000 * excess <= thousandths * optimum


def performance_profile(rows: Sequence[Row]) -> dict[str, list[tuple[float, float]]]:
    """Per method the steps of its profile: (excess, fraction of jobs within it), both rising.

    Jobs on which a method has no plan count among all, so its fractions may end below 1
    (Dolan and More, Mathematical Programming 91, 2002, with the proven optimum as reference).
    """
    profile: dict[str, list[tuple[float, float]]] = {}
    for summary in summarise(rows):
        mine = [row for row in judged(rows) if row["method"] == summary.method]
        excesses = sorted(excess for row in mine if (excess := row_excess(row)) is not None)
        steps: dict[float, float] = {}
        for count, excess in enumerate(excesses, start=1):
            steps[excess] = count / len(mine)
        profile[summary.method] = list(steps.items())
    return profile
