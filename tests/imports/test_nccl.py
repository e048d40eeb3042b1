"""Bandwidth from the output of nccl-tests, and how it enters the links."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ilp_parallel.costs.hardware import Machine
from ilp_parallel.errors import InputError
from ilp_parallel.imports.nccl import (
    inter_bandwidth,
    intra_bandwidth,
    read_nccl,
    with_measured_links,
)
from ilp_parallel.jobs import JobRequest, complete_job
from tests.imports.runs import NCCL_HEADER, NCCL_ROWS

if TYPE_CHECKING:
    from pathlib import Path

ONE_HOST = NCCL_HEADER.replace("n2", "n1")


def file(tmp_path: Path, text: str) -> str:
    path = tmp_path / "nccl.txt"
    path.write_text(text)
    return str(path)


def test_median_of_the_large_sizes_counts() -> None:
    """1 GiB, 512 MiB and 256 MiB are large, 1 KiB is not."""
    result = read_nccl(NCCL_HEADER + NCCL_ROWS, "file")
    assert result.bus_bytes_per_s == 90e9
    assert (result.hosts, result.ranks_per_host, result.largest_bytes) == (2, 2, 2**30)


def test_between_nodes_every_rank_brings_an_adapter(tmp_path: Path) -> None:
    assert inter_bandwidth(file(tmp_path, NCCL_HEADER + NCCL_ROWS)) == 45e9
    assert intra_bandwidth(file(tmp_path, ONE_HOST + NCCL_ROWS)) == 90e9
    assert intra_bandwidth(file(tmp_path, NCCL_ROWS)) == 90e9


@pytest.mark.parametrize(
    ("code", "text", "function"),
    [
        ("NO_NCCL_ROWS", NCCL_HEADER, intra_bandwidth),
        ("NO_NCCL_ROWS", "1024 x y z 1 2 3 N/A\n", intra_bandwidth),
        ("NCCL_SEVERAL_HOSTS", NCCL_HEADER + NCCL_ROWS, intra_bandwidth),
        ("NCCL_ONE_HOST", ONE_HOST + NCCL_ROWS, inter_bandwidth),
        ("NCCL_RANKS_UNKNOWN", NCCL_ROWS, inter_bandwidth),
        ("NCCL_RANKS_UNEVEN", NCCL_HEADER.replace("n2", "n1", 1) + NCCL_ROWS, inter_bandwidth),
        ("OUT_OF_RANGE", "8 2 float sum -1 1 0 0.00 0\n", intra_bandwidth),
    ],
)
def test_refusals(tmp_path: Path, code: str, text: str, function: object) -> None:
    assert callable(function)
    with pytest.raises(InputError) as caught:
        function(file(tmp_path, text))
    assert caught.value.code == code


def test_large_messages_are_as_fast_as_measured(tmp_path: Path) -> None:
    """The share of the data sheet that the stack reaches is not taken off a second time."""
    job = complete_job(JobRequest("llama2-7b", cluster="a100-80gb:2x8", batch=64))
    (tmp_path / "intra").mkdir()
    intra = file(tmp_path / "intra", ONE_HOST + NCCL_ROWS)
    inter = file(tmp_path, NCCL_HEADER + NCCL_ROWS)
    measured = with_measured_links(job, intra, inter)
    machine = Machine(measured.cluster, measured.job)
    assert machine.intra_bytes_per_s == pytest.approx(90e9)
    assert machine.inter_bytes_per_s == pytest.approx(45e9)
    assert measured.assumed[-2:] == (
        "inside a node measured 90 GB/s",
        "between nodes measured 45 GB/s per device",
    )
    assert not any("300 GB/s" in text for text in measured.assumed)
