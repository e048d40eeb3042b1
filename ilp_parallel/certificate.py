"""The certificate of a search: what became of every configuration, and why nothing is better.

It holds the whole input and, per configuration in the order of enumeration, its fate. Everything in
it can be re-derived by ``ilp_parallel.verify`` without a solver. Values are ticks of the objective
(``Objective.ticks``) unless they are called numerators.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Literal

import msgspec

from ilp_parallel.bounds import Multipliers
from ilp_parallel.problems.pipeline import PipelineSolution, Schedule
from ilp_parallel.spaces import Pins, Refusal
from ilp_parallel.specs.cluster import ClusterSpec
from ilp_parallel.specs.job import JobSpec
from ilp_parallel.specs.model import ModelSpec

if TYPE_CHECKING:
    from ilp_parallel.notebook import Printer

SCHEMA = "ilp_parallel.certificate/1"


class TooLittleMemory(msgspec.Struct, frozen=True, tag="memory", tag_field="fate"):
    """No partition fits: device group ``s`` can hold at most ``placeable[s]`` layers."""

    configuration: str
    placeable: tuple[int, ...]


class NoStrategy(msgspec.Struct, frozen=True, tag="no_strategy", tag_field="fate"):
    """The space and the pins leave no strategy to choose from."""

    configuration: str


class WorkBound(msgspec.Struct, frozen=True, tag="work", tag_field="fate"):
    """The work alone takes ``bound`` ticks, memory not even counted."""

    configuration: str
    bound: int


class LagrangianBound(msgspec.Struct, frozen=True, tag="lagrangian", tag_field="fate"):
    """With these memory multipliers no plan takes less than ``bound`` ticks."""

    configuration: str
    bound: int
    multipliers: Multipliers


class Solved(msgspec.Struct, frozen=True, tag="solved", tag_field="fate"):
    """Solved exactly: the optimum, or no plan with a numerator below ``cutoff``."""

    configuration: str
    numerator: int | None
    cutoff: int | None
    by: tuple[str, ...]


class Open(msgspec.Struct, frozen=True, tag="open", tag_field="fate"):
    """Not finished when the search was stopped; ``bound`` holds (multipliers None: by work)."""

    configuration: str
    bound: int
    multipliers: Multipliers | None


Fate = TooLittleMemory | NoStrategy | WorkBound | LagrangianBound | Solved | Open


def closed_by(name: str, bound: int, multipliers: Multipliers | None) -> Fate:
    """The fate of a configuration whose bound leaves nothing better (multipliers None: by work)."""
    if multipliers is None:
        return WorkBound(name, bound)
    return LagrangianBound(name, bound, multipliers)


SearchStatus = Literal["optimal", "feasible", "infeasible", "unknown"]
Minimised = Literal["step-time", "simulated-step-time"]
"""What a certificate is about: the formula, or what comes out when the schedule is played."""


class ChosenPlan(msgspec.Struct, frozen=True):
    """The best plan found, as the (folded) solution of its configuration's instance."""

    configuration: str
    solution: PipelineSolution


class Certificate(msgspec.Struct, frozen=True):
    """The claim and everything it rests on."""

    model: ModelSpec
    cluster: ClusterSpec
    job: JobSpec
    space: str
    space_version: int
    pins: Pins
    schedules: tuple[Schedule, ...]
    status: SearchStatus
    objective_ticks: int | None
    bound_ticks: int | None
    plan: ChosenPlan | None
    refusals: tuple[Refusal, ...]
    fates: tuple[Fate, ...]
    schema: str = SCHEMA
    minimised: Minimised = "step-time"

    @property
    def input_hash(self) -> str:
        """SHA-256 of the input that the claim is about."""
        specs = (self.model, self.cluster, self.job, self.space, self.pins, self.schedules)
        return input_hash(*specs, self.minimised)

    @property
    def gap(self) -> float | None:
        """(objective - bound) / objective; exactly 0 only where they are equal."""
        return relative_gap(self.objective_ticks, self.bound_ticks)

    def seconds(self, ticks: int | None) -> float | None:
        """Seconds of a number of ticks."""
        return None if ticks is None else ticks * self.job.tick_ns * 1e-9

    def _repr_pretty_(self, printer: Printer, cycle: bool) -> None:
        """A line where there is no HTML; ``repr`` has everything."""
        printer.text(f"<Certificate of {self.model.name} on {self.cluster.name}: {self.status}>")

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from ilp_parallel.notebook import certificate_html

        return certificate_html(self)


def relative_gap(objective: int | None, bound: int | None) -> float | None:
    """(objective - bound) / objective, exactly 0 only where they are equal; None if one is."""
    if objective is None or bound is None:
        return None
    return 0.0 if objective == bound else (objective - bound) / max(1, abs(objective))


def input_hash(
    model: ModelSpec,
    cluster: ClusterSpec,
    job: JobSpec,
    space: str,
    pins: Pins,
    schedules: tuple[Schedule, ...],
    minimised: Minimised = "step-time",
) -> str:
    """SHA-256 over the canonical JSON of a search's input."""
    parts: list[object] = [model, cluster, job, space, pins, schedules]
    if minimised != "step-time":
        parts.append(minimised)
    data = msgspec.json.encode(parts, order="sorted")
    return hashlib.sha256(data).hexdigest()


def encode(certificate: Certificate) -> bytes:
    """Canonical JSON."""
    return msgspec.json.encode(certificate, order="deterministic")


def decode(data: bytes) -> Certificate:
    """Read a certificate.

    Raises
    ------
    msgspec.DecodeError
        If the JSON is malformed or does not have the shape of a certificate.
    """
    return msgspec.json.decode(data, type=Certificate, strict=True)
