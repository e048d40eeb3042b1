"""Export to Colossal-AI: the plugin's arguments read back, rules, refusals."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings

from ilp_parallel.configuration import Configuration, Strategy
from ilp_parallel.errors import InputError
from ilp_parallel.export.colossalai import ColossalRun, arguments, validate_colossalai
from ilp_parallel.export.python_file import read_call, read_constant
from ilp_parallel.export.registry import export_plan
from tests.export.plans import Words, least_memory, plan_of, plans_in

if TYPE_CHECKING:
    from ilp_parallel.plan import Plan

ALL = Words(
    zeros=("0", "1", "2-scatter"),
    chunks=(1, 2),
    even_chunks=True,
    recompute="per-stage",
    precision="deepspeed-bf16",
)


def possible(plan: Plan) -> Plan:
    """ZeRO 2 goes with no pipeline: use 1 instead."""
    if plan.configuration.pipeline == 1 or plan.strategies[0].zero != "2-scatter":
        return plan
    return replace(plan, strategies=tuple(replace(s, zero="1") for s in plan.strategies))


def number(found: dict[str, object], name: str, default: int = 1) -> int:
    value = found.get(name, default)
    assert isinstance(value, int)
    return value


def read(
    text: str, layers: int, devices: int
) -> tuple[Configuration, tuple[int, ...], tuple[Strategy, ...]]:
    """A small reader for these tests; recomputation without a pipeline is in code."""
    found = read_call(text, "HybridParallelPlugin")
    pipeline, chunks = number(found, "pp_size"), number(found, "num_model_chunks")
    tensor = number(found, "tp_size")
    ring = found.get("sequence_parallelism_mode") == "ring_attn"
    context = number(found, "sp_size") if ring else 1
    constants = {
        name: read_constant(text, name)
        for name in ("GLOBAL_BATCH_SIZE", "MICROBATCH_SIZE", "MICROBATCHES")
    }
    data = devices // (tensor * pipeline * context)
    batch = number(constants, "MICROBATCH_SIZE") * number(constants, "MICROBATCHES") * data
    assert batch == constants["GLOBAL_BATCH_SIZE"]
    assert (
        found.get("microbatch_size", constants["MICROBATCH_SIZE"]) == constants["MICROBATCH_SIZE"]
    )
    configuration = Configuration(
        pipeline=pipeline,
        tensor=tensor,
        data=data,
        microbatch=number(constants, "MICROBATCH_SIZE"),
        microbatches=number(constants, "MICROBATCHES"),
        chunks=chunks,
        sequence_parallel=found.get("sequence_parallelism_mode") == "split_gather",
        schedule=found.get("pp_style", "1f1b"),  # type: ignore[arg-type]
        context=context,
    )
    given_sizes = found.get(
        "num_layers_per_stage", [layers // pipeline // chunks] * pipeline * chunks
    )
    assert isinstance(given_sizes, list)
    sizes = tuple(given_sizes)
    counts = [0] * len(sizes)
    if "gradient_checkpoint_config" in found:
        counts = ast.literal_eval(
            str(read_call(text, "PipelineGradientCheckpointConfig")["num_ckpt_layers_per_stage"])
        )
    zero = {0: "0", 1: "1", 2: "2-scatter"}[number(found, "zero_stage")]
    pairs = zip(sizes, counts, strict=True)
    strategies = tuple(
        Strategy(zero, ("full",) if i < n else ())  # type: ignore[arg-type]
        for size, n in pairs
        for i in range(size)
    )
    return configuration, sizes, strategies


@settings(max_examples=200, deadline=None)
@given(plans_in(ALL).map(possible))
def test_export_read_back_is_the_plan(plan: Plan) -> None:
    export = export_plan(plan, "colossalai")
    compile(export.text, "plugin.py", "exec")
    g = plan.configuration
    configuration, sizes, strategies = read(export.text, plan.model.layers, g.devices)
    assert (configuration, sizes) == (g, plan.sizes)
    if g.pipeline > 1:
        assert strategies == plan.strategies
    else:
        enabled = "CHECKPOINTING_IN_CODE" in {note.code for note in export.notes}
        assert enabled == any(strategy.recompute for strategy in plan.strategies)


@settings(max_examples=50, deadline=None)
@given(plans_in(replace(ALL, contexts=(2, 4), parallel=(False,))).map(possible))
def test_context_ranks_are_ring_attention(plan: Plan) -> None:
    text = export_plan(plan, "colossalai").text
    configuration, _, _ = read(text, plan.model.layers, plan.configuration.devices)
    assert configuration == plan.configuration


def test_recomputation_is_moved_to_the_head_of_each_stage() -> None:
    """Where memory is short, layers anywhere in a stage become its first ones, and that is said."""
    bare, full = Strategy("1", ()), Strategy("1", ("full",))
    plan = plan_of((4, 4), (bare, full, full, full, bare, bare, bare, bare), pipeline=2)
    job = replace(plan.job, precision="deepspeed-bf16")
    plan = replace(plan, job=job, model=replace(plan.model, vocab=1000))
    export = export_plan(least_memory(plan), "colossalai")
    assert "num_ckpt_layers_per_stage=[3, 0]" in export.text
    assert "RECOMPUTATION_NOT_EXPRESSIBLE" in {note.code for note in export.notes}


GOOD_PLAN = plan_of((2, 2), (Strategy("1", ()),) * 4, pipeline=2, sequence_parallel=True)
GOOD = ColossalRun(arguments(GOOD_PLAN), {}, 16, 4, 16, 2048)


def changed(**entries: object) -> ColossalRun:
    return replace(GOOD, arguments={**GOOD.arguments, **entries})


@pytest.mark.parametrize(
    ("code", "run"),
    [
        ("DEVICES_NOT_DIVISIBLE", replace(GOOD, devices=6)),
        ("HEADS_NOT_DIVISIBLE_BY_TP", replace(GOOD, heads=15)),
        (
            "SEQ_NOT_DIVISIBLE",
            replace(changed(sequence_parallelism_mode="ring_attn"), sequence_length=2046),
        ),
        ("ZERO_STAGE_UNKNOWN", changed(zero_stage=3)),
        ("ZERO_GE2_WITH_PP", changed(zero_stage=2)),
        (
            "MICROBATCH_MISSING",
            replace(
                GOOD,
                arguments={k: v for k, v in GOOD.arguments.items() if k != "microbatch_size"},
            ),
        ),
        ("SCHEDULE_UNKNOWN", changed(pp_style="zigzag")),
        ("SCHEDULE_NOT_FOR_CHUNKS", changed(pp_style="interleaved")),
        ("SCHEDULE_NOT_FOR_CHUNKS", changed(num_model_chunks=2)),
        ("SEQUENCE_PARALLEL_WITHOUT_TP", changed(tp_size=1)),
        ("STAGES_DIFFER", changed(num_layers_per_stage=[2, 1])),
        ("STAGES_DIFFER", changed(num_layers_per_stage=[2, 1, 1])),
        ("LAYERS_NOT_DIVISIBLE_BY_PP", replace(changed(num_layers_per_stage=None), layers=5)),
        ("CHECKPOINTS_DIFFER", replace(GOOD, checkpoint={"num_ckpt_layers_per_stage": [1]})),
    ],
)
def test_broken_rule_gives_its_code(code: str, run: ColossalRun) -> None:
    assert validate_colossalai(GOOD) == ()
    assert code in {violation.code for violation in validate_colossalai(run)}


def test_zero_2_in_a_pipeline_is_refused_with_its_code() -> None:
    plan = replace(GOOD_PLAN, strategies=(Strategy("2-scatter", ()),) * 4)
    with pytest.raises(InputError) as caught:
        export_plan(plan, "colossalai")
    assert caught.value.code == "ZERO_GE2_WITH_PP"


@pytest.mark.parametrize(
    ("plan", "feature"),
    [
        (replace(GOOD_PLAN, strategies=(Strategy("3-keep", ()),) * 4), "ZeRO 3-keep"),
        (
            replace(GOOD_PLAN, configuration=replace(GOOD_PLAN.configuration, schedule="gpipe")),
            "GPipe schedule",
        ),
        (
            plan_of((1, 2, 2, 1), (Strategy("1", ()),) * 6, pipeline=2),
            "interleaved chunks of different sizes",
        ),
        (
            plan_of(
                *((4,), (Strategy("1", ()),) * 4),
                pipeline=1,
                context=2,
                sequence_parallel=True,
            ),
            "context parallelism beside sequence parallelism",
        ),
    ],
)
def test_what_colossalai_lacks_is_named(plan: Plan, feature: str) -> None:
    with pytest.raises(InputError, match=feature) as caught:
        export_plan(plan, "colossalai")
    assert caught.value.code == "NOT_EXPRESSIBLE_IN_COLOSSALAI"
