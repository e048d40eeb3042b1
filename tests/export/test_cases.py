"""Situations of users that concern exports, each with a small plan of its own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ilp_parallel.configuration import Strategy
from ilp_parallel.errors import InputError
from ilp_parallel.export.megatron import export_megatron
from ilp_parallel.export.megatron_flags import MegatronFlags
from ilp_parallel.export.megatron_layout import read_layout
from ilp_parallel.export.megatron_reader import parse_megatron, stage_sizes
from ilp_parallel.export.registry import export_plan
from ilp_parallel.export.torchtitan import stage_modules
from ilp_parallel.export.torchtitan_rules import TitanRun, validate_titan
from ilp_parallel.specs.readers import load_model
from tests.export.plans import plan_of

PLAIN = Strategy("1", ())


def test_seven_layers_on_two_stages() -> None:
    """3 + 4, by the numbers of the first and last stage."""
    flags = export_megatron(plan_of((3, 4), (PLAIN,) * 7, pipeline=2)).flags
    assert flags.integer("--decoder-first-pipeline-num-layers") == 3
    assert flags.integer("--decoder-last-pipeline-num-layers") == 4
    assert not flags.has("--pipeline-model-parallel-layout")


def test_forty_layers_on_sixteen_stages_need_the_layout() -> None:
    """At most 3 layers a stage by layout; own numbers for the ends cannot do better than 6."""
    sizes = (2, *(3,) * 8, *(2,) * 7)
    assert sum(sizes) == 40
    flags = export_megatron(plan_of(sizes, (PLAIN,) * 40, pipeline=16, tensor=1)).flags
    assert read_layout(flags.text("--pipeline-model-parallel-layout", "")) == sizes
    reachable = [
        max(first, last, (40 - first - last) // 14)
        for first in range(1, 40)
        for last in range(1, 40 - first)
        if (40 - first - last) % 14 == 0 and 40 - first - last > 0
    ]
    assert min(reachable) == 6


def test_nothing_about_stages_is_written_without_a_pipeline() -> None:
    """First and last numbers at one stage would silently train fewer layers."""
    flags = export_megatron(plan_of((20,), (PLAIN,) * 20, pipeline=1)).flags
    assert not [name for name, _ in flags.items if "decoder-" in name or "layout" in name]


def test_llama_405b_interleaved_in_torchtitan() -> None:
    """126 layers on 8 ranks with 2 chunks each: 16 stages, one layer less on both ends."""
    model = load_model("llama3-405b")
    sizes = (7, *(8,) * 14, 7)
    run = TitanRun(
        sections={
            "training": {"local_batch_size": 16, "global_batch_size": 128, "seq_len": 8192},
            "parallelism": {
                "data_parallel_shard_degree": 8,
                "tensor_parallel_degree": 8,
                "pipeline_parallel_degree": 8,
                "pipeline_parallel_schedule": "Interleaved1F1B",
                "module_fqns_per_model_part": stage_modules(sizes, "output"),
            },
        },
        devices=512,
        layers=model.layers,
        heads=model.heads,
        kv_heads=model.kv_heads,
        tied_embeddings=model.tied_embeddings,
    )
    assert validate_titan(run) == ()


def test_two_key_heads_under_eight_tensor_ranks() -> None:
    """Megatron-LM replicates key heads, torchtitan cannot."""
    sharded = (Strategy("3-regather", ()),) * 4
    plan = plan_of((4,), sharded, pipeline=1, tensor=8, sequence_parallel=True)
    plan = replace(plan, model=replace(plan.model, kv_heads=2, tied_embeddings=False))
    assert export_plan(plan, "megatron").framework == "megatron"
    with pytest.raises(InputError) as caught:
        export_plan(plan, "torchtitan")
    assert caught.value.code == "KV_HEADS_NOT_DIVISIBLE_BY_TP"
    assert "kv_heads=2, tp=8" in caught.value.message


def test_vocabulary_is_padded_for_every_tensor_degree() -> None:
    """50,257 rows become 50,304, 50,432 and 51,200 under 1, 2 and 8 tensor ranks."""
    padded = {}
    for tensor in (1, 2, 8):
        plan = plan_of((4,), (PLAIN,) * 4, pipeline=1, tensor=tensor)
        multiple = export_megatron(plan).flags.integer("--make-vocab-size-divisible-by") * tensor
        padded[tensor] = -(-50257 // multiple) * multiple
    assert padded == {1: 50304, 2: 50432, 8: 51200}


def test_more_virtual_stages_than_layers() -> None:
    """24 layers with 24 chunks on 2 ranks."""
    words = "--num-layers 24 --num-virtual-stages-per-pipeline-rank 24"
    flags = MegatronFlags.from_arguments(f"{words} --pipeline-model-parallel-size 2".split())
    with pytest.raises(InputError):
        stage_sizes(flags)


def test_embedding_and_loss_counted_as_layers() -> None:
    words = (
        "--num-layers 126 --pipeline-model-parallel-size 8 --micro-batch-size 1 "
        "--global-batch-size 1536 --num-virtual-stages-per-pipeline-rank 4 "
        "--tensor-model-parallel-size 4 --account-for-embedding-in-pipeline-split "
        "--account-for-loss-in-pipeline-split"
    )
    configuration, sizes, _ = parse_megatron(words.split(), 256)
    assert (configuration.chunks, len(sizes), sum(sizes)) == (4, 32, 126)
    assert sizes == (3, *(4,) * 30, 3)
