"""Why there is no plan: the shortest true reason, with its numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ilp_parallel.problems.piper import PiperInstance


@dataclass(frozen=True, slots=True)
class Reason:
    """A code, stable across releases, and a sentence."""

    code: str
    text: str


def why_infeasible(instance: PiperInstance) -> Reason:
    """The reason of an instance that a search has proven infeasible.

    The first three hold by themselves: some layer cannot run, some layer fits no device even alone
    with one microbatch in flight, or all devices together are smaller than the smallest modes of
    all layers, each counted on the devices of its tensor degree.
    """
    byte, total = instance.units_per_byte, 0
    for v, by_degree in enumerate(instance.modes):
        name = f"layer {instance.layer_ids[v]}"
        modes = [(t, m) for t in instance.tensor_degrees for m in by_degree.get(t, ())]
        if not modes:
            return Reason("LAYER_HAS_NO_MODE", f"{name} has no mode at any tensor degree allowed")
        least = min(m.activation + m.fixed for _, m in modes)
        if least > instance.memory:
            text = f"{name} alone needs {least / byte:,.0f} of {instance.memory / byte:,.0f} bytes"
            return Reason("LAYER_TOO_LARGE", text)
        total += min(t * (m.activation + m.fixed) for t, m in modes)
    offered = instance.devices * instance.memory
    if total > offered:
        text = f"the layers need {total / byte:,.0f} bytes, all devices have {offered / byte:,.0f}"
        return Reason("MODEL_TOO_LARGE", text)
    text = "no sequence of stages fits: all were ruled out, with what they keep in flight"
    return Reason("STAGES_TOO_LARGE", text)
