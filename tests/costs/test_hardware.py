"""Matmuls and collectives: limits that hold whatever the constants are."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ilp_parallel.costs.hardware import Machine
from ilp_parallel.errors import InputError
from ilp_parallel.specs.readers import load_cluster
from tests.costs.cases import A100, JOB

MACHINE = Machine(A100, JOB)
sizes = st.integers(1, 50_000)


@given(rows=sizes, columns=sizes, inner=sizes)
def test_a_matmul_is_bounded_by_peak_and_bandwidth(rows: int, columns: int, inner: int) -> None:
    seconds = MACHINE.matmul_s(rows, columns, inner)
    device = A100.device
    operands = 2 * (rows * inner + columns * inner + rows * columns)
    assert seconds > 2 * rows * columns * inner / device.peak_flops["bf16"]
    assert seconds > operands / device.memory_bandwidth_bytes_per_s
    assert MACHINE.matmul_s(rows + 1, columns, inner) >= seconds
    assert MACHINE.matmul_s(rows, columns, inner + 1) >= seconds


def test_large_matmuls_run_faster_than_small_ones() -> None:
    rates = [2 * n**3 / MACHINE.matmul_s(n, n, n) for n in (512, 2048, 8192, 32768)]
    assert rates == sorted(rates)
    assert rates[0] < 0.4 * rates[-1] < 0.4 * MACHINE.peak_flops


@pytest.mark.parametrize(
    ("ranks", "stride", "members"),
    [(2, 8, 1), (16, 1, 8), (16, 4, 2), (8, 2, 4)],
)
def test_a_ring_across_nodes_uses_a_card_per_member(ranks: int, stride: int, members: int) -> None:
    group = MACHINE.group(ranks, stride, A100.devices)
    expected = min(MACHINE.intra_bytes_per_s, members * MACHINE.inter_bytes_per_s)
    assert group.bandwidth_bytes_per_s == expected


@pytest.mark.parametrize(("ranks", "stride"), [(8, 1), (4, 2), (2, 4), (4, 1)])
def test_a_group_inside_a_node_uses_its_links(ranks: int, stride: int) -> None:
    group = MACHINE.group(ranks, stride, A100.devices)
    assert group.bandwidth_bytes_per_s == MACHINE.intra_bytes_per_s


def test_collectives_move_what_they_must() -> None:
    group = MACHINE.group(8, 1, A100.devices)
    size = 1e9
    assert group.gather_s(size) > 7 / 8 * size / A100.intra.bandwidth_bytes_per_s
    assert group.all_reduce_s(size) == 2 * group.gather_s(size)
    assert MACHINE.group(1, 8, A100.devices).gather_s(size) == 0


@given(traffic=st.floats(0, 1), hiding=st.floats(-1, 1))
def test_exposed_traffic_lies_between_a_share_and_all(traffic: float, hiding: float) -> None:
    exposed = MACHINE.exposed_s(traffic, hiding)
    assert 0 <= exposed <= traffic
    assert exposed >= traffic - max(hiding, 0.0) - 1e-12
    assert MACHINE.exposed_s(traffic, 1e9) == pytest.approx((1 - MACHINE.rates.overlap) * traffic)


def test_fp8_is_refused_where_there_is_none_and_faster_where_there_is() -> None:
    job = replace(JOB, precision="fp8")
    with pytest.raises(InputError, match="PRECISION_NOT_ON_DEVICE"):
        Machine(A100, job)
    h100 = load_cluster("h100-80gb:2x8")
    assert Machine(h100, job).matmul_flops > 1.4 * Machine(h100, JOB).matmul_flops


def test_more_nodes_straggle_and_lengthen_a_ring() -> None:
    few, many = (Machine(load_cluster(f"a100-80gb:{n}x8"), JOB) for n in (4, 64))
    assert few.straggling == pytest.approx(1 + 2 * few.rates.straggler)
    assert many.straggling == pytest.approx(1 + 6 * few.rates.straggler)
    assert many.group(512, 1, 512).latency_s > few.group(32, 1, 32).latency_s
    one_node = load_cluster("a100-80gb:1x8")
    assert Machine(one_node, JOB).straggling == 1.0


def test_adapters_bound_the_ring() -> None:
    free, one = (MACHINE.group(32, 1, A100.devices, adapters=n) for n in (None, 1))
    assert one.bandwidth_bytes_per_s == MACHINE.inter_bytes_per_s < free.bandwidth_bytes_per_s
    inside = MACHINE.group(8, 1, A100.devices, adapters=1)
    assert inside.bandwidth_bytes_per_s == MACHINE.intra_bytes_per_s


def test_given_rates_stand_in_for_the_shipped_ones() -> None:
    half = replace(MACHINE.rates, matmul=MACHINE.rates.matmul / 2)
    slow = Machine(A100, replace(JOB, rates=half))
    assert slow.matmul_flops == MACHINE.matmul_flops / 2
    assert slow.matmul_s(8192, 8192, 8192) > 1.9 * MACHINE.matmul_s(8192, 8192, 8192)
