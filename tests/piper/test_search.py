"""The search equals brute force over all plans, whether compiled, exact or in floating point."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings

from formulations.piper import PIPER, assignment
from ilp_parallel.errors import InputError
from ilp_parallel.piper import chains
from ilp_parallel.piper.ablations import ABLATIONS, ablated
from ilp_parallel.piper.search import PiperPlanner
from ilp_parallel.piper.solving import MODES, solve_instance
from ilp_parallel.problems.piper import Stage, evaluate
from ilp_parallel.solvers.outcome import SolveOptions
from ilp_parallel.solvers.registry import get_solver
from tests.piper.instances import all_plans, best_value, random_piper, seeds, table_value


@pytest.mark.parametrize("few", [0, 100])
@settings(max_examples=60, deadline=None)
@given(seed=seeds)
def test_equals_brute_force(few: int, seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chains, "_FEW", few)
        instance = random_piper(seed, plain=bool(seed % 2))
        result = PiperPlanner(instance).run()
    assert result.objective == best_value(instance)
    assert result.status == ("infeasible" if result.objective is None else "optimal")
    if result.plan is not None:
        verdict = evaluate(instance, result.plan)
        assert verdict.feasible
        assert verdict.objective == result.objective == result.bound


@pytest.mark.parametrize("few", [0, 10**9])
@settings(max_examples=15, deadline=None)
@given(seed=seeds)
def test_equals_the_plain_table(few: int, seed: int) -> None:
    """More layers than enumeration takes; every stage compiled, and every stage exact."""
    instance = random_piper(seed, layers=8, plain=True)
    instance = replace(instance, memory=3 * instance.memory)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chains, "_FEW", few)
        result = PiperPlanner(instance).run()
    assert result.objective == table_value(instance)


@settings(max_examples=25, deadline=None)
@given(seeds)
def test_exact_although_floats_cannot_tell(seed: int) -> None:
    """Times that differ in the 60th bit only, and memory that fits to the last unit."""
    instance = random_piper(seed, layers=3)
    big = 2**70
    modes = tuple(
        {
            t: tuple(
                replace(m, time=big + m.time, activation=big + m.activation, fixed=big + m.fixed)
                for m in found
            )
            for t, found in by_degree.items()
        }
        for by_degree in instance.modes
    )
    instance = replace(instance, modes=modes, memory=6 * big + instance.memory)
    assert PiperPlanner(instance).run().objective == best_value(instance)


@pytest.mark.parametrize("name", PIPER)
@pytest.mark.parametrize("solver", ["highs", "cp-sat"])
@settings(max_examples=12, deadline=None)
@given(seed=seeds)
def test_integer_program_agrees(name: str, solver: str, seed: int) -> None:
    instance = random_piper(seed, layers=3)
    assert assignment.refuses(instance) is None
    outcome = get_solver(solver)(PIPER[name](instance, instance.layers), SolveOptions())
    result = PiperPlanner(instance).run()
    if outcome.values is None:
        assert outcome.status == result.status == "infeasible"
        return
    scale = assignment.Layout(instance, 1).scale * instance.units_per_second
    assert Fraction(outcome.objective, scale) == result.objective
    assert evaluate(instance, assignment.decode(instance, outcome.values, instance.layers)).feasible


@settings(max_examples=40, deadline=None)
@given(seeds)
def test_published_heuristic_is_never_better(seed: int) -> None:
    instance = replace(random_piper(seed), one_mode_per_stage=False)
    exact, greedy = solve_instance(instance), solve_instance(instance, "piper_dp")
    assert (exact.objective is None) == (greedy.objective is None)
    if exact.objective is None:
        assert greedy.status == "infeasible"
        return
    assert greedy.status == "feasible"
    assert greedy.verified
    assert greedy.bound <= exact.objective <= greedy.objective


@settings(max_examples=40, deadline=None)
@given(seeds)
def test_restrictions_are_what_they_say(seed: int) -> None:
    whole = replace(random_piper(seed, layers=3), one_mode_per_stage=False)
    for name in ABLATIONS:
        answer = solve_instance(whole, name)
        allowed = [plan for plan in all_plans(whole) if _keeps(whole, plan, name)]
        verdicts = [evaluate(whole, plan) for plan in allowed]
        values = [verdict.objective for verdict in verdicts if verdict.feasible]
        assert answer.objective == min(values, default=None)
        assert answer.plan is None or _keeps(whole, answer.plan, name) or name in _RENUMBER


_RENUMBER = ("noar", "arforced")
"""Here modes are numbered without the forbidden one."""


def _keeps(instance: object, plan: tuple[Stage, ...], name: str) -> bool:
    names = [
        {instance.modes[v][s.tensor_degree][k].name for v, k in zip(s.layers, s.modes, strict=True)}
        for s in plan
    ]
    return {
        "full": True,
        "nodp": all(s.data_degree == 1 for s in plan),
        "notp": all(s.tensor_degree == 1 for s in plan),
        "notp_nodp": all(s.data_degree == s.tensor_degree == 1 for s in plan),
        "noar": all("activation recomp" not in found for found in names),
        "arforced": all("vanilla" not in found for found in names),
        "arallornone": all(len(found) == 1 for found in names),
    }[name]


def test_unknown_restriction() -> None:
    with pytest.raises(InputError, match="UNKNOWN_ABLATION"):
        ablated(random_piper(1), "nothing")
    with pytest.raises(InputError, match="UNKNOWN_ABLATION"):
        solve_instance(random_piper(1), "nothing")
    assert set(ABLATIONS) < set(MODES)


def test_out_of_time_claims_nothing() -> None:
    answer = solve_instance(random_piper(1, layers=4), deadline=time.monotonic() - 1)
    assert answer.status == "unknown"
    assert answer.objective is None
    assert answer.gap is None
    assert solve_instance(random_piper(1), deadline=math.inf).status != "unknown"
