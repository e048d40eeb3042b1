"""Independent verification of a certificate: no solver and no formulation is imported.

Everything is done again from the specs in the certificate: configurations are enumerated, instances
built, the plan evaluated chunk by chunk, every bound recomputed from its multipliers, and every
configuration that was solved is solved again by the dynamic program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from ilp_parallel.baselines.two_level_dp import two_level_dp
from ilp_parallel.bounds import lagrangian_bound, memory_shortfall, work_bound
from ilp_parallel.certificate import (
    SCHEMA,
    Certificate,
    Fate,
    LagrangianBound,
    NoStrategy,
    Open,
    Solved,
    TooLittleMemory,
    WorkBound,
)
from ilp_parallel.configuration import Configuration
from ilp_parallel.costs.model import CostModel
from ilp_parallel.instances import InstanceBuilder, fold, unfold
from ilp_parallel.problems.check import Check
from ilp_parallel.problems.pipeline import PipelineInstance, evaluate
from ilp_parallel.spaces import Refusal, enumerate_configurations, get_space
from ilp_parallel.specs.validate import check_cluster, check_job, check_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ilp_parallel.bounds import Multipliers
    from ilp_parallel.problems.pipeline import PipelineSolution

_FateType = TypeVar("_FateType")


def verify(certificate: Certificate, costs: CostModel | None = None) -> tuple[Check, ...]:
    """All checks of a certificate; it holds if every one passed.

    ``costs`` may be a cost model of the certificate's specs that another verification has used, to
    share what it remembers.

    Raises
    ------
    InputError
        If the specs inside it are not valid input.
    """
    check_model(certificate.model)
    check_cluster(certificate.cluster)
    check_job(certificate.model, certificate.cluster, certificate.job)
    if certificate.minimised == "simulated-step-time":
        from ilp_parallel.simulation.verifying import SimulatedVerification

        return tuple(SimulatedVerification(certificate, costs).checks())
    return tuple(Verification(certificate, costs).checks())


def _passed(name: str, passed: bool, slack: int = 0, unit: str = "") -> Check:
    return Check(name, passed, slack, unit)


class Verification:
    """The enumeration done again, and the checks against it, for a step time by formula.

    Another objective overrides what is enumerated, how a plan is priced, and the bounds.
    """

    def __init__(self, certificate: Certificate, costs: CostModel | None = None) -> None:
        self._certificate = certificate
        self._space = get_space(certificate.space)
        if costs is None:
            costs = CostModel(certificate.model, certificate.cluster, certificate.job)
        self._builder = InstanceBuilder(costs, self._space, certificate.pins)
        found = list(self.enumerated())
        self._refusals = tuple(item for item in found if isinstance(item, Refusal))
        self._configurations = [item for item in found if isinstance(item, Configuration)]

    def enumerated(self) -> Iterator[Configuration | Refusal]:
        """All configurations that the claim is about, and what the rules refuse."""
        c = self._certificate
        return enumerate_configurations(c.model, c.cluster, c.job, self._space, c.pins, c.schedules)

    def floors(self, configuration: Configuration) -> Iterator[int | None]:
        """Bounds that need no instance, the quickest first; None if no strategy is allowed."""
        yield self._builder.block_floor(configuration)
        yield self._builder.work_floor(configuration)

    def bound(
        self, configuration: Configuration, multipliers: Multipliers | None, claimed: int
    ) -> int:
        """The bound on the plans of a configuration, without multipliers by the work alone.

        Where there are better and quicker ones, ``claimed`` tells how far to go.

        Raises
        ------
        ValueError
            If the multipliers are not of the configuration's instance.
        """
        instance = self._builder.build(configuration)
        if multipliers is None:
            return instance.objective.ticks(work_bound(instance))
        return instance.objective.ticks(lagrangian_bound(instance, multipliers))

    def value(self, unfolded: PipelineInstance, solution: PipelineSolution) -> int:
        """What the plan costs."""
        return evaluate(unfolded, solution).objective_ticks

    def checks(self) -> Iterator[Check]:
        """Completeness first; then every fate, the plan and the claim."""
        certificate = self._certificate
        yield _passed("schema", certificate.schema == SCHEMA)
        yield _passed("space_version", certificate.space_version == self._space.version)
        yield _passed("refusals", self._refusals == certificate.refusals)
        names = [configuration.name for configuration in self._configurations]
        complete = names == [fate.configuration for fate in certificate.fates]
        yield _passed("configurations", complete, 0, "configurations")
        if not complete:
            return
        floors: list[int] = []
        for configuration, fate in zip(self._configurations, certificate.fates, strict=True):
            check, floor = self._fate(fate, configuration)
            if floor is not None:
                floors.append(floor)
            yield check
        yield from self._plan()
        yield from self._claim(min(floors, default=None))

    # --- fates -------------------------------------------------------------------------------

    def _fate(self, fate: Fate, configuration: Configuration) -> tuple[Check, int | None]:
        """The check of one fate and the least objective (ticks) it leaves to its configuration."""
        name = f"fate[{fate.configuration}]"
        if isinstance(fate, NoStrategy):
            return _passed(name, next(self.floors(configuration)) is None), None
        if isinstance(fate, WorkBound) and fate.bound in self.floors(configuration):
            return _passed(name, self._closes(fate.bound)), fate.bound
        if (
            isinstance(fate, Open)
            and fate.multipliers is None
            and fate.bound in self.floors(configuration)
        ):
            return _passed(name, True), fate.bound
        kinds: tuple[tuple[type[Fate], Callable[..., tuple[bool, int | None]]], ...] = (
            (TooLittleMemory, self._too_little_memory),
            (WorkBound, self._work_bound),
            (LagrangianBound, self._lagrangian_bound),
            (Solved, self._solved),
            (Open, self._open),
        )
        judge = next(judge for kind, judge in kinds if isinstance(fate, kind))
        passed, floor = judge(fate, configuration)
        return _passed(name, passed), floor

    def _too_little_memory(
        self, fate: TooLittleMemory, configuration: Configuration
    ) -> tuple[bool, None]:
        shortfall = memory_shortfall(self._builder.build(configuration))
        return shortfall is not None and shortfall.placeable == fate.placeable, None

    def _work_bound(self, fate: WorkBound, configuration: Configuration) -> tuple[bool, int]:
        bound = self.bound(configuration, None, fate.bound)
        return bound == fate.bound and self._closes(bound), bound

    def _lagrangian_bound(
        self, fate: LagrangianBound, configuration: Configuration
    ) -> tuple[bool, int | None]:
        try:
            bound = self.bound(configuration, fate.multipliers, fate.bound)
        except ValueError:
            return False, None
        return bound == fate.bound and self._closes(bound), bound

    def _solved(self, fate: Solved, configuration: Configuration) -> tuple[bool, int | None]:
        instance = self._builder.build(configuration)
        optimum = two_level_dp(instance, fate.cutoff)
        if optimum is None:
            below = fate.cutoff is None or self._closes(instance.objective.ticks(fate.cutoff))
            return fate.numerator is None and below, None
        value = instance.objective.ticks(optimum.numerator)
        return optimum.numerator == fate.numerator and self._closes(value), value

    def _open(self, fate: Open, configuration: Configuration) -> tuple[bool, int | None]:
        try:
            bound = self.bound(configuration, fate.multipliers, fate.bound)
        except ValueError:
            return False, None
        return bound == fate.bound, bound

    def _closes(self, bound: int) -> bool:
        """Whether a configuration with this bound has nothing better than the plan."""
        objective = self._certificate.objective_ticks
        return objective is not None and bound >= objective

    # --- plan and claim ----------------------------------------------------------------------

    def _plan(self) -> Iterator[Check]:
        """The plan, evaluated in every chunk, is feasible and has the claimed objective."""
        certificate = self._certificate
        chosen = certificate.plan
        if chosen is None:
            yield _passed("plan_absent", certificate.objective_ticks is None)
            return
        configuration = next(
            (c for c in self._configurations if c.name == chosen.configuration), None
        )
        if configuration is None:
            yield _passed("plan_configuration", False)
            return
        unfolded = self._builder.unfolded(configuration)
        try:
            solution = unfold(chosen.solution, configuration.chunks)
            evaluation = evaluate(unfolded, solution)
            folded = fold(unfolded) if configuration.chunks > 1 else unfolded
            numerator = evaluate(folded, chosen.solution).numerator
        except ValueError:
            yield _passed("plan_shape", False)
            return
        yield from evaluation.checks
        yield _passed("plan_folding", numerator == evaluation.numerator)
        claimed = certificate.objective_ticks
        slack = 0 if claimed is None else claimed - self.value(unfolded, solution)
        yield _passed("plan_objective", claimed is not None and slack == 0, slack, "ticks")

    def _claim(self, floor: int | None) -> Iterator[Check]:
        """Status and bound are what the fates add up to."""
        certificate = self._certificate
        objective, bound = certificate.objective_ticks, certificate.bound_ticks
        is_open = any(isinstance(fate, Open) for fate in certificate.fates)
        known = [value for value in (objective, floor) if value is not None]
        yield _passed("bound", bound == min(known, default=None), 0, "ticks")
        if certificate.status == "optimal":
            yield _passed("optimal", objective is not None and bound == objective)
        elif certificate.status == "infeasible":
            yield _passed("infeasible", objective is None and not is_open and floor is None)
        elif certificate.status == "feasible":
            yield _passed("feasible", objective is not None and is_open)
        else:
            yield _passed("unknown", objective is None and is_open)
