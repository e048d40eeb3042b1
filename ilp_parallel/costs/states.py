"""Weights, gradients and optimizer states: bytes, and the traffic and work they cause."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from ilp_parallel.configuration import ZERO_VARIANTS
from ilp_parallel.costs.constants import MOMENTS, RECIPES

if TYPE_CHECKING:
    from ilp_parallel.configuration import Zero
    from ilp_parallel.costs.constants import Recipe
    from ilp_parallel.costs.hardware import Group, Machine
    from ilp_parallel.costs.layer import FloatArray, LayerPart
    from ilp_parallel.specs.job import JobSpec


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Persistent bytes of some parameters on one rank."""

    weights: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        """Bytes of all three."""
        return self.weights + self.gradients + self.optimizer


class StateCosting:
    """Prices parameters under a precision recipe and an optimizer."""

    def __init__(self, job: JobSpec, machine: Machine, recipe: Recipe | None = None) -> None:
        self.recipe = recipe or RECIPES[job.precision]
        self._optimizer_bytes = self.recipe.master + MOMENTS[job.optimizer] * self.recipe.moment
        self._machine = machine
        self.overlap = machine.rates.overlap

    def frozen_bytes(self, parameters: float, zero: Zero, ranks: int) -> float:
        """Bytes of weights that are never trained: sharded only where weights are."""
        held = parameters * self.recipe.weight
        if not zero.startswith("3"):
            return held
        kept = parameters * self.recipe.gathered if zero == "3-keep" else 0.0
        return held / ranks + kept

    def state(self, parameters: float, zero: Zero, ranks: int) -> StateBytes:
        """Bytes kept for ``parameters`` of a rank, sharded over ``ranks`` as ``zero`` says."""
        r = self.recipe
        whole = StateBytes(
            parameters * r.weight, parameters * r.gradient, parameters * self._optimizer_bytes
        )
        if zero == "0":
            return whole
        optimizer = whole.optimizer / ranks
        if zero in ("1", "2-buffer"):
            return StateBytes(whole.weights, whole.gradients, optimizer)
        gradients = whole.gradients / ranks
        if zero == "2-scatter":
            return StateBytes(whole.weights, gradients, optimizer)
        kept = parameters * r.gathered if zero == "3-keep" else 0.0
        return StateBytes(whole.weights / ranks + kept, gradients, optimizer)

    def transient_bytes(self, parameters: float, zero: Zero) -> float:
        """Buffers of one layer: whole gradient before scattering, two gathered layers, casts."""
        r = self.recipe
        if zero in ("0", "1", "2-buffer"):
            return parameters * r.cast
        if zero == "2-scatter":
            return parameters * (r.gradient + r.cast)
        gathered = 2 * r.gathered if zero == "3-regather" else 0.0
        return parameters * (r.gradient + gathered)

    def optimizer_s(self, parameters: float, zero: Zero, ranks: int) -> float:
        """Optimizer step, by memory traffic.

        Each rank reads its gradients twice (norm, step), reads and writes what the optimizer holds
        and writes the weights (reads them too where they are the master copy); whoever keeps whole
        gradients clears all of them.
        """
        r = self.recipe
        weight = r.weight if r.master else 2 * r.weight
        step = parameters * (2 * r.gradient + 2 * self._optimizer_bytes + weight)
        clear = parameters * r.gradient
        if zero != "0":
            step /= ranks
        if zero in ("2-scatter", "3-keep", "3-regather"):
            clear /= ranks
        return (step + clear) / self._machine.stream_bytes_per_s


@dataclass(frozen=True, slots=True)
class ZeroPart:
    """What ZeRO decides for one block. Arrays ``[Z]`` over the variants; traffic is not yet hidden.

    Seconds of traffic by where it may hide: in each forward, in each backward, in the backward of
    the last microbatch, in the forward of the next step's first microbatch.
    """

    variants: tuple[Zero, ...]
    weights_bytes: FloatArray
    gradients_bytes: FloatArray
    optimizer_bytes: FloatArray
    transient_bytes: FloatArray
    forward_traffic_s: FloatArray
    backward_traffic_s: FloatArray
    last_backward_traffic_s: FloatArray
    next_forward_traffic_s: FloatArray
    optimizer_s: FloatArray

    @property
    def state_bytes(self) -> FloatArray:
        """``[Z]`` weights, gradients and optimizer states."""
        return self.weights_bytes + self.gradients_bytes + self.optimizer_bytes

    def __add__(self, other: ZeroPart) -> ZeroPart:
        """Both weights of one block, whose variants are chosen together."""
        names = [f.name for f in fields(ZeroPart)[1:]]
        sums = {name: getattr(self, name) + getattr(other, name) for name in names}
        return ZeroPart(self.variants, **sums)


