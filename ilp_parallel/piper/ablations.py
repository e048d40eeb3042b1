"""Restrictions under which the published program was also run, by their names there."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ilp_parallel.errors import InputError
from ilp_parallel.specs.documents import shown

if TYPE_CHECKING:
    from ilp_parallel.problems.piper import PiperInstance

PLAIN, RECOMPUTED = "vanilla", "activation recomp"
"""Mode names that the published program gives a meaning to."""

ABLATIONS = {
    "full": "nothing left out",
    "nodp": "no data parallelism",
    "notp": "no tensor parallelism",
    "notp_nodp": "neither",
    "noar": "no recomputation",
    "arforced": "recomputation everywhere",
    "arallornone": "recomputation of all layers of a stage or of none",
}


def ablated(instance: PiperInstance, name: str) -> PiperInstance:
    """The instance under a restriction.

    Raises
    ------
    InputError
        ``UNKNOWN_ABLATION``.
    """
    if name not in ABLATIONS:
        known = ", ".join(ABLATIONS)
        raise InputError("UNKNOWN_ABLATION", f"no ablation {shown(name)}", f"use one of {known}")
    parts = name.split("_")
    if "nodp" in parts:
        instance = replace(instance, data_degrees=(1,))
    if "notp" in parts:
        degrees = tuple(t for t in instance.tensor_degrees if t == 1)
        instance = replace(instance, tensor_degrees=degrees)
    if "arallornone" in parts:
        instance = replace(instance, one_mode_per_stage=True)
    dropped = {"noar": RECOMPUTED, "arforced": PLAIN}.get(name)
    return instance if dropped is None else _without(instance, dropped)


def _without(instance: PiperInstance, mode_name: str) -> PiperInstance:
    modes = tuple(
        {t: tuple(m for m in found if m.name != mode_name) for t, found in by_degree.items()}
        for by_degree in instance.modes
    )
    return replace(instance, modes=modes)
