"""Clusters as people already write them: SLURM options, SkyPilot tasks, hostfiles.

Each states a device, nodes and devices per node, as the notation of
:mod:`ilp_parallel.specs.readers` does; none says anything about links beyond the device's.

* SLURM: ``--nodes=4 --gres=gpu:h100:8`` (or ``--gpus-per-node=h100:8``), or a script's ``#SBATCH``.
* SkyPilot: a YAML task with ``resources: {accelerators: H100:8}`` and ``num_nodes``.
* hostfile: ``DEVICE@PATH``, lines ``host slots=8`` (DeepSpeed, Open MPI) or one host per line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from ilp_parallel.errors import InputError
from ilp_parallel.specs.documents import is_path, read_document, read_text, shown

if TYPE_CHECKING:
    from ilp_parallel.specs.documents import Document

DEVICE_NAMES: dict[str, str] = {
    "a100-80gb": "a100-80gb",
    "a100_80gb": "a100-80gb",
    "a100": "a100-40gb",
    "a100-sxm4-80gb": "a100-80gb",
    "v100": "v100-16gb",
    "v100-32gb": "v100-32gb",
    "h100": "h100-80gb",
    "h200": "h200-141gb",
    "b200": "b200",
    "b300": "b300",
    "gb200": "gb200",
    "gb300": "gb300",
}
"""SkyPilot's names of accelerators (its catalogue: A100 has 40 GB, A100-80GB 80, V100 16)."""

_GRES = re.compile(r"(?:gres/)?gpu(?::([A-Za-z][\w.-]{0,60}))?(?::([0-9]{1,6}))?(?:\(.*\))?")
_SLOTS = re.compile(r"(\S+)(?:\s+slots\s*=\s*([0-9]{1,6}))?(?:\s+max[_-]slots\s*=\s*[0-9]{1,6})?")
_MAX_HOSTS = 1 << 16


@dataclass(frozen=True, slots=True)
class Stated:
    """A cluster by name and number; ``per_node`` is None for whole nodes of the device."""

    device: str
    nodes: int
    per_node: int | None


def stated_cluster(text: str) -> Stated | None:
    """What a text in one of the notations states; None if it is in none of them.

    Raises
    ------
    InputError
        If it is in one and malformed.
    """
    if text.lstrip().startswith(("-N", "--nodes", "--gres", "--gpus")):
        return from_slurm(text)
    device, at, path = text.partition("@")
    if at and path:
        return from_hostfile(device, path)
    if not is_path(text) or text == "-":
        return None
    if text.lower().endswith((".sh", ".sbatch", ".slurm")):
        return from_slurm(read_text(text))
    if text.lower().endswith((".yaml", ".yml")):
        data = read_document(text)
        return from_skypilot(data) if isinstance(data.get("resources"), dict) else None
    return None


def from_slurm(text: str) -> Stated:
    """What SLURM options state.

    Raises
    ------
    InputError
        ``SLURM_OPTIONS_INCOMPLETE`` naming what is missing; ``BAD_CLUSTER_NOTATION``.
    """
    lines = [line for line in text.splitlines() if line.strip().startswith("#SBATCH")]
    words = re.split(r"[\s=]+", " ".join(lines or [text]).replace("#SBATCH", " "))
    nodes, device, count = 1, None, 0
    total = False
    for name, value in pairwise(words):
        if name in ("-N", "--nodes"):
            nodes = _count(value.split("-")[0], name)
        elif name in ("--gres", "--gpus-per-node", "-G", "--gpus"):
            prefix = "" if value.startswith(("gpu", "gres/")) else "gpu:"
            match = _GRES.fullmatch(prefix + value.split(",")[0])
            if match is None:
                raise InputError("BAD_CLUSTER_NOTATION", f"{name}={shown(value)}", "gpu:h100:8")
            device, count = match[1] or device, int(match[2] or 1)
            total = name in ("-G", "--gpus")
    if not count or device is None:
        raise InputError(
            "SLURM_OPTIONS_INCOMPLETE",
            f"{shown(text)} has no {'gpus' if not count else 'type of its gpus'}",
            "write --nodes=4 --gres=gpu:h100:8",
        )
    return Stated(device, nodes, _per_node(count, nodes) if total else count)


def from_skypilot(data: Document) -> Stated:
    """What a SkyPilot task states.

    Raises
    ------
    InputError
        ``SKYPILOT_ACCELERATORS`` where they are missing, several, or of an unknown kind.
    """
    resources = data["resources"]
    assert isinstance(resources, dict)
    accelerators = resources.get("accelerators")
    if isinstance(accelerators, dict) and len(accelerators) == 1:
        (name, count), *_ = accelerators.items()
        accelerators = f"{name}:{count}"
    match = re.fullmatch(r"([A-Za-z][\w.-]{0,60})(?::([0-9]{1,6}))?", str(accelerators))
    device = DEVICE_NAMES.get(match[1].lower()) if match else None
    if match is None or device is None:
        raise InputError(
            "SKYPILOT_ACCELERATORS",
            f"accelerators {shown(accelerators)}",
            f"name one of {', '.join(sorted(DEVICE_NAMES))} with a count, as in H100:8",
        )
    nodes = data.get("num_nodes", 1)
    return Stated(device, _count(str(nodes), "num_nodes"), int(match[2] or 1))


def from_hostfile(device: str, path: str) -> Stated:
    """What a hostfile states; hosts without slots are whole nodes of the device.

    Raises
    ------
    InputError
        ``MALFORMED_HOSTFILE``; ``UNEQUAL_NODES`` if slots differ.
    """
    slots: dict[str, int] = {}
    for line in read_text(path).splitlines():
        entry = line.partition("#")[0].strip()
        if not entry:
            continue
        match = _SLOTS.fullmatch(entry)
        if match is None or len(slots) >= _MAX_HOSTS:
            raise InputError(
                "MALFORMED_HOSTFILE", f"{shown(path)}: {shown(entry)}", "write HOST slots=8"
            )
        host, _, port = match[1].partition(":")
        given = (
            int(match[2]) if match[2] else int(port) if port.isdecimal() and len(port) < 4 else 0
        )
        slots[host] = slots.get(host, 0) + given
    if not slots:
        raise InputError("MALFORMED_HOSTFILE", f"{shown(path)} names no host", "add hosts")
    if len(set(slots.values())) > 1:
        raise InputError(
            "UNEQUAL_NODES",
            f"{shown(path)}: between {min(slots.values())} and {max(slots.values())} slots",
            "plans need equal nodes: give --cluster DEVICE:NODESxDEVICES",
        )
    each = next(iter(slots.values()))
    return Stated(device, len(slots), each or None)


def _count(text: str, name: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text[:9]) > 0 and len(text) < 9):
        raise InputError("BAD_CLUSTER_NOTATION", f"{name}={shown(text)}", "give a whole number")
    return int(text)


def _per_node(count: int, nodes: int) -> int:
    if count % nodes:
        raise InputError("UNEQUAL_NODES", f"{count} gpus on {nodes} nodes", "make them equal")
    return count // nodes
