"""The smallest change of one requirement that makes an infeasible job feasible, proven both ways.

Only a requirement whose surrender makes the job feasible is worth relaxing. Every answer carries a
plan that fits; what lies between the answer and what was asked for is refuted, value by value, or
by bisection where fitting is monotone:

* memory per device: more never hurts;
* sequence length, for one context degree and among multiples that all tensor degrees divide: there
  the configurations are the same, and every term of their memory grows or stays with the length.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, get_args

from ilp_parallel.configuration import RECOMPUTE_SETS, ZERO_VARIANTS, Configuration
from ilp_parallel.costs.model import CostModel
from ilp_parallel.diagnosis.feasibility import fitting_plan, smallest_cluster
from ilp_parallel.diagnosis.requirements import (
    LARGEST_SPACE,
    MOST_NODES,
    divisors,
    shortest_sequences,
    with_batch,
    with_fixed,
    with_memory,
    with_sequence,
)
from ilp_parallel.problems.pipeline import Schedule
from ilp_parallel.spaces import SPACES, Pins
from ilp_parallel.specs.readers import cluster_names, load_cluster

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ilp_parallel.diagnosis.feasibility import Question
    from ilp_parallel.diagnosis.requirements import Relaxer, Requirement
    from ilp_parallel.plan import Plan

_GIB = 1 << 30
_NEAR_BATCHES = 64
"""How far from the batch asked for all others are tried, and beyond it its divisors (chosen)."""

_MOST_MEMORY_GIB = 4096
"""Largest memory of a device tried (chosen)."""


@dataclass(frozen=True, slots=True)
class Relaxation:
    """A requirement changed as little as makes a plan fit; ``plan`` is None where nothing does.

    ``refuted`` says what lies between and was proven not to do.
    """

    requirement: Requirement
    change: str  # what would do, in the user's words
    refuted: str
    plan: Plan | None


def relaxations(
    relaxer: Relaxer, requirements: Iterable[Requirement], time_limit_s: float = 3.0
) -> Iterator[Relaxation]:
    """The smallest changes of each requirement.

    Parameters
    ----------
    relaxer
        Knows the job.
    requirements
        Those whose surrender suffices, see
        :func:`~ilp_parallel.diagnosis.requirements.corrections`.
    time_limit_s
        For each search over values.
    """
    for requirement in requirements:
        for relax in _BY_KIND[requirement.kind]:
            found = relax(relaxer, requirement, time_limit_s)
            if found is not None:
                yield found


def _more_nodes(relaxer: Relaxer, requirement: Requirement, limit_s: float) -> Relaxation:
    q = relaxer.question
    now, node = q.cluster.nodes, q.cluster.devices_per_node
    found = smallest_cluster(q, least_nodes=now + 1, most_nodes=MOST_NODES, time_limit_s=limit_s)
    last = now + len(found.refuted)
    between = f"{now + 1} to {last} nodes" if last > now + 1 else f"{last} nodes"
    refuted = between if found.refuted else f"{now} nodes"
    if found.smallest is None:
        return Relaxation(requirement, f"more nodes ({found.stopped})", refuted, None)
    change = f"{found.smallest} nodes ({found.smallest * node} devices)"
    return Relaxation(requirement, change, refuted, found.plan)


def _fewer_nodes(relaxer: Relaxer, requirement: Requirement, limit_s: float) -> Relaxation | None:
    """Fewer nodes help where degrees must divide the devices."""
    q = relaxer.question
    tried = list(range(q.cluster.nodes - 1, 0, -1))
    found = _first(((n, q.on_nodes(n)) for n in tried), limit_s)
    if found is None:
        return None
    nodes, plan, refuted = found
    change = f"{nodes} nodes ({nodes * q.cluster.devices_per_node} devices)"
    return Relaxation(requirement, change, _listed(refuted, "nodes"), plan)


def _more_memory(relaxer: Relaxer, requirement: Requirement, limit_s: float) -> Relaxation | None:
    """The least whole GiB, by bisection: more memory never hurts."""
    del limit_s
    q = relaxer.question
    low = q.cluster.device.memory_bytes // _GIB  # does not do
    high = low + 1
    while fitting_plan(with_memory(q, high * _GIB)) is None:
        low, high = high, 2 * high
        if high > 2 * _MOST_MEMORY_GIB:
            return None
    low, high = _bisect(lambda gib: fitting_plan(with_memory(q, gib * _GIB)) is not None, low, high)
    plan = fitting_plan(with_memory(q, high * _GIB))
    refuted = f"{low} GiB" if low * _GIB > q.cluster.device.memory_bytes else requirement.text
    return Relaxation(requirement, f"{high} GiB per device", refuted, plan)


def _larger_device(relaxer: Relaxer, requirement: Requirement, limit_s: float) -> Relaxation | None:
    """The known device with the least memory that suffices, all else as it is."""
    q = relaxer.question
    known = {load_cluster(name).device.memory_bytes: name for name in cluster_names()}
    larger = sorted(size for size in known if size > q.cluster.device.memory_bytes)
    found = _first(((known[size], with_memory(q, size)) for size in larger), limit_s)
    if found is None:
        return None
    name, plan, refuted = found
    size = plan.cluster.device.memory_bytes / _GIB
    nearer = _listed(refuted, "memory") if refuted else requirement.text
    return Relaxation(requirement, f"memory of {name}: {size:.1f} GiB", nearer, plan)


def _shorter_sequence(relaxer: Relaxer, requirement: Requirement, limit_s: float) -> Relaxation:
    """The longest sequence that fits, by bisection for every context degree."""
    del limit_s
    q, granule = relaxer.question, relaxer.granule
    longest, asked = 0, q.job.sequence_length
    for context, shortest in shortest_sequences(q).items():
        ring, step = with_fixed(q, cp=context), granule * context

        def too_long(steps: int, ring: Question = ring, step: int = step) -> bool:
            return fitting_plan(with_sequence(ring, steps * step)) is None

        low = shortest // step
        if not too_long(low):
            low, _ = _bisect(too_long, low, -(-asked // step))
            longest = max(longest, low * step)
    if not longest:
        least = min(shortest_sequences(q).values(), default=asked)
        return Relaxation(requirement, "no shorter sequence", f"down to {least} tokens", None)
    while longest + granule < asked and fitting_plan(with_sequence(q, longest + granule)):
        longest += granule
    refuted = min(longest + granule, asked)
    plan = fitting_plan(with_sequence(q, longest))
    return Relaxation(requirement, f"--seq {longest}", f"--seq {refuted}", plan)


def _other_batch(relaxer: Relaxer, requirement: Requirement, limit_s: float) -> Relaxation | None:
    """The nearest batch, smaller ones first; beyond some distance the largest divisor."""
    q = relaxer.question
    asked = q.job.global_batch
    steps = range(1, _NEAR_BATCHES + 1)
    near = [batch for n in steps for batch in (asked - n, asked + n) if batch > 0]
    far = [batch for batch in reversed(divisors(asked)) if batch < asked - _NEAR_BATCHES]
    found = _first(((batch, with_batch(q, batch)) for batch in (*near, *far)), limit_s)
    if found is None:
        return None
    batch, plan, refuted = found
    nearer = f"all {len(refuted)} nearer batches tried" if refuted else f"--batch {asked}"
    if len(refuted) >= len(near):
        nearer = f"all within {_NEAR_BATCHES} of {asked}, and its divisors above"
    return Relaxation(requirement, f"--batch {batch}", nearer, plan)


def _other_value(relaxer: Relaxer, requirement: Requirement, limit_s: float) -> Relaxation | None:
    """The nearest other value of a fixed decision."""
    q, key = relaxer.question, requirement.key
    values = _nearest_values(q, key, q.pins.fixed[key])
    allowed = [value for value in values if value not in q.pins.forbidden.get(key, ())]
    found = _first(((value, with_fixed(q, **{key: value})) for value in allowed), limit_s)
    if found is None:
        return None
    value, plan, refuted = found
    nearer = _listed([f"{key}={tried}" for tried in refuted], "") or requirement.text
    return Relaxation(requirement, f"--fix {key}={value}", nearer, plan)


def _given_up(relaxer: Relaxer, requirement: Requirement, limit_s: float) -> Relaxation | None:
    """The requirement dropped altogether."""
    del limit_s
    q = relaxer.question
    if requirement.kind == "space":
        question, change = replace(q, space=SPACES[LARGEST_SPACE]), f"--space {LARGEST_SPACE}"
    elif requirement.kind == "schedule":
        question, change = replace(q, schedules=get_args(Schedule)), "any schedule"
    else:
        kept = [v for v in q.pins.forbidden[requirement.key] if v != requirement.value]
        forbidden = {**q.pins.forbidden, requirement.key: tuple(kept)}
        question = replace(q, pins=Pins(q.pins.fixed, forbidden))
        change = f"allow {requirement.key}={requirement.value}"
    plan = fitting_plan(question)
    return None if plan is None else Relaxation(requirement, change, requirement.text, plan)


_Relax = Callable[["Relaxer", "Requirement", float], "Relaxation | None"]

_BY_KIND: dict[str, tuple[_Relax, ...]] = {
    "fix": (_other_value,),
    "forbid": (_given_up,),
    "schedule": (_given_up,),
    "space": (_given_up,),
    "batch": (_other_batch,),
    "sequence": (_shorter_sequence,),
    "memory": (_more_memory, _larger_device),
    "devices": (_more_nodes, _fewer_nodes),
}


def _first(
    tried: Iterable[tuple[int | str, Question]], limit_s: float
) -> tuple[int | str, Plan, list[int | str]] | None:
    """The first value with a plan, that plan, and the values refuted before it."""
    started = time.perf_counter()
    refuted: list[int | str] = []
    for value, question in tried:
        plan = fitting_plan(question)
        if plan is not None:
            return value, plan, refuted
        refuted.append(value)
        if time.perf_counter() - started > limit_s:
            return None
    return None


def _bisect(holds: Callable[[int], bool], low: int, high: int) -> tuple[int, int]:
    """Adjacent numbers between which a monotone property turns true; it holds at ``high``."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return low, high


