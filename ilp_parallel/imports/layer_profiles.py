"""Measured layer times from files: our own, Galvatron's computation profile, Piper's instances.

The format shows in the file.

* **Own**: ``{"schema": "ilp_parallel.layer_times/1", "layers": [{"tensor": 1, "microbatch": 1,
  "sequence_length": 2048, "forward_s": 0.004, "backward_s": 0.008}, ...]}``, the fields of
  :class:`~ilp_parallel.specs.layer_times.LayerTime`; ``backward_s`` may be left out.
* **Galvatron**: ``layertype_0_bsz8_seq2048`` holds milliseconds of one layer's forward for one of
  the 8 samples, on one GPU (PKU-DAIR/Hetu-Galvatron, galvatron/core/profiler/model_profiler.py:
  ``_process_computation_data`` divides by samples and layers, ``_launch_computation_profiling``
  sets ``global_tp_deg`` 1, ``profiling_general_args`` sets ``profile_forward``). What
  these were computed from (``layernum[2]_...``), embedding and head (``layertype_other_...``) and
  halves of a layer (``..._attention``, ``..._mlp``) are passed over.
* **Piper**: ``nodes`` named ``ParallelTransformerLayer`` are the blocks, as in the program's own
  baselines (msr-fiddle/piper, algo.cpp). ``TMPCs`` holds, by tensor degree, seconds of forward and
  backward of a microbatch: p with all activations kept (mode ``vanilla``), q with the block
  recomputed (``activation recomp``). The forward alone is therefore q - p, the backward 2p - q.
  How large a microbatch is the format does not say; ``microbatch`` (sequences) and
  ``sequence_length`` (tokens) must be added beside ``nodes``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ilp_parallel.errors import InputError
from ilp_parallel.imports.record import Fields, parse_json
from ilp_parallel.specs.documents import did_you_mean, read_text, shown
from ilp_parallel.specs.layer_times import LayerTime

if TYPE_CHECKING:
    from collections.abc import Mapping

LAYER_TIMES_SCHEMA = "ilp_parallel.layer_times/1"

PIPER_BLOCK = "ParallelTransformerLayer"
"""Name by which Piper's baselines know the repeated layer."""

PIPER_SPREAD = 0.1
"""Most that a block may differ from the mean of all (share of it, chosen) to be called equal."""

_GALVATRON = re.compile(r"layertype_([0-9]{1,3})_bsz([1-9][0-9]{0,11})_seq([1-9][0-9]{0,11})")
_PASSED_OVER = re.compile(
    r"layernum\[.*|layertype_other_.*|layertype_.*_(attention|mlp)", re.DOTALL
)
_DEGREE = re.compile(r"[1-9][0-9]{0,5}")


def read_layer_times(path: str) -> tuple[LayerTime, ...]:
    """The layer times in a file; ``-`` is standard input.

    Raises
    ------
    InputError
        What is wrong with the file, or what :func:`parse_layer_times` raises.
    """
    return parse_layer_times(read_text(path), path)


def parse_layer_times(text: str, origin: str) -> tuple[LayerTime, ...]:
    """The layer times in a text, by tensor degree, sequence length and microbatch.

    Figures are taken as they are; :func:`~ilp_parallel.specs.validate.check_job` checks them.

    Raises
    ------
    InputError
        ``LAYER_TIMES_FORMAT_UNKNOWN``; ``MALFORMED_JSON``, ``NOT_A_MAPPING``, ``WRONG_TYPE``,
        ``MISSING_FIELD``, ``UNKNOWN_FIELD`` or ``OUT_OF_RANGE``; ``NO_LAYER_TIMES``;
        ``GALVATRON_KEY_NOT_READ``, ``GALVATRON_SEVERAL_LAYER_TYPES``,
        ``PIPER_NO_REPEATED_BLOCK``, ``PIPER_MICROBATCH_OPEN``, ``PIPER_PASSES_NOT_APART`` or
        ``PIPER_BLOCKS_DIFFER`` for what does not map onto repeated blocks.
    """
    document, name = parse_json(text, origin), shown(origin)
    if document.get("schema") == LAYER_TIMES_SCHEMA:
        times = _own(document, name)
    elif "nodes" in document:
        times = _piper(document, name)
    elif any(key.startswith(("layertype_", "layernum[")) for key in document):
        times = _galvatron(document, name)
    else:
        raise InputError(
            "LAYER_TIMES_FORMAT_UNKNOWN",
            f"{name} is neither of schema {LAYER_TIMES_SCHEMA} nor a file of Galvatron or Piper",
            "give one of these",
        )
    if not times:
        raise InputError("NO_LAYER_TIMES", f"{name} has no times of whole layers", "measure some")
    return tuple(sorted(times, key=lambda t: (t.tensor, t.sequence_length, t.microbatch)))


def _own(document: Mapping[str, object], name: str) -> list[LayerTime]:
    _refuse_unknown(document, ("schema", "layers"), name)
    times = []
    for i, entry in enumerate(_objects(document, "layers", name)):
        fields = Fields(entry, f"{name}: layers[{i}]")
        _refuse_unknown(entry, tuple(LayerTime.__dataclass_fields__), fields.where)
        times.append(
            LayerTime(
                tensor=fields.required("tensor"),
                microbatch=fields.required("microbatch"),
                sequence_length=fields.required("sequence_length"),
                forward_s=_number(fields, "forward_s"),
                backward_s=fields.number("backward_s"),
            )
        )
    return times


