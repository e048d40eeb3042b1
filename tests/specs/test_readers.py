"""Notation, files, and the ways in which they can be wrong."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ilp_parallel.errors import InputError
from ilp_parallel.specs.documents import MAX_DOCUMENT_BYTES, MAX_YAML_BYTES
from ilp_parallel.specs.readers import data_root, load_cluster, load_model
from ilp_parallel.specs.validate import MODEL_LIMITS

GPT3 = json.loads((data_root() / "models" / "gpt3.json").read_text())
A100 = json.loads((data_root() / "clusters" / "a100-80gb.json").read_text())


def refused(call: object, text: str) -> InputError:
    """The error of a reader; its message is one printable line."""
    assert callable(call)
    with pytest.raises(InputError) as caught:
        call(text)
    assert str(caught.value).isprintable()
    return caught.value


@pytest.mark.parametrize(
    ("text", "nodes", "per_node"),
    [
        ("a100-80gb:128x8", 128, 8),
        ("gb200:4x72", 4, 72),
        ("h100-80gb:4", 1, 4),
        ("h100-80gb", 1, 8),
        ("GB300", 1, 72),
        ("V100-16GB:2X16", 2, 16),
    ],
)
def test_notation(text: str, nodes: int, per_node: int) -> None:
    cluster = load_cluster(text)
    assert (cluster.nodes, cluster.devices_per_node) == (nodes, per_node)
    assert cluster.device.name in text.lower()


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "UNKNOWN_CLUSTER"),
        ("a100-80g:8x8", "UNKNOWN_CLUSTER"),
        ("a100-80gb:", "BAD_CLUSTER_NOTATION"),
        ("a100-80gb:8x", "BAD_CLUSTER_NOTATION"),
        ("a100-80gb:-8x8", "BAD_CLUSTER_NOTATION"),
        ("a100-80gb:1e3", "BAD_CLUSTER_NOTATION"),
        ("a100-80gb:8x8x8", "BAD_CLUSTER_NOTATION"),
        ("a100-80gb:1024", "MORE_DEVICES_THAN_A_NODE"),
        ("a100-80gb:0x8", "OUT_OF_RANGE"),
        ("a100-80gb:8x0", "OUT_OF_RANGE"),
        ("a100-80gb:4194305x4", "OUT_OF_RANGE"),
        ("nowhere.yaml", "NO_SUCH_FILE"),
        ("x" * 10_000, "UNKNOWN_CLUSTER"),
        ("a\0b", "UNKNOWN_CLUSTER"),
        ("a\n/b", "NO_SUCH_FILE"),
    ],
)
def test_bad_cluster_text(text: str, code: str) -> None:
    assert refused(load_cluster, text).code == code


def test_fixes_are_the_smallest_ones() -> None:
    assert "a100-80gb:128x8" in refused(load_cluster, "a100-80gb:1024").fix
    assert "gpt3" in refused(load_model, "gtp3").fix
    assert "a100-80gb" in refused(load_cluster, "a100-80g").fix


def test_a_written_file_gives_the_same_specification(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(GPT3))
    assert load_model(str(path)) == load_model("gpt3")
    path.write_text("\ufeff" + json.dumps(A100))
    assert load_cluster(str(path)) == load_cluster("a100-80gb")
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(A100))
    assert load_cluster(str(path)) == load_cluster("a100-80gb")


def test_a_file_without_extension_is_found_but_never_hides_a_preset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own").write_text(json.dumps(GPT3 | {"name": "own", "layers": 3}))
    Path("gpt3").write_text(json.dumps(GPT3 | {"layers": 3}))
    assert load_model("own").layers == 3
    assert load_model("gpt3").layers == 96
    assert load_model("./gpt3").layers == 3


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "EMPTY_FILE"),
        (b" \n", "EMPTY_FILE"),
        (b"\xff\xfe\x00\x01junk", "NOT_TEXT"),
        (b"\x00\x01\x02", "MALFORMED_JSON"),
        (b"{", "MALFORMED_JSON"),
        (b'{"layers": NaN}', "MALFORMED_JSON"),
        (b"[" * 100_000, "MALFORMED_JSON"),
        (b"[]", "NOT_A_MAPPING"),
        (b"3", "NOT_A_MAPPING"),
        (b"{}", "MISSING_FIELD"),
        (b" " * (MAX_DOCUMENT_BYTES + 1), "FILE_TOO_LARGE"),
    ],
)
def test_bad_json(tmp_path: Path, content: bytes, code: str) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    assert refused(load_model, str(path)).code == code
    assert refused(load_cluster, str(path)).code == code


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ("a: &x [1, 2]\nb: *x\n", "YAML_ALIAS"),
        ("a: [1, 2", "MALFORMED_YAML"),
        ("a: !!python/object/apply:os.getcwd []", "MALFORMED_YAML"),
        ("a: !!int ''", "MALFORMED_YAML"),
        ("a: 2020-99-99", "MALFORMED_YAML"),
        ("[" * 20_000, "NESTED_TOO_DEEPLY"),
        ("- " * 20_000, "NESTED_TOO_DEEPLY"),
        ("{a: " * 10_000, "NESTED_TOO_DEEPLY"),
        ("1: 2", "NOT_A_MAPPING"),
        ("plain", "NOT_A_MAPPING"),
        ("#" * (MAX_YAML_BYTES + 1), "FILE_TOO_LARGE"),
    ],
)
def test_bad_yaml(tmp_path: Path, content: str, code: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(content)
    assert refused(load_cluster, str(path)).code == code


def test_a_directory_and_a_missing_file(tmp_path: Path) -> None:
    assert refused(load_model, str(tmp_path)).code == "IS_A_DIRECTORY"
    assert refused(load_model, str(tmp_path / "none.json")).code == "NO_SUCH_FILE"
    assert refused(load_model, "/dev/null").code == "NOT_A_FILE"


def test_an_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret.json"
    path.write_text("{}")

    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)  # a superuser may read everything
    error = refused(load_model, str(path))
    assert error.code == "UNREADABLE_FILE"
    assert "Permission denied" in error.message


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"layers": 0}, "OUT_OF_RANGE"),
        ({"layers": -1}, "OUT_OF_RANGE"),
        ({"vocab": 10**30}, "OUT_OF_RANGE"),
        ({"heads": 10**400}, None),  # the decoder may refuse it first
        ({"hidden": 1e30}, None),
        ({"layers": "96"}, "WRONG_TYPE"),
        ({"layers": True}, "WRONG_TYPE"),
        ({"layers": 1.5}, "WRONG_TYPE"),
        ({"layers": None}, "WRONG_TYPE"),
        ({"layers": [96]}, "WRONG_TYPE"),
        ({"tied_embeddings": 1}, "WRONG_TYPE"),
        ({"norm": "batchnorm"}, "WRONG_TYPE"),
        ({"kv_heads": 7}, "KV_HEADS_DO_NOT_DIVIDE_HEADS"),
        ({"published_parameters": -1.0}, "OUT_OF_RANGE"),
        ({"name": "two\nlines"}, "BAD_NAME"),
        ({"hiden": 3}, "UNKNOWN_FIELD"),
        ({"layers": 10**4, "hidden": 1 << 20, "ffn_hidden": 1 << 22}, "OUT_OF_RANGE"),
    ],
)
def test_bad_model_fields(tmp_path: Path, change: dict[str, object], code: str | None) -> None:
    path = tmp_path / "model.json"
    path.write_text(json.dumps(GPT3 | change))
    error = refused(load_model, str(path))
    assert error.code == code or code is None


@pytest.mark.parametrize("field", MODEL_LIMITS)
def test_each_size_is_refused_just_outside_its_limits(tmp_path: Path, field: str) -> None:
    path = tmp_path / "model.json"
    for value in (MODEL_LIMITS[field][0] - 1, MODEL_LIMITS[field][1] + 1):
        path.write_text(json.dumps(GPT3 | {field: value}))
        error = refused(load_model, str(path))
        assert error.code == "OUT_OF_RANGE"
        assert error.message.startswith(f"{field}=")


def test_a_missing_field_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(json.dumps({key: value for key, value in GPT3.items() if key != "head_dim"}))
    error = refused(load_model, str(path))
    assert (error.code, error.fix) == ("MISSING_FIELD", "add head_dim")


@pytest.mark.parametrize(
    ("part", "change", "code"),
    [
        ("intra", {"bandwidth_bytes_per_s": -1.0}, "OUT_OF_RANGE"),
        ("intra", {"bandwidth_bytes_per_s": float("inf")}, "OUT_OF_RANGE"),
        ("inter", {"latency_s": float("nan")}, "OUT_OF_RANGE"),
        ("inter", {"latency": 1.0}, "UNKNOWN_FIELD"),
        ("inter", {"latency_s": "2e-6"}, "WRONG_TYPE"),
        ("device", {"memory_bytes": 80}, "OUT_OF_RANGE"),
        ("device", {"peak_flops": {}}, "NO_PEAK"),
        ("device", {"peak_flops": {"bf16": 0.0}}, "OUT_OF_RANGE"),
        ("device", {"peak_flops": {"int4": 1e12}}, "WRONG_TYPE"),
        ("device", {"processors": 0}, "OUT_OF_RANGE"),
    ],
)
def test_bad_cluster_fields(
    tmp_path: Path, part: str, change: dict[str, object], code: str
) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(yaml.safe_dump(A100 | {part: A100[part] | change}))
    assert refused(load_cluster, str(path)).code == code


def test_reading_imports_neither_solver_nor_table_printer() -> None:
    code = (
        "import sys; from ilp_parallel.specs.readers import load_model, load_cluster;"
        "load_model('gpt3'); load_cluster('a100:128x8');"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    heavy = {"numpy", "yaml", "rich", "highspy", "ortools", "pulp", "networkx", "click"}
    assert not heavy & set(run.stdout.split())


def test_specifications_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        load_model("gpt3").layers = 3  # type: ignore[misc]
