"""Best-first search over configurations with an exact certificate.

Every configuration gets a bound from its work alone, without its instance being built. The
configuration with the least bound is refined: first by the work bound of its instance, then by
Lagrangian multipliers, then, if the bound still beats the incumbent, by solving
it exactly, as an integer program and by the dynamic program, which must agree. The search ends when
no bound is below the incumbent.
"""

from __future__ import annotations

import heapq
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ilp_parallel.baselines.two_level_dp import Optimum, two_level_dp
from ilp_parallel.bounds import (
    Multipliers,
    best_combined_bound,
    best_lagrangian_bound,
    memory_shortfall,
    tables_of,
    work_bound,
)
from ilp_parallel.certificate import (
    Certificate,
    ChosenPlan,
    Fate,
    LagrangianBound,
    NoStrategy,
    Open,
    SearchStatus,
    Solved,
    TooLittleMemory,
    WorkBound,
    closed_by,
)
from ilp_parallel.costs.model import CostModel
from ilp_parallel.instances import InstanceBuilder, plan_of
from ilp_parallel.problems.pipeline import evaluate
from ilp_parallel.programs import get_formulation, require_applicable
from ilp_parallel.solvers.outcome import SolveOptions
from ilp_parallel.solvers.registry import get_solver
from ilp_parallel.spaces import (
    Pins,
    Refusal,
    enumerate_configurations,
    get_space,
    no_configuration,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ilp_parallel.bounds import Tables
    from ilp_parallel.configuration import Configuration
    from ilp_parallel.plan import Plan
    from ilp_parallel.problems.pipeline import PipelineInstance, Schedule
    from ilp_parallel.solvers.outcome import Outcome
    from ilp_parallel.specs.cluster import ClusterSpec
    from ilp_parallel.specs.job import JobSpec
    from ilp_parallel.specs.model import ModelSpec

    Bound = Callable[[PipelineInstance, Tables | None], tuple[int, Multipliers] | None]

ANY_SCHEDULE: tuple[Schedule, ...] = ("1f1b", "interleaved", "gpipe")


class DisagreementError(Exception):
    """The integer program and the dynamic program differ: a fault of this package."""


@dataclass(frozen=True, slots=True)
class SearchProgress:
    """Where the search stands; values in ticks."""

    elapsed_s: float
    incumbent: int | None
    bound: int | None
    open_configurations: int


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """How to search. ``None`` means no limit."""

    space: str = "mixed"
    schedules: tuple[Schedule, ...] = ANY_SCHEDULE
    pins: Pins = field(default_factory=Pins)
    formulation: str = "interval"
    solver: str = "highs"
    time_limit_s: float | None = None
    seed: int = 0
    threads: int = 1
    progress: Callable[[SearchProgress], None] | None = None
    cancelled: Callable[[], bool] | None = None


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The outcome of a search, certificate included. Ticks are those of ``job.tick_ns``."""

    certificate: Certificate
    plan: Plan | None
    instance: PipelineInstance | None  # of the chosen configuration, folded
    dp_ticks: int | None  # dynamic program over every configuration not closed by a bound
    rounding_floor_ticks: int | None  # no real-valued plan is faster
    solver: str
    solver_version: str | None
    search_s: float

    @property
    def status(self) -> SearchStatus:
        """Coarse status."""
        return self.certificate.status

    @property
    def confirmed(self) -> bool:
        """Whether the integer program found the optimum of the dynamic program too."""
        solved = [fate for fate in self.certificate.fates if isinstance(fate, Solved)]
        return any(len(fate.by) > 1 for fate in solved if fate.numerator is not None)

    @property
    def fates(self) -> dict[str, int]:
        """Number of configurations by fate; refusals count as ``rule``."""
        counts = {"rule": len(self.certificate.refusals)}
        for fate in self.certificate.fates:
            kind = str(fate.__struct_config__.tag)
            counts[kind] = counts.get(kind, 0) + 1
        return counts


def search(
    model: ModelSpec,
    cluster: ClusterSpec,
    job: JobSpec,
    options: SearchOptions,
    costs: CostModel | None = None,
) -> SearchResult:
    """Prove the optimal plan of a space, or that there is none.

    ``costs`` may be a cost model of the same specs, to share what it remembers.

    Raises
    ------
    InputError
        Unknown space, formulation or solver, a formulation that does not apply, or rules and
        pins that leave no configuration.
    DisagreementError
        If the two exact methods differ.
    """
    return _Search(costs or CostModel(model, cluster, job), options).run()


@dataclass(slots=True)
class _Candidate:
    """A configuration that is not closed yet."""

    index: int
    configuration: Configuration
    bound: int
    floored: bool = False  # whether all that decides its work was priced
    instance: PipelineInstance | None = None  # built when it is refined for the first time
    multipliers: Multipliers | None = None
    untried: list[Bound] = field(
        default_factory=lambda: [best_lagrangian_bound, best_combined_bound]
    )


class _Search:
    """State of one search."""

    def __init__(self, costs: CostModel, options: SearchOptions) -> None:
        self._started = time.perf_counter()
        self._costs = costs
        self._options = options
        self._space = get_space(options.space)
        self._builder = InstanceBuilder(costs, self._space, options.pins)
        self._formulation = get_formulation(options.formulation)
        self._solver = get_solver(options.solver)
        self._refusals: list[Refusal] = []
        self._fates: dict[int, Fate] = {}
        self._queue: list[tuple[int, int, _Candidate]] = []
        self._incumbent: tuple[int, _Candidate, Optimum] | None = None
        self._solved: list[tuple[_Candidate, PipelineInstance]] = []
        self._rounding: dict[int, int] = {}
        self._version: str | None = None

    def run(self) -> SearchResult:
        """Bound all, then refine best-first."""
        self._bound_everything()
        while self._queue and not self._stopped():
            bound, _, candidate = heapq.heappop(self._queue)
            self._report(bound)
            if self._incumbent is not None and bound >= self._incumbent[0]:
                self._close(candidate)
            elif not candidate.floored:
                self._price(candidate)
                self._push(candidate)
            elif candidate.instance is None:
                self._build(candidate)
                self._push(candidate)
            else:
                self._refine(candidate, candidate.instance)
        self._confirm()
        return self._result()

    # --- bounding ----------------------------------------------------------------------------

    def _bound_everything(self) -> None:
        costs, options = self._costs, self._options
        found = enumerate_configurations(
            costs.model, costs.cluster, costs.job, self._space, options.pins, options.schedules
        )
        index = 0
        for configuration in found:
            if isinstance(configuration, Refusal):
                self._refusals.append(configuration)
                continue
            self._bound(index, configuration)
            index += 1
        if index == 0:
            raise no_configuration(self._refusals, options.pins)

    def _bound(self, index: int, configuration: Configuration) -> None:
        bound = self._builder.block_floor(configuration)
        if bound is None:
            self._fates[index] = NoStrategy(configuration.name)
            return
        self._rounding[index] = self._builder.rounding_ticks(configuration)
        self._push(_Candidate(index, configuration, bound))

    def _price(self, candidate: _Candidate) -> None:
        """Let the bound by all of the work replace the one by the work of blocks."""
        bound = self._builder.work_floor(candidate.configuration)
        candidate.bound = candidate.bound if bound is None else bound
        candidate.floored = True

    def _build(self, candidate: _Candidate) -> None:
        """Build the instance, and let its work bound replace the quick one."""
        instance = candidate.instance = self._builder.build(candidate.configuration)
        candidate.bound = instance.objective.ticks(work_bound(instance))

    def _refine(self, candidate: _Candidate, instance: PipelineInstance) -> None:
        """Refute the configuration, raise its bound, or solve it."""
        tables = tables_of(instance) if candidate.untried else None
        if candidate.multipliers is None and self._refuted_by_memory(candidate, instance, tables):
            return
        if self._tighten(candidate, instance, tables):
            self._push(candidate)
        else:
            self._solve(candidate, instance)

    def _refuted_by_memory(
        self, candidate: _Candidate, instance: PipelineInstance, tables: Tables | None
    ) -> bool:
        """Whether the layers cannot fit; looked at only where the work alone does not close."""
        shortfall = memory_shortfall(instance, tables)
        if shortfall is None:
            return False
        name = candidate.configuration.name
        self._fates[candidate.index] = TooLittleMemory(name, shortfall.placeable)
        return True

    def _push(self, candidate: _Candidate) -> None:
        heapq.heappush(self._queue, (candidate.bound, candidate.index, candidate))

    def _tighten(
        self, candidate: _Candidate, instance: PipelineInstance, tables: Tables | None
    ) -> bool:
        """Try multipliers not tried before; false if the bound does not rise."""
        while candidate.untried:
            found = candidate.untried.pop(0)(instance, tables)
            if found is None:
                continue
            bound = instance.objective.ticks(found[0])
            if bound > candidate.bound:
                candidate.bound, candidate.multipliers = bound, found[1]
                return True
        return False

    def _close(self, candidate: _Candidate) -> None:
        name = candidate.configuration.name
        fate = closed_by(name, candidate.bound, candidate.multipliers)
        self._fates[candidate.index] = fate

    # --- solving -----------------------------------------------------------------------------

    def _solve(self, candidate: _Candidate, instance: PipelineInstance) -> None:
        """Solve one configuration, looking only for plans better than the incumbent."""
        optimum = two_level_dp(instance, self._cutoff(instance))
        self._solved.append((candidate, instance))
        if optimum is not None:
            self._incumbent = instance.objective.ticks(optimum.numerator), candidate, optimum

    def _cutoff(self, instance: PipelineInstance) -> int | None:
        """Numerators from here on are no better than the incumbent."""
        if self._incumbent is None:
            return None
        return (self._incumbent[0] - 1) * instance.objective.divisor + 1

    def _confirm(self) -> None:
        """Solve by the integer program what the dynamic program solved.

        Last, because with the value of the best plan as cut-off there is little left to look at:
        the program must find this value in the chosen configuration, and nothing below it in the
        others.
        """
        for candidate, instance in self._solved:
            exact, cutoff = None, self._cutoff(instance)
            if self._incumbent is not None and self._incumbent[1] is candidate:
                exact = self._incumbent[2].numerator
                cutoff = exact + 1
            name, by = candidate.configuration.name, ["two_level_dp"]
            outcome = None if self._stopped() else self._solve_program(instance, cutoff)
            if outcome is not None and outcome.status in ("optimal", "infeasible"):
                by.append(f"{self._formulation.name}/{outcome.solver}")
                claimed = outcome.objective if outcome.status == "optimal" else None
                if claimed is not None and cutoff is not None and claimed >= cutoff:
                    claimed = None
                if claimed != exact:
                    raise DisagreementError(
                        f"{name}: {self._formulation.name} on {outcome.solver} says {claimed}, "
                        f"the dynamic program says {exact} (numerators)"
                    )
            self._fates[candidate.index] = Solved(name, exact, cutoff, tuple(by))

    def _solve_program(self, instance: PipelineInstance, cutoff: int | None) -> Outcome:
        require_applicable(self._formulation, instance)
        program = self._formulation.build(instance, cutoff)
        options = SolveOptions(
            time_limit_s=self._remaining_s(),
            seed=self._options.seed,
            threads=self._options.threads,
            cancelled=self._options.cancelled if self._solver.features.cancellation else None,
        )
        outcome = self._solver(program, options)
        self._version = outcome.version
        if outcome.values is not None:
            solution = self._formulation.decode(instance, outcome.values, cutoff)
            evaluation = evaluate(instance, solution)
            if not evaluation.feasible or evaluation.numerator != outcome.objective:
                raise DisagreementError(
                    f"{outcome.solver} returned a plan that its evaluation does not confirm"
                )
        return outcome

    # --- limits, progress, result ------------------------------------------------------------

    def _elapsed_s(self) -> float:
        return time.perf_counter() - self._started

    def _remaining_s(self) -> float | None:
        limit = self._options.time_limit_s
        return None if limit is None else max(0.0, limit - self._elapsed_s())

    def _stopped(self) -> bool:
        remaining = self._remaining_s()
        if remaining is not None and remaining <= 0:
            return True
        return self._options.cancelled is not None and self._options.cancelled()

    def _report(self, bound: int) -> None:
        if self._options.progress is not None:
            incumbent = self._incumbent and self._incumbent[0]
            self._options.progress(
                SearchProgress(self._elapsed_s(), incumbent, bound, len(self._queue) + 1)
            )

    def _result(self) -> SearchResult:
        for bound, _, candidate in self._queue:
            name = candidate.configuration.name
            self._fates[candidate.index] = Open(name, bound, candidate.multipliers)
        open_bound = min((bound for bound, _, _ in self._queue), default=None)
        certificate = self._certificate(open_bound)
        plan = instance = None
        if self._incumbent is not None:
            _, candidate, optimum = self._incumbent
            instance = candidate.instance
            plan = plan_of(self._costs, self._space, candidate.configuration, optimum.solution)
        return SearchResult(
            certificate=certificate,
            plan=plan,
            instance=instance,
            dp_ticks=self._incumbent and self._incumbent[0],
            rounding_floor_ticks=self._rounding_floor() if plan is not None else None,
            solver=self._options.solver,
            solver_version=self._version,
            search_s=self._elapsed_s(),
        )

    def _rounding_floor(self) -> int | None:
        """Least bound of any configuration less what rounding up may have added to it."""
        floors = []
        for index, rounding in self._rounding.items():
            fate = self._fates[index]
            bound = self._incumbent[0] if self._incumbent and isinstance(fate, Solved) else None
            if isinstance(fate, (WorkBound, LagrangianBound, Open)):
                bound = fate.bound
            if bound is not None:
                floors.append(bound - rounding)
        return min(floors, default=None)

    def _certificate(self, open_bound: int | None) -> Certificate:
        objective = chosen = None
        if self._incumbent is not None:
            objective, candidate, optimum = self._incumbent
            chosen = ChosenPlan(candidate.configuration.name, optimum.solution)
        known = [value for value in (objective, open_bound) if value is not None]
        costs, options = self._costs, self._options
        return Certificate(
            model=costs.model,
            cluster=costs.cluster,
            job=costs.job,
            space=self._space.name,
            space_version=self._space.version,
            pins=options.pins,
            schedules=options.schedules,
            status=_status(objective, open_bound),
            objective_ticks=objective,
            bound_ticks=min(known, default=None),
            plan=chosen,
            refusals=tuple(self._refusals),
            fates=tuple(fate for _, fate in sorted(self._fates.items())),
        )


def _status(objective: int | None, open_bound: int | None) -> SearchStatus:
    if objective is None:
        return "infeasible" if open_bound is None else "unknown"
    return "optimal" if open_bound is None or open_bound >= objective else "feasible"
