"""The specification of placement: loads by hand, and every rule both held and broken."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ilp_parallel.problems.placement import PlacementInstance, evaluate

CHAIN = PlacementInstance(
    names=(1, 2, 3),
    cpu_ticks=(10, 20, 30),
    accelerator_ticks=(1, 2, 3),
    transfer_ticks=(5, 7, 0),
    size_bytes=(4, 4, 4),
    supported=(True, True, True),
    backward=(False, False, False),
    colours=(0, 1, 2),
    edges=((0, 1), (0, 2), (1, 2)),
    limit_bytes=8,
    accelerators=2,
    cpus=1,
    ticks_per_unit=1,
    rounded_terms=0,
)


def test_a_producer_pays_once_out_and_once_in_per_reading_accelerator() -> None:
    verdict = evaluate(CHAIN, (0, 1, 1))
    assert verdict.feasible
    assert verdict.loads_ticks == (1 + 5, 2 + 3 + 5, 0)


def test_a_cpu_pays_no_transfer() -> None:
    assert evaluate(CHAIN, (2, 0, 0)).loads_ticks == (5 + 5, 0, 10)


@pytest.mark.parametrize(
    ("changed", "devices", "broken"),
    [
        (replace(CHAIN, supported=(False, True, True)), (0, 1, 1), "operators supported"),
        (CHAIN, (0, 0, 0), "memory of accelerators"),
        (replace(CHAIN, colours=(0, 0, 1)), (0, 1, 1), "colour classes together"),
        (CHAIN, (0, 1, 0), "devices in a linear order"),
        (CHAIN, (0, 1, 3), "every operator on one device"),
    ],
)
def test_each_rule_can_break(
    changed: PlacementInstance, devices: tuple[int, ...], broken: str
) -> None:
    verdict = evaluate(changed, devices, "chain")
    assert [check.name for check in verdict.checks if not check.passed] == [broken]


def test_convex_devices_may_depend_on_each_other() -> None:
    crossed = replace(
        CHAIN,
        **{
            name: getattr(CHAIN, name)[:1] * 4
            for name in ("cpu_ticks", "accelerator_ticks", "transfer_ticks", "size_bytes")
        },
        names=(1, 2, 3, 4),
        supported=(True,) * 4,
        backward=(False,) * 4,
        colours=(0, 1, 2, 3),
        edges=((0, 1), (2, 3)),
    )
    assert evaluate(crossed, (0, 1, 1, 0), "contiguous").feasible
    assert not evaluate(crossed, (0, 1, 1, 0), "chain").feasible
    assert not evaluate(CHAIN, (0, 1, 0), "contiguous").feasible
