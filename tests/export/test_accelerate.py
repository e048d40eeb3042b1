"""Export to accelerate: YAML and Trainer arguments read back, rules, refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from hypothesis import given, settings

from ilp_parallel.configuration import Configuration, Strategy
from ilp_parallel.errors import InputError
from ilp_parallel.export.accelerate import AccelerateRun, document, validate_accelerate
from ilp_parallel.export.registry import export_plan
from tests.export.plans import Words, plan_of, plans_in

if TYPE_CHECKING:
    from ilp_parallel.plan import Plan

ALL = Words(
    zeros=("0", "3-keep", "3-regather"),
    pipelines=(1,),
    contexts=(1, 2),
    parallel=(False,),
)


def possible(plan: Plan) -> Plan:
    """Replicas go with no tensor or context ranks: shard instead."""
    g = plan.configuration
    alone = g.tensor * g.context == 1
    if plan.strategies[0].zero != "0" or alone or g.shards == 1:
        return plan
    return replace(plan, strategies=tuple(replace(s, zero="3-keep") for s in plan.strategies))


def read(text: str, arguments: str) -> tuple[Configuration, Strategy]:
    """A small reader of both files, for these tests only."""
    found: dict[str, Any] = yaml.safe_load(text)
    trainer = json.loads(arguments)
    world = found["num_processes"]
    sizes = {
        key.removeprefix("parallelism_config_").removesuffix("_size"): value
        for key, value in found.get("parallelism_config", {}).items()
    }
    tensor, context = sizes.get("tp", 1), sizes.get("cp", 1)
    data = world // tensor // context
    fsdp = found.get("fsdp_config")
    sharded = fsdp is not None and sizes.get("dp_shard", data) * context > 1
    kept = fsdp is not None and not fsdp["fsdp_reshard_after_forward"]
    full = fsdp["fsdp_activation_checkpointing"] if fsdp else trainer["gradient_checkpointing"]
    configuration = Configuration(
        pipeline=1,
        tensor=tensor,
        data=data,
        microbatch=trainer["per_device_train_batch_size"],
        microbatches=trainer["gradient_accumulation_steps"],
        chunks=1,
        sequence_parallel=False,
        schedule="1f1b",
        context=context,
    )
    zero = "0" if not sharded else "3-keep" if kept else "3-regather"
    return configuration, Strategy(zero, ("full",) if full else ())  # type: ignore[arg-type]


@settings(max_examples=200, deadline=None)
@given(plans_in(ALL).map(possible))
def test_export_read_back_is_the_plan(plan: Plan) -> None:
    export = export_plan(plan, "accelerate")
    configuration, strategy = read(export.files[0].text, export.files[1].text)
    assert configuration == plan.configuration
    assert (strategy,) * plan.model.layers == plan.strategies


GOOD_PLAN = plan_of((4,), (Strategy("3-keep", ()),) * 4, pipeline=1)
GOOD = AccelerateRun(document(GOOD_PLAN), 16, 8, 2048)


def changed(**entries: object) -> AccelerateRun:
    return replace(GOOD, document={**GOOD.document, **entries})


def sized(**sizes: int) -> AccelerateRun:
    named = {f"parallelism_config_{name}_size": size for name, size in sizes.items()}
    return changed(parallelism_config=named)


@pytest.mark.parametrize(
    ("code", "run"),
    [
        ("PRODUCT_NOT_PROCESSES", sized(dp_shard=4, tp=4)),
        ("SIZE_NOT_POSITIVE", sized(dp_shard=0, tp=4)),
        ("ACCELERATE_DDP_WITH_TP", sized(dp_replicate=4, dp_shard=1, tp=2)),
        ("PARALLELISM_NEEDS_FSDP2", changed(distributed_type="MULTI_GPU")),
        ("PARALLELISM_NEEDS_FSDP2", changed(fsdp_config={"fsdp_version": 1})),
        ("HEADS_NOT_DIVISIBLE_BY_TP", replace(GOOD, heads=15)),
        ("KV_HEADS_NOT_DIVISIBLE_BY_TP", replace(GOOD, kv_heads=1)),
        ("SEQ_NOT_DIVISIBLE", replace(sized(dp_shard=2, tp=2, cp=2), sequence_length=2046)),
    ],
)
def test_broken_rule_gives_its_code(code: str, run: AccelerateRun) -> None:
    assert validate_accelerate(GOOD) == ()
    assert code in {violation.code for violation in validate_accelerate(run)}


def test_replicas_beside_tensor_ranks_are_refused_with_their_code() -> None:
    plan = replace(GOOD_PLAN, strategies=(Strategy("0", ()),) * 4)
    with pytest.raises(InputError) as caught:
        export_plan(plan, "accelerate")
    assert caught.value.code == "ACCELERATE_DDP_WITH_TP"


@pytest.mark.parametrize(
    ("plan", "feature"),
    [
        (plan_of((2, 2), (Strategy("3-keep", ()),) * 4, pipeline=2), "a pipeline of 2 stages"),
        (replace(GOOD_PLAN, strategies=(Strategy("1", ()),) * 4), "ZeRO 1 .--to deepspeed"),
        (
            plan_of((4,), (Strategy("3-keep", ()),) * 4, pipeline=1, sequence_parallel=True),
            "sequence parallelism",
        ),
    ],
)
def test_what_accelerate_lacks_is_named(plan: Plan, feature: str) -> None:
    with pytest.raises(InputError, match=feature) as caught:
        export_plan(plan, "accelerate")
    assert caught.value.code == "NOT_EXPRESSIBLE_IN_ACCELERATE"
