"""Options shared by the verbs of the command line, and what they turn into."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, TypeVar, cast, get_args

import click

from ilp_parallel.errors import InputError
from ilp_parallel.jobs import JobRequest

if TYPE_CHECKING:
    from ilp_parallel.planner import SearchOptions, SearchProgress

EXIT = {"optimal": 0, "infeasible": 3, "feasible": 4, "unknown": 5}
"""Exit code by status; 1 internal error, 2 bad input, 6 rejected by a check."""

REJECTED = 6
"""Exit code where a check rejects what it was given, for instance a plan that does not fit."""

Format = Literal["table", "json", "md"]
Command = TypeVar("Command", bound=Callable[..., object])


def profile_option(command: Command) -> Command:
    """Rates other than the shipped ones."""
    text = "Rates of devices and software, as calibrate writes them."
    return click.option("--profile", metavar="FILE", help=text)(command)


def job_options(command: Command) -> Command:
    """Options that describe the job."""
    command = _task_options(command)
    for option in reversed(
        (
            click.option("--cluster", help="Device, nodes and devices per node, or a file."),
            click.option("--batch", type=int, help="Sequences per optimizer step."),
            click.option("--seq", "sequence", type=int, help="Tokens per sequence."),
            click.option("--precision", help="Precision recipe, e.g. megatron-bf16."),
            click.option("--optimizer", help="adam, sgd-momentum or sgd."),
            click.option("--attention", help="flash, flash1, unfused or eager."),
            click.option("--norm-kernel", type=click.Choice(("fused", "eager")), help="fused."),
            click.option("--stack", help="megatron, deepspeed, torchtitan, fsdp or jax."),
            profile_option,
            click.option("--layer-times", metavar="FILE", help="Measured times of a block."),
            click.option("--intra-bw", "intra_bandwidth", help="Inside a node, e.g. 300GB/s."),
            click.option("--inter-bw", "inter_bandwidth", help="Between nodes, e.g. 25GB/s."),
            click.option("--reserve-gib", type=float, help="Memory of a device no plan may use."),
        )
    ):
        command = option(command)
    return command


def _task_options(command: Command) -> Command:
    """Options that say what is trained, and on what."""
    for option in reversed(
        (
            click.option("--task", help="pretrain, finetune or lora."),
            click.option("--lora-rank", type=int, help="Inner width of adapters."),
            click.option("--lora-targets", metavar="NAMES", help="E.g. linear_qkv,linear_proj."),
            click.option(
                "--doc-lengths",
                "document_lengths",
                metavar="TOKENS",
                help="Documents packed into a sequence, e.g. 2048,4x512.",
            ),
        )
    ):
        command = option(command)
    return command


def task_words(words: dict[str, object]) -> tuple[dict[str, object], tuple[str, ...]]:
    """Fields of a job that these options give, and what was assumed; same errors."""
    from ilp_parallel.specs.tasks import task_fields

    return task_fields(
        cast("str | None", words.get("task")),
        cast("int | None", words.get("lora_rank")),
        cast("str | None", words.get("lora_targets")),
        cast("str | None", words.get("document_lengths")),
    )


def choice_options(command: Command) -> Command:
    """Options that describe what may be chosen."""
    for option in reversed(
        (
            click.option("--space", default="megatron", show_default=True, help="Search space."),
            click.option(
                "--schedule", default="any", show_default=True, help="Or 1f1b, gpipe, ..."
            ),
            click.option("--fix", "fixed", multiple=True, metavar="K=V", help="Fix one: cp=2."),
            click.option("--forbid", "forbidden", multiple=True, metavar="K=V", help="Forbid one."),
        )
    ):
        command = option(command)
    return command


def run_options(command: Command) -> Command:
    """Options that describe how to search."""
    for option in reversed(
        (
            click.option("--formulation", default="interval", show_default=True),
            click.option("--solver", default="highs", show_default=True),
            click.option("--time-limit", "time_limit_s", type=float, metavar="SECONDS"),
            click.option("--seed", type=int, default=0, show_default=True),
            click.option("--threads", type=int, default=1, show_default=True),
        )
    ):
        command = option(command)
    return command


def search_options(command: Command) -> Command:
    """Options that describe the search: what may be chosen, and how."""
    return choice_options(run_options(command))


def output_options(command: Command) -> Command:
    """How and where the result is written."""
    style = click.Choice(("table", "json", "md"))
    for option in (
        click.option("-o", "output", default="-", metavar="FILE", help="Write there; - is stdout."),
        click.option("--format", "style", type=style, default=None, help="table, json or md."),
    ):
        command = option(command)
    return command


def job_request(model: str, words: dict[str, object]) -> JobRequest:
    """The job that the options describe."""
    names = JobRequest.__dataclass_fields__.keys() & words.keys()
    return JobRequest(model=model, **{name: words[name] for name in names})  # type: ignore[arg-type]


def read_search_options(words: dict[str, object]) -> SearchOptions:
    """The search that the options describe.

    Raises
    ------
    InputError
        For unknown or impossible values.
    """
    from ilp_parallel.planner import ANY_SCHEDULE, SearchOptions
    from ilp_parallel.problems.pipeline import Schedule
    from ilp_parallel.spaces import Pins

    schedule = cast("str", words["schedule"])
    if schedule != "any" and schedule not in get_args(Schedule):
        known = ", ".join(("any", *get_args(Schedule)))
        raise InputError("UNKNOWN_SCHEDULE", f"no schedule {schedule!r}", f"use one of {known}")
    time_limit_s = cast("float | None", words["time_limit_s"])
    if time_limit_s is not None and not 0 <= time_limit_s < 1e9:
        raise InputError("OUT_OF_RANGE", f"time limit {time_limit_s}", "use 0 to 1e9 seconds")
    return SearchOptions(
        space=cast("str", words["space"]),
        schedules=ANY_SCHEDULE if schedule == "any" else (cast("Schedule", schedule),),
        pins=Pins.parse(
            cast("tuple[str, ...]", words["fixed"]), cast("tuple[str, ...]", words["forbidden"])
        ),
        formulation=cast("str", words["formulation"]),
        solver=cast("str", words["solver"]),
        time_limit_s=time_limit_s,
        seed=cast("int", words["seed"]),
        threads=cast("int", words["threads"]),
    )


def json_text(document: object) -> str:
    """JSON with a line per top-level entry: readable, and short for a long certificate."""

    def compact(value: object) -> str:
        return json.dumps(value, allow_nan=False, ensure_ascii=False)

    if not isinstance(document, dict):
        return compact(document) + "\n"
    entries = ",\n".join(f" {compact(key)}: {compact(value)}" for key, value in document.items())
    return f"{{\n{entries}\n}}\n"


def write_result(output: str, text: str) -> None:
    """Write the result to a file or, for ``-``, to standard output."""
    from ilp_parallel.plan_files import write_text

    write_text(output, text)


def chosen_style(style: Format | None, output: str) -> Format:
    """Files get JSON unless told otherwise, the terminal a table."""
    return style or ("table" if output == "-" else "json")


class Live:
    """Progress on standard error while searching; the first Ctrl-C stops the search in order."""

    def __init__(self, options: SearchOptions) -> None:
        self._stop = False
        self._shown = 0.0
        self._is_terminal = sys.stderr.isatty()
        self.options = replace(
            options,
            progress=self._progress if self._is_terminal else None,
            cancelled=lambda: self._stop,
        )

    def __enter__(self) -> Live:
        self._previous = signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._previous)
        if self._shown:
            sys.stderr.write("\r\x1b[K")

    def _interrupt(self, *_: object) -> None:
        if self._stop:
            raise KeyboardInterrupt
        self._stop = True

    def _progress(self, progress: SearchProgress) -> None:
        now = time.perf_counter()
        if now - self._shown < 0.1:
            return
        self._shown = now

        def text(ticks: int | None) -> str:
            return "-" if ticks is None else f"{ticks:,}"

        sys.stderr.write(
            f"\r\x1b[K{progress.elapsed_s:.1f} s  incumbent {text(progress.incumbent)}  "
            f"bound {text(progress.bound)} ticks  open {progress.open_configurations}"
        )
        sys.stderr.flush()
