"""Integer-programming formulations, one folder per problem family, listed explicitly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from formulations.pipeline.interval import Interval

if TYPE_CHECKING:
    from formulations.base import Formulation

PIPELINE: dict[str, Formulation] = {formulation.name: formulation for formulation in (Interval(),)}
"""Formulations of the pipeline family by name."""
