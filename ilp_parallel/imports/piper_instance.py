"""Files of Piper's public planner: a layer graph with profiled modes, and the machine.

Numbers are read as decimals and kept exactly. The published program calls the microbatches of a
step ``mbsInBatch``; its notes say ``maxBatchSize``, which its code does not read, nor is it read
here. ``syncTimeFw`` belongs to the in-edges of a layer and ``syncTimeBw`` to its out-edges, and
both are bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from math import lcm
from typing import TYPE_CHECKING

import msgspec

from ilp_parallel.errors import InputError
from ilp_parallel.problems.downsets import topological_order
from ilp_parallel.problems.piper import Mode, PiperInstance
from ilp_parallel.specs.documents import read_text, shown

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_FILE_BYTES = 1 << 26
"""Largest file read (bytes, chosen): some hundred times the public ones."""

MAX_DEVICES = 10_000
"""Most devices, as in the published program."""

_EXPONENTS = range(-40, 31)
"""Decimal exponents of the numbers taken (chosen): beyond them no time or size is meant."""


class PiperMode(msgspec.Struct, frozen=True):
    """A way to run a layer ("TMPC" in the file)."""

    id: str
    timePerSample: Decimal  # seconds per microbatch
    parameterSize: Decimal  # bytes
    memoryUsageA: Decimal  # bytes per microbatch in flight
    memoryUsageB: Decimal  # bytes
    syncTimeFw: dict[str, Decimal]  # in-neighbour -> bytes
    syncTimeBw: dict[str, Decimal]  # out-neighbour -> bytes


class PiperNode(msgspec.Struct, frozen=True):
    """A layer."""

    id: int
    TMPCs: dict[str, list[PiperMode]]  # tensor degree -> modes
    name: str = ""


class PiperEdge(msgspec.Struct, frozen=True):
    """A tensor that one layer hands to another."""

    sourceId: int
    destId: int
    communicationCost: Decimal  # bytes


class PiperFile(msgspec.Struct, frozen=True):
    """A whole file, numbers as written."""

    maxMemoryPerDevice: Decimal  # bytes
    maxDevices: int
    bandwidth: Decimal  # bytes per second
    mbsInBatch: int
    nodes: list[PiperNode]
    edges: list[PiperEdge]


@dataclass(frozen=True, slots=True)
class Machine:
    """Values that replace those of a file where they are given."""

    devices: int | None = None
    memory_bytes: Decimal | None = None
    bandwidth_bytes_per_s: Decimal | None = None
    microbatches: int | None = None


def read_piper_file(path: str, machine: Machine | None = None) -> PiperFile:
    """A file, with the machine's values in place of its own.

    Raises
    ------
    InputError
        What :func:`~ilp_parallel.specs.documents.read_text` raises, ``BAD_PIPER_FILE`` for a wrong
        structure, and a code of its own for every rule of the format that is broken.
    """
    text = read_text(path, MAX_FILE_BYTES)
    try:
        file = msgspec.json.decode(text.encode(), type=PiperFile)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
        reason = shown(str(error).splitlines()[0])
        raise InputError(
            "BAD_PIPER_FILE", f"{shown(path)}: {reason}", "give a file of Piper's format"
        ) from None
    given = machine or Machine()
    file = msgspec.structs.replace(
        file,
        maxDevices=file.maxDevices if given.devices is None else given.devices,
        maxMemoryPerDevice=_or(given.memory_bytes, file.maxMemoryPerDevice),
        bandwidth=_or(given.bandwidth_bytes_per_s, file.bandwidth),
        mbsInBatch=file.mbsInBatch if given.microbatches is None else given.microbatches,
    )
    _check_machine(file)
    _check_graph(file)
    incident = _incident(file)
    for node in file.nodes:
        _check_node(node, incident[node.id])
    return file


def _or(given: Decimal | None, otherwise: Decimal) -> Decimal:
    return otherwise if given is None else given


def _check_machine(file: PiperFile) -> None:
    if not 1 <= file.maxDevices <= MAX_DEVICES:
        message = f"maxDevices is {shown(file.maxDevices)}"
        raise InputError("DEVICES_OUT_OF_RANGE", message, f"use 1 to {MAX_DEVICES}")
    if not 1 <= file.mbsInBatch < 2**31:
        message = f"mbsInBatch is {shown(file.mbsInBatch)}"
        raise InputError("MICROBATCHES_OUT_OF_RANGE", message, "use 1 to 2147483647")
    for field in ("maxMemoryPerDevice", "bandwidth"):
        value: Decimal = getattr(file, field)
        _check_number(field, value)
        if value <= 0:
            raise InputError("NOT_POSITIVE", f"{field} is {shown(value)}", "use a positive number")


def _check_number(where: str, value: Decimal) -> None:
    """A finite number of a usual size, not negative."""
    exponent = value.as_tuple().exponent
    sane = isinstance(exponent, int) and exponent >= _EXPONENTS[0] and value.adjusted() <= 30
    if not sane:
        raise InputError("NUMBER_OUT_OF_RANGE", f"{where} is {shown(value)}", "use 1e-40 to 1e30")
    if value < 0:
        raise InputError("NEGATIVE_VALUE", f"{where} is {shown(value)}", "use zero or more")


def _check_graph(file: PiperFile) -> None:
    if not file.nodes or not file.edges:
        raise InputError("EMPTY_GRAPH", "there are no nodes or no edges", "give both")
    place: dict[int, int] = {}
    for node in file.nodes:
        if node.id in place:
            raise InputError("DUPLICATE_NODE", f"two nodes have the id {node.id}", "number anew")
        place[node.id] = len(place)
    seen: set[tuple[int, int]] = set()
    for edge in file.edges:
        ends = (edge.sourceId, edge.destId)
        for end in ends:
            if end not in place:
                message = f"edge {ends[0]} -> {ends[1]} names node {end}, which is not there"
                raise InputError("UNKNOWN_NODE", message, "add the node or drop the edge")
        if ends in seen:
            message = f"edge {ends[0]} -> {ends[1]} appears twice"
            raise InputError("DUPLICATE_EDGE", message, "give it once, with the sum of its bytes")
        seen.add(ends)
        _check_number(f"communicationCost of {ends[0]} -> {ends[1]}", edge.communicationCost)
    if topological_order(len(place), [(place[u], place[v]) for u, v in seen]) is None:
        raise InputError("GRAPH_HAS_CYCLE", "the edges form a cycle", "give an acyclic graph")


_Incident = tuple[list[PiperEdge], list[PiperEdge]]
"""Edges that enter a node, edges that leave it."""


def _incident(file: PiperFile) -> dict[int, _Incident]:
    found: dict[int, _Incident] = {node.id: ([], []) for node in file.nodes}
    for edge in file.edges:
        found[edge.destId][0].append(edge)
        found[edge.sourceId][1].append(edge)
    return found


def _check_node(node: PiperNode, incident: _Incident) -> None:
    sources = {str(edge.sourceId) for edge in incident[0]}
    targets = {str(edge.destId) for edge in incident[1]}
    for degree, modes in node.TMPCs.items():
        where = f"node {node.id} at tensor degree {shown(degree)}"
        if not (degree.isascii() and degree.isdigit() and 1 <= int(degree[:9]) <= MAX_DEVICES):
            raise InputError("BAD_TENSOR_DEGREE", where, f"use 1 to {MAX_DEVICES}")
        if str(int(degree)) != degree:
            raise InputError("BAD_TENSOR_DEGREE", where, "write it without leading zeros")
        names = [mode.id for mode in modes]
        if len(set(names)) != len(names):
            raise InputError("DUPLICATE_MODE", f"{where} has two modes of one id", "rename one")
        for mode in modes:
            label = f"{where}, mode {shown(mode.id)}"
            for field in ("timePerSample", "parameterSize", "memoryUsageA", "memoryUsageB"):
                _check_number(f"{field} of {label}", getattr(mode, field))
            for field, wanted in (("syncTimeFw", sources), ("syncTimeBw", targets)):
                sync: dict[str, Decimal] = getattr(mode, field)
                if sync.keys() != wanted:
                    odd = shown(sorted(sync.keys() ^ wanted)[0])
                    message = f"{field} of {label} does not match its edges (node {odd})"
                    raise InputError("SYNC_DISAGREES_WITH_EDGES", message, "one key per neighbour")
                for value in sync.values():
                    _check_number(f"{field} of {label}", value)


def piper_instance(file: PiperFile, name: str = "") -> PiperInstance:
    """The instance of a file, exactly: decimals become integers over common denominators."""
    place = {node.id: number for number, node in enumerate(file.nodes)}
    edges = tuple((place[edge.sourceId], place[edge.destId]) for edge in file.edges)
    scale, incident = _Scale.of(file), _incident(file)
    degrees = sorted({int(t) for node in file.nodes for t, modes in node.TMPCs.items() if modes})
    replicas = min(file.mbsInBatch, file.maxDevices)
    return PiperInstance(
        name=name,
        layer_ids=tuple(node.id for node in file.nodes),
        layer_names=tuple(node.name for node in file.nodes),
        edges=edges,
        modes=tuple(_modes(node, incident[node.id], scale) for node in file.nodes),
        devices=file.maxDevices,
        microbatches=file.mbsInBatch,
        memory=int(Fraction(file.maxMemoryPerDevice) * scale.byte),
        units_per_second=scale.second,
        units_per_byte=scale.byte,
        data_degrees=tuple(d for d in range(1, replicas + 1) if file.mbsInBatch % d == 0),
        tensor_degrees=tuple(t for t in degrees if t <= file.maxDevices),
    )


@dataclass(frozen=True, slots=True)
class _Scale:
    """Units per second and per byte that make every number of a file an integer."""

    second: int
    byte: int
    transfer: Fraction  # seconds per byte that crosses a boundary
    resync: Fraction  # seconds per byte of weights, microbatch and further replica

    @classmethod
    def of(cls, file: PiperFile) -> _Scale:
        modes = [m for node in file.nodes for found in node.TMPCs.values() for m in found]
        bandwidth = Fraction(file.bandwidth)
        transfer, resync = 2 / bandwidth, 4 / (bandwidth * file.mbsInBatch)
        crossing = {Fraction(edge.communicationCost) for edge in file.edges}
        crossing |= {
            Fraction(value)
            for mode in modes
            for sync in (mode.syncTimeFw, mode.syncTimeBw)
            for value in sync.values()
        }
        seconds = {Fraction(mode.timePerSample) for mode in modes}
        seconds |= {value * transfer for value in crossing}
        seconds |= {Fraction(mode.parameterSize) * resync for mode in modes}
        bytes_ = {Fraction(value) for m in modes for value in (m.memoryUsageA, m.memoryUsageB)}
        bytes_.add(Fraction(file.maxMemoryPerDevice))
        return cls(_common(seconds), _common(bytes_), transfer, resync)


def _common(values: Iterable[Fraction]) -> int:
    return lcm(*{value.denominator for value in values})


def _modes(node: PiperNode, incident: _Incident, scale: _Scale) -> dict[int, tuple[Mode, ...]]:
    entering, leaving = incident

    def crossing(edge: PiperEdge, sync: Decimal) -> int:
        bytes_ = Fraction(edge.communicationCost) + Fraction(sync)
        return int(bytes_ * scale.transfer * scale.second)

    def mode(raw: PiperMode) -> Mode:
        return Mode(
            name=raw.id,
            time=int(Fraction(raw.timePerSample) * scale.second),
            resync=int(Fraction(raw.parameterSize) * scale.resync * scale.second),
            activation=int(Fraction(raw.memoryUsageA) * scale.byte),
            fixed=int(Fraction(raw.memoryUsageB) * scale.byte),
            enter=tuple(crossing(e, raw.syncTimeFw[str(e.sourceId)]) for e in entering),
            leave=tuple(crossing(e, raw.syncTimeBw[str(e.destId)]) for e in leaving),
        )

    return {int(t): tuple(map(mode, modes)) for t, modes in node.TMPCs.items() if modes}
