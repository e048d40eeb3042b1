"""The smallest change that mends a configuration: the fewest decisions, proven by trying all.

A decision is what a user sets: pp, tp, cp, mbs, vpp, sp, schedule, zero, recompute, stages. The
data degree and the number of microbatches follow from devices and batch; stages that no longer add
up become nearly even. All single changes are tried, then all pairs; among the fewest changes the
fastest wins. The job (model, batch, sequence, devices) is never changed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from ilp_parallel.baselines.two_level_dp import two_level_dp
from ilp_parallel.configuration import (
    RECOMPUTE_SETS,
    ZERO_VARIANTS,
    Configuration,
    Strategy,
    Zero,
)
from ilp_parallel.costs.model import CostModel
from ilp_parallel.diagnosis.requirements import divisors
from ilp_parallel.errors import InputError
from ilp_parallel.instances import InstanceBuilder
from ilp_parallel.plan import Plan
from ilp_parallel.plan_files import check_plan
from ilp_parallel.problems.pipeline import PipelineInstance, objective_numerator
from ilp_parallel.rules import CONTEXT_TOKENS
from ilp_parallel.spaces import Pins, get_space

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ilp_parallel.jobs import CompleteJob
    from ilp_parallel.problems.pipeline import IntArray, Schedule

_MOST_MICROBATCH = 64
"""Largest sequences per rank and microbatch tried (chosen)."""

Modules = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Decisions:
    """What a user decides. ``zero`` and ``recompute`` have one entry, or one per layer.

    With ``block`` the first layers of every virtual stage are recomputed in full and ``recompute``
    holds for the others. ``stages`` are layers per virtual stage, or None for nearly even ones.
    """

    pp: int
    tp: int
    cp: int
    mbs: int
    vpp: int
    sp: bool
    schedule: Schedule  # without chunks: several chunks are always interleaved
    zero: tuple[Zero, ...]
    recompute: tuple[Modules, ...]
    block: int = 0
    stages: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """One decision, as it is and as it would be."""

    key: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Mend:
    """A plan that is valid and fits, with the fewest changes; seconds of its step."""

    plan: Plan
    changes: tuple[Change, ...]
    step_time_s: float


@dataclass(frozen=True, slots=True)
class Mending:
    """What was tried: numbers of candidates and of those that fit, by number of changes."""

    mend: Mend | None
    tried: tuple[int, ...]
    fitting: tuple[int, ...]
    rejected: int  # fitting, faster than the mend, but against the rules


def decisions_of_plan(plan: Plan) -> Decisions:
    """The decisions behind a plan."""
    g = plan.configuration
    zeros = tuple(strategy.zero for strategy in plan.strategies)
    recompute = tuple(strategy.recompute for strategy in plan.strategies)
    even = _even(plan.model.layers, len(plan.sizes))
    found = Decisions(
        pp=g.pipeline,
        tp=g.tensor,
        cp=g.context,
        mbs=g.microbatch,
        vpp=g.chunks,
        sp=g.sequence_parallel,
        schedule="1f1b" if g.schedule == "interleaved" else g.schedule,
        zero=zeros[:1] if len(set(zeros)) == 1 else zeros,
        recompute=recompute[:1] if len(set(recompute)) == 1 else recompute,
        stages=None if plan.sizes == even else plan.sizes,
    )
    if set(recompute) == {(), ("full",)}:
        for block in range(1, max(plan.sizes)):
            if _blocks(plan.sizes, block, ()) == recompute:
                return replace(found, recompute=((),), block=block)
    return found


def plan_of_decisions(job: CompleteJob, decided: Decisions) -> Plan | None:
    """The plan that decisions make on all devices; None where they contradict the job."""
    d, model = decided, job.model
    if _contradicts(job, d):
        return None
    data, stages = job.cluster.devices // (d.pp * d.tp * d.cp), d.pp * d.vpp
    sizes = d.stages
    if sizes is None or len(sizes) != stages or sum(sizes) != model.layers:
        sizes = _even(model.layers, stages)
    zeros: tuple[Zero, ...] = d.zero if data * d.cp > 1 else ("0",)
    recompute = d.recompute * model.layers if len(d.recompute) == 1 else d.recompute
    if d.block:
        recompute = _blocks(sizes, d.block, d.recompute[0])
    rows = zip(zeros * model.layers if len(zeros) == 1 else zeros, recompute, strict=True)
    plan = Plan(
        model=model,
        cluster=job.cluster,
        job=job.job,
        space="given",
        configuration=Configuration(
            pipeline=d.pp,
            tensor=d.tp,
            data=data,
            microbatch=d.mbs,
            microbatches=job.job.global_batch // (data * d.mbs),
            chunks=d.vpp,
            sequence_parallel=d.sp,
            schedule="interleaved" if d.vpp > 1 else d.schedule,
            context=d.cp,
        ),
        sizes=sizes,
        strategies=tuple(Strategy(zero, modules) for zero, modules in rows),
    )
    try:
        check_plan(plan)
    except InputError:
        return None
    return plan


def _contradicts(job: CompleteJob, d: Decisions) -> bool:
    """Whether something does not divide what it must, or crosses a node."""
    model, node, length = job.model, job.cluster.devices_per_node, job.job.sequence_length
    data, left = divmod(job.cluster.devices, d.pp * d.tp * d.cp)
    share = data * d.mbs
    return bool(
        left
        or share == 0
        or job.job.global_batch % share
        or d.pp * d.vpp > model.layers
        or (d.cp > 1 and length % (2 * d.cp))
        or (model.kv_heads % d.tp and d.tp % model.kv_heads)
        or model.ffn_hidden % d.tp
        or (d.tp > node and d.tp % node)
        or (d.sp and (d.tp == 1 or length // d.cp % d.tp))
        or not {len(d.zero), len(d.recompute)} <= {1, model.layers}
    )


def smallest_change(
    job: CompleteJob, decided: Decisions, accepts: Callable[[Plan], bool]
) -> Mending:
    """The fastest plan that fits and is accepted, of those with the fewest changes, at most two.

    Parameters
    ----------
    job
        What stays as it is.
    decided
        The configuration to mend; if nothing is wrong with its decisions no change is the answer.
    accepts
        Whether a plan keeps the rules it must keep.
    """
    pricer, tried, fitting, rejected = _Pricer(job), [], [], 0
    singles = list(_single_changes(job, decided))
    levels: tuple[Iterator[tuple[tuple[str, object], ...]], ...] = (
        iter([()]),
        ((change,) for change in singles),
        ((a, b) for a, b in combinations(singles, 2) if a[0] != b[0]),
    )
    for level in levels:
        count = 0
        priced: list[tuple[int, Plan, int, tuple[tuple[str, object], ...]]] = []
        for changes in level:
            count += 1
            found = pricer.price(_changed(decided, changes))
            if found is not None:
                priced.append((*found, len(priced), changes))
        tried.append(count)
        fitting.append(len(priced))
        for ticks, plan, _, changes in sorted(priced, key=lambda entry: (entry[0], entry[2])):
            if not accepts(plan):
                rejected += 1
                continue
            after = _changed(decided, changes)
            shown = tuple(_change(decided, after, key, plan) for key, _ in changes)
            mend = Mend(plan, shown, ticks * job.job.tick_ns * 1e-9)
            return Mending(mend, tuple(tried), tuple(fitting), rejected)
    return Mending(None, tuple(tried), tuple(fitting), rejected)


def _single_changes(job: CompleteJob, decided: Decisions) -> Iterator[tuple[str, object]]:
    """Every other value of every decision; ``stages`` means the best ones for the rest."""
    layers, node = job.model.layers, job.cluster.devices_per_node
    length = job.job.sequence_length
    values: dict[str, list[object]] = {
        "pp": [p for p in divisors(job.cluster.devices) if p <= layers],
        "tp": list(divisors(node)),
        "cp": [1 << i for i in range(12) if (CONTEXT_TOKENS << i) <= length or i == 0],
        "mbs": [b for b in divisors(job.job.global_batch) if b <= _MOST_MICROBATCH],
        "vpp": sorted({*divisors(layers), *range(1, min(layers, 8) + 1)}),
        "sp": [False, True],
        "schedule": ["1f1b", "gpipe"] if decided.vpp == 1 else [],
        "zero": [(zero,) for zero in ZERO_VARIANTS],
        "recompute": [
            *(((modules,), 0) for modules in RECOMPUTE_SETS),
            *((((),), n) for n in range(1, -(-layers // max(1, decided.pp * decided.vpp)))),
        ],
        "stages": [_BEST, None],
    }
    for key, options in values.items():
        for value in options:
            if _changed(decided, ((key, value),)) != decided:
                yield key, value


_BEST = "best"


def _changed(decided: Decisions, changes: tuple[tuple[str, object], ...]) -> Decisions:
    """Decisions with some changed; the best stages are marked by no sizes at all."""
    values: dict[str, object] = {}
    for key, value in changes:
        if key == "recompute":
            values["recompute"], values["block"] = value  # type: ignore[misc]
        elif key == "stages":
            values["stages"] = () if value == _BEST else value
        else:
            values[key] = value
    if values.get("tp") == 1 and "sp" not in values:
        values["sp"] = False  # there is nothing to split
    return replace(decided, **values)  # type: ignore[arg-type]


def _change(before: Decisions, after: Decisions, key: str, plan: Plan) -> Change:
    if key == "stages":
        sizes = before.stages
        return Change(key, "even" if sizes is None else _row(sizes), _row(plan.sizes))
    return Change(key, _text(before, key), _text(after, key))


def _text(decided: Decisions, key: str) -> str:
    value = getattr(decided, key)
    if key == "sp":
        return "on" if value else "off"
    if key == "zero":
        return "/".join(dict.fromkeys(value))
    if key == "recompute":
        names = "/".join(dict.fromkeys("+".join(modules) or "none" for modules in value))
        return (
            f"full for the first {decided.block} layers of each stage" if decided.block else names
        )
    return str(value)


def _row(sizes: tuple[int, ...]) -> str:
    return ",".join(map(str, sizes))


def _even(layers: int, stages: int) -> tuple[int, ...]:
    each, extra = divmod(layers, stages)
    return tuple(each + (s < extra) for s in range(stages))


def _blocks(sizes: tuple[int, ...], block: int, rest: Modules) -> tuple[Modules, ...]:
    return tuple(("full",) if i < block else rest for size in sizes for i in range(size))


class _Pricer:
    """Ticks of plans that fit, on the integers that every search uses."""

    def __init__(self, job: CompleteJob) -> None:
        self._job = job
        self._costs = CostModel(job.model, job.cluster, job.job)
        self._builder = InstanceBuilder(self._costs, get_space("mixed"), Pins())
        self._instances: dict[Configuration, PipelineInstance] = {}
        self._index: dict[tuple[Strategy, ...], dict[Strategy, int]] = {}

    def price(self, decided: Decisions) -> tuple[int, Plan] | None:
        """Ticks and plan; None if the decisions make no plan or it does not fit."""
        best = decided.stages == ()
        plan = plan_of_decisions(self._job, replace(decided, stages=None) if best else decided)
        if plan is not None and best:
            plan = self._best_stages(plan)
        if plan is None:
            return None
        ticks = self._ticks(plan)
        return None if ticks is None else (ticks, plan)

    def _instance(self, configuration: Configuration) -> PipelineInstance:
        if configuration not in self._instances:
            self._instances[configuration] = self._builder.unfolded(configuration)
        return self._instances[configuration]

    def _strategies(self, configuration: Configuration) -> dict[Strategy, int]:
        menu = self._costs.strategies(configuration)
        if menu not in self._index:
            self._index[menu] = {strategy: k for k, strategy in enumerate(menu)}
        return self._index[menu]

    def _best_stages(self, plan: Plan) -> Plan | None:
        """The same with the optimal stages, where all layers are alike and chunks are one."""
        kinds = set(plan.strategies)
        if len(kinds) > 1 or plan.configuration.chunks > 1 or plan.configuration.pipeline == 1:
            return None
        (strategy,) = kinds
        chosen = self._strategies(plan.configuration)[strategy]
        instance = self._instance(plan.configuration)
        allowed = np.zeros_like(instance.allowed)
        allowed[0, chosen] = True
        optimum = two_level_dp(replace(instance, allowed=allowed))
        return None if optimum is None else replace(plan, sizes=optimum.solution.sizes)

    def _ticks(self, plan: Plan) -> int | None:
        instance = self._instance(plan.configuration)
        p, index = instance.stages, self._strategies(plan.configuration)
        counts: IntArray = np.zeros((instance.virtual_stages, instance.strategies), dtype=np.int64)
        layers = iter(plan.strategies)
        for j, size in enumerate(plan.sizes):
            for strategy, number in Counter(next(layers) for _ in range(size)).items():
                counts[j, index[strategy]] = number
        groups = counts.reshape(-1, p, instance.strategies)
        if not _memory_fits(instance, groups):
            return None
        device = groups.sum(axis=0)
        forward = _by_group(counts @ instance.forward_ticks[0] + instance.stage_forward_ticks, p)
        backward = _by_group(counts @ instance.backward_ticks[0] + instance.stage_backward_ticks, p)
        tail = device @ instance.tail_ticks[0] + instance.fixed_tail_ticks
        numerator = objective_numerator(
            instance.objective, tuple(forward), tuple(backward), tuple(tail.tolist())
        )
        return instance.objective.ticks(numerator)


def _by_group(values: IntArray, stages: int) -> list[int]:
    summed: list[int] = values.reshape(-1, stages).sum(axis=0).tolist()
    return summed


def _memory_fits(instance: PipelineInstance, groups: IntArray) -> bool:
    """Whether ``groups`` [chunk, device group, strategy] layers fit every device group."""
    device = groups.sum(axis=0)
    held = groups @ instance.activation_bytes[0]  # [chunk, device group]
    alive = [int((rows @ held[:, s]).max()) for s, rows in enumerate(instance.in_flight)]
    transient = np.where(device > 0, instance.transient_bytes[0], 0).max(axis=1)
    needed = device @ instance.state_bytes[0] + alive + transient + instance.fixed_bytes
    return bool((needed <= instance.capacity_bytes).all())
