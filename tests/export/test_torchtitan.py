"""Export to torchtitan: both forms read back, its rules one by one, what it lacks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings

from ilp_parallel.configuration import Configuration, Strategy
from ilp_parallel.errors import InputError
from ilp_parallel.export.python_file import Expression, read_assignments
from ilp_parallel.export.registry import export_plan
from ilp_parallel.export.torchtitan import SCHEDULES, stage_modules, toml_sections
from ilp_parallel.export.torchtitan_rules import TitanRun, validate_titan
from ilp_parallel.imports.torchtitan import read_torchtitan
from tests.export.plans import Words, plan_of, plans_in

if TYPE_CHECKING:
    from ilp_parallel.plan import Plan

ALL = Words(
    zeros=("0", "3-keep", "3-regather"),
    chunks=(1, 2),
    schedules=("1f1b", "gpipe"),
    contexts=(1, 2),
)
NAMES = {written: ours for ours, written in SCHEDULES.items()}


def possible(plan: Plan) -> Plan:
    """Replicated weights go with no other parallelism: shard them instead."""
    g = plan.configuration
    alone = g.tensor * g.pipeline * g.context == 1
    if plan.strategies[0].zero != "0" or alone or g.shards == 1:
        return plan
    return replace(plan, strategies=tuple(replace(s, zero="3-keep") for s in plan.strategies))


@settings(max_examples=200, deadline=None)
@given(plans_in(replace(ALL, parallel=(True,))).map(possible))
def test_toml_read_back_is_the_plan(plan: Plan) -> None:
    export = export_plan(plan, "torchtitan-toml")
    assert [note.code for note in export.notes if "DIFFERS" in note.code] == ["STACK_DIFFERS"]
    read = read_torchtitan(export.text, "plan.toml", plan.configuration.devices)
    g = plan.configuration
    assert (read.pipeline, read.tensor, read.context, read.data) == (
        *(g.pipeline, g.tensor, g.context, g.data),
    )
    assert (read.microbatch, read.microbatches, read.chunks) == (
        *(g.microbatch, g.microbatches, g.chunks),
    )
    assert (read.schedule, read.sequence_parallel) == (g.schedule, g.sequence_parallel)
    assert read.sizes == (plan.sizes if g.pipeline > 1 else None)
    assert read.zero == (plan.strategies[0].zero,)
    assert read.recompute == (plan.strategies[0].recompute,)
    assert (read.global_batch, read.sequence_length) == (plan.job.global_batch, 2048)


def read_recipe(text: str, devices: int) -> tuple[Configuration, tuple[int, ...], Strategy]:
    """A small reader of the recipe's assignments, for these tests only."""
    found = read_assignments(text, "config")

    def number(name: str, default: int = 1) -> int:
        value = found.get(name, default)
        assert isinstance(value, int)
        return value

    tokens = number("training.max_context_length")
    assert number("training.seq_len") == tokens
    pipeline = number("parallelism.pipeline_parallel_degree")
    shard = number("parallelism.data_parallel_shard_degree")
    data = shard * number("parallelism.data_parallel_replicate_degree")
    microbatch = number("training.num_tokens_per_microbatch_per_dp_rank") // tokens
    batch = number("training.num_tokens_per_train_step") // tokens
    assert number("training.global_batch_size") == batch
    local = number("training.local_batch_size")
    if pipeline > 1:
        assert number("parallelism.num_pp_microbatches") == batch // (microbatch * data)
        assert number("parallelism.pipeline_parallel_microbatch_size") == microbatch
        assert local * data == batch
    else:
        assert local == microbatch
    stages = found.get("parallelism.module_fqns_per_model_part", [])
    assert isinstance(stages, list)
    sizes = tuple(sum(name.startswith("layers.") for name in stage) for stage in stages)
    context = number("parallelism.context_parallel_degree")
    reshard = {"always": "3-regather", "never": "3-keep", "default": "0"}
    zero = reshard[str(found["parallelism.fsdp_reshard_after_forward"])]
    schedule = found.get("parallelism.pipeline_parallel_schedule", "1F1B")
    configuration = Configuration(
        pipeline=pipeline,
        tensor=number("parallelism.tensor_parallel_degree"),
        data=data,
        microbatch=microbatch,
        microbatches=batch // (microbatch * data),
        chunks=max(1, len(sizes) // pipeline),
        sequence_parallel=found["parallelism.enable_sequence_parallel"] is True,
        schedule=NAMES[str(schedule)],  # type: ignore[arg-type]
        context=context,
    )
    assert configuration.devices == devices
    full = isinstance(found["activation_checkpoint"], Expression)
    return configuration, sizes, Strategy(zero, ("full",) if full else ())  # type: ignore[arg-type]


@settings(max_examples=200, deadline=None)
@given(plans_in(ALL).map(possible))
def test_recipe_read_back_is_the_plan(plan: Plan) -> None:
    text = export_plan(plan, "torchtitan").text
    compile(text, "apply_plan.py", "exec")
    configuration, sizes, strategy = read_recipe(text, plan.configuration.devices)
    assert configuration == plan.configuration
    assert sizes == (plan.sizes if configuration.pipeline > 1 else ())
    assert (strategy,) * plan.model.layers == plan.strategies


def test_every_layer_is_on_one_stage() -> None:
    assert stage_modules((2, 1, 2), "output") == [
        ["tok_embeddings", "layers.0", "layers.1"],
        ["layers.2"],
        ["layers.3", "layers.4", "norm", "output"],
    ]


def test_a_pipeline_switches_cuda_graphs_off() -> None:
    sharded = (Strategy("3-keep", ()),) * 4
    plan = replace(plan_of((2, 2), sharded, pipeline=2, sequence_parallel=True))
    plan = replace(plan, model=replace(plan.model, tied_embeddings=False))
    found = read_assignments(export_plan(plan, "torchtitan").text, "config")
    assert found["training.disable_cuda_graphs"] is True


GOOD_PLAN = plan_of((2, 2), (Strategy("3-keep", ()),) * 4, pipeline=2, sequence_parallel=True)
GOOD = TitanRun(toml_sections(GOOD_PLAN), 16, 4, 16, 8, tied_embeddings=False)


def changed(section: str, **entries: object) -> TitanRun:
    sections = {name: dict(values) for name, values in GOOD.sections.items()}
    sections[section] |= entries
    return replace(GOOD, sections=sections)


def codes(run: TitanRun) -> set[str]:
    return {violation.code for violation in validate_titan(run)}


LISTED = GOOD.stages()
assert LISTED is not None


@pytest.mark.parametrize(
    ("code", "run"),
    [
        ("DEGREES_NOT_WORLD_SIZE", replace(GOOD, devices=32)),
        ("HEADS_NOT_DIVISIBLE_BY_TP", replace(GOOD, heads=15, kv_heads=15)),
        ("KV_HEADS_NOT_DIVISIBLE_BY_TP", replace(GOOD, kv_heads=1)),
        ("SEQ_NOT_DIVISIBLE", changed("training", seq_len=2046)),
        (
            "DDP_WITH_MODEL_PARALLELISM",
            changed("parallelism", data_parallel_shard_degree=1, data_parallel_replicate_degree=4),
        ),
        ("GLOBAL_BATCH_NOT_DIVISIBLE", changed("training", global_batch_size=50)),
        ("LOCAL_BATCH_NOT_DIVISIBLE", changed("parallelism", pipeline_parallel_microbatch_size=5)),
        ("TIED_EMBEDDINGS_WITH_PP", replace(GOOD, tied_embeddings=True)),
        ("MICROBATCHES_FEWER_THAN_PP", changed("training", local_batch_size=1)),
        ("STAGES_NOT_DIVISIBLE_BY_PP", changed("parallelism", pipeline_parallel_degree=4)),
        (
            "SCHEDULE_NOT_FOR_STAGES",
            changed("parallelism", pipeline_parallel_schedule="Interleaved1F1B"),
        ),
        ("LAYERS_NOT_COVERED_ONCE", replace(GOOD, layers=5)),
        (
            "MODULES_MISSING",
            changed("parallelism", module_fqns_per_model_part=[LISTED[0], LISTED[1][:-1]]),
        ),
    ],
)
def test_broken_rule_gives_its_code(code: str, run: TitanRun) -> None:
    assert codes(GOOD) == set()
    assert code in codes(run)


@pytest.mark.parametrize(
    ("plan", "feature"),
    [
        (replace(GOOD_PLAN, strategies=(Strategy("1", ()),) * 4), "ZeRO 1"),
        (
            replace(GOOD_PLAN, strategies=(Strategy("3-keep", ()), Strategy("0", ())) * 2),
            "ZeRO differs",
        ),
        (replace(GOOD_PLAN, job=replace(GOOD_PLAN.job, optimizer="sgd")), "optimizer sgd"),
        (replace(GOOD_PLAN, job=replace(GOOD_PLAN.job, precision="fp8")), "precision recipe fp8"),
        (
            replace(
                GOOD_PLAN, configuration=replace(GOOD_PLAN.configuration, sequence_parallel=False)
            ),
            "without sequence parallelism",
        ),
    ],
)
def test_what_torchtitan_lacks_is_named(plan: Plan, feature: str) -> None:
    with pytest.raises(InputError, match=feature) as caught:
        export_plan(plan, "torchtitan-toml")
    assert caught.value.code == "NOT_EXPRESSIBLE_IN_TORCHTITAN_TOML"


def test_another_precision_recipe_is_named_and_priced() -> None:
    plan = replace(GOOD_PLAN, model=replace(GOOD_PLAN.model, tied_embeddings=False))
    export = export_plan(plan, "torchtitan")
    assert export.notes[0].code == "PRECISION_RECIPE_DIFFERS"
    assert export.plan.job.precision == "fsdp-fp32-master"
