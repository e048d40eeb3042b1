"""docs/models.md says what the data sets and the readers say."""

from __future__ import annotations

from pathlib import Path

import pytest

from ilp_parallel.specs.blocks import block_text
from ilp_parallel.specs.huggingface import IMPORTERS, TEXT_MODELS
from ilp_parallel.specs.readers import MODEL_ALIASES, load_model, model_names

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "models.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", model_names())
def test_every_preset_has_its_row_and_its_sources(name: str) -> None:
    model = load_model(name)
    assert model.published_parameters is not None
    cells = (
        f"`{name}`",
        f"{model.main_parameters / 1e9:,.3f} B",
        f"{model.main_active_parameters / 1e9:,.3f} B",
        f"{model.published_parameters / 1e9:,.6g} B",
        block_text(model),
        f"{model.default_cluster}, {model.default_batch} x {model.default_sequence}",
    )
    assert f"| {' | '.join(cells)} |\n" in PAGE
    section = PAGE.partition(f"### {name}\n")[2].partition("\n#")[0]
    assert section.strip() == "\n".join(f"* {source}" for source in model.sources)


def test_no_other_preset_is_listed() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    assert len(rows) == len(model_names())
    assert all(f"`{alias}` for `{name}`" in PAGE for alias, name in MODEL_ALIASES.items())


def test_families_are_those_that_are_read() -> None:
    table = PAGE.partition("| kind | model types |")[2].partition("\n\n")[0]
    cells = " ".join(row.split("|")[2] for row in table.splitlines()[2:])
    assert set(cells.replace(",", " ").replace(" and ", " ").split()) == {*IMPORTERS, *TEXT_MODELS}
