"""A result file says nothing that its certificate does not: every changed figure is rejected."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import pytest

from ilp_parallel import plan, verify
from ilp_parallel.claims import stated_figures, verify_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """The result of a small job."""
    result = plan("gpt2-xl", "a100-80gb:1x4", batch=64, space="mixed", fix="mbs=2")
    found: dict[str, Any] = json.loads(json.dumps(result.document()))
    return found


def failed(document: dict[str, Any], tmp_path: Path) -> set[str]:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(document))
    return {check.name for check in verify_file(str(path))[1] if not check.passed}


def test_an_honest_file_and_a_bare_certificate_pass(
    document: dict[str, Any], tmp_path: Path
) -> None:
    assert failed(document, tmp_path) == set()
    assert failed(document["certificate"], tmp_path) == set()
    path = tmp_path / "result.json"
    path.write_text(json.dumps(document))
    certificate, checks = verify_file(str(path))
    names = {check.name for check in checks}
    assert {f"file_{name}" for name in stated_figures(certificate)} | {"file_plan"} <= names
    assert verify(path)


@pytest.mark.parametrize(
    "name", ["status", "objective", "bound", "gap", "step_time_s", "bound_s", "dp_step_time_s"]
)
def test_a_changed_figure_is_rejected(name: str, document: dict[str, Any], tmp_path: Path) -> None:
    changed = copy.deepcopy(document)
    value = changed[name]
    changed[name] = "feasible" if isinstance(value, str) else value + 1
    assert failed(changed, tmp_path) == {f"file_{name}"}
    changed[name] = None
    assert failed(changed, tmp_path) == {f"file_{name}"}


def _halved(inner: dict[str, Any]) -> None:
    """Twice the microbatch, half as many: consistent in itself, and another plan."""
    g = inner["configuration"]
    g["microbatch"], g["microbatches"] = 2 * g["microbatch"], g["microbatches"] // 2


@pytest.mark.parametrize(
    "change",
    [
        _halved,
        lambda inner: inner["configuration"].update(microbatches=99),
        lambda inner: inner["model"].update(layers=3),
        lambda inner: inner["model"].update(default_batch=7),
        lambda inner: inner["job"].update(global_batch=1),
        lambda inner: inner["strategies"][0].update(recompute=["full"]),
        lambda inner: inner.update(space="uniform"),
        lambda inner: inner.update(schema="other/1"),
        lambda inner: inner.clear(),
    ],
)
def test_another_plan_is_rejected(
    change: Callable[[dict[str, Any]], object], document: dict[str, Any], tmp_path: Path
) -> None:
    changed = copy.deepcopy(document)
    change(changed["plan"])
    assert failed(changed, tmp_path) == {"file_plan"}


def test_a_plan_left_out_is_missed(document: dict[str, Any], tmp_path: Path) -> None:
    assert failed({**document, "plan": None}, tmp_path) == {"file_plan"}
