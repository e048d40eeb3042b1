"""Cases: the distinct configurations among measured runs, and what the cost model says of each.

Runs with equal configuration are one case. Of a case only the newest software release counts, its
repeats averaged. A case has every plan its rows may stand for; the assumed one
(``plans.ordered``, which sees no time) comes first and gives the prediction.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from ilp_parallel.jobs import profile_rates
from ilp_parallel.measured.comparison import spread
from ilp_parallel.measured.naming import NotCoveredError
from ilp_parallel.measured.plans import ordered, plans_of, predicted, require_valid_specs
from ilp_parallel.measured.runs import distinct

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ilp_parallel.costs.profile import Profile
    from ilp_parallel.measured.runs import Run
    from ilp_parallel.plan import Plan

LARGE = 7e9
"""Parameters from which a model counts as large (chosen)."""

SIZE_LIMITS: dict[str, tuple[float, float]] = {
    "layers": (1, 1 << 12),
    "hidden": (1, 1 << 20),
    "heads": (1, 1 << 16),
    "kv_heads": (1, 1 << 16),
    "ffn": (1, 1 << 22),
    "vocab": (1, 1 << 24),
    "seq_len": (1, 1 << 30),
    "gpu_mem_gb": (1, 1 << 14),
    "gpus_per_node": (1, 1 << 16),
    "n_gpus": (1, 1 << 24),
    "tp": (1, 1 << 24),
    "pp": (1, 1 << 24),
    "dp": (1, 1 << 24),
    "cp": (1, 1 << 24),
    "vpp": (1, 1 << 8),
    "mbs": (1, 1 << 30),
    "gbs": (1, 1 << 30),
    "step_time_canon_s": (1e-6, 1e7),
}
"""Least and largest value of a row's numbers (chosen far beyond anything run)."""

OUT_OF_MEMORY = ("OOM", "OOM_or_crash")


@dataclass(frozen=True, slots=True)
class Case:
    """One distinct configuration that the model describes."""

    run: Run  # one that stands for all
    plans: tuple[Plan, ...]  # the assumed completion first
    measured_s: float | None  # None: it ran out of memory
    rows: int  # that measured_s is the mean of, or that ran out of memory
    older_rows: int
    repeats: tuple[float, ...]  # spread of the rows of each release that has several
    release_spread: float | None  # of the releases' means, where there are several

    @property
    def large(self) -> bool:
        """Whether its model has at least ``LARGE`` parameters, counted from the shapes."""
        return self.plans[0].model.parameters >= LARGE


@dataclass(frozen=True, slots=True)
class PricedCase:
    """A case with what the model says of it."""

    case: Case
    completions_s: tuple[float, ...]  # step time of each plan, in their order
    fits: bool  # the assumed plan, with what its software holds besides

    @property
    def predicted_s(self) -> float:
        """Step time of the assumed plan."""
        return self.completions_s[0]


@dataclass(frozen=True, slots=True)
class NotCovered:
    """Runs of a source that the model does not describe, for one reason."""

    reason: str
    source: str
    configurations: int
    rows: int


def cases_of(
    runs: Iterable[Run], profile: Profile | None = None
) -> tuple[tuple[Case, ...], tuple[NotCovered, ...]]:
    """The distinct configurations with a time or out of memory, and those not described.

    Parameters
    ----------
    runs
        Any runs. One that both ran and ran out of memory counts as having run.
    profile
        Rates to use instead of the shipped ones.

    Raises
    ------
    InputError
        ``STACK_NOT_IN_PROFILE``.
    """
    cases: list[Case] = []
    refused: Counter[tuple[str, str]] = Counter()
    rows: Counter[tuple[str, str]] = Counter()
    for group in distinct(runs):
        told = [run for run in group if run.timed]
        told = told or [run for run in group if run.status in OUT_OF_MEMORY]
        if not told:
            continue
        try:
            cases.append(_case(told, profile))
        except NotCoveredError as error:
            key = str(error), told[0].source
            refused[key] += 1
            rows[key] += len(told)
    return tuple(cases), tuple(
        NotCovered(reason, source, count, rows[reason, source])
        for (reason, source), count in refused.most_common()
    )


def price(case: Case) -> PricedCase:
    """Step times of a case under all completions, and whether the assumed one fits."""
    prices = [predicted(case.run, plan) for plan in case.plans]
    times = tuple(float(time) for time, _ in prices)
    return PricedCase(case, times, fits=bool(prices[0][1] <= 1))


def _case(told: list[Run], profile: Profile | None) -> Case:
    """One case from its rows, the newest release first: all timed, or all out of memory."""
    for run in told:
        _require_in_range(run)
    plans = _completions(told[0], profile)
    if not told[0].timed:
        return Case(told[0], plans, None, len(told), 0, (), None)
    releases = [
        [run.step_time_canon_s for run in rows if run.step_time_canon_s is not None]
        for _, rows in groupby(told, key=lambda run: run.release)
    ]
    means = [float(np.mean(times)) for times in releases]
    return Case(
        run=told[0],
        plans=plans,
        measured_s=means[0],
        rows=len(releases[0]),
        older_rows=len(told) - len(releases[0]),
        repeats=tuple(spread(times) for times in releases if len(times) > 1),
        release_spread=spread(means) if len(means) > 1 else None,
    )


def _completions(run: Run, profile: Profile | None) -> tuple[Plan, ...]:
    """The run's plans, the assumed one first, under the rates of the profile."""
    plans = plans_of(run)
    cluster, job = plans[0].cluster, plans[0].job
    for g in (plan.configuration for plan in plans):
        if g.microbatch * g.microbatches * g.data != job.global_batch:
            raise NotCoveredError("batch does not divide")
    require_valid_specs(plans[0])
    if profile is not None:
        job = replace(job, rates=profile_rates(profile, cluster, job.stack))
        plans = tuple(replace(plan, job=job) for plan in plans)
    return ordered(run, plans)


def _require_in_range(run: Run) -> None:
    """No number of a row may be absurd: what follows divides by them and counts up to them."""
    for name, (least, largest) in SIZE_LIMITS.items():
        value = getattr(run, name)
        if value is not None and not least <= value <= largest:  # true for NaN
            raise NotCoveredError(f"{name} out of range")
    if run.layers is not None and (run.pp or 1) * (run.vpp or 1) > run.layers + 2:
        raise NotCoveredError("more stages than layers, embedding and head")
    if run.zero not in (None, 0, 1, 2, 3):
        raise NotCoveredError("ZeRO stage unknown")
