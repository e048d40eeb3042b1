"""The answer to an infeasible job in words: what is short, and what would do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ilp_parallel.feasibility import shortage, smallest_cluster
from ilp_parallel.spaces import get_space

if TYPE_CHECKING:
    from ilp_parallel.feasibility import NodeSearch, Shortage
    from ilp_parallel.jobs import CompleteJob
    from ilp_parallel.planner import SearchOptions

_GIB = 1 << 30


def explain_infeasible(job: CompleteJob, options: SearchOptions) -> tuple[dict[str, object], str]:
    """As data and as text."""
    space = get_space(options.space)
    question = (job.model, job.cluster, job.job, space, options.pins, options.schedules)
    lack, nodes = shortage(*question), smallest_cluster(*question)
    document: dict[str, object] = {
        "shortage": None if lack is None else _shortage_document(lack),
        "smallest_nodes": nodes.smallest,
        "refuted_nodes": list(nodes.refuted),
        "stopped": nodes.stopped,
    }
    lines = [] if lack is None else [_shortage_text(lack)]
    lines.append(_nodes_text(nodes, job.cluster.devices_per_node))
    return document, "\n".join(lines)


def _shortage_document(lack: Shortage) -> dict[str, object]:
    return {
        "configuration": lack.configuration.name,
        "strategy": lack.strategy,
        "stage": lack.stage,
        "needed_bytes": lack.needed_bytes,
        "usable_bytes": lack.usable_bytes,
        "missing_bytes": lack.missing_bytes,
        "largest_part": lack.parts[0].name,
        "parts_bytes": {part.name: part.value for part in lack.parts},
    }


def _shortage_text(lack: Shortage) -> str:
    parts = ", ".join(f"{part.name} {part.value / _GIB:.1f}" for part in lack.parts)
    return (
        f"closest to fitting: {lack.configuration.name} with {lack.strategy}: stage {lack.stage} "
        f"needs {lack.needed_bytes / _GIB:.1f} GiB of {lack.usable_bytes / _GIB:.1f} usable, "
        f"{lack.missing_bytes / _GIB:.1f} GiB short; most of it {lack.parts[0].name}\n"
        f"parts of that stage (GiB): {parts}"
    )


def _nodes_text(nodes: NodeSearch, devices_per_node: int) -> str:
    if nodes.smallest is None:
        return f"no number of nodes up to {len(nodes.refuted)} would do ({nodes.stopped})"
    refuted = f"1 to {nodes.smallest - 1} refuted one by one" if nodes.refuted else "none smaller"
    return (
        f"smallest number of whole nodes that would do: {nodes.smallest} "
        f"({nodes.smallest * devices_per_node} devices; {refuted})"
    )
