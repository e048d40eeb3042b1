"""Measured bandwidth of links from what nccl-tests print.

Rows hold size (bytes), count, type, operation, root, then time (us), algorithm and bus bandwidth
(GB/s) out of place, and the same in place; the header names the host of every rank. Bus bandwidth
is what each rank's link carries in one direction, whatever the collective (nccl-tests,
doc/PERFORMANCE.md). In a ring that leaves a node every rank in the node brings an adapter of its
own, so the link between nodes carries the bus bandwidth divided by the ranks of a node.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING

from ilp_parallel.costs.profile import rates_of
from ilp_parallel.errors import InputError
from ilp_parallel.specs.documents import read_text, shown
from ilp_parallel.specs.validate import LINK_LIMITS, check_cluster, require_in_range

if TYPE_CHECKING:
    from ilp_parallel.jobs import CompleteJob

_RANK = re.compile(r"#\s+Rank\s+[0-9]{1,6}\b.{0,80}?\bon\s+(\S{1,255})\s+device")
_LARGE = 4
"""Sizes from a quarter of the largest up count as large (chosen): the curve is flat there."""


@dataclass(frozen=True, slots=True)
class NcclResult:
    """Median bus bandwidth of the large sizes, and where the ranks were."""

    bus_bytes_per_s: float
    largest_bytes: int
    hosts: int | None  # None where the header is missing
    ranks_per_host: int | None


def read_nccl(text: str, origin: str) -> NcclResult:
    """The result of one run of nccl-tests.

    Raises
    ------
    InputError
        ``NO_NCCL_ROWS``; ``NCCL_RANKS_UNEVEN``; ``OUT_OF_RANGE``.
    """
    rows: list[tuple[int, float]] = []
    hosts: Counter[str] = Counter()
    for line in text.splitlines():
        rank = _RANK.match(line.strip())
        if rank is not None:
            hosts[rank[1]] += 1
        row = _row(line)
        if row is not None:
            rows.append(row)
    if not rows:
        raise InputError(
            "NO_NCCL_ROWS",
            f"{shown(origin)} has no rows of sizes and bandwidths",
            "give the output",
        )
    if len(set(hosts.values())) > 1:
        raise InputError(
            "NCCL_RANKS_UNEVEN", f"ranks per host {sorted(set(hosts.values()))}", "use equal nodes"
        )
    largest = max(size for size, _ in rows)
    bandwidth = median(busbw for size, busbw in rows if size * _LARGE >= largest) * 1e9
    require_in_range("busbw", bandwidth, LINK_LIMITS["bandwidth_bytes_per_s"], "bytes/s")
    each = next(iter(hosts.values())) if hosts else None
    return NcclResult(bandwidth, largest, len(hosts) or None, each)


def _row(line: str) -> tuple[int, float] | None:
    """Size and out-of-place bus bandwidth (GB/s) of a row of results."""
    words = line.split()
    if len(words) < 8 or not (words[0].isascii() and words[0].isdecimal()) or len(words[0]) > 15:
        return None
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{0,9})?", words[7]):
        return None
    return int(words[0]), float(words[7])


def intra_bandwidth(path: str) -> float:
    """Bytes per second and direction of a device's link inside a node.

    Raises
    ------
    InputError
        ``NCCL_SEVERAL_HOSTS``, or what :func:`read_nccl` raises.
    """
    result = read_nccl(read_text(path), path)
    if result.hosts is not None and result.hosts > 1:
        raise InputError(
            "NCCL_SEVERAL_HOSTS", f"{shown(path)} ran on {result.hosts} hosts", "give --nccl-inter"
        )
    return result.bus_bytes_per_s


def inter_bandwidth(path: str) -> float:
    """Bytes per second and direction of a device's share of the network.

    Raises
    ------
    InputError
        ``NCCL_RANKS_UNKNOWN`` without the header, ``NCCL_ONE_HOST``, or what :func:`read_nccl`
        raises.
    """
    result = read_nccl(read_text(path), path)
    if result.hosts is None or result.ranks_per_host is None:
        raise InputError(
            "NCCL_RANKS_UNKNOWN", f"{shown(path)} names no ranks", "keep the header lines"
        )
    if result.hosts == 1:
        raise InputError("NCCL_ONE_HOST", f"{shown(path)} ran on one host", "give --nccl-intra")
    return result.bus_bytes_per_s / result.ranks_per_host


def with_measured_links(job: CompleteJob, intra: str | None, inter: str | None) -> CompleteJob:
    """The job with links whose large messages are as fast as measured.

    A link's figure is that of its data sheet, of which the rates of the stack say how much is
    reached; what was measured is therefore divided by that share.
    """
    rates = job.job.rates or rates_of(job.cluster.device.generation, job.job.stack)
    cluster, said = job.cluster, list(job.assumed)
    if intra is not None:
        measured = intra_bandwidth(intra)
        link = replace(cluster.intra, bandwidth_bytes_per_s=measured / rates.intra)
        cluster = replace(cluster, intra=link)
        said.append(f"inside a node measured {measured / 1e9:.4g} GB/s")
    if inter is not None:
        measured = inter_bandwidth(inter)
        link = replace(cluster.inter, bandwidth_bytes_per_s=measured / rates.inter)
        cluster = replace(cluster, inter=link)
        said.append(f"between nodes measured {measured / 1e9:.4g} GB/s per device")
    check_cluster(cluster)
    stale = [w for w, p in (("inside a node", intra), ("between nodes", inter)) if p is not None]
    kept = [text for text in said if "measured" in text or not text.startswith(tuple(stale))]
    return replace(job, cluster=cluster, assumed=tuple(kept))
