"""Values given on the command line that replace those of a cluster or a job."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from ilp_parallel.errors import InputError
from ilp_parallel.specs.documents import shown
from ilp_parallel.specs.validate import LINK_LIMITS, check_cluster, require_in_range

if TYPE_CHECKING:
    from ilp_parallel.specs.cluster import ClusterSpec

GIB = 1 << 30
"""Bytes of a GiB."""

_PREFIXES = {
    "": 1,
    "k": 10**3,
    "K": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 1 << 10,
    "Mi": 1 << 20,
    "Gi": 1 << 30,
    "Ti": 1 << 40,
}

_BANDWIDTH = re.compile(
    r"([0-9]{1,15}(?:\.[0-9]{0,15})?(?:[eE][+-]?[0-9]{1,2})?) ?([kKMGT]i?|)(?:(B|b|bit)/s|(bps))"
)


def parse_bandwidth(text: str) -> float:
    """Bytes per second of a text such as ``200GB/s``, ``186GiB/s`` or ``400Gb/s`` (bits).

    Raises
    ------
    InputError
        BAD_BANDWIDTH without a number and a unit, OUT_OF_RANGE beyond the limits of a link.
    """
    match = _BANDWIDTH.fullmatch(text.strip())
    if match is None:
        raise InputError(
            "BAD_BANDWIDTH", f"bandwidth {shown(text)}", "write a number and a unit: 200GB/s"
        )
    bits = match[3] != "B"
    value = float(match[1]) * _PREFIXES[match[2]] / (8 if bits else 1)
    require_in_range("bandwidth", value, LINK_LIMITS["bandwidth_bytes_per_s"], "bytes/s")
    return value


def with_links(
    cluster: ClusterSpec, intra_bw: str | None = None, inter_bw: str | None = None
) -> ClusterSpec:
    """The cluster with other link bandwidths, per direction and device; latencies stay.

    Raises
    ------
    InputError
        As :func:`parse_bandwidth`.
    """
    if intra_bw is not None:
        link = replace(cluster.intra, bandwidth_bytes_per_s=parse_bandwidth(intra_bw))
        cluster = replace(cluster, intra=link)
    if inter_bw is not None:
        link = replace(cluster.inter, bandwidth_bytes_per_s=parse_bandwidth(inter_bw))
        cluster = replace(cluster, inter=link)
    check_cluster(cluster)
    return cluster


def reserve_bytes(cluster: ClusterSpec, reserve_gib: float) -> int:
    """Bytes of ``--reserve-gib``, rounded up; less than the memory of a device.

    Raises
    ------
    InputError
        OUT_OF_RANGE if it is negative, not a number, or leaves nothing.
    """
    memory = cluster.device.memory_bytes
    require_in_range("reserve_gib", reserve_gib, (0.0, (memory - 1) / GIB), "GiB")
    return min(math.ceil(reserve_gib * GIB), memory - 1)
