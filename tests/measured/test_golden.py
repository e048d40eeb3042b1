"""Megatron-LM's functional tests as plans: flags, defaults, and what is left out."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ilp_parallel.errors import InputError
from ilp_parallel.measured.golden import GoldenRow, is_golden, plan_of, read_golden
from ilp_parallel.measured.naming import NotCoveredError

if TYPE_CHECKING:
    from pathlib import Path

ARGS = {
    "num-layers": 12,
    "hidden-size": 512,
    "num-attention-heads": 8,
    "seq-length": 1024,
    "micro-batch-size": 4,
    "global-batch-size": 32,
    "bf16": True,
    "transformer-impl": "transformer_engine",
}
ROW = GoldenRow("gpt/gpt3_toy", "dev_dgx_h100", ARGS, 1e9, ("((8,), (1,), 'h100')",))


def row(platform: str = "dev_dgx_h100", **flags: bool | int | str) -> GoldenRow:
    """The toy row with further flags, dashes written as underscores."""
    named = {name.replace("_", "-"): value for name, value in flags.items()}
    return replace(ROW, platform=platform, args={**ARGS, **named})


def test_defaults_are_those_of_megatron() -> None:
    plan = plan_of(ROW)
    model, g = plan.model, plan.configuration
    assert (model.vocab, model.ffn_hidden, model.kv_heads, model.head_dim) == (50257, 2048, 8, 64)
    assert model.dropout
    assert model.tied_embeddings
    assert model.learned_positions == 1024
    assert (g.data, g.microbatches, g.pipeline, g.tensor, g.chunks) == (8, 1, 1, 1, 1)
    assert (plan.job.attention, plan.job.precision) == ("flash", "megatron-bf16")
    assert {strategy.name for strategy in plan.strategies} == {"zero0/none"}


def test_flags_say_what_is_trained_and_how() -> None:
    plan = plan_of(
        row(
            tensor_model_parallel_size=2,
            pipeline_model_parallel_size=2,
            num_layers_per_virtual_pipeline_stage=3,
            sequence_parallel=True,
            use_distributed_optimizer=True,
            untie_embeddings_and_output_weights=True,
            swiglu=True,
            normalization="RMSNorm",
            group_query_attention=True,
            num_query_groups=4,
            attention_backend="unfused",
            recompute_granularity="selective",
            recompute_modules="[mlp core_attn]",
        )
    )
    model, g = plan.model, plan.configuration
    assert (g.tensor, g.pipeline, g.chunks, g.data, g.microbatches) == (2, 2, 2, 2, 4)
    assert g.sequence_parallel
    assert g.schedule == "interleaved"
    assert plan.sizes == (3, 3, 3, 3)
    assert (model.kv_heads, model.gated_mlp, model.norm) == (4, True, "rmsnorm")
    assert model.ffn_hidden == 1344  # two thirds of four times 512, in multiples of 64
    assert not model.tied_embeddings
    assert plan.job.attention == "unfused"
    assert plan.strategies[0].name == "zero1/core_attn+mlp"


def test_ends_that_count_as_layers_take_one_from_their_stages() -> None:
    plan = plan_of(
        row(
            num_layers=6,
            pipeline_model_parallel_size=4,
            num_virtual_stages_per_pipeline_rank=2,
            account_for_embedding_in_pipeline_split=True,
            account_for_loss_in_pipeline_split=True,
        )
    )
    assert plan.sizes == (0, 1, 1, 1, 1, 1, 1, 0)


def test_without_a_distributed_optimizer_nothing_is_sharded() -> None:
    assert plan_of(row(use_megatron_fsdp=True)).strategies[0].zero == "3-regather"
    assert plan_of(row(use_distributed_optimizer=True)).strategies[0].zero == "1"
    whole = row(use_distributed_optimizer=True, tensor_model_parallel_size=8)
    assert plan_of(whole).strategies[0].zero == "0"  # one data rank


@pytest.mark.parametrize(
    ("flags", "attention"),
    [
        ({"transformer_impl": "local"}, "unfused"),
        ({"attention_backend": "local"}, "unfused"),
        ({"attention_backend": "fused"}, "flash"),
        ({}, "flash"),
    ],
)
def test_attention_kernels(flags: dict[str, str], attention: str) -> None:
    assert plan_of(row(**flags)).job.attention == attention


def test_devices_follow_the_platform_and_the_recipe() -> None:
    both = ("((4,), (2,), 'gb200')", "((8,), (1,), 'h100')")
    on_gb200 = plan_of(replace(row("dev_dgx_gb200"), gpus=both))
    assert (on_gb200.cluster.nodes, on_gb200.cluster.devices_per_node) == (2, 4)
    assert on_gb200.cluster.device.name == "gb200"
    on_a100 = plan_of(replace(row("lts_dgx_a100"), gpus=both))
    assert (on_a100.cluster.nodes, on_a100.cluster.devices_per_node) == (1, 8)
    assert on_a100.cluster.device.name == "a100-80gb"
    assert plan_of(replace(ROW, gpus=None)).configuration.devices == 8


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (replace(ROW, test="gpt/gpt_grpo_toy"), "reinforcement learning"),
        (replace(ROW, test="bert/toy"), "encoder"),
        (replace(ROW, test="t5/toy"), "encoder and decoder"),
        (replace(ROW, test="hybrid/toy"), "state-space layers"),
        (replace(ROW, test="mimo/toy"), "multimodal"),
        (row(num_experts=8), "mixture of experts"),
        (row(multi_latent_attention=True), "latent attention"),
        (row(bf16="no", fp32=True, fp16="no"), None),
        (replace(ROW, args={k: v for k, v in ARGS.items() if k != "bf16"}), "fp32 training"),
        (replace(ROW, mem_max_allocated_bytes=None), "no memory logged"),
        (replace(ROW, test="gpt/toy_release", gpus=None), "number of devices unknown"),
        (replace(row("dev_dgx_gb200"), gpus=None), "number of devices unknown"),
        (row(global_batch_size=33), "batch does not divide"),
        (row(tensor_model_parallel_size=16), "degrees do not divide"),
        (row(pipeline_model_parallel_size=3), "degrees do not divide"),
        (row(hidden_size="wide"), "flag hidden-size is no number"),
        (row(recompute_granularity="selective", recompute_modules="[moe_act]"), "recomputed"),
        (
            row(
                pipeline_model_parallel_size=4,
                num_layers_per_virtual_pipeline_stage=1,
                global_batch_size=40,
            ),
            "microbatches no multiple",
        ),
    ],
)
def test_what_is_not_covered_says_why(case: GoldenRow, reason: str | None) -> None:
    if reason is None:
        plan_of(case)
        return
    with pytest.raises(NotCoveredError, match=reason):
        plan_of(case)


def written(path: Path, *lines: str) -> Path:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def document(**changes: object) -> str:
    known = {"test": ROW.test, "platform": ROW.platform, "args": ARGS, "gpus": None}
    return json.dumps({**known, "mem_max_allocated_bytes": 1e9, "source": "x", **changes})


def test_files_are_read_and_others_passed_over(tmp_path: Path) -> None:
    golden = written(tmp_path / "golden.jsonl", document(), document(mem_max_allocated_bytes=None))
    assert is_golden(golden)
    first, second = read_golden(golden)
    assert first.args == ARGS
    assert (first.gpus, second.mem_max_allocated_bytes) == (None, None)
    for other in ('{"plan": 1}', "[1]", "", "not json"):
        assert not is_golden(written(tmp_path / "other.jsonl", other))


@pytest.mark.parametrize("line", ["{", '{"test": 1}', document(args={"a": [1]}), document(args=3)])
def test_a_broken_row_is_one_error_with_its_line(tmp_path: Path, line: str) -> None:
    path = written(tmp_path / "golden.jsonl", document(), line)
    with pytest.raises(InputError, match="line 2") as caught:
        read_golden(path)
    assert caught.value.code == "BAD_GOLDEN_ROW"


flags = st.dictionaries(
    st.sampled_from(
        [
            *ARGS,
            "pipeline-model-parallel-size",
            "tensor-model-parallel-size",
            "num-virtual-stages-per-pipeline-rank",
            "num-layers-per-virtual-pipeline-stage",
            "kv-channels",
            "vocab-size",
            "recompute-granularity",
            "context-parallel-size",
        ]
    ),
    st.one_of(st.booleans(), st.integers(-2, 9), st.text(max_size=3), st.floats()),
)


@given(changed=flags)
def test_any_flags_give_a_plan_or_a_reason(changed: dict[str, bool | int | float | str]) -> None:
    try:
        plan = plan_of(replace(ROW, args={**ARGS, **changed}))
    except NotCoveredError:
        return
    assert sum(plan.sizes) == plan.model.layers
    assert plan.configuration.devices == 8
