"""Exports fed to the frameworks' own parsers, where these are installed (no accelerator needed)."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from ilp_parallel.export.registry import export_plan
from tests.export import (
    test_accelerate,
    test_deepspeed,
    test_torchtitan,
)
from tests.export.plans import random_plan, random_plan_in

if TYPE_CHECKING:
    from pathlib import Path

    from ilp_parallel.plan import Plan

SEEDS = range(60)


def titan_plan(seed: int) -> Plan:
    return test_torchtitan.possible(random_plan_in(test_torchtitan.ALL, seed))


def test_torchtitan_takes_every_setting_of_the_recipe() -> None:
    trainer = pytest.importorskip("torchtitan.trainer")
    dims = pytest.importorskip("torchtitan.distributed.parallel_dims")
    for seed in SEEDS:
        plan = titan_plan(seed)
        names: dict[str, Any] = {}
        exec(compile(export_plan(plan, "torchtitan").text, "apply_plan.py", "exec"), names)
        config = names["apply_plan"](trainer.Trainer.Config())
        p, g = config.parallelism, plan.configuration
        p.__post_init__()
        config.training.__post_init__() if hasattr(config.training, "__post_init__") else None
        mesh = dims.ParallelDims(
            dp_replicate=p.data_parallel_replicate_degree,
            dp_shard=p.data_parallel_shard_degree,
            cp=p.context_parallel_degree,
            tp=p.tensor_parallel_degree,
            pp=p.pipeline_parallel_degree,
            ep=1,
            world_size=g.devices,
        )
        assert plan.job.sequence_length % mesh.seq_len_divisor == 0


def test_torchtitan_counts_the_stages_as_planned() -> None:
    pipelining = pytest.importorskip("torch.distributed.pipelining.schedules")
    for seed in SEEDS:
        plan = titan_plan(seed)
        if plan.configuration.pipeline == 1:
            continue
        names: dict[str, Any] = {}
        exec(compile(export_plan(plan, "torchtitan").text, "apply_plan.py", "exec"), names)
        titan = pytest.importorskip("torchtitan.trainer")
        p = names["apply_plan"](titan.Trainer.Config()).parallelism
        kind = pipelining.get_schedule_class(p.pipeline_parallel_schedule)
        single = issubclass(kind, pipelining.PipelineScheduleSingle)
        stages = len(p.module_fqns_per_model_part)
        assert single == (stages == p.pipeline_parallel_degree)


def test_deepspeed_accepts_the_batch_of_the_json(monkeypatch: pytest.MonkeyPatch) -> None:
    config = pytest.importorskip("deepspeed.runtime.config")
    monkeypatch.setattr(config.dist, "get_rank", lambda: 0)  # no process group is started

    class Grid:
        """What the configuration asks a pipeline grid for."""

        def __init__(self, data: int) -> None:
            self.data = data

        def get_data_parallel_world_size(self) -> int:
            return self.data

    for seed in SEEDS:
        plan = test_deepspeed.possible(random_plan_in(test_deepspeed.ALL, seed))
        export = export_plan(plan, "deepspeed")
        read = config.DeepSpeedConfig(json.loads(export.text), mpu=Grid(plan.configuration.data))
        g = plan.configuration
        assert read.train_batch_size == plan.job.global_batch
        assert read.train_micro_batch_size_per_gpu == g.microbatch
        assert read.gradient_accumulation_steps == g.microbatches
        stage = {"0": 0, "1": 1, "2-scatter": 2, "3-regather": 3}[plan.strategies[0].zero]
        assert read.zero_optimization_stage == stage
        assert read.bfloat16_config.enabled
        if g.pipeline == 1:
            assert read.tensor_parallel_config.autotp_size in (0, 1) or g.tensor > 1


def test_accelerate_reads_the_yaml(tmp_path: Path) -> None:
    arguments = pytest.importorskip("accelerate.commands.config.config_args")
    parallelism = pytest.importorskip("accelerate.parallelism_config")
    for seed in SEEDS:
        plan = test_accelerate.possible(random_plan_in(test_accelerate.ALL, seed))
        file = tmp_path / "accelerate.yaml"
        file.write_text(export_plan(plan, "accelerate").text)
        read = arguments.load_config_from_file(str(file))
        g = plan.configuration
        assert read.num_processes == g.devices
        sizes = {
            key.removeprefix("parallelism_config_"): value
            for key, value in read.parallelism_config.items()
        }
        if sizes:
            config = parallelism.ParallelismConfig(**sizes)
            assert config.total_size == g.devices


def test_megatron_core_accepts_stages_and_recomputation() -> None:
    transformer = pytest.importorskip("megatron.core.transformer.transformer_config")
    layouts = pytest.importorskip("megatron.core.transformer.pipeline_parallel_layer_layout")
    for seed in SEEDS:
        plan = random_plan(seed)
        plan = replace(plan, job=replace(plan.job, precision="megatron-bf16"))
        transformer.TransformerConfig(**_core_words(plan, layouts))


def _core_words(plan: Plan, layouts: Any) -> dict[str, Any]:
    """Arguments of Megatron-Core's configuration from those of Megatron-Bridge."""
    import torch

    from ilp_parallel.export.bridge import settings

    found = {
        name.removeprefix("model."): value
        for name, value in settings(plan).items()
        if name.startswith("model.")
    }
    found.pop("seq_length")
    if "pipeline_dtype" in found:
        found["pipeline_dtype"] = torch.bfloat16
    layout = found.pop("pipeline_model_parallel_layout")
    if layout is not None:
        size = found["pipeline_model_parallel_size"]
        found["pipeline_model_parallel_layout"] = layout
        parsed = layouts.PipelineParallelLayerLayout(layout, size)
        layers = [stage.count(layouts.LayerType.decoder) for stage in _flat(parsed.layout)]
        assert tuple(layers) == plan.sizes
    model = plan.model
    found |= {
        "num_layers": model.layers,
        "hidden_size": model.hidden,
        "num_attention_heads": model.heads,
        "num_query_groups": model.kv_heads,
        "kv_channels": model.head_dim,
        "ffn_hidden_size": model.ffn_hidden,
        "bf16": True,
        "params_dtype": torch.bfloat16,
        "add_bias_linear": model.mlp_bias,
    }
    return found


def _flat(layout: list[list[list[Any]]]) -> list[list[Any]]:
    """Virtual stages in model order: the first chunks of all ranks, then the second, ..."""
    return [layout[rank][chunk] for chunk in range(len(layout[0])) for rank in range(len(layout))]


def test_seeds_reach_every_mechanism() -> None:
    """The plans above are not all of one kind."""
    plans = [random_plan(seed) for seed in SEEDS]
    random.shuffle(plans)
    texts = [export_plan(plan, "megatron").text for plan in plans]
    for words in ("layout", "decoder-first", "virtual", "uniform", "block", "selective"):
        assert any(words in text for text in texts)
