"""Formulations of operator sharding, listed explicitly: instance and instants to Program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from formulations.sharding import alpa, marginal, pairwise

if TYPE_CHECKING:
    from collections.abc import Callable

    from ilp_parallel.problems.sharding import IntArray, ShardingInstance
    from ilp_parallel.program import Program

SHARDING: dict[str, Callable[[ShardingInstance, IntArray], Program]] = {
    "marginal": marginal.build,
    "pairwise": pairwise.build,
    "alpa": alpa.build,
}
"""Formulations by name; all have their strategies as the first columns (``marginal.decode``)."""
