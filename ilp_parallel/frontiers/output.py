"""How outcomes by number of nodes are shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ilp_parallel.frontiers.nodes import NodeAnswer

_MOST_ROWS = 24
"""Most numbers of nodes that a table lists (chosen)."""


def outcome_text(outcome: NodeAnswer) -> str:
    """What became of a number of nodes, in words."""
    if outcome.reason == "memory":
        return "states exceed the memory of all devices"
    if outcome.reason == "rules":
        return "the rules leave no configuration"
    if outcome.reason == "work":
        return "refuted by work alone"
    if outcome.proven:
        return "optimal"
    if outcome.bound_ticks is None:
        return "infeasible"
    return "refuted by the bound of its search" if outcome.refuted else "stopped"


def outcome_document(outcome: NodeAnswer, tick_ns: int) -> dict[str, object]:
    """The JSON of a number of nodes."""
    tick_s = tick_ns * 1e-9
    result = outcome.result
    return {
        "nodes": outcome.nodes,
        "devices": outcome.devices,
        "outcome": outcome_text(outcome),
        "objective": outcome.ticks,
        "bound": outcome.bound_ticks,
        "step_time_s": None if outcome.ticks is None else outcome.ticks * tick_s,
        "bound_s": None if outcome.bound_ticks is None else outcome.bound_ticks * tick_s,
        "hash": None if result is None else result.certificate.input_hash,
        "verified": outcome.verified,
    }


def outcome_rows(outcomes: Sequence[NodeAnswer], tick_ns: int) -> list[tuple[str, ...]]:
    """Rows of a table; of many equal neighbours the first and the last are shown."""
    tick_s = tick_ns * 1e-9

    def seconds(ticks: int | None) -> str:
        return "-" if ticks is None else f"{ticks * tick_s:.6f}"

    rows: list[tuple[str, ...]] = [
        (str(o.nodes), outcome_text(o), seconds(o.ticks), seconds(o.bound_ticks)) for o in outcomes
    ]
    if len(rows) <= _MOST_ROWS:
        return rows
    half = _MOST_ROWS // 2
    left = ("...", f"{len(rows) - 2 * half} more, see --format json", "", "")
    return [*rows[:half], left, *rows[-half:]]
