"""What pyproject.toml promises is what the tree holds."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from importlib.metadata import entry_points, metadata
from pathlib import Path
from typing import get_args

import pytest

from ilp_parallel.certificate import Fate
from ilp_parallel.configuration import RECOMPUTE_SETS, ZERO_VARIANTS
from ilp_parallel.problems.pipeline import Schedule
from ilp_parallel.spaces import SPACES
from ilp_parallel.specs.readers import cluster_names, data_root, model_names

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def strings_of(key: str) -> list[str]:
    """Strings of the list assigned to a key of pyproject.toml (3.10 has no TOML reader)."""
    match = re.search(rf"^{re.escape(key)} = \[(.*?)\]", PYPROJECT, re.MULTILINE | re.DOTALL)
    assert match, f"no list {key} in pyproject.toml"
    return re.findall(r'"([^"]+)"', match[1])


def test_every_package_is_listed_and_every_listed_one_exists() -> None:
    packages = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for top in ("ilp_parallel", "formulations")
        for path in (ROOT / top).rglob("__init__.py")
    }
    assert set(strings_of("packages")) == packages | {"ilp_parallel.datasets"}


def test_every_module_lies_in_a_package() -> None:
    for top in ("ilp_parallel", "formulations"):
        for path in (ROOT / top).rglob("*.py"):
            assert (path.parent / "__init__.py").exists(), path


@pytest.mark.parametrize("path", sorted((ROOT / "datasets").rglob("*.*")), ids=str)
def test_every_data_file_is_shipped(path: Path) -> None:
    patterns = strings_of('"ilp_parallel.datasets"')
    name = path.relative_to(ROOT / "datasets").as_posix()
    assert any(fnmatch(name, pattern) for pattern in patterns)


def test_presets_are_found_where_the_package_looks() -> None:
    assert data_root().samefile(ROOT / "datasets")
    assert {path.stem for path in (ROOT / "datasets/models").glob("*.json")} == set(model_names())
    assert {path.stem for path in (ROOT / "datasets/clusters").glob("*.json")} == set(
        cluster_names()
    )


def test_metadata_of_the_installed_package() -> None:
    assert metadata("ilp-parallel")["Requires-Python"] == "<3.14,>=3.10"
    (script,) = entry_points(group="console_scripts", name="ilp-parallel")
    assert script.value == "ilp_parallel.cli.app:main"


@pytest.mark.parametrize("name", ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE"])
def test_documents_are_there(name: str) -> None:
    assert len((ROOT / name).read_text(encoding="utf-8").splitlines()) > 10


def test_concepts_explain_every_name_of_a_choice_and_a_fate() -> None:
    """Names that results print; a new one without an explanation fails here."""
    text = (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8")
    fates = {str(fate.__struct_config__.tag) for fate in get_args(Fate)} | {"rule"}
    modules = {module for modules in RECOMPUTE_SETS for module in modules}
    names = {*SPACES, *get_args(Schedule), *ZERO_VARIANTS, *modules, *fates}
    assert {name for name in names if f"`{name}`" not in text} == set()


def test_links_between_documents_lead_somewhere() -> None:
    for document in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text(encoding="utf-8")):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_makefile_help_lists_every_target() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    (phony,) = re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    assert set(re.findall(r"^([a-z-]+):.*## ", text, re.MULTILINE)) == set(phony.split())
