"""Reading Megatron-LM options and layouts, the broken and foreign ones included."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ilp_parallel.errors import InputError
from ilp_parallel.export.megatron_flags import MegatronFlags
from ilp_parallel.export.megatron_layout import read_layout, write_layout
from ilp_parallel.export.megatron_reader import parse_megatron

RUN = (
    "--num-layers 8 --micro-batch-size 2 --global-batch-size 64 "
    "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 4"
)


@given(st.lists(st.integers(1, 9), min_size=2, max_size=12).map(tuple))
def test_layout_read_back(sizes: tuple[int, ...]) -> None:
    assert read_layout(write_layout(sizes)) == sizes


def test_layout_example_of_megatron_documentation() -> None:
    """80 layers on 8 pipeline ranks with 5 virtual stages each (feature page named in module)."""
    sizes = read_layout("Et*2|(t*2|)*34,t*3|(t*2|)*3,tL")
    assert (len(sizes), sum(sizes)) == (8 * 5, 80)
    assert sizes == (2, *(2,) * 34, 3, *(2,) * 3, 1)


def test_layout_is_as_long_as_its_runs_not_its_stages() -> None:
    assert write_layout((2, *(3,) * 1000, 1)) == "Et*2|(t*3|)*1000,tL"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tt|tL",
        "Et|t",
        "E||tL",
        "Et|m|L",
        "Em|tL",
        "Et|mt|tL",
        "Et|m|mL",
        "Et|L",
        "Et|(t|(t|)*2)*2tL",
        "EtLt",
        "Et*|tL",
        "Et|(t|)*999999999tL",
        "Et*999999|(t*999999|)*999999,tL",
    ],
)
def test_broken_layout_is_refused(text: str) -> None:
    with pytest.raises(InputError) as caught:
        read_layout(text)
    assert caught.value.code == "MALFORMED_LAYOUT"


def test_last_of_a_repeated_option_counts_and_equals_signs_split() -> None:
    flags = MegatronFlags.from_arguments(["--a=1", "--b", "x", "y", "--a", "2", "--c"])
    assert flags.integer("--a") == 2
    assert flags.values("--b") == ("x", "y")
    assert flags.values("--c") == ()
    assert flags.values("--d") is None


def test_data_degree_and_microbatches_follow_from_the_world_size() -> None:
    configuration, sizes, _ = parse_megatron(RUN.split(), devices=32)
    assert (configuration.data, configuration.microbatches) == (4, 8)
    assert sizes == (2, 2, 2, 2)


def test_expert_degrees() -> None:
    """Experts fold over the ranks of a stage; inside one, tensor ranks unless another is said."""
    words = f"{RUN} --num-experts 8 --expert-model-parallel-size 4"
    configuration, _, _ = parse_megatron(words.split(), devices=32)
    assert (configuration.expert, configuration.expert_tensor) == (4, 2)
    assert configuration.expert_shards == 1
    said = f"{words} --expert-tensor-parallel-size 1".split()
    configuration, _, _ = parse_megatron(said, devices=32)
    assert (configuration.expert_tensor, configuration.expert_shards) == (1, 2)
    dense, _, _ = parse_megatron(RUN.split(), devices=32)
    assert (dense.expert, dense.expert_tensor) == (1, 1)


def test_prediction_layers_are_on_the_last_stage_or_where_the_layout_has_them() -> None:
    _, sizes, strategies = parse_megatron(f"{RUN} --mtp-num-layers 1".split(), devices=32)
    assert (sizes, len(strategies)) == ((2, 2, 2, 3), 9)
    layout = f"{RUN} --mtp-num-layers 2 --pipeline-model-parallel-layout Et*4|tt|t*2|mmL"
    assert parse_megatron(layout.split(), devices=32)[1] == (4, 2, 2, 2)


def test_context_ranks_share_the_devices_with_data_ranks() -> None:
    words = f"{RUN} --context-parallel-size 2".split()
    configuration, _, _ = parse_megatron(words, devices=32)
    assert (configuration.context, configuration.data, configuration.microbatches) == (2, 2, 16)


@pytest.mark.parametrize(
    ("code", "added"),
    [
        ("MALFORMED_MEGATRON_ARGUMENTS", "--num-layers eight"),
        ("MALFORMED_MEGATRON_ARGUMENTS", "--num-layers 0"),
        ("MALFORMED_MEGATRON_ARGUMENTS", "--num-layers -4"),
        ("MALFORMED_MEGATRON_ARGUMENTS", f"--num-layers {'9' * 5000}"),
        ("MALFORMED_MEGATRON_ARGUMENTS", "--num-layers"),
        ("MALFORMED_MEGATRON_ARGUMENTS", "--num-layers 4 4"),
        ("MEGATRON_SIZES_DISAGREE", "--num-layers 9"),
        ("MEGATRON_SIZES_DISAGREE", "--global-batch-size 63"),
        ("MEGATRON_SIZES_DISAGREE", "--tensor-model-parallel-size 3"),
        ("MEGATRON_SIZES_DISAGREE", "--pipeline-model-parallel-layout Et|t|tL"),
        ("MEGATRON_SIZES_DISAGREE", "--decoder-first-pipeline-num-layers 9"),
        (
            "MISSING_MEGATRON_FLAG",
            "--recompute-granularity full --recompute-method block",
        ),
        ("MEGATRON_SIZES_DISAGREE", "--expert-model-parallel-size 2"),
        ("MEGATRON_SIZES_DISAGREE", "--num-experts 8 --expert-model-parallel-size 3"),
        ("MEGATRON_SIZES_DISAGREE", "--num-experts 64 --expert-model-parallel-size 16"),
        ("MEGATRON_SIZES_DISAGREE", "--num-experts 9 --expert-tensor-parallel-size 3"),
        ("MEGATRON_SIZES_DISAGREE", "--mtp-num-layers 99999999"),
        ("MEGATRON_FLAG_NOT_READ", "--recompute-granularity selective --recompute-modules moe"),
        (
            "MEGATRON_FLAG_NOT_READ",
            "--recompute-granularity full --recompute-method uniform --recompute-num-layers 2",
        ),
        (
            "MEGATRON_FLAG_NOT_READ",
            "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads",
        ),
    ],
)
def test_foreign_or_broken_options_are_refused(code: str, added: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_megatron(f"{RUN} {added}".split(), devices=32)
    assert caught.value.code == code


def test_word_before_any_option_is_refused() -> None:
    with pytest.raises(InputError, match="before any option"):
        parse_megatron(["pretrain_gpt.py"], devices=1)
