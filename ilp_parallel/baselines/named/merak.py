r"""``merak``: even stages with Merak's stage-aware recomputation.

Source: Lai et al., "Merak", IEEE TPDS 34(5), 2023 (arXiv 2206.04959), stage-aware recomputation;
``Merak/core/pipeline/module.py`` (HPDL-Group/Merak, commit 05e80ab), where the share of recomputed
layers of each stage is set from that of the first one.

The rule. Of stage ``s = 1, ..., p - 1`` a share ``1 - (1 - r) (p - 1) / (p - s)`` of the layers is
recomputed, rounded down to layers and never below nothing, of the last stage none; ``r`` is the
share of the first stage: a stage that holds fewer microbatches keeps more of each.

Departures. Merak's users give degrees and ``r``. Here all degrees and microbatch sizes are tried,
with ``r`` the least share of whole layers for which the plan fits; where none does, everything is
recomputed on every stage, Merak's way without a share. Weights are replicated (``0``) or the
optimizer is sharded (``1``), whichever is faster. Merak's own schedule, which moves some
recomputation off the critical path, and its overlap of tensor traffic are left out: 1F1B as we
price it. Where the stages do not divide the layers the first ones are larger.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ilp_parallel.baselines.named.workbench import (
    FULL_RECOMPUTATION,
    NO_RECOMPUTATION,
    Draft,
    Workbench,
    even_sizes,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ilp_parallel.baselines.named.workbench import Effort
    from ilp_parallel.configuration import Configuration, Zero
    from ilp_parallel.costs.model import CostModel
    from ilp_parallel.plan import Plan


def merak(costs: CostModel, effort: Effort) -> tuple[Plan, int] | None:
    """The best plan of the rule over all degrees and microbatch sizes; None if none fits."""
    bench = Workbench(costs, effort)
    variants: tuple[Zero, ...] = ("0", "1")
    for configuration in bench.by_floor(bench.configurations()):
        if bench.expired or bench.hopeless(configuration):
            break
        for zero in variants:
            _offer_least_share(bench, configuration, zero)
    return bench.result()


def _offer_least_share(bench: Workbench, configuration: Configuration, zero: Zero) -> None:
    """Offer the plan with the least recomputation of the rule that fits."""
    tables = bench.tables(configuration)
    sizes = even_sizes(tables.layers, tables.groups)
    plain = bench.strategy(configuration, zero, NO_RECOMPUTATION)
    full = bench.strategy(configuration, zero, FULL_RECOMPUTATION)
    shares = [recomputed_layers(sizes, first) for first in range(sizes[0] + 1)]
    for recomputed in (*dict.fromkeys(shares), tuple(sizes)):
        counts = np.zeros((tables.groups, len(tables.time)), dtype=np.int64)
        counts[:, full] = recomputed
        counts[:, plain] = np.subtract(sizes, recomputed)
        if bench.offer(Draft(configuration, counts)).fits:
            return


def recomputed_layers(sizes: Sequence[int], first: int) -> tuple[int, ...]:
    """Recomputed layers of every stage if ``first`` of the first stage's are.

    In integers: with ``r = first / n`` the share of stage ``s`` is
    ``(n (p - s) - (n - first) (p - 1)) / (n (p - s))``.
    """
    p, n = len(sizes), sizes[0]
    numbers = []
    for s, size in enumerate(sizes[:-1], start=1):
        share, whole = n * (p - s) - (n - first) * (p - 1), n * (p - s)
        numbers.append(max(0, size * share // whole))
    return (*numbers, 0)
