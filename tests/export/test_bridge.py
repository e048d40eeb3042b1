"""Export to Megatron-Bridge: the way back, and what must be set beside Megatron-LM's options."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings

from ilp_parallel.configuration import Strategy
from ilp_parallel.errors import InputError
from ilp_parallel.export.bridge import read_settings
from ilp_parallel.export.megatron_reader import parse_megatron
from ilp_parallel.export.python_file import read_assignments
from ilp_parallel.export.registry import export_plan
from tests.export.plans import plan_of, plans
from tests.export.test_megatron import as_megatron_runs_it

if TYPE_CHECKING:
    from ilp_parallel.plan import Plan

PLAIN = Strategy("1", ())


def exported(plan: Plan) -> dict[str, object]:
    return read_assignments(export_plan(plan, "megatron-bridge").text, "cfg")


@settings(max_examples=150, deadline=None)
@given(plans)
def test_export_read_back_is_the_plan(plan: Plan) -> None:
    text = export_plan(plan, "megatron-bridge").text
    compile(text, "apply_plan.py", "exec")
    flags = read_settings(text, plan.model.layers)
    configuration, sizes, strategies = parse_megatron(flags.arguments, plan.configuration.devices)
    assert configuration == plan.configuration
    assert sizes == plan.sizes
    assert strategies == tuple(as_megatron_runs_it(strategy) for strategy in plan.strategies)


def test_chunks_are_a_number_and_other_splits_are_cleared() -> None:
    even = exported(plan_of((2,) * 8, (PLAIN,) * 16, pipeline=4))
    assert even["model.virtual_pipeline_model_parallel_size"] == 2
    assert even["model.pipeline_model_parallel_layout"] is None
    uneven = exported(plan_of((1, 3, 2, 2), (PLAIN,) * 8, pipeline=4))
    assert uneven["model.pipeline_model_parallel_layout"] == "Et|t*3|t*2|t*2L"
    assert uneven["model.virtual_pipeline_model_parallel_size"] is None
    assert uneven["model.num_layers_in_first_pipeline_stage"] is None


def test_both_optimizer_switches_and_the_pipeline_dtype() -> None:
    plan = plan_of((2, 2), (PLAIN,) * 4, pipeline=2)
    found = exported(plan)
    assert found["ddp.use_distributed_optimizer"] is True
    assert found["optimizer.use_distributed_optimizer"] is True
    assert found["model.pipeline_dtype"] == "torch.bfloat16"
    half = exported(replace(plan, job=replace(plan.job, precision="megatron-fp16")))
    assert half["model.pipeline_dtype"] == "torch.float16"
    assert "model.pipeline_dtype" not in exported(plan_of((4,), (PLAIN,) * 4, pipeline=1))


def test_evaluation_divides_like_training() -> None:
    found = exported(plan_of((4,), (PLAIN,) * 4, pipeline=1, microbatch=2))
    assert found["validation.eval_micro_batch_size"] == found["train.micro_batch_size"] == 2
    assert found["validation.eval_global_batch_size"] == found["train.global_batch_size"]


def test_settings_of_another_type_are_refused() -> None:
    with pytest.raises(InputError) as caught:
        read_settings('cfg.train.micro_batch_size = "2"\n', 4)
    assert caught.value.code == "WRONG_TYPE"
    with pytest.raises(InputError) as caught:
        read_settings("cfg.train. = 2", 4)
    assert caught.value.code == "MALFORMED_PYTHON"


def test_moments_in_sixteen_bits_have_no_setting() -> None:
    plan = plan_of((4,), (PLAIN,) * 4, pipeline=1)
    with pytest.raises(InputError) as caught:
        export_plan(
            replace(plan, job=replace(plan.job, precision="bf16-moments")), "megatron-bridge"
        )
    assert caught.value.code == "NOT_EXPRESSIBLE_IN_MEGATRON_BRIDGE"
