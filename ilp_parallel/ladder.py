"""The ladder of bounds on one configuration, from the work bound up to the optimum."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from ilp_parallel.baselines.two_level_dp import two_level_dp
from ilp_parallel.bounds import lagrangian_bound, lagrangian_multipliers, work_bound
from ilp_parallel.errors import InputError
from ilp_parallel.planner import FORMULATIONS, get_formulation, search, solve_configuration
from ilp_parallel.report import render
from ilp_parallel.solvers.registry import get_solver

if TYPE_CHECKING:
    from collections.abc import Callable

    from ilp_parallel.jobs import CompleteJob
    from ilp_parallel.planner import SearchOptions
    from ilp_parallel.problems.pipeline import PipelineInstance
    from ilp_parallel.report import Style

Rung = dict[str, object]


def ladder(job: CompleteJob, options: SearchOptions) -> list[Rung]:
    """Every bound on the winning configuration's instance, with the time it took.

    Values are numerators; a formulation that does not apply has its reason instead of a value.

    Raises
    ------
    InputError
        ``NO_PLAN`` if the search finds none.
    """
    result = search(job.model, job.cluster, job.job, options)
    instance = result.instance
    if instance is None or result.plan is None:
        raise InputError("NO_PLAN", f"the search is {result.status}", "give more devices or time")
    rungs = [_rung("work bound", lambda: float(work_bound(instance)))]
    multipliers = lagrangian_multipliers(instance)
    if multipliers is not None:
        rungs.append(
            _rung("lagrangian bound", lambda: float(lagrangian_bound(instance, multipliers)))
        )
    rungs += [_relaxation(name, instance) for name in FORMULATIONS]
    rungs.append(_rung("dynamic program", lambda: _exact(instance)))
    rungs.append(
        _rung(f"{options.formulation} on {options.solver}", lambda: _solved(instance, options))
    )
    optimum = rungs[-1]["value"]
    for rung in rungs:
        value = rung["value"]
        known = isinstance(value, float) and isinstance(optimum, float)
        rung["below_optimum"] = (optimum - value) / optimum if known else None  # type: ignore[operator]
    return rungs


def _rung(name: str, evaluate: Callable[[], float | None], note: str | None = None) -> Rung:
    started = time.perf_counter()
    value = evaluate()
    return {"name": name, "value": value, "seconds": time.perf_counter() - started, "note": note}


def _relaxation(name: str, instance: PipelineInstance) -> Rung:
    """The linear relaxation of a formulation, built without a cutoff."""
    formulation = get_formulation(name)
    reason = formulation.refuses(instance)
    if reason is not None:
        return _rung(f"LP of {name}", lambda: None, reason.partition(":")[0])
    return _rung(
        f"LP of {name}", lambda: get_solver("highs").relaxation(formulation.build(instance))
    )


def _exact(instance: PipelineInstance) -> float | None:
    optimum = two_level_dp(instance)
    return None if optimum is None else float(optimum.numerator)


def _solved(instance: PipelineInstance, options: SearchOptions) -> float | None:
    outcome = solve_configuration(instance, options.formulation, options.solver)
    return None if outcome.objective is None else float(outcome.objective)


def ladder_text(rungs: list[Rung], style: Style) -> str:
    """The ladder as a table."""
    rows = []
    for rung in rungs:
        value, below = rung["value"], rung["below_optimum"]
        known = isinstance(value, float) and math.isfinite(value)
        rows.append(
            (
                str(rung["name"]),
                f"{value:,.1f}" if known else "-",
                f"{100 * below:.4f} %" if isinstance(below, float) else "-",
                f"{rung['seconds']:.3f}",
                str(rung["note"] or ""),
            )
        )
    header = ("bound", "numerator (ticks)", "below optimum", "s", "note")
    return render("bounds on the winning configuration", header, rows, style)
