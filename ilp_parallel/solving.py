"""Everything one ``solve`` does: search, the superset's optimum, verification, simulation."""

from __future__ import annotations

import platform
import time
from dataclasses import dataclass, replace
from importlib import metadata
from typing import TYPE_CHECKING

import msgspec

from ilp_parallel import __version__
from ilp_parallel.costs.model import CostModel
from ilp_parallel.instances import InstanceBuilder, unfold
from ilp_parallel.plan_files import plan_document
from ilp_parallel.planner import SearchOptions, SearchResult, search
from ilp_parallel.simulate import simulate
from ilp_parallel.spaces import NOT_SEARCHED, get_space
from ilp_parallel.verify import verify

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

    from ilp_parallel.certificate import Minimised
    from ilp_parallel.costs.breakdown import Prediction
    from ilp_parallel.jobs import CompleteJob
    from ilp_parallel.problems.check import Check
    from ilp_parallel.spaces import Pins

SCHEMA = "ilp_parallel.solve/1"
SUPERSET = "mixed"
"""The largest space searched so far; its optimum is printed beside that of any smaller one."""

MINIMISED: dict[str, Minimised] = {"step-time": "step-time", "simulated": "simulated-step-time"}
"""What is minimised, by the word of ``--objective``."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What ``solve`` found out. Times of the plan are seconds of the integer model."""

    job: CompleteJob
    options: SearchOptions
    result: SearchResult
    superset: SearchResult | None  # the search of SUPERSET, where another space was asked for
    failed_checks: tuple[Check, ...]
    prediction: Prediction | None
    simulated_ticks: int | None
    search_s: float
    total_s: float

    @property
    def verified(self) -> bool:
        """Whether the plan and every re-derivable bound passed."""
        return not self.failed_checks

    @property
    def minimised_text(self) -> str:
        """The objective in words."""
        return self.result.certificate.minimised.replace("-", " ")

    def seconds(self, ticks: int | None) -> float | None:
        """Seconds of a number of ticks."""
        return self.result.certificate.seconds(ticks)

    @property
    def gap(self) -> float | None:
        """(objective - bound) / objective; exactly 0 only where they are equal."""
        return self.result.certificate.gap

    @property
    def proof(self) -> str | None:
        """``exact`` where every bound was re-derived in integers, else None."""
        certificate = self.result.certificate
        settled = certificate.bound_ticks is not None or certificate.status == "infeasible"
        return "exact" if self.verified and settled else None


def solve(
    job: CompleteJob,
    options: SearchOptions,
    *,
    started: float,
    minimised: Minimised = "step-time",
    executor: Executor | None = None,
) -> Answer:
    """Search, verify, simulate and predict.

    Parameters
    ----------
    job, options
        What to plan, and how.
    started
        ``time.perf_counter()`` at the start of the command, for the total time.
    minimised
        The step time by formula, or what it is when the schedule is played through; then there is
        no superset to compare with.

    executor
        Searches the superset in another process meanwhile, without progress and cancellation.

    Raises
    ------
    InputError
        From the search.
    """
    begun = time.perf_counter()
    superset: tuple[SearchResult, tuple[Check, ...]] | None = None
    meanwhile: Future[tuple[SearchResult, tuple[Check, ...]]] | None = None
    costs = CostModel(job.model, job.cluster, job.job)
    by_formula = minimised == "step-time"
    own = options
    if by_formula and options.space != SUPERSET and _contains(SUPERSET, options.space):
        whole = replace(options, space=SUPERSET)
        if executor is not None:
            alone = replace(whole, progress=None, cancelled=None)
            meanwhile = executor.submit(_searched, job, alone)
        else:
            superset = _searched(job, whole, costs)
            own = replace(options, time_limit_s=_left(options.time_limit_s, begun))
    result = search(job.model, job.cluster, job.job, own, costs)
    if not by_formula:
        from ilp_parallel.simulation.searching import search_simulated

        result = search_simulated(own, costs, result)
    failed = _failed(result)
    if meanwhile is not None:
        superset = meanwhile.result()
    if superset is not None:
        failed += superset[1]
    ended = time.perf_counter()
    return Answer(
        job=job,
        options=options,
        result=result,
        superset=superset and superset[0],
        failed_checks=failed,
        prediction=None if result.plan is None else costs.terms(result.plan),
        simulated_ticks=_simulated(costs, result, options.pins),
        search_s=ended - begun,
        total_s=time.perf_counter() - started,
    )