def _galvatron(document: Mapping[str, object], name: str) -> list[LayerTime]:
    times, fields = [], Fields(document, name)
    for key in document:
        if _PASSED_OVER.fullmatch(key):
            continue
        match = _GALVATRON.fullmatch(key)
        if match is None:
            raise InputError(
                "GALVATRON_KEY_NOT_READ",
                f"{name}: {shown(key)} does not state layer type, batch size and sequence length",
                "give keys such as layertype_0_bsz8_seq2048",
            )
        kind, microbatch, sequence = map(int, match.groups())
        if kind:
            raise InputError(
                "GALVATRON_SEVERAL_LAYER_TYPES",
                f"{name}: {shown(key)} is of a second type of layer",
                "give the profile of a model whose layers are alike",
            )
        forward_s = _number(fields, key) * microbatch / 1e3
        times.append(LayerTime(1, microbatch, sequence, forward_s))
    return times


def _piper(document: Mapping[str, object], name: str) -> list[LayerTime]:
    blocks = [n for n in _objects(document, "nodes", name) if n.get("name") == PIPER_BLOCK]
    if not blocks:
        raise InputError(
            "PIPER_NO_REPEATED_BLOCK",
            f"{name} has no layer named {PIPER_BLOCK}",
            "give a transformer, or name its layers so",
        )
    fields = Fields(document, name)
    microbatch, sequence = fields.integer("microbatch"), fields.integer("sequence_length")
    if microbatch is None or sequence is None:
        raise InputError(
            "PIPER_MICROBATCH_OPEN",
            f"{name} does not say how large a microbatch is",
            "add microbatch (sequences) and sequence_length (tokens) beside nodes",
        )
    rows = [_piper_modes(Fields(block, f"{name}: {PIPER_BLOCK}")) for block in blocks]
    if any(row.keys() != rows[0].keys() for row in rows):
        raise _blocks_differ(name, "offer different tensor degrees")
    times = []
    for tensor in rows[0]:
        kept, recomputed = (_mean([row[tensor][k] for row in rows], name) for k in (0, 1))
        if not kept < recomputed < 2 * kept:
            raise _not_apart(f"{name}: tensor degree {tensor}", kept, recomputed)
        times.append(
            LayerTime(tensor, microbatch, sequence, recomputed - kept, 2 * kept - recomputed)
        )
    return times


def _piper_modes(block: Fields) -> dict[int, tuple[float, float]]:
    """Seconds of a block with everything kept and recomputed, by tensor degree."""
    found = {}
    degrees = block.section("TMPCs")
    for degree in degrees.data:
        where = f"{block.where}: TMPCs {shown(degree)}"
        if not _DEGREE.fullmatch(degree):
            raise InputError("WRONG_TYPE", where, "name tensor degrees by whole numbers")
        seconds = {}
        for mode in _objects(degrees.data, degree, where):
            fields = Fields(mode, where)
            seconds[fields.text("id")] = _number(fields, "timePerSample")
        kept, recomputed = seconds.get("vanilla"), seconds.get("activation recomp")
        if kept is None or recomputed is None:
            raise _not_apart(where, kept, recomputed)
        found[int(degree)] = kept, recomputed
    return found


def _mean(values: list[float], name: str) -> float:
    """The mean of what the blocks take, if they are alike."""
    mean = sum(values) / len(values)
    if max(abs(value - mean) for value in values) > PIPER_SPREAD * mean:
        raise _blocks_differ(name, f"take {min(values):.3g} to {max(values):.3g} s")
    return mean


def _not_apart(where: str, kept: float | None, recomputed: float | None) -> InputError:
    known = [f"{s:.4g} s" if s is not None else "not given" for s in (kept, recomputed)]
    return InputError(
        "PIPER_PASSES_NOT_APART",
        f"{where}: a microbatch with all kept {known[0]}, recomputed {known[1]}",
        "give both modes; their difference is the forward, less than the backward and above 0",
    )


def _blocks_differ(name: str, how: str) -> InputError:
    return InputError("PIPER_BLOCKS_DIFFER", f"{name}: blocks {how}", "blocks must be alike")


def _number(fields: Fields, name: str) -> float:
    """A number that must be there."""
    value = fields.number(name)
    if value is None:
        raise InputError("MISSING_FIELD", f"{fields.where}: no {shown(name)}", "add it")
    return value


def _objects(data: Mapping[str, object], key: str, name: str) -> list[dict[str, object]]:
    """A list of mappings with text keys."""
    values = data.get(key)
    if not isinstance(values, list):
        raise InputError("WRONG_TYPE", f"{name}: {shown(key)} is no list", "give a list")
    for value in values:
        if not isinstance(value, dict):
            kind = type(value).__name__
            raise InputError("WRONG_TYPE", f"{name}: {shown(key)} holds a {kind}", "give objects")
    return values


def _refuse_unknown(data: Mapping[str, object], known: tuple[str, ...], where: str) -> None:
    for key in data:
        if key not in known:
            fix = did_you_mean(key, known, "remove it")
            raise InputError("UNKNOWN_FIELD", f"{where}: field {shown(key)}", fix)
