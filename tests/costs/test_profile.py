"""Profiles: every pair has its rates, a file is read strictly, the shipped fit says what it is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, get_args

import pytest

from ilp_parallel.costs.profile import (
    ANY,
    DEVICE_RATES,
    STACK_RATES,
    default_profile,
    prior_profile,
    profile_document,
    rates_of,
    read_profile,
)
from ilp_parallel.errors import InputError
from ilp_parallel.specs.job import Stack
from ilp_parallel.specs.rates import RATE_LIMITS
from ilp_parallel.specs.readers import cluster_names, load_cluster

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.mark.parametrize("stack", get_args(Stack))
@pytest.mark.parametrize("device", cluster_names())
def test_every_shipped_device_has_rates_under_every_stack(device: str, stack: str) -> None:
    generation = load_cluster(device).device.generation
    assert generation in default_profile().generations
    rates = rates_of(generation, stack)
    for name in (*DEVICE_RATES, *STACK_RATES):
        least, largest = RATE_LIMITS[name]
        assert least <= getattr(rates, name) <= largest


def test_twelve_rates_for_a_generation_under_a_stack() -> None:
    assert len(DEVICE_RATES) == len(STACK_RATES) == 6
    assert set(RATE_LIMITS) == {*DEVICE_RATES, *STACK_RATES}


def test_an_unknown_generation_takes_the_rates_of_any() -> None:
    rates = rates_of("next-year", "megatron")
    assert rates.matmul == default_profile().generations[ANY]["matmul"].value
    assert rates.host_s == default_profile().stacks["megatron"][ANY]["host_s"].value


def test_fitted_rates_name_their_runs_and_their_error_and_others_stay_at_the_prior() -> None:
    fitted, prior = default_profile(), prior_profile()
    for generation, rates in fitted.generations.items():
        for name, rate in rates.items():
            before = prior.generations[generation][name]
            if rate.kind == "fitted":
                assert rate.standard_error is not None
                assert "configurations of" in rate.source
            else:
                assert rate == before
    kinds = {rate.kind for rates in fitted.generations.values() for rate in rates.values()}
    assert kinds == {"fitted", "assumed"}
    assert all(r.kind != "fitted" for rates in prior.generations.values() for r in rates.values())


def test_a_profile_is_read_as_written(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(profile_document(default_profile())))
    assert read_profile(str(path)) == default_profile()


def _without(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda document: document["generations"]["ampere"].pop(name)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda d: d.update(schema="other/1"), "schema"),
        (lambda d: d.pop("stacks"), "stacks"),
        (_without("matmul"), "matmul"),
        (lambda d: d["generations"].pop(ANY), ANY),
        (lambda d: d["stacks"]["megatron"].pop(ANY), ANY),
        (lambda d: d["generations"]["ampere"]["matmul"].update(value=1.5), "matmul=1.5"),
        (lambda d: d["generations"]["ampere"]["matmul"].update(value="fast"), "fast|float"),
        (lambda d: d["generations"]["ampere"]["matmul"].update(kind="guessed"), "guessed"),
        (lambda d: d["stacks"]["megatron"][ANY].update(luck={"value": 1}), "luck|kind"),
    ],
)
def test_a_spoilt_profile_is_refused(
    spoil: Callable[[dict[str, Any]], object], told: str, tmp_path: Path
) -> None:
    document: dict[str, Any] = json.loads(json.dumps(profile_document(default_profile())))
    spoil(document)
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(document))
    with pytest.raises(InputError, match=told) as caught:
        read_profile(str(path))
    assert caught.value.code == "BAD_PROFILE"
