"""Device placement for throughput: the device of every operator of a graph.

The load of an accelerator is its compute time plus the transfer time of every producer outside it
that it reads (once each) and of every producer in it that is read outside (once each); the load
of a CPU is its compute time. The largest load is minimised. Source: Tarnawski et al., Efficient
Algorithms for Device Placement of DNN Graph Operators, NeurIPS 2020.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Literal

from ilp_parallel.problems.check import Check

Contiguity = Literal["contiguous", "chain", "none"]


@dataclass(frozen=True, slots=True)
class PlacementInstance:
    """A graph of operators and the devices it may run on; operators are named by position.

    Times are integers in ``1 / ticks_per_unit`` of the file's unit. Devices 0 to
    ``accelerators`` - 1 are accelerators, the following ``cpus`` are CPUs.
    """

    names: tuple[int, ...]
    cpu_ticks: tuple[int, ...]
    accelerator_ticks: tuple[int, ...]
    transfer_ticks: tuple[int, ...]
    size_bytes: tuple[int, ...]
    supported: tuple[bool, ...]
    backward: tuple[bool, ...]
    colours: tuple[int, ...]
    edges: tuple[tuple[int, int], ...]
    limit_bytes: int
    accelerators: int
    cpus: int
    ticks_per_unit: int
    rounded_terms: int
    """Times that were rounded up; 0 when ticks hold the file's decimals exactly."""


@dataclass(frozen=True, slots=True)
class PlacementVerdict:
    """What ``evaluate`` finds: every rule with its slack, and the load of every device."""

    checks: tuple[Check, ...]
    loads_ticks: tuple[int, ...]

    @property
    def feasible(self) -> bool:
        """Whether every rule holds."""
        return all(check.passed for check in self.checks)

    @property
    def objective(self) -> int:
        """The largest load, in ticks."""
        return max(self.loads_ticks, default=0)


def evaluate(
    instance: PlacementInstance, devices: tuple[int, ...], contiguity: Contiguity = "none"
) -> PlacementVerdict:
    """Check a placement (the device of every operator) against every rule and price it."""
    count = instance.accelerators + instance.cpus
    placed = len(devices) == len(instance.names) and all(0 <= d < count for d in devices)
    whole = Check("every operator on one device", placed, int(placed) - 1, "plans")
    if not placed:
        return PlacementVerdict((whole,), ())
    checks = (
        whole,
        _support(instance, devices),
        _memory(instance, devices),
        _colours(instance, devices),
        *((_contiguity(instance, devices, contiguity),) if contiguity != "none" else ()),
    )
    return PlacementVerdict(checks, _loads(instance, devices))


def _loads(instance: PlacementInstance, devices: tuple[int, ...]) -> tuple[int, ...]:
    loads = [0] * (instance.accelerators + instance.cpus)
    for v, device in enumerate(devices):
        on_accelerator = device < instance.accelerators
        loads[device] += (instance.accelerator_ticks if on_accelerator else instance.cpu_ticks)[v]
    readers = defaultdict(set)
    for u, v in instance.edges:
        if devices[u] != devices[v]:
            readers[u].add(devices[v])
    for u, receiving in readers.items():
        for device in receiving | {devices[u]}:
            if device < instance.accelerators:
                loads[device] += instance.transfer_ticks[u]
    return tuple(loads)


def _support(instance: PlacementInstance, devices: tuple[int, ...]) -> Check:
    wrong = sum(
        device < instance.accelerators and not able
        for device, able in zip(devices, instance.supported, strict=True)
    )
    return Check("operators supported", not wrong, -wrong, "operators")


def _memory(instance: PlacementInstance, devices: tuple[int, ...]) -> Check:
    used = [0] * instance.accelerators
    for device, size in zip(devices, instance.size_bytes, strict=True):
        if device < instance.accelerators:
            used[device] += size
    slack = instance.limit_bytes - max(used, default=0)
    return Check("memory of accelerators", slack >= 0, slack, "bytes")


def _colours(instance: PlacementInstance, devices: tuple[int, ...]) -> Check:
    found = defaultdict(set)
    for colour, device in zip(instance.colours, devices, strict=True):
        found[colour].add(device)
    split = sum(len(used) > 1 for used in found.values())
    return Check("colour classes together", not split, -split, "classes")


def _contiguity(
    instance: PlacementInstance, devices: tuple[int, ...], contiguity: Contiguity
) -> Check:
    """Forward operators of a device convex, or (chain) the devices in a linear order."""
    import networkx as nx

    back = instance.backward
    edges = [(u, v) for u, v in instance.edges if not back[u] and not back[v]]
    if contiguity == "chain":
        order = [*edges, *_mirrored(instance)]
        quotient = nx.DiGraph(
            (devices[u], devices[v]) for u, v in order if devices[u] != devices[v]
        )
        broken = int(not nx.is_directed_acyclic_graph(quotient))
        return Check("devices in a linear order", not broken, -broken, "cycles")
    graph = nx.DiGraph(edges)
    broken = 0
    for device in set(devices):
        left = {
            w
            for u, v in edges
            if devices[u] == device and devices[v] != device
            for w in nx.descendants(graph, v)
        }
        broken += any(devices[w] == device for w in left)
    return Check("forward operators convex", not broken, -broken, "devices")


def _mirrored(instance: PlacementInstance) -> list[tuple[int, int]]:
    """Edges of colour classes without a forward operator, turned round."""
    back, colours = instance.backward, instance.colours
    forward = {colour for colour, late in zip(colours, back, strict=True) if not late}
    return [
        (v, u) for u, v in instance.edges if back[u] and not {colours[u], colours[v]} <= forward
    ]
