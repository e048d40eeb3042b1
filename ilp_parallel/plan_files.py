"""Plans and results as JSON files: read strictly, written whole or not at all."""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ilp_parallel.certificate import Certificate
from ilp_parallel.configuration import Configuration, Strategy
from ilp_parallel.errors import InputError
from ilp_parallel.plan import Plan
from ilp_parallel.specs.documents import MAX_RESULT_BYTES, read_document, shown
from ilp_parallel.specs.validate import check_cluster, check_job, check_model, to_cluster
from ilp_parallel.specs.validate import to_job as job_from
from ilp_parallel.specs.validate import to_model as model_from

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO

    from ilp_parallel.specs.documents import Document

PLAN_SCHEMA = "ilp_parallel.plan/1"


def plan_document(plan: Plan) -> dict[str, object]:
    """A plan as plain data, its input included."""
    return {
        "schema": PLAN_SCHEMA,
        "space": plan.space,
        "configuration": msgspec.to_builtins(plan.configuration),
        "stages": list(plan.sizes),
        "strategies": [{"zero": s.zero, "recompute": list(s.recompute)} for s in plan.strategies],
        "model": msgspec.to_builtins(plan.model),
        "cluster": msgspec.to_builtins(plan.cluster),
        "job": msgspec.to_builtins(plan.job),
    }


def read_plan(path: str) -> Plan:
    """The plan of a plan file, or of the result of ``solve``.

    Raises
    ------
    InputError
        If the file holds no plan or a plan that contradicts itself.
    """
    return plan_of_document(read_document(path, MAX_RESULT_BYTES), path)


def plan_of_document(data: Document, path: str) -> Plan:
    """The plan of a document that was read from ``path``; same errors."""
    inner = data.get("plan", data)
    if not isinstance(inner, dict) or inner.get("schema") != PLAN_SCHEMA:
        raise InputError(
            "NOT_A_PLAN", f"{path} holds no plan of schema {PLAN_SCHEMA}", "write one with solve -o"
        )
    try:
        configuration = msgspec.convert(inner.get("configuration"), Configuration)
        sizes = msgspec.convert(inner.get("stages"), tuple[int, ...])
        strategies = msgspec.convert(inner.get("strategies"), tuple[Strategy, ...])
        space = msgspec.convert(inner.get("space"), str)
    except msgspec.ValidationError as error:
        raise InputError("BAD_PLAN", f"{path}: {error}", "write it again with solve -o") from None
    plan = Plan(
        model=model_from(_part(inner, "model"), path),
        cluster=to_cluster(_part(inner, "cluster"), path),
        job=job_from(_part(inner, "job"), path),
        space=space,
        configuration=configuration,
        sizes=sizes,
        strategies=strategies,
    )
    check_plan(plan)
    return plan


def _part(data: Document, name: str) -> Document:
    part = data.get(name)
    if not isinstance(part, dict):
        raise InputError("BAD_PLAN", f"the plan has no {name}", "write it again with solve -o")
    return part


def check_plan(plan: Plan) -> None:
    """Refuse a plan whose parts do not fit together.

    Raises
    ------
    InputError
        Naming the first contradiction.
    """
    check_model(plan.model)
    check_cluster(plan.cluster)
    check_job(plan.model, plan.cluster, plan.job)
    check_parts(plan)


def check_parts(plan: Plan) -> None:
    """Refuse a plan whose configuration, stages or strategies contradict its valid specs.

    Raises
    ------
    InputError
        Naming the first contradiction.
    """
    g = plan.configuration
    degrees = (
        *(g.pipeline, g.tensor, g.context, g.data, g.microbatch, g.microbatches, g.chunks),
        *(g.expert, g.expert_tensor),
    )
    interleaved = g.schedule == "interleaved"
    problems = (
        ("DEGREES_NOT_POSITIVE", min(degrees) < 1, f"degrees {degrees}"),
        ("DEVICES_DIFFER", g.devices != plan.cluster.devices, f"{g.devices} devices used"),
        (
            "BATCH_DIFFERS",
            g.microbatch * g.microbatches * g.data != plan.job.global_batch,
            f"{g.microbatch} x {g.microbatches} x {g.data} sequences per step",
        ),
        ("CHUNKS_WITHOUT_INTERLEAVING", (g.chunks > 1) != interleaved, f"{g.chunks} chunks"),
        (
            "MICROBATCHES_NOT_DIVISIBLE_BY_PP",
            interleaved and g.microbatches % g.pipeline != 0,
            f"{g.microbatches} microbatches on {g.pipeline} stages",
        ),
        ("STAGES_DIFFER", len(plan.sizes) != g.pipeline * g.chunks, f"{len(plan.sizes)} sizes"),
        (
            "LAYERS_DIFFER",
            sum(plan.sizes) != plan.model.layers
            or len(plan.strategies) != plan.model.layers
            or min(plan.sizes, default=0) < 1,
            f"{sum(plan.sizes)} layers placed, {len(plan.strategies)} strategies, "
            f"{plan.model.layers} layers",
        ),
        (
            "HEADS_NOT_DIVISIBLE_BY_TP",
            g.tensor > 0 and plan.model.heads % g.tensor != 0,
            f"{plan.model.heads} heads, tp={g.tensor}",
        ),
        (
            "SEQUENCE_NOT_DIVISIBLE_BY_CP",
            g.context > 1 and plan.job.sequence_length % (2 * g.context) != 0,
            f"{plan.job.sequence_length} tokens, cp={g.context}",
        ),
        (
            "ZERO_WITHOUT_DATA_PARALLEL",
            g.shards == 1 and any(s.zero != "0" for s in plan.strategies),
            "one rank per copy shards nothing",
        ),
        *_expert_problems(plan),
    )
    for code, broken, message in problems:
        if broken:
            raise InputError(code, message, "mend the plan, or let solve write one")


