"""How well rates predict runs they were not fitted on: leave one source, or one model, out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ilp_parallel.measured.calibration import calibrate, generation_of
from ilp_parallel.measured.cases import cases_of
from ilp_parallel.measured.validation import MACRO_CASES, validate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ilp_parallel.costs.profile import Profile
    from ilp_parallel.measured.runs import Run
    from ilp_parallel.measured.validation import Source, Validation

Left = Literal["source", "model"]
"""What is left out at a time: a source, or a model with a sequence length of a source."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """The errors of what was left out, under rates fitted without it."""

    group: str
    source: Source


def held_out(
    runs: Sequence[Run],
    prior: Profile,
    left: Left,
    on_progress: Callable[[str], None],
    only: str | None = None,
) -> tuple[HeldOut, ...]:
    """Fit without each group in turn, and compare what was left out with that fit.

    Parameters
    ----------
    runs
        Measured runs, those out of memory included.
    prior
        As for ``calibrate``.
    left
        What to leave out at a time.
    on_progress
        Called with a line per group.
    only
        Leave out groups of this source alone.
    """
    found = []
    chosen = {group_of(run, left) for run in runs if only in (None, run.source_id)}
    for group in sorted(chosen):
        out = [run for run in runs if group_of(run, left) == group]
        validation = _without(out, [run for run in runs if group_of(run, left) != group], prior)
        found += [HeldOut(group, source) for source in validation.sources]
        on_progress(f"left out {group}")
    return tuple(found)


def group_of(run: Run, left: Left) -> str:
    """The group a run belongs to."""
    if left == "source":
        return run.source_id
    return f"{run.source_id}: {run.model}, {run.seq_len} tokens"


def macro_error(found: Sequence[HeldOut]) -> tuple[float | None, float | None]:
    """Mean and worst median error of the sources with enough large configurations."""
    errors = [
        held.source.from_7b.median_error
        for held in found
        if held.source.from_7b is not None and held.source.from_7b.n >= MACRO_CASES
    ]
    return (sum(errors) / len(errors), max(errors)) if errors else (None, None)


def _without(out: Sequence[Run], others: Sequence[Run], prior: Profile) -> Validation:
    """What was left out, beside rates fitted on the others of the same device generations."""
    generations = {generation_of(case) for case in cases_of(out)[0]}
    cases = [
        case
        for case in cases_of(others)[0]
        if case.measured_s is not None and generation_of(case) in generations
    ]
    profile = calibrate(cases, prior, "held out").profile if cases else prior
    return validate(out, profile)
