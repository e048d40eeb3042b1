"""Small random instances of Piper's problem, a hand-made file, and brute force over all plans."""

from __future__ import annotations

import itertools
import json
import os
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import strategies as st

from ilp_parallel.piper.steps import StepPricer
from ilp_parallel.problems.downsets import downsets
from ilp_parallel.problems.piper import Mode, PiperInstance, Stage, evaluate

if TYPE_CHECKING:
    from collections.abc import Iterator

DATA = Path(os.environ.get("PIPER_DATA", Path(__file__).parents[3] / "shared/data/piper"))
ABSENT = "needs the public inputs of Piper; set PIPER_DATA"

seeds = st.integers(0, 2**32 - 1)


def random_piper(seed: int, layers: int = 4, plain: bool = False) -> PiperInstance:
    """A DAG of up to that many layers; ``plain``: two modes each, alike in what crosses."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, layers + 1))
    edges = [(u, v) for u in range(n) for v in range(u + 1, n) if rng.random() < 0.5]
    edges = edges or [(0, 1)]
    shuffled = rng.permutation(len(edges))
    edges = [edges[i] for i in shuffled]
    degrees = [1] if rng.random() < 0.4 else [1, 2]
    entering = [sum(v == w for _, w in edges) for v in range(n)]
    leaving = [sum(v == u for u, _ in edges) for v in range(n)]

    def mode(v: int, k: int, shared: tuple[tuple[int, ...], tuple[int, ...]]) -> Mode:
        crossing = shared if plain or rng.random() < 0.7 else (draw(entering[v]), draw(leaving[v]))
        return Mode(
            name=("vanilla", "activation recomp", "third")[k],
            time=int(rng.integers(0, 12)),
            resync=int(rng.integers(0, 4)),
            activation=int(rng.integers(0, 9)),
            fixed=int(rng.integers(0, 9)),
            enter=crossing[0],
            leave=crossing[1],
        )

    def draw(count: int) -> tuple[int, ...]:
        return tuple(int(x) for x in rng.integers(0, 5, count))

    modes = []
    for v in range(n):
        by_degree = {}
        for t in degrees:
            if t > 1 and rng.random() < 0.3:
                continue
            shared = (draw(entering[v]), draw(leaving[v]))
            count = 2 if plain else int(rng.integers(1, 4))
            by_degree[t] = tuple(mode(v, k, shared) for k in range(count))
        modes.append(by_degree)
    devices, batch = int(rng.integers(1, 6)), int(rng.choice([1, 2, 3, 4, 6]))
    most = min(devices, batch)
    return PiperInstance(
        name="random",
        layer_ids=tuple(range(10, 10 + n)),
        layer_names=tuple(f"layer{v}" for v in range(n)),
        edges=tuple(edges),
        modes=tuple(modes),
        devices=devices,
        microbatches=batch,
        memory=int(rng.integers(5, 60)),
        units_per_second=int(rng.choice([1, 7, 1000])),
        units_per_byte=int(rng.choice([1, 3])),
        data_degrees=tuple(d for d in range(1, most + 1) if batch % d == 0),
        tensor_degrees=tuple(t for t in degrees if t <= devices),
        one_mode_per_stage=bool(rng.random() < 0.2),
    )


def table_value(instance: PiperInstance) -> Fraction | None:
    """Least bottleneck by the plain table over (downset, devices, replicas), nothing left out."""
    pricer, masks = StepPricer(instance), downsets(instance.layers, instance.edges)
    value: dict[tuple[int, int, int], Fraction] = {(0, 0, 0): Fraction(0)}
    for high in masks[1:]:
        fresh: dict[tuple[int, int, int], Fraction] = {}
        for (low, k, s), before in value.items():
            if low & ~high:
                continue
            for d in instance.data_degrees:
                for t in instance.tensor_degrees:
                    key = (high, k + d * t, s + d)
                    if key[1] > instance.devices or key[2] > instance.replicas:
                        continue
                    seconds = pricer.seconds((low, high, t, d), -(-(s + d) // d))
                    if seconds is not None:
                        reached = max(before, seconds)
                        fresh[key] = min(fresh.get(key, reached), reached)
        value.update(fresh)
    ends = [found for (mask, _, _), found in value.items() if mask == masks[-1]]
    return min(ends, default=None)


def ordered_partitions(layers: frozenset[int]) -> Iterator[tuple[frozenset[int], ...]]:
    """All ordered partitions into non-empty sets."""
    if not layers:
        yield ()
        return
    for size in range(1, len(layers) + 1):
        for first in itertools.combinations(sorted(layers), size):
            for rest in ordered_partitions(layers - set(first)):
                yield (frozenset(first), *rest)


def all_plans(instance: PiperInstance) -> Iterator[tuple[Stage, ...]]:
    """Every plan whose shape is right and whose degrees fit the machine."""
    degrees = [
        (d, t)
        for d in instance.data_degrees
        for t in instance.tensor_degrees
        if d * t <= instance.devices
    ]
    for parts in ordered_partitions(frozenset(range(instance.layers))):
        place = {v: i for i, part in enumerate(parts) for v in part}
        if any(place[u] > place[v] for u, v in instance.edges):
            continue
        for chosen in itertools.product(degrees, repeat=len(parts)):
            if sum(d * t for d, t in chosen) > instance.devices:
                continue
            yield from _with_modes(instance, parts, chosen)


def _with_modes(
    instance: PiperInstance,
    parts: tuple[frozenset[int], ...],
    chosen: tuple[tuple[int, int], ...],
) -> Iterator[tuple[Stage, ...]]:
    options = []
    for part, (d, t) in zip(parts, chosen, strict=True):
        layers = tuple(sorted(part))
        counts = [range(len(instance.modes[v].get(t, ()))) for v in layers]
        options.append([Stage(layers, d, t, picks) for picks in itertools.product(*counts)])
    yield from itertools.product(*options)


def best_value(instance: PiperInstance) -> Fraction | None:
    """Least bottleneck over all plans that ``evaluate`` accepts."""
    best = None
    for plan in all_plans(instance):
        verdict = evaluate(instance, plan)
        if verdict.feasible and (best is None or verdict.objective < best):
            best = verdict.objective
    return best


def document(**changes: object) -> dict[str, object]:
    """A file of three layers in the public format; top-level fields may be replaced."""

    def mode(name: str, time: str, fw: dict[str, float], bw: dict[str, float]) -> dict[str, object]:
        return {
            "id": name,
            "timePerSample": float(time),
            "parameterSize": 1000.0,
            "memoryUsageA": 10.5 if name == "vanilla" else 2.5,
            "memoryUsageB": 4.0 if name == "vanilla" else 6.0,
            "syncTimeFw": fw,
            "syncTimeBw": bw,
        }

    def node(identifier: int, fw: dict[str, float], bw: dict[str, float]) -> dict[str, object]:
        modes = [mode("vanilla", "0.3", fw, bw), mode("activation recomp", "0.4", fw, bw)]
        return {"id": identifier, "name": "ParallelTransformerLayer", "TMPCs": {"1": modes}}

    whole = {
        "maxMemoryPerDevice": 40.0,
        "maxDevices": 4,
        "bandwidth": 3000.0,
        "mbsInBatch": 4,
        "nodes": [
            node(7, {}, {"5": 8.0}),
            node(5, {"7": 0.0}, {"-2": 0.0}),
            node(-2, {"5": 1.0}, {}),
        ],
        "edges": [
            {"sourceId": 7, "destId": 5, "communicationCost": 30.0},
            {"sourceId": 5, "destId": -2, "communicationCost": 20.0},
        ],
    }
    return {**whole, **changes}


def written(path: Path, **changes: object) -> Path:
    """The file above, written."""
    path.write_text(json.dumps(document(**changes)))
    return path
