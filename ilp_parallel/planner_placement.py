"""Plans a placement and says what is proven about it."""

from __future__ import annotations

from dataclasses import dataclass
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
        return PlacementResult(status, None, None, bound, found.ideals, False)
    verdict = evaluate(instance, found.devices, contiguity)
    value = found.objective_ticks
    bound = value if exact else load_bound(instance)
    verified = verdict.feasible and verdict.objective == value
    status = "optimal" if bound == value and verified else "feasible"
    return PlacementResult(status, found.devices, value, bound, found.ideals, verified)
