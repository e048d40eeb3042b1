"""What every exporter takes and gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator

    from ilp_parallel.plan import Plan

Layers = tuple[tuple[str, ...], ...]
"""Modules recomputed by every layer, one entry per layer."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken rule of a framework: a stable reason code and the numbers that break it."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Note:
    """Something the reader of an export must know: a stable code and a sentence."""

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class ExportFile:
    """A file of an export; the name is a suggestion."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Written:
    """What an exporter made of a plan it can express."""

    files: tuple[ExportFile, ...]  # the main one first
    notes: tuple[Note, ...]
    violations: tuple[Violation, ...]


@dataclass(frozen=True, slots=True)
class Exporter:
    """One framework.

    ``lacks`` names whatever the framework has no option for and no near equivalent of.
    ``recomputations`` lists policies near the plan's that the framework can express, the plan's
    own among them if it is one. ``precision`` gives the recipe the framework trains in for the
    plan's, or None if it has none near. ``write`` gets a plan adapted by both. ``advice`` says how
    to get a plan without what is lacking.
    """

    name: str
    title: str
    lacks: Callable[[Plan], Iterator[str]]
    recomputations: Callable[[Plan], list[Layers]]
    precision: Callable[[Plan], str | None]
    write: Callable[[Plan], Written]
    advice: str
    experts: bool = False  # whether it has expert degrees


@dataclass(frozen=True, slots=True)
class Export:
    """A plan in the words of a framework.

    ``plan`` is what the framework will do: the plan given, or, where a note says so, the nearest
    one it can express.
    """

    framework: str
    plan: Plan
    files: tuple[ExportFile, ...]
    notes: tuple[Note, ...]

    @property
    def text(self) -> str:
        """The main file."""
        return self.files[0].text


def recomputed(plan: Plan) -> Layers:
    """Modules that every layer of a plan recomputes."""
    return tuple(strategy.recompute for strategy in plan.strategies)


def by_stage(plan: Plan) -> list[Layers]:
    """The same, cut into virtual stages in model order."""
    layers = iter(recomputed(plan))
    return [tuple(next(layers) for _ in range(size)) for size in plan.sizes]


def none_or_full(plan: Plan) -> list[Layers]:
    """The two policies of a framework that recomputes every layer or none."""
    layers = plan.model.layers
    return [((),) * layers, (("full",),) * layers]


def lacking_zero(plan: Plan, known: Container[str], elsewhere: str = "") -> Iterator[str]:
    """What a framework lacks that has one ZeRO stage for all layers, out of those known."""
    zeros = sorted({strategy.zero for strategy in plan.strategies})
    if len(zeros) > 1:
        yield f"ZeRO differs between layers ({', '.join(zeros)})"
    yield from (f"ZeRO {zero}{elsewhere}" for zero in zeros if zero not in known)


def common_notes(plan: Plan, stack: str, title: str) -> Iterator[Note]:
    """Notes that concern every framework."""
    if plan.job.stack != stack:
        yield Note(
            "STACK_DIFFERS",
            f"Time and memory were predicted for the {plan.job.stack} stack, not for {title}.",
        )
