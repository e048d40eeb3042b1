"""Clusters as SLURM options, SkyPilot tasks and hostfiles."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ilp_parallel.errors import InputError
from ilp_parallel.specs.cluster_notations import DEVICE_NAMES
from ilp_parallel.specs.readers import cluster_names, load_cluster

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "device", "nodes", "per_node"),
    [
        ("--nodes 4 --gres gpu:h100:8", "h100-80gb", 4, 8),
        ("--nodes=4 --gres=gpu:h100:8(S:0-1)", "h100-80gb", 4, 8),
        ("-N 2 --gpus-per-node=h200-141gb:4", "h200-141gb", 2, 4),
        ("--gpus=a100:16 --nodes=2", "a100-80gb", 2, 8),
        ("--gres=gpu:v100", "v100-32gb", 1, 1),
        ("--nodes=2-2 --gres=gpu:b200:8,nvme:1", "b200", 2, 8),
    ],
)
def test_slurm(text: str, device: str, nodes: int, per_node: int) -> None:
    cluster = load_cluster(text)
    assert (cluster.device.name, cluster.nodes, cluster.devices_per_node) == (
        *(device, nodes, per_node),
    )


def test_slurm_script(tmp_path: Path) -> None:
    path = tmp_path / "job.sbatch"
    path.write_text("#!/bin/bash\n#SBATCH --nodes=3\n#SBATCH --gres=gpu:h100:8\nsrun --nodes=1 x\n")
    assert load_cluster(str(path)).devices == 24


def sky(tmp_path: Path, text: str) -> str:
    path = tmp_path / "task.yaml"
    path.write_text(text)
    return str(path)


def test_skypilot(tmp_path: Path) -> None:
    for text in (
        "num_nodes: 4\nresources:\n  accelerators: H100:8\n",
        "num_nodes: 4\nresources: {accelerators: {H100: 8}, network_tier: best}\n",
    ):
        cluster = load_cluster(sky(tmp_path, text))
        assert (cluster.nodes, cluster.devices_per_node) == (4, 8)
    small = load_cluster(sky(tmp_path, "resources: {accelerators: A100}"))
    assert (small.device.name, small.devices) == ("a100-40gb", 1)


def test_skypilot_names_are_devices_that_exist() -> None:
    assert set(DEVICE_NAMES.values()) <= set(cluster_names())


def hosts(tmp_path: Path, text: str, device: str = "a100") -> str:
    path = tmp_path / "hostfile"
    path.write_text(text)
    return f"{device}@{path}"


def test_hostfile(tmp_path: Path) -> None:
    slots = load_cluster(hosts(tmp_path, "# two\nn1 slots=4\n\nn2 slots=4 max_slots=8 # b\n"))
    assert (slots.nodes, slots.devices_per_node) == (2, 4)
    plain = load_cluster(hosts(tmp_path, "n1\nn2\nn3\n", "gb200"))
    assert (plain.nodes, plain.devices_per_node) == (3, load_cluster("gb200").devices_per_node)
    assert load_cluster(hosts(tmp_path, "n1:8\nn2:8\n")).devices == 16


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("SLURM_OPTIONS_INCOMPLETE", "--nodes=4"),
        ("SLURM_OPTIONS_INCOMPLETE", "--nodes=4 --gres=gpu:8"),
        ("BAD_CLUSTER_NOTATION", "--nodes=0 --gres=gpu:h100:8"),
        ("BAD_CLUSTER_NOTATION", "--nodes=x --gres=gpu:h100:8"),
        ("BAD_CLUSTER_NOTATION", "--gres=tpu;v4"),
        ("UNEQUAL_NODES", "--nodes=3 --gpus=h100:16"),
        ("UNKNOWN_CLUSTER", "--gres=gpu:abacus:8"),
        ("NO_SUCH_FILE", "h100@/no/such/file"),
        ("OUT_OF_RANGE", "--nodes=99999999 --gres=gpu:h100:999999"),
    ],
)
def test_refusals(code: str, text: str) -> None:
    with pytest.raises(InputError) as caught:
        load_cluster(text)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("UNEQUAL_NODES", "n1 slots=4\nn2 slots=8\n"),
        ("MALFORMED_HOSTFILE", "# nothing\n"),
        ("MALFORMED_HOSTFILE", "n1 gpus=8\n"),
        ("EMPTY_FILE", " "),
    ],
)
def test_broken_hostfiles(tmp_path: Path, code: str, text: str) -> None:
    with pytest.raises(InputError) as caught:
        load_cluster(hosts(tmp_path, text))
    assert caught.value.code == code


@pytest.mark.parametrize(
    "text",
    [
        "resources: {accelerators: TPU-v4:8}",
        "resources: {cpus: 8}",
        "resources: {accelerators: {H100: 8, A100: 8}}",
        "num_nodes: -1\nresources: {accelerators: H100:8}",
    ],
)
def test_broken_skypilot_tasks(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError) as caught:
        load_cluster(sky(tmp_path, text))
    assert caught.value.code in ("SKYPILOT_ACCELERATORS", "BAD_CLUSTER_NOTATION")
