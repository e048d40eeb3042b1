"""Whatever is changed in a certificate, what verification accepts is true."""

from __future__ import annotations

import copy
import functools
import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ilp_parallel.baselines.two_level_dp import two_level_dp
from ilp_parallel.certificate import decode, encode
from ilp_parallel.configuration import Configuration
from ilp_parallel.costs.model import CostModel
from ilp_parallel.errors import InputError
from ilp_parallel.instances import InstanceBuilder
from ilp_parallel.plan_files import read_certificate
from ilp_parallel.planner import SearchOptions, search
from ilp_parallel.spaces import Pins, enumerate_configurations, get_space
from ilp_parallel.verify import verify
from tests.small_jobs import JOB, LONG_JOB, LONG_MODEL, MODEL, node_with

if TYPE_CHECKING:
    from ilp_parallel.certificate import Certificate

Json = dict[str, object] | list[object]
Step = str | int

SMALL_JOB = replace(JOB, global_batch=4)


@functools.cache
def honest(kind: str) -> bytes:
    """Certificates of each status, small enough to be verified many times."""
    incumbents: list[int | None] = [None]
    stopped_with_plan = SearchOptions(
        space="megatron",
        progress=lambda progress: incumbents.append(progress.incumbent),
        cancelled=lambda: incumbents[-1] is not None,
    )
    cases = {
        "feasible": (4.0, stopped_with_plan),
        "optimal": (3.2, SearchOptions(space="megatron")),
        "pinned": (3.2, SearchOptions(space="mixed", pins=Pins.parse(("pp=2",), ("vpp=2",)))),
        "infeasible": (1.01, SearchOptions(space="uniform")),
        "unknown": (3.2, SearchOptions(space="megatron", time_limit_s=0.0)),
        "context": (4.0, SearchOptions(space="megatron", pins=Pins.parse((), ("tp=4",)))),
    }
    memory_gib, options = cases[kind]
    others = {"context": (LONG_MODEL, LONG_JOB), "feasible": (replace(MODEL, layers=6), JOB)}
    model, job = others.get(kind, (MODEL, SMALL_JOB))
    return encode(search(model, node_with(memory_gib), job, options).certificate)


KINDS = ("optimal", "feasible", "pinned", "infeasible", "unknown", "context")


def accepted(document: Json) -> Certificate | None:
    """The certificate if reading and verification accept it; nothing but InputError may escape."""
    handle, path = tempfile.mkstemp(suffix=".json")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump(document, file)
    try:
        certificate = read_certificate(path)
        return certificate if all(check.passed for check in verify(certificate)) else None
    except InputError:
        return None
    finally:
        Path(path).unlink()


@functools.cache
def true_optimum(data: bytes) -> int | None:
    """What a full search finds about the input of a certificate; None: no plan."""
    claim = decode(data)
    options = SearchOptions(space=claim.space, pins=claim.pins, schedules=claim.schedules)
    found = search(claim.model, claim.cluster, claim.job, options).certificate
    assert found.status in ("optimal", "infeasible")
    return found.objective_ticks


def assert_true(certificate: Certificate) -> None:
    optimum = true_optimum(encode(certificate))
    objective, bound = certificate.objective_ticks, certificate.bound_ticks
    if certificate.status == "infeasible":
        assert optimum is None
    if certificate.status == "optimal":
        assert objective == bound == optimum
    if objective is not None:
        assert optimum is not None
        assert objective >= optimum
    if bound is not None and optimum is not None:
        assert bound <= optimum


def steps_to_all(node: object, path: tuple[Step, ...] = ()) -> list[tuple[Step, ...]]:
    """Paths of all values, inner ones too."""
    children: list[tuple[Step, object]] = []
    if isinstance(node, dict):
        children = list(node.items())
    elif isinstance(node, list):
        children = list(enumerate(node))
    inner = [found for step, value in children for found in steps_to_all(value, (*path, step))]
    return [*([path] if path else []), *inner]


def replacements(old: object) -> st.SearchStrategy[object]:
    """Values near the old one, absurd ones, and ones of other types."""
    absurd: st.SearchStrategy[object] = st.sampled_from(
        [None, True, 0, -1, 2**31, 2**63 - 1, -(2**63), 10**30, 1e30, 0.5, "", "1f1b", [], {}]
    )
    if isinstance(old, bool) or old is None:
        return st.one_of(absurd, st.booleans())
    if isinstance(old, int):
        return st.one_of(absurd, st.integers(-3, 3).map(lambda shift: old + shift))
    if isinstance(old, float):
        return st.one_of(absurd, st.sampled_from([0.5, 2.0, 1e-300]).map(lambda by: old * by))
    if isinstance(old, str):
        words = ["optimal", "infeasible", "unknown", "feasible", "gpipe", "mixed", "uniform"]
        return st.one_of(absurd, st.sampled_from(words), st.text(max_size=4))
    if isinstance(old, list) and old:
        place = st.integers(0, len(old) - 1)
        dropped = place.map(lambda i: old[:i] + old[i + 1 :])
        doubled = place.map(lambda i: [*old[: i + 1], *old[i:]])
        return st.one_of(absurd, dropped, doubled, st.permutations(old))
    return absurd


