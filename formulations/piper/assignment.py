r"""Assignment formulation of Piper's problem: layers to slots, slots to configurations.

Sets
----
v layers, e = (u, v) edges, i = 0..I-1 slots in pipeline order (an unused slot is no stage),
g = (t, d, y) configurations of a slot: tensor degree, data degree, microbatches in flight,
l modes of a layer at degree t.

Parameters
----------
p, r, a, b of every mode, e_uv and l_uv of every edge as in ``ilp_parallel.problems.piper`` (integer
time and memory units); K devices, S replicas at most, M memory units. All times are scaled by
Q = lcm of the data degrees, so that Q / d is an integer.

Variables
---------
x[v,i,g,l] layer v in slot i with configuration g and mode l; z[i,g] slot i has configuration g;
in[e,i,g,l] and out[e,i,g,l] edge e enters or leaves slot i, g and l being those of the end inside;
w[i,n] slot i uses the modes called n (only where a stage must use one name); T bottleneck.

Objective
---------
.. math:: \min T \quad \text{(time units times } Q \text{)}

Constraints
-----------
(1) one place (``one_place``): :math:`\sum_{i,g,l} x_{vigl} = 1`.

(2) open slot (``open_slot``): :math:`\sum_l x_{vigl} \le z_{ig}`.

(3) one configuration (``one_configuration``): :math:`\sum_g z_{ig} \le 1`.

(4) order (``order``): an edge (u, v) leads forwards,
    :math:`\sum_{j \le i} x_{vj} \le \sum_{j \le i} x_{uj}`.

(5) devices (``devices``): :math:`\sum_{i,g} t_g d_g z_{ig} \le K`.

(6) replicas (``replicas``): :math:`\sum_{i,g} d_g z_{ig} \le S`.

(7) in flight (``in_flight``): :math:`\sum_{j \ge i, g} d_g z_{jg} \le \sum_g y_g d_g z_{ig}
    + S (1 - \sum_g z_{ig})`, so that y is at least the suffix of replicas over d.

(8) memory (``memory``): :math:`\sum_{v,l} (a_{vl} y_g + b_{vl}) x_{vigl} \le M z_{ig}`.

(9) entering (``entering``): :math:`in_{eigl} \ge x_{vigl} - \sum_{g,l} x_{uigl}`.

(10) leaving (``leaving``): :math:`out_{eigl} \ge x_{uigl} - \sum_{g,l} x_{vigl}`.

(11) bottleneck (``bottleneck``): :math:`T \ge \sum_{v,g,l} \tfrac{Q}{d_g} (p + (d_g - 1) r) x
     + \sum \tfrac{Q}{d_g} (e \cdot in + l \cdot out)` for every slot.

(12) one name (``one_name``): :math:`x_{vigl} \le w_{i,n(l)}`.

(13) names of a slot (``slot_name``): :math:`\sum_n w_{in} \le 1`.

Source: Piper (Tarnawski et al., NeurIPS'21) states the problem; its contiguity as cumulated
assignment is that of Tarnawski et al., NeurIPS'20. For cross-checks of small instances.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm
from typing import TYPE_CHECKING

from ilp_parallel.problems.piper import Mode, PiperInstance, Stage
from ilp_parallel.program import IntArray, Program, ProgramBuilder

if TYPE_CHECKING:
    from collections.abc import Iterator

LARGEST = 2**50
"""Largest number taken in rows: solvers in floating point would not keep larger ones apart."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What one x column stands for."""

    layer: int
    slot: int
    configuration: int
    mode: int  # index at the configuration's tensor degree


