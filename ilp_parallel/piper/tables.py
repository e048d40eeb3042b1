"""Sums over downsets in floating point, from which any step of a chain is priced at once.

A stage is the difference of two downsets, and what is additive over layers is the difference of two
sums. Edges: with u outside and v inside the larger downset an edge enters the stage, or passes it
if v lies in the smaller one, too; with v in the smaller downset and u not it leaves or passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ilp_parallel.problems.downsets import downsets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ilp_parallel.problems.piper import Mode, PiperInstance

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_ROUNDING = 2.0**-50
"""Eight units in the last place per term: sums, differences and products together err by less."""


@dataclass(frozen=True, slots=True, eq=False)
class Variant:
    """A tensor degree with the modes a stage may use, all sums in seconds and bytes.

    Where one mode of every layer is the cheapest whatever the data degree and the boundary
    (``plain``), ``activation`` and ``fixed`` belong to it; otherwise they are zero.
    """

    tensor: int
    plain: bool
    missing: Ints  # [downsets] layers without a mode
    time: Floats  # [downsets] least
    resync: Floats  # [downsets] least
    activation: Floats  # [downsets]
    fixed: Floats  # [downsets]
    enter: Floats  # [downsets] least cost of the edges into the downset
    leave: Floats  # [downsets] the same edges, seen from their source
    passing: Floats  # [edges] enter and leave of each edge
    modes: Floats | None  # [4, layers, 2] for the compiled knapsack; None if it does not apply
    options: tuple[tuple[tuple[float, float], ...], ...]  # per layer: activation, fixed of each


class Tables:
    """Downsets of an instance by size, and their sums for every variant."""

    def __init__(self, instance: PiperInstance) -> None:
        self.instance = instance
        self.masks = downsets(instance.layers, instance.edges)
        self.member = _bits(self.masks, instance.layers)
        self.words = _words(self.masks, instance.layers)
        self.member_float = self.member.astype(np.float64)
        self._heads = np.array([v for _, v in instance.edges], dtype=np.int64)
        self._tails = np.array([u for u, _ in instance.edges], dtype=np.int64)
        self.variants = [self._variant(t, names) for t, names in self._choices()]
        device_seconds = np.full(instance.layers, np.inf)
        seconds = np.full(instance.layers, np.inf)
        for variant, (t, name) in zip(self.variants, self._choices(), strict=True):
            least = _least(self._modes(t, name), "time") / instance.units_per_second
            device_seconds = np.minimum(device_seconds, variant.tensor * least)
            seconds = np.minimum(seconds, least)
        self.unplaceable = [v for v in range(instance.layers) if not np.isfinite(seconds[v])]
        finite = np.isfinite(seconds)
        self.device_seconds = self.member_float @ np.where(finite, device_seconds, 0.0)
        self.seconds = self.member_float @ np.where(finite, seconds, 0.0)
        self._smallest: dict[tuple[int, int], Floats] = {}
        self.cost_margin, self.memory_margin = self._margins()

    def _choices(self) -> list[tuple[int, str | None]]:
        degrees = self.instance.tensor_degrees
        if not self.instance.one_mode_per_stage:
            return [(t, None) for t in degrees]
        return [
            (t, name)
            for t in degrees
            for name in sorted({m.name for by in self.instance.modes for m in by.get(t, ())})
        ]

    def _modes(self, tensor: int, name: str | None) -> list[tuple[Mode, ...]]:
        return [
            tuple(m for m in by.get(tensor, ()) if name is None or m.name == name)
            for by in self.instance.modes
        ]

    def _variant(self, tensor: int, name: str | None) -> Variant:
        instance, layers = self.instance, self._modes(tensor, name)
        second, byte = instance.units_per_second, instance.units_per_byte
        cheapest = [_uniformly_cheapest(modes) for modes in layers]
        plain = all(mode is not None for mode, modes in zip(cheapest, layers, strict=True) if modes)
        member = self.member_float
        crossing = self.member[:, self._heads] & ~self.member[:, self._tails]
        enter, leave = self._edge_costs(layers)

        def summed(values: Sequence[float]) -> Floats:
            sums: Floats = member @ np.array(values, dtype=np.float64)
            return sums

        return Variant(
            tensor=tensor,
            plain=plain,
            missing=np.rint(summed([not modes for modes in layers])).astype(np.int64),
            time=summed([_minimum(modes, "time") / second for modes in layers]),
            resync=summed([_minimum(modes, "resync") / second for modes in layers]),
            activation=summed([m.activation / byte if m else 0.0 for m in cheapest]),
            fixed=summed([m.fixed / byte if m else 0.0 for m in cheapest]),
            enter=crossing @ enter,
            leave=crossing @ leave,
            passing=enter + leave,
            modes=_compiled(layers, second, byte),
            options=tuple(
                tuple((m.activation / byte, m.fixed / byte) for m in modes) for modes in layers
            ),
        )

    def _edge_costs(self, layers: Sequence[tuple[Mode, ...]]) -> tuple[Floats, Floats]:
        """[edges] least cost of entering its head, and of leaving its tail."""
        instance = self.instance
        costs = np.zeros((2, len(instance.edges)))
        for row, incident in ((0, instance.in_edges()), (1, instance.out_edges())):
            for v, edges in enumerate(incident):
                for place, edge in enumerate(edges):
                    found = [(m.enter, m.leave)[row][place] for m in layers[v]]
                    costs[row, edge] = min(found, default=0) / instance.units_per_second
        return costs[0], costs[1]

    def smallest(self, variant: int, in_flight: int) -> Floats:
        """[downsets] memory with the smallest mode of every layer."""
        key = (variant, in_flight)
        if key not in self._smallest:
            least = [
                min((a * in_flight + b for a, b in modes), default=0.0)
                for modes in self.variants[variant].options
            ]
            self._smallest[key] = self.member_float @ np.array(least)
        return self._smallest[key]

    def passing(self, variant: int, high: int) -> Floats:
        """[layers] cost of the edges into each layer whose source is outside downset ``high``."""
        outside = ~self.member[high, self._tails]
        weights = np.where(outside, self.variants[variant].passing, 0.0)
        found: Floats = np.bincount(self._heads, weights, self.instance.layers).astype(np.float64)
        return found

    def _margins(self) -> tuple[float, tuple[float, float]]:
        """What floating point may err by: seconds, and bytes as (constant, per microbatch)."""
        terms = self.instance.layers + len(self.instance.edges) + 16
        most, activation, fixed = 0.0, 0.0, 0.0
        for variant in self.variants:
            modes = variant.modes
            time, resync, a, b = (
                (variant.time[-1], variant.resync[-1], *_largest(variant.options))
                if modes is None
                else modes.max(axis=2).sum(axis=1)
            )
            span = time + self.instance.devices * resync + variant.passing.sum()
            most = max(most, float(span))
            activation, fixed = max(activation, float(a)), max(fixed, float(b))
        limit = self.instance.memory / self.instance.units_per_byte
        unit = _ROUNDING * terms
        return unit * most, (unit * (fixed + limit), unit * activation)


def _bits(masks: Sequence[int], layers: int) -> Bools:
    """[downsets, layers] membership."""
    width = -(-layers // 8)
    raw = b"".join(mask.to_bytes(width, "little") for mask in masks)
    packed = np.frombuffer(raw, dtype=np.uint8).reshape(len(masks), width)
    return np.unpackbits(packed, axis=1, bitorder="little")[:, :layers].astype(np.bool_)


def _words(masks: Sequence[int], layers: int) -> npt.NDArray[np.uint64]:
    """[words, downsets] the masks, 64 bits at a time."""
    width = 8 * -(-layers // 64)
    raw = b"".join(mask.to_bytes(width, "little") for mask in masks)
    return np.ascontiguousarray(np.frombuffer(raw, dtype="<u8").reshape(len(masks), -1).T)


def _minimum(modes: Sequence[Mode], field: str) -> int:
    return min((int(getattr(mode, field)) for mode in modes), default=0)


def _least(layers: Sequence[Sequence[Mode]], field: str) -> Floats:
    """[layers] least value over modes, infinite where there is none."""
    return np.array([float(_minimum(modes, field)) if modes else np.inf for modes in layers])


def _uniformly_cheapest(modes: Sequence[Mode]) -> Mode | None:
    """A mode no other beats in time, resynchronisation or any crossing; of several, a small one."""
    best = [
        mode
        for mode in modes
        if all(
            mode.time <= other.time
            and mode.resync <= other.resync
            and all(x <= y for x, y in zip(mode.enter, other.enter, strict=True))
            and all(x <= y for x, y in zip(mode.leave, other.leave, strict=True))
            for other in modes
        )
    ]
    return min(best, key=lambda mode: (mode.activation + mode.fixed, mode.activation), default=None)


def _largest(options: Sequence[Sequence[tuple[float, float]]]) -> tuple[float, float]:
    activation = sum(max((a for a, _ in modes), default=0.0) for modes in options)
    return activation, sum(max((b for _, b in modes), default=0.0) for modes in options)


def _compiled(layers: Sequence[Sequence[Mode]], second: int, byte: int) -> Floats | None:
    """Arrays of the compiled knapsack: at most two modes, crossing costs the same in both."""
    found = np.zeros((4, len(layers), 2))
    for v, modes in enumerate(layers):
        if len(modes) > 2 or len({(m.enter, m.leave) for m in modes}) > 1:
            return None
        for k in range(2):
            if modes:
                m = modes[min(k, len(modes) - 1)]
                row = (m.time / second, m.resync / second, m.activation / byte, m.fixed / byte)
                found[:, v, k] = row
    return found
