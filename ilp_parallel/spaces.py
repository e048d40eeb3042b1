"""Spaces: what a runtime can express, as versioned data, and the configurations they contain."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import product
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
from ilp_parallel.rules import (
    CONTEXT_TOKENS,
    RING_STACKS,
    Degrees,
    context_rule,
    degree_rule,
    divisors,
    expert_degrees,
)

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
    (``per-layer``). ``even_stages`` demands equally many layers on every stage. ``context`` says
    whether context ranks may share a sequence, keys and values passing round in a ring; ``expert``
    whether ranks may share the experts of a block. With a pipeline ``zero_in_pipeline`` is what is
    left of ``zero``, beside tensor or context ranks ``zero_beside_tensor``; where one rank holds
    all weights nothing is sharded in any space.
    """

    name: str
    version: int
    summary: str
    freedom: Freedom
    even_stages: bool
    context: bool
    expert: bool
    zero: tuple[Zero, ...]
    recompute: tuple[tuple[str, ...], ...] = RECOMPUTE_SETS
    zero_in_pipeline: tuple[Zero, ...] = ZERO_VARIANTS
    zero_beside_tensor: tuple[Zero, ...] = ZERO_VARIANTS
    schedules: tuple[Schedule, ...] = get_args(Schedule)

    def zero_of(self, configuration: Configuration) -> tuple[Zero, ...]:
        """ZeRO variants that layers of a configuration may have."""
        g = configuration
        if g.shards == 1:
            return ZERO_VARIANTS[:1]
        kept = [self.zero]
        kept += [self.zero_in_pipeline] * (g.pipeline > 1)
        kept += [self.zero_beside_tensor] * (g.tensor * g.context > 1)
        return tuple(zero for zero in self.zero if all(zero in names for names in kept))


SPACES: dict[str, Space] = {
    space.name: space
    for space in (
        Space(
            "uniform",
            2,
            "one strategy everywhere, equally many layers per stage: what people sweep by hand",
            "uniform",
            True,
            False,
            True,
            ZERO_VARIANTS,
        ),
        Space(
            "megatron",
            3,
            "what Megatron-LM's options express: uneven stages, one recomputation policy, "
            "distributed optimizer or its FSDP, context and expert parallelism",
            "policy",
            False,
            True,
            True,
            ("0", "1", "3-regather"),
        ),
        Space(
            "torchtitan",
            1,
            "what torchtitan's options express: uneven stages, everything or nothing recomputed, "
            "replicated or FSDP, context and expert parallelism",
            "uniform",
            False,
            True,
            True,
            ("0", "3-keep", "3-regather"),
            ((), ("full",)),
            ("3-keep", "3-regather"),
            ("3-keep", "3-regather"),
        ),
        Space(
            "deepspeed",
            1,
            "what DeepSpeed's options express: uneven stages by 1F1B, everything or nothing "
            "recomputed, every ZeRO stage but 2 and 3 in a pipeline",
            "uniform",
            False,
            False,
            False,
            ("0", "1", "2-buffer", "2-scatter", "3-regather"),
            ((), ("full",)),
            ("0", "1", "2-buffer"),
            schedules=("1f1b",),
        ),
        Space(
            "mixed",
            3,
            "one p, t, c, d, e, b; recomputation and ZeRO chosen per layer, uneven stages; with "
            "interleaving all chunks of a device are equal",
            "per-layer",
            False,
            True,
            True,
            ZERO_VARIANTS,
        ),
    )
}
"""All spaces by name; ``mixed`` contains the others."""

NOT_SEARCHED = (
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
    "cp": "context",
    "dp": "data",
    "ep": "expert",
    "etp": "expert_tensor",
    "mbs": "microbatch",
    "microbatches": "microbatches",
    "vpp": "chunks",
    "sp": "sequence_parallel",
    "schedule": "schedule",
}


