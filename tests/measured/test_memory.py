"""Predicted beside measured memory: made-up rows whose answer is known, and the real ones."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ilp_parallel.costs import constants
from ilp_parallel.costs.model import CostModel
from ilp_parallel.measured import conventions as known
from ilp_parallel.measured.golden import GoldenRow, plan_of
from ilp_parallel.measured.memory import (
    Label,
    MeasuredCosts,
    fits_of,
    fitted_slack,
    golden_peak,
    label_of,
    left_out,
    memory_report,
    software_of,
)
from ilp_parallel.measured.plans import plans_of
from tests.measured.tables import out_of_memory, run_of, write_table
from tests.measured.test_golden import ARGS

if TYPE_CHECKING:
    from pathlib import Path

    from ilp_parallel.plan import Plan

PLAIN = known.Software()
RAN = {"step_time_canon_s": 10.0}
GOLDEN = GoldenRow(
    "gpt/toy", "dev_dgx_h100", {**ARGS, "pipeline-model-parallel-size": 2}, 1e9, None
)


def plan(**changes: object) -> Plan:
    """The plan of one row."""
    return plans_of(run_of(**changes))[0]


def test_an_empty_folder_gives_empty_parts(tmp_path: Path) -> None:
    report = memory_report(str(tmp_path))
    assert report.overall is report.golden_toy is report.golden_large is report.fitted_slack is None
    assert report.large == ()
    assert report.devices == report.fits == report.fits_left_out == report.not_covered == {}


def golden_line(test: str, measured: float, **flags: object) -> str:
    args = {**ARGS, **{name.replace("_", "-"): value for name, value in flags.items()}}
    row = {"test": test, "platform": "dev_dgx_h100", "args": args, "gpus": None}
    return json.dumps({**row, "mem_max_allocated_bytes": measured}) + "\n"


def test_logged_peaks_are_those_of_the_last_stage(tmp_path: Path) -> None:
    peak = golden_peak(GOLDEN)
    stages = CostModel(*_parts(plan_of(GOLDEN))).terms(plan_of(GOLDEN)).stages
    ends = 12 * 50304 * 512 + 12 * 2 * 512  # the optimizer of one end, whole
    assert peak.predicted_bytes == pytest.approx(stages[-1].allocated_bytes + ends * (1 - 1 / 4))
    lines = [
        golden_line("gpt/a", peak.predicted_bytes / 1.25, pipeline_model_parallel_size=2),
        golden_line("gpt/b", 25e9, pipeline_model_parallel_size=2),
        golden_line("moe/c", 1e9),
    ]
    (tmp_path / "rows.jsonl").write_text("".join(lines), encoding="utf-8")
    report = memory_report(str(tmp_path))
    assert report.golden_toy is not None
    assert report.golden_toy.n == 1
    assert report.golden_toy.bias == pytest.approx(0.25)
    assert [peak.name for peak in report.large] == ["gpt/b dev_dgx_h100"]
    assert report.large[0].error == pytest.approx(peak.predicted_bytes / 25e9 - 1)
    assert report.not_covered == {"golden: mixture of experts": 1}
    assert report.overall is not None
    assert report.overall.n == 2


def _parts(whole: Plan):
    return whole.model, whole.cluster, whole.job


def test_device_peaks_are_compared_with_device_peaks(tmp_path: Path) -> None:
    stages = MeasuredCosts(plan(), PLAIN).prediction().stages
    expected = max(stages[0].device_bytes, stages[-1].device_bytes) / 1e9
    assert expected > stages[0].allocated_bytes / 1e9 + 1.5  # a context at least
    rows = [
        run_of(**RAN, peak_mem_gb=expected / 0.9),
        run_of(**RAN, peak_mem_gb=expected, quality="X"),
        run_of(**RAN, peak_mem_gb=expected, arch_kind="moe"),
    ]
    write_table(tmp_path / "one.csv", rows)
    report = memory_report(str(tmp_path))
    assert report.devices["toy"].n == 1
    assert report.devices["toy"].bias == pytest.approx(-0.1, abs=1e-3)
    assert report.not_covered == {
        "toy peaks: quality X": 1,
        "toy peaks: moe model without a preset": 1,
    }
    assert report.fits == {}  # no run of the source ran out of memory


def test_labels_are_counted_by_source(tmp_path: Path) -> None:
    rows = [run_of(**RAN), out_of_memory(mbs=2), out_of_memory(mbs=32)]
    write_table(tmp_path / "one.csv", rows)
    fits = memory_report(str(tmp_path)).fits["toy"]
    assert (fits.n, fits.out_of_memory, fits.right, fits.false_fits) == (3, 2, 2, 1)
    assert (fits.false_ooms, fits.false_fit_share, fits.false_oom_share) == (0, 0.5, 0.0)


def label(group: str, lacking: bool, break_even: float) -> Label:
    return Label("toy", (group, 2048), lacking, break_even >= 0.1, break_even)


def test_the_slack_separates_what_ran_from_what_did_not() -> None:
    labels = [label("a", False, 0.5), label("a", False, 0.3), label("b", True, 0.2)]
    assert 0.2 < fitted_slack(labels) <= 0.3


points = st.tuples(st.booleans(), st.integers(-50, 200).map(lambda percent: percent / 100))


@given(points=st.lists(points, min_size=1, max_size=20))
def test_no_other_slack_has_a_smaller_worst_share(points: list[tuple[bool, float]]) -> None:
    labels = [label("a", lacking, value) for lacking, value in points]

    def worst(slack: float) -> float:
        found = fits_of(labels, [x.break_even >= slack for x in labels])
        return max(found.false_fit_share, found.false_oom_share)

    best = worst(fitted_slack(labels))
    for slack in (0.0, 0.05, 0.5, 1.0, *(min(1.0, max(0.0, value)) for _, value in points)):
        assert best <= worst(slack)


def test_a_group_left_out_has_no_say() -> None:
    others = [label("a", False, 0.4), label("a", True, 0.1)]
    odd = [label("b", False, 0.05)]
    assert left_out([*others, *odd])[2] is False  # others ask for a slack above 0.1
    assert fitted_slack(odd) == 0.0


@pytest.mark.parametrize("slack", [0.0, 0.05, 0.14, 0.3])
def test_break_even_is_the_slack_up_to_which_a_run_fits(slack: float, monkeypatch) -> None:
    monkeypatch.setattr(constants, "ALLOCATOR_SLACK", slack)
    labels = [label_of(out_of_memory(mbs=b)) for b in (1, 4, 8, 16, 32)]
    assert [x.fits for x in labels] == [x.break_even >= slack for x in labels]
    assert len({x.fits for x in labels}) == 2


def test_whole_logits_are_the_same_on_every_tensor_rank() -> None:
    software = known.Software(whole_logits=True)
    alone = plan(tp=1, pp=1, dp=64, seq_par=0)
    split = plan(tp=4, pp=1, dp=16)
    logits = 2048 * 32000

    def loss_bytes(whole: Plan, chosen: known.Software) -> float:
        costs = MeasuredCosts(whole, chosen)
        work = costs.end_work(whole.configuration)
        inputs = 4.0 * 2048 * 5120 / whole.configuration.tensor
        working = costs.layer_part(whole.configuration).transient_bytes[0]
        return work.head_bytes + work.head_transient_bytes + working - inputs - 2.0 * 2048 * 5120

    assert loss_bytes(alone, software) == pytest.approx(16 * logits)
    assert loss_bytes(split, software) == pytest.approx(16 * logits)
    assert loss_bytes(split, PLAIN) == 6 * 2048 * 32256 // 4  # a padded vocabulary, split


def test_what_software_keeps_besides_is_priced() -> None:
    whole = plan(framework="AA-Scaling 1.0")
    g = whole.configuration
    plain, special = MeasuredCosts(whole, PLAIN), MeasuredCosts(whole, software_of("AA-Scaling"))
    more = special.layer_part(g).activation_bytes - plain.layer_part(g).activation_bytes
    hidden, tokens = 5120, 2048
    norms, rotated, gate = 2 * hidden, 2 * hidden, 13824  # halves of two tensor ranks
    assert more[0] == pytest.approx(tokens * (norms + rotated + gate))
    assert more[-1] == 0  # full recomputation keeps the input alone
    assert np.all(special.layer_part(g).transient_bytes >= plain.layer_part(g).transient_bytes)


def test_fp32_gradients_of_deepspeed_are_whole() -> None:
    software = software_of("Megatron-DeepSpeed")
    whole = plan(framework="Megatron-DeepSpeed")
    special = MeasuredCosts(whole, software)
    assert special.states.state(1.0, "1", 8).total == 8 + 12 / 8
    half = replace(whole, job=replace(whole.job, precision="megatron-fp16"))
    fp16 = MeasuredCosts(half, software)
    assert fp16.states.state(1.0, "1", 8).total == 4 + 16 / 8


@pytest.mark.skipif(
    "ILP_PARALLEL_MEASURED" not in os.environ,
    reason="ILP_PARALLEL_MEASURED names no folder of measured runs",
)
def test_the_memory_model_meets_its_bars() -> None:
    report = memory_report(os.environ["ILP_PARALLEL_MEASURED"])
    if report.golden_toy is not None:
        assert report.golden_toy.median_error < 0.08
        assert all(abs(peak.error) < 0.05 for peak in report.large)
    if "bigscience_a100" in report.devices:
        assert report.devices["bigscience_a100"].median_error < 0.08
    if "aleph" in report.fits:
        for fits in (report.fits["aleph"], report.fits_left_out["aleph"]):
            assert fits.false_fit_share < 0.08
            assert fits.false_oom_share < 0.08
        assert report.fitted_slack == pytest.approx(constants.ALLOCATOR_SLACK, abs=0.03)
