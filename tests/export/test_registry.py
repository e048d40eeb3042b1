"""What all exporters share: the registry, the nearest expressible plan, and refusals."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ilp_parallel.cli.exchange import FRAMEWORKS
from ilp_parallel.configuration import Strategy
from ilp_parallel.errors import InputError
from ilp_parallel.export.megatron_reader import parse_megatron
from ilp_parallel.export.nearest import nearest
from ilp_parallel.export.registry import EXPORTERS, export_plan
from tests.export.plans import fits, least_memory, plan_of, with_memory

PLAIN = Strategy("1", ())
FULL = Strategy("1", ("full",))
MIXED = plan_of((4, 4), (PLAIN, FULL) * 4, pipeline=2)


def test_command_line_offers_every_exporter() -> None:
    assert tuple(EXPORTERS) == FRAMEWORKS
    assert all(EXPORTERS[name].name == name for name in EXPORTERS)


def test_unknown_framework_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        export_plan(MIXED, "paper")
    assert caught.value.code == "UNKNOWN_FRAMEWORK"


def test_nearest_recomputation_is_named_and_priced() -> None:
    export = export_plan(MIXED, "megatron")
    assert export.notes[0].code == "RECOMPUTATION_NOT_EXPRESSIBLE"
    assert "4 x full, 4 x none" in export.notes[0].text
    words = export.text.partition("pretrain_gpt.py")[2].replace("\\\n", " ").split()
    assert parse_megatron(words, MIXED.configuration.devices)[2] == export.plan.strategies
    assert export.plan.strategies != MIXED.strategies


def test_nearest_is_the_fastest_that_fits() -> None:
    """With all the memory it recomputes nothing; with little, enough."""
    loose, _ = nearest(with_memory(MIXED, 1000), EXPORTERS["megatron"])
    assert loose.strategies == (PLAIN,) * 8
    tight, _ = nearest(least_memory(MIXED), EXPORTERS["megatron"])
    assert fits(tight)
    assert any(strategy.recompute for strategy in tight.strategies)


def test_nearest_that_does_not_fit_is_refused() -> None:
    """bf16 with 16 bytes per parameter fits, Megatron-LM's 18 do not."""
    plan = plan_of((2, 2), (Strategy("0", ()),) * 4, pipeline=2)
    plan = replace(plan, job=replace(plan.job, precision="deepspeed-bf16"))
    with pytest.raises(InputError) as caught:
        export_plan(least_memory(plan), "megatron")
    assert caught.value.code == "NEAREST_PLAN_DOES_NOT_FIT"
    assert "megatron-bf16 instead of deepspeed-bf16" in caught.value.message


def test_expressible_plan_is_left_alone() -> None:
    plan = replace(MIXED, strategies=(FULL,) * 8)
    assert nearest(plan, EXPORTERS["megatron"]) == (plan, ())


def test_a_policy_of_the_plan_is_kept_when_only_precision_changes() -> None:
    plan = plan_of((2, 2), (Strategy("1", ("mlp",)),) * 4, pipeline=2)
    plan = replace(plan, job=replace(plan.job, precision="deepspeed-bf16"))
    found, notes = nearest(plan, EXPORTERS["megatron"])
    assert found.strategies == plan.strategies
    assert found.job.precision == "megatron-bf16"
    assert [note.code for note in notes] == ["PRECISION_RECIPE_DIFFERS"]
