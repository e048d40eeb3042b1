"""Verification rejects what was tampered with."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ilp_parallel.certificate import (
    Certificate,
    LagrangianBound,
    Open,
    Solved,
    WorkBound,
    decode,
    encode,
)
from ilp_parallel.errors import InputError
from ilp_parallel.planner import SearchOptions, search
from ilp_parallel.problems.pipeline import PipelineSolution
from ilp_parallel.verify import verify
from tests.small_jobs import JOB, MODEL, node_with

if TYPE_CHECKING:
    from collections.abc import Callable

    from ilp_parallel.certificate import Fate

change = msgspec.structs.replace


@functools.cache
def honest() -> Certificate:
    return search(MODEL, node_with(3.2), JOB, SearchOptions(space="megatron")).certificate


@functools.cache
def stopped() -> Certificate:
    limit = SearchOptions(space="megatron", time_limit_s=0.0)
    return search(MODEL, node_with(3.2), JOB, limit).certificate


def holds(certificate: Certificate) -> bool:
    """Whether every check passes; input that is refused does not hold."""
    try:
        return all(check.passed for check in verify(certificate))
    except InputError:
        return False


def with_fate(certificate: Certificate, old: Fate, new: Fate) -> Certificate:
    return change(certificate, fates=tuple(new if f is old else f for f in certificate.fates))


def first(kind: type[Fate]) -> Fate:
    return next(fate for fate in honest().fates if isinstance(fate, kind))


def plan(certificate: Certificate, solution: PipelineSolution) -> Certificate:
    assert certificate.plan is not None
    return change(certificate, plan=change(certificate.plan, solution=solution))


def solution() -> PipelineSolution:
    chosen = honest().plan
    assert chosen is not None
    return chosen.solution


def objective(shift: int) -> int:
    value = honest().objective_ticks
    assert value is not None
    return value + shift


def test_honest_certificates_hold() -> None:
    assert holds(honest())
    assert holds(stopped())
    kinds = {type(fate) for fate in honest().fates}
    assert {Solved, WorkBound, LagrangianBound} <= kinds  # the cases below exist


TAMPERED: dict[str, Callable[[], Certificate]] = {
    "bound raised": lambda: change(honest(), bound_ticks=objective(1)),
    "bound lowered": lambda: change(honest(), bound_ticks=objective(-1)),
    "bound absent": lambda: change(honest(), bound_ticks=None),
    "objective lowered": lambda: change(
        honest(), objective_ticks=objective(-1), bound_ticks=objective(-1)
    ),
    "objective raised": lambda: change(
        honest(), objective_ticks=objective(1), bound_ticks=objective(1)
    ),
    "infeasible": lambda: change(honest(), status="infeasible"),
    "feasible": lambda: change(honest(), status="feasible"),
    "unknown": lambda: change(honest(), status="unknown"),
    "no plan": lambda: change(honest(), plan=None),
    "nothing at all": lambda: change(
        honest(), plan=None, objective_ticks=None, bound_ticks=None, status="infeasible"
    ),
    "dropped": lambda: change(honest(), fates=honest().fates[1:]),
    "duplicated": lambda: change(honest(), fates=(honest().fates[0], *honest().fates)),
    "reordered": lambda: change(honest(), fates=honest().fates[::-1]),
    "refusals dropped": lambda: change(honest(), refusals=honest().refusals[1:]),
    "space version": lambda: change(honest(), space_version=99),
    "space": lambda: change(honest(), space="mixed"),
    "schema": lambda: change(honest(), schema="other/1"),
    "schedules": lambda: change(honest(), schedules=("1f1b",)),
    "no schedule": lambda: change(honest(), schedules=()),
    "model": lambda: change(honest(), model=replace(MODEL, hidden=2 * MODEL.hidden)),
    "layers": lambda: change(honest(), model=replace(MODEL, layers=5)),
    "cluster": lambda: change(honest(), cluster=node_with(2.6)),
    "job": lambda: change(honest(), job=replace(JOB, sequence_length=2048)),
    "work bound raised": lambda: with_fate(
        honest(), first(WorkBound), change(first(WorkBound), bound=first(WorkBound).bound + 1)
    ),
    "solved better": lambda: with_fate(honest(), first(Solved), change(first(Solved), numerator=1)),
    "solved not": lambda: with_fate(honest(), first(Solved), change(first(Solved), numerator=None)),
    "cutoff of nothing": lambda: with_fate(
        honest(), first(Solved), change(first(Solved), numerator=None, cutoff=0)
    ),
    "solved, called work": lambda: with_fate(
        honest(), first(Solved), WorkBound(first(Solved).configuration, objective(1))
    ),
    "stopped, called optimal": lambda: change(stopped(), status="optimal"),
    "stopped, called infeasible": lambda: change(stopped(), status="infeasible"),
    "stopped, bound raised": lambda: change(
        stopped(), bound_ticks=(stopped().bound_ticks or 0) + 1
    ),
    "open, bound raised": lambda: change(
        stopped(),
        fates=tuple(
            change(f, bound=f.bound + 1) if isinstance(f, Open) else f for f in stopped().fates
        ),
    ),
    "plan of another size": lambda: plan(
        honest(), PipelineSolution(solution().sizes[:-1], solution().strategies)
    ),
    "plan out of range": lambda: plan(
        honest(), PipelineSolution(solution().sizes, (10**6, *solution().strategies[1:]))
    ),
    "plan of another configuration": lambda: change(
        honest(), plan=change(honest().plan, configuration="pp7")
    ),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_tampered_certificates_are_rejected(name: str) -> None:
    assert not holds(TAMPERED[name]())


def test_no_other_strategy_passes_as_the_plan_unless_it_costs_the_same() -> None:
    for k in range(54):
        other = PipelineSolution(solution().sizes, (k,) * len(solution().strategies))
        checks = {check.name: check for check in verify(plan(honest(), other))} if k else {}
        if k and all(check.passed for check in checks.values()):
            assert checks["plan_objective"].slack == 0
    assert not holds(plan(honest(), PipelineSolution(solution().sizes, (-1, 0, 0, 0))))


def test_multipliers_must_give_the_stated_bound() -> None:
    fate = first(LagrangianBound)
    assert isinstance(fate, LagrangianBound)
    zero = tuple((0,) * len(row) for row in fate.multipliers.peak_part)
    weaker = replace(fate.multipliers, peak_part=zero, sum_part=zero, layer_price=0)
    assert not holds(with_fate(honest(), fate, change(fate, multipliers=weaker)))
    for price in (2**62, -(2**62), 2**63 - 1):
        forged = replace(fate.multipliers, layer_price=price)
        assert not holds(with_fate(honest(), fate, change(fate, multipliers=forged)))


def leaves(node: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Paths of all values of a JSON document."""
    if isinstance(node, dict):
        return [leaf for key, value in node.items() for leaf in leaves(value, (*path, key))]
    if isinstance(node, list):
        return [leaf for i, value in enumerate(node) for leaf in leaves(value, (*path, i))]
    return [path]


