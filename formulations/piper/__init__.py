"""Formulations of Piper's problem, listed explicitly: instance and number of slots to Program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from formulations.piper import assignment

if TYPE_CHECKING:
    from collections.abc import Callable

    from ilp_parallel.problems.piper import PiperInstance
    from ilp_parallel.program import Program

PIPER: dict[str, Callable[[PiperInstance, int], Program]] = {"assignment": assignment.build}
"""Formulations by name."""
