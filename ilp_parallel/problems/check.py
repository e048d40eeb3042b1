"""The verdict of one rule of a problem on one solution."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Check:
    """One rule, evaluated.

    ``slack`` is what is left before the rule breaks, in ``unit``; negative when broken.
    """

    name: str
    passed: bool
    slack: int
    unit: str