def _listed(values: list[int | str], what: str) -> str:
    shown = [str(value) for value in values]
    if len(shown) > 4:
        shown = [*shown[:2], "...", shown[-1]]
    return f"{', '.join(shown)} {what}".strip() if shown else ""


def _nearest_values(question: Question, key: str, asked: tuple[str, ...]) -> list[str]:
    """Other values of a decision: numbers by their ratio, ZeRO and recomputation by memory."""
    others: list[str]
    if key == "recompute":
        names = _recomputations(question)
        start = min(names.index(value) for value in asked)
        others = [*names[start + 1 :], *reversed(names[:start])]
    elif key == "zero":
        names = ["0", "1", "2", "3"]
        start = min(names.index(value.partition("-")[0]) for value in asked)
        others = [*names[start + 1 :], *ZERO_VARIANTS[2:], *reversed(names[:start])]
    elif key in ("sp", "schedule"):
        others = list(("on", "off") if key == "sp" else get_args(Schedule))
    else:
        first = int(asked[0])
        total = question.cluster.devices * question.job.global_batch
        numbers = divisors(total) if key not in ("vpp",) else range(1, question.model.layers + 1)
        others = [str(n) for n in sorted(numbers, key=lambda n: (abs(math.log(n / first)), n))]
    return [value for value in dict.fromkeys(others) if value not in asked]


def _recomputations(question: Question) -> list[str]:
    """Module sets from what stores most to what stores least."""
    q = question
    costs = CostModel(q.model, q.cluster, q.job)
    kept = costs.layer_part(Configuration(1, 1, 1, 1, 1, 1, False, "1f1b")).activation_bytes
    order = sorted(range(len(RECOMPUTE_SETS)), key=lambda i: -float(kept[i]))
    return ["+".join(RECOMPUTE_SETS[i]) or "none" for i in order]
