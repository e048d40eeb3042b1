"""``solve --format-in piper``: layer graphs of the format of Piper's public planner."""

from __future__ import annotations

import hashlib
import math
import sys
import time
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from ilp_parallel.cli.options import EXIT, Command, chosen_style, json_text, write_result
from ilp_parallel.errors import InputError
from ilp_parallel.specs.documents import shown

if TYPE_CHECKING:
    from fractions import Fraction

    from ilp_parallel.cli.options import Format
    from ilp_parallel.imports.piper_instance import Machine, PiperFile
    from ilp_parallel.piper.solving import PiperAnswer
    from ilp_parallel.problems.piper import PiperInstance

FORM = "piper"

_OWN = ("piper_devices", "memory_bytes", "bandwidth", "microbatches", "ablation")
_SHARED = ("model", "form", "output", "style", "time_limit_s", "seed", "threads")


def piper_options(command: Command) -> Command:
    """Options that replace the machine in the file, and what to leave out."""
    for option in reversed(
        (
            click.option("--devices", "piper_devices", type=int, help="Devices (piper)."),
            click.option("--memory-bytes", metavar="BYTES", help="Memory of a device (piper)."),
            click.option("--bandwidth", metavar="BYTES_PER_S", help="Of a device (piper)."),
            click.option("--microbatches", type=int, help="Per optimizer step (piper)."),
            click.option("--ablation", metavar="MODE", help="nodp, notp, noar, ... (piper)."),
        )
    ):
        command = option(command)
    return command


def take_piper_words(words: dict[str, object]) -> dict[str, object]:
    """Remove the options above from the words of a command; they need the format.

    Raises
    ------
    InputError
        ``FORMAT_MISSING`` where one is given without ``--format-in piper``, ``NOT_FOR_PIPER`` where
        an option of other jobs is given with it.
    """
    taken = {name: words.pop(name) for name in _OWN}
    given = [name for name, value in taken.items() if value is not None]
    if words.get("form") != FORM:
        if given:
            raise InputError("FORMAT_MISSING", f"{_flag(given[0])} without --format-in", "give it")
        return taken
    context = click.get_current_context()
    for name in context.params:
        source = context.get_parameter_source(name)
        if name not in (*_OWN, *_SHARED) and source == click.core.ParameterSource.COMMANDLINE:
            message = f"{_flag(name)} with --format-in piper"
            raise InputError("NOT_FOR_PIPER", message, "leave it out: the file states all costs")
    return taken


def _flag(name: str) -> str:
    options = click.get_current_context().command.params
    return next((option.opts[0] for option in options if option.name == name), name)


def solve_piper(
    path: str,
    taken: dict[str, object],
    time_limit_s: float | None,
    output: str,
    style: Format | None,
    started: float,
) -> None:
    """Solve, write the result, and leave with the exit code of its status."""
    from ilp_parallel.imports.piper_instance import piper_instance, read_piper_file
    from ilp_parallel.piper.solving import solve_instance
    from ilp_parallel.writing import require_target

    require_target(output)
    if time_limit_s is not None and not 0 <= time_limit_s < 1e9:
        raise InputError("OUT_OF_RANGE", f"time limit {time_limit_s}", "use 0 to 1e9 seconds")
    deadline = math.inf if time_limit_s is None else time.monotonic() + time_limit_s
    file = read_piper_file(path, _machine(taken))
    name = "-" if path == "-" else Path(path).stem
    instance = piper_instance(file, name)
    ablation = cast("str | None", taken["ablation"]) or "full"
    parsed = time.perf_counter()
    answer = solve_instance(instance, ablation, deadline, _progress)
    document = _document(path, file, instance, ablation, answer)
    now = time.perf_counter()
    document["timing"] = {"total_s": now - started, "search_s": now - parsed}
    style = chosen_style(style, output)
    text = json_text(document) if style == "json" else _text(document, instance, answer, style)
    write_result(output, text)
    sys.exit(EXIT[answer.status])


