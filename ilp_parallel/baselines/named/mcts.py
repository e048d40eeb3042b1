r"""``mcts``: Monte Carlo tree search over decisions, in the manner of Automap.

Sources: Schaarschmidt et al., "Automap: towards ergonomic automated parallelism for ML models",
arXiv 2112.02958, which takes sharding decisions one after the other, propagates each through the
program, groups equal layers so that one decision serves them all, and searches with Monte Carlo
tree search against a cost model; the search itself is UCT (Kocsis and Szepesvari, ECML'06).

The algorithm. A plan is a sequence of decisions: pipeline degree, tensor degree, context degree,
microbatch size, chunks, sequence parallelism, ZeRO, recomputation; each is followed by whatever it
leaves possible. One strategy serves all layers, stages are even. An episode walks down the tree by
upper confidence bounds until a decision that was never tried, adds it, finishes at random, and
credits the reward to the decisions on its path. The reward is the least work of any configuration
divided by the step time, between 0 and 1, and 0 if the plan does not fit. The best plan of any
episode is the result.

Departures. Automap decides on tensor axes of an arbitrary program, and its later versions learn
which decisions to try first; here the decisions are those of our spaces, untaught.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ilp_parallel.baselines.named.workbench import EVERY_SCHEDULE, Workbench

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from ilp_parallel.baselines.named.workbench import Effort
    from ilp_parallel.configuration import Configuration
    from ilp_parallel.costs.model import CostModel
    from ilp_parallel.plan import Plan

EXPLORATION = math.sqrt(2)
"""Weight of the confidence term for rewards in [0, 1] (Kocsis and Szepesvari)."""

Leaf = tuple["Configuration", int]


@dataclass(slots=True)
class Node:
    """A sequence of decisions taken so far, and what episodes through it were worth."""

    leaves: list[Leaf]  # complete plans that are still possible: configuration and strategy
    depth: int
    options: dict[Hashable, list[Leaf]] | None = None  # by the next decision
    children: dict[Hashable, Node] = field(default_factory=dict)
    visits: int = 0
    reward: float = 0.0


def mcts(costs: CostModel, effort: Effort) -> tuple[Plan, int] | None:
    """The best plan of all episodes; None if none of them fits."""
    bench = Workbench(costs, effort)
    every = bench.configurations(EVERY_SCHEDULE, split_sequences=True)
    if not every:
        return None
    menus = {g: range(len(costs.strategies(g))) for g in every}
    root = Node([(g, k) for g in every for k in menus[g]], 0)
    least = min(bench.tables(g).floor_ticks for g in every)
    rng = np.random.default_rng(effort.seed)
    for _ in range(effort.evaluations):
        if bench.expired:
            break
        path = _descend(root, bench, rng)
        configuration, strategy = path[-1].leaves[int(rng.integers(len(path[-1].leaves)))]
        price = bench.offer(bench.uniform(configuration, strategy))
        reward = least / price.ticks if price.fits else 0.0
        for node in path:
            node.visits += 1
            node.reward += reward
    return bench.result()


def decisions(bench: Workbench, leaf: Leaf) -> Sequence[Hashable]:
    """The decisions that lead to a plan, in their order."""
    g, strategy = leaf
    chosen = bench.costs.strategies(g)[strategy]
    return (
        g.pipeline,
        g.tensor,
        g.context,
        g.microbatch,
        g.chunks,
        g.sequence_parallel,
        chosen.zero,
        chosen.recompute,
    )


def _descend(root: Node, bench: Workbench, rng: np.random.Generator) -> list[Node]:
    """Nodes from the root to one that is new, or to a complete plan."""
    path = [root]
    while len(path[-1].leaves) > 1:
        node = path[-1]
        if node.options is None:
            node.options = {}
            for leaf in node.leaves:
                node.options.setdefault(decisions(bench, leaf)[node.depth], []).append(leaf)
        untried = [option for option in node.options if option not in node.children]
        if untried:
            option = untried[int(rng.integers(len(untried)))]
            child = node.children[option] = Node(node.options[option], node.depth + 1)
            return [*path, child]
        path.append(max(node.children.values(), key=lambda child: _confidence(node, child)))
    return path


def _confidence(parent: Node, child: Node) -> float:
    """Upper confidence bound of a child's mean reward."""
    spread = EXPLORATION * math.sqrt(math.log(parent.visits) / child.visits)
    return child.reward / child.visits + spread