@dataclass(frozen=True, slots=True)
class Pins:
    """Decisions the user fixed or forbade: key -> values as text.

    Keys: pp, tp, cp, dp, ep, etp, mbs, microbatches, vpp, sp (on or off), schedule, zero,
    recompute.
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

    degrees: str  # for instance "pp=4 tp=3 cp=1 dp=2", or "cp=8"
    code: str

    def concerns(self, pins: Pins) -> bool:
        """Whether the degrees are among those that the pins allow.

        Refusals of a context degree alone take away nothing that is needed where 1 is allowed.
        """
        pairs = [part.split("=") for part in self.degrees.split() if "=" in part]
        if [key for key, _ in pairs] == ["cp"] and pins.allow("cp", "1"):
            return False
        return all(pins.allow(key, value) for key, value in pairs)


RULES: dict[str, str] = {
    "MORE_STAGES_THAN_LAYERS": "use pp of at most the number of layers",
    "LAYERS_NOT_DIVISIBLE_BY_PP": "use a pp that divides the layers, or a space with uneven stages",
    "TP_CROSSES_NODE": "use a tp that divides the devices per node",
    "HEADS_NOT_DIVISIBLE_BY_TP": "use a tp that divides the attention heads",
    "KV_HEADS_NOT_DIVISIBLE_BY_TP": "use a tp that divides the kv heads or is a multiple of them",
    "FFN_NOT_DIVISIBLE_BY_TP": "use a tp that divides the width of the MLP",
    "EXPERTS_NEED_SEQUENCE_PARALLEL": "use a sequence that tp divides, or tp=1",
    "CP_NOT_IN_SPACE": "use a space with context parallelism, such as megatron",
    "CP_NEEDS_FLASH_ATTENTION": "use --attention flash",
    "STATE_SPACE_NOT_DIVISIBLE_BY_TP": "use a tp that divides heads and groups of the state space",
    "CP_NOT_FOR_ENCODER_DECODER": "use cp=1",
    "CP_NOT_IN_STACK": f"use --stack {', '.join(RING_STACKS)}",
    "SEQUENCE_NOT_DIVISIBLE_BY_CP": "use a sequence that is a multiple of 2 cp (16 cp at fp8)",
    "CP_SHARE_TOO_SHORT": f"use a cp that leaves a rank {CONTEXT_TOKENS} tokens of a sequence",
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
    known = tuple(schedule for schedule in schedules if schedule in space.schedules)
    if not known:
        fix = f"use one of {', '.join(space.schedules)}"
        raise InputError("NO_SCHEDULE", f"no schedule of space {space.name} is left", fix)
    contexts = context_degrees(model, cluster, job, space)
    for context in _powers_of_two(cluster.devices):
        code = context_rule(model, job, space, context)
        if code is not None:
            yield Refusal(f"cp={context}", code)
    for degrees in _all_degrees(cluster.devices, contexts):
        code = degree_rule(model, cluster, job, space, degrees)
        if code is not None:
            yield Refusal(degrees.text, code)
            continue
        for configuration in _with_degrees(model, job, space, degrees, known):
            if isinstance(configuration, Refusal):
                yield configuration
                continue
            key = pins.refuse(configuration)
            yield (
                configuration if key is None else Refusal(configuration.name, f"PIN_{key.upper()}")
            )


def context_degrees(
    model: ModelSpec, cluster: ClusterSpec, job: JobSpec, space: Space
) -> list[int]:
    """The context degrees of a space, in rising order: powers of two that divide the devices."""
    every = _powers_of_two(cluster.devices)
    return [c for c in every if context_rule(model, job, space, c) is None]


def _all_degrees(devices: int, contexts: list[int]) -> Iterator[Degrees]:
    for pipeline in divisors(devices):
        for tensor in divisors(devices // pipeline):
            replicas = devices // pipeline // tensor
            for context in contexts:
                if replicas % context == 0:
                    yield Degrees(pipeline, tensor, context, replicas // context)


def _powers_of_two(number: int) -> list[int]:
    """Those that divide a number."""
    return [1 << i for i in range((number & -number).bit_length())]


def _with_degrees(
    model: ModelSpec,
    job: JobSpec,
    space: Space,
    degrees: Degrees,
    schedules: tuple[Schedule, ...],
) -> Iterator[Configuration | Refusal]:
    pipeline, tensor, context, data = degrees
    per_rank = job.global_batch // data
    parallel = _sequence_parallel(model, job, degrees)
    if not parallel:
        yield Refusal(degrees.text, "EXPERTS_NEED_SEQUENCE_PARALLEL")
        return
    experts = expert_degrees(model, space, degrees)
    for microbatch in divisors(per_rank):
        microbatches = per_rank // microbatch
        where = f"{degrees.text} mbs={microbatch}"
        for schedule, chunks in _schedules(model, pipeline, schedules):
            if schedule == "interleaved" and microbatches % pipeline:
                yield Refusal(f"{where} vpp={chunks}", "MICROBATCHES_NOT_DIVISIBLE_BY_PP")
                continue
            if schedule == "gpipe" and "1f1b" in schedules:
                yield Refusal(f"{where} schedule=gpipe", "NEVER_BETTER_THAN_1F1B")
                continue
            for sequence_parallel, (expert, expert_tensor) in product(parallel, experts):
                yield Configuration(
                    pipeline=pipeline,
                    tensor=tensor,
                    data=data,
                    microbatch=microbatch,
                    microbatches=microbatches,
                    chunks=chunks,
                    sequence_parallel=sequence_parallel,
                    schedule=schedule,
                    context=context,
                    expert=expert,
                    expert_tensor=expert_tensor,
                )


def _sequence_parallel(model: ModelSpec, job: JobSpec, degrees: Degrees) -> list[bool]:
    """Choices of sequence parallelism; Megatron-LM's experts need it where t > 1."""
    splits = degrees.tensor > 1 and job.sequence_length // degrees.context % degrees.tensor == 0
    needed = degrees.tensor > 1 and model.has_experts
    return [False] * (not needed) + [True] * splits


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
            chunks = divisors(model.layers // pipeline)[1:]
            pairs += [(schedule, v) for v in chunks if _repeats(model.order, v)]
    return pairs


def _repeats(order: tuple[int, ...], times: int) -> bool:
    """Whether the kinds of blocks are the same in each of so many parts of the model."""
    return order == order[: len(order) // times] * times
