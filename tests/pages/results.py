"""Results of a small job, as the command line writes them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from ilp_parallel.cli.options import json_text
from ilp_parallel.jobs import CompleteJob
from ilp_parallel.planner import SearchOptions
from ilp_parallel.solving import answer_document, solve
from ilp_parallel.spaces import Pins
from tests.small_jobs import JOB, MODEL, NODE

if TYPE_CHECKING:
    from ilp_parallel.solving import Answer

NASTY = "<script>alert('x')</script>&\"$y$"
"""A name that must stay text in HTML, in attributes, in data and in charts."""


@cache
def answer(name: str = "tiny", schedule: str = "any") -> Answer:
    """The answer for the small job, its model under another name; 1f1b: with two stages."""
    job = CompleteJob(replace(MODEL, name=name), NODE, JOB, assumed=(f"batch of {name}",))
    options = SearchOptions(space="megatron")
    if schedule == "1f1b":
        options = replace(options, schedules=("1f1b",), pins=Pins.parse(("pp=2",), ()))
    return solve(job, options, started=0.0)


@cache
def result_text(name: str = "tiny", schedule: str = "any") -> str:
    """The same as ``solve -o`` writes it."""
    return json_text(answer_document(answer(name, schedule)))
