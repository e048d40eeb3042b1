"""Each numbered constraint family of a formulation is a function and a row family."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import numpy as np
import pytest

import formulations
from formulations import PIPELINE, PIPELINE_CHOICE
from tests.strategies import random_instance

HELPERS = {"__init__", "cells", "columns", "labels", "layout", "max_terms", "pieces"}
NUMBERED = re.compile(r"\((\d+)\)[^():]*\(``(\w+)``", re.DOTALL)


def modules() -> list[str]:
    folder = Path(formulations.__file__).parent / "pipeline"
    return sorted(path.stem for path in folder.glob("*.py") if path.stem not in HELPERS)


def row_names(name: str) -> set[str]:
    """Row families that some small instance brings out."""
    rng = np.random.default_rng(5)
    kinds = [
        random_instance(rng, classes=1, reshard=reshard, policies=False, schedule=schedule)
        for reshard in (False, True)
        for schedule in ("1f1b", "interleaved")
    ]
    if name in PIPELINE_CHOICE:
        programs = [PIPELINE_CHOICE[name].build(kinds)]
    else:
        fits = [kind for kind in kinds if PIPELINE[name].refuses(kind) is None]
        programs = [PIPELINE[name].build(kind, cutoff) for kind in fits for cutoff in (None, 10**6)]
    return {family.name for program in programs for family in program.rows}


def test_every_file_is_registered() -> None:
    assert modules() == sorted([*PIPELINE, *PIPELINE_CHOICE])
    for name, formulation in {**PIPELINE, **PIPELINE_CHOICE}.items():
        assert formulation.name == name
        assert formulation.reference


@pytest.mark.parametrize("name", modules())
def test_numbered_constraints_exist(name: str) -> None:
    module = importlib.import_module(f"formulations.pipeline.{name}")
    documented = {int(number): rows for number, rows in NUMBERED.findall(module.__doc__)}
    assert documented, "no numbered constraint found"
    built = {number: add.__name__.lstrip("_") for number, add in module.FAMILIES.items()}
    assert documented == built
    for number, add in module.FAMILIES.items():
        assert add.__doc__.startswith(f"({number})")
    assert row_names(name) == set(documented.values())
