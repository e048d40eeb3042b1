"""Memory of a plan's device groups by part, as it is allocated and as the device sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ilp_parallel.costs.model import CostModel
from ilp_parallel.schedules import in_flight_rows

if TYPE_CHECKING:
    from ilp_parallel.costs.breakdown import StagePrediction
    from ilp_parallel.costs.states import StateBytes
    from ilp_parallel.plan import Plan

SCHEMA = "ilp_parallel.memory/1"

PARTS = (
    "weights",
    "gradients",
    "optimizer",
    "activations",
    "transient",
    "logits",
    "buffers",
    "reserve",
)
"""Parts of the device peak. Embedding and output matrix count with the weights, gradients and
optimizer states of the ends; ``buffers`` are those of communication and matrix libraries;
``reserve`` is what the device holds beside what the program allocates."""

_SHORT = ("weights", "grads", "optim", "activ", "trans", "logits", "buff", "rest")
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class StageMemory:
    """One device group at its fullest instant, in bytes per device."""

    stage: int
    layers: int
    in_flight: int  # activations of a microbatch in one chunk that are alive together
    parts: dict[str, float]  # of PARTS, adding up to the device peak
    allocated_bytes: float
    device_bytes: float
    capacity_bytes: int  # what the device reports
    usable_bytes: int  # most that may be allocated

    @property
    def fits(self) -> bool:
        """Whether what is allocated is at most usable."""
        return self.allocated_bytes <= self.usable_bytes


def stage_memories(plan: Plan) -> tuple[StageMemory, ...]:
    """The memory of every device group of a plan."""
    costs = CostModel(plan.model, plan.cluster, plan.job)
    g = plan.configuration
    tail = costs.end_tail(g)
    rows = in_flight_rows(g.schedule, g.pipeline, g.chunks, g.microbatches)
    found = []
    for s, stage in enumerate(costs.terms(plan).stages):
        ends = [tail.embedding] * (s == 0) + [tail.head] * (s == g.pipeline - 1)
        found.append(
            StageMemory(
                stage=s,
                layers=stage.layers,
                in_flight=int(rows[s].sum(axis=1).max()),
                parts=_parts(stage, ends),
                allocated_bytes=stage.allocated_bytes,
                device_bytes=stage.device_bytes,
                capacity_bytes=plan.cluster.device.memory_bytes,
                usable_bytes=stage.usable_bytes,
            )
        )
    return tuple(found)


def _parts(stage: StagePrediction, ends: list[StateBytes]) -> dict[str, float]:
    terms = {term.name: term.value for term in stage.memory_terms}
    return {
        "weights": terms["weights"] + sum(end.weights for end in ends),
        "gradients": terms["gradients"] + sum(end.gradients for end in ends),
        "optimizer": terms["optimizer"] + sum(end.optimizer for end in ends),
        "activations": terms["activations"] + terms["embedding_activations"],
        "transient": terms["transient"],
        "logits": terms["logits"],
        "buffers": terms["communication_buffers"] + terms["workspaces"],
        "reserve": stage.device_bytes - stage.allocated_bytes,
    }


def memory_document(plan: Plan, stages: tuple[StageMemory, ...]) -> dict[str, object]:
    """The JSON of ``memory``."""
    return {
        "schema": SCHEMA,
        "model": plan.model.name,
        "cluster": plan.cluster.name,
        "configuration": plan.configuration.name,
        "unit": "bytes",
        "fits": all(stage.fits for stage in stages),
        "capacity_bytes": plan.cluster.device.memory_bytes,
        "stages": [
            {
                "stage": stage.stage,
                "layers": stage.layers,
                "in_flight": stage.in_flight,
                "parts": stage.parts,
                "allocated_bytes": stage.allocated_bytes,
                "usable_bytes": stage.usable_bytes,
                "device_bytes": stage.device_bytes,
                "share_of_capacity": stage.device_bytes / stage.capacity_bytes,
                "fits": stage.fits,
            }
            for stage in stages
        ],
    }


def memory_rows(stages: tuple[StageMemory, ...]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and rows in GiB, the last in % of capacity; equal neighbours share a row."""
    header = ("stage", "layers", "alive", *_SHORT, "alloc", "device", "%")
    rows: list[tuple[str, ...]] = []
    for stage in stages:
        share = 100 * stage.device_bytes / stage.capacity_bytes
        row = (
            str(stage.layers),
            str(stage.in_flight),
            *(f"{stage.parts[name] / _GIB:.1f}" for name in PARTS),
            f"{stage.allocated_bytes / _GIB:.1f}",
            f"{stage.device_bytes / _GIB:.1f}",
            f"{share:.1f}",
        )
        if rows and rows[-1][1:] == row:
            first = rows[-1][0].partition("-")[0]
            rows[-1] = (f"{first}-{stage.stage}", *row)
        else:
            rows.append((str(stage.stage), *row))
    return header, rows
