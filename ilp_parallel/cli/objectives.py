"""What is minimised: the option --objective."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ilp_parallel.cli.options import Command

OBJECTIVES = ("step-time", "simulated")


def objective_options(command: Command) -> Command:
    """What is minimised."""
    return click.option(
        "--objective",
        type=click.Choice(OBJECTIVES),
        default="step-time",
        show_default=True,
        help="Step time by formula, or of the schedule played event by event.",
    )(command)
