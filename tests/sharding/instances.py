"""Small random sharding instances, and their optimum by trying every plan."""

from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import strategies as st

from ilp_parallel.problems.sharding import FORBIDDEN, ShardingInstance, evaluate


def offsets(sizes: list[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def random_sharding(seed: int) -> ShardingInstance:
    """Up to six operators of one to three strategies; forbidden, parallel and zero edges."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 7))
    sizes = rng.integers(1, 4, n)
    ends = []
    for _ in range(int(rng.integers(1, 2 * n))):
        ends.append(rng.choice(n, 2, replace=False))
    ends = np.array(ends, dtype=np.int64)
    forbidden = float(rng.choice([0.0, 0.2, 0.5]))
    matrices = []
    for u, v in ends:
        kind = rng.integers(4)
        m = rng.integers(0, 9, (sizes[u], sizes[v])) * (kind != 0)
        if kind == 1:
            m = rng.integers(0, 5, (sizes[u], 1)) + rng.integers(0, 5, (1, sizes[v]))
        m = np.where(rng.random(m.shape) < forbidden * (kind > 1), FORBIDDEN, m)
        if kind == 3 and sizes[u] == sizes[v]:
            m = np.where(np.eye(sizes[u]) == 1, m, FORBIDDEN)
        matrices.append(m.ravel())
    start = rng.integers(0, 6, n)
    first = offsets(sizes.tolist())
    usage = rng.integers(0, 6, int(first[-1])) * (np.repeat(rng.random(n), sizes) < 0.7)
    return ShardingInstance(
        name=f"random{seed}",
        limit=int(rng.integers(0, 16)),
        first=first,
        cost=rng.integers(0, 9, int(first[-1])),
        edge_from=ends[:, 0],
        edge_to=ends[:, 1],
        edge_first=offsets([len(m) for m in matrices]),
        edge_cost=np.concatenate(matrices).astype(np.int64),
        piece_operator=np.arange(n),
        piece_start=start,
        piece_end=start + rng.integers(0, 5, n),
        piece_first=first,
        piece_usage=usage.astype(np.int64),
    )


def best_cost(instance: ShardingInstance) -> int | None:
    """Optimum by trying every plan; None if none is feasible."""
    costs = []
    for plan in product(*(range(k) for k in instance.sizes().tolist())):
        verdict = evaluate(instance, np.array(plan, dtype=np.int64))
        if verdict.feasible:
            costs.append(verdict.objective)
    return min(costs, default=None)


seeds = st.integers(0, 2**32 - 1)
