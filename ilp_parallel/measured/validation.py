"""The cost model beside measured runs: errors, order, regret, and what they are worth.

A prediction is that of the assumed completion of a case (:mod:`ilp_parallel.measured.cases`); the
other completions give an interval beside it, and the best match is never picked.

A *group* is what a planner would be given: cases that differ only in the plan. Among them, those
that ran out of memory included, the model picks the fastest predicted that it believes fits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from ilp_parallel.measured import comparison as stats
from ilp_parallel.measured.cases import cases_of, price
from ilp_parallel.measured.runs import EXPERTS

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    import numpy.typing as npt

    from ilp_parallel.costs.profile import Profile
    from ilp_parallel.measured.cases import Case, NotCovered, PricedCase
    from ilp_parallel.measured.comparison import Errors, FloatArray
    from ilp_parallel.measured.runs import Run
    from ilp_parallel.plan import Plan

Key = TypeVar("Key", bound="Hashable")

MACRO_CASES = 15
"""Least cases of large models for a source to enter the macro median error (chosen), in which runs
with experts do not count."""

GROUP_CASES = 4
"""Least timed cases of a group whose order and regret are looked at (chosen)."""


@dataclass(frozen=True, slots=True)
class Rows:
    """What became of the rows read; the parts add up to ``read``."""

    read: int
    used: int
    older_release: int
    out_of_memory: int
    not_covered: int
    left_out: int  # neither a trustworthy time nor out of memory


@dataclass(frozen=True, slots=True)
class Source:
    """One source. Errors, regrets and spreads are fractions; None where nothing can be said."""

    id: str
    n: int  # rows used
    n_configurations: int
    n_completed: int  # of these, with several completions
    n_groups: int
    median_error: float
    p90_error: float
    bias: float
    interval_median_error_low: float  # median of the least error that any completion has
    interval_median_error_high: float  # median of the largest
    below_7b: Errors | None
    from_7b: Errors | None
    kendall: float | None  # median over groups
    regret_median: float | None
    regret_p90: float | None
    regret_mean: float | None
    random_regret: float | None  # mean over groups of what a random pick is expected to lose
    rule_regret: float | None  # p90, of the one-line rule
    rule_regret_median: float | None
    rule_regret_mean: float | None
    known_regret_median: float | None  # the same, were only what ran to choose from
    known_regret_p90: float | None
    known_rule_regret: float | None  # p90
    oom_picks: int  # groups where the model's choice ran out of memory
    rule_oom_picks: int
    none_fit: int  # groups where the model believes nothing to fit
    repeat_noise: float | None  # median spread of repeated rows of one release
    n_repeated: int
    release_spread: float | None  # median spread of a configuration's releases
    n_released: int


@dataclass(frozen=True, slots=True)
class Validation:
    """What timed runs, and the choice among them and those out of memory, tell of the model."""

    sources: tuple[Source, ...]
    macro_median_error: float | None  # mean over macro_sources of the median error from 7 B on
    macro_sources: tuple[str, ...]
    not_covered: tuple[NotCovered, ...]
    rows: Rows
    timed: tuple[PricedCase, ...]


def validate(runs: Sequence[Run], profile: Profile | None = None) -> Validation:
    """Compare the cost model with measured runs.

    Parameters
    ----------
    runs
        Any runs, in any order.
    profile
        Rates to use instead of the shipped ones.

    Raises
    ------
    InputError
        ``STACK_NOT_IN_PROFILE``.
    """
    cases, not_covered = cases_of(runs, profile)
    priced = [price(case) for case in cases]
    timed = [p for p in priced if p.case.measured_s is not None]
    of_source = _parts(priced, lambda p: p.case.run.source)
    sources = tuple(
        _source(name, members)
        for name, members in of_source.items()
        if any(p.case.measured_s is not None for p in members)
    )
    macro = {
        s.id: s.from_7b.median_error
        for s in sources
        if s.from_7b is not None and s.from_7b.n >= MACRO_CASES and not s.id.endswith(EXPERTS)
    }
    return Validation(
        sources=sources,
        macro_median_error=stats.mean(list(macro.values())),
        macro_sources=tuple(macro),
        not_covered=not_covered,
        rows=_rows(len(runs), cases, not_covered),
        timed=tuple(timed),
    )


def _source(name: str, priced: list[PricedCase]) -> Source:
    """The figures of one source from all its cases."""
    timed = [p for p in priced if p.case.measured_s is not None]
    errors = _errors(timed)
    assert errors is not None
    least, largest = _error_interval(timed)
    groups = [_Group(members) for members in _groups(priced)]
    regrets = [g.chosen.regret for g in groups if g.chosen.regret is not None]
    ruled = [g.ruled.regret for g in groups if g.ruled.regret is not None]
    known = [g.known.regret for g in groups if g.known.regret is not None]
    known_rule = [g.known_rule.regret for g in groups if g.known_rule.regret is not None]
    repeats = [spread for p in timed for spread in p.case.repeats]
    released = [p.case.release_spread for p in timed if p.case.release_spread is not None]
    return Source(
        id=name,
        n=sum(p.case.rows for p in timed),
        n_configurations=errors.n,
        n_completed=sum(len(p.case.plans) > 1 for p in timed),
        n_groups=len(groups),
        median_error=errors.median_error,
        p90_error=errors.p90_error,
        bias=errors.bias,
        interval_median_error_low=least,
        interval_median_error_high=largest,
        below_7b=_errors([p for p in timed if not p.case.large]),
        from_7b=_errors([p for p in timed if p.case.large]),
        kendall=stats.median([g.kendall for g in groups if g.kendall is not None]),
        regret_median=stats.median(regrets),
        regret_p90=stats.percentile(regrets, 90),
        regret_mean=stats.mean(regrets),
        random_regret=stats.mean([g.random_regret for g in groups]),
        rule_regret=stats.percentile(ruled, 90),
        rule_regret_median=stats.median(ruled),
        rule_regret_mean=stats.mean(ruled),
        known_regret_median=stats.median(known),
        known_regret_p90=stats.percentile(known, 90),
        known_rule_regret=stats.percentile(known_rule, 90),
        oom_picks=sum(g.chosen.out_of_memory for g in groups),
        rule_oom_picks=sum(g.ruled.out_of_memory for g in groups),
        none_fit=sum(g.chosen.none_fits for g in groups),
        repeat_noise=stats.median(repeats),
        n_repeated=len(repeats),
        release_spread=stats.median(released),
        n_released=len(released),
    )


class _Group:
    """What is found in one group. Ties fall against the model and in favour of the rule."""

    def __init__(self, members: list[PricedCase]) -> None:
        believed = np.array([p.fits for p in members])
        predicted, measured = _predicted(members), _measured(members)
        ran = np.isfinite(measured)
        ranks = rule_ranks([p.case.plans[0] for p in members])
        self.kendall = stats.kendall(predicted[ran], measured[ran])
        self.random_regret = stats.random_regret(measured)
        self.known = stats.pick(predicted, ran, measured, lucky=False)
        self.known_rule = stats.pick(ranks, ran, measured, lucky=True)
        self.chosen = stats.pick(predicted, believed, measured, lucky=False)
        self.ruled = stats.pick(ranks, believed, measured, lucky=True)


def rule_ranks(plans: Sequence[Plan]) -> npt.NDArray[np.int64]:
    """Ranks ``[n]`` by a one-line rule; equal where it does not tell plans apart.

    Least recomputation, then least t p, then least t, then the largest microbatch.
    """
    keys = []
    for plan in plans:
        g, modules = plan.configuration, plan.strategies[0].recompute
        recomputation = 0 if not modules else 2 if "full" in modules else 1
        keys.append((recomputation, g.tensor * g.pipeline, g.tensor, -g.microbatch))
    rank = {key: i for i, key in enumerate(sorted(set(keys)))}
    return np.array([rank[key] for key in keys], dtype=np.int64)


def _groups(priced: Sequence[PricedCase]) -> list[list[PricedCase]]:
    """Groups with enough timed cases."""
    groups = _parts(priced, lambda p: p.case.run.group_key).values()
    return [g for g in groups if sum(p.case.measured_s is not None for p in g) >= GROUP_CASES]


def _predicted(priced: Sequence[PricedCase]) -> FloatArray:
    return np.array([p.predicted_s for p in priced], dtype=np.float64)


def _measured(priced: Sequence[PricedCase]) -> FloatArray:
    """Seconds ``[n]``, infinite where a case ran out of memory."""
    return np.array([p.case.measured_s or np.inf for p in priced], dtype=np.float64)


def _errors(timed: Sequence[PricedCase]) -> Errors | None:
    return stats.errors_of(_predicted(timed), _measured(timed))


def _error_interval(timed: Sequence[PricedCase]) -> tuple[float, float]:
    """Medians of the least and of the largest error that any completion of a case has."""
    errors = [
        np.abs(np.array(p.completions_s) / measured - 1)
        for p, measured in zip(timed, _measured(timed), strict=True)
    ]
    return float(np.median([e.min() for e in errors])), float(np.median([e.max() for e in errors]))


def _rows(read: int, cases: Sequence[Case], not_covered: Sequence[NotCovered]) -> Rows:
    used = sum(case.rows for case in cases if case.measured_s is not None)
    older = sum(case.older_rows for case in cases)
    lacking = sum(case.rows for case in cases if case.measured_s is None)
    refused = sum(part.rows for part in not_covered)
    return Rows(read, used, older, lacking, refused, read - used - older - lacking - refused)


def _parts(
    priced: Iterable[PricedCase], key: Callable[[PricedCase], Key]
) -> dict[Key, list[PricedCase]]:
    """Cases by key, in order of first sight."""
    parts: dict[Key, list[PricedCase]] = {}
    for one in priced:
        parts.setdefault(key(one), []).append(one)
    return parts
