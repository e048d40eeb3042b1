"""Export to Megatron-LM: the way back, the mechanism chosen, and what is refused."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings

from ilp_parallel.configuration import Strategy
from ilp_parallel.errors import InputError
from ilp_parallel.export.megatron import export_megatron
from ilp_parallel.export.megatron_reader import parse_megatron
from ilp_parallel.export.megatron_rules import validate_megatron
from tests.export.plans import model, plan_of, plans

if TYPE_CHECKING:
    from ilp_parallel.plan import Plan

PLAIN = Strategy("1", ())
FULL = Strategy("1", ("full",))


def as_megatron_runs_it(strategy: Strategy) -> Strategy:
    """ZeRO 2 with a whole gradient buffer is Megatron-LM's distributed optimizer."""
    return replace(strategy, zero="1") if strategy.zero == "2-buffer" else strategy


@settings(max_examples=300, deadline=None)
@given(plans)
def test_export_read_back_is_the_plan(plan: Plan) -> None:
    export = export_megatron(plan)
    configuration, sizes, strategies = parse_megatron(export.flags.arguments, export.devices)
    assert configuration == plan.configuration
    assert sizes == plan.sizes
    assert strategies == tuple(as_megatron_runs_it(strategy) for strategy in plan.strategies)
    assert validate_megatron(export) == ()


@settings(max_examples=50, deadline=None)
@given(plans)
def test_rendered_shell_lines_carry_every_option(plan: Plan) -> None:
    export = export_megatron(plan)
    words = shlex.split(export.render().replace("\\\n", " "), comments=True)
    launch = words[words.index("torchrun") :]
    nodes, per_node = (
        int(launch[launch.index(name) + 1]) for name in ("--nnodes", "--nproc-per-node")
    )
    assert nodes * per_node == plan.configuration.devices
    assert tuple(launch[launch.index("pretrain_gpt.py") + 1 :]) == export.flags.arguments
    for name, value in export.environment:
        assert f"{name}={value}" in words


def options(plan: Plan) -> dict[str, tuple[str, ...]]:
    return dict(export_megatron(plan).flags.items)


def uniform(sizes: tuple[int, ...], strategy: Strategy, pipeline: int) -> Plan:
    return plan_of(sizes, (strategy,) * sum(sizes), pipeline=pipeline)


@pytest.mark.parametrize(
    ("sizes", "pipeline", "expected"),
    [
        ((3, 3, 3, 3), 4, {}),
        ((2,) * 8, 4, {"--num-layers-per-virtual-pipeline-stage": ("2",)}),
        (
            (2, 3, 3, 1),
            4,
            {
                "--decoder-first-pipeline-num-layers": ("2",),
                "--decoder-last-pipeline-num-layers": ("1",),
            },
        ),
        (
            (2, 3, 1, 2, 3, 1),
            3,
            {
                "--decoder-first-pipeline-num-layers": ("4",),
                "--decoder-last-pipeline-num-layers": ("2",),
                "--num-virtual-stages-per-pipeline-rank": ("2",),
            },
        ),
        ((1, 3, 2, 2), 4, {"--pipeline-model-parallel-layout": ("Et|t*3|t*2|t*2L",)}),
        ((2, 2, 2, 1), 2, {"--pipeline-model-parallel-layout": ("Et*2|(t*2|)*2,tL",)}),
    ],
)
def test_simplest_split_that_says_it(
    sizes: tuple[int, ...], pipeline: int, expected: dict[str, tuple[str, ...]]
) -> None:
    found = options(uniform(sizes, PLAIN, pipeline))
    split = ("virtual", "pipeline-num-layers", "layout")
    assert {k: v for k, v in found.items() if any(part in k for part in split)} == expected


def test_block_recomputation_covers_stages_smaller_than_n() -> None:
    strategies = (FULL, PLAIN, FULL, FULL, FULL, PLAIN)
    sizes = (1, 1, 4)
    mixed = plan_of(sizes, strategies, pipeline=3)
    with pytest.raises(InputError, match="recomputation is not one policy"):
        export_megatron(mixed)
    block = replace(mixed, strategies=(FULL, FULL, FULL, FULL, FULL, PLAIN))
    found = options(block)
    assert found["--recompute-method"] == ("block",)
    assert found["--recompute-num-layers"] == ("3",)


def test_sharding_options_by_zero() -> None:
    def present(zero: str) -> set[str]:
        plan = uniform((2, 2), Strategy(zero, ()), 2)  # type: ignore[arg-type]
        return {
            name
            for name in options(plan)
            if "optimizer" in name or "overlap" in name or "fsdp" in name
        } - {"--optimizer"}

    assert present("0") == set()
    distributed = {"--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather"}
    assert present("1") == present("2-buffer") == distributed
    assert present("3-regather") == distributed | {"--use-megatron-fsdp"}


