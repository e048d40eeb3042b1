"""Models and clusters by name, by notation or from a file.

A cluster is written ``DEVICE[:DEVICES | :NODESxDEVICES_PER_NODE]``: ``a100-80gb:128x8`` is 128
nodes of 8, ``h100-80gb:4`` four devices on one node, ``gb200:4x72`` four NVLink domains of 72,
``h100-80gb`` one whole node. Other notations: :mod:`ilp_parallel.specs.cluster_notations`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ilp_parallel.errors import InputError
from ilp_parallel.specs.cluster_notations import stated_cluster
from ilp_parallel.specs.documents import did_you_mean, is_path, read_document, shown
from ilp_parallel.specs.huggingface import is_huggingface, model_fields
from ilp_parallel.specs.validate import check_cluster, to_cluster, to_model

if TYPE_CHECKING:
    from ilp_parallel.specs.cluster import ClusterSpec
    from ilp_parallel.specs.model import ModelSpec

_Kind = Literal["models", "clusters"]

MODEL_ALIASES = {
    "gpt3-175b": "gpt3",
    "bloom": "bloom-176b",
    "llama3.1-8b": "llama3-8b",
    "llama3.1-70b": "llama3-70b",
    "llama3.1-405b": "llama3-405b",
    "mixtral": "mixtral-8x7b",
    "qwen2-moe": "qwen2-57b-a14b",
    "megatron-1008b": "megatron-1t",
    "mt-nlg-530b": "turing-530b",
}
CLUSTER_ALIASES = {
    "v100": "v100-32gb",
    "a100": "a100-80gb",
    "h100": "h100-80gb",
    "h200": "h200-141gb",
    "h800": "h800-80gb",
}

_NOTATION = re.compile(r"([A-Za-z0-9._-]+)(?::(?:([0-9]{1,9})[xX])?([0-9]{1,9}))?")


def data_root() -> Path:
    """The folder of the data sets: inside the installed package, else in the checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "datasets"
    return installed if installed.is_dir() else package.parent / "datasets"


def model_names() -> list[str]:
    """Names of the models that come with the program, sorted."""
    return _names("models")


def cluster_names() -> list[str]:
    """Names of the devices that come with the program, sorted."""
    return _names("clusters")


def load_model(name_or_path: str) -> ModelSpec:
    """A model by name, from our own JSON or YAML fields, or from a Hugging Face ``config.json``.

    Raises
    ------
    InputError
        UNKNOWN_MODEL, or whatever is wrong with the file or its fields.
    """
    preset = _preset("models", name_or_path, MODEL_ALIASES)
    if preset is None and not is_path(name_or_path):
        raise InputError(
            "UNKNOWN_MODEL",
            f"no model or file {shown(name_or_path)}",
            did_you_mean(
                name_or_path,
                [*model_names(), *MODEL_ALIASES],
                "see `ilp-parallel models`, or give the path of a JSON file",
            ),
        )
    origin = preset or name_or_path
    data = read_document(origin)
    return to_model(model_fields(data, origin) if is_huggingface(data) else data, origin)


def load_cluster(text: str) -> ClusterSpec:
    """A cluster from a notation, or from a JSON or YAML file of its fields.

    Raises
    ------
    InputError
        UNKNOWN_CLUSTER, BAD_CLUSTER_NOTATION, MORE_DEVICES_THAN_A_NODE, or whatever is wrong
        with the file or its fields.
    """
    stated = stated_cluster(text)
    if stated is not None:
        per_node = stated.per_node or load_cluster(stated.device).devices_per_node
        return load_cluster(f"{stated.device}:{stated.nodes}x{per_node}")
    match = _NOTATION.fullmatch(text)
    preset = _preset("clusters", match[1], CLUSTER_ALIASES) if match else None
    if match is None or preset is None:
        if is_path(text):
            return to_cluster(read_document(text), text)
        raise _no_cluster(text)
    node = to_cluster(read_document(preset), preset)
    nodes, devices = match[2], match[3]
    if devices is None:
        return node
    if nodes is None and int(devices) > node.devices_per_node:
        raise InputError(
            "MORE_DEVICES_THAN_A_NODE",
            f"{text}: a node has {node.devices_per_node} devices",
            f"use {match[1]}:{-(-int(devices) // node.devices_per_node)}x{node.devices_per_node}",
        )
    cluster = replace(node, name=text, nodes=int(nodes or 1), devices_per_node=int(devices))
    check_cluster(cluster)
    return cluster


def _no_cluster(text: str) -> InputError:
    device, colon, _ = text.partition(":")
    if colon and _preset("clusters", device, CLUSTER_ALIASES) is not None:
        return InputError(
            "BAD_CLUSTER_NOTATION",
            f"cluster {shown(text)}",
            "write NODESxDEVICES after the colon, for instance a100-80gb:128x8",
        )
    known = [*cluster_names(), *CLUSTER_ALIASES]
    otherwise = f"use one of {', '.join(cluster_names())}, or a file"
    fix = did_you_mean(device, known, otherwise)
    return InputError("UNKNOWN_CLUSTER", f"no device or file {shown(text)}", fix)


def _names(kind: _Kind) -> list[str]:
    return sorted(path.stem for path in (data_root() / kind).glob("*.json"))


def _preset(kind: _Kind, name: str, aliases: dict[str, str]) -> str | None:
    """Path of the file of a preset, or None where there is no such name."""
    lower = name.lower()
    wanted = aliases.get(lower, lower)
    return str(data_root() / kind / f"{wanted}.json") if wanted in _names(kind) else None
