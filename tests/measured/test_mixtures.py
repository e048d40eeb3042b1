"""Measured runs of models with experts: presets, expert degrees, a source of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ilp_parallel.measured.naming import NotCoveredError, mixture_of
from ilp_parallel.measured.plans import plans_of
from ilp_parallel.measured.validation import validate
from ilp_parallel.specs.readers import load_model
from tests.measured.tables import run_of, timed

if TYPE_CHECKING:
    from ilp_parallel.measured.runs import Run

BRIDGE = {
    "framework": "Megatron-Bridge 26.08",
    "arch_kind": "moe",
    "layers": 48,
    "gpu": "H100",
    "gpu_mem_gb": 80,
    "n_gpus": 16,
    "gpus_per_node": 8,
    "tp": 1,
    "pp": 2,
    "dp": 8,
    "ep": 8,
    "mbs": 1,
    "gbs": 256,
    "seq_len": 4096,
}
QWEN = {**BRIDGE, "model": "Qwen3_30B_a3B"}


def mixture(**changes: object) -> Run:
    return run_of(**{**QWEN, **changes})


def test_the_shapes_are_those_of_the_preset() -> None:
    plan = plans_of(mixture())[0]
    assert plan.model == load_model("qwen3-30b-a3b")
    assert plan.configuration.expert == 8
    assert plan.configuration.expert_shards == 1


def test_remarks_in_brackets() -> None:
    whole, without = mixture_of("DeepSeekV3 (w/ MTP)"), mixture_of("DeepSeekV3 (w/o MTP)")
    assert (whole.layers, without.layers) == (62, 61)
    assert without.main_parameters == without.parameters == whole.main_parameters
    for name in ("DeepSeekV3 (tokendrop)", "Grok-1"):
        with pytest.raises(NotCoveredError):
            mixture_of(name)


def test_they_are_a_source_of_their_own_outside_the_macro_error() -> None:
    runs = [timed(1.2, **{**QWEN, "gbs": 128 * (i + 1)}) for i in range(16)]
    found = validate(runs)
    assert [source.id for source in found.sources] == [runs[0].source]
    assert runs[0].source == f"{runs[0].source_id}, experts"
    assert found.sources[0].bias == pytest.approx(1 / 1.2 - 1)
    assert found.macro_sources == ()
