"""Plans a placement and says what is proven about it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from ilp_parallel.placement.chain_dp import MOST_IDEALS, place_chain
from ilp_parallel.problems.placement import evaluate

if TYPE_CHECKING:
    from ilp_parallel.problems.placement import Contiguity, PlacementInstance

Status = Literal["optimal", "feasible", "infeasible", "unknown"]


@dataclass(frozen=True, slots=True)
class PlacementResult:
    """A placement with its value and a bound, both in ticks of the instance."""

    status: Status
    devices: tuple[int, ...] | None
    objective_ticks: int | None
    bound_ticks: int | None
    ideals: int
    verified: bool
    proof: Literal["exact", "solver"] | None
    solver: str = "dynamic program over ideals"  # what found the placement, or refuted all


def load_bound(instance: PlacementInstance) -> int:
    """A bound of every contiguity: all work spread evenly, and the largest colour class."""
    classes: dict[int, list[int]] = {}
    for v, colour in enumerate(instance.colours):
        times = classes.setdefault(colour, [0, 0, 0])
        times[0] += instance.cpu_ticks[v]
        times[1] += instance.accelerator_ticks[v]
        times[2] += not instance.supported[v] or instance.size_bytes[v] > instance.limit_bytes
    least = []
    for cpu, accelerator, barred in classes.values():
        usable = [accelerator] if instance.accelerators and not barred else []
        least.append(min([*usable, *([cpu] if instance.cpus else [])], default=0))
    devices = max(1, instance.accelerators + instance.cpus)
    return max(-(-sum(least) // devices), max(least))


def plan_placement(
    instance: PlacementInstance, contiguity: Contiguity, most_ideals: int = MOST_IDEALS
) -> PlacementResult:
    """The chain optimum; for weaker contiguity that placement with a bound.

    A chain-contiguous placement is allowed under every contiguity. Without one, nothing is said
    about weaker contiguity.
    """
    found = place_chain(instance, most_ideals)
    exact = found.complete and contiguity == "chain"
    if found.devices is None:
        status: Status = "infeasible" if exact else "unknown"
        bound = None if exact else load_bound(instance)
        return PlacementResult(
            status, None, None, bound, found.ideals, False, "exact" if exact else None
        )
    verdict = evaluate(instance, found.devices, contiguity)
    value = found.objective_ticks
    bound = value if exact else load_bound(instance)
    verified = verdict.feasible and verdict.objective == value
    status = "optimal" if bound == value and verified else "feasible"
    proof: Literal["exact"] | None = "exact" if status == "optimal" else None
    return PlacementResult(status, found.devices, value, bound, found.ideals, verified, proof)


def plan_freely(
    instance: PlacementInstance, time_limit_s: float, most_ideals: int = MOST_IDEALS
) -> PlacementResult:
    """The best placement without contiguity that CP-SAT and the chain find, and the better bound.

    CP-SAT works on the ticks of the instance, so that where it is done bound and value are equal.
    """
    from formulations.placement import assignment
    from ilp_parallel.solvers.cpsat import CpSatSolver
    from ilp_parallel.solvers.outcome import SolveOptions

    chain = plan_placement(instance, "none", most_ideals)
    if chain.status == "optimal" or not instance.accelerators + instance.cpus:
        return chain
    program = assignment.build(instance)
    outcome = CpSatSolver()(program, SolveOptions(time_limit_s=time_limit_s))
    if outcome.status == "infeasible":
        return replace(
            chain, status="infeasible", bound_ticks=None, proof="solver", solver="cp-sat"
        )
    best = chain
    if outcome.bound is not None:
        bound = max(chain.bound_ticks or 0, math.ceil(outcome.bound))
        best = replace(chain, bound_ticks=bound)
    if outcome.values is not None:
        devices = assignment.decode(instance, outcome.values)
        verdict = evaluate(instance, devices)
        value = verdict.objective
        if verdict.feasible and (best.objective_ticks is None or value < best.objective_ticks):
            best = replace(
                best,
                status="feasible",
                devices=devices,
                objective_ticks=value,
                verified=True,
                solver="cp-sat",
            )
    if best.objective_ticks is not None and best.objective_ticks == best.bound_ticks:
        best = replace(best, status="optimal", proof="solver")
    return best
