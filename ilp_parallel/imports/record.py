"""What a foreign file states about a run; None where it leaves something open."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ilp_parallel.errors import InputError
from ilp_parallel.specs.documents import parse_document, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ilp_parallel.configuration import Zero
    from ilp_parallel.problems.pipeline import Schedule
    from ilp_parallel.specs.cluster import ClusterSpec
    from ilp_parallel.specs.job import Attention, Optimizer, Precision, Stack


@dataclass(frozen=True, slots=True)
class Imported:
    """One run.

    ``shapes`` has the fields of a ``ModelSpec`` that are stated. ``zero`` and ``recompute`` have
    one entry for all layers alike, or one per layer. Sizes are layers per virtual stage in model
    order. ``notes`` say what was read but has no counterpart in a plan.
    """

    form: str
    stack: Stack
    shapes: Mapping[str, object] = field(default_factory=dict)
    cluster: ClusterSpec | None = None
    devices: int | None = None
    global_batch: int | None = None  # sequences
    sequence_length: int | None = None  # tokens
    precision: Precision | None = None
    optimizer: Optimizer | None = None
    attention: Attention | None = None
    pipeline: int | None = None
    tensor: int | None = None
    context: int | None = None
    data: int | None = None
    microbatch: int | None = None  # sequences per rank
    microbatches: int | None = None
    chunks: int | None = None
    expert: int | None = None  # expert degree
    expert_tensor: int | None = None
    sequence_parallel: bool | None = None
    schedule: Schedule | None = None
    sizes: tuple[int, ...] | None = None
    zero: tuple[Zero, ...] | None = None
    recompute: tuple[tuple[str, ...], ...] | None = None
    notes: tuple[str, ...] = ()


LIMIT = 1 << 40
"""Largest integer taken from a file (chosen): far above any size, far below trouble."""


@dataclass(frozen=True, slots=True)
class Fields:
    """Typed access to the fields of a section of a file; absent and null are the same."""

    data: Mapping[str, object]
    where: str

    def integer(self, *names: str, least: int = 1) -> int | None:
        """The first of the fields that is there, at least ``least``.

        Raises
        ------
        InputError
            ``WRONG_TYPE`` or ``OUT_OF_RANGE``.
        """
        for name in names:
            value = self.data.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise InputError("WRONG_TYPE", self._named(name, value), "give a whole number")
            if not least <= value < LIMIT:
                fix = f"use {least:,} to {LIMIT - 1:,}"
                raise InputError("OUT_OF_RANGE", self._named(name, value), fix)
            return value
        return None

    def required(self, name: str) -> int:
        """A positive integer that must be there; ``MISSING_FIELD`` otherwise."""
        value = self.integer(name)
        if value is None:
            raise InputError("MISSING_FIELD", f"{self.where}: no {name}", f"add {name}")
        return value

    def number(self, name: str) -> float | None:
        """A finite number, not negative; same errors."""
        value = self.data.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise InputError("WRONG_TYPE", self._named(name, value), "give a number")
        if not 0 <= value < 1e18:
            raise InputError("OUT_OF_RANGE", self._named(name, value), "use 0 to 1e18")
        return float(value)

    def flag(self, name: str) -> bool | None:
        """True or false; same errors."""
        value = self.data.get(name)
        if value is None or isinstance(value, bool):
            return value
        raise InputError("WRONG_TYPE", self._named(name, value), "give true or false")

    def text(self, name: str) -> str | None:
        """A text; same errors."""
        value = self.data.get(name)
        if value is None or isinstance(value, str):
            return value
        raise InputError("WRONG_TYPE", self._named(name, value), "give a text")

    def section(self, name: str) -> Fields:
        """A nested mapping, empty where absent; same errors."""
        value = self.data.get(name)
        if value is None:
            return Fields({}, f"{self.where}.{name}")
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            raise InputError("WRONG_TYPE", self._named(name, value), "give named fields")
        return Fields(value, f"{self.where}.{name}")

    def _named(self, name: str, value: object) -> str:
        huge = isinstance(value, int) and value.bit_length() > 200
        return f"{self.where}: {name}={'huge' if huge else shown(value)}"


def parse_json(text: str, origin: str) -> dict[str, object]:
    """The object in a JSON text, whatever the name of its file ends in.

    Raises
    ------
    InputError
        ``MALFORMED_JSON``, ``EMPTY_FILE`` or ``NOT_A_MAPPING``.
    """
    name = shown(origin)
    return parse_document(text.encode("utf-8", "surrogatepass"), f"{name}.json")


def quotient(dividend: int, divisor: int, what: str) -> int:
    """A division that must come out even and not below one.

    Raises
    ------
    InputError
        ``SIZES_DISAGREE``.
    """
    if dividend < divisor or dividend % divisor:
        raise InputError("SIZES_DISAGREE", f"cannot divide {what}: {dividend} by {divisor}")
    return dividend // divisor
