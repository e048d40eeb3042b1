r"""Assignment formulation of device placement without contiguity.

Sets
----
colour classes ``g``; accelerators ``a`` and CPUs ``c`` together devices ``d``; producers ``u`` with
a transfer time, an edge to another class, and the classes ``R_u`` that read them.

Parameters
----------
:math:`p_{gd}` time of a class on a device, :math:`t_u` transfer (ticks); :math:`b_g` bytes,
:math:`B` limit.

Variables
---------
:math:`x_{gd} \in \{0,1\}`; :math:`i_{ua}, o_{ua} \in \{0,1\}` copies in and out; :math:`T` load.

Objective
---------
.. math:: \min T

Constraints
-----------
(1) one device (``one_device``): :math:`\sum_d x_{gd} = 1`; barred pairs have upper bound 0.

(2) copies in (``copies_in``): :math:`i_{ua} \ge x_{ra} - x_{g(u)a}` for r in R_u.

(3) copies out (``copies_out``): :math:`o_{ua} \ge x_{g(u)a} - x_{ra}` for r in R_u.

(4) load (``load``): :math:`\sum_g p_{gd} x_{gd} + \sum_u t_u (i_{ud} + o_{ud}) \le T`.

(5) memory (``memory``): :math:`\sum_g b_g x_{ga} \le B`.

(6) order of equal accelerators (``order``): class g is on accelerator a only if an earlier class
is on a - 1: :math:`x_{ga} \le \sum_{h<g} x_{h,a-1}`.

Source: Tarnawski et al., NeurIPS 2020, for (1)-(5); (6) removes the symmetry they leave.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ilp_parallel.program import ProgramBuilder

if TYPE_CHECKING:
    from ilp_parallel.problems.placement import PlacementInstance
    from ilp_parallel.program import IntArray, Program


def build(instance: PlacementInstance) -> Program:
    """The program in ticks; the x are its first columns, class by class."""
    builder = ProgramBuilder("placement:assignment")
    x = class_columns(builder, instance)
    one_device(builder, x)
    loads = load(builder, instance, x)
    copies(builder, instance, x, loads)
    memory(builder, instance, x)
    order(builder, instance, x)
    return builder.build()


def decode(instance: PlacementInstance, values: IntArray) -> tuple[int, ...]:
    """Devices of the operators."""
    devices = instance.accelerators + instance.cpus
    x = values[: (max(instance.colours) + 1) * devices].reshape(-1, devices)
    return tuple(int(x[colour].argmax()) for colour in instance.colours)


def class_columns(builder: ProgramBuilder, instance: PlacementInstance) -> IntArray:
    """Columns x, [classes, devices]."""
    upper = np.ones((max(instance.colours) + 1, instance.accelerators + instance.cpus), np.int64)
    for able, colour in zip(instance.supported, instance.colours, strict=True):
        if not able:
            upper[colour, : instance.accelerators] = 0
    return builder.add_columns("x", upper.shape, upper=upper)


def one_device(builder: ProgramBuilder, x: IntArray) -> None:
    """(1) sum_d x[g,d] = 1."""
    rows = builder.add_rows("one_device", (len(x),), lower=1, upper=1)
    builder.add_entries(rows[:, None], x, 1)


def load(builder: ProgramBuilder, instance: PlacementInstance, x: IntArray) -> IntArray:
    """(4) without the copies; returns the rows, [devices]."""
    most = sum(map(max, instance.cpu_ticks, instance.accelerator_ticks))
    most += 2 * sum(instance.transfer_ticks)
    top = builder.add_columns("T", (), upper=most, cost=1)
    rows = builder.add_rows("load", (x.shape[1],), upper=0)
    builder.add_entries(rows, top, -1)
    for v, colour in enumerate(instance.colours):
        split = instance.accelerators
        builder.add_entries(rows[:split], x[colour, :split], instance.accelerator_ticks[v])
        builder.add_entries(rows[split:], x[colour, split:], instance.cpu_ticks[v])
    return rows


def copies(
    builder: ProgramBuilder, instance: PlacementInstance, x: IntArray, loads: IntArray
) -> None:
    """(2), (3) and the copies' part of (4)."""
    readers: dict[int, set[int]] = {}
    for u, v in instance.edges:
        if instance.colours[u] != instance.colours[v] and instance.transfer_ticks[u] > 0:
            readers.setdefault(u, set()).add(instance.colours[v])
    links = [(k, u, r) for k, u in enumerate(readers) for r in sorted(readers[u])]
    shape = (len(readers), instance.accelerators)
    taken, given = (builder.add_columns(name, shape) for name in ("i", "o"))
    for k, u in enumerate(readers):
        for column in (taken[k], given[k]):
            time = instance.transfer_ticks[u]
            builder.add_entries(loads[: instance.accelerators], column, time)
    for name, column, sign in (("copies_in", taken, 1), ("copies_out", given, -1)):
        rows = builder.add_rows(name, (len(links), instance.accelerators), lower=0)
        for row, (k, u, reader) in zip(rows, links, strict=True):
            builder.add_entries(row, column[k], 1)
            builder.add_entries(row, x[reader, : instance.accelerators], -sign)
            home = x[instance.colours[u], : instance.accelerators]
            builder.add_entries(row, home, sign)


def memory(builder: ProgramBuilder, instance: PlacementInstance, x: IntArray) -> None:
    """(5) sum_g b[g] x[g,a] <= B."""
    rows = builder.add_rows("memory", (instance.accelerators,), upper=instance.limit_bytes)
    for v, colour in enumerate(instance.colours):
        builder.add_entries(rows, x[colour, : instance.accelerators], instance.size_bytes[v])


def order(builder: ProgramBuilder, instance: PlacementInstance, x: IntArray) -> None:
    """(6) x[g,a] <= sum over h < g of x[h,a-1]."""
    later = max(0, instance.accelerators - 1)
    rows = builder.add_rows("order", (len(x), later), upper=0)
    for g in range(len(x)):
        for a in range(later):
            builder.add_entries(rows[g, a], x[g, a + 1], 1)
            builder.add_entries(rows[g, a], x[:g, a], -1)