def _machine(taken: dict[str, object]) -> Machine:
    from ilp_parallel.imports.piper_instance import Machine

    return Machine(
        devices=cast("int | None", taken["piper_devices"]),
        memory_bytes=_decimal("--memory-bytes", taken["memory_bytes"]),
        bandwidth_bytes_per_s=_decimal("--bandwidth", taken["bandwidth"]),
        microbatches=cast("int | None", taken["microbatches"]),
    )


def _decimal(option: str, text: object) -> Decimal | None:
    if text is None:
        return None
    try:
        return Decimal(str(text))
    except InvalidOperation:
        message = f"{option} {shown(text)}"
        raise InputError("NOT_A_NUMBER", message, "give a number in the option's unit") from None


def _progress(value: Fraction | None, bound: Fraction) -> None:
    if sys.stderr.isatty():
        best = "-" if value is None else f"{float(value):.9g}"
        sys.stderr.write(f"plan {best}  bound {float(bound):.9g} s per microbatch\n")


def _document(
    path: str, file: PiperFile, instance: PiperInstance, ablation: str, answer: PiperAnswer
) -> dict[str, object]:
    from ilp_parallel import __version__
    from ilp_parallel.imports.piper_plan import piper_plan

    plan, reason = answer.plan, answer.reason
    return {
        "schema": "ilp_parallel.solve-piper/1",
        "version": __version__,
        "seed": 0,
        "status": answer.status,
        "proof": "exact" if answer.status in ("optimal", "infeasible") else None,
        "objective": _number(answer.objective),
        "bound": _number(answer.bound),
        "objective_exact": _ratio(answer.objective),
        "bound_exact": _ratio(answer.bound),
        "unit": "seconds per microbatch (as the file states its times)",
        "gap": answer.gap,
        "verified": answer.verified,
        "solver": answer.solver,
        "ablation": ablation,
        "timing": {},
        "instance": {
            "name": instance.name,
            "layers": instance.layers,
            "edges": len(instance.edges),
            "downsets": answer.downsets,
            "devices": instance.devices,
            "memory_bytes": instance.memory / instance.units_per_byte,
            "bandwidth_bytes_per_s": float(file.bandwidth),
            "microbatches": instance.microbatches,
            "hash": None if path == "-" else _hash(path),
        },
        "infeasibility": None if reason is None else {"code": reason.code, "text": reason.text},
        "stage_seconds": [float(seconds) for seconds in answer.stage_seconds],
        "plan": None if plan is None else piper_plan(plan, instance),
    }


def _hash(path: str) -> str:
    return "sha256:" + hashlib.sha256(Path(path).read_bytes()).hexdigest()


def _number(value: Fraction | None) -> float | None:
    return None if value is None else float(value)


def _ratio(value: Fraction | None) -> str | None:
    return None if value is None else str(value)


def _text(
    document: dict[str, object], instance: PiperInstance, answer: PiperAnswer, style: Format
) -> str:
    from ilp_parallel.report import render

    names = ("status", "proof", "objective", "bound", "gap", "verified", "ablation")
    facts = [(name, str(document[name])) for name in names]
    title = f"{instance.name}: seconds per microbatch of the slowest stage"
    if answer.reason is not None:
        facts.append((answer.reason.code, answer.reason.text))
    parts = [render(title, ("", ""), facts, "md" if style == "md" else "table")]
    if answer.plan is not None:
        rows = []
        for number, (stage, seconds) in enumerate(
            zip(answer.plan, answer.stage_seconds, strict=True), start=1
        ):
            modes = [
                instance.modes[v][stage.tensor_degree][k].name
                for v, k in zip(stage.layers, stage.modes, strict=True)
            ]
            shares = ", ".join(f"{modes.count(name)} {name}" for name in sorted(set(modes)))
            degrees = (str(stage.data_degree), str(stage.tensor_degree))
            rows.append((str(number), str(len(modes)), *degrees, f"{float(seconds):.9g}", shares))
        header = ("stage", "layers", "data", "tensor", "seconds", "modes")
        parts.append(render("stages", header, rows, "md" if style == "md" else "table"))
    return "\n".join(parts)
