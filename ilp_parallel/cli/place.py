"""The verb ``place``: device placement of operator graphs (format of NeurIPS 2020)."""

from __future__ import annotations

import hashlib
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ilp_parallel.cli.options import EXIT, Format, chosen_style, json_text
from ilp_parallel.errors import InputError

if TYPE_CHECKING:
    from ilp_parallel.planner_placement import PlacementResult
    from ilp_parallel.problems.placement import Contiguity, PlacementInstance


@click.command()
@click.argument("file")
@click.option(
    "--contiguity",
    type=click.Choice(("chain", "contiguous", "none")),
    default="chain",
    show_default=True,
    help="Exact for chain; a bound for the others, and for none a search up to the time limit.",
)
@click.option("--time-limit", "time_limit_s", type=float, default=60.0, metavar="SECONDS")
@click.option("-o", "output", default=None, metavar="PLAN", help="Write the plan there (JSON).")
@click.option("--format", "style", type=click.Choice(("table", "json", "md")), default=None)
def place(
    file: str,
    contiguity: Contiguity,
    time_limit_s: float,
    output: str | None,
    style: Format | None,
) -> None:
    """Choose a device for every operator in FILE so that the largest load is least."""
    from ilp_parallel.imports.placement_instance import read_placement_instance
    from ilp_parallel.plan_files import require_target, write_text
    from ilp_parallel.planner_placement import plan_freely, plan_placement

    began = time.monotonic()
    if not 0 < time_limit_s < 1e9:
        raise InputError("OUT_OF_RANGE", f"time limit {time_limit_s}", "use 0 to 1e9 seconds")
    if output is not None:
        require_target(output)
    instance = read_placement_instance(file)
    parsed = time.monotonic()
    click.echo(f"{len(instance.names)} operators, {contiguity}: ideals and their pairs", err=True)
    if contiguity == "none":
        result = plan_freely(instance, time_limit_s)
    else:
        result = plan_placement(instance, contiguity)
    document = _document(file, instance, result, (began, parsed))
    if output is not None and result.devices is not None:
        write_text(output, json_text(_devices(instance, result.devices)))
    _show(document, chosen_style(style, "-"))
    sys.exit(EXIT[result.status])


def _devices(instance: PlacementInstance, devices: tuple[int, ...]) -> dict[str, object]:
    """The plan in the published form, loads in the file's unit."""
    from ilp_parallel.problems.placement import evaluate

    verdict = evaluate(instance, devices)
    rows = [
        {
            "load": verdict.loads_ticks[d] / instance.ticks_per_unit,
            "nodes": [n for n, at in zip(instance.names, devices, strict=True) if at == d],
        }
        for d in range(instance.accelerators + instance.cpus)
    ]
    return {
        "maxLoad": verdict.objective / instance.ticks_per_unit,
        "fpgas": rows[: instance.accelerators],
        "cpus": rows[instance.accelerators :],
    }


def _document(
    file: str, instance: PlacementInstance, result: PlacementResult, times: tuple[float, float]
) -> dict[str, object]:
    from ilp_parallel import __version__
    from ilp_parallel.certificate import relative_gap

    def units(ticks: int | None) -> float | None:
        return None if ticks is None else ticks / instance.ticks_per_unit

    now = time.monotonic()
    return {
        "schema": "ilp_parallel.place/1",
        "version": __version__,
        "seed": 0,
        "status": result.status,
        "proof": result.proof,
        "objective": units(result.objective_ticks),
        "bound": units(result.bound_ticks),
        "unit": "time unit of the file",
        "gap": relative_gap(result.objective_ticks, result.bound_ticks),
        "verified": result.verified,
        "solver": result.solver,
        "timing": {"total_s": now - times[0], "search_s": now - times[1]},
        "instance": {
            "operators": len(instance.names),
            "edges": len(instance.edges),
            "ticks_per_unit": instance.ticks_per_unit,
            "rounded_terms": instance.rounded_terms,
            "hash": "sha256:" + hashlib.sha256(Path(file).read_bytes()).hexdigest(),
        },
        "ideals": result.ideals,
        "plan": None if result.devices is None else _devices(instance, result.devices),
    }


def _show(document: dict[str, object], style: Format) -> None:
    if style == "json":
        click.echo(json_text(document), nl=False)
        return
    from ilp_parallel.report import render

    names = ("status", "proof", "objective", "bound", "gap", "verified", "ideals")
    rows = [(name, str(document[name])) for name in names]
    click.echo(render("placement (time unit of the file)", ("", ""), rows, style), nl=False)
