"""Every constant is documented."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from ilp_parallel.costs import constants
from ilp_parallel.costs.profile import default_profile
from ilp_parallel.specs.job import Optimizer, Precision, Stack

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cost_model.md"
NAMES = [name for name in vars(constants) if name.isupper() and name != "TYPE_CHECKING"]


@pytest.mark.parametrize("name", NAMES)
def test_a_constant_is_in_the_documentation(name: str) -> None:
    assert f"`{name}`" in PAGE.read_text(encoding="utf-8")


def test_every_choice_of_a_job_has_its_constants() -> None:
    assert set(constants.RECIPES) == set(get_args(Precision))
    assert set(constants.MOMENTS) == set(get_args(Optimizer))
    for table in (constants.STORED_GATE_COPIES, constants.BUCKET_BYTES):
        assert set(table) == set(get_args(Stack))
    assert set(default_profile().stacks) == set(get_args(Stack))
