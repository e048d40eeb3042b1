"""The verb ``shard``: operator-sharding instances of the ASPLOS 2025 contest's format."""

from __future__ import annotations

import hashlib
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ilp_parallel.cli.options import EXIT, REJECTED, Format, chosen_style, json_text
from ilp_parallel.errors import InputError

if TYPE_CHECKING:
    from ilp_parallel.planner_sharding import ShardingResult
    from ilp_parallel.problems.sharding import ShardingInstance

_RESERVE_SHARE = 0.04
"""Share of the limit kept for the last solver call to stop and for the final evaluation."""

_STARTED = time.monotonic()


@click.command()
@click.argument("file")
@click.option("--time-limit", "time_limit_s", type=float, default=60.0, metavar="SECONDS")
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True)
@click.option("-o", "output", default=None, metavar="SOLUTION", help="Write the plan there.")
@click.option("--check", "checked", metavar="SOLUTION", help="Only check this plan.")
@click.option("--format", "style", type=click.Choice(("table", "json", "md")), default=None)
def shard(
    file: str,
    time_limit_s: float,
    threads: int,
    output: str | None,
    checked: str | None,
    style: Format | None,
) -> None:
    """Choose a sharding strategy for every operator in FILE, and bound what is possible."""
    from ilp_parallel.imports.sharding_instance import (
        read_sharding_instance,
        sharding_solution_text,
    )
    from ilp_parallel.plan_files import require_target, write_text

    began = time.monotonic() if time.monotonic() - _STARTED > 30 else _STARTED
    if not 0 < time_limit_s < 1e9:
        raise InputError("OUT_OF_RANGE", f"time limit {time_limit_s}", "use 0 to 1e9 seconds")
    if output is not None:
        require_target(output)
    instance = read_sharding_instance(file)
    if checked is not None:
        _check(instance, checked, style)
    from ilp_parallel.planner_sharding import ShardingPlanner

    def report(stage: str, cost: int | None, bound: int | None) -> None:
        click.echo(_progress_line(time.monotonic() - began, stage, cost, bound), err=True)

    parsed = time.monotonic()
    deadline = began + time_limit_s * (1 - _RESERVE_SHARE)
    planner = ShardingPlanner(instance, deadline, threads, report)
    result = planner.run()
    removed = ", ".join(f"{number} {name}" for name, number in result.presolve.removed.items())
    click.echo(f"presolve removed: {removed or 'nothing'}", err=True)
    if result.strategies is not None and output is not None:
        write_text(output, sharding_solution_text(result.strategies))
    document = _document(file, instance, result, (began, parsed))
    _show(document, chosen_style(style, "-"))
    sys.exit(EXIT[result.status])


def _progress_line(elapsed_s: float, stage: str, cost: int | None, bound: int | None) -> str:
    gap = "" if not cost or bound is None else f" gap {(cost - bound) / cost:.4%}"
    return f"{elapsed_s:7.1f} s  {stage}: cost {cost} bound {bound}{gap}"


def _document(
    file: str, instance: ShardingInstance, result: ShardingResult, times: tuple[float, float]
) -> dict[str, object]:
    from importlib.metadata import version

    from ilp_parallel import __version__
    from ilp_parallel.certificate import relative_gap
    from ilp_parallel.problems.sharding import evaluate

    verified = False
    if result.strategies is not None:
        verdict = evaluate(instance, result.strategies)
        verified = verdict.feasible and verdict.objective == result.objective
    now = time.monotonic()
    return {
        "schema": "ilp_parallel.shard/1",
        "version": __version__,
        "seed": 0,
        "status": result.status,
        "proof": result.proof,
        "tolerance": 0.5 if result.proof == "solver" else None,
        "objective": result.objective,
        "bound": result.bound,
        "unit": "cost units of the contest",
        "gap": relative_gap(result.objective, result.bound),
        "verified": verified,
        "solver": f"highs {version('highspy')}",
        "timing": {"total_s": now - times[0], "search_s": now - times[1]},
        "instance": {
            "name": instance.name,
            "operators": instance.operators,
            "edges": instance.edges,
            "hash": "sha256:" + hashlib.sha256(Path(file).read_bytes()).hexdigest(),
        },
        "presolve": result.presolve.removed,
        "strategies": None if result.strategies is None else result.strategies.tolist(),
    }


def _show(document: dict[str, object], style: Format) -> None:
    if style == "json":
        click.echo(json_text(document), nl=False)
        return
    from ilp_parallel.report import render

    names = ("status", "proof", "objective", "bound", "gap", "verified")
    rows = [(name, str(document[name])) for name in names]
    title = "operator sharding (cost units of the file)"
    click.echo(render(title, ("", ""), rows, style), nl=False)


def _check(instance: ShardingInstance, path: str, style: Format | None) -> None:
    """Check a plan, print the verdict and leave with 0 or 6."""
    from ilp_parallel.imports.sharding_instance import read_sharding_solution
    from ilp_parallel.problems.sharding import evaluate

    verdict = evaluate(instance, read_sharding_solution(path))
    failed = [check.name for check in verdict.checks if not check.passed]
    if style == "json":
        document = {
            "schema": "ilp_parallel.shard-check/1",
            "verified": not failed,
            "failed": failed,
            "objective": verdict.objective,
            "peak_usage": verdict.peak_usage,
            "usage_limit": instance.limit,
        }
        click.echo(json_text(document), nl=False)
    elif failed:
        slack = ", ".join(f"{c.name} ({c.slack} {c.unit})" for c in verdict.checks if not c.passed)
        click.echo(f"REJECTED: {slack}")
    else:
        click.echo(f"accepted: cost {verdict.objective}, peak usage {verdict.peak_usage}")
    sys.exit(REJECTED if failed else 0)