CLAIM = ("status", "objective_ticks", "bound_ticks", "plan", "fates", "refusals", "space_version")
INFORMATIVE = "by"  # who solved a configuration: verification solves it again by itself
WEAKENING = ("cutoff", "multipliers")  # may change where the bound they give is the same


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_any_changed_value_is_rejected_or_harmless(data: st.DataObject) -> None:
    """Values of the claim; numbers and texts are replaced by others of their type."""
    document = json.loads(encode(honest()))
    paths = [path for path in leaves(document) if path[0] in CLAIM]
    path = data.draw(st.sampled_from(paths))
    holder = document
    for key in path[:-1]:
        holder = holder[key]
    old = holder[path[-1]]
    numbers = st.one_of(
        st.just(0), st.integers(-3, 3).map(lambda d: (old or 0) + d), st.just(2**63 - 1)
    )
    new = data.draw(st.text(max_size=5) if isinstance(old, str) else numbers)
    holder[path[-1]] = new
    try:
        certificate = decode(json.dumps(document).encode())
    except msgspec.MsgspecError:
        return
    if new == old or INFORMATIVE in path:
        assert holds(certificate)
    elif holds(certificate):
        same_cost = path[0] == "plan"  # the plan's own cost is evaluated again
        assert same_cost or any(key in path for key in WEAKENING)