def _searched(
    job: CompleteJob, options: SearchOptions, costs: CostModel | None = None
) -> tuple[SearchResult, tuple[Check, ...]]:
    """A search and the checks of its certificate that fail."""
    result = search(job.model, job.cluster, job.job, options, costs)
    return result, _failed(result)


def _failed(result: SearchResult) -> tuple[Check, ...]:
    """Checks that fail, by a cost model that remembers nothing of the search."""
    return tuple(check for check in verify(result.certificate) if not check.passed)


def _left(limit_s: float | None, begun: float) -> float | None:
    """What is left of a time limit."""
    return None if limit_s is None else max(0.0, limit_s - (time.perf_counter() - begun))


def _contains(larger: str, smaller: str) -> bool:
    """Whether every plan of a space is one of another: more freedom and at least its strategies."""
    big, small = get_space(larger), get_space(smaller)
    return (
        big.freedom == "per-layer"
        and not big.even_stages
        and set(small.zero) <= set(big.zero)
        and set(small.recompute) <= set(big.recompute)
    )


def _simulated(costs: CostModel, result: SearchResult, pins: Pins) -> int | None:
    """Ticks of the step when the schedule is played through event by event."""
    chosen = result.certificate.plan
    if result.plan is None or chosen is None:
        return None
    configuration = result.plan.configuration
    builder = InstanceBuilder(costs, get_space(result.plan.space), pins)
    solution = unfold(chosen.solution, configuration.chunks)
    return simulate(builder.unfolded(configuration), solution).step_ticks


def versions() -> dict[str, str]:
    """Versions that a result depends on."""
    packages = ("numpy", "highspy", "ortools", "pulp")
    found = {name: metadata.version(name) for name in packages}
    return {"ilp_parallel": __version__, "python": platform.python_version(), **found}


def answer_document(answer: Answer) -> dict[str, object]:
    """The JSON of ``solve``: the same for the same input and seed, except ``timing``."""
    certificate = answer.result.certificate
    prediction, plan = answer.prediction, answer.result.plan
    return {
        "schema": SCHEMA,
        "minimised": certificate.minimised,
        "status": certificate.status,
        "proof": answer.proof,
        "objective": certificate.objective_ticks,
        "bound": certificate.bound_ticks,
        "unit": "ticks",
        "gap": answer.gap,
        "verified": answer.verified,
        "failed_checks": [check.name for check in answer.failed_checks],
        "solver": {
            "name": answer.result.solver,
            "version": answer.result.solver_version,
            "formulation": answer.options.formulation,
            "seed": answer.options.seed,
        },
        "versions": versions(),
        "timing": {"total_s": answer.total_s, "search_s": answer.search_s},
        "instance": {
            "hash": certificate.input_hash,
            "model": certificate.model.name,
            "cluster": certificate.cluster.name,
            "space": certificate.space,
            "tick_ns": certificate.job.tick_ns,
            "assumed": list(answer.job.assumed),
            "not_searched": list(NOT_SEARCHED),
        },
        "step_time_s": answer.seconds(certificate.objective_ticks),
        "bound_s": answer.seconds(certificate.bound_ticks),
        "rounding_floor_s": answer.seconds(answer.result.rounding_floor_ticks),
        "dp_step_time_s": answer.seconds(answer.result.dp_ticks),
        "simulated_step_time_s": answer.seconds(answer.simulated_ticks),
        "tokens_per_second": _rate(answer),
        "mfu": None if prediction is None else prediction.mfu,
        "configurations": answer.result.fates,
        "superset": _superset(answer),
        "plan": None if plan is None else plan_document(plan),
        "certificate": msgspec.to_builtins(certificate),
    }


def _rate(answer: Answer) -> float | None:
    step = answer.seconds(answer.result.certificate.objective_ticks)
    return None if step is None else answer.job.job.tokens_per_step / step


def _superset(answer: Answer) -> dict[str, object] | None:
    if answer.superset is None:
        return None
    certificate = answer.superset.certificate
    return {
        "space": certificate.space,
        "status": certificate.status,
        "objective": certificate.objective_ticks,
        "bound": certificate.bound_ticks,
        "step_time_s": answer.seconds(certificate.objective_ticks),
        "configurations": answer.superset.fates,
    }
