"""Spaces: what a runtime can express, as versioned data, and the configurations they contain."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

from ilp_parallel.configuration import (
    RECOMPUTE_SETS,
    ZERO_VARIANTS,
    Configuration,
    Strategy,
    Zero,
)
from ilp_parallel.errors import InputError
from ilp_parallel.problems.pipeline import Schedule

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ilp_parallel.specs.cluster import ClusterSpec
    from ilp_parallel.specs.job import JobSpec
    from ilp_parallel.specs.model import ModelSpec

Freedom = Literal["uniform", "policy", "per-layer"]


@dataclass(frozen=True, slots=True)
class Space:
    """A rule set: one tensor, data and microbatch size per plan in all spaces so far.

    ``freedom`` says how strategies may vary: one for all layers (``uniform``), one policy with an
    optional block of fully recomputed layers at the head of every chunk (``policy``), or freely
    (``per-layer``). ``even_stages`` demands equally many layers on every stage.
    """

    name: str
    version: int
    summary: str
    freedom: Freedom
    even_stages: bool
    zero: tuple[Zero, ...]
    recompute: tuple[tuple[str, ...], ...] = RECOMPUTE_SETS


SPACES: dict[str, Space] = {
    space.name: space
    for space in (
        Space(
            "uniform",
            1,
            "one strategy everywhere, equally many layers per stage: what people sweep by hand",
            "uniform",
            True,
            ZERO_VARIANTS,
        ),
        Space(
            "megatron",
            1,
            "what Megatron-LM's options express: uneven stages, one recomputation policy, "
            "distributed optimizer or its FSDP",
            "policy",
            False,
            ("0", "1", "3-regather"),
        ),
        Space(
            "mixed",
            1,
            "one p, t, d, b; recomputation and ZeRO chosen per layer, uneven stages; with "
            "interleaving all chunks of a device are equal",
            "per-layer",
            False,
            ZERO_VARIANTS,
        ),
    )
}
"""All spaces by name; ``mixed`` contains the other two."""

NOT_SEARCHED = (
    "context parallel",
    "expert parallel",
    "device mapping",
    "per-stage t and d",
    "unequal chunks of a device",
)
"""Dimensions that no space so far contains; every result names them."""


def get_space(name: str) -> Space:
    """The space of that name.

    Raises
    ------
    InputError
        ``UNKNOWN_SPACE``.
    """
    if name not in SPACES:
        raise InputError("UNKNOWN_SPACE", f"no space {name!r}", f"use one of {', '.join(SPACES)}")
    return SPACES[name]


_GLOBAL_KEYS: dict[str, str] = {
    "pp": "pipeline",
    "tp": "tensor",
    "dp": "data",
    "mbs": "microbatch",
    "microbatches": "microbatches",
    "vpp": "chunks",
    "sp": "sequence_parallel",
    "schedule": "schedule",
}


@dataclass(frozen=True, slots=True)
class Pins:
    """Decisions the user fixed or forbade: key -> values as text.

    Keys: pp, tp, dp, mbs, microbatches, vpp, sp (on or off), schedule, zero, recompute.
    """

    fixed: dict[str, tuple[str, ...]] = field(default_factory=dict)
    forbidden: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def parse(cls, fixed: tuple[str, ...], forbidden: tuple[str, ...]) -> Pins:
        """Read ``key=value`` texts.

        Raises
        ------
        InputError
            ``UNKNOWN_DECISION`` or ``BAD_DECISION_VALUE``.
        """
        return cls(_collect(fixed), _collect(forbidden))

    def allow(self, key: str, value: str) -> bool:
        """Whether a decision may take a value."""
        wanted = self.fixed.get(key)
        return (wanted is None or value in wanted) and value not in self.forbidden.get(key, ())

    def allow_strategy(self, strategy: Strategy) -> bool:
        """Whether a layer may use a strategy; ``zero=2`` means both variants of ZeRO-2."""
        stage, variant = strategy.zero.partition("-")[0], strategy.zero
        recompute = "+".join(strategy.recompute) or "none"
        wanted = self.fixed.get("zero")
        zero_ok = wanted is None or stage in wanted or variant in wanted
        refused = self.forbidden.get("zero", ())
        return (
            zero_ok
            and stage not in refused
            and variant not in refused
            and self.allow("recompute", recompute)
        )

    def refuse(self, configuration: Configuration) -> str | None:
        """The first key that rules a configuration out."""
        for key, attribute in _GLOBAL_KEYS.items():
            value = getattr(configuration, attribute)
            text = ("on" if value else "off") if key == "sp" else str(value)
            if not self.allow(key, text):
                return key
        return None


def _collect(texts: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    choices = _choices()
    result: dict[str, tuple[str, ...]] = {}
    for text in texts:
        key, _, value = (part.strip() for part in text.partition("="))
        if key not in choices:
            known = ", ".join(choices)
            raise InputError("UNKNOWN_DECISION", f"no decision {key!r}", f"use one of {known}")
        allowed = choices[key]
        if allowed is None and not (value.isdecimal() and 0 < int(value) < 2**40):
            raise InputError("BAD_DECISION_VALUE", f"{key}={value!r}", "use a positive integer")
        if allowed is not None and value not in allowed:
            raise InputError(
                "BAD_DECISION_VALUE", f"{key}={value!r}", f"use one of {', '.join(allowed)}"
            )
        number = value if allowed is not None else str(int(value))
        result[key] = (*result.get(key, ()), number)
    return result


def _choices() -> dict[str, tuple[str, ...] | None]:
    """Admissible values of every decision; None: any positive integer."""
    choices: dict[str, tuple[str, ...] | None] = dict.fromkeys(_GLOBAL_KEYS)
    choices["sp"] = ("on", "off")
    choices["schedule"] = get_args(Schedule)
    choices["zero"] = ("0", "1", "2", "3", *ZERO_VARIANTS[2:])
    choices["recompute"] = tuple("+".join(modules) or "none" for modules in RECOMPUTE_SETS)
    return choices


@dataclass(frozen=True, slots=True)
class Refusal:
    """A group of configurations that a rule excludes: the degrees that are fixed, and why."""

    degrees: str  # for instance "pp=4 tp=3"
    code: str

    def concerns(self, pins: Pins) -> bool:
        """Whether the degrees are among those that the pins allow."""
        pairs = (part.partition("=") for part in self.degrees.split() if "=" in part)
        return all(pins.allow(key, value) for key, _, value in pairs)


RULES: dict[str, str] = {
    "MORE_STAGES_THAN_LAYERS": "use pp of at most the number of layers",
    "LAYERS_NOT_DIVISIBLE_BY_PP": "use a pp that divides the layers, or a space with uneven stages",
    "TP_CROSSES_NODE": "use a tp that divides the devices per node",
    "HEADS_NOT_DIVISIBLE_BY_TP": "use a tp that divides the attention heads",
    "KV_HEADS_NOT_DIVISIBLE_BY_TP": "use a tp that divides the kv heads or is a multiple of them",
    "FFN_NOT_DIVISIBLE_BY_TP": "use a tp that divides the width of the MLP",
    "BATCH_NOT_DIVISIBLE_BY_DP": "use a batch that the data-parallel degree divides",
    "MICROBATCHES_NOT_DIVISIBLE_BY_PP": "use a batch with a multiple of pp microbatches",
    "NEVER_BETTER_THAN_1F1B": "use --schedule gpipe to search it all the same",
}
"""What mends a configuration that a rule excludes, by reason code."""


def no_configuration(refusals: Sequence[Refusal], pins: Pins) -> InputError:
    """The error of a job for which the rules leave nothing: the rule that excludes most."""
    counts = Counter(r.code for r in refusals if r.code in RULES and r.concerns(pins))
    if not counts:
        pinned = ", ".join(f"{key}={'/'.join(values)}" for key, values in pins.fixed.items())
        return InputError(
            "NO_CONFIGURATION", f"no configuration has {pinned or 'what is asked'}", "relax --fix"
        )
    code, number = counts.most_common(1)[0]
    return InputError(
        code, f"excludes {number} of {sum(counts.values())} groups, nothing is left", RULES[code]
    )


def enumerate_configurations(
    model: ModelSpec,
    cluster: ClusterSpec,
    job: JobSpec,
    space: Space,
    pins: Pins,
    schedules: tuple[Schedule, ...],
) -> Iterator[Configuration | Refusal]:
    """Every configuration that uses all devices, and every rule that excludes some.

    Degrees run over all divisors, in rising order; the sequence is the same in every run.

    Raises
    ------
    InputError
        ``NO_SCHEDULE``.
    """
    if not schedules:
        raise InputError("NO_SCHEDULE", "no schedule is left to search", "name one schedule")
    for pipeline in _divisors(cluster.devices):
        for tensor in _divisors(cluster.devices // pipeline):
            data = cluster.devices // pipeline // tensor
            code = _degree_rule(model, cluster, job, space, pipeline, tensor, data)
            if code is not None:
                yield Refusal(f"pp={pipeline} tp={tensor} dp={data}", code)
                continue
            for configuration in _with_degrees(model, job, pipeline, tensor, data, pins, schedules):
                if isinstance(configuration, Refusal):
                    yield configuration
                    continue
                key = pins.refuse(configuration)
                yield (
                    configuration
                    if key is None
                    else Refusal(configuration.name, f"PIN_{key.upper()}")
                )


def _divisors(number: int) -> list[int]:
    small = [i for i in range(1, int(number**0.5) + 1) if number % i == 0]
    return sorted({*small, *(number // i for i in small)})


def _degree_rule(
    model: ModelSpec,
    cluster: ClusterSpec,
    job: JobSpec,
    space: Space,
    pipeline: int,
    tensor: int,
    data: int,
) -> str | None:
    """Reason code of the first rule that the degrees break."""
    rules = (
        ("MORE_STAGES_THAN_LAYERS", pipeline > model.layers),
        ("LAYERS_NOT_DIVISIBLE_BY_PP", space.even_stages and model.layers % pipeline != 0),
        ("TP_CROSSES_NODE", cluster.devices_per_node % tensor != 0),
        ("HEADS_NOT_DIVISIBLE_BY_TP", model.heads % tensor != 0),
        (
            "KV_HEADS_NOT_DIVISIBLE_BY_TP",
            model.kv_heads % tensor != 0 and tensor % model.kv_heads != 0,
        ),
        ("FFN_NOT_DIVISIBLE_BY_TP", model.ffn_hidden % tensor != 0),
        ("BATCH_NOT_DIVISIBLE_BY_DP", job.global_batch % data != 0),
    )
    return next((code for code, broken in rules if broken), None)


def _with_degrees(
    model: ModelSpec,
    job: JobSpec,
    pipeline: int,
    tensor: int,
    data: int,
    pins: Pins,
    schedules: tuple[Schedule, ...],
) -> Iterator[Configuration | Refusal]:
    per_rank = job.global_batch // data
    parallel = [False]
    if tensor > 1 and job.sequence_length % tensor == 0:
        parallel.append(True)
    for microbatch in _divisors(per_rank):
        microbatches = per_rank // microbatch
        where = f"pp={pipeline} tp={tensor} dp={data} mbs={microbatch}"
        for schedule, chunks in _schedules(model, pipeline, schedules):
            if schedule == "interleaved" and microbatches % pipeline:
                yield Refusal(f"{where} vpp={chunks}", "MICROBATCHES_NOT_DIVISIBLE_BY_PP")
                continue
            if schedule == "gpipe" and "1f1b" in schedules:
                yield Refusal(f"{where} schedule=gpipe", "NEVER_BETTER_THAN_1F1B")
                continue
            for sequence_parallel in parallel:
                yield Configuration(
                    pipeline=pipeline,
                    tensor=tensor,
                    data=data,
                    microbatch=microbatch,
                    microbatches=microbatches,
                    chunks=chunks,
                    sequence_parallel=sequence_parallel,
                    schedule=schedule,
                )


def _schedules(
    model: ModelSpec, pipeline: int, schedules: tuple[Schedule, ...]
) -> list[tuple[Schedule, int]]:
    """Schedules with their chunks per device; without a pipeline they are all the same."""
    if pipeline == 1:
        return [(schedules[0] if schedules[0] != "interleaved" else "1f1b", 1)]
    pairs: list[tuple[Schedule, int]] = []
    for schedule in schedules:
        if schedule != "interleaved":
            pairs.append((schedule, 1))
        elif model.layers % pipeline == 0:
            chunks = _divisors(model.layers // pipeline)[1:]
            pairs += [(schedule, v) for v in chunks]
    return pairs
