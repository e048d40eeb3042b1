"""The memory model beside measured memory: logged peaks, device peaks, runs out of memory.

Three kinds of measurement, each compared with the figure that means the same:

* *allocated*: Megatron-LM's functional tests log ``torch.cuda.memory_stats`` peaks of the last
  rank, so the last stage's allocated peak is meant;
* *device*: what ``nvidia-smi`` showed of a device, so the larger device peak of first and last
  stage is meant (the sources looked at these nodes);
* *labels*: a run either ran or ran out of memory, so ``fits`` is meant.

``ALLOCATOR_SLACK`` is fitted on the labels. Leaving out one (model, sequence length) at a time, and
fitting on the others, shows how well it predicts models that it has not seen.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ilp_parallel.measured import conventions as known
from ilp_parallel.measured.cases import OUT_OF_MEMORY, cases_of
from ilp_parallel.measured.comparison import errors_of
from ilp_parallel.measured.golden import is_golden, plan_of, read_golden
from ilp_parallel.measured.naming import NotCoveredError
from ilp_parallel.measured.plans import require_valid_specs
from ilp_parallel.measured.runs import read_runs
from ilp_parallel.measured.software import MeasuredCosts, software_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ilp_parallel.costs.breakdown import Prediction
    from ilp_parallel.costs.layer import FloatArray
    from ilp_parallel.measured.comparison import Errors
    from ilp_parallel.measured.golden import GoldenRow
    from ilp_parallel.measured.runs import Run

LARGE_BYTES = 20e9
"""Logged peak from which a test is reported by name (chosen)."""


@dataclass(frozen=True, slots=True)
class Peak:
    """A peak by name: a row's source or test and platform, predicted beside measured."""

    name: str
    predicted_bytes: float
    measured_bytes: float

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted_bytes / self.measured_bytes - 1


@dataclass(frozen=True, slots=True)
class Fits:
    """Rows that ran or ran out of memory, beside what was predicted."""

    n: int
    out_of_memory: int  # of these
    right: int
    false_fits: int  # ran out of memory, called fitting
    false_ooms: int  # ran, called out of memory

    @property
    def false_fit_share(self) -> float:
        """Of the rows out of memory."""
        return self.false_fits / max(1, self.out_of_memory)

    @property
    def false_oom_share(self) -> float:
        """Of the rows that ran."""
        return self.false_ooms / max(1, self.n - self.out_of_memory)


@dataclass(frozen=True, slots=True)
class Label:
    """A row that ran or ran out of memory.

    ``break_even`` is the allocator slack up to which it is called fitting.
    """

    source: str
    group: tuple[str, int]  # model and sequence length
    out_of_memory: bool
    fits: bool
    break_even: float


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """Everything that measured memory tells about the memory model. Errors are fractions."""

    overall: Errors | None  # every peak of either kind
    golden_toy: Errors | None
    golden_large: Errors | None
    large: tuple[Peak, ...]
    devices: dict[str, Errors]  # by source
    fits: dict[str, Fits]  # by source
    fits_left_out: dict[str, Fits]  # the slack fitted on all other groups
    fitted_slack: float | None  # on all labels
    not_covered: dict[str, int]  # rows by reason


def memory_report(folder: str) -> MemoryReport:
    """Compare the memory model with the measured memory of a folder.

    Parameters
    ----------
    folder
        Any number of CSV files of runs and JSON-lines files of golden rows; what is absent gives
        an empty part.

    Raises
    ------
    InputError
        Whatever reading the files raises.
    """
    not_covered: Counter[str] = Counter()
    golden = _golden_peaks(folder, not_covered)
    runs = read_runs(folder)
    toy, large = _split(golden)
    peaks = _device_peaks(runs, not_covered)
    labels = _labels(runs, not_covered)
    return MemoryReport(
        overall=_errors([*golden, *(peak for found in peaks.values() for peak in found)]),
        golden_toy=_errors(toy),
        golden_large=_errors(large),
        large=tuple(large),
        devices={source: _some(_errors(found)) for source, found in peaks.items()},
        fits=fits_by_source(labels, [label.fits for label in labels]),
        fits_left_out=fits_by_source(labels, left_out(labels)),
        fitted_slack=fitted_slack(labels) if labels else None,
        not_covered=dict(sorted(not_covered.items())),
    )


def fitted_slack(labels: Sequence[Label]) -> float:
    """The allocator slack, 0 to 1, that makes the larger of both error shares least.

    Of the ranges that do, the middle of the lowest.
    """
    points = np.array([label.break_even for label in labels])
    lacking = np.array([label.out_of_memory for label in labels], dtype=np.bool_)
    # a row fits while the slack is at most its break-even point: nothing changes between two points
    edges = np.unique(np.clip(np.append(points, [0.0, 1.0]), 0.0, 1.0))
    candidates = np.append(0.0, (edges[:-1] + edges[1:]) / 2)
    false_fits = [np.sum(points[lacking] >= slack) for slack in candidates]
    false_ooms = [np.sum(points[~lacking] < slack) for slack in candidates]
    worst = np.maximum(
        np.array(false_fits) / max(1, lacking.sum()),
        np.array(false_ooms) / max(1, (~lacking).sum()),
    )
    return float(candidates[int(np.argmin(worst))])


