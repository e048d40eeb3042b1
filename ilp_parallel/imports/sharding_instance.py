"""Files of the ASPLOS 2025 contest on intra-operator parallelism: instances and solutions."""

from __future__ import annotations

import gzip
import zlib
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ilp_parallel.errors import InputError
from ilp_parallel.problems.sharding import FORBIDDEN, ShardingInstance, offsets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ilp_parallel.problems.sharding import IntArray

MAX_FILE_BYTES = 2**30
"""Largest file that is read, unpacked."""

_LARGEST_SUM = 2**58
"""Allowed costs of a whole plan must stay below, so that presolve may add them in 64 bits."""


class _Nodes(msgspec.Struct):
    intervals: list[tuple[int, int]]
    costs: list[list[int | float]]
    usages: list[list[int]]


class _Edges(msgspec.Struct):
    nodes: list[tuple[int, int]]
    costs: list[list[int | float]]


class _Problem(msgspec.Struct):
    nodes: _Nodes
    edges: _Edges
    usage_limit: int
    name: str = ""


class _File(msgspec.Struct):
    problem: _Problem


def read_sharding_instance(path: str) -> ShardingInstance:
    """The instance in a contest file, plain or compressed with gzip.

    Raises
    ------
    InputError
        ``FILE_UNREADABLE``, ``BAD_SHARDING_FILE`` or ``COSTS_TOO_LARGE``.
    """
    try:
        return _instance(msgspec.json.decode(_content(path), type=_File).problem, path)
    except (msgspec.DecodeError, msgspec.ValidationError, OverflowError) as error:
        raise InputError(
            "BAD_SHARDING_FILE", f"{path}: {error}", "give a file of the contest's format"
        ) from None


def _content(path: str) -> bytes:
    try:
        with Path(path).open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if packed else Path(path).open("rb") as file:
            content: bytes = file.read(MAX_FILE_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError("FILE_UNREADABLE", f"{path}: {error}", "check the path") from None
    if len(content) > MAX_FILE_BYTES:
        raise InputError("FILE_TOO_LARGE", f"{path} exceeds {MAX_FILE_BYTES} bytes")
    return content


def _instance(problem: _Problem, path: str) -> ShardingInstance:
    nodes, edges = problem.nodes, problem.edges
    _require(
        len(nodes.intervals) == len(nodes.costs) == len(nodes.usages),
        f"{path}: {len(nodes.intervals)} intervals, {len(nodes.costs)} costs, "
        f"{len(nodes.usages)} usages",
    )
    _require(
        len(edges.nodes) == len(edges.costs),
        f"{path}: {len(edges.nodes)} edges, {len(edges.costs)} edge costs",
    )
    sizes = np.array([len(row) for row in nodes.costs], dtype=np.int64)
    used = np.array([len(row) for row in nodes.usages], dtype=np.int64)
    for v in np.flatnonzero((sizes == 0) | (sizes != used))[:1]:
        _require(False, f"{path}: node {v} has {sizes[v]} costs and {used[v]} usages")
    ends = np.array(edges.nodes, dtype=np.int64).reshape(-1, 2)
    outside = (ends < 0) | (ends >= len(sizes)) | (ends[:, :1] == ends[:, 1:])
    for e in np.flatnonzero(outside.any(axis=1))[:1]:
        _require(False, f"{path}: edge {e} joins nodes {edges.nodes[e]}")
    pairs = np.array([len(row) for row in edges.costs], dtype=np.int64)
    wrong = pairs != sizes[ends[:, 0]] * sizes[ends[:, 1]] if len(pairs) else pairs
    for e in np.flatnonzero(wrong)[:1]:
        _require(False, f"{path}: edge {e} has {pairs[e]} costs, not one per pair of strategies")
    times = np.array(nodes.intervals, dtype=np.int64).reshape(-1, 2)
    usage = np.fromiter(chain.from_iterable(nodes.usages), np.int64)
    _require(not len(usage) or int(usage.min()) >= 0, f"{path}: a usage is negative")
    _require(float(usage.sum(dtype=np.float64)) < 2**62, f"{path}: usages exceed 64 bits")
    first = offsets(sizes)
    instance = ShardingInstance(
        name=problem.name,
        limit=problem.usage_limit,
        first=first,
        cost=_costs(nodes.costs, path),
        edge_from=ends[:, 0].copy(),
        edge_to=ends[:, 1].copy(),
        edge_first=offsets(pairs),
        edge_cost=_costs(edges.costs, path),
        piece_operator=np.arange(len(sizes), dtype=np.int64),
        piece_start=times[:, 0].copy(),
        piece_end=times[:, 1].copy(),
        piece_first=first,
        piece_usage=usage,
    )
    _check_magnitude(instance, path)
    return instance


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise InputError("BAD_SHARDING_FILE", message, "correct the file")


def _costs(rows: Sequence[Sequence[int | float]], path: str) -> IntArray:
    """Flat integer costs; what is at least ``FORBIDDEN`` becomes ``FORBIDDEN``."""
    values = [v if v < FORBIDDEN else FORBIDDEN for v in chain.from_iterable(rows)]
    flat = np.array(values, dtype=np.int64)
    _require(
        not any(isinstance(v, float) and not v.is_integer() for v in values),
        f"{path}: a cost is no integer",
    )
    _require(not len(flat) or int(flat.min()) >= 0, f"{path}: a cost is negative")
    return flat


def _check_magnitude(instance: ShardingInstance, path: str) -> None:
    total = 0.0
    for cost, first in (
        (instance.cost, instance.first),
        (instance.edge_cost, instance.edge_first),
    ):
        allowed = np.where(cost < FORBIDDEN, cost, 0)
        if len(allowed):
            total += float(np.maximum.reduceat(allowed, first[:-1]).sum(dtype=np.float64))
    if total >= _LARGEST_SUM:
        raise InputError(
            "COSTS_TOO_LARGE", f"{path}: a plan may cost {total:.3g}", "scale the costs down"
        )


def read_sharding_solution(path: str) -> IntArray:
    """The strategies in a solution file: a list with one index per operator.

    Raises
    ------
    InputError
        ``FILE_UNREADABLE`` or ``BAD_SHARDING_SOLUTION``.
    """
    try:
        return np.array(msgspec.json.decode(_content(path), type=list[int]), dtype=np.int64)
    except (msgspec.DecodeError, msgspec.ValidationError, OverflowError) as error:
        raise InputError(
            "BAD_SHARDING_SOLUTION", f"{path}: {error}", "give a list with one index per operator"
        ) from None


def sharding_solution_text(strategies: IntArray) -> str:
    """A solution in the contest's format."""
    return msgspec.json.encode(strategies.tolist()).decode() + "\n"