def test_model_options_of_a_llama_like_model() -> None:
    shapes = model(
        4,
        kv_heads=8,
        gated_mlp=True,
        activation="silu",
        norm="rmsnorm",
        qkv_bias=True,
        projection_bias=False,
        mlp_bias=False,
        learned_positions=0,
        tied_embeddings=False,
        dropout=False,
    )
    found = options(replace(uniform((2, 2), PLAIN, 2), model=shapes))
    assert found["--num-query-groups"] == ("8",)
    assert found["--normalization"] == ("RMSNorm",)
    assert found["--position-embedding-type"] == ("rope",)
    assert found["--max-position-embeddings"] == ("2048",)
    assert found["--attention-dropout"] == ("0.0",)
    for switch in (
        "--group-query-attention",
        "--swiglu",
        "--disable-bias-linear",
        "--add-qkv-bias",
        "--untie-embeddings-and-output-weights",
    ):
        assert found[switch] == ()


@pytest.mark.parametrize(
    ("zero", "tensor", "generation", "expected"),
    [
        ("1", 2, "ampere", "1"),
        ("1", 1, "ampere", None),
        ("1", 2, "blackwell", None),
        ("3-regather", 2, "hopper", "8"),
    ],
)
def test_cuda_connections(zero: str, tensor: int, generation: str, expected: str | None) -> None:
    strategies = (Strategy(zero, ()),) * 4  # type: ignore[arg-type]
    plan = plan_of((2, 2), strategies, pipeline=2, tensor=tensor, generation=generation)
    found = dict(export_megatron(plan).environment)
    assert found.get("CUDA_DEVICE_MAX_CONNECTIONS") == expected


@pytest.mark.parametrize(
    ("kernel", "backend", "noted"),
    [("flash", "flash", False), ("flash1", "flash", True), ("eager", "unfused", True)],
)
def test_nearest_attention_backend_is_named(kernel: str, backend: str, noted: bool) -> None:
    plan = replace(BASE, job=replace(BASE.job, attention=kernel))  # type: ignore[arg-type]
    export = export_megatron(plan)
    assert export.flags.values("--attention-backend") == (backend,)
    assert any("attention" in warning for warning in export.warnings) == noted


BASE = uniform((2, 2), PLAIN, 2)


@pytest.mark.parametrize(
    ("plan", "feature"),
    [
        (replace(BASE, strategies=(PLAIN, PLAIN, PLAIN, Strategy("0", ()))), "ZeRO differs"),
        (uniform((2, 2), Strategy("2-scatter", ()), 2), "ZeRO 2-scatter"),
        (uniform((2, 2), Strategy("3-keep", ()), 2), "ZeRO 3-keep"),
        (replace(BASE, strategies=(PLAIN, FULL, PLAIN, FULL)), "recomputation is not one policy"),
        (
            replace(BASE, strategies=(FULL, Strategy("1", ("mlp",))) * 2),
            r"recomputation is not one policy \(full, mlp\)",
        ),
        (
            replace(BASE, configuration=replace(BASE.configuration, schedule="gpipe")),
            "GPipe schedule",
        ),
        (replace(BASE, job=replace(BASE.job, precision="deepspeed-bf16")), "precision recipe"),
        (replace(BASE, model=replace(BASE.model, embedding_norm=True)), "norm after the embedding"),
        (replace(BASE, model=replace(BASE.model, mlp_bias=False)), "biases in only one"),
        (replace(BASE, model=replace(BASE.model, qkv_bias=False)), "biases everywhere but"),
        (replace(BASE, model=replace(BASE.model, gated_mlp=True)), "gated gelu MLP"),
        (replace(BASE, model=replace(BASE.model, activation="relu")), "relu MLP"),
        (
            replace(BASE, cluster=replace(BASE.cluster, devices_per_node=6, nodes=3)),
            "16 devices do not fill nodes of 6",
        ),
        (
            replace(
                uniform((2, 2), Strategy("0", ()), 2),
                job=replace(BASE.job, precision="bf16-moments"),
            ),
            "bf16 moments without",
        ),
    ],
)
def test_what_megatron_lacks_is_named(plan: Plan, feature: str) -> None:
    with pytest.raises(InputError, match=feature) as caught:
        export_megatron(plan)
    assert caught.value.code == "NOT_EXPRESSIBLE_IN_MEGATRON"


def test_every_missing_feature_is_named_at_once() -> None:
    plan = replace(
        BASE,
        strategies=(PLAIN, FULL, Strategy("3-keep", ()), FULL),
        job=replace(BASE.job, precision="fsdp-fp32-master"),
    )
    with pytest.raises(InputError) as caught:
        export_megatron(plan)
    for part in ("ZeRO differs", "ZeRO 3-keep", "not one policy", "fsdp-fp32-master"):
        assert part in caught.value.message


def test_a_plan_that_breaks_a_rule_is_refused_with_its_code() -> None:
    shapes = replace(BASE.model, heads=15, kv_heads=15)
    with pytest.raises(InputError) as caught:
        export_megatron(replace(BASE, model=shapes))
    assert caught.value.code == "TP_NOT_DIVIDING_HEADS"