class Layout:
    """Index of columns: configurations, and the cells of x in their order."""

    def __init__(self, instance: PiperInstance, slots: int) -> None:
        self.instance, self.slots = instance, slots
        self.scale = lcm(*instance.data_degrees)
        most = instance.replicas
        self.configurations = [
            (t, d, y)
            for t in instance.tensor_degrees
            for d in instance.data_degrees
            if t * d <= instance.devices
            for y in range(1, -(-most // d) + 1)
        ]
        self.cells = [
            Cell(v, i, g, k)
            for v in range(instance.layers)
            for i in range(slots)
            for g, (t, _, _) in enumerate(self.configurations)
            for k in range(len(instance.modes[v].get(t, ())))
        ]

    def mode(self, cell: Cell) -> Mode:
        """The mode of a cell."""
        tensor = self.configurations[cell.configuration][0]
        return self.instance.modes[cell.layer][tensor][cell.mode]

    def of(self, layer: int, slot: int) -> Iterator[int]:
        """Cells of a layer in a slot."""
        for number, cell in enumerate(self.cells):
            if cell.layer == layer and cell.slot == slot:
                yield number


def refuses(instance: PiperInstance) -> str | None:
    """None if the numbers are small enough; otherwise ``REASON_CODE: sentence``."""
    scale = lcm(*instance.data_degrees)
    modes = [m for by_degree in instance.modes for found in by_degree.values() for m in found]
    crossing = (sum(m.enter) + sum(m.leave) for m in modes)
    times = sum(m.time + instance.devices * m.resync for m in modes) + sum(crossing)
    memory = sum(m.activation * instance.replicas + m.fixed for m in modes)
    if max(times * scale, memory, instance.memory) > LARGEST:
        return f"NUMBERS_TOO_LARGE: times or memory beyond {LARGEST} units"
    return None


def build(instance: PiperInstance, slots: int) -> Program:
    """The program with this many slots; as many as layers lose nothing."""
    layout = Layout(instance, slots)
    builder = ProgramBuilder(f"{instance.name}:assignment")
    x = builder.add_columns("x", (len(layout.cells),))
    z = builder.add_columns("z", (slots, len(layout.configurations)))
    bottleneck_column = builder.add_columns("T", upper=LARGEST, cost=1)
    one_place(builder, layout, x)
    open_slot(builder, layout, x, z)
    one_configuration(builder, layout, z)
    order(builder, layout, x)
    devices(builder, layout, z)
    replicas(builder, layout, z)
    in_flight(builder, layout, z)
    memory(builder, layout, x, z)
    moved_in = entering(builder, layout, x)
    moved_out = leaving(builder, layout, x)
    bottleneck(builder, layout, x, bottleneck_column, (moved_in, moved_out))
    if instance.one_mode_per_stage:
        one_name(builder, layout, x)
    return builder.build()


def one_place(builder: ProgramBuilder, layout: Layout, x: IntArray) -> None:
    """(1) Every layer is in one cell."""
    rows = builder.add_rows("one_place", (layout.instance.layers,), lower=1, upper=1)
    for number, cell in enumerate(layout.cells):
        builder.add_entries(rows[cell.layer], x[number], 1)


def open_slot(builder: ProgramBuilder, layout: Layout, x: IntArray, z: IntArray) -> None:
    """(2) A layer follows the configuration of its slot."""
    rows = builder.add_rows("open_slot", (layout.instance.layers, *z.shape), upper=0)
    builder.add_entries(rows, z[None], -1)
    for number, cell in enumerate(layout.cells):
        builder.add_entries(rows[cell.layer, cell.slot, cell.configuration], x[number], 1)


def one_configuration(builder: ProgramBuilder, layout: Layout, z: IntArray) -> None:
    """(3) A slot has at most one configuration."""
    rows = builder.add_rows("one_configuration", (layout.slots,), upper=1)
    builder.add_entries(rows[:, None], z, 1)


def order(builder: ProgramBuilder, layout: Layout, x: IntArray) -> None:
    """(4) No edge leads backwards."""
    edges = layout.instance.edges
    rows = builder.add_rows("order", (len(edges), layout.slots), upper=0)
    for e, (u, v) in enumerate(edges):
        for i in range(layout.slots):
            for end, sign in ((v, 1), (u, -1)):
                for number in layout.of(end, i):
                    builder.add_entries(rows[e, i:], x[number], sign)


def devices(builder: ProgramBuilder, layout: Layout, z: IntArray) -> None:
    """(5) Devices suffice."""
    row = builder.add_rows("devices", upper=layout.instance.devices)
    for g, (t, d, _) in enumerate(layout.configurations):
        builder.add_entries(row, z[:, g], t * d)


def replicas(builder: ProgramBuilder, layout: Layout, z: IntArray) -> None:
    """(6) Replicas are at most the microbatches."""
    row = builder.add_rows("replicas", upper=layout.instance.replicas)
    for g, (_, d, _) in enumerate(layout.configurations):
        builder.add_entries(row, z[:, g], d)


def in_flight(builder: ProgramBuilder, layout: Layout, z: IntArray) -> None:
    """(7) A configuration's y covers the replicas from its slot on."""
    most = layout.instance.replicas
    rows = builder.add_rows("in_flight", (layout.slots,), upper=most)
    for i in range(layout.slots):
        for g, (_, d, y) in enumerate(layout.configurations):
            builder.add_entries(rows[i], z[i:, g], d)
            builder.add_entries(rows[i], z[i, g], most - y * d)


def memory(builder: ProgramBuilder, layout: Layout, x: IntArray, z: IntArray) -> None:
    """(8) Every slot fits."""
    rows = builder.add_rows("memory", z.shape, upper=0)
    builder.add_entries(rows, z, -layout.instance.memory)
    for number, cell in enumerate(layout.cells):
        mode, y = layout.mode(cell), layout.configurations[cell.configuration][2]
        used = mode.activation * y + mode.fixed
        builder.add_entries(rows[cell.slot, cell.configuration], x[number], used)


def entering(builder: ProgramBuilder, layout: Layout, x: IntArray) -> list[tuple[int, int, int]]:
    """(9) An edge whose head is in a slot and whose tail is not; (column, cell, cost) of each."""
    return _crossing(builder, layout, x, "entering")


def leaving(builder: ProgramBuilder, layout: Layout, x: IntArray) -> list[tuple[int, int, int]]:
    """(10) The same for its tail."""
    return _crossing(builder, layout, x, "leaving")


def _crossing(
    builder: ProgramBuilder, layout: Layout, x: IntArray, family: str
) -> list[tuple[int, int, int]]:
    instance = layout.instance
    incident = instance.in_edges() if family == "entering" else instance.out_edges()
    found = []
    for number, cell in enumerate(layout.cells):
        mode = layout.mode(cell)
        costs = mode.enter if family == "entering" else mode.leave
        for edge, cost in zip(incident[cell.layer], costs, strict=True):
            found.append((number, edge, cost))
    columns = builder.add_columns(family, (len(found),), implied=True)
    rows = builder.add_rows(family, (len(found),), lower=0)
    for place, (number, edge, _) in enumerate(found):
        cell = layout.cells[number]
        other = instance.edges[edge][0 if family == "entering" else 1]
        builder.add_entries(rows[place], columns[place], 1)
        builder.add_entries(rows[place], x[number], -1)
        for elsewhere in layout.of(other, cell.slot):
            builder.add_entries(rows[place], x[elsewhere], 1)
    return [(int(columns[place]), number, cost) for place, (number, _, cost) in enumerate(found)]


def bottleneck(
    builder: ProgramBuilder,
    layout: Layout,
    x: IntArray,
    column: IntArray,
    moved: tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]],
) -> None:
    """(11) T is at least the time of every slot."""
    rows = builder.add_rows("bottleneck", (layout.slots,), upper=0)
    builder.add_entries(rows, column, -1)
    for number, cell in enumerate(layout.cells):
        mode, d = layout.mode(cell), layout.configurations[cell.configuration][1]
        time = (mode.time + (d - 1) * mode.resync) * (layout.scale // d)
        builder.add_entries(rows[cell.slot], x[number], time)
    for crossing, number, cost in (*moved[0], *moved[1]):
        cell = layout.cells[number]
        d = layout.configurations[cell.configuration][1]
        builder.add_entries(rows[cell.slot], crossing, cost * (layout.scale // d))


def one_name(builder: ProgramBuilder, layout: Layout, x: IntArray) -> None:
    """(12) A slot uses modes of its name only."""
    names = sorted({layout.mode(cell).name for cell in layout.cells})
    w = builder.add_columns("w", (layout.slots, len(names)))
    rows = builder.add_rows("one_name", (len(layout.cells),), upper=0)
    for number, cell in enumerate(layout.cells):
        builder.add_entries(rows[number], x[number], 1)
        name = names.index(layout.mode(cell).name)
        builder.add_entries(rows[number], w[cell.slot, name], -1)
    slot_name(builder, layout, w)


def slot_name(builder: ProgramBuilder, layout: Layout, w: IntArray) -> None:
    """(13) A slot has at most one name."""
    rows = builder.add_rows("slot_name", (layout.slots,), upper=1)
    builder.add_entries(rows[:, None], w, 1)


FAMILIES = {
    1: one_place,
    2: open_slot,
    3: one_configuration,
    4: order,
    5: devices,
    6: replicas,
    7: in_flight,
    8: memory,
    9: entering,
    10: leaving,
    11: bottleneck,
    12: one_name,
    13: slot_name,
}
"""The function of each numbered constraint family."""


def decode(instance: PiperInstance, values: IntArray, slots: int) -> tuple[Stage, ...]:
    """The plan of a solution vector; slots without a layer are no stages."""
    layout = Layout(instance, slots)
    stages = []
    for i in range(slots):
        inside = [
            cell
            for number, cell in enumerate(layout.cells)
            if cell.slot == i and values[number] == 1
        ]
        if inside:
            tensor, data, _ = layout.configurations[inside[0].configuration]
            layers = tuple(cell.layer for cell in inside)
            stages.append(Stage(layers, data, tensor, tuple(cell.mode for cell in inside)))
    return tuple(stages)
