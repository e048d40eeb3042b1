"""Integer-programming formulations, one folder per problem family, listed explicitly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from formulations.pipeline.assignment import Assignment
from formulations.pipeline.counts import Counts
from formulations.pipeline.flow import Flow
from formulations.pipeline.interval import Interval
from formulations.pipeline.monolithic import Monolithic

if TYPE_CHECKING:
    from formulations.base import Formulation

PIPELINE: dict[str, Formulation] = {
    "assignment": Assignment(),
    "flow": Flow(),
    "counts": Counts(),
    "interval": Interval(),
}
"""Formulations of one instance of the pipeline family, by name."""

PIPELINE_CHOICE: dict[str, Monolithic] = {
    "monolithic": Monolithic(PIPELINE["interval"]),
}
"""Formulations of a choice among several instances, by name."""