def left_out(labels: Sequence[Label]) -> list[bool]:
    """Whether each fits, with the slack fitted on the labels of all other groups."""
    slack = {
        group: fitted_slack([label for label in labels if label.group != group])
        for group in {label.group for label in labels}
    }
    return [bool(label.break_even >= slack[label.group]) for label in labels]


def fits_by_source(labels: Sequence[Label], believed: Sequence[bool]) -> dict[str, Fits]:
    """Labels beside what is believed of them, by source."""
    told = list(zip(labels, believed, strict=True))
    return {
        source: fits_of(
            [label for label, _ in told if label.source == source],
            [fit for label, fit in told if label.source == source],
        )
        for source in sorted({label.source for label in labels})
    }


def fits_of(labels: Sequence[Label], believed: Sequence[bool]) -> Fits:
    """Labels beside what is believed of them."""
    told = list(zip(believed, (label.out_of_memory for label in labels), strict=True))
    return Fits(
        n=len(told),
        out_of_memory=sum(lacking for _, lacking in told),
        right=sum(fit != lacking for fit, lacking in told),
        false_fits=sum(fit and lacking for fit, lacking in told),
        false_ooms=sum(not fit and not lacking for fit, lacking in told),
    )


def _golden_peaks(folder: str, not_covered: Counter[str]) -> list[Peak]:
    root = Path(folder)
    files = sorted(path for path in root.rglob("*.jsonl") if is_golden(path))
    peaks = []
    for row in (row for path in files for row in read_golden(path)):
        try:
            peaks.append(golden_peak(row))
        except NotCoveredError as error:
            not_covered[f"golden: {error}"] += 1
    return peaks


def golden_peak(row: GoldenRow) -> Peak:
    """Allocated peak of a test's last rank.

    Raises
    ------
    NotCoveredError
        If the cost model does not describe the test.
    """
    plan = plan_of(row)
    require_valid_specs(plan)
    stage = MeasuredCosts(plan, known.Software()).prediction().stages[-1]
    assert row.mem_max_allocated_bytes is not None
    name = f"{row.test} {row.platform}"
    return Peak(name, stage.allocated_bytes, row.mem_max_allocated_bytes)


def _device_peaks(runs: Iterable[Run], not_covered: Counter[str]) -> dict[str, list[Peak]]:
    """Peaks of trustworthy rows by source."""
    peaks: dict[str, list[Peak]] = {}
    for run in runs:
        if run.peak_mem_gb is None:
            continue
        if not run.timed:
            not_covered[f"{run.source_id} peaks: quality {run.quality}"] += 1
            continue
        try:
            stages = _prediction(run).stages
        except NotCoveredError as error:
            not_covered[f"{run.source_id} peaks: {error}"] += 1
            continue
        predicted = max(stages[0].device_bytes, stages[-1].device_bytes)
        unit = known.MEMORY_UNIT_BYTES.get(run.source_id, 1e9)
        peak = Peak(run.row_id, predicted, run.peak_mem_gb * unit)
        peaks.setdefault(run.source_id, []).append(peak)
    return peaks


def _labels(runs: Sequence[Run], not_covered: Counter[str]) -> list[Label]:
    """Rows of the sources that tell which of their runs ran out of memory."""
    sources = {run.source_id for run in runs if run.status in OUT_OF_MEMORY}
    labels = []
    for run in runs:
        lacking = run.status in OUT_OF_MEMORY
        if run.source_id not in sources or not (lacking or run.timed):
            continue
        try:
            labels.append(label_of(run))
        except NotCoveredError as error:
            not_covered[f"{run.source_id} labels: {error}"] += 1
    return labels


def label_of(run: Run) -> Label:
    """What is predicted of a run that ran or ran out of memory.

    Raises
    ------
    NotCoveredError
        If the cost model does not describe the run.
    """
    prediction = _prediction(run)
    full_slack = prediction.reserve_terms[-1].value
    free = prediction.stages[0].usable_bytes + full_slack  # of context and communicators
    return Label(
        source=run.source_id,
        group=(run.model, run.seq_len or 0),
        out_of_memory=run.status in OUT_OF_MEMORY,
        fits=prediction.fits,
        break_even=free / prediction.allocated_bytes - 1,
    )


def _prediction(run: Run) -> Prediction:
    """The assumed plan of a run, priced with what its software holds."""
    cases, refused = cases_of([run])
    if not cases:
        raise NotCoveredError(refused[0].reason if refused else "neither ran nor out of memory")
    return MeasuredCosts(cases[0].plans[0], software_of(run.framework)).prediction()


def _split(peaks: Sequence[Peak]) -> tuple[list[Peak], list[Peak]]:
    """Peaks of small and of large tests."""
    small = [peak for peak in peaks if peak.measured_bytes < LARGE_BYTES]
    return small, [peak for peak in peaks if peak.measured_bytes >= LARGE_BYTES]


def _errors(peaks: Sequence[Peak]) -> Errors | None:
    predicted: FloatArray = np.array([peak.predicted_bytes for peak in peaks])
    measured: FloatArray = np.array([peak.measured_bytes for peak in peaks])
    return errors_of(predicted, measured)


def _some(errors: Errors | None) -> Errors:
    assert errors is not None
    return errors
