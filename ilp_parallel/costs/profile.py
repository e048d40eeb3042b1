"""Profiles: the rates of device generations and software stacks, with where each comes from.

A profile has twelve rates for a generation under a stack: six of the generation, whatever runs on
it, and six of the stack, which may differ between generations because newer devices run newer
software. The default one is ``datasets/profiles/default.json``; ``calibrate`` writes others.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from typing import TYPE_CHECKING, Literal

import msgspec

from ilp_parallel.errors import InputError
from ilp_parallel.specs.documents import read_document, shown
from ilp_parallel.specs.rates import RATE_LIMITS, Rates
from ilp_parallel.specs.readers import data_root

if TYPE_CHECKING:
    from collections.abc import Mapping

ANY = "any"
"""The generation that stands for all not listed."""

PROFILE_SCHEMA = "ilp_parallel.profile/1"
DEVICE_RATES = ("matmul", "matmul_fp8", "attention", "stream", "intra", "inter")
"""Rates of a device generation; the others are those of a software stack."""
STACK_RATES = tuple(f.name for f in fields(Rates) if f.name not in DEVICE_RATES)


@dataclass(frozen=True, slots=True)
class Rate:
    """One rate and where it comes from."""

    value: float
    kind: Literal["assumed", "measured", "fitted"]
    source: str
    standard_error: float | None = None  # of a fitted value


@dataclass(frozen=True, slots=True)
class Profile:
    """Device rates by generation, and software rates by stack and generation.

    The generation ``any`` stands for all that are not listed.
    """

    name: str
    generations: dict[str, dict[str, Rate]]
    stacks: dict[str, dict[str, dict[str, Rate]]]

    def rates(self, generation: str, stack: str) -> Rates:
        """The rates of a device generation under a stack."""
        device = self.generations.get(generation) or self.generations[ANY]
        software = self.stacks[stack].get(generation) or self.stacks[stack][ANY]
        values = {**device, **software}
        return Rates(**{name: rate.value for name, rate in values.items()})


def read_profile(path: str) -> Profile:
    """A profile from its file.

    Raises
    ------
    InputError
        ``BAD_PROFILE`` or whatever is wrong with the file.
    """
    data = read_document(path)
    if data.get("schema") != PROFILE_SCHEMA:
        raise _bad(path, f"schema is not {PROFILE_SCHEMA}")
    try:
        profile = msgspec.convert({k: v for k, v in data.items() if k != "schema"}, Profile)
    except msgspec.ValidationError as error:
        raise _bad(path, str(error)) from None
    _check_table(path, "generations", profile.generations, DEVICE_RATES)
    for stack, rates in profile.stacks.items():
        _check_table(path, stack, rates, STACK_RATES)
    return profile


def profile_document(profile: Profile) -> dict[str, object]:
    """A profile as plain data."""
    return {"schema": PROFILE_SCHEMA, **msgspec.to_builtins(profile)}


@cache
def default_profile() -> Profile:
    """The profile that comes with the program."""
    return read_profile(str(data_root() / "profiles" / "default.json"))


@cache
def prior_profile() -> Profile:
    """What the shipped profile was fitted from: data sheets, papers and judgement."""
    return read_profile(str(data_root() / "profiles" / "prior.json"))


@cache
def rates_of(generation: str, stack: str) -> Rates:
    """The shipped rates of a device generation under a stack."""
    return default_profile().rates(generation, stack)


def _check_table(
    path: str, key: str, table: Mapping[str, Mapping[str, Rate]], names: tuple[str, ...]
) -> None:
    if ANY not in table:
        raise _bad(path, f"{shown(key)}: no generation named {ANY}")
    for generation, rates in table.items():
        _check_rates(path, generation, rates, names)


def _check_rates(path: str, key: str, rates: Mapping[str, Rate], names: tuple[str, ...]) -> None:
    if set(rates) != set(names):
        wrong = sorted(set(rates) ^ set(names))
        raise _bad(path, f"{shown(key)}: rates missing or unknown: {', '.join(wrong)}")
    for name, rate in rates.items():
        limits = RATE_LIMITS[name]
        if not limits[0] <= rate.value <= limits[1]:
            raise _bad(path, f"{shown(key)}: {name}={rate.value}, use {limits[0]} to {limits[1]}")


def _bad(path: str, message: str) -> InputError:
    return InputError("BAD_PROFILE", f"{shown(path)}: {message}", "write one with calibrate -o")