def _expert_problems(plan: Plan) -> tuple[tuple[str, bool, str], ...]:
    """Expert degrees fold over the ranks of a stage and divide what experts there are."""
    g, mixtures = plan.configuration, plan.model.all_experts
    degrees = f"ep={g.expert} etp={g.expert_tensor}"
    if min(g.expert, g.expert_tensor) < 1:  # refused before
        return ()
    return (
        (
            "EXPERT_DEGREE_WITHOUT_EXPERTS",
            not mixtures and g.expert * g.expert_tensor > 1,
            f"{degrees}, {plan.model.name} has no experts",
        ),
        (
            "EXPERTS_NOT_DIVISIBLE_BY_EP",
            any(e.count % g.expert for e in mixtures),
            f"{degrees}, experts {', '.join(str(e.count) for e in mixtures)}",
        ),
        (
            "EXPERT_FFN_NOT_DIVISIBLE_BY_ETP",
            any(e.ffn_hidden % g.expert_tensor for e in mixtures),
            f"{degrees}, widths {', '.join(str(e.ffn_hidden) for e in mixtures)}",
        ),
        (
            "EXPERT_DEGREES_NOT_DIVIDING_STAGE",
            g.tensor * g.shards % (g.expert * g.expert_tensor) != 0,
            f"{degrees}, {g.tensor * g.shards} devices of a stage",
        ),
    )


def read_certificate(path: str) -> Certificate:
    """The certificate of a certificate file, or of the result of ``solve``.

    Raises
    ------
    InputError
        If the file holds no certificate.
    """
    return certificate_of_document(read_document(path, MAX_RESULT_BYTES), path)


def certificate_of_document(data: Document, path: str) -> Certificate:
    """The certificate of a document that was read from ``path``; same errors."""
    inner = data.get("certificate", data)
    try:
        return msgspec.convert(inner, Certificate, strict=True)
    except (msgspec.ValidationError, ValueError) as error:
        raise InputError(
            "NOT_A_CERTIFICATE", f"{path}: {error}", "write one with solve -o"
        ) from None


def require_target(path: str) -> None:
    """Refuse an output path that cannot work, before anything long is started.

    Raises
    ------
    InputError
        ``CANNOT_WRITE``.
    """
    if path == "-":
        return
    target = Path(path)
    try:
        directory, folder = target.is_dir(), target.parent.is_dir()
    except OSError as error:  # a name too long for the file system, for instance
        reason = error.strerror or "no usable name"
        raise InputError("CANNOT_WRITE", f"{shown(path)}: {reason}", "choose another -o") from None
    if directory or not folder:
        reason = "it is a directory" if directory else "no such folder"
        raise InputError("CANNOT_WRITE", f"{shown(path)}: {reason}", "choose another -o")


def write_text(path: str, text: str) -> None:
    """Write a file whole or not at all; ``-`` is standard output.

    Raises
    ------
    InputError
        ``CANNOT_WRITE``.
    """
    if path == "-":
        sys.stdout.write(text)
        return
    with replacing(path, "choose another -o") as file:
        file.write(text.encode())


@contextmanager
def replacing(path: str, fix: str) -> Iterator[IO[bytes]]:
    """A file to fill that takes the place of ``path`` at the end, and vanishes on an error.

    Raises
    ------
    InputError
        ``CANNOT_WRITE``, with the fix given.
    """
    target = Path(path)
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".ilp_parallel-")
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
            os.chmod(temporary, 0o644)
            os.replace(temporary, target)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError("CANNOT_WRITE", f"{path}: {reason}", fix) from None
