"""A complete job from what the user gave; everything assumed is said."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from ilp_parallel.costs.profile import read_profile
from ilp_parallel.errors import InputError
from ilp_parallel.specs.documents import shown
from ilp_parallel.specs.job import Attention, JobSpec, NormKernel, Optimizer, Precision, Stack
from ilp_parallel.specs.overrides import reserve_bytes, with_links
from ilp_parallel.specs.readers import load_cluster, load_model
from ilp_parallel.specs.tasks import task_fields
from ilp_parallel.specs.validate import check_job, default_precision

if TYPE_CHECKING:
    from ilp_parallel.costs.profile import Profile
    from ilp_parallel.specs.cluster import ClusterSpec, LinkSpec
    from ilp_parallel.specs.model import ModelSpec
    from ilp_parallel.specs.rates import Rates


@dataclass(frozen=True, slots=True)
class JobRequest:
    """What the user asked for; None where nothing was said."""

    model: str  # preset, path or -
    cluster: str | None = None
    batch: int | None = None  # sequences
    sequence: int | None = None  # tokens
    precision: str | None = None
    optimizer: str | None = None
    attention: str | None = None
    norm_kernel: str | None = None
    stack: str | None = None
    profile: str | None = None  # path or -
    layer_times: str | None = None  # path or -
    intra_bandwidth: str | None = None
    inter_bandwidth: str | None = None
    reserve_gib: float | None = None
    task: str | None = None
    lora_rank: int | None = None
    lora_targets: str | None = None  # names with commas between them
    document_lengths: str | None = None  # for instance 2048,4x512


@dataclass(frozen=True, slots=True)
class CompleteJob:
    """Specs that passed all checks, and in words what was assumed."""

    model: ModelSpec
    cluster: ClusterSpec
    job: JobSpec
    assumed: tuple[str, ...]


def complete_job(request: JobRequest) -> CompleteJob:
    """Read and check the specs of a request, filling in defaults.

    Raises
    ------
    InputError
        For anything unknown, malformed, out of range or inconsistent.
    """
    model = load_model(request.model)
    assumed: list[str] = []

    def default(name: str, given: object, value: object, option: str) -> object:
        if given is not None:
            return given
        if value is None:
            raise InputError(
                f"{name.upper()}_MISSING", f"{model.name} has no default {name}", f"give {option}"
            )
        assumed.append(f"{name} {value}")
        return value

    notation = cast("str", default("cluster", request.cluster, model.default_cluster, "--cluster"))
    cluster = with_links(load_cluster(notation), request.intra_bandwidth, request.inter_bandwidth)
    job = JobSpec(
        global_batch=cast("int", default("batch", request.batch, model.default_batch, "--batch")),
        sequence_length=cast(
            "int", default("sequence", request.sequence, model.default_sequence, "--seq")
        ),
        precision=cast(
            "Precision",
            default("precision", request.precision, default_precision(cluster), "--precision"),
        ),
        optimizer=cast("Optimizer", default("optimizer", request.optimizer, "adam", "--optimizer")),
        attention=cast(
            "Attention",
            default("attention", request.attention, _default_attention(cluster), "--attention"),
        ),
        norm_kernel=cast(
            "NormKernel", default("norm kernel", request.norm_kernel, "fused", "--norm-kernel")
        ),
        stack=cast("Stack", default("stack", request.stack, "megatron", "--stack")),
    )
    fields, adapters = task_fields(
        request.task, request.lora_rank, request.lora_targets, request.document_lengths
    )
    job = replace(job, **fields)  # type: ignore[arg-type]
    assumed += adapters
    if request.reserve_gib is not None:
        job = replace(job, reserve_bytes=reserve_bytes(cluster, request.reserve_gib))
    if request.layer_times is not None:
        job = with_layer_times(job, request.layer_times)
    check_job(model, cluster, job)
    if request.profile is not None:
        profile = read_profile(request.profile)
        job = replace(job, rates=profile_rates(profile, cluster, job.stack))
    if request.intra_bandwidth is None:
        assumed.append(f"inside a node {link_text(cluster.intra)}")
    if request.inter_bandwidth is None:
        assumed.append(f"between nodes {link_text(cluster.inter)}")
    return CompleteJob(model, cluster, job, tuple(assumed))


def with_layer_times(job: JobSpec, path: str) -> JobSpec:
    """The job with the layer times in a file that are of its sequence length.

    Raises
    ------
    InputError
        ``LAYER_TIMES_OF_OTHER_SEQUENCES``, or what
        :func:`~ilp_parallel.imports.layer_profiles.read_layer_times` raises.
    """
    from ilp_parallel.imports.layer_profiles import read_layer_times

    found = read_layer_times(path)
    times = tuple(time for time in found if time.sequence_length == job.sequence_length)
    if not times:
        others = sorted({time.sequence_length for time in found})
        listed = ", ".join(map(str, others[:8])) + (", ..." if len(others) > 8 else "")
        raise InputError(
            "LAYER_TIMES_OF_OTHER_SEQUENCES",
            f"{shown(path)} has layer times of sequence length {listed}, the job has "
            f"{job.sequence_length}",
            f"use --seq {others[0]}, or measure",
        )
    return replace(job, layer_times=times)


def profile_rates(profile: Profile, cluster: ClusterSpec, stack: str) -> Rates:
    """The rates that a profile has for the devices of a cluster under a stack.

    Raises
    ------
    InputError
        ``STACK_NOT_IN_PROFILE``.
    """
    if stack not in profile.stacks:
        raise InputError(
            "STACK_NOT_IN_PROFILE",
            f"profile {shown(profile.name)} has no rates of stack {stack}",
            f"add them, or use one of {', '.join(map(shown, profile.stacks)) or '(it has none)'}",
        )
    return profile.rates(cluster.device.generation, stack)


def _default_attention(cluster: ClusterSpec) -> str:
    """Flash attention, but for Volta, which its kernels (FlashAttention-2) do not support."""
    return "unfused" if cluster.device.generation == "volta" else "flash"


def link_text(link: LinkSpec) -> str:
    """Bandwidth (per direction and device) and latency of a link."""
    return f"{link.bandwidth_bytes_per_s / 1e9:g} GB/s, {link.latency_s * 1e6:g} us"
