r"""Fitting a profile's rates to measured step times.

One fit per device generation: its six device rates, and the six software rates of every stack that
ran on it, twelve for each pair and none for a source. With ``r_i = log(predicted_i / measured_i)``
of case ``i``, prior value ``p_j`` and prior spread ``s_j`` of rate ``j``, the fit minimises

.. math:: \sum_i \rho(w_i r_i / \sigma) + \sum_j ((g(x_j) - g(p_j)) / s_j)^2,

where ``rho`` is the soft-L1 loss (outliers count linearly), ``w_i`` falls with the number of cases
of the source, so that no source outvotes the others, and ``g`` is the logit of a share and the
logarithm of anything else. The prior is a profile of figures from data sheets, papers and
judgement. A rate that the cases hardly inform goes back to it, and the others are fitted again.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ilp_parallel.costs import breakdown
from ilp_parallel.costs.profile import ANY, DEVICE_RATES, Profile, Rate
from ilp_parallel.errors import InputError
from ilp_parallel.measured.software import MeasuredCosts, software_of
from ilp_parallel.specs.rates import RATE_LIMITS, Rates

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from ilp_parallel.costs.model import CostModel
    from ilp_parallel.measured.cases import Case
    from ilp_parallel.plan import Plan

    FloatArray = npt.NDArray[np.float64]

NOISE = 0.08
"""Spread of a good prediction, as a logarithm: about the noise of repeated runs (chosen)."""

SOURCE_POWER = 0.35
"""A case weighs ``cases of its source ** -0.35``: between one vote a case and one a source."""

PRIOR_SPREAD: dict[str, float] = {
    "matmul": 0.4,
    "matmul_fp8": 0.4,
    "attention": 0.6,
    "stream": 0.4,
    "intra": 0.8,
    "inter": 0.8,
    "stream_factor": 0.35,
    "host_s": 0.5,
    "collective_s": 0.5,
    "overlap": 1.0,
    "tensor_overlap": 1.0,
    "straggler": 0.7,
}
"""How far a rate may lie from its prior value, as a logit or a logarithm (judgement: data sheets
and kernel benchmarks pin shares down to 10-20 %, software overheads only to a factor)."""

SHARES = (
    *("matmul", "matmul_fp8", "attention", "stream"),
    *("intra", "inter", "overlap", "tensor_overlap"),
)

INFORMED = 0.95
"""A rate counts as fitted when its spread fell below this share of the prior's."""

LEAST_CASES = 15
"""Cases from which a stack's rates are fitted; with fewer they stay at the prior, and the cases
inform the device's rates only (chosen)."""

NORMAL_MEDIAN = 1.4826
"""Standard deviation of a normal variable over its median absolute deviation: wild runs, which the
loss hardly counts, do not widen the standard errors either."""

MAX_EVALUATIONS = 30
TOLERANCE = 1e-4
"""Relative change of the fitted sum, or of the rates, at which the fit ends."""

Key = tuple[str, str]
"""Owner (``""`` for the device, else the stack) and name of a rate."""


@dataclass(frozen=True, slots=True)
class FittedGeneration:
    """The fit of one device generation."""

    generation: str
    cases: int
    stacks: dict[str, int]  # cases of each
    sources: tuple[str, ...]
    median_error: float
    rates: dict[Key, Rate]


@dataclass(frozen=True, slots=True)
class Calibration:
    """A profile and the fits it came from."""

    profile: Profile
    fits: tuple[FittedGeneration, ...]


