"""Layer times from our own files, Galvatron's and Piper's, and what cannot be taken from them."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ilp_parallel.errors import InputError
from ilp_parallel.imports.layer_profiles import (
    LAYER_TIMES_SCHEMA,
    parse_layer_times,
    read_layer_times,
)
from ilp_parallel.specs.layer_times import LayerTime
from tests.imports.runs import SCRIPT
from tests.imports.test_fuzz import mutated, survives
from tests.test_cli import JOB, assert_refused, model, run

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.test_cli import Ran

__all__ = ["model", "run"]  # fixtures

Json = dict[str, object]

OWN: Json = {
    "schema": LAYER_TIMES_SCHEMA,
    "layers": [
        {"tensor": 2, "microbatch": 1, "sequence_length": 1024, "forward_s": 3e-3},
        {
            "tensor": 1,
            "microbatch": 4,
            "sequence_length": 1024,
            "forward_s": 0.02,
            "backward_s": 0.05,
        },
        {
            "tensor": 1,
            "microbatch": 1,
            "sequence_length": 1024,
            "forward_s": 0.006,
            "backward_s": None,
        },
    ],
}
GALVATRON: Json = {
    "layernum[2]_bsz1_seq1024": 18.0,
    "layernum[4]_bsz1_seq1024": 26.0,
    "layernum[2]_bsz8_seq1024": 90.0,
    "layernum[4]_bsz8_seq1024": 138.0,
    "layertype_0_bsz1_seq1024": 4.0,
    "layertype_other_bsz1_seq1024": 10.0,
    "layertype_0_bsz8_seq1024": 3.0,
    "layertype_other_bsz8_seq1024": 5.25,
    "layertype_0_bsz1_seq1024_attention": 1.5,
    "layertype_0_bsz1_seq1024_mlp": 2.5,
    "layertype_0_bsz2_seq2048": 7.5,
}


def piper_block(number: int, scale: float = 1.0) -> Json:
    """A block at degrees 1 and 2: forward 10 and 6 ms, backward 20 and 13 ms, times ``scale``."""
    modes = {
        "1": (("vanilla", 0.030), ("activation recomp", 0.040)),
        "2": (("vanilla", 0.019), ("activation recomp", 0.025)),
    }
    return {
        "id": number,
        "name": "ParallelTransformerLayer",
        "TMPCs": {
            t: [{"id": name, "timePerSample": p * scale, "parameterSize": 1.0} for name, p in found]
            for t, found in modes.items()
        },
    }


def piper(*blocks: Json, **changes: object) -> Json:
    ends = [{"id": i, "name": name, "TMPCs": {"1": []}} for i, name in ((90, "Emb"), (91, "Head"))]
    document: Json = {
        "maxDevices": 8,
        "bandwidth": 25e9,
        "nodes": [ends[0], *blocks, ends[1]],
        "edges": [],
        "microbatch": 4,
        "sequence_length": 512,
    }
    return {k: v for k, v in {**document, **changes}.items() if v is not None}


PIPER = piper(piper_block(1), piper_block(2))


def parsed(document: object) -> tuple[LayerTime, ...]:
    return parse_layer_times(json.dumps(document), "file")


def code_of(document: object) -> str:
    with pytest.raises(InputError) as caught:
        parsed(document)
    assert str(caught.value).isprintable()
    return caught.value.code


# --- own -----------------------------------------------------------------------------------------


def test_own_files_are_sorted_and_backward_may_be_open() -> None:
    assert parsed(OWN) == (
        LayerTime(1, 1, 1024, 0.006, None),
        LayerTime(1, 4, 1024, 0.02, 0.05),
        LayerTime(2, 1, 1024, 0.003, None),
    )


@given(
    st.dictionaries(
        st.tuples(st.integers(1, 64), st.integers(1, 64), st.integers(1, 1 << 20)),
        st.tuples(st.floats(1e-9, 1e3), st.none() | st.floats(1e-9, 1e3)),
        min_size=1,
        max_size=5,
    )
)
def test_own_files_say_what_was_written(found: dict[tuple[int, int, int], tuple[float, float]]):
    names = LayerTime.__dataclass_fields__
    rows = [dict(zip(names, (*case, *seconds), strict=True)) for case, seconds in found.items()]
    times = parsed({"schema": LAYER_TIMES_SCHEMA, "layers": rows})
    assert {time.case: (time.forward_s, time.backward_s) for time in times} == found


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"tensor": None}, "MISSING_FIELD"),
        ({"tensor": 0}, "OUT_OF_RANGE"),
        ({"tensor": 1.5}, "WRONG_TYPE"),
        ({"tensor": True}, "WRONG_TYPE"),
        ({"microbatch": -1}, "OUT_OF_RANGE"),
        ({"sequence_length": "1024"}, "WRONG_TYPE"),
        ({"sequence_length": 10**30}, "OUT_OF_RANGE"),
        ({"forward_s": None}, "MISSING_FIELD"),
        ({"forward_s": -0.1}, "OUT_OF_RANGE"),
        ({"forward_s": [1]}, "WRONG_TYPE"),
        ({"backward_s": "x"}, "WRONG_TYPE"),
        ({"forward_ms": 6}, "UNKNOWN_FIELD"),
    ],
)
def test_own_files_that_are_wrong(change: Json, code: str) -> None:
    entry = {"tensor": 1, "microbatch": 1, "sequence_length": 1024, "forward_s": 0.006}
    assert code_of({"schema": LAYER_TIMES_SCHEMA, "layers": [{**entry, **change}]}) == code


@pytest.mark.parametrize(
    ("document", "code"),
    [
        ({"schema": LAYER_TIMES_SCHEMA}, "WRONG_TYPE"),
        ({"schema": LAYER_TIMES_SCHEMA, "layers": {}}, "WRONG_TYPE"),
        ({"schema": LAYER_TIMES_SCHEMA, "layers": [1]}, "WRONG_TYPE"),
        ({"schema": LAYER_TIMES_SCHEMA, "layers": []}, "NO_LAYER_TIMES"),
        ({"schema": LAYER_TIMES_SCHEMA, "layer": []}, "UNKNOWN_FIELD"),
        ({"schema": "ilp_parallel.layer_times/2", "layers": []}, "LAYER_TIMES_FORMAT_UNKNOWN"),
        ({"layers": 32}, "LAYER_TIMES_FORMAT_UNKNOWN"),
        ({}, "LAYER_TIMES_FORMAT_UNKNOWN"),
        ([OWN], "NOT_A_MAPPING"),
    ],
)
def test_files_of_no_format(document: object, code: str) -> None:
    assert code_of(document) == code


# --- Galvatron -----------------------------------------------------------------------------------


def test_galvatrons_milliseconds_per_sample_become_seconds_per_microbatch() -> None:
    """One GPU, forward only; embedding, head, halves and raw measurements are passed over."""
    assert parsed(GALVATRON) == (
        LayerTime(1, 1, 1024, 0.004),
        LayerTime(1, 8, 1024, 0.024),
        LayerTime(1, 2, 2048, 0.015),
    )


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"layertype_1_bsz1_seq1024": 1.0}, "GALVATRON_SEVERAL_LAYER_TYPES"),
        ({"layertype_0": 5.0}, "GALVATRON_KEY_NOT_READ"),
        ({"layertype_0_bsz8": 5.0}, "GALVATRON_KEY_NOT_READ"),
        ({"layertype_0_bsz0_seq1024": 5.0}, "GALVATRON_KEY_NOT_READ"),
        ({"layertype_0_bsz8_seq1024_moe": 5.0}, "GALVATRON_KEY_NOT_READ"),
        ({"layertype_0_bsz8_seq1024": "5.0"}, "WRONG_TYPE"),
        ({"layertype_0_bsz8_seq1024": None}, "MISSING_FIELD"),
        ({"layertype_0_bsz8_seq1024": -2.0}, "OUT_OF_RANGE"),
        ({"1_1_8": {"layernum[1]_bsz8_seq2048_rank0_ms": 1.0}}, "GALVATRON_KEY_NOT_READ"),
    ],
)
def test_what_of_galvatron_does_not_map(change: Json, code: str) -> None:
    assert code_of({**GALVATRON, **change}) == code


def test_a_profile_of_galvatron_that_was_not_processed() -> None:
    raw = {key: value for key, value in GALVATRON.items() if key.startswith("layernum")}
    assert code_of(raw) == "NO_LAYER_TIMES"


# --- Piper ---------------------------------------------------------------------------------------


def close(times: tuple[LayerTime, ...], *expected: LayerTime) -> bool:
    return len(times) == len(expected) and all(
        (t.case, t.forward_s, t.backward_s) == (e.case, *map(pytest.approx, (e.forward_s, w)))
        for t, e in zip(times, expected, strict=True)
        for w in [e.backward_s]
    )


def test_pipers_two_modes_tell_forward_from_backward() -> None:
    """Recomputing adds a forward: 40 - 30 ms; the backward is what else is in 30 ms."""
    one, two = LayerTime(1, 4, 512, 0.010, 0.020), LayerTime(2, 4, 512, 0.006, 0.013)
    assert close(parsed(PIPER), one, two)
    assert close(parsed(piper(piper_block(1))), one, two)


def test_pipers_blocks_that_nearly_agree_are_averaged() -> None:
    times = parsed(piper(piper_block(1, 0.96), piper_block(2, 1.04)))
    assert close(times, *parsed(PIPER))
    assert code_of(piper(piper_block(1, 0.85), piper_block(2, 1.15))) == "PIPER_BLOCKS_DIFFER"


def without(block: Json, degree: str, mode: int | None = None) -> Json:
    """A block that lacks a degree, or one of its modes."""
    degrees = dict(block["TMPCs"])  # type: ignore[call-overload]
    modes = degrees.pop(degree)
    if mode is not None:
        degrees[degree] = modes[:mode] + modes[mode + 1 :]
    return {**block, "TMPCs": degrees}


def with_times(vanilla: object, recomputed: object) -> Json:
    modes = [
        {"id": "vanilla", "timePerSample": vanilla},
        {"id": "activation recomp", "timePerSample": recomputed},
    ]
    return {**piper_block(1), "TMPCs": {"1": modes}}


@pytest.mark.parametrize(
    ("document", "code"),
    [
        (piper(), "PIPER_NO_REPEATED_BLOCK"),
        (piper({**piper_block(1), "name": "conv"}), "PIPER_NO_REPEATED_BLOCK"),
        (piper(piper_block(1), microbatch=None), "PIPER_MICROBATCH_OPEN"),
        (piper(piper_block(1), sequence_length=None), "PIPER_MICROBATCH_OPEN"),
        (piper(piper_block(1), microbatch=0), "OUT_OF_RANGE"),
        (piper(piper_block(1), without(piper_block(2), "2")), "PIPER_BLOCKS_DIFFER"),
        (piper(without(piper_block(1), "2", 0)), "PIPER_PASSES_NOT_APART"),
        (piper(without(piper_block(1), "2", 1)), "PIPER_PASSES_NOT_APART"),
        (piper(with_times(0.03, 0.03)), "PIPER_PASSES_NOT_APART"),
        (piper(with_times(0.03, 0.06)), "PIPER_PASSES_NOT_APART"),
        (piper(with_times(0.0, 0.0)), "PIPER_PASSES_NOT_APART"),
        (piper(with_times("1", 0.06)), "WRONG_TYPE"),
        (piper(with_times(None, 0.06)), "MISSING_FIELD"),
        (piper({**piper_block(1), "TMPCs": {"two": []}}), "WRONG_TYPE"),
        (piper({**piper_block(1), "TMPCs": {"2": {}}}), "WRONG_TYPE"),
        (piper({**piper_block(1), "TMPCs": []}), "WRONG_TYPE"),
        (piper({**piper_block(1), "TMPCs": {}}), "NO_LAYER_TIMES"),
        (piper(nodes=3), "WRONG_TYPE"),
        (piper(nodes=[3]), "WRONG_TYPE"),
    ],
)
def test_what_of_piper_does_not_map(document: Json, code: str) -> None:
    assert code_of(document) == code


def piper_files() -> dict[str, Path]:
    folder = Path(os.environ.get("ILP_PARALLEL_MEASURED", "absent"))
    return {path.stem: path for path in folder.rglob("*.json") if path.parent.name == "piper"}


@pytest.mark.skipif(
    not {"bert32a100", "gnmt", "resnet"} <= piper_files().keys(),
    reason="no folder piper in that of ILP_PARALLEL_MEASURED",
)
def test_the_published_inputs_of_piper() -> None:
    """BERT's blocks add up to the file's times; the other two are no transformers."""
    files = piper_files()
    for name in ("gnmt", "resnet"):
        assert code_of(json.loads(files[name].read_text())) == "PIPER_NO_REPEATED_BLOCK"
    document = json.loads(files["bert32a100"].read_text())
    assert code_of(document) == "PIPER_MICROBATCH_OPEN"
    times = parsed({**document, "microbatch": 8, "sequence_length": 512})
    assert [time.tensor for time in times] == [1, 2, 4, 8]
    blocks = [n["TMPCs"] for n in document["nodes"] if n["name"] == "ParallelTransformerLayer"]
    assert len(blocks) == 32
    for time in times:
        kept = sum(block[str(time.tensor)][0]["timePerSample"] for block in blocks)
        assert time.backward_s is not None
        assert 32 * (time.forward_s + time.backward_s) == pytest.approx(kept)
        assert 1.5 < time.backward_s / time.forward_s < 3.0


# --- whatever a file holds -----------------------------------------------------------------------

SEEDS = [json.dumps(document, indent=1) for document in (OWN, GALVATRON, PIPER)]


def read_any(text: str) -> None:
    parse_layer_times(text, "file")


def test_mutated_files(seeds: range) -> None:
    """About one in twenty can still be read."""
    assert all(survives(read_any, text) for text in SEEDS)
    for seed in seeds:
        survives(read_any, mutated(random.Random(seed), SEEDS[seed % len(SEEDS)]))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("schema", "layers", "nodes", "name", "TMPCs", "1", "id", "timePerSample"),
                    *LayerTime.__dataclass_fields__,
                    *GALVATRON,
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(document=json_values, kind=st.sampled_from(["own", "galvatron", "piper", ""]))
def test_any_json_gives_layer_times_or_one_line(document: object, kind: str) -> None:
    whole: object = document
    if kind == "own":
        whole = {"schema": LAYER_TIMES_SCHEMA, "layers": [document]}
    elif kind == "galvatron":
        whole = {"layertype_0_bsz2_seq512": document}
    elif kind == "piper":
        block = {"name": "ParallelTransformerLayer", "TMPCs": {"1": [document]}}
        whole = {"nodes": [block], "microbatch": 1, "sequence_length": 8}
    survives(read_any, json.dumps(whole))


def test_reading_what_is_no_file(tmp_path: Path) -> None:
    for path, code in ((tmp_path / "absent.json", "NO_SUCH_FILE"), (tmp_path, "IS_A_DIRECTORY")):
        with pytest.raises(InputError) as caught:
            read_layer_times(str(path))
        assert caught.value.code == code


# --- the command line ----------------------------------------------------------------------------


def written(tmp_path: Path, document: object) -> Path:
    path = tmp_path / "times.json"
    path.write_text(json.dumps(document))
    return path


def test_solve_uses_them_and_says_so(run: Callable[..., Ran], model: Path, tmp_path: Path) -> None:
    times, plan = written(tmp_path, OWN), tmp_path / "plan.json"
    ran = run("solve", model, *JOB, "--layer-times", times)
    assert ran.code == 0, ran.err
    assert (
        "layer times measured (tensor 1: microbatch 1, 4; tensor 2: microbatch 1), "
        "elsewhere modelled ones scaled to them\n"
    ) in ran.out
    assert run("solve", model, *JOB, "--layer-times", times, "-o", plan).code == 0
    assert run("verify", plan).code == 0
    found = json.loads(plan.read_text())
    assert (found["status"], found["proof"], found["verified"]) == ("optimal", "exact", True)
    assert len(found["plan"]["job"]["layer_times"]) == 3
    plain = json.loads(run("solve", model, *JOB, "--format", "json").out)
    assert plain["plan"]["job"]["layer_times"] == []
    assert found["objective"] > plain["objective"]  # the times above are slow ones
    assert found["instance"]["hash"] != plain["instance"]["hash"]
    again = run("predict", plan)
    assert again.code == 0
    assert "layer times measured (tensor 1" in again.out


def test_predict_of_a_model_and_of_a_plan_file(
    run: Callable[..., Ran], model: Path, tmp_path: Path
) -> None:
    """Tensor degree 1, microbatch 4, 4 blocks: 4 x (20 + 50) ms of blocks."""
    times, plan = written(tmp_path, OWN), tmp_path / "plan.json"
    words = ("predict", model, *JOB, "--plan", "tp=1 pp=2 mbs=4", "--format", "json")
    plain, found = (json.loads(run(*words, *more).out) for more in ((), ("--layer-times", times)))

    def blocks(document: dict[str, list[dict[str, list[dict[str, float]]]]]) -> float:
        names = ("matmul", "attention", "memory_bound", "tensor_traffic", "host_and_stragglers")
        terms = [t for stage in document["stages"] for t in stage["microbatch_terms"]]
        return sum(term["value"] for term in terms if term["name"] in names)

    assert blocks(found) == pytest.approx(4 * 0.07)
    assert blocks(plain) < 0.2
    plan.write_text(json.dumps(plain["plan"]))
    late = json.loads(run("predict", plan, "--layer-times", times, "--format", "json").out)
    assert late["stages"] == found["stages"]


def test_imported_runs_take_them(run: Callable[..., Ran], tmp_path: Path) -> None:
    script, out = tmp_path / "run.sh", tmp_path / "plan.json"
    script.write_text(SCRIPT)
    words = ("import", script, "--format-in", "megatron", "--vocab", 50000, "-o", out)
    cluster = ("--cluster", "--nodes=2 --gres=gpu:a100:8")
    assert run(*words, *cluster).code == 0
    job = json.loads(out.read_text())["job"]
    entry = {"tensor": 1, "microbatch": 2, "forward_s": 1.0, "backward_s": 2.5}
    entry["sequence_length"] = job["sequence_length"]
    times = written(tmp_path, {"schema": LAYER_TIMES_SCHEMA, "layers": [entry]})
    assert run(*words, *cluster, "--layer-times", times).code == 0
    assert json.loads(out.read_text())["job"] == {**job, "layer_times": [entry]}
    absent = written(tmp_path, {"schema": LAYER_TIMES_SCHEMA, "layers": [{**entry, "tensor": 7}]})
    assert_refused(run(*words, *cluster, "--layer-times", absent), "HEADS_NOT_DIVISIBLE_BY_TP")


def test_refusals_of_the_option(run: Callable[..., Ran], model: Path, tmp_path: Path) -> None:
    times = written(tmp_path, OWN)
    other = (*JOB[:-1], "2048")
    refused = run("solve", model, *other, "--layer-times", times)
    assert_refused(refused, "LAYER_TIMES_OF_OTHER_SEQUENCES")
    assert "sequence length 1024, the job has 2048; use --seq 1024" in refused.err
    both = ("compare", model, model, *JOB, "--layer-times", times)
    assert_refused(run(*both), "LAYER_TIMES_OF_ONE_MODEL")
    assert_refused(run("solve", model, *JOB, "--layer-times", "absent"), "NO_SUCH_FILE")
    entry = {"tensor": 1, "microbatch": 1, "sequence_length": 1024, "forward_s": 6e-6}
    fast = written(tmp_path, {"schema": LAYER_TIMES_SCHEMA, "layers": [entry]})
    assert_refused(run("bounds", model, *JOB, "--layer-times", fast), "LAYER_TIME_BEATS_PEAK")
    twice = written(
        tmp_path, {"schema": LAYER_TIMES_SCHEMA, "layers": [{**entry, "forward_s": 1}] * 2}
    )
    assert_refused(run("solve", model, *JOB, "--layer-times", twice), "LAYER_TIME_TWICE")
    plan = tmp_path / "plan.json"
    words = ("predict", model, *JOB, "--plan", "tp=1 pp=2 mbs=4", "--format", "json")
    plan.write_text(json.dumps(json.loads(run(*words).out)["plan"]))
    assert_refused(run("predict", plan, "--layer-times", twice), "LAYER_TIME_TWICE")
