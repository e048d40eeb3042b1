"""Export to DeepSpeed: JSON read back, stages in code, rules, refusals."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings

from ilp_parallel.configuration import Strategy
from ilp_parallel.errors import InputError
from ilp_parallel.export.deepspeed import DeepSpeedRun, document, validate_deepspeed
from ilp_parallel.export.python_file import read_constant
from ilp_parallel.export.registry import export_plan
from ilp_parallel.imports.deepspeed import read_deepspeed
from tests.export.plans import Words, plan_of, plans_in

if TYPE_CHECKING:
    from ilp_parallel.plan import Plan

ALL = Words(
    zeros=("0", "1", "2-scatter", "3-regather"),
    parallel=(False,),
    precision="deepspeed-bf16",
)


def possible(plan: Plan) -> Plan:
    """ZeRO above 1 goes with no pipeline: use 1 instead."""
    high = plan.strategies[0].zero not in ("0", "1")
    if plan.configuration.pipeline == 1 or not high:
        return plan
    return replace(plan, strategies=tuple(replace(s, zero="1") for s in plan.strategies))


@settings(max_examples=200, deadline=None)
@given(plans_in(ALL).map(possible))
def test_export_read_back_is_the_plan(plan: Plan) -> None:
    export = export_plan(plan, "deepspeed")
    g = plan.configuration
    read = read_deepspeed(export.text, "ds.json", g.devices // (g.tensor if g.pipeline > 1 else 1))
    assert (read.pipeline, read.data, read.microbatch, read.microbatches) == (
        *(g.pipeline, g.data, g.microbatch, g.microbatches),
    )
    assert read.tensor == (g.tensor if g.pipeline == 1 else 1)
    assert (read.zero, read.global_batch) == ((plan.strategies[0].zero,), plan.job.global_batch)
    assert read.precision == "deepspeed-bf16"
    if g.pipeline > 1:
        assert read.recompute == (plan.strategies[0].recompute,)
        stages = export.files[1].text
        assert tuple(read_constant(stages, "STAGES")) == plan.sizes  # type: ignore[arg-type]
    else:
        assert len(export.files) == 1


def test_stages_of_the_python_file_are_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the file on a stand-in for DeepSpeed that calls it as PipelineModule does."""
    plan = plan_of((2, 4, 1), (Strategy("1", ("full",)),) * 7, pipeline=3)
    source = export_plan(plan, "deepspeed").files[1].text

    class PipelineModule:
        rank_stage = 0

        def __init__(self, layers: list[object], topology: object, **options: object) -> None:
            self._layer_specs, self.options, self.global_rank = layers, options, 0
            coordinate = SimpleNamespace(pipe=self.rank_stage)
            self._topo = SimpleNamespace(get_coord=lambda rank: coordinate, given=topology)
            self._partition_layers()  # type: ignore[attr-defined]

        def _set_bounds(self, start: int, stop: int) -> None:
            self.bounds = (start, stop)

    pipe = ModuleType("deepspeed.pipe")
    pipe.PipelineModule = PipelineModule  # type: ignore[attr-defined]
    topology = ModuleType("deepspeed.runtime.pipe.topology")
    topology.PipeModelDataParallelTopology = dict  # type: ignore[attr-defined]
    for name in ("deepspeed", "deepspeed.runtime", "deepspeed.runtime.pipe"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "deepspeed.pipe", pipe)
    monkeypatch.setitem(sys.modules, topology.__name__, topology)
    names: dict[str, object] = {}
    exec(compile(source, "pipeline_stages.py", "exec"), names)
    make = names["make_pipeline"]
    assert callable(make)
    bounds = []
    for stage in range(3):
        PipelineModule.rank_stage = stage
        built = make(["embed", *["layer"] * 7, "norm", "head"])
        bounds.append(built.bounds)
    assert bounds == [(0, 3), (3, 7), (7, 10)]
    assert built.options["activation_checkpoint_interval"] == 1
    assert built._topo.given == {"num_pp": 3, "num_mp": 2, "num_dp": 4}
    with pytest.raises(ValueError, match="the plan has 8"):
        make(["embed", *["layer"] * 6])


GOOD_PLAN = plan_of((4,), (Strategy("1", ()),) * 4, pipeline=1)
GOOD = DeepSpeedRun(document(GOOD_PLAN), 8, 1, 2, 16)


def changed(**entries: object) -> DeepSpeedRun:
    return replace(GOOD, document={**GOOD.document, **entries})


@pytest.mark.parametrize(
    ("code", "run"),
    [
        ("BATCH_IDENTITY", changed(train_batch_size=47)),
        ("BATCH_IDENTITY", changed(train_batch_size=0)),
        ("BATCH_IDENTITY", changed(train_batch_size=6, gradient_accumulation_steps="auto")),
        ("ZERO_STAGE_UNKNOWN", changed(zero_optimization={"stage": 4})),
        (
            "ZERO_GE2_WITH_PP",
            replace(changed(zero_optimization={"stage": 2}), pipeline=2, devices=16),
        ),
        ("DEVICES_NOT_DIVISIBLE", replace(GOOD, devices=7)),
        ("HEADS_NOT_DIVISIBLE_BY_TP", replace(GOOD, heads=15)),
    ],
)
def test_broken_rule_gives_its_code(code: str, run: DeepSpeedRun) -> None:
    assert validate_deepspeed(GOOD) == ()
    assert code in {violation.code for violation in validate_deepspeed(run)}


def test_zero_2_in_a_pipeline_is_refused_with_its_code() -> None:
    plan = plan_of((2, 2), (Strategy("2-scatter", ()),) * 4, pipeline=2)
    with pytest.raises(InputError) as caught:
        export_plan(plan, "deepspeed")
    assert caught.value.code == "ZERO_GE2_WITH_PP"


@pytest.mark.parametrize(
    ("plan", "feature"),
    [
        (replace(GOOD_PLAN, strategies=(Strategy("3-keep", ()),) * 4), "ZeRO 3-keep"),
        (plan_of((1,) * 4, (Strategy("1", ()),) * 4, pipeline=2), "interleaved schedule"),
        (plan_of((4,), (Strategy("1", ()),) * 4, pipeline=1, context=2), "context parallelism"),
        (
            plan_of((4,), (Strategy("1", ()),) * 4, pipeline=1, sequence_parallel=True),
            "sequence parallelism with AutoTP",
        ),
        (replace(GOOD_PLAN, job=replace(GOOD_PLAN.job, precision="fp8")), "precision recipe fp8"),
    ],
)
def test_what_deepspeed_lacks_is_named(plan: Plan, feature: str) -> None:
    with pytest.raises(InputError, match=feature) as caught:
        export_plan(plan, "deepspeed")
    assert caught.value.code == "NOT_EXPRESSIBLE_IN_DEEPSPEED"


def test_zero_2_buffer_is_stage_1_and_half_precision_its_own_section() -> None:
    plan = replace(GOOD_PLAN, strategies=(Strategy("2-buffer", ()),) * 4)
    plan = replace(plan, job=replace(plan.job, precision="megatron-fp16"))
    export = export_plan(plan, "deepspeed")
    found = json.loads(export.text)
    assert found["zero_optimization"]["stage"] == 1
    assert found["fp16"] == {"enabled": True}
    assert "bf16" not in found
    assert "ZERO_2_BUFFER" in {note.code for note in export.notes}
