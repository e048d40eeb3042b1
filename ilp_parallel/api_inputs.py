"""What the Python interface takes: Python values become what the command line's options become.

Names, files and choices go the way they go on the command line, so that both accept, assume and
refuse the same, with the same reason codes.
"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from dataclasses import asdict, dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from ilp_parallel.errors import InputError
from ilp_parallel.jobs import CompleteJob, JobRequest
from ilp_parallel.specs.cluster import ClusterSpec
from ilp_parallel.specs.documents import shown
from ilp_parallel.specs.job import JobSpec
from ilp_parallel.specs.model import ModelSpec
from ilp_parallel.specs.validate import (
    check_job,
    require_in_range,
    to_cluster,
    to_job,
    to_model,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import FrameType, TracebackType
    from typing import TypeAlias

    from ilp_parallel.comparison.comparing import Methods
    from ilp_parallel.planner import SearchOptions, SearchProgress

    ModelLike: TypeAlias = str | os.PathLike[str] | ModelSpec
    """Preset name, file, or specification."""

    ClusterLike: TypeAlias = str | os.PathLike[str] | ClusterSpec
    """Notation such as ``a100-80gb:128x8``, file, or specification."""

    Decisions: TypeAlias = str | Sequence[str] | Mapping[str, str | int]
    """Decisions as ``"tp=8"``, ``["tp=8", "zero=1"]`` or ``{"tp": 8, "zero": 1}``."""

Words = TypeVar("Words")


def training_job(
    model: ModelLike,
    cluster: ClusterLike | None = None,
    batch: int | None = None,
    sequence: int | None = None,
    *,
    job: JobSpec | None = None,
    precision: str | None = None,
    optimizer: str | None = None,
    attention: str | None = None,
    norm_kernel: str | None = None,
    stack: str | None = None,
    profile: str | os.PathLike[str] | None = None,
    layer_times: str | os.PathLike[str] | None = None,
    intra_bandwidth: str | None = None,
    inter_bandwidth: str | None = None,
    reserve_gib: float | None = None,
    task: str | None = None,
    lora_rank: int | None = None,
    lora_targets: str | Sequence[str] | None = None,
    document_lengths: str | Sequence[int] | None = None,
) -> CompleteJob:
    """A complete and checked job, which ``plan``, ``compare``, ``bounds`` and ``predict`` take.

    What is not given comes from the model's preset or a stated default; ``assumed`` of the result
    says which. Source of the presets: ``sources`` of each model and device.

    Parameters
    ----------
    model
        Preset (see ``model_names``), path of a specification or of a Hugging Face
        ``config.json``, or a :class:`~ilp_parallel.specs.model.ModelSpec`.
    cluster
        Notation such as ``a100-80gb:128x8`` (nodes x devices per node), path of a specification,
        or a :class:`~ilp_parallel.specs.cluster.ClusterSpec`.
    batch
        Sequences per optimizer step.
    sequence
        Tokens per sequence.
    job
        All about the job in one; then none of the words about it may be given.
    precision, optimizer, attention, norm_kernel, stack
        Choices as on the command line, for instance ``megatron-bf16``, ``adam``, ``flash``,
        ``fused``, ``megatron``.
    profile
        File with the rates of devices and software, as ``calibrate`` writes it.
    layer_times
        File with measured times of a block.
    intra_bandwidth, inter_bandwidth
        Of the links inside a node and between nodes, per direction and device, with their unit:
        ``"300GB/s"``.
    reserve_gib
        Memory of each device that no plan may use, in GiB.
    task
        ``pretrain``, ``finetune`` or ``lora``.
    lora_rank, lora_targets
        Inner width of adapters, and the matrices beside which they are, for instance
        ``["linear_qkv", "linear_proj"]``.
    document_lengths
        Tokens of the documents that a sequence packs; together they fill it.

    Raises
    ------
    InputError
        For anything unknown, malformed, out of range or inconsistent; ``WRONG_TYPE`` for a value
        of another type; ``TWO_JOBS`` if the job is given twice.

    Examples
    --------
    >>> from ilp_parallel import training_job
    >>> found = training_job("gpt2-xl", "a100-80gb:1x4", batch=64, precision="bf16-moments")
    >>> found.job.sequence_length, found.cluster.devices
    (1024, 4)
    """
    about_job: dict[str, object] = {
        "batch": batch,
        "sequence": sequence,
        "precision": precision,
        "optimizer": optimizer,
        "attention": attention,
        "norm_kernel": norm_kernel,
        "stack": stack,
        "profile": _file(profile),
        "layer_times": _file(layer_times),
        "reserve_gib": reserve_gib,
        "task": task,
        "lora_rank": lora_rank,
        "lora_targets": _listed(lora_targets),
        "document_lengths": _listed(document_lengths),
    }
    if job is not None:
        about_job = _words_of(job, about_job)
    links: dict[str, object] = {
        "intra_bandwidth": intra_bandwidth,
        "inter_bandwidth": inter_bandwidth,
    }
    with tempfile.TemporaryDirectory() as folder:
        request: dict[str, object] = {
            "model": _text(model, Path(folder)),
            "cluster": None if cluster is None else _text(cluster, Path(folder)),
        }
        found = _complete(request | links | about_job)
    if job is not None:
        found = replace(found, job=job)
        check_job(found.model, found.cluster, found.job)
    return found


def given_job(
    model: ModelLike | CompleteJob,
    cluster: ClusterLike | None,
    batch: int | None,
    sequence: int | None,
    job: JobSpec | None,
) -> CompleteJob:
    """The job of a function's first arguments.

    Raises
    ------
    InputError
        ``TWO_JOBS``, or what :func:`training_job` raises.
    """
    if not isinstance(model, CompleteJob):
        return training_job(model, cluster, batch, sequence, job=job)
    if (cluster, batch, sequence, job) != (None, None, None, None):
        raise _two_jobs("a complete job and words about it")
    return model


def search_options(
    *,
    space: str = "mixed",
    schedule: str = "any",
    fix: Decisions = (),
    forbid: Decisions = (),
    formulation: str = "interval",
    solver: str = "highs",
    time_limit_s: float | None = None,
    seed: int = 0,
    threads: int = 1,
    progress: Callable[[SearchProgress], None] | None = None,
    cancel: Callable[[], bool] | None = None,
) -> SearchOptions:
    """The search that the arguments describe.

    Raises
    ------
    InputError
        For unknown, impossible or mistyped values.
    """
    from ilp_parallel.cli.options import read_search_options

    words = {
        "space": space,
        "schedule": schedule,
        "fixed": _decisions(fix),
        "forbidden": _decisions(forbid),
        "formulation": formulation,
        "solver": solver,
        "time_limit_s": time_limit_s,
        "seed": seed,
        "threads": threads,
    }
    options = read_search_options(asdict(_converted(words, _SearchWords)))
    for name, hook in (("progress", progress), ("cancel", cancel)):
        if hook is not None and not callable(hook):
            raise InputError("WRONG_TYPE", f"{name}={shown(hook)}", "give a function")
    return replace(options, progress=progress, cancelled=cancel)


def comparison_methods(
    heuristics: Sequence[str] | None,
    evaluations: int,
    limit_s: float | None,
    seed: int,
) -> Methods:
    """Heuristics by name (None: all) and what each may spend.

    Raises
    ------
    InputError
        ``UNKNOWN_HEURISTIC``, ``OUT_OF_RANGE`` or ``WRONG_TYPE``.
    """
    from ilp_parallel.baselines.named.workbench import Effort
    from ilp_parallel.comparison.comparing import read_methods

    words = {"seed": seed, "evaluations": evaluations, "seconds": limit_s}
    effort = _converted(words, Effort)
    require_in_range("evaluations", effort.evaluations, (1, 10**9))
    require_in_range("seed", effort.seed, (0, 2**63))
    if effort.seconds is not None:
        require_in_range("heuristic_limit_s", effort.seconds, (0, 1e9), "seconds")
    names = None if heuristics is None else _converted(heuristics, tuple[str, ...])
    return read_methods(None if names is None else ",".join(names), effort)


class Interruptible:
    """A search that the first interrupt (Ctrl-C, *Interrupt Kernel*) stops in order.

    The best plan so far is then the result. A second interrupt raises ``KeyboardInterrupt`` as
    usual. Outside the main thread, and where a program handles interrupts itself, signals are left
    alone.
    """

    def __init__(self, options: SearchOptions) -> None:
        self._stop = False
        self._asked = options.cancelled
        self._took_over = False
        self.options = replace(options, cancelled=self._cancelled)

    def __enter__(self) -> SearchOptions:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._interrupt)
            self._took_over = True
        return self.options

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._took_over:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._stop:
            raise KeyboardInterrupt
        self._stop = True

    def _cancelled(self) -> bool:
        return self._stop or (self._asked is not None and self._asked())


def path_text(path: str | os.PathLike[str]) -> str:
    """A path as the readers and writers take it; the command line's ``-`` is refused.

    Raises
    ------
    InputError
        ``STANDARD_STREAM`` or ``WRONG_TYPE``.
    """
    if path == "-":
        raise InputError("STANDARD_STREAM", "'-' is for the command line", "give a path")
    if isinstance(path, str):
        return path
    try:
        text = os.fspath(path)
    except TypeError:
        raise InputError("WRONG_TYPE", f"path {shown(path)}", "give a path") from None
    # Never a preset, nor standard input: what is given as a path is one.
    return text if os.path.dirname(text) else os.path.join(os.curdir, text)


@dataclass(frozen=True, slots=True)
class _SearchWords:
    """Types of the options of a search."""

    space: str
    schedule: str
    fixed: tuple[str, ...]
    forbidden: tuple[str, ...]
    formulation: str
    solver: str
    time_limit_s: float | None
    seed: int
    threads: int


def _converted(words: object, kind: type[Words]) -> Words:
    """Values with their types checked; integers of numpy and pandas are integers."""
    if isinstance(words, dict):
        words = {
            name: int(value)
            if isinstance(value, Integral) and not isinstance(value, bool)
            else value
            for name, value in words.items()
        }
    try:
        return msgspec.convert(words, kind)
    except (msgspec.ValidationError, OverflowError) as error:
        raise InputError("WRONG_TYPE", str(error), "give a value of the expected type") from None


def _complete(words: dict[str, object]) -> CompleteJob:
    from ilp_parallel.cli.exchange import exchanged_job

    request = asdict(_converted(words, JobRequest))
    return exchanged_job(request.pop("model"), request)


def _words_of(job: JobSpec, others: dict[str, object]) -> dict[str, object]:
    """The words for a job that is given whole, which :func:`training_job` then puts back."""
    given = [name for name, value in others.items() if value is not None]
    if given:
        raise _two_jobs(f"job and {', '.join(given)}")
    if not isinstance(job, JobSpec):
        raise InputError("WRONG_TYPE", f"job {shown(job)}", "give a JobSpec")
    to_job(msgspec.to_builtins(job), "JobSpec")
    return {
        "batch": job.global_batch,
        "sequence": job.sequence_length,
        "precision": job.precision,
        "optimizer": job.optimizer,
        "attention": job.attention,
        "norm_kernel": job.norm_kernel,
        "stack": job.stack,
    }


def _two_jobs(what: str) -> InputError:
    return InputError("TWO_JOBS", what, "give one of them")


def _text(given: ModelLike | ClusterLike, folder: Path) -> str:
    """A name or path; a specification is written down, for it is checked like any file."""
    if isinstance(given, ModelSpec):
        checked: ModelSpec | ClusterSpec = to_model(msgspec.to_builtins(given), "ModelSpec")
    elif isinstance(given, ClusterSpec):
        checked = to_cluster(msgspec.to_builtins(given), "ClusterSpec")
    else:
        return path_text(given)
    path = folder / f"{type(given).__name__}.json"
    path.write_bytes(msgspec.json.encode(checked))
    return str(path)


def _file(path: str | os.PathLike[str] | None) -> str | None:
    return None if path is None else path_text(path)


def _listed(values: str | Sequence[str] | Sequence[int] | None) -> str | None:
    """Several values as the command line writes them, with commas between them."""
    if values is None or isinstance(values, str):
        return values
    return ",".join(str(value) for value in values)


def _decisions(given: Decisions) -> object:
    """Decisions as the command line writes them: ``key=value``."""
    if isinstance(given, str):
        return given.split()
    if hasattr(given, "items"):
        return [f"{key}={value}" for key, value in given.items()]
    return given
