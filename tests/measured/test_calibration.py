"""Fitting rates: made-up times give back the rates that made them, and nothing else moves."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import pytest

from ilp_parallel.costs.model import CostModel
from ilp_parallel.costs.profile import ANY, Profile, prior_profile
from ilp_parallel.errors import InputError
from ilp_parallel.measured.calibration import Calibration, calibrate, step_time_s
from ilp_parallel.measured.cases import Case, cases_of
from ilp_parallel.measured.held_out import group_of, held_out, macro_error
from tests.measured.tables import run_of, said

if TYPE_CHECKING:
    from ilp_parallel.measured.runs import Run

PLANS = [
    {"tp": t, "pp": p, "dp": 64 // t // p, "mbs": b, "recompute": "full", "seq_par": t > 2}
    for t, p, b in product((1, 2, 8), (1, 4), (1, 2, 4))
]


def with_rates(profile: Profile, **changes: float) -> Profile:
    """A profile whose Ampere and Megatron rates are changed."""
    generations = {k: dict(v) for k, v in profile.generations.items()}
    stacks = {k: {g: dict(v) for g, v in table.items()} for k, table in profile.stacks.items()}
    for name, value in changes.items():
        table = generations["ampere"]
        table = table if name in table else stacks["megatron"][ANY]
        table[name] = replace(table[name], value=value)
    return Profile("made up", generations, stacks)


TRUTH = with_rates(prior_profile(), matmul=0.70, intra=0.5, stream_factor=1.6)


def made_up(profile: Profile, factor: float = 1.0, **changes: object) -> list[Run]:
    """Runs whose times are those of the model under a profile."""
    runs = []
    for i, plan in enumerate(PLANS):
        row = {**plan, "seq_par": int(plan["seq_par"]), **changes, "row_id": f"toy-{i}"}
        (case,), _ = cases_of([run_of(**row, step_time_canon_s=1.0)], profile)
        plan_ = case.plans[0]
        seconds = step_time_s(CostModel(plan_.model, plan_.cluster, plan_.job), plan_)
        runs.append(run_of(**row, step_time_canon_s=factor * seconds))
    return runs


def cases(runs: list[Run]) -> tuple[Case, ...]:
    return cases_of(runs)[0]


def test_step_time_is_that_of_the_prediction() -> None:
    for run in made_up(TRUTH)[::5]:
        (case,) = cases([run])
        model = CostModel(case.plans[0].model, case.plans[0].cluster, case.plans[0].job)
        assert step_time_s(model, case.plans[0]) == pytest.approx(said(run), rel=1e-12)


@pytest.fixture(scope="module")
def found() -> Calibration:
    """The fit to times made by ``TRUTH``."""
    return calibrate(cases(made_up(TRUTH)), prior_profile(), "found")


def test_rates_behind_the_times_are_found(found: Calibration) -> None:
    (fit,) = found.fits
    assert fit.generation == "ampere"
    assert fit.cases == len(PLANS)
    assert fit.sources == ("toy",)
    assert fit.median_error < 0.01
    device = found.profile.generations["ampere"]
    assert device["matmul"].kind == "fitted"
    assert device["matmul"].value == pytest.approx(0.70, abs=0.03)
    assert device["intra"].value == pytest.approx(0.5, abs=0.06)
    assert device["matmul"].standard_error is not None
    assert 0 < device["matmul"].standard_error < 0.05


def test_what_no_run_informs_stays_at_the_prior(found: Calibration) -> None:
    prior, profile = prior_profile(), found.profile
    assert profile.generations["ampere"]["matmul_fp8"] == prior.generations["ampere"]["matmul_fp8"]
    assert profile.generations["hopper"] == prior.generations["hopper"]
    assert profile.stacks["fsdp"] == prior.stacks["fsdp"]
    assert profile.stacks["megatron"][ANY] == profile.stacks["megatron"]["ampere"]


def test_a_few_wild_times_move_little(found: Calibration) -> None:
    runs = made_up(TRUTH)
    runs[::9] = made_up(TRUTH, factor=3.0)[::9]
    wild = calibrate(cases(runs), prior_profile(), "wild")
    matmul = [c.profile.generations["ampere"]["matmul"].value for c in (found, wild)]
    assert np.ptp(matmul) < 0.05


def test_runs_that_inform_nothing_leave_the_prior() -> None:
    (run,) = made_up(TRUTH)[:1]
    found = calibrate(cases([run]), prior_profile(), "one")
    assert (
        found.profile.generations["ampere"].keys() == prior_profile().generations["ampere"].keys()
    )


def test_nothing_to_fit() -> None:
    with pytest.raises(InputError, match="NOTHING_TO_FIT"):
        calibrate(cases([run_of(status="OOM", quality="M")]), prior_profile(), "empty")


def test_each_source_is_predicted_without_it() -> None:
    runs = made_up(TRUTH, source_id="one") + made_up(TRUTH, 1.25, source_id="two")
    told: list[str] = []
    found = held_out(runs, prior_profile(), "source", told.append)
    assert [held.group for held in found] == ["one", "two"]
    assert told == ["left out one", "left out two"]
    one, two = (held.source for held in found)
    assert one.bias == pytest.approx(0.25, abs=0.05)  # told by the slower source
    assert two.bias == pytest.approx(-0.2, abs=0.05)
    mean, worst = macro_error(found)
    assert mean == pytest.approx((one.median_error + two.median_error) / 2)
    assert worst == max(one.median_error, two.median_error)


def test_models_are_left_out_with_their_sequence_length() -> None:
    assert group_of(run_of(), "model") == "toy: toy-llama-13b, 2048 tokens"
    assert group_of(run_of(seq_len=8192), "model") != group_of(run_of(), "model")
    assert macro_error([]) == (None, None)
