"""From what a file states to a job or a whole plan; what it leaves open is asked for or assumed."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, TypeVar

import msgspec

from ilp_parallel.configuration import Configuration, Strategy
from ilp_parallel.errors import InputError
from ilp_parallel.imports.record import quotient
from ilp_parallel.jobs import CompleteJob
from ilp_parallel.plan import Plan
from ilp_parallel.plan_files import check_plan
from ilp_parallel.specs.job import JobSpec
from ilp_parallel.specs.model import ModelSpec
from ilp_parallel.specs.validate import check_job, default_precision, to_model

if TYPE_CHECKING:
    from ilp_parallel.configuration import Zero
    from ilp_parallel.imports.record import Imported
    from ilp_parallel.specs.cluster import ClusterSpec

Entry = TypeVar("Entry")


def model_from(found: Imported, given: ModelSpec | None, vocab: int | None) -> ModelSpec:
    """The model of a run: the one given, if it has the stated shapes, else that of the shapes.

    Raises
    ------
    InputError
        ``MODEL_OPEN`` naming what no file states; ``MODEL_DIFFERS``.
    """
    shapes = dict(found.shapes)
    if vocab is not None:
        shapes["vocab"] = vocab
    if given is not None:
        # a file that has learned positions states how many, which presets may exceed
        for name, value in shapes.items():
            if name not in ("dropout", "learned_positions") and getattr(given, name) != value:
                raise InputError(
                    "MODEL_DIFFERS",
                    f"{name}={getattr(given, name)} in {given.name}, {value} in the file",
                    "give the model that the file trains",
                )
        return given
    needed = [f.name for f in fields(ModelSpec) if f.name != "name" and f.default is MISSING]
    missing = [name for name in needed if name not in shapes]
    if missing:
        fix = "give --vocab" if missing == ["vocab"] else "give --model"
        raise InputError("MODEL_OPEN", f"the file states no {', '.join(missing)}", fix)
    sources = [f"shapes stated in a {found.form} file"]
    stated = {**shapes, "name": found.form, "sources": sources}
    return to_model(msgspec.to_builtins(stated), found.form)


def job_from(
    found: Imported, model: ModelSpec, cluster: ClusterSpec | None, given: dict[str, object]
) -> CompleteJob:
    """The job of a run; ``given`` are fields of a ``JobSpec`` that the user stated.

    Raises
    ------
    InputError
        ``CLUSTER_OPEN``, ``DEVICES_DIFFER``, ``BATCH_OPEN``, ``SEQUENCE_OPEN``, or what
        :func:`~ilp_parallel.specs.validate.check_job` raises.
    """
    cluster = cluster or found.cluster
    if cluster is None:
        raise InputError("CLUSTER_OPEN", "no file states the devices", "give --cluster")
    if found.devices is not None and found.devices != cluster.devices:
        raise InputError(
            "DEVICES_DIFFER",
            f"the file is for {found.devices} devices, the cluster has {cluster.devices}",
            "change --cluster",
        )
    volta = cluster.device.generation == "volta"
    assumed: list[str] = []
    values: dict[str, object] = {}
    for name, stated, default in (
        ("global_batch", found.global_batch, None),
        ("sequence_length", found.sequence_length, None),
        ("precision", found.precision, default_precision(cluster)),
        ("optimizer", found.optimizer, "adam"),
        ("attention", found.attention, "unfused" if volta else "flash"),
        ("stack", found.stack, None),
    ):
        value = given.get(name) if given.get(name) is not None else stated
        if value is None:
            if default is None:
                option = {"global_batch": "--batch", "sequence_length": "--seq"}[name]
                raise InputError(f"{name.upper()}_OPEN", f"no file states {name}", f"give {option}")
            assumed.append(f"{name} {default}")
            value = default
        values[name] = value
    job = JobSpec(**{**given, **values})  # type: ignore[arg-type]
    check_job(model, cluster, job)
    return CompleteJob(model, cluster, job, (*found.notes, *assumed))


def plan_from(found: Imported, job: CompleteJob) -> tuple[Plan, tuple[str, ...]]:
    """The plan of a run, and in words what was assumed where the file leaves something open.

    Raises
    ------
    InputError
        ``SIZES_DISAGREE`` or ``LAYERS_DIFFER`` where numbers contradict, or what
        :func:`~ilp_parallel.plan_files.check_plan` raises.
    """
    assumed = list(job.assumed)
    configuration = _configuration(found, job, assumed)
    plan = Plan(
        model=job.model,
        cluster=job.cluster,
        job=job.job,
        space="given",
        configuration=configuration,
        sizes=_sizes(found, job.model.layers, configuration, assumed),
        strategies=_strategies(found, job.model.layers, configuration.shards, assumed),
    )
    check_plan(plan)
    return plan, tuple(assumed)


def _configuration(found: Imported, job: CompleteJob, assumed: list[str]) -> Configuration:
    """Degrees and batch; a degree left open is 1, the data degree what the devices leave."""

    def degree(name: str, stated: int | None) -> int:
        if stated is None:
            assumed.append(f"{name} 1")
        return 1 if stated is None else stated

    pipeline, tensor = degree("pipeline", found.pipeline), degree("tensor", found.tensor)
    context, chunks = degree("context", found.context), degree("chunks", found.chunks)
    data = quotient(job.cluster.devices, pipeline * tensor * context, "devices by tp, pp and cp")
    if found.data not in (None, data):
        raise InputError(
            "SIZES_DISAGREE",
            f"the file states dp={found.data}, the devices leave {data}",
            "mend it",
        )
    share = quotient(job.job.global_batch, data, "batch by data ranks")
    microbatch = found.microbatch
    if microbatch is None:
        microbatch = quotient(share, found.microbatches or share, "sequences by microbatches")
        assumed.append(f"microbatch {microbatch}")
    return Configuration(
        pipeline=pipeline,
        tensor=tensor,
        data=data,
        microbatch=microbatch,
        microbatches=quotient(share, microbatch, "sequences of a rank by microbatch"),
        chunks=chunks,
        sequence_parallel=bool(found.sequence_parallel),
        schedule=found.schedule or ("interleaved" if chunks > 1 else "1f1b"),
        context=context,
        expert=1 if found.expert is None else found.expert,
        expert_tensor=1 if found.expert_tensor is None else found.expert_tensor,
    )


def _sizes(
    found: Imported, layers: int, configuration: Configuration, assumed: list[str]
) -> tuple[int, ...]:
    stages = configuration.pipeline * configuration.chunks
    if found.sizes is not None:
        return found.sizes
    if stages > layers:
        raise InputError(
            "MORE_STAGES_THAN_LAYERS", f"{stages} stages, {layers} layers", "use fewer stages"
        )
    if stages > 1:
        assumed.append("stages as even as possible")
    each, extra = divmod(layers, stages)
    return tuple(each + (s < extra) for s in range(stages))


def _strategies(
    found: Imported, layers: int, shards: int, assumed: list[str]
) -> tuple[Strategy, ...]:
    """One strategy per layer; nothing is sharded where one rank holds the weights."""
    zeros: tuple[Zero, ...] = found.zero or (("1",) if shards > 1 else ("0",))
    recompute = found.recompute or ((),)
    if found.zero is None:
        assumed.append(f"zero {zeros[0]}")
    if found.recompute is None:
        assumed.append("recomputation none")
    if shards == 1:
        zeros = ("0",)
    rows = zip(
        _per_layer(zeros, layers, "ZeRO"),
        _per_layer(recompute, layers, "recomputation"),
        strict=True,
    )
    return tuple(Strategy(zero, modules) for zero, modules in rows)


def _per_layer(row: tuple[Entry, ...], layers: int, name: str) -> tuple[Entry, ...]:
    """One entry for each layer."""
    if len(row) == 1:
        return row * layers
    if len(row) != layers:
        raise InputError(
            "LAYERS_DIFFER", f"{name} of {len(row)} layers, the model has {layers}", "mend it"
        )
    return row