@st.composite
def mutations(draw: st.DrawFn) -> tuple[str, Json]:
    """An honest certificate with one or two values replaced, each part as likely as another."""
    kind = draw(st.sampled_from(KINDS))
    document = json.loads(honest(kind))
    for _ in range(draw(st.sampled_from([1, 1, 2]))):
        part = draw(st.sampled_from(sorted(document)))
        paths = steps_to_all(document[part], (part,))
        *way, last = draw(st.sampled_from(paths))
        holder = document
        for step in way:
            holder = holder[step]
        holder[last] = draw(replacements(holder[last]))
    return kind, document


@pytest.mark.parametrize("kind", KINDS)
def test_honest_certificates_are_accepted_and_true(kind: str) -> None:
    certificate = accepted(json.loads(honest(kind)))
    assert certificate is not None
    assert certificate.status == {"pinned": "optimal", "context": "optimal"}.get(kind, kind)
    assert_true(certificate)


@given(mutation=mutations())
@settings(max_examples=400, deadline=None)
def test_what_is_accepted_is_true(mutation: tuple[str, Json]) -> None:
    _, document = mutation
    certificate = accepted(document)
    if certificate is not None:
        assert_true(certificate)


CLAIM_PARTS = ("status", "objective_ticks", "bound_ticks", "space_version", "schema", "refusals")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", CLAIM_PARTS)
def test_no_part_of_the_claim_may_change(kind: str, part: str) -> None:
    document = json.loads(honest(kind))
    old = document[part]
    tried: list[object] = [None, 1, "optimal", "infeasible", "unknown", "feasible", []]
    if isinstance(old, int):
        tried += [old - 1, old + 1, -old, 2**63 - 1]
    if isinstance(old, list):
        tried += [old[1:], old[::-1], [*old, old[0]]]
    for new in tried:
        if new != old:
            assert accepted({**document, part: new}) is None, new


@pytest.mark.parametrize("kind", KINDS)
def test_fates_may_not_be_dropped_doubled_or_exchanged(kind: str) -> None:
    document = json.loads(honest(kind))
    fates = cast("list[dict[str, object]]", document["fates"])
    for i in range(0, len(fates), max(1, len(fates) // 12)):
        assert accepted({**document, "fates": fates[:i] + fates[i + 1 :]}) is None
        assert accepted({**document, "fates": [*fates[:i], fates[i], *fates[i:]]}) is None
        exchanged = copy.deepcopy(fates)
        other = (i + 1) % len(fates)
        exchanged[i], exchanged[other] = exchanged[other], exchanged[i]
        assert accepted({**document, "fates": exchanged}) is None


@pytest.mark.parametrize("kind", ["optimal", "feasible", "pinned", "unknown"])
def test_bounds_of_fates_may_not_change(kind: str) -> None:
    document = json.loads(honest(kind))
    bounded = [fate for fate in document["fates"] if "bound" in fate]
    assert bounded
    for fate in bounded[:: max(1, len(bounded) // 8)]:
        old = fate["bound"]
        for new in (old - 1, old + 1, 0, 2**63 - 1):
            fate["bound"] = new
            assert accepted(document) is None
        fate["bound"] = old


def has_a_plan(claim: Certificate, name: str) -> bool:
    """Whether the configuration of that name is feasible."""
    costs = CostModel(claim.model, claim.cluster, claim.job)
    builder = InstanceBuilder(costs, get_space(claim.space), claim.pins)
    found = enumerate_configurations(
        claim.model, claim.cluster, claim.job, builder.space, claim.pins, claim.schedules
    )
    named = [c for c in found if isinstance(c, Configuration) and c.name == name]
    return two_level_dp(builder.build(named[0])) is not None


@pytest.mark.parametrize("kind", ["optimal", "feasible", "pinned", "unknown"])
def test_no_fate_passes_as_one_that_closes_its_configuration(kind: str) -> None:
    document = json.loads(honest(kind))
    fates = document["fates"]
    forged: list[dict[str, object]] = [
        {"fate": "no_strategy"},
        {"fate": "solved", "numerator": None, "cutoff": None, "by": []},
        {"fate": "solved", "numerator": None, "cutoff": 1, "by": []},
        {"fate": "work", "bound": 2**62},
    ]
    solved_or_open = [i for i, fate in enumerate(fates) if fate["fate"] in ("solved", "open")]
    assert solved_or_open
    for i in solved_or_open[:6]:
        name = fates[i]["configuration"]
        stages = int(name.split()[0].removeprefix("pp"))
        little: dict[str, object] = {"fate": "memory", "placeable": [0] * stages}
        for fate in (*forged, little):
            changed = [*fates[:i], {**fate, "configuration": name}, *fates[i + 1 :]]
            certificate = accepted({**document, "fates": changed})
            if certificate is not None:
                assert fate is little or fate is forged[1]
                assert not has_a_plan(certificate, name)
