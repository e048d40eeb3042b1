"""Which of a user's requirements conflict: an irreducible set, found by exact re-solves.

A requirement is one thing the user asked for. Dropping it enlarges what may be chosen:

=========  ==================================================================
fix        the decision is free
forbid     the value is allowed
schedule   any schedule
space      the largest space searched
batch      any number of sequences
sequence   any multiple of :attr:`Relaxer.granule` tokens
memory     any amount per device
devices    any number of whole nodes up to :data:`MOST_NODES`
=========  ==================================================================

A set is infeasible if no plan fits with everything else dropped. Dropping more never makes a
feasible set infeasible, so a set from which nothing can be dropped is irreducible: without any one
of its members there is a plan that fits.

What is dropped is not tried value by value where one value is the lightest. Every term of the
memory grows or stays with the sequence length and with the size of a microbatch, and
``b min(m, w)`` with the number of microbatches; the states of a shard shrink with the data degree
while everything else stays. So for every context degree the shortest sequence that allows it, the
smallest batch, and of the data degrees above one the largest decide; where the user fixed or
forbade one of those, all values are tried.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from itertools import combinations, count, product
from typing import TYPE_CHECKING, Literal

from ilp_parallel.diagnosis.feasibility import Question, fitting_plan
from ilp_parallel.rules import CONTEXT_TOKENS, context_rule
from ilp_parallel.spaces import SPACES, Pins

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ilp_parallel.problems.pipeline import Schedule

Kind = Literal["fix", "forbid", "schedule", "space", "batch", "sequence", "memory", "devices"]

MOST_NODES = 4096
"""Largest number of nodes looked at where the number is free (chosen)."""

LARGEST_SPACE = "mixed"
"""The space that contains every other one."""

_GIB = 1 << 30
_UNLIMITED_BYTES = 1 << 50  # a device no plan fills, and sums of which stay within 64 bits
_ORDER: tuple[Kind, ...] = (
    *("space", "schedule", "forbid", "batch", "sequence", "fix", "devices", "memory"),
)


@dataclass(frozen=True, slots=True)
class Requirement:
    """One thing the user asked for; ``key`` and ``value`` are those of a decision, else empty."""

    kind: Kind
    text: str  # in the user's words
    key: str = ""
    value: str = ""


@dataclass(frozen=True, slots=True)
class Conflict:
    """Requirements that cannot hold together, while all but one of them can.

    ``undecided`` members were kept because time ran out before it was known whether they matter;
    without any, the set is irreducible. ``smallest`` says that no set with fewer members conflicts.
    """

    members: tuple[Requirement, ...]
    undecided: tuple[Requirement, ...]
    smallest: bool


def requirements_of(question: Question, schedules: tuple[Schedule, ...]) -> list[Requirement]:
    """Everything that can be asked for, in the order in which dropping it is tried.

    Parameters
    ----------
    question
        The job and its limits.
    schedules
        All schedules there are: fewer of them are a requirement.
    """
    q, node = question, question.cluster.devices_per_node
    found = [
        Requirement("fix", " ".join(f"--fix {key}={value}" for value in values), key)
        for key, values in q.pins.fixed.items()
    ]
    found += [
        Requirement("forbid", f"--forbid {key}={value}", key, value)
        for key, values in q.pins.forbidden.items()
        for value in dict.fromkeys(values)
    ]
    if set(q.schedules) != set(schedules):
        found.append(Requirement("schedule", f"--schedule {'/'.join(q.schedules)}"))
    if q.space.name != LARGEST_SPACE:
        found.append(Requirement("space", f"--space {q.space.name}"))
    memory = q.cluster.device.memory_bytes / _GIB
    found += [
        Requirement("batch", f"--batch {q.job.global_batch}"),
        Requirement("sequence", f"--seq {q.job.sequence_length}"),
        Requirement("memory", f"{memory:.1f} GiB per device ({q.cluster.device.name})"),
        Requirement("devices", f"{q.cluster.devices} devices ({q.cluster.nodes} nodes of {node})"),
    ]
    return sorted(found, key=lambda requirement: _ORDER.index(requirement.kind))


class Relaxer:
    """Decides whether a plan fits when some requirements are dropped, and remembers it.

    Parameters
    ----------
    question
        The job with all requirements.
    schedules
        What is searched when the requirement on schedules is dropped.
    time_limit_s
        For each decision; one that takes longer is None: not known.
    """

    def __init__(
        self, question: Question, schedules: tuple[Schedule, ...], time_limit_s: float = 3.0
    ) -> None:
        self.question = question
        self.requirements = requirements_of(question, schedules)
        self._schedules = schedules
        self._time_limit_s = time_limit_s
        self._known: dict[frozenset[Requirement], bool | None] = {}

    @property
    def granule(self) -> int:
        """Tokens whose multiples every tensor degree divides."""
        return granule(self.question)

    def possible(self, kept: Iterable[Requirement]) -> bool | None:
        """Whether a plan fits with only these requirements; None if time ran out."""
        chosen = frozenset(kept)
        for known, answer in self._known.items():
            if (answer is True and chosen <= known) or (answer is False and chosen >= known):
                return answer
        if chosen not in self._known:
            self._known[chosen] = self._decide(chosen)
        return self._known[chosen]

    def _decide(self, kept: frozenset[Requirement]) -> bool | None:
        started = time.perf_counter()
        for question in self.questions(kept):
            if fitting_plan(question) is not None:
                return True
            if time.perf_counter() - started > self._time_limit_s:
                return None
        return False

    def questions(self, kept: Iterable[Requirement]) -> Iterator[Question]:
        """Questions of which one has a plan exactly if one is possible with what is kept."""
        kept = frozenset(kept)
        question = self.reduced(kept)
        kinds = {requirement.kind for requirement in kept}
        lengths = [question.job.sequence_length]
        if "sequence" not in kinds:
            lengths = sorted({*lengths, *shortest_sequences(question).values()})
        for length in lengths:
            asked = with_sequence(question, length)
            if "devices" not in kinds:
                yield from _anywhere(asked, batch_free="batch" not in kinds)
            elif "batch" not in kinds:
                yield from _any_batch(asked)
            else:
                yield asked

    def reduced(self, kept: Iterable[Requirement]) -> Question:
        """What is dropped in one step: all but sequence, batch and devices."""
        kept = frozenset(kept)
        q, kinds = self.question, {requirement.kind for requirement in kept}
        fixed = {r.key: q.pins.fixed[r.key] for r in kept if r.kind == "fix"}
        forbidden: dict[str, tuple[str, ...]] = {}
        for r in kept:
            if r.kind == "forbid":
                forbidden[r.key] = (*forbidden.get(r.key, ()), r.value)
        cluster = q.cluster
        if "memory" not in kinds:
            cluster = with_memory(q, _UNLIMITED_BYTES).cluster
        space_kept = "space" in kinds or q.space.name == LARGEST_SPACE
        return replace(
            q,
            cluster=cluster,
            space=q.space if space_kept else SPACES[LARGEST_SPACE],
            schedules=q.schedules if "schedule" in kinds else self._schedules,
            pins=Pins(fixed, forbidden),
        )


def find_conflict(relaxer: Relaxer, time_limit_s: float = 10.0) -> Conflict:
    """A smallest conflicting set of an infeasible job, or an irreducible one if time runs out.

    First every requirement is dropped for good if the rest still conflicts. Then all smaller sets
    that what is known does not rule out are tried, the smallest first.
    """
    started = time.perf_counter()
    members = list(relaxer.requirements)
    undecided = []
    for requirement in relaxer.requirements:
        rest = [member for member in members if member != requirement]
        possible = relaxer.possible(rest)
        if possible is False:
            members = rest
        elif possible is None:
            undecided.append(requirement)
    smallest = not undecided
    for size in range(1, len(members)):
        for chosen in combinations(relaxer.requirements, size):
            if time.perf_counter() - started > time_limit_s:
                return Conflict(tuple(members), tuple(undecided), False)
            possible = relaxer.possible(chosen)
            if possible is False:
                return Conflict(chosen, (), smallest)
            smallest = smallest and possible is True
    return Conflict(tuple(members), tuple(undecided), smallest)


def corrections(relaxer: Relaxer, most: int = 3) -> list[tuple[Requirement, ...]]:
    """The sets of fewest requirements whose surrender makes the job feasible; at most ``most``.

    Single ones for which time ran out are among them.
    """
    whole = relaxer.requirements
    for size in range(1, most + 1):
        found = []
        for dropped in combinations(whole, size):
            possible = relaxer.possible(r for r in whole if r not in dropped)
            if possible or (possible is None and size == 1):
                found.append(dropped)
        if found:
            return found
    return []


def with_memory(question: Question, memory_bytes: int) -> Question:
    """The same on devices of another memory."""
    device = replace(question.cluster.device, memory_bytes=memory_bytes)
    return replace(question, cluster=replace(question.cluster, device=device))


def with_batch(question: Question, batch: int) -> Question:
    """The same with another number of sequences per step."""
    return replace(question, job=replace(question.job, global_batch=batch))


def with_sequence(question: Question, tokens: int) -> Question:
    """The same with sequences of another length."""
    return replace(question, job=replace(question.job, sequence_length=tokens))


def granule(question: Question) -> int:
    """Tokens whose multiples every tensor degree divides, and fp8's matrix units."""
    return math.lcm(128, question.cluster.devices_per_node)


