"""Statistics of predictions beside measurements: errors, order, regret, spread.

Pure functions of numpy arrays; every error, spread and regret is a fraction (0.1 is 10 %), and what
too few numbers give no meaning to is None.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Sequence

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

APART = 0.05
"""Measured times closer than this share of the shorter one count as equal (chosen: repeated runs
of one configuration differ by about as much)."""


@dataclass(frozen=True, slots=True)
class Errors:
    """Relative errors of ``n`` predictions."""

    n: int
    median_error: float  # of |predicted / measured - 1|
    p90_error: float
    bias: float  # median of predicted / measured - 1


def errors_of(predicted: FloatArray, measured: FloatArray) -> Errors | None:
    """Errors of predictions ``[n]`` against measurements ``[n]``, all positive; None for none."""
    if len(measured) == 0:
        return None
    signed = predicted / measured - 1
    return Errors(
        n=len(measured),
        median_error=float(np.median(np.abs(signed))),
        p90_error=float(np.percentile(np.abs(signed), 90)),
        bias=float(np.median(signed)),
    )


def median(values: Sequence[float]) -> float | None:
    """The median, or None of nothing."""
    return float(np.median(values)) if values else None


def percentile(values: Sequence[float], percent: float) -> float | None:
    """A percentile, interpolated linearly between the two nearest values, or None of nothing."""
    return float(np.percentile(values, percent)) if values else None


def mean(values: Sequence[float]) -> float | None:
    """The mean, or None of nothing."""
    return float(np.mean(values)) if values else None


def spread(values: Sequence[float]) -> float:
    """Largest over smallest, less one; values are positive."""
    return max(values) / min(values) - 1


def kendall(predicted: FloatArray, measured: FloatArray, apart: float = APART) -> float | None:
    """Kendall's tau over the pairs whose measured values are apart.

    (pairs in the right order - pairs in the wrong one) / pairs, where a pair predicted equal is in
    neither order. Pairs within ``apart`` of each other are left out: their order is noise. None
    where no pair is left. Takes memory for one row of pairs at a time.
    """
    balance, pairs = 0.0, 0
    for i in range(len(measured) - 1):
        one, others = measured[i], measured[i + 1 :]
        far = np.maximum(one, others) > (1 + apart) * np.minimum(one, others)
        order = np.sign(predicted[i] - predicted[i + 1 :]) * np.sign(one - others)
        balance += float(order[far].sum())
        pairs += int(far.sum())
    return balance / pairs if pairs else None


@dataclass(frozen=True, slots=True)
class Pick:
    """What a way of choosing chose. At most one of the three holds a finding."""

    regret: float | None  # measured time over the best of the group, less one
    out_of_memory: bool = False  # the choice did not run
    none_fits: bool = False  # nothing was believed to fit


def pick(
    preference: npt.NDArray[np.floating | np.integer],
    believed: BoolArray,
    measured: FloatArray,
    *,
    lucky: bool,
) -> Pick:
    """The least preference among what is believed to fit, and its regret.

    Parameters
    ----------
    preference
        ``[n]``, lower is better.
    believed
        ``[n]`` whether an option is believed to fit its devices.
    measured
        ``[n]`` seconds; infinite for an option that ran out of memory. One at least is finite.
    lucky
        Whether equal preferences fall to the fastest measured option, or else to the slowest: the
        order of rows in a file must not decide.
    """
    options = np.flatnonzero(believed)
    if len(options) == 0:
        return Pick(None, none_fits=True)
    times = measured[options[preference[options] == preference[options].min()]]
    time = float(times.min() if lucky else times.max())
    if np.isinf(time):
        return Pick(None, out_of_memory=True)
    return Pick(time / float(measured.min()) - 1)


def random_regret(measured: FloatArray) -> float:
    """Expected regret of one of the options ``[n]`` that ran, each equally likely."""
    ran = measured[np.isfinite(measured)]
    return float(ran.mean() / ran.min()) - 1
