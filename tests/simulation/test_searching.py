"""Searches for the simulated step time against every plan of small jobs, and their certificates."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from msgspec import structs

from ilp_parallel.certificate import Open, Solved, decode, encode
from ilp_parallel.configuration import Configuration
from ilp_parallel.costs.model import CostModel
from ilp_parallel.instances import InstanceBuilder, fold, unfold
from ilp_parallel.planner import SearchOptions, search
from ilp_parallel.problems.pipeline import PipelineSolution, evaluate, policy_strategies
from ilp_parallel.simulate import simulate
from ilp_parallel.simulation.searching import search_simulated
from ilp_parallel.simulation.verifying import simulated_configurations
from ilp_parallel.spaces import Pins, get_space
from ilp_parallel.verify import verify
from tests.bruteforce import compositions
from tests.small_jobs import JOB, MODEL, node_with

MEMORY_GIB = (2.6, 3.2, 80.0)  # binding everywhere, binding somewhere, never
SPACES = ("uniform", "megatron")


def enumerated(memory_gib: float, options: SearchOptions) -> int | None:
    """Least simulated step time over all configurations, sizes and policies."""
    costs, space = CostModel(MODEL, node_with(memory_gib), JOB), get_space(options.space)
    builder = InstanceBuilder(costs, space, options.pins)
    values = []
    for item in simulated_configurations(costs, space, options.pins, options.schedules):
        if not isinstance(item, Configuration):
            continue
        whole = builder.unfolded(item)
        base = fold(whole) if item.chunks > 1 else whole
        assert base.policies is not None
        for sizes, policy in itertools.product(
            compositions(base.layers, item.pipeline), base.policies
        ):
            solution = unfold(
                PipelineSolution(sizes, policy_strategies(policy, sizes)), item.chunks
            )
            if evaluate(whole, solution).feasible:
                values.append(simulate(whole, solution).step_ticks)
    return min(values, default=None)


@pytest.mark.parametrize("memory_gib", MEMORY_GIB)
@pytest.mark.parametrize("space", SPACES)
def test_true_optimum_lies_between_bound_and_objective(space: str, memory_gib: float) -> None:
    options = SearchOptions(space=space)
    costs = CostModel(MODEL, node_with(memory_gib), JOB)
    result = search_simulated(options, costs)
    certificate, optimum = result.certificate, enumerated(memory_gib, options)
    assert certificate.minimised == "simulated-step-time"
    assert all(check.passed for check in verify(certificate))
    if optimum is None:
        assert (certificate.status, certificate.objective_ticks) == ("infeasible", None)
        return
    objective, bound = certificate.objective_ticks, certificate.bound_ticks
    assert objective is not None and bound is not None
    assert bound <= optimum <= objective
    assert (certificate.status == "optimal") == (bound == objective)
    is_open = any(isinstance(fate, Open) for fate in certificate.fates)
    assert is_open == (certificate.status == "feasible")


def test_without_a_pipeline_it_is_the_formula() -> None:
    options = SearchOptions(space="mixed", pins=Pins.parse(("pp=1",), ()))
    result = search_simulated(options, CostModel(MODEL, node_with(3.2), JOB))
    by_formula = search(MODEL, node_with(3.2), JOB, options)
    assert result.status == by_formula.status == "optimal"
    assert result.certificate.objective_ticks == by_formula.certificate.objective_ticks
    assert result.certificate.input_hash != by_formula.certificate.input_hash


def test_what_is_false_is_rejected() -> None:
    options = SearchOptions(space="megatron")
    certificate = search_simulated(options, CostModel(MODEL, node_with(3.2), JOB)).certificate
    assert decode(encode(certificate)) == certificate
    assert certificate.objective_ticks is not None
    lower = structs.replace(certificate, objective_ticks=certificate.objective_ticks - 1)
    by_formula = structs.replace(certificate, minimised="step-time")
    piped = next(
        i for i, f in enumerate(certificate.fates) if not f.configuration.startswith("pp1 ")
    )
    fates = list(certificate.fates)
    fates[piped] = Solved(
        fates[piped].configuration, None, certificate.objective_ticks, ("two_level_dp",)
    )
    solved = structs.replace(certificate, fates=tuple(fates))
    for wrong in (lower, by_formula, solved):
        assert not all(check.passed for check in verify(wrong))


def test_a_stopped_search_says_so() -> None:
    options = dataclasses.replace(SearchOptions(space="megatron"), time_limit_s=0.0)
    certificate = search_simulated(options, CostModel(MODEL, node_with(80.0), JOB)).certificate
    assert certificate.status == "unknown"
    assert all(check.passed for check in verify(certificate))
