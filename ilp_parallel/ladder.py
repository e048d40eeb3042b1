"""The ladder of bounds on one configuration, up to the optimum, and what lies beside and above it.

Every rung is in numerators of the configuration's instance, so that bounds, optimum and the values
of heuristics (which may have chosen other configurations) stand on one scale.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ilp_parallel.baselines.heuristics import HEURISTICS, run_heuristic
from ilp_parallel.baselines.two_level_dp import two_level_dp
from ilp_parallel.bounds import lagrangian_bound, lagrangian_multipliers, work_bound
from ilp_parallel.costs.breakdown import flops_per_parameter
from ilp_parallel.costs.hardware import Machine
from ilp_parallel.costs.model import CostModel
from ilp_parallel.errors import InputError
from ilp_parallel.planner import search
from ilp_parallel.playing import play
from ilp_parallel.programs import FORMULATIONS, get_formulation, solve_configuration
from ilp_parallel.report import render
from ilp_parallel.solvers.registry import get_solver

if TYPE_CHECKING:
    from collections.abc import Callable

    from ilp_parallel.jobs import CompleteJob
    from ilp_parallel.plan import Plan
    from ilp_parallel.planner import SearchOptions
    from ilp_parallel.problems.pipeline import PipelineInstance
    from ilp_parallel.report import Style
    from ilp_parallel.specs.cluster import ClusterSpec
    from ilp_parallel.specs.job import JobSpec
    from ilp_parallel.specs.model import ModelSpec

SCHEMA = "ilp_parallel.bounds/1"

MOST_COLUMNS = 200_000
"""Linear relaxations with more columns are left out (chosen: they take minutes)."""

Rung = dict[str, object]
Kind = Literal["bound", "optimum", "heuristic", "simulated"]


@dataclass(frozen=True, slots=True)
class Ladder:
    """Bounds up to the optimum, and what else there is to compare. A rung's value is a numerator.

    ``beside`` holds the plans of heuristics and the simulated time of the winning plan, which is no
    bound on the objective and may lie on either side of it.
    """

    rungs: list[Rung]
    beside: list[Rung]
    input_hash: str | None = None  # of the search whose winner it is about


def ladder(job: CompleteJob, options: SearchOptions) -> Ladder:
    """Every bound on the winning configuration's instance, with the time it took.

    A formulation that does not apply has its reason instead of a value.

    Raises
    ------
    InputError
        ``NO_PLAN`` if the search finds none.
    """
    result = search(job.model, job.cluster, job.job, options)
    instance, plan = result.instance, result.plan
    if instance is None or plan is None:
        raise InputError("NO_PLAN", f"the search is {result.status}", "give more devices or time")
    rungs = bound_rungs(instance, plan)
    rungs.append(
        _rung(
            f"{options.formulation} on {options.solver}",
            "optimum",
            lambda: _solved(instance, options, rungs),
        )
    )
    costs = CostModel(job.model, job.cluster, job.job)
    divisor = instance.objective.divisor
    beside = [_heuristic(name, costs, divisor) for name in HEURISTICS]
    beside.append(_rung("simulated", "simulated", lambda: _simulated(costs, plan, divisor)))
    _add_distances([*rungs, *beside], instance, job.job)
    return Ladder(rungs, beside, result.certificate.input_hash)


def quick_ladder(
    instance: PipelineInstance,
    plan: Plan,
    ticks: int,
    simulated_ticks: int | None,
    most_cells: int,
) -> Ladder:
    """The same for a plan that is known, without solvers of integer programs and heuristics.

    Parameters
    ----------
    instance
        That of the plan's configuration, folded.
    ticks
        Step time of the plan; the optimum is looked for up to there first.
    simulated_ticks
        Simulated step time of the plan; None: not known.
    most_cells
        Linear relaxations over more (layer, strategy, stage) triples than this are left out.
    """
    cutoff = ticks * instance.objective.divisor + 1
    rungs = bound_rungs(instance, plan, most_cells, cutoff)
    beside = []
    if simulated_ticks is not None:
        simulated = float(simulated_ticks * instance.objective.divisor)
        beside.append(_rung("simulated", "simulated", lambda: simulated))
    _add_distances([*rungs, *beside], instance, plan.job)
    return Ladder(rungs, beside)


def bound_rungs(
    instance: PipelineInstance,
    plan: Plan,
    most_cells: int | None = None,
    cutoff: int | None = None,
) -> list[Rung]:
    """Lower bounds on an instance and its optimum by the dynamic program.

    Linear relaxations of more than ``most_cells`` are left out. The optimum is first looked for
    below ``cutoff``, which is quicker.
    """
    divisor = instance.objective.divisor
    rungs: list[Rung] = []
    roofline = roofline_s(plan.model, plan.cluster, plan.job)
    if roofline is not None:
        ticks = roofline / (plan.job.tick_ns * 1e-9)
        rungs.append(_rung("roofline", "bound", lambda: ticks * divisor))
    rungs.append(_rung("work bound", "bound", lambda: float(work_bound(instance))))
    cells = instance.layers * instance.strategies * instance.virtual_stages
    large = most_cells is not None and cells > most_cells
    rungs += [_relaxation(name, instance, large) for name in FORMULATIONS]
    multipliers = lagrangian_multipliers(instance)
    if multipliers is not None:
        rungs.append(
            _rung(
                "lagrangian bound",
                "bound",
                lambda: float(lagrangian_bound(instance, multipliers)),
            )
        )
    rungs.append(_rung("dynamic program", "optimum", lambda: _exact(instance, cutoff)))
    return rungs


def roofline_s(model: ModelSpec, cluster: ClusterSpec, job: JobSpec) -> float | None:
    """Seconds that the matrix multiplications alone take on all devices at their dense peak.

    Six operations (four of a frozen one) per token and matrix parameter that it passes, the output
    matrix included, spread evenly.
    Attention is left out, because its kernels skip the masked half. No plan is faster: the busiest
    device group works for at least the mean, ``m C <= T``, and no rate exceeds the peak. None where
    layer times are measured, since they need not respect a peak.
    """
    if job.layer_times:
        return None
    peak = Machine(cluster, job).peak_flops
    operations = flops_per_parameter(job) * model.active_matrix_parameters
    return operations * job.tokens_per_step / (cluster.devices * peak)


def _add_distances(rungs: list[Rung], instance: PipelineInstance, job: JobSpec) -> None:
    """Adds to each rung its step time and how far it lies below the last optimum found."""
    optima = [r["value"] for r in rungs if r["kind"] == "optimum" and r["value"] is not None]
    optimum = optima[-1] if optima else None
    scale = job.tick_ns * 1e-9 / instance.objective.divisor
    for rung in rungs:
        value = rung["value"]
        known = isinstance(value, float) and math.isfinite(value)
        rung["step_time_s"] = value * scale if known else None  # type: ignore[operator]
        both = known and isinstance(optimum, float)
        rung["below_optimum"] = (optimum - value) / optimum if both else None  # type: ignore[operator]


def _rung(
    name: str, kind: Kind, evaluate: Callable[[], float | None], note: str | None = None
) -> Rung:
    started = time.perf_counter()
    value = evaluate()
    seconds = time.perf_counter() - started
    return {"name": name, "kind": kind, "value": value, "seconds": seconds, "note": note}


def _relaxation(name: str, instance: PipelineInstance, large: bool) -> Rung:
    """The linear relaxation of a formulation, built without a cutoff."""
    formulation = get_formulation(name)
    reason = formulation.refuses(instance)
    if reason is None and large:
        reason = "LARGE: see the verb bounds"
    if reason is not None:
        return _rung(f"LP of {name}", "bound", lambda: None, reason.partition(":")[0])
    program = formulation.build(instance)
    if program.column_count > MOST_COLUMNS:
        note = f"LARGE ({program.column_count:,} columns)"
        return _rung(f"LP of {name}", "bound", lambda: None, note)
    return _rung(f"LP of {name}", "bound", lambda: get_solver("highs").relaxation(program))


def _exact(instance: PipelineInstance, cutoff: int | None) -> float | None:
    optimum = two_level_dp(instance, cutoff)
    if optimum is None and cutoff is not None:
        optimum = two_level_dp(instance)
    return None if optimum is None else float(optimum.numerator)


def _solved(instance: PipelineInstance, options: SearchOptions, rungs: list[Rung]) -> float | None:
    """The optimum by an integer program; anything up to the last optimum found is looked at."""
    known = [r["value"] for r in rungs if r["kind"] == "optimum"]
    cutoff = int(known[-1]) + 1 if known and isinstance(known[-1], float) else None
    outcome = solve_configuration(instance, options.formulation, options.solver, cutoff)
    return None if outcome.objective is None else float(outcome.objective)


def _heuristic(name: str, costs: CostModel, divisor: int) -> Rung:
    def value() -> float | None:
        ticks = run_heuristic(name, costs).objective_ticks
        return None if ticks is None else float(ticks * divisor)

    rung = _rung(name, "heuristic", value)
    return rung if rung["value"] is not None else {**rung, "note": "found no plan"}


def _simulated(costs: CostModel, plan: Plan, divisor: int) -> float:
    return float(play(costs, plan).simulation.step_ticks * divisor)


def ladder_document(found: Ladder) -> dict[str, object]:
    """The JSON of ``bounds``."""
    return {
        "schema": SCHEMA,
        "unit": "numerator ticks",
        "instance": {"hash": found.input_hash},
        "rungs": found.rungs,
        "beside": found.beside,
    }


def ladder_text(found: Ladder, style: Style) -> str:
    """The ladder as a table."""
    rows = []
    for rung in (*found.rungs, *found.beside):
        value, below = rung["value"], rung["below_optimum"]
        known = isinstance(value, float) and math.isfinite(value)
        rows.append(
            (
                str(rung["name"]),
                str(rung["kind"]),
                f"{value:,.1f}" if known else "-",
                f"{rung['step_time_s']:.6f}" if known else "-",
                f"{0.0 - 100 * below:+.4f} %" if isinstance(below, float) else "-",
                f"{rung['seconds']:.3f}",
                str(rung["note"] or ""),
            )
        )
    header = (
        *("bound", "kind", "numerator (ticks)", "step time s"),
        *("from optimum", "took s", "note"),
    )
    return render("bounds on the winning configuration", header, rows, style)
