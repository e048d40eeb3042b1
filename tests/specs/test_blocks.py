"""Rules of models with blocks of several kinds, each with a model that breaks it alone."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ilp_parallel.errors import InputError
from ilp_parallel.specs.model import Experts, Kind, LatentAttention, ModelSpec, StateSpace
from ilp_parallel.specs.readers import data_root, load_model
from ilp_parallel.specs.validate import check_model
from tests.specs.test_validate import code_of

if TYPE_CHECKING:
    from pathlib import Path

DENSE, MOE = Kind("dense", 512), Kind("moe", 0, experts=Experts(8, 2, 128))
SPACE = StateSpace(heads=8, head_dim=16, groups=2, state=16, kernel=4)
MAMBA = Kind("mamba", 0, mixer="state-space")
LATENT = LatentAttention(query_rank=64, kv_rank=32, rope_head_dim=16, value_head_dim=32)
BASE = replace(load_model("llama2-7b"), layers=4)
MIXED = replace(BASE, kinds=(DENSE, MOE), order=(0, 1, 1, 1))
HYBRID = replace(BASE, kinds=(MAMBA, DENSE), order=(0, 0, 1, 0), state_space=SPACE)
TRANSLATOR = replace(
    BASE,
    kinds=(Kind("encoder", 512, causal=False), Kind("decoder", 512, cross_attention=True)),
    order=(0, 0, 1, 1),
)
PREDICTOR = replace(BASE, kinds=(DENSE, Kind("mtp", 512, predicts=True)), order=(0, 0, 0, 1))


@pytest.mark.parametrize("model", [MIXED, HYBRID, TRANSLATOR, PREDICTOR])
def test_models_of_several_kinds_pass(model: ModelSpec) -> None:
    check_model(model)
    check_model(replace(MIXED, latent=LATENT))
    check_model(replace(BASE, experts=Experts(8, 8, 128, 256, shared_gate=True), ffn_hidden=0))


@pytest.mark.parametrize(
    ("base", "change", "code"),
    [
        (MIXED, {"order": (0, 1, 1)}, "KINDS_AND_ORDER_DISAGREE"),
        (MIXED, {"order": ()}, "KINDS_AND_ORDER_DISAGREE"),
        (MIXED, {"kinds": ()}, "KINDS_AND_ORDER_DISAGREE"),
        (MIXED, {"order": (0, 1, 1, 2)}, "KINDS_AND_ORDER_DISAGREE"),
        (MIXED, {"order": (0, 1, 1, -1)}, "KINDS_AND_ORDER_DISAGREE"),
        (MIXED, {"kinds": (DENSE, replace(MOE, name="dense"))}, "KIND_TWICE"),
        (MIXED, {"kinds": (DENSE, replace(MOE, name=""))}, "BAD_NAME"),
        (MIXED, {"order": (1, 1, 1, 1)}, "KIND_UNUSED"),
        (MIXED, {"experts": Experts(8, 2, 128)}, "EXPERTS_OUTSIDE_KINDS"),
        (BASE, {"experts": Experts(8, 9, 128)}, "MORE_ACTIVE_THAN_EXPERTS"),
        (BASE, {"experts": Experts(8, 2, 128, shared_gate=True)}, "SHARED_GATE_WITHOUT_EXPERTS"),
        (BASE, {"experts": Experts(0, 0, 128)}, "OUT_OF_RANGE"),
        (BASE, {"experts": Experts(8, 2, 0)}, "OUT_OF_RANGE"),
        (BASE, {"experts": Experts(8, 2, 128, shared_ffn_hidden=-1)}, "OUT_OF_RANGE"),
        (BASE, {"ffn_hidden": 0, "mixer": "none"}, "EMPTY_BLOCK"),
        (HYBRID, {"kinds": (replace(MAMBA, window=8), DENSE)}, "WINDOW_WITHOUT_ATTENTION"),
        (HYBRID, {"state_space": None}, "STATE_SPACE_MISSING"),
        (BASE, {"state_space": SPACE}, "STATE_SPACE_UNUSED"),
        (HYBRID, {"state_space": replace(SPACE, groups=3)}, "HEADS_NOT_DIVISIBLE_BY_GROUPS"),
        (HYBRID, {"state_space": replace(SPACE, state=0)}, "OUT_OF_RANGE"),
        (BASE, {"latent": LATENT, "kv_heads": 8}, "LATENT_HEADS_DIFFER"),
        (BASE, {"latent": replace(LATENT, kv_rank=0)}, "OUT_OF_RANGE"),
        (
            BASE,
            {"latent": LATENT, "mixer": "state-space", "state_space": SPACE},
            "LATENT_UNUSED",
        ),
        (TRANSLATOR, {"order": (1, 1, 0, 0)}, "DECODER_WITHOUT_ENCODER"),
        (TRANSLATOR, {"order": (0, 1, 0, 1)}, "DECODER_WITHOUT_ENCODER"),
        (BASE, {"cross_attention": True}, "DECODER_WITHOUT_ENCODER"),
        (PREDICTOR, {"order": (0, 1, 0, 0)}, "PREDICTION_NOT_LAST"),
        (BASE, {"predicts": True}, "PREDICTION_NOT_LAST"),
        (BASE, {"window": -1}, "OUT_OF_RANGE"),
        (BASE, {"position_buckets": 1 << 40}, "OUT_OF_RANGE"),
        (BASE, {"token_types": -1}, "OUT_OF_RANGE"),
    ],
)
def test_each_rule(base: ModelSpec, change: dict[str, object], code: str) -> None:
    check_model(base)
    assert code_of(check_model, replace(base, **change)) == code  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "code", "word"),
    [
        ({"latent": {"kv_rank": 512}}, "MISSING_FIELD", "query_rank"),
        ({"latent": {"kv_ranks": 512}}, "UNKNOWN_FIELD", "kv_ranks"),
        ({"kinds": [{"name": "dense"}]}, "MISSING_FIELD", "ffn_hidden"),
        ({"kinds": [{"name": "dense", "ffn_hidden": 1, "windows": 3}]}, "UNKNOWN_FIELD", "windows"),
        (
            {"kinds": [{"name": "moe", "ffn_hidden": 0, "experts": {"count": 8}}]},
            "MISSING_FIELD",
            "kinds[0]: experts",
        ),
        ({"kinds": [3]}, "WRONG_TYPE", "kinds"),
        ({"kinds": {}}, "WRONG_TYPE", "kinds"),
        ({"order": ["moe"] * 62}, "WRONG_TYPE", "order"),
    ],
)
def test_files_say_which_field_is_wrong(
    tmp_path: Path, change: dict[str, object], code: str, word: str
) -> None:
    data = json.loads((data_root() / "models" / "deepseek-v3.json").read_text())
    path = tmp_path / "model.json"
    path.write_text(json.dumps(data | change))
    with pytest.raises(InputError) as caught:
        load_model(str(path))
    assert caught.value.code == code
    assert word in str(caught.value)


def test_parts_of_blocks_are_counted_once() -> None:
    """Parameters of a model are those of its views; each part adds what its shapes say."""
    views = [MIXED.of_kind(index) for index in range(2)]
    blocks = sum(view.layers * view.layer_parameters for view in views)
    assert MIXED.parameters == blocks + BASE.embedding_parameters + BASE.head_parameters
    h, vocab = BASE.hidden, BASE.vocab
    assert replace(BASE, token_types=2).parameters == BASE.parameters + 2 * h
    assert replace(BASE, output_transform=True).parameters == BASE.parameters + h * h + h + vocab
    # both inputs joined by one matrix; a norm for each of them, and one before the output
    joined = PREDICTOR.of_kind(1).layer_parameters - PREDICTOR.of_kind(0).layer_parameters
    assert joined == 2 * h * h + 3 * h
    assert PREDICTOR.parameters - PREDICTOR.main_parameters == PREDICTOR.of_kind(1).layer_parameters
    buckets = replace(TRANSLATOR, position_buckets=32)
    assert buckets.parameters == TRANSLATOR.parameters + 2 * 32 * BASE.heads
