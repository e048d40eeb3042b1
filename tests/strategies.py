"""Random pipeline instances, small enough for brute force."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from ilp_parallel.problems.pipeline import PipelineInstance, Policy


def random_instance(
    rng: np.random.Generator,
    *,
    classes: int | None = None,
    reshard: bool | None = None,
    policies: bool | None = None,
    schedule: str | None = None,
    max_layers: int = 6,
    max_strategies: int = 3,
) -> PipelineInstance:
    """One random instance; arguments that are None are drawn as well."""
    schedule = schedule or str(rng.choice(["1f1b", "1f1b", "gpipe", "interleaved"]))
    chunks = 2 if schedule == "interleaved" else 1
    stages = int(rng.integers(1 if chunks == 1 else 2, 4 if chunks == 1 else 3))
    virtual = stages * chunks
    if chunks > 1:
        per_chunk = 1 if virtual * 2 > max_layers else int(rng.integers(1, 3))
        layers = virtual * per_chunk
        low, high = np.full(virtual, per_chunk), np.full(virtual, per_chunk)
        microbatches = stages * int(rng.integers(1, 4))
    else:
        layers = int(rng.integers(stages, max_layers + 1))
        low, high = np.ones(virtual, dtype=int), np.full(virtual, layers)
        if rng.random() < 0.2:
            high = rng.integers(1, layers + 1, virtual)
        microbatches = int(rng.integers(1, 9))
    strategies = int(rng.integers(1, max_strategies + 1))
    classes = classes or int(rng.choice([1, 1, 2]))
    has_reshard = bool(rng.random() < 0.3) if reshard is None else reshard
    has_policies = bool(rng.random() < 0.25) if policies is None else policies

    def table(high: int) -> np.ndarray:
        return rng.integers(0, high, (classes, strategies)).astype(np.int64)

    def vector(high: int, size: int) -> np.ndarray:
        return rng.integers(0, high, size).astype(np.int64)

    allowed = rng.random((classes, strategies)) < 0.9
    state, activation, transient = table(20), table(8), table(10)
    in_flight = []
    for s in range(stages):
        if schedule == "gpipe":
            in_flight.append(np.array([[microbatches]]))
        elif schedule == "1f1b":
            in_flight.append(np.array([[min(microbatches, stages - s)]]))
        else:
            in_flight.append(rng.integers(1, 4, (int(rng.integers(1, 3)), chunks)))
    scale = layers / stages * (state.mean() + 2 * activation.mean() + 1) + transient.mean()
    capacity = np.full(stages, int(scale * rng.uniform(0.4, 1.8)) + 6)
    policy_list = None
    if has_policies:
        policy_list = tuple(
            Policy(
                int(rng.integers(strategies)),
                int(rng.integers(0, 3)),
                int(rng.integers(strategies)),
            )
            for _ in range(int(rng.integers(1, 4)))
        )
    ceiling = int(rng.choice([3, 12, 1000]))
    return PipelineInstance(
        stages=stages,
        chunks=chunks,
        microbatches=microbatches,
        schedule=schedule,  # type: ignore[arg-type]
        layer_class=np.concatenate(
            [np.arange(min(classes, layers)), rng.integers(0, min(classes, layers), layers)]
        )[:layers].astype(np.int64)
        if classes <= layers
        else np.zeros(layers, dtype=np.int64),
        strategy_names=tuple(f"k{k}" for k in range(strategies)),
        allowed=allowed[: min(classes, layers) if classes <= layers else 1],
        forward_ticks=table(ceiling)[: classes if classes <= layers else 1],
        backward_ticks=table(2 * ceiling)[: classes if classes <= layers else 1],
        tail_ticks=table(ceiling)[: classes if classes <= layers else 1],
        state_bytes=state[: classes if classes <= layers else 1],
        activation_bytes=activation[: classes if classes <= layers else 1],
        transient_bytes=transient[: classes if classes <= layers else 1],
        fixed_forward_ticks=vector(6, virtual),
        fixed_backward_ticks=vector(6, virtual),
        fixed_tail_ticks=vector(6, stages),
        fixed_bytes=vector(6, stages),
        cut_ticks=vector(4, virtual - 1),
        capacity_bytes=capacity.astype(np.int64),
        min_layers=low.astype(np.int64),
        max_layers=high.astype(np.int64),
        in_flight=tuple(rows.astype(np.int64) for rows in in_flight),
        reshard_forward_ticks=_reshard(rng, strategies) if has_reshard else None,
        reshard_backward_ticks=_reshard(rng, strategies) if has_reshard else None,
        policies=policy_list,
    )


def _reshard(rng: np.random.Generator, strategies: int) -> np.ndarray:
    costs = rng.integers(0, 10, (strategies, strategies)).astype(np.int64)
    np.fill_diagonal(costs, 0)
    return costs


instances = st.integers(0, 2**32 - 1).map(lambda seed: random_instance(np.random.default_rng(seed)))
"""Hypothesis strategy: a seed is drawn and shrunk, the instance follows from it."""
