"""Reading device-placement files: exact decimals, and one reason per kind of bad input."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from ilp_parallel.cli.app import cli
from ilp_parallel.errors import InputError
from ilp_parallel.imports.placement_instance import read_placement_instance

if TYPE_CHECKING:
    from pathlib import Path

Document = dict[str, object]


def node(name: int, **changed: object) -> dict[str, object]:
    return {
        "id": name,
        "supportedOnFpga": 1,
        "cpuLatency": 9.25,
        "fpgaLatency": 0.125,
        "isBackwardNode": False,
        "size": 3,
    } | changed


def link(source: int, target: int, cost: object = 0.5) -> dict[str, object]:
    return {"sourceId": source, "destId": target, "cost": cost}


def document(**changed: object) -> Document:
    return {
        "maxSizePerFPGA": 100.0,
        "maxFPGAs": 2,
        "maxCPUs": 1,
        "nodes": [node(7), node(9), node(8)],
        "edges": [link(7, 9), link(9, 8)],
    } | changed


def write(folder: Path, content: Document) -> str:
    path = folder / "graph.json"
    path.write_text(json.dumps(content))
    return str(path)


def test_decimals_become_exact_ticks(tmp_path: Path) -> None:
    instance = read_placement_instance(write(tmp_path, document()))
    assert instance.ticks_per_unit == 1000
    assert instance.accelerator_ticks == (125, 125, 125)
    assert instance.transfer_ticks == (500, 500, 0)
    assert instance.rounded_terms == 0
    assert instance.edges == ((0, 1), (1, 2))


BAD: dict[str, tuple[Document, str]] = {
    "cycle": (document(edges=[link(7, 9), link(9, 7)]), "cycle"),
    "unknown id": (document(edges=[link(7, 6)]), "no node 6"),
    "repeated id": (document(nodes=[node(7), node(7)], edges=[]), "two nodes"),
    "missing field": (document(nodes=[{"id": 1}], edges=[]), "is missing"),
    "missing edges": ({k: v for k, v in document().items() if k != "edges"}, "edges"),
    "negative size": (document(nodes=[node(7, size=-1)], edges=[]), "negative"),
    "negative limit": (document(maxSizePerFPGA=-1), "negative"),
    "edge costs": (document(edges=[link(7, 9), link(7, 8, 0.6)]), "out of node 7"),
    "backward first": (
        document(nodes=[node(7, isBackwardNode=1), node(9)], edges=[link(7, 9)]),
        "feeds forward",
    ),
    "words": (document(nodes=[node(7, cpuLatency="much")], edges=[]), "not a number"),
    "infinite": (document(nodes=[node(7, cpuLatency=float("inf"))], edges=[]), "cpuLatency"),
    "no nodes": (document(nodes=[], edges=[]), "no nodes"),
    "fraction of a device": (document(maxFPGAs=1.5), "maxFPGAs"),
}


@pytest.mark.parametrize("case", list(BAD))
def test_bad_input_has_one_reason(case: str, tmp_path: Path) -> None:
    content, said = BAD[case]
    with pytest.raises(InputError, match=said) as caught:
        read_placement_instance(write(tmp_path, content))
    assert caught.value.code == "BAD_PLACEMENT_FILE"


def test_missing_file_and_no_json_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="FILE_UNREADABLE"):
        read_placement_instance(str(tmp_path / "none.json"))
    (tmp_path / "graph.json").write_text("{")
    with pytest.raises(InputError, match="BAD_PLACEMENT_FILE"):
        read_placement_instance(str(tmp_path / "graph.json"))


def test_place_prints_a_proven_plan(tmp_path: Path) -> None:
    target = tmp_path / "plan.json"
    arguments = ["place", write(tmp_path, document()), "--format", "json", "-o", str(target)]
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert result["objective"] == result["bound"] == 0.375
    assert result["verified"]
    assert json.loads(target.read_text()) == result["plan"]


def test_place_exits_3_where_nothing_fits_and_4_with_a_gap(tmp_path: Path) -> None:
    path = write(tmp_path, document(maxSizePerFPGA=2, maxCPUs=0))
    assert CliRunner().invoke(cli, ["place", path]).exit_code == 3
    path = write(tmp_path, document())
    done = CliRunner().invoke(
        cli, ["place", path, "--contiguity", "contiguous", "--format", "json"]
    )
    assert done.exit_code == 4
    assert json.loads(done.stdout)["bound"] < json.loads(done.stdout)["objective"]