def shortest_sequences(question: Question) -> dict[int, int]:
    """The shortest length, no longer than asked for, that lets each context degree be used."""
    q, step, longest = question, granule(question), question.job.sequence_length
    share = -(-CONTEXT_TOKENS // step) * step
    tried = {c: step if c == 1 else c * share for c in _powers_of_two_up_to(longest)}
    return {
        c: tokens
        for c, tokens in tried.items()
        if tokens <= longest and _context_allowed(with_sequence(q, tokens), c)
    }


def _context_allowed(question: Question, context: int) -> bool:
    allowed = question.pins.allow("cp", str(context))
    return allowed and context_rule(question.model, question.job, question.space, context) is None


def _powers_of_two_up_to(number: int) -> list[int]:
    return [1 << i for i in range(number.bit_length())]


def divisors(number: int) -> list[int]:
    """All divisors in rising order."""
    small = [i for i in range(1, math.isqrt(number) + 1) if number % i == 0]
    return sorted({*small, *(number // i for i in small)})


def with_fixed(question: Question, **decisions: int | str) -> Question:
    """The same with decisions fixed to one value each."""
    fixed = {**question.pins.fixed, **{key: (str(value),) for key, value in decisions.items()}}
    return replace(question, pins=Pins(fixed, question.pins.forbidden))


def _any_batch(question: Question) -> Iterator[Question]:
    """Every data degree with the lightest batch it can have."""
    for batch in sorted(set(_batches(question, divisors(question.cluster.devices)))):
        yield with_batch(question, batch)


def _batches(question: Question, data_degrees: Iterable[int]) -> Iterator[int]:
    """Data degree x microbatch x microbatches, the last two the least that are allowed.

    Interleaving takes rounds of as many microbatches as there are stages.
    """
    pins = question.pins
    plain = [name for name in question.schedules if name != "interleaved"][:1]
    rounds = [1]
    if not (plain and pins.allow("schedule", plain[0]) and pins.allow("vpp", "1")):
        rounds = [p for p in range(1, question.model.layers + 1) if pins.allow("pp", str(p))]
    numbers = {n for each in rounds for n in _least_allowed(pins, "microbatches", each)}
    for data in data_degrees:
        if pins.allow("dp", str(data)):
            for size in _least_allowed(pins, "mbs", 1):
                yield from (data * size * number for number in numbers)


def _least_allowed(pins: Pins, key: str, step: int) -> list[int]:
    """The values fixed, or the least multiple of ``step`` not forbidden."""
    if key in pins.fixed:
        return [int(value) for value in pins.fixed[key] if pins.allow(key, value)]
    return [next(n for n in count(step, step) if pins.allow(key, str(n)))]


def _anywhere(question: Question, *, batch_free: bool) -> Iterator[Question]:
    """Pipeline, tensor, context and data degrees on as many whole nodes as they need."""
    q, node = question, question.cluster.devices_per_node
    pins = q.pins
    tensors = [t for t in reversed(divisors(node)) if pins.allow("tp", str(t))]
    contexts = [c for c in _powers_of_two_up_to(q.job.sequence_length) if _context_allowed(q, c)]
    pipelines = [p for p in range(q.model.layers, 0, -1) if pins.allow("pp", str(p))]
    for pipeline, context, tensor in product(pipelines, contexts, tensors):
        copy = pipeline * tensor * context
        whole = node // math.gcd(node, copy)  # data degrees are multiples of it
        for data in _data_degrees(q, whole, MOST_NODES * node // copy, batch_free=batch_free):
            placed = q.on_nodes(copy * data // node)
            placed = with_fixed(placed, pp=pipeline, tp=tensor, cp=context, dp=data)
            batches = _batches(placed, [data]) if batch_free else [q.job.global_batch]
            yield from (with_batch(placed, batch) for batch in batches)


def _data_degrees(question: Question, whole: int, most: int, *, batch_free: bool) -> list[int]:
    """Data degrees that decide: the least and the largest, or all where pins touch them."""
    q, pins = question, question.pins
    keys = {"dp", "mbs", "microbatches", "vpp", "schedule"}
    touched = keys & (pins.fixed.keys() | pins.forbidden.keys()) or "1f1b" not in q.schedules
    if batch_free:
        fixed = [int(value) for value in pins.fixed.get("dp", ())]
        found = fixed or [whole * n for n in (1, 2, max(1, most // whole))]
    else:
        found = divisors(q.job.global_batch)
    allowed = [d for d in found if d % whole == 0 and d <= most and pins.allow("dp", str(d))]
    return allowed if touched or len(allowed) < 2 else [allowed[-1], allowed[0]]
