"""Any plan played through event by event, whatever space it was found in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ilp_parallel.instances import InstanceBuilder
from ilp_parallel.problems.pipeline import PipelineSolution
from ilp_parallel.simulate import simulate
from ilp_parallel.spaces import Pins, get_space

if TYPE_CHECKING:
    from ilp_parallel.costs.model import CostModel
    from ilp_parallel.plan import Plan
    from ilp_parallel.problems.pipeline import PipelineInstance
    from ilp_parallel.simulate import Simulation

WIDEST = "mixed"
"""A space that contains every plan so far. Prices do not depend on the space."""


@dataclass(frozen=True, slots=True)
class Played:
    """A plan as integers (every chunk of its own) and what the simulator made of them."""

    instance: PipelineInstance
    solution: PipelineSolution
    simulation: Simulation


def play(costs: CostModel, plan: Plan) -> Played:
    """Run one step of a plan.

    Parameters
    ----------
    costs
        Cost model of the plan's own model, cluster and job.
    """
    configuration = plan.configuration
    instance = InstanceBuilder(costs, get_space(WIDEST), Pins()).unfolded(configuration)
    index = {strategy: k for k, strategy in enumerate(costs.strategies(configuration))}
    solution = PipelineSolution(plan.sizes, tuple(index[s] for s in plan.strategies))
    return Played(instance, solution, simulate(instance, solution))
