"""Every rule of Megatron-LM's options: one run that keeps it, one that breaks it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ilp_parallel.configuration import Strategy
from ilp_parallel.export.megatron import export_megatron
from ilp_parallel.export.megatron_flags import MegatronExport, MegatronFlags
from ilp_parallel.export.megatron_rules import validate_megatron
from tests.export.plans import plan_of

LAYERS = 16
GOOD = export_megatron(
    plan_of((4,) * 4, (Strategy("1", ()),) * LAYERS, pipeline=4, sequence_parallel=True)
)
SELECTIVE = "--recompute-granularity selective"
FULL = "--recompute-granularity full"
FSDP = "--use-megatron-fsdp --ckpt-format fsdp_dtensor"


def changed(added: str, removed: str = "") -> MegatronExport:
    """The good run with options replaced or added, and some removed."""
    items = dict(GOOD.flags.items) | dict(MegatronFlags.from_arguments(added.split()).items)
    flags = MegatronFlags(tuple((k, v) for k, v in items.items() if k not in removed.split()))
    return replace(GOOD, flags=flags)


def codes(export: MegatronExport) -> set[str]:
    return {violation.code for violation in validate_megatron(export)}


def test_good_run_keeps_every_rule() -> None:
    assert validate_megatron(GOOD) == ()


@pytest.mark.parametrize(
    ("code", "added", "removed"),
    [
        ("TP_NOT_DIVIDING_HEADS", "--num-attention-heads 15", ""),
        ("KV_HEADS_NOT_DIVISIBLE_BY_TP", "--group-query-attention --num-query-groups 3", ""),
        ("KV_HEADS_NOT_DIVIDING_HEADS", "--group-query-attention --num-query-groups 6", ""),
        ("QUERY_GROUPS_HALF_GIVEN", "--num-query-groups 4", ""),
        ("TP_NOT_DIVIDING_FFN", "--ffn-hidden-size 4097", ""),
        ("DEVICES_NOT_DIVISIBLE", "--tensor-model-parallel-size 16", ""),
        ("GLOBAL_BATCH_NOT_DIVISIBLE", "--global-batch-size 47", ""),
        ("POSITIONS_FEWER_THAN_TOKENS", "--max-position-embeddings 2047", ""),
        ("SEQUENCE_PARALLEL_WITHOUT_TP", "--tensor-model-parallel-size 1", ""),
        ("SEQUENCE_NOT_DIVISIBLE_BY_TP", "--seq-length 2047", ""),
        ("SEQUENCE_NOT_DIVISIBLE_BY_TP", "--seq-length 2046 --context-parallel-size 2", ""),
        ("SEQUENCE_NOT_DIVISIBLE_BY_CP", "--seq-length 2046 --context-parallel-size 2", ""),
        ("DEVICES_NOT_DIVISIBLE", "--context-parallel-size 8", ""),
        (
            "SEVERAL_SPLIT_MECHANISMS",
            "--num-layers-per-virtual-pipeline-stage 2 --num-virtual-stages-per-pipeline-rank 2",
            "",
        ),
        (
            "SEVERAL_SPLIT_MECHANISMS",
            "--decoder-first-pipeline-num-layers 4 --pipeline-model-parallel-layout Et|tL",
            "",
        ),
        (
            "FIRST_LAST_WITH_PP1",
            "--pipeline-model-parallel-size 1 --decoder-first-pipeline-num-layers 16",
            "",
        ),
        ("TOO_MANY_VIRTUAL_STAGES", "--num-virtual-stages-per-pipeline-rank 5", ""),
        ("TOO_MANY_VIRTUAL_STAGES", "--pipeline-model-parallel-size 32", ""),
        (
            "SEQUENCE_NOT_DIVISIBLE_FOR_FP8",
            "--fp8-format hybrid --context-parallel-size 4 --seq-length 2056",
            "",
        ),
        ("MEGATRON_SIZES_DISAGREE", "--num-layers 18", ""),
        ("MEGATRON_SIZES_DISAGREE", "--num-layers-per-virtual-pipeline-stage 3", ""),
        ("MEGATRON_SIZES_DISAGREE", "--decoder-first-pipeline-num-layers 3", ""),
        (
            "LAYERS_NOT_PLACED",
            "--pipeline-model-parallel-layout Et|(t|)*14,tL --num-layers 17",
            "",
        ),
        ("MALFORMED_LAYOUT", "--pipeline-model-parallel-layout E|t*16|t|tL", ""),
        ("LAYOUT_NOT_DIVISIBLE_BY_PP", "--pipeline-model-parallel-layout Et*4|t*4|t*8L", ""),
        (
            "INTERLEAVING_NEEDS_PIPELINE",
            "--pipeline-model-parallel-size 1 --num-layers-per-virtual-pipeline-stage 2",
            "",
        ),
        (
            "MICROBATCHES_NOT_IN_ROUNDS",
            "--num-layers-per-virtual-pipeline-stage 2 --global-batch-size 40",
            "",
        ),
        ("RECOMPUTE_FULL_NEEDS_METHOD", f"{FULL} --recompute-method block", ""),
        ("RECOMPUTE_METHOD_NEEDS_FULL", f"{SELECTIVE} --recompute-method block", ""),
        (
            "RECOMPUTE_MORE_THAN_STAGE",
            f"{FULL} --recompute-method block --recompute-num-layers 5",
            "",
        ),
        ("RECOMPUTE_MODULES_NEED_SELECTIVE", "--recompute-modules mlp", ""),
        ("RECOMPUTE_MODULE_UNKNOWN", f"{SELECTIVE} --recompute-modules full", ""),
        (
            "RECOMPUTE_LAYERNORM_WITH_DELAYED_FP8",
            f"{SELECTIVE} --recompute-modules layernorm --fp8-format hybrid",
            "",
        ),
        ("PARAM_GATHER_OVERLAP_NEEDS_GRAD_REDUCE", "", "--overlap-grad-reduce"),
        ("PARAM_GATHER_OVERLAP_NEEDS_GRAD_REDUCE", "", "--use-distributed-optimizer"),
        ("FSDP_NEEDS_DISTRIBUTED_OPTIMIZER", FSDP, "--use-distributed-optimizer"),
        ("FSDP_NEEDS_DTENSOR_CHECKPOINTS", "--use-megatron-fsdp", ""),
        ("DISTRIBUTED_OPTIMIZER_NEEDS_ADAM", "--optimizer sgd", ""),
        ("FSDP_NEEDS_CUDA_CONNECTIONS", FSDP, ""),
    ],
)
def test_broken_rule_gives_its_code(code: str, added: str, removed: str) -> None:
    assert code in codes(changed(added, removed))


def test_tensor_parallelism_before_blackwell_needs_one_connection() -> None:
    unset = replace(GOOD, environment=())
    assert codes(unset) == {"TP_NEEDS_ONE_CUDA_CONNECTION"}
    assert codes(replace(unset, generation="blackwell")) == set()


def test_overlap_switched_off_needs_a_longer_pipeline() -> None:
    short = "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 4"
    assert codes(changed(short)) == set()
    without = f"{short} --no-overlap-p2p-communication"
    assert codes(changed(without)) == {"INTERLEAVING_NEEDS_PIPELINE"}
