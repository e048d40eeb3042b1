"""torchtitan, DeepSpeed, Galvatron and Calculon files: stated, open, refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from ilp_parallel.cli.exchange import FORMS as OFFERED
from ilp_parallel.cli.exchange import PROBLEMS as OFFERED_PROBLEMS
from ilp_parallel.errors import InputError
from ilp_parallel.imports.registry import FORMS, PROBLEMS, read_texts
from tests.imports.runs import (
    APPLICATION,
    DEEPSPEED,
    EXECUTION,
    GALVATRON,
    SYSTEM,
    TITAN,
)

if TYPE_CHECKING:
    from ilp_parallel.imports.record import Imported


def read(form: str, *texts: str, devices: int | None = None) -> Imported:
    return read_texts([(text, "file") for text in texts], form, devices)


def test_command_line_offers_every_format() -> None:
    assert OFFERED == FORMS
    assert OFFERED_PROBLEMS == PROBLEMS


def test_torchtitan_states_its_run() -> None:
    found = read("torchtitan", TITAN, devices=16)
    assert (found.data, found.tensor, found.pipeline, found.microbatch) == (8, 2, 1, 4)
    assert (found.global_batch, found.microbatches) == (32, 1)
    assert (found.zero, found.recompute) == (("3-regather",), (("full",),))
    assert found.notes == ("model llama3 8B",)
    without = read("torchtitan", TITAN)
    assert (without.devices, without.data, without.global_batch, without.zero) == (None,) * 4


def test_torchtitan_default_keeps_weights_in_a_pipeline() -> None:
    text = TITAN.replace("tensor_parallel_degree = 2", "pipeline_parallel_degree = 2")
    found = read("torchtitan", text, devices=16)
    assert (found.zero, found.microbatch, found.microbatches) == (("3-keep",), 1, 4)
    assert (found.chunks, found.sizes) == (None, None)


def test_selective_checkpointing_of_torchtitan_stays_open() -> None:
    found = read("torchtitan", TITAN.replace('"full"', '"selective"'), devices=16)
    assert found.recompute is None
    assert any("selective" in note for note in found.notes)


def test_deepspeed_fills_in_the_third_batch_size() -> None:
    found = read("deepspeed", DEEPSPEED, devices=8)
    assert (found.global_batch, found.microbatch, found.microbatches) == (64, 2, 4)
    assert (found.zero, found.precision, found.optimizer) == (
        ("2-scatter",),
        "deepspeed-bf16",
        "adam",
    )
    assert (found.sequence_length, found.recompute, found.shapes) == (None, None, {})
    two = json.loads(DEEPSPEED)
    del two["train_batch_size"]
    assert read("deepspeed", json.dumps(two), devices=8).global_batch == 16


def test_galvatron_states_strategies_per_layer() -> None:
    found = read("galvatron", GALVATRON)
    assert (found.pipeline, found.tensor, found.data, found.microbatch) == (2, 2, 2, 2)
    assert found.zero == ("3-keep", "3-keep", "3-regather", "3-regather", "3-keep")
    assert found.recompute == (("full",), (), (), (), ())
    assert found.sizes == (2, 3)  # the remainder is on the last stage
    assert found.schedule == "1f1b"


def test_calculon_states_model_run_and_machine() -> None:
    found = read("calculon", SYSTEM, APPLICATION, EXECUTION)
    assert found.cluster is not None
    assert (found.cluster.nodes, found.cluster.devices_per_node) == (2, 8)
    assert found.cluster.intra.bandwidth_bytes_per_s == 300e9
    assert (found.cluster.device.generation, found.cluster.device.processors) == ("ampere", 108)
    assert (found.sizes, found.chunks, found.schedule) == ((4,) * 6, 3, "interleaved")
    assert (found.zero, found.recompute) == (("1",), (("core_attn",),))
    assert (found.sequence_parallel, found.microbatches) == (True, 8)
    alone = read("calculon", APPLICATION)
    assert (alone.pipeline, alone.shapes["layers"], alone.sequence_length) == (None, 24, 2048)


def changed(text: str, **entries: object) -> str:
    return json.dumps({**json.loads(text), **entries})


ULYSSES = changed(DEEPSPEED, sequence_parallel_size=2)
DEEP = changed(GALVATRON, pp_deg=8, vtp=1, tp_sizes_enc="1,1,1,1,1")


@pytest.mark.parametrize(
    ("code", "form", "texts"),
    [
        ("MALFORMED_TOML", "torchtitan", ("[training",)),
        ("MALFORMED_TOML", "torchtitan", ("a=" + "[" * 5000,)),
        ("WRONG_TYPE", "torchtitan", ("training = 3",)),
        ("WRONG_TYPE", "torchtitan", ("[training]\nseq_len = 1.5",)),
        ("OUT_OF_RANGE", "torchtitan", (f"[training]\nseq_len = {'9' * 400}",)),
        ("SIZES_DISAGREE", "torchtitan", (TITAN.replace("= 2", "= 3"),)),
        (
            "TORCHTITAN_SETTING_NOT_READ",
            "torchtitan",
            (TITAN.replace('"full"', '"memory_budget"'),),
        ),
        (
            "TORCHTITAN_SETTING_NOT_READ",
            "torchtitan",
            (TITAN.replace("= -1", "= 2\ndata_parallel_replicate_degree = 2"),),
        ),
        (
            "LAYERS_NOT_COVERED_ONCE",
            "torchtitan",
            ('[parallelism]\nmodule_fqns_per_model_part = [["layers.0"], ["layers.2"]]',),
        ),
        ("MALFORMED_JSON", "deepspeed", ("{",)),
        ("BATCH_IDENTITY", "deepspeed", (changed(DEEPSPEED, gradient_accumulation_steps=3),)),
        ("BATCH_IDENTITY", "deepspeed", (changed(DEEPSPEED, train_batch_size=6),)),
        (
            "DEEPSPEED_SETTING_NOT_READ",
            "deepspeed",
            (
                changed(
                    DEEPSPEED,
                    zero_optimization={"stage": 3, "offload_param": {"device": "cpu"}},
                ),
            ),
        ),
        (
            "DEEPSPEED_SETTING_NOT_READ",
            "deepspeed",
            (changed(DEEPSPEED, sequence_parallel_size=2),),
        ),
        ("WRONG_TYPE", "deepspeed", (changed(DEEPSPEED, zero_optimization=[2]),)),
        ("DEVICES_DIFFER", "galvatron", (changed(GALVATRON, world_size=4),)),
        ("MALFORMED_LIST", "galvatron", (changed(GALVATRON, tp_sizes_enc=[2, 2]),)),
        ("LISTS_DIFFER", "galvatron", (changed(GALVATRON, checkpoint="1"),)),
        (
            "GALVATRON_SETTING_NOT_READ",
            "galvatron",
            (changed(GALVATRON, tp_sizes_enc="2,2,2,1,1"),),
        ),
        (
            "MORE_STAGES_THAN_LAYERS",
            "galvatron",
            (changed(GALVATRON, pp_deg=8, vtp=1, tp_sizes_enc="1,1,1,1,1"),),
        ),
        ("CALCULON_FILE_UNKNOWN", "calculon", ("{}",)),
        ("CALCULON_FILE_TWICE", "calculon", (APPLICATION, APPLICATION)),
        ("MISSING_FIELD", "calculon", (EXECUTION,)),
        ("SIZES_DISAGREE", "calculon", (APPLICATION, changed(EXECUTION, data_par=4))),
        (
            "CALCULON_SETTING_NOT_READ",
            "calculon",
            (APPLICATION, changed(EXECUTION, weight_offload=True, num_procs=8, data_par=1)),
        ),
        ("ONE_FILE_ONLY", "deepspeed", (DEEPSPEED, DEEPSPEED)),
        ("UNKNOWN_FORMAT", "paper", (DEEPSPEED,)),
    ],
)
def test_refusals(code: str, form: str, texts: tuple[str, ...]) -> None:
    with pytest.raises(InputError) as caught:
        read(form, *texts, devices=8)
    assert caught.value.code == code
    assert str(caught.value).isprintable()
