"""What is minimised: the options --objective and --price, and what they lead to."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from ilp_parallel.cli.options import Live, json_text
from ilp_parallel.errors import InputError
from ilp_parallel.processes import spawned
from ilp_parallel.specs.validate import PRICE_LIMITS, require_in_range

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from concurrent.futures import Executor

    from ilp_parallel.cli.options import Command, Format
    from ilp_parallel.frontiers.sensitivity import Sensitivity
    from ilp_parallel.jobs import CompleteJob
    from ilp_parallel.plan import Plan
    from ilp_parallel.planner import SearchOptions

RATES = {"tokens-per-device": "tokens-per-second-per-device", "cost": "cost-per-token"}
"""Objectives that choose the number of nodes as well; JSON and text have the longer word."""

OBJECTIVES = ("step-time", "simulated", *RATES)


def objective_options(command: Command) -> Command:
    """What is minimised."""
    for option in (
        click.option("--price", type=float, help="Of a device-hour; or in the cluster file."),
        click.option(
            "--objective",
            type=click.Choice(OBJECTIVES),
            default="step-time",
            show_default=True,
            help="Step time by formula, or simulated; or over all numbers of nodes up to the "
            "cluster's the most tokens/s per device, or the least cost per token.",
        ),
    ):
        command = option(command)
    return command


def sensitivity_options(command: Command) -> Command:
    """Whether to ask for the bottleneck, and by how many processes."""
    for option in (
        click.option(
            "--workers",
            default=1,
            show_default=True,
            help="Processes: of --sensitivity, and one for the superset.",
        ),
        click.option(
            "--sensitivity",
            is_flag=True,
            help="What is the bottleneck: what more memory, FLOP/s or bandwidth would buy.",
        ),
    ):
        command = option(command)
    return command


def price_of(job: CompleteJob, price: float | None, *, needed: bool) -> float | None:
    """Price of a device-hour: as given, else that of the cluster.

    Raises
    ------
    InputError
        ``NO_PRICE`` if one is needed, ``OUT_OF_RANGE``.
    """
    found = job.cluster.device_hour_price if price is None else price
    if found is None:
        if needed:
            fix = "give --price, or device_hour_price in the cluster file"
            raise InputError("NO_PRICE", "a cost needs the price of a device-hour", fix)
        return None
    require_in_range("price", found, PRICE_LIMITS, "per device-hour")
    return found


def solve_rate(
    job: CompleteJob, options: SearchOptions, objective: str, price: float | None, style: Format
) -> tuple[str, str]:
    """The text of ``solve`` with one of ``RATES``, and its status."""
    from ilp_parallel.frontiers.rates import best_rate, rate_document, rate_text

    priced, minimised = price_of(job, price, needed=objective == "cost"), RATES[objective]
    with Live(options) as live:
        answer = best_rate(job, live.options)
    if not answer.verified:
        raise RuntimeError("a certificate failed its verification")
    if style == "json":
        return json_text(rate_document(answer, minimised, priced)), answer.status
    return rate_text(answer, options, minimised, priced, style), answer.status


@dataclass(frozen=True, slots=True)
class Shown:
    """A sensitivity as it is shown."""

    found: Sensitivity

    @property
    def document(self) -> dict[str, object]:
        """As part of a JSON."""
        from ilp_parallel.frontiers.sensitivity import sensitivity_document

        return sensitivity_document(self.found)

    def text(self, style: Format) -> str:
        """For reading."""
        from ilp_parallel.frontiers.sensitivity import sensitivity_text

        return sensitivity_text(self.found, "table" if style == "json" else style)

    def alone(self, space: str, plan: Plan | None, style: Format) -> str:
        """The whole output of a verb, about the job of a plan or of a model."""
        from ilp_parallel.report import plan_text

        if style == "json":
            head = {"schema": "ilp_parallel.sensitivity/1", "space": space}
            return json_text({**head, **self.document})
        return ("" if plan is None else f"{plan_text(plan)}\n") + self.text(style)


@contextmanager
def processes(workers: int) -> Iterator[Executor | None]:
    """So many processes; None for a single one."""
    require_in_range("workers", workers, (1, 1024), "processes")
    if workers == 1:
        yield None
        return
    with spawned(workers) as executor:
        yield executor


def sensitivity_of(job: CompleteJob, options: SearchOptions, workers: int) -> Shown | None:
    """What more of something would buy, by several processes; None if there is no plan.

    Raises
    ------
    RuntimeError
        If a certificate is not verified.
    """
    from ilp_parallel.frontiers.sensitivity import sensitivity

    def say(line: str) -> None:
        if options.progress is None:  # else the progress of each search is shown
            sys.stderr.write(f"{line}\n")

    with processes(workers) as executor:
        found = sensitivity(job, options, say, executor)
    if found is not None and not found.verified:
        raise RuntimeError("a certificate failed its verification")
    return None if found is None else Shown(found)


def require_alone(objective: str, words: Mapping[str, object]) -> None:
    """Refuse options that do not go with an objective.

    Raises
    ------
    InputError
        ``NOT_WITH_OBJECTIVE``.
    """
    allowed = {"step-time": ("cross_check", "trace", "sensitivity"), "simulated": ("trace",)}
    for name, value in words.items():
        if value and name not in allowed.get(objective, ()):
            option = f"--{name.replace('_', '-')} with --objective {objective}"
            raise InputError("NOT_WITH_OBJECTIVE", option, "leave one of them out")
