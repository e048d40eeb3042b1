"""Runs from Galvatron's strategy JSON, which :mod:`ilp_parallel.export.galvatron` describes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ilp_parallel.errors import InputError
from ilp_parallel.export.galvatron import SCHEDULES, TYPES, GalvatronRun, validate_galvatron
from ilp_parallel.imports.record import Imported, parse_json, quotient

if TYPE_CHECKING:
    from ilp_parallel.configuration import Zero
    from ilp_parallel.problems.pipeline import Schedule

_ZERO: dict[str, Zero] = {name: zero for zero, name in TYPES.items()}
_SCHEDULE: dict[str, Schedule] = {"pipedream_flush": "1f1b", "gpipe": "gpipe"}
assert set(_SCHEDULE) == set(SCHEDULES.values())


def read_galvatron(text: str, origin: str, devices: int | None) -> Imported:
    """The run that a strategy file describes.

    Raises
    ------
    InputError
        ``MALFORMED_JSON``, ``MALFORMED_LIST``, ``WRONG_TYPE``, ``MISSING_FIELD``; the code of the
        first rule of Galvatron that is broken; ``GALVATRON_SETTING_NOT_READ``.
    """
    document = parse_json(text, origin)
    stated = GalvatronRun(document, 1).integer("world_size", devices)
    if devices is not None and stated != devices:
        raise InputError(
            "DEVICES_DIFFER", f"world_size={stated}, cluster of {devices}", "change --cluster"
        )
    run = GalvatronRun(document, stated)
    tensors = run.row("tp_sizes_enc")
    if tensors is None:
        raise InputError("MISSING_FIELD", "no tp_sizes_enc", "add it")
    for violation in validate_galvatron(run):
        raise InputError(violation.code, violation.message, "mend the strategy file")
    _refuse(run, tensors)
    layers, pipeline = len(tensors), run.integer("pp_deg")
    context = (run.row("cp_sizes_enc") or (1,))[0]
    data = quotient(stated, pipeline * tensors[0] * context, "devices by the other degrees")
    batch, microbatches = run.integer("global_bsz"), run.integer("chunks")
    default = _ZERO[str(document.get("default_dp_type", "ddp"))]
    sharded = run.row("dp_types_enc") or (0,) * layers
    checkpointed = run.row("checkpoint") or (0,) * layers
    return Imported(
        form="galvatron",
        stack="fsdp",
        shapes={"layers": layers},
        devices=stated,
        global_batch=batch,
        pipeline=pipeline,
        tensor=tensors[0],
        context=context,
        data=data,
        microbatch=quotient(batch, data * microbatches, "batch by data ranks times chunks"),
        microbatches=microbatches,
        chunks=1,
        schedule=_SCHEDULE[str(document.get("pipeline_type", "gpipe"))],
        sizes=_sizes(run, layers, pipeline),
        zero=tuple("3-regather" if flag else default for flag in sharded),
        recompute=tuple(("full",) if flag else () for flag in checkpointed),
    )


def _refuse(run: GalvatronRun, tensors: tuple[int, ...]) -> None:
    if len(set(tensors)) > 1:
        raise _not_read("a tensor degree per layer")
    if any(run.row("use_sp") or ()):
        raise _not_read("use_sp (Ulysses)")
    if len(set(run.row("cp_sizes_enc") or (1,))) > 1:
        raise _not_read("a context degree per layer")
    for name in ("ep_sizes_enc", "tp_of_ep_sizes_enc"):
        if max(run.row(name) or (1,)) > 1:
            raise _not_read(name)


def _sizes(run: GalvatronRun, layers: int, pipeline: int) -> tuple[int, ...]:
    """Layers per stage; without a division the remainder is on the last one (runtime)."""
    given = run.row("pp_division")
    if given is not None:
        return given
    each = layers // pipeline
    if each < 1:
        raise InputError(
            "MORE_STAGES_THAN_LAYERS", f"pp_deg={pipeline}, layers={layers}", "use fewer stages"
        )
    return (*(each,) * (pipeline - 1), layers - each * (pipeline - 1))


def _not_read(what: str) -> InputError:
    return InputError(
        "GALVATRON_SETTING_NOT_READ", f"{what} has no counterpart in a plan", "make it uniform"
    )
