"""Equal partitions: what people do by hand, and what Piper's authors compare with.

All stages have the same degrees, everything or nothing is recomputed, and layers are dealt out in
order as evenly as their number allows, remainders to the last stages. All numbers of stages, all
degrees and both kinds of recomputation are tried, so the least value found is proven for its rule.

Two rules. ``equi`` deals out the layers named ``ParallelTransformerLayer`` and puts what comes
before into the first stage and the rest into the last one; with own stages these two may also stand
alone.
``equint`` deals out all layers in one topological order.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from ilp_parallel.errors import InputError
from ilp_parallel.piper.ablations import PLAIN, RECOMPUTED
from ilp_parallel.problems.downsets import topological_order
from ilp_parallel.problems.piper import Stage, stage_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ilp_parallel.problems.piper import PiperInstance

TRANSFORMER = "ParallelTransformerLayer"

EQUAL = {
    "equi_00": "equal partition of transformers, no tensor parallelism",
    "equi_10": "equal partition of transformers",
    "equi_01": "equal partition of transformers, own stages for the ends, no tensor parallelism",
    "equi_11": "equal partition of transformers, own stages for the ends",
    "equint_0": "equal partition of all layers, no tensor parallelism",
    "equint_1": "equal partition of all layers",
}

Groups = list[list[int]]
"""Layers of each stage."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    seconds: Fraction
    plan: tuple[Stage, ...]


def equal_partition(
    instance: PiperInstance, rule: str
) -> tuple[Fraction, tuple[Stage, ...]] | None:
    """The best plan of a rule of ``EQUAL`` and its seconds per microbatch; None if none fits.

    Raises
    ------
    InputError
        ``NO_TRANSFORMER_LAYERS`` or ``TRANSFORMERS_NOT_CONTIGUOUS``.
    """
    kind, flags = rule.split("_")
    degrees = [t for t in instance.tensor_degrees if t == 1 or flags[0] == "1"]
    partitions = (
        _all_layers(instance) if kind == "equint" else _transformers(instance, flags[1] == "1")
    )
    best: _Candidate | None = None
    for groups in partitions:
        if len(groups) > instance.replicas:
            continue
        for tensor in degrees:
            for name in (PLAIN, RECOMPUTED):
                found = _best_degree(instance, groups, tensor, name)
                if found is not None and (best is None or found.seconds < best.seconds):
                    best = found
    return None if best is None else (best.seconds, best.plan)


def _all_layers(instance: PiperInstance) -> Iterator[Groups]:
    order = topological_order(instance.layers, instance.edges)
    assert order is not None
    for stages in range(1, len(order) + 1):
        yield _dealt(order, stages)


def _transformers(instance: PiperInstance, own_stages: bool) -> Iterator[Groups]:
    before, middle, after = _ends(instance)
    for stages in range(1, len(middle) + 1):
        groups = _dealt(middle, stages)
        if own_stages and (before or after):
            yield [group for group in (before, *groups, after) if group]
        groups[0] = before + groups[0]
        groups[-1] = groups[-1] + after
        yield groups


def _dealt(layers: Sequence[int], stages: int) -> Groups:
    """Layers in order, evenly; the last stages take one more each where that does not go up."""
    size, more = divmod(len(layers), stages)
    groups, start = [], 0
    for stage in range(stages):
        end = start + size + (stage >= stages - more)
        groups.append(list(layers[start:end]))
        start = end
    return groups


def _ends(instance: PiperInstance) -> tuple[list[int], list[int], list[int]]:
    """Layers that lead to a transformer, the transformers in order, and the rest."""
    order = topological_order(instance.layers, instance.edges)
    assert order is not None
    middle = [v for v in order if instance.layer_names[v] == TRANSFORMER]
    if not middle:
        message = f"no layer is called {TRANSFORMER}"
        raise InputError("NO_TRANSFORMER_LAYERS", message, "use equint_0 or equint_1")
    leading, inside = set(middle), set(middle)
    for v in reversed(order):
        if any(u == v and w in leading for u, w in instance.edges):
            leading.add(v)
    before = [v for v in order if v in leading and v not in inside]
    if any(u in inside and w in before for u, w in instance.edges):
        message = "a layer lies between two transformer layers"
        raise InputError("TRANSFORMERS_NOT_CONTIGUOUS", message, "use equint_0 or equint_1")
    after = [v for v in order if v not in leading]
    return before, middle, after


def _best_degree(
    instance: PiperInstance, groups: Groups, tensor: int, name: str
) -> _Candidate | None:
    """The best data degree for given stages, tensor degree and mode."""
    template = _template(instance, groups, tensor, name)
    if template is None or not _fits(instance, template):
        return None
    one = [stage_seconds(instance, stage) for stage in template]
    resync = [
        Fraction(sum(instance.modes[v][tensor][k].resync for v, k in _picked(stage)))
        / instance.units_per_second
        for stage in template
    ]
    best: _Candidate | None = None
    for d in instance.data_degrees:
        stages = len(groups)
        if stages * d * tensor > instance.devices or stages * d > instance.replicas:
            break
        value = max((a + (d - 1) * r) / d for a, r in zip(one, resync, strict=True))
        if best is None or value < best.seconds:
            plan = tuple(Stage(s.layers, d, tensor, s.modes) for s in template)
            best = _Candidate(value, plan)
    return best


def _picked(stage: Stage) -> list[tuple[int, int]]:
    return list(zip(stage.layers, stage.modes, strict=True))


def _template(
    instance: PiperInstance, groups: Groups, tensor: int, name: str
) -> list[Stage] | None:
    """The stages with one replica each; None where a layer lacks the mode."""
    stages = []
    for group in groups:
        layers = tuple(sorted(group))
        picks = []
        for v in layers:
            names = [mode.name for mode in instance.modes[v].get(tensor, ())]
            if name not in names:
                return None
            picks.append(names.index(name))
        stages.append(Stage(layers, 1, tensor, tuple(picks)))
    return stages


def _fits(instance: PiperInstance, stages: Sequence[Stage]) -> bool:
    """Whether all fit; with equal degrees stage i of m holds m - i + 1 microbatches."""
    for position, stage in enumerate(stages):
        y = len(stages) - position
        modes = [instance.modes[v][stage.tensor_degree][k] for v, k in _picked(stage)]
        if sum(mode.activation * y + mode.fixed for mode in modes) > instance.memory:
            return False
    return True
