"""Rules across model, cluster and job; values given on the command line."""

from dataclasses import replace

import msgspec
import pytest

from ilp_parallel.errors import InputError
from ilp_parallel.specs.job import JobSpec
from ilp_parallel.specs.overrides import GIB, parse_bandwidth, reserve_bytes, with_links
from ilp_parallel.specs.readers import load_cluster, load_model
from ilp_parallel.specs.validate import (
    check_job,
    default_precision,
    to_job,
    to_model,
)

JOB = JobSpec(global_batch=1536, sequence_length=2048)


def code_of(call: object, *arguments: object) -> str:
    assert callable(call)
    with pytest.raises(InputError) as caught:
        call(*arguments)
    assert str(caught.value).isprintable()
    return caught.value.code


def test_a_good_job_passes() -> None:
    check_job(load_model("gpt3"), load_cluster("a100-80gb:128x8"), JOB)
    check_job(load_model("gpt3"), load_cluster("h100"), replace(JOB, precision="fp8"))
    long = replace(JOB, sequence_length=131072)  # bloom has no learned positions
    check_job(load_model("bloom-176b"), load_cluster("a100"), long)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"global_batch": 0}, "OUT_OF_RANGE"),
        ({"global_batch": -1}, "OUT_OF_RANGE"),
        ({"global_batch": 1 << 30, "sequence_length": 2048}, "OUT_OF_RANGE"),
        ({"sequence_length": 0}, "OUT_OF_RANGE"),
        ({"sequence_length": 2049}, "SEQUENCE_LONGER_THAN_POSITIONS"),
        ({"tick_ns": 0}, "OUT_OF_RANGE"),
        ({"reserve_bytes": -1}, "OUT_OF_RANGE"),
        ({"reserve_bytes": 1 << 40}, "OUT_OF_RANGE"),
        ({"precision": "fp8"}, "PRECISION_NOT_ON_DEVICE"),
        ({"precision": "int3"}, "UNKNOWN_CHOICE"),
        ({"optimizer": "lion"}, "UNKNOWN_CHOICE"),
        ({"attention": "ring"}, "UNKNOWN_CHOICE"),
        ({"stack": "paper"}, "UNKNOWN_CHOICE"),
    ],
)
def test_bad_jobs(change: dict[str, object], code: str) -> None:
    job = replace(JOB, **change)  # type: ignore[arg-type]
    assert code_of(check_job, load_model("gpt3"), load_cluster("a100"), job) == code


def test_the_suggested_precision_is_one_that_passes() -> None:
    volta = load_cluster("v100")
    with pytest.raises(InputError) as caught:
        check_job(load_model("gpt3"), volta, JOB)
    assert caught.value.fix == "use --precision megatron-fp16"
    check_job(load_model("gpt3"), volta, replace(JOB, precision=default_precision(volta)))


def test_specifications_survive_json() -> None:
    model = load_model("llama3-8b")
    assert to_model(msgspec.json.decode(msgspec.json.encode(model)), "again") == model
    assert to_job(msgspec.json.decode(msgspec.json.encode(JOB)), "again") == JOB
    assert code_of(to_job, {"global_batch": 1}, "short") == "MISSING_FIELD"
    wrong = {"global_batch": 1, "sequence_length": "2"}
    assert code_of(to_job, wrong, "wrong") == "WRONG_TYPE"


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("200GB/s", 200e9),
        ("25 GB/s", 25e9),
        ("1.8TB/s", 1.8e12),
        ("100GiB/s", 100 * 2**30),
        ("400Gb/s", 50e9),
        ("400Gbps", 50e9),
        ("200Gbit/s", 25e9),
        ("2e11B/s", 2e11),
    ],
)
def test_bandwidths(text: str, bytes_per_s: float) -> None:
    assert parse_bandwidth(text) == pytest.approx(bytes_per_s, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        *((bad, "BAD_BANDWIDTH") for bad in ("", "200", "fast", "-1GB/s", "nanGB/s", "200GB")),
        *((bad, "BAD_BANDWIDTH") for bad in ("1" * 400 + "GB/s", "1e999GB/s", "2\nGB/s")),
        *((bad, "OUT_OF_RANGE") for bad in ("0GB/s", "1e9TB/s", "1B/s")),
    ],
)
def test_bad_bandwidths(text: str, code: str) -> None:
    assert code_of(parse_bandwidth, text) == code


def test_links_are_replaced_one_by_one() -> None:
    cluster = load_cluster("a100:2x8")
    assert with_links(cluster) == cluster
    slow = with_links(cluster, inter_bw="100Gb/s")
    assert slow.inter.bandwidth_bytes_per_s == 12.5e9
    assert slow.inter.latency_s == cluster.inter.latency_s
    assert slow.intra == cluster.intra
    fast = with_links(cluster, intra_bw="450GB/s")
    assert fast.intra.bandwidth_bytes_per_s == 450e9
    assert fast.inter == cluster.inter


def test_reserve() -> None:
    cluster = load_cluster("a100")
    assert reserve_bytes(cluster, 4.5) == 4.5 * GIB
    assert reserve_bytes(cluster, 1 / 3) == GIB // 3 + 1
    for bad in (-1.0, float("nan"), float("inf"), 80.0):
        assert code_of(reserve_bytes, cluster, bad) == "OUT_OF_RANGE"