def variants_of(ranks: int) -> tuple[Zero, ...]:
    """Variants that weights held by so many ranks may have: one rank shards nothing."""
    return ZERO_VARIANTS if ranks > 1 else ZERO_VARIANTS[:1]


def zero_part(
    costing: StateCosting,
    parameters: float,
    group: Group,
    weights_group: Group,
    variants: tuple[Zero, ...],
    frozen: float = 0.0,
) -> ZeroPart:
    """Price every variant for so many parameters of one block, and others that are frozen.

    ``group`` are the ranks that hold the same weights, ``weights_group`` the same ranks at the pace
    of collectives over sharded weights. Where that is one rank, all variants are the first.
    """
    recipe, ranks = costing.recipe, group.ranks
    acting = variants if ranks > 1 else ZERO_VARIANTS[:1] * len(variants)
    scatter = group.gather_s(parameters * recipe.gradient)
    gather = weights_group.gather_s((parameters + frozen) * recipe.gathered)
    refresh = group.gather_s(parameters * recipe.refreshed)
    last = {"0": 2 * scatter, "1": scatter, "2-buffer": scatter}
    scatter3 = weights_group.gather_s(parameters * recipe.gradient)
    backward = {"2-scatter": scatter, "3-keep": scatter3, "3-regather": scatter3 + gather}
    forward = {"3-keep": gather, "3-regather": gather}
    following = {"1": refresh, "2-buffer": refresh, "2-scatter": refresh}

    states = [costing.state(parameters, z, ranks) for z in acting]
    weights = [
        state.weights + costing.frozen_bytes(frozen, z, ranks)
        for state, z in zip(states, acting, strict=True)
    ]
    gathering = {"3-regather": 2 * recipe.gathered * frozen}

    def array(values: list[float]) -> FloatArray:
        return np.array(values, dtype=np.float64)

    return ZeroPart(
        variants=variants,
        weights_bytes=array(weights),
        gradients_bytes=array([state.gradients for state in states]),
        optimizer_bytes=array([state.optimizer for state in states]),
        transient_bytes=array(
            [costing.transient_bytes(parameters, z) + gathering.get(z, 0.0) for z in acting]
        ),
        forward_traffic_s=array([forward.get(z, 0.0) for z in acting]),
        backward_traffic_s=array([backward.get(z, 0.0) for z in acting]),
        last_backward_traffic_s=array([last.get(z, 0.0) for z in acting]),
        next_forward_traffic_s=array([following.get(z, 0.0) for z in acting]),
        optimizer_s=array([costing.optimizer_s(parameters, z, ranks) for z in acting]),
    )


@dataclass(frozen=True, slots=True)
class ExposedTraffic:
    """ZeRO traffic of one block that no compute hides. ``[Z, R]``: variants, recomputation sets."""

    forward_s: FloatArray  # [Z, 1] per microbatch
    backward_s: FloatArray  # [Z, R] per microbatch
    last_backward_s: FloatArray  # [Z, R] once per step: gradient synchronisation
    next_forward_s: FloatArray  # [Z, 1] once per step: updated weights


def exposed_traffic(zero: ZeroPart, layer: LayerPart, overlap: float) -> ExposedTraffic:
    """Hide each block's traffic behind the compute of one block, its own."""
    forward_s = layer.forward.compute_s
    backward_s = layer.backward.compute_s + layer.recompute_s

    def exposed(traffic_s: FloatArray, hiding_s: float | FloatArray) -> FloatArray:
        column = traffic_s[:, None]
        hidden: FloatArray = np.minimum(overlap * column, hiding_s)
        return column - hidden

    return ExposedTraffic(
        forward_s=exposed(zero.forward_traffic_s, forward_s),
        backward_s=exposed(zero.backward_traffic_s, backward_s),
        last_backward_s=exposed(zero.last_backward_traffic_s, backward_s),
        next_forward_s=exposed(zero.next_forward_traffic_s, forward_s),
    )
