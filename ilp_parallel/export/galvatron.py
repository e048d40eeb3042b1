"""A plan as Galvatron's strategy JSON, which has a strategy per layer as plans do.

Keys and rules: Galvatron commit cea12ff, ``runtime`` is galvatron/core/runtime/
hybrid_parallel_config.py, ``utils`` galvatron/utils/config_utils.py. Lists are texts of integers
joined by commas, one per layer. Data-parallel types are FSDP's: ``ddp`` replicates (``0``),
``zero2`` is SHARD_GRAD_OP, which gathers weights once per microbatch (``3-keep``), ``zero3`` is
FULL_SHARD (``3-regather``). ``default_dp_type`` is one of them for all layers not marked ZeRO 3.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ilp_parallel.errors import InputError
from ilp_parallel.export.base import (
    Exporter,
    ExportFile,
    Note,
    Violation,
    Written,
    common_notes,
    recomputed,
)
from ilp_parallel.export.deepspeed import BF16

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ilp_parallel.configuration import Zero
    from ilp_parallel.export.base import Layers
    from ilp_parallel.plan import Plan
    from ilp_parallel.specs.job import Precision

TYPES: dict[Zero, str] = {"0": "ddp", "3-keep": "zero2", "3-regather": "zero3"}
SCHEDULES = {"1f1b": "pipedream_flush", "gpipe": "gpipe"}
PER_LAYER = ("tp_sizes_enc", "tp_consecutive_flags", "dp_types_enc", "use_sp", "checkpoint")
MAX_LAYERS = 10**4


def numbers(value: object, name: str) -> tuple[int, ...]:
    """Integers of a comma-joined text.

    Raises
    ------
    InputError
        ``MALFORMED_LIST``.
    """
    parts = value.split(",") if isinstance(value, str) else []
    good = 0 < len(parts) <= MAX_LAYERS and all(
        part.strip().isascii() and part.strip().isdigit() and len(part) < 12 for part in parts
    )
    if not good:
        raise InputError("MALFORMED_LIST", f"{name} is no list", 'write a text such as "1,1,2"')
    return tuple(int(part) for part in parts)


@dataclass(frozen=True, slots=True)
class GalvatronRun:
    """A strategy file and the devices it is for."""

    document: Mapping[str, object]
    devices: int

    def integer(self, name: str, default: int | None = None) -> int:
        """A positive integer.

        Raises
        ------
        InputError
            ``MISSING_FIELD`` or ``WRONG_TYPE``.
        """
        value = self.document.get(name, default)
        if value is None:
            raise InputError("MISSING_FIELD", f"no {name}", f"add {name}")
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**40:
            raise InputError("WRONG_TYPE", name, "give a positive integer")
        return value

    def row(self, name: str) -> tuple[int, ...] | None:
        """A list, or None where absent; ``MALFORMED_LIST``."""
        value = self.document.get(name)
        return None if value is None else numbers(value, name)


def document(plan: Plan) -> dict[str, object]:
    """The strategy file as data."""
    g, layers = plan.configuration, plan.model.layers

    def row(values: list[int]) -> str:
        return ",".join(map(str, values))

    others: list[Zero] = [s.zero for s in plan.strategies if s.zero != "3-regather"]
    default = others[0] if others else "3-regather"
    return {
        "pp_deg": g.pipeline,
        "pp_division": row(list(plan.sizes)),
        "tp_sizes_enc": row([g.tensor] * layers),
        "tp_consecutive_flags": row([1] * layers),
        "dp_types_enc": row([int(s.zero == "3-regather") for s in plan.strategies]),
        "use_sp": row([0] * layers),
        "checkpoint": row([int(bool(s.recompute)) for s in plan.strategies]),
        "cp_sizes_enc": row([g.context] * layers),
        "global_bsz": plan.job.global_batch,
        "chunks": g.microbatches,
        "pipeline_type": SCHEDULES[g.schedule],
        "default_dp_type": TYPES[default],
        "vtp": g.tensor,
        "vsp": 0,
        "vcp": g.context,
        "vocab_sdp": int(default != "0"),
        "embed_sdp": int(default != "0"),
        "world_size": g.devices,
    }


def rows(run: GalvatronRun) -> Iterator[Violation]:
    """Every list has an entry per layer, flags are 0 or 1 (runtime: check_hp_config)."""
    layers = len(run.row("tp_sizes_enc") or ())
    for name in (*PER_LAYER, "cp_sizes_enc"):
        found = run.row(name)
        if found is not None and len(found) != layers:
            yield Violation("LISTS_DIFFER", f"{name} has {len(found)} entries, layers={layers}")
        if found is not None and not name.endswith("sizes_enc") and max(found) > 1:
            yield Violation("FLAG_NOT_0_OR_1", f"{name} has {max(found)}")


def degrees(run: GalvatronRun) -> Iterator[Violation]:
    """Pipeline degree divides the devices, and every tensor degree a stage (runtime)."""
    pipeline = run.integer("pp_deg")
    if run.devices % pipeline:
        yield Violation("DEVICES_NOT_DIVISIBLE", f"devices={run.devices}, pp={pipeline}")
        return
    stage = run.devices // pipeline
    wrong = sorted({t for t in run.row("tp_sizes_enc") or () if t < 1 or stage % t})
    if wrong:
        yield Violation("TP_NOT_DIVIDING_STAGE", f"tp={wrong[0]}, devices of a stage={stage}")


def division(run: GalvatronRun) -> Iterator[Violation]:
    """Stages hold all layers, one number each (runtime: pp_division)."""
    sizes, layers = run.row("pp_division"), len(run.row("tp_sizes_enc") or ())
    if sizes is not None and (len(sizes) != run.integer("pp_deg") or sum(sizes) != layers):
        yield Violation("STAGES_DIFFER", f"{len(sizes)} sizes, {sum(sizes)} of {layers} layers")


def batch(run: GalvatronRun) -> Iterator[Violation]:
    """Data ranks of the narrowest layer divide the batch (runtime:71)."""
    tensor = min((*(run.row("tp_sizes_enc") or (1,)), run.integer("vtp", 1)))
    context = min(run.row("cp_sizes_enc") or (1,))
    ranks = run.devices // max(1, run.integer("pp_deg") * tensor * context)
    total = run.integer("global_bsz")
    if ranks < 1 or total % ranks:
        yield Violation("GLOBAL_BATCH_NOT_DIVISIBLE", f"batch={total}, data ranks={ranks}")


def names(run: GalvatronRun) -> Iterator[Violation]:
    """Known names of schedules and data-parallel types (utils:24)."""
    kind = run.document.get("pipeline_type", "gpipe")
    if kind not in SCHEDULES.values():
        yield Violation("SCHEDULE_UNKNOWN", f"pipeline_type={kind!r}"[:100])
    default = run.document.get("default_dp_type", "ddp")
    if default not in TYPES.values():
        yield Violation("DP_TYPE_UNKNOWN", f"default_dp_type={default!r}"[:100])


RULES: tuple[Callable[[GalvatronRun], Iterator[Violation]], ...] = (
    rows,
    degrees,
    division,
    batch,
    names,
)


def validate_galvatron(run: GalvatronRun) -> tuple[Violation, ...]:
    """Every rule that a strategy file breaks.

    Raises
    ------
    InputError
        If a value is missing or has the wrong type.
    """
    return tuple(violation for rule in RULES for violation in rule(run))


def _lacks(plan: Plan) -> Iterator[str]:
    g = plan.configuration
    zeros = sorted({strategy.zero for strategy in plan.strategies})
    yield from (f"ZeRO {zero}" for zero in zeros if zero not in TYPES)
    if {"0", "3-keep"} <= set(zeros):
        yield "ZeRO 0 and 3-keep in one plan (one default_dp_type)"
    if g.schedule not in SCHEDULES:
        yield f"{g.schedule} schedule"
    if min(plan.sizes) < 1:
        yield "a stage without layers"


def _recomputations(plan: Plan) -> list[Layers]:
    """Any layer may be recomputed, but only as a whole."""
    return [tuple(("full",) if modules else () for modules in recomputed(plan))]


def _precision(plan: Plan) -> Precision | None:
    if plan.job.precision in BF16:
        return "fsdp-fp32-master"
    return "megatron-fp16" if plan.job.precision == "megatron-fp16" else None


def _notes(plan: Plan) -> Iterator[Note]:
    g = plan.configuration
    half = "fp16" if plan.job.precision == "megatron-fp16" else "bf16"
    parallel = " --sequence-parallel" if g.sequence_parallel else ""
    yield Note(
        "RUNTIME_ARGUMENTS",
        f"Train with --galvatron_config_path FILE --mixed_precision {half} "
        f"--seq-length {plan.job.sequence_length}{parallel}.",
    )
    yield from common_notes(plan, "fsdp", "Galvatron")


def _write(plan: Plan) -> Written:
    found = document(plan)
    g, cluster = plan.configuration, plan.cluster
    memory = cluster.device.memory_bytes >> 30
    half = "fp16" if plan.job.precision == "megatron-fp16" else "bf16"
    name = (
        f"galvatron_config_{plan.model.name}_{cluster.nodes}nodes_"
        f"{cluster.devices_per_node}gpus_per_node_{memory}GB_{half}.json"
    )
    run = GalvatronRun(found, g.devices)
    file = ExportFile("".join(c if c.isalnum() or c in "._-" else "_" for c in name), _json(found))
    return Written((file,), tuple(_notes(plan)), validate_galvatron(run))


def _json(found: dict[str, object]) -> str:
    return json.dumps(found, indent=4) + "\n"


EXPORTER = Exporter(
    "galvatron",
    "Galvatron",
    _lacks,
    _recomputations,
    _precision,
    _write,
    "solve with --space mixed --fix zero=3 --fix vpp=1",
)
