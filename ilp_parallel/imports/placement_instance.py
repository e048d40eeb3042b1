"""Files of the published device-placement format (NeurIPS 2020)."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import networkx as nx

from ilp_parallel.errors import InputError
from ilp_parallel.problems.placement import PlacementInstance

MAX_FILE_BYTES = 2**28
"""Largest file that is read."""

_LARGEST_TOTAL_TICKS = 2**60
"""All times of an instance together stay below, so that sums fit in 64 bits."""

_MOST_DIGITS = 18
_LARGEST_BYTES = 2**60
_MOST_DEVICES = 1024
_COST_TOLERANCE = Fraction(1, 10**6)


def read_placement_instance(path: str) -> PlacementInstance:
    """The instance in a throughput file; times become exact integers where 64 bits hold them.

    Raises
    ------
    InputError
        ``FILE_UNREADABLE``, ``FILE_TOO_LARGE`` or ``BAD_PLACEMENT_FILE``.
    """
    try:
        if Path(path).stat().st_size > MAX_FILE_BYTES:
            raise InputError("FILE_TOO_LARGE", f"{path} exceeds {MAX_FILE_BYTES} bytes")
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise InputError("FILE_UNREADABLE", f"{path}: {error}", "check the path") from None
    except UnicodeDecodeError as error:
        raise _bad(f"{path}: {error}") from None
    try:
        return _instance(json.loads(text, parse_float=Decimal))
    except InputError as error:
        raise InputError(error.code, f"{path}: {error.message}", error.fix) from None
    except (ValueError, RecursionError) as error:
        raise _bad(f"{path}: {error}") from None


def _bad(message: str, fix: str = "give a file of the device-placement format") -> InputError:
    return InputError("BAD_PLACEMENT_FILE", message, fix)


def _rows(document: object, name: str) -> list[dict[str, object]]:
    if not isinstance(document, dict):
        raise _bad("the top level is not an object")
    rows = document.get(name)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise _bad(f"{name} is not a list of objects")
    return rows


def _number(row: dict[str, object], key: str, where: str, default: int | None = None) -> Fraction:
    value = row.get(key, default)
    if value is None:
        raise _bad(f"{where}: {key} is missing", f"add {key}")
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise _bad(f"{where}: {key} is not a number")
    decimal = Decimal(value)
    if not decimal.is_finite() or not -400 < decimal.adjusted() < 40:
        raise _bad(f"{where}: {key}={value} is out of range")
    if decimal < 0:
        raise _bad(f"{where}: {key}={value} is negative", f"use {key} >= 0")
    return Fraction(decimal)


def _whole(row: dict[str, object], key: str, where: str, limit: int) -> int:
    value = _number(row, key, where)
    if value.denominator != 1 or value > limit:
        raise _bad(f"{where}: {key} is not a whole number up to {limit}")
    return int(value)


def _instance(document: dict[str, object]) -> PlacementInstance:
    nodes, links = _rows(document, "nodes"), _rows(document, "edges")
    names = [_whole(node, "id", f"node number {i}", 2**62) for i, node in enumerate(nodes)]
    place = {name: i for i, name in enumerate(names)}
    if len(place) != len(names):
        raise _bad("an id is used by two nodes", "give every node its own id")
    if not names:
        raise _bad("there are no nodes")
    edges, transfer = _edges(links, place)
    where = [f"node {name}" for name in names]
    keys = ("cpuLatency", "fpgaLatency")
    cpu, accelerator = (
        [_number(node, key, at) for node, at in zip(nodes, where, strict=True)] for key in keys
    )
    digits, rounded = _digits([*cpu, *accelerator, *transfer])
    scale = 10**digits
    backward = tuple(_flag(n, "isBackwardNode", at) for n, at in zip(nodes, where, strict=True))
    _require_order(edges, backward, names)
    sizes = [_number(n, "size", at, 0) for n, at in zip(nodes, where, strict=True)]
    if sum(sizes) > _LARGEST_BYTES:
        raise _bad("sizes together exceed 2^60 bytes")
    return PlacementInstance(
        names=tuple(names),
        cpu_ticks=tuple(math.ceil(value * scale) for value in cpu),
        accelerator_ticks=tuple(math.ceil(value * scale) for value in accelerator),
        transfer_ticks=tuple(math.ceil(value * scale) for value in transfer),
        size_bytes=tuple(map(math.ceil, sizes)),
        supported=tuple(
            _flag(n, "supportedOnFpga", at) for n, at in zip(nodes, where, strict=True)
        ),
        backward=backward,
        colours=_colours(nodes, where),
        edges=tuple(edges),
        limit_bytes=min(int(_number(document, "maxSizePerFPGA", "top level")), 2 * _LARGEST_BYTES),
        accelerators=_whole(document, "maxFPGAs", "top level", _MOST_DEVICES),
        cpus=_whole(document, "maxCPUs", "top level", _MOST_DEVICES),
        ticks_per_unit=scale,
        rounded_terms=rounded,
    )


def _flag(node: dict[str, object], key: str, where: str) -> bool:
    value = node.get(key)
    return value if isinstance(value, bool) else _whole(node, key, where, 1) == 1


def _colours(nodes: list[dict[str, object]], where: list[str]) -> tuple[int, ...]:
    """Colour classes numbered from 0; an operator without one is a class of its own."""
    numbers: dict[tuple[str, int], int] = {}
    found = []
    for i, (node, at) in enumerate(zip(nodes, where, strict=True)):
        given = node.get("colorClass")
        if given is not None and (isinstance(given, bool) or not isinstance(given, int)):
            raise _bad(f"{at}: colorClass is not a whole number")
        key = ("own", i) if given is None else ("class", given)
        found.append(numbers.setdefault(key, len(numbers)))
    return tuple(found)


def _edges(
    links: list[dict[str, object]], place: dict[int, int]
) -> tuple[list[tuple[int, int]], list[Fraction]]:
    edges: list[tuple[int, int]] = []
    costs: list[list[Fraction]] = [[] for _ in place]
    for i, link in enumerate(links):
        where = f"edge number {i}"
        ends = [_whole(link, key, where, 2**62) for key in ("sourceId", "destId")]
        for end in ends:
            if end not in place:
                raise _bad(f"{where}: there is no node {end}", "name a node of the file")
        edges.append((place[ends[0]], place[ends[1]]))
        costs[edges[-1][0]].append(_number(link, "cost", where))
    for name, u in place.items():
        if costs[u] and max(costs[u]) - min(costs[u]) > _COST_TOLERANCE:
            raise _bad(
                f"edges out of node {name} cost {float(min(costs[u]))} and {float(max(costs[u]))}",
                "give all edges of a source the same cost",
            )
    return sorted(set(edges)), [max(found, default=Fraction(0)) for found in costs]


def _require_order(
    edges: list[tuple[int, int]], backward: tuple[bool, ...], names: list[int]
) -> None:
    for u, v in edges:
        if backward[u] and not backward[v]:
            raise _bad(f"backward node {names[u]} feeds forward node {names[v]}", "drop that edge")
    graph = nx.DiGraph(edges)
    if not nx.is_directed_acyclic_graph(graph):
        cycle = [names[u] for u, _ in nx.find_cycle(graph)]
        raise _bad(f"nodes {cycle[:6]} form a cycle", "drop an edge of it")


def _digits(times: list[Fraction]) -> tuple[int, int]:
    """Decimal digits of a tick, and how many times it rounds."""
    total = 3 * sum(times) + 1
    for digits in range(_MOST_DIGITS, -1, -1):
        if total * 10**digits < _LARGEST_TOTAL_TICKS:
            break
    else:
        raise _bad("times are too large for 64 bits", "use a larger unit of time")
    while digits and all((t * 10 ** (digits - 1)).denominator == 1 for t in times):
        digits -= 1
    return digits, sum((time * 10**digits).denominator != 1 for time in times)
