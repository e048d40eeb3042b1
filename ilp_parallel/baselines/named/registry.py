"""All heuristics by name, those of :mod:`ilp_parallel.baselines.heuristics` included."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ilp_parallel.baselines.heuristics import HEURISTICS, HeuristicResult
from ilp_parallel.baselines.named.alpa import alpa_dp
from ilp_parallel.baselines.named.galvatron import galvatron_dp
from ilp_parallel.baselines.named.greedy import greedy
from ilp_parallel.baselines.named.mcts import mcts
from ilp_parallel.baselines.named.merak import merak
from ilp_parallel.baselines.named.piper import piper_dp
from ilp_parallel.baselines.named.rannc import rannc
from ilp_parallel.baselines.named.sampling import annealing, mcmc, random_plans
from ilp_parallel.baselines.named.workbench import Effort
from ilp_parallel.errors import InputError
from ilp_parallel.specs.documents import did_you_mean, shown

if TYPE_CHECKING:
    from ilp_parallel.costs.model import CostModel
    from ilp_parallel.plan import Plan
    from ilp_parallel.specs.model import ModelSpec

Method = Callable[["CostModel", Effort], "tuple[Plan, int] | None"]


@dataclass(frozen=True, slots=True)
class NamedHeuristic:
    """A heuristic, where it comes from, and whether it draws random numbers.

    ``alike`` says that its source knows layers of one kind only.
    """

    name: str
    source: str
    method: Method
    random: bool = False
    alike: bool = True

    def applies(self, model: ModelSpec) -> bool:
        """Whether it knows what to do with the blocks of a model."""
        return not self.alike or model.kind_count == 1


def _without_effort(name: str) -> Method:
    """A heuristic that always runs to its end."""
    return lambda costs, effort: HEURISTICS[name](costs)


NAMED: dict[str, NamedHeuristic] = {
    heuristic.name: heuristic
    for heuristic in (
        NamedHeuristic(
            "megatron_rules",
            "Narayanan et al., SC'21",
            _without_effort("megatron_rules"),
            alike=False,
        ),
        NamedHeuristic(
            "uniform_sweep",
            "exhaustive sweep of space uniform",
            _without_effort("uniform_sweep"),
            alike=False,
        ),
        NamedHeuristic("alpa_dp", "Zheng et al., OSDI'22", alpa_dp),
        NamedHeuristic("galvatron_dp", "Miao et al., PVLDB 2022", galvatron_dp),
        NamedHeuristic("merak", "Lai et al., TPDS 2023", merak),
        NamedHeuristic("rannc", "Tanaka et al., IPDPS'21", rannc),
        NamedHeuristic("piper_dp", "Tarnawski et al., NeurIPS'21", piper_dp),
        NamedHeuristic("greedy", "no source", greedy),
        NamedHeuristic("random", "no source", random_plans, random=True),
        NamedHeuristic("annealing", "Kirkpatrick et al., Science 1983", annealing, random=True),
        NamedHeuristic("mcmc", "Jia et al., MLSys'19 (FlexFlow)", mcmc, random=True),
        NamedHeuristic("mcts", "Schaarschmidt et al., 2021 (Automap)", mcts, random=True),
    )
}
"""All heuristics by name, in the order in which comparisons show them."""


def get_heuristics(names: str | None) -> tuple[str, ...]:
    """The names in a comma-separated list, each once; all for None.

    Raises
    ------
    InputError
        ``UNKNOWN_HEURISTIC``.
    """
    if names is None:
        return tuple(NAMED)
    wanted = [name.strip() for name in names.split(",")]
    for name in wanted:
        if name not in NAMED:
            fix = did_you_mean(name, NAMED, f"use some of {', '.join(NAMED)}")
            raise InputError("UNKNOWN_HEURISTIC", f"no heuristic {shown(name)}", fix)
    return tuple(dict.fromkeys(wanted))


def run_named(name: str, costs: CostModel, effort: Effort) -> HeuristicResult:
    """Run a heuristic and time it.

    Raises
    ------
    InputError
        ``LAYERS_DIFFER`` if it does not apply to the model.
    """
    if not NAMED[name].applies(costs.model):
        raise InputError(
            "LAYERS_DIFFER",
            f"{name} knows layers of one kind only, {shown(costs.model.name)} has "
            f"{costs.model.kind_count}",
            "use megatron_rules or uniform_sweep",
        )
    started = time.perf_counter()
    found = NAMED[name].method(costs, effort)
    seconds = time.perf_counter() - started
    plan, ticks = found if found is not None else (None, None)
    return HeuristicResult(name, plan, ticks, seconds)