def calibrate(
    cases: Sequence[Case],
    prior: Profile,
    name: str,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Calibration:
    """Fit the rates of every generation among the timed cases.

    Parameters
    ----------
    cases
        Distinct configurations; those without a time are ignored, and of those that leave settings
        blank the assumed completion is taken.
    prior
        Where the rates start and are drawn to; also what generations without cases keep.
    name
        Of the new profile.
    on_progress
        Called with a line per fitted generation.

    Raises
    ------
    InputError
        ``NOTHING_TO_FIT`` without a timed case.
    """
    timed = [case for case in cases if case.measured_s is not None]
    if not timed:
        raise InputError("NOTHING_TO_FIT", "no timed run that the model describes", "add runs")
    generations = sorted({generation_of(case) for case in timed})
    fits = []
    for generation in generations:
        chosen = [case for case in timed if generation_of(case) == generation]
        fits.append(_Fit(generation, chosen, prior).run())
        on_progress(f"{generation}: {len(chosen)} configurations fitted")
    return Calibration(_profile(prior, fits, name), tuple(fits))


def step_time_s(costs: CostModel, plan: Plan) -> float:
    """Step time of a plan whose layers all do the same; as ``predict``, without its terms."""
    g = plan.configuration
    table = costs.layer_table(g)
    k = table.strategies.index(plan.strategies[0])
    ends = costs.stage_costs(g, (1,) * g.pipeline)
    sizes = np.array(plan.sizes, dtype=np.float64)
    forward = sizes * table.forward_s[0, k] + ends.fixed_forward_s + np.append(ends.cut_s, 0.0)
    backward = sizes * table.backward_s[0, k] + ends.fixed_backward_s + np.append(0.0, ends.cut_s)
    by_chunk = np.array([forward, backward, sizes]).reshape(3, g.chunks, g.pipeline)
    forward, backward, layers = by_chunk.sum(axis=1)
    tail = layers * table.tail_s[0, k] + ends.fixed_tail_s
    return breakdown.step_time_s(g, forward.tolist(), backward.tolist(), tail.tolist())


class _Fit:
    """Least squares over the logarithms of one generation's rates."""

    def __init__(self, generation: str, cases: Sequence[Case], prior: Profile) -> None:
        self._generation = generation
        self._cases = cases
        self._plans = [case.plans[0] for case in cases]
        self._stacks = sorted({plan.job.stack for plan in self._plans})
        self._prior = _prior_rates(prior, generation, self._stacks)
        self._measured = np.log([case.measured_s or 1.0 for case in cases])
        count = Counter(case.run.source_id for case in cases)
        weights = np.array([count[case.run.source_id] ** -SOURCE_POWER for case in cases])
        self._weights = weights / weights.mean() / NOISE
        self._choose([key for key in self._prior if self._matters(key)])

    def run(self) -> FittedGeneration:
        """The rates, those that the cases inform with their standard errors."""
        found, errors = self._solve(self._centre)
        informed = errors < INFORMED * self._spreads
        if not informed.all():
            self._choose([key for key, good in zip(self._keys, informed, strict=True) if good])
            found, errors = self._solve(found[informed])
        misfit = self._log_predictions(found) - self._measured
        sources = tuple(sorted({case.run.source_id for case in self._cases}))
        told = f"{len(self._cases)} configurations of {', '.join(sources)}"
        rates = dict(self._prior)
        for key, value, error in zip(self._keys, self._values(found), errors, strict=True):
            slope = value * (1.0 - value) if key[1] in SHARES else value
            rates[key] = Rate(_rounded(value, 4), "fitted", told, _rounded(slope * error, 2))
        return FittedGeneration(
            generation=self._generation,
            cases=len(self._cases),
            stacks=dict(Counter(plan.job.stack for plan in self._plans)),
            sources=sources,
            median_error=float(np.median(np.abs(np.expm1(misfit)))),
            rates=rates,
        )

    def _choose(self, keys: Sequence[Key]) -> None:
        """Fit these rates, and leave the others at their prior values."""
        self._keys = list(keys)
        self._spreads = np.array([PRIOR_SPREAD[name] for _, name in keys])
        self._shares = np.array([name in SHARES for _, name in keys])
        self._centre = self._scaled(np.array([self._prior[key].value for key in keys]))

    def _solve(self, start: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Best rates on their scales, and standard errors."""
        from scipy.optimize import least_squares

        if not self._keys:
            return np.empty(0), np.empty(0)
        limits = np.array([RATE_LIMITS[name] for _, name in self._keys]).T
        low, high = (self._scaled(np.clip(limit, 1e-9, None)) for limit in limits)
        found = least_squares(
            self._residuals,
            start,
            jac=self._jacobian,
            bounds=(low, high),
            loss="soft_l1",
            ftol=TOLERANCE,
            xtol=TOLERANCE,
            max_nfev=MAX_EVALUATIONS,
        ).x
        return found, self._errors(found)

    def _scaled(self, values: FloatArray) -> FloatArray:
        inside = np.minimum(values, 1.0 - 1e-6)
        return np.where(self._shares, np.log(inside / (1.0 - inside)), np.log(values))

    def _values(self, scaled: FloatArray) -> list[float]:
        values: list[float] = np.where(
            self._shares, 1.0 / (1.0 + np.exp(-scaled)), np.exp(scaled)
        ).tolist()
        return values

    def _matters(self, key: Key) -> bool:
        """Whether a rate can be fitted: it is not at zero, and enough cases depend on it."""
        owner = sum(key[0] in ("", plan.job.stack) for plan in self._plans)
        if key[0] and owner < LEAST_CASES:
            return False
        fp8 = any(plan.job.precision.startswith("fp8") for plan in self._plans)
        return self._prior[key].value > 0 and (key[1] != "matmul_fp8" or fp8)

    def _rates(self, scaled: FloatArray) -> dict[str, Rates]:
        """Rates by stack."""
        values = {key: rate.value for key, rate in self._prior.items()}
        values |= dict(zip(self._keys, self._values(scaled), strict=True))
        return {
            stack: Rates(**{name: x for (owner, name), x in values.items() if owner in ("", stack)})
            for stack in self._stacks
        }

    def _log_predictions(self, scaled: FloatArray, rows: Sequence[int] | None = None) -> FloatArray:
        rates = self._rates(scaled)
        chosen = range(len(self._plans)) if rows is None else rows
        plans = [(self._plans[i], self._cases[i].run.framework) for i in chosen]
        times = [_priced(*plan, rates[plan[0].job.stack]) for plan in plans]
        return np.log(np.array(times, dtype=np.float64))

    def _residuals(self, scaled: FloatArray) -> FloatArray:
        misfit = (self._log_predictions(scaled) - self._measured) * self._weights
        return np.concatenate([misfit, (scaled - self._centre) / self._spreads])

    def _jacobian(self, scaled: FloatArray) -> FloatArray:
        """Forward differences; a stack's rate concerns that stack's cases only."""
        rows, columns, step = len(self._plans), len(self._keys), 1e-4
        matrix = np.zeros((rows + columns, columns))
        here = self._log_predictions(scaled)
        for j, (owner, _) in enumerate(self._keys):
            chosen = [i for i, plan in enumerate(self._plans) if owner in ("", plan.job.stack)]
            moved = scaled.copy()
            moved[j] += step
            slope = (self._log_predictions(moved, chosen) - here[chosen]) / step
            matrix[chosen, j] = slope * self._weights[chosen]
        matrix[rows:] = np.diag(1.0 / self._spreads)
        return matrix

    def _errors(self, scaled: FloatArray) -> FloatArray:
        """Standard errors on the scales, at the spread that the residuals really have."""
        matrix = self._jacobian(scaled)
        covariance = np.linalg.inv(matrix.T @ matrix)
        misfit = self._residuals(scaled)[: len(self._plans)]
        spread = max(1.0, (NORMAL_MEDIAN * float(np.median(np.abs(misfit)))) ** 2)
        errors: FloatArray = np.sqrt(np.diag(covariance) * spread)
        return errors


def _rounded(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")


def _priced(plan: Plan, framework: str, rates: Rates) -> float:
    plan = replace(plan, job=replace(plan.job, rates=rates))
    return step_time_s(MeasuredCosts(plan, software_of(framework)), plan)


def generation_of(case: Case) -> str:
    """The device generation of a case."""
    return case.plans[0].cluster.device.generation


def _prior_rates(prior: Profile, generation: str, stacks: Sequence[str]) -> dict[Key, Rate]:
    device = prior.generations.get(generation) or prior.generations[ANY]
    rates = {("", name): rate for name, rate in device.items()}
    for stack in stacks:
        software = prior.stacks[stack].get(generation) or prior.stacks[stack][ANY]
        rates |= {(stack, name): rate for name, rate in software.items()}
    return rates


def _profile(prior: Profile, fits: Sequence[FittedGeneration], name: str) -> Profile:
    """The prior with what was fitted; a stack's best-known generation stands for the others."""
    generations = dict(prior.generations)
    stacks = {stack: dict(table) for stack, table in prior.stacks.items()}
    for fit in fits:
        generations[fit.generation] = {n: fit.rates["", n] for n in DEVICE_RATES}
        for stack in (name for name, cases in fit.stacks.items() if cases >= LEAST_CASES):
            stacks[stack][fit.generation] = {
                n: rate for (owner, n), rate in fit.rates.items() if owner == stack
            }
    for stack, table in stacks.items():
        cases, generation = max((fit.stacks.get(stack, 0), fit.generation) for fit in fits)
        if cases >= LEAST_CASES:
            table[ANY] = table[generation]
    return Profile(name, generations, stacks)
