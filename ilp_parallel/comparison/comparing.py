"""The proven optimum beside the plans of named heuristics, per job."""

from __future__ import annotations

import time
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from ilp_parallel.baselines.named.registry import NAMED, get_heuristics, run_named
from ilp_parallel.baselines.named.workbench import Effort
from ilp_parallel.costs.model import CostModel
from ilp_parallel.errors import InputError
from ilp_parallel.planner import search
from ilp_parallel.processes import spawned
from ilp_parallel.spaces import SPACES, Pins

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ilp_parallel.jobs import CompleteJob
    from ilp_parallel.plan import Plan
    from ilp_parallel.planner import SearchOptions

Row = dict[str, object]
Role = Literal["search", "heuristic", "reach"]

REACH = "exact_1f1b"
"""The proven optimum among plans without interleaving and without context parallelism: what a
planner that knows neither could reach at best. It is shown beside the heuristics."""


SPACE = "space "
"""Begins the name of a method that is the proven optimum of a narrower space: what its runtime can
reach at best. The difference is the price of what it cannot express."""


@dataclass(frozen=True, slots=True)
class Methods:
    """What is compared with the optimum: names of heuristics, and what each may spend."""

    names: tuple[str, ...] = (*get_heuristics(None), REACH)
    effort: Effort = field(default_factory=Effort)


def read_methods(names: str | None, effort: Effort) -> Methods:
    """Methods from a comma-separated list of heuristics, ``exact_1f1b`` among them; None for all.

    Raises
    ------
    InputError
        ``UNKNOWN_HEURISTIC``.
    """
    if names is None:
        return Methods(effort=effort)
    wanted = [name.strip() for name in names.split(",")]
    others = ",".join(name for name in wanted if name != REACH)
    known = get_heuristics(others) if others or REACH not in wanted else ()
    chosen = (*known, REACH) if REACH in wanted else known
    return Methods(chosen, effort)


def narrower_spaces(space: str) -> Methods:
    """The proven optima of all other spaces as methods."""
    return Methods(tuple(f"{SPACE}{name}" for name in SPACES if name != space))


def compare_models(
    jobs: Sequence[CompleteJob],
    options: SearchOptions,
    methods: Methods | None = None,
    workers: int = 1,
    done: Callable[[int], None] | None = None,
) -> list[Row]:
    """One row per job and method, the optimum first; the order does not depend on ``workers``.

    Parameters
    ----------
    jobs, options
        What is planned, and how the optimum is searched.
    methods
        Heuristics and their effort; all of them if None.
    workers
        Processes. With several, progress of the searches is not reported.
    done
        Called with the number of jobs that are ready.

    Returns
    -------
    list of Row
        ``job`` counts from 0. ``role`` is ``search`` for the proven optimum, ``reach`` for
        :data:`REACH` and the spaces of :data:`SPACE`, else ``heuristic``. ``objective`` and
        ``optimum`` are in ticks of the job; ``excess_ticks`` is their difference, ``excess`` that
        divided by the optimum, 0 only where they are equal; None where the method found no plan or
        the optimum is not proven.
        ``seconds`` is what the method took, ``note`` why it was not asked.
    """
    chosen = Methods() if methods is None else methods
    report = done or (lambda count: None)
    if workers <= 1 or len(jobs) == 1:
        rows: list[list[Row]] = []
        for job in jobs:
            rows.append(_compare(job, options, chosen))
            report(len(rows))
    else:
        rows = _in_processes(jobs, options, chosen, workers, report)
    return [{"job": i, **row} for i, found in enumerate(rows) for row in found]


def _in_processes(
    jobs: Sequence[CompleteJob],
    options: SearchOptions,
    methods: Methods,
    workers: int,
    report: Callable[[int], None],
) -> list[list[Row]]:
    """The same in several processes; what has not begun when the user cancels is not begun."""
    plain = replace(options, progress=None, cancelled=None)
    with spawned(workers) as pool:
        futures = [pool.submit(_compare, job, plain, methods) for job in jobs]
        waiting, count = set(futures), 0
        while waiting:
            ready, waiting = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
            count += len(ready)
            if ready:
                report(count)
            if options.cancelled is not None and options.cancelled():
                waiting = {future for future in waiting if not future.cancel()}
        return [future.result() for future in futures if not future.cancelled()]


def _compare(job: CompleteJob, options: SearchOptions, methods: Methods) -> list[Row]:
    result = search(job.model, job.cluster, job.job, options)
    ticks = result.certificate.objective_ticks
    optimum = ticks if result.status == "optimal" else None
    name = f"{options.space}, {result.status}"
    rows = [_row(job, "search", name, ticks, optimum, result.search_s, result.plan)]
    for method in methods.names:
        narrower = _narrower(options, method)
        if narrower is not None:
            rows.append(_reach_row(job, narrower, method, optimum))
            continue
        if not NAMED[method].applies(job.model):
            note = "knows layers of one kind only"
            rows.append(_row(job, "heuristic", method, None, optimum, 0.0, None, note))
            continue
        costs = CostModel(job.model, job.cluster, job.job)  # what one remembers helps no other
        found = run_named(method, costs, methods.effort)
        value = found.objective_ticks
        rows.append(_row(job, "heuristic", method, value, optimum, found.seconds, found.plan))
    return rows


def _narrower(options: SearchOptions, method: str) -> SearchOptions | None:
    """The search among fewer plans that a method stands for; None for a heuristic."""
    if method.startswith(SPACE):
        return replace(options, space=method.removeprefix(SPACE))
    if method != REACH:
        return None
    fixed = {**options.pins.fixed, "cp": ("1",)}
    pins = Pins(fixed, dict(options.pins.forbidden))
    return replace(options, schedules=("1f1b",), pins=pins)


def _reach_row(job: CompleteJob, narrower: SearchOptions, method: str, optimum: int | None) -> Row:
    """The row of a narrower search; no plan where it is stopped before it is optimal."""
    started = time.perf_counter()
    try:
        result = search(job.model, job.cluster, job.job, narrower)
    except InputError:  # the rules leave nothing
        return _row(job, "reach", method, None, optimum, time.perf_counter() - started, None)
    ticks, plan = result.certificate.objective_ticks, result.plan
    if result.status != "optimal":
        ticks, plan = None, None
    return _row(job, "reach", method, ticks, optimum, result.search_s, plan)


def _row(
    job: CompleteJob,
    role: Role,
    method: str,
    ticks: int | None,
    optimum: int | None,
    seconds: float,
    plan: Plan | None,
    note: str | None = None,
) -> Row:
    excess_ticks = None if ticks is None or optimum is None else ticks - optimum
    return {
        "model": job.model.name,
        "cluster": job.cluster.name,
        "batch": job.job.global_batch,
        "sequence": job.job.sequence_length,
        "reserve_bytes": job.job.reserve_bytes,
        "role": role,
        "method": method,
        "objective": ticks,
        "optimum": optimum,
        "excess_ticks": excess_ticks,
        "excess": None if excess_ticks is None or not optimum else excess_ticks / optimum,
        "step_time_s": None if ticks is None else ticks * job.job.tick_ns * 1e-9,
        "seconds": seconds,
        "configuration": None if plan is None else plan.configuration.name,
        "note": note,
    }
