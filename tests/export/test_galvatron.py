"""Export to Galvatron: the strategy file read back layer by layer, rules, refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings

from ilp_parallel.configuration import Strategy
from ilp_parallel.errors import InputError
from ilp_parallel.export.galvatron import GalvatronRun, document, validate_galvatron
from ilp_parallel.export.registry import export_plan
from ilp_parallel.imports.galvatron import read_galvatron
from tests.export.plans import Words, plan_of, plans_in

if TYPE_CHECKING:
    from ilp_parallel.plan import Plan

ALL = Words(
    zeros=("0", "3-keep", "3-regather"),
    schedules=("1f1b", "gpipe"),
    contexts=(1, 2),
    recompute="per-layer",
    uniform_zero=False,
)


@settings(max_examples=300, deadline=None)
@given(plans_in(ALL))
def test_export_read_back_is_the_plan(plan: Plan) -> None:
    export = export_plan(plan, "galvatron")
    read = read_galvatron(export.text, "strategy.json", None)
    g = plan.configuration
    assert (read.pipeline, read.tensor, read.context, read.data) == (
        *(g.pipeline, g.tensor, g.context, g.data),
    )
    assert (read.microbatch, read.microbatches, read.schedule) == (
        *(g.microbatch, g.microbatches, g.schedule),
    )
    assert (read.sizes, read.global_batch) == (plan.sizes, plan.job.global_batch)
    assert read.zero == tuple(strategy.zero for strategy in plan.strategies)
    assert read.recompute == tuple(strategy.recompute for strategy in plan.strategies)
    told = next(note.text for note in export.notes if note.code == "RUNTIME_ARGUMENTS")
    assert ("--sequence-parallel" in told) == g.sequence_parallel


def test_both_names_of_the_embedding_flag_are_written() -> None:
    """The search writes one name, the runtime reads the other."""
    plan = plan_of((4,), (Strategy("3-keep", ()),) * 4, pipeline=1)
    found = json.loads(export_plan(plan, "galvatron").text)
    assert found["vocab_sdp"] == found["embed_sdp"] == 1


def test_part_of_a_layer_is_recomputed_as_a_whole() -> None:
    plan = plan_of((4,), (Strategy("3-keep", ("mlp",)), *(Strategy("3-keep", ()),) * 3), pipeline=1)
    export = export_plan(plan, "galvatron")
    assert json.loads(export.text)["checkpoint"] == "1,0,0,0"
    assert "RECOMPUTATION_NOT_EXPRESSIBLE" in {note.code for note in export.notes}


GOOD_PLAN = plan_of((2, 2), (Strategy("3-keep", ()),) * 4, pipeline=2)
GOOD = GalvatronRun(document(GOOD_PLAN), 16)


def changed(**entries: object) -> GalvatronRun:
    return replace(GOOD, document={**GOOD.document, **entries})


@pytest.mark.parametrize(
    ("code", "run"),
    [
        ("LISTS_DIFFER", changed(checkpoint="0,0,0")),
        ("LISTS_DIFFER", changed(cp_sizes_enc="1,1,1,1,1")),
        ("FLAG_NOT_0_OR_1", changed(dp_types_enc="0,0,2,0")),
        ("DEVICES_NOT_DIVISIBLE", changed(pp_deg=3)),
        ("TP_NOT_DIVIDING_STAGE", changed(tp_sizes_enc="2,2,2,3")),
        ("TP_NOT_DIVIDING_STAGE", changed(tp_sizes_enc="2,2,2,0")),
        ("STAGES_DIFFER", changed(pp_division="2,1")),
        ("STAGES_DIFFER", changed(pp_division="2,1,1")),
        ("GLOBAL_BATCH_NOT_DIVISIBLE", changed(global_bsz=47)),
        ("SCHEDULE_UNKNOWN", changed(pipeline_type="1f1b")),
        ("DP_TYPE_UNKNOWN", changed(default_dp_type="zero1")),
    ],
)
def test_broken_rule_gives_its_code(code: str, run: GalvatronRun) -> None:
    assert validate_galvatron(GOOD) == ()
    assert code in {violation.code for violation in validate_galvatron(run)}


@pytest.mark.parametrize(
    ("plan", "feature"),
    [
        (replace(GOOD_PLAN, strategies=(Strategy("1", ()),) * 4), "ZeRO 1"),
        (
            replace(GOOD_PLAN, strategies=(Strategy("0", ()), Strategy("3-keep", ())) * 2),
            "ZeRO 0 and 3-keep",
        ),
        (plan_of((1,) * 4, (Strategy("3-keep", ()),) * 4, pipeline=2), "interleaved schedule"),
    ],
)
def test_what_galvatron_lacks_is_named(plan: Plan, feature: str) -> None:
    with pytest.raises(InputError, match=feature) as caught:
        export_plan(plan, "galvatron")
    assert caught.value.code == "NOT_EXPRESSIBLE_IN_GALVATRON"
