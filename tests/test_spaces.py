"""The enumeration against every tuple of numbers, each rule, and the inclusion of the spaces."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ilp_parallel.configuration import RECOMPUTE_SETS, ZERO_VARIANTS, Configuration, Strategy
from ilp_parallel.errors import InputError
from ilp_parallel.rules import CONTEXT_TOKENS, RING_STACKS
from ilp_parallel.spaces import (
    RULES,
    SPACES,
    Pins,
    Refusal,
    Space,
    enumerate_configurations,
    get_space,
    no_configuration,
)
from ilp_parallel.specs.job import JobSpec
from ilp_parallel.specs.readers import load_cluster
from tests.costs.cases import gpt

if TYPE_CHECKING:
    from ilp_parallel.problems.pipeline import Schedule
    from ilp_parallel.specs.model import ModelSpec

CLUSTER = load_cluster("a100-80gb:2x4")
MODEL = gpt(layers=6, hidden=2048, heads=8)
JOB = JobSpec(global_batch=24, sequence_length=4096)  # context degrees 1, 2 and 4
ALL: tuple[Schedule, ...] = ("1f1b", "gpipe", "interleaved")


def enumerated(
    model: ModelSpec = MODEL,
    job: JobSpec = JOB,
    space: str = "mixed",
    pins: Pins | None = None,
    schedules: tuple[Schedule, ...] = ALL,
) -> tuple[list[Configuration], list[Refusal]]:
    """Configurations and refusals apart."""
    items = list(
        enumerate_configurations(model, CLUSTER, job, get_space(space), pins or Pins(), schedules)
    )
    kept = [item for item in items if isinstance(item, Configuration)]
    return kept, [item for item in items if isinstance(item, Refusal)]


def valid(configuration: Configuration, space: Space) -> bool:
    """The rules once more, on one finished configuration."""
    p, t, d = configuration.pipeline, configuration.tensor, configuration.data
    c = configuration.context
    m, v = configuration.microbatches, configuration.chunks
    interleaved = configuration.schedule == "interleaved"
    return (
        p * t * c * d == CLUSTER.devices
        and c in ((1, 2, 4) if space.context else (1,))
        and configuration.microbatch * m * d == JOB.global_batch
        and CLUSTER.devices_per_node % t == 0
        and MODEL.heads % t == 0
        and p <= MODEL.layers
        and not (space.even_stages and MODEL.layers % p)
        and (t > 1 or not configuration.sequence_parallel)
        and interleaved == (v > 1)
        and configuration.schedule in space.schedules
        and not (v > 1 and (p == 1 or m % p or MODEL.layers % (p * v)))
    )


@pytest.mark.parametrize("schedules", [("1f1b",), ("gpipe",), ("1f1b", "interleaved")])
@pytest.mark.parametrize("space", sorted(SPACES))
def test_complete_and_without_repetition(space: str, schedules: tuple[Schedule, ...]) -> None:
    """Every tuple of numbers that the rules allow, once, in the same order every time."""
    if not set(schedules) & set(SPACES[space].schedules):
        with pytest.raises(InputError, match="NO_SCHEDULE"):
            enumerated(space=space, schedules=schedules)
        return
    found, _ = enumerated(space=space, schedules=schedules)
    degrees, sizes = (1, 2, 3, 4, 6, 8), (1, 2, 3, 4, 6, 8, 12, 24)
    ranks = itertools.product(degrees, degrees, degrees, degrees)
    kept = [split for split in ranks if math.prod(split) == CLUSTER.devices]
    wanted = set()
    for (p, t, c, d), b, v, parallel in itertools.product(kept, sizes, (1, 2, 3, 6), (False, True)):
        for schedule in schedules:
            m = JOB.global_batch // (b * d)
            one = Configuration(p, t, d, b, m, v, parallel, schedule, c)
            if m and valid(one, SPACES[space]):
                wanted.add(one)
    assert len(set(found)) == len(found)
    assert set(found) == wanted
    assert found == enumerated(space=space, schedules=schedules)[0]
    assert len({one.name for one in found}) == len(found)


def test_gpipe_is_searched_only_without_1f1b() -> None:
    found, refusals = enumerated(schedules=("1f1b", "gpipe"))
    assert {one.schedule for one in found} == {"1f1b"}
    assert "NEVER_BETTER_THAN_1F1B" in {refusal.code for refusal in refusals}
    alone, _ = enumerated(schedules=("gpipe",))
    assert len(alone) == len(found)
    with pytest.raises(InputError, match="NO_SCHEDULE"):
        enumerated(schedules=())


@pytest.mark.parametrize(
    ("code", "model", "job", "space"),
    [
        ("MORE_STAGES_THAN_LAYERS", replace(MODEL, layers=3), JOB, "mixed"),
        ("LAYERS_NOT_DIVISIBLE_BY_PP", MODEL, JOB, "uniform"),
        ("TP_CROSSES_NODE", MODEL, JOB, "mixed"),
        ("HEADS_NOT_DIVISIBLE_BY_TP", gpt(layers=6, hidden=768, heads=6), JOB, "mixed"),
        ("KV_HEADS_NOT_DIVISIBLE_BY_TP", replace(MODEL, heads=12, kv_heads=3), JOB, "mixed"),
        ("FFN_NOT_DIVISIBLE_BY_TP", replace(MODEL, ffn_hidden=8190), JOB, "mixed"),
        ("BATCH_NOT_DIVISIBLE_BY_DP", MODEL, replace(JOB, global_batch=6), "mixed"),
        ("MICROBATCHES_NOT_DIVISIBLE_BY_PP", MODEL, JOB, "mixed"),
        ("CP_NOT_IN_SPACE", MODEL, JOB, "uniform"),
        ("CP_NEEDS_FLASH_ATTENTION", MODEL, replace(JOB, attention="unfused"), "mixed"),
        ("CP_NOT_IN_STACK", MODEL, replace(JOB, stack="deepspeed"), "megatron"),
        ("SEQUENCE_NOT_DIVISIBLE_BY_CP", MODEL, replace(JOB, sequence_length=4095), "mixed"),
        ("CP_SHARE_TOO_SHORT", MODEL, JOB, "mixed"),
    ],
)
def test_each_rule_is_given_as_a_reason(
    code: str, model: ModelSpec, job: JobSpec, space: str
) -> None:
    """And what it refuses is not enumerated all the same."""
    found, refusals = enumerated(model, job, space)
    named = [refusal for refusal in refusals if refusal.code == code]
    assert named
    assert code in RULES
    texts = [
        f" pp={one.pipeline} tp={one.tensor} cp={one.context} dp={one.data} "
        f"mbs={one.microbatch} vpp={one.chunks} "
        for one in found
    ]
    for refusal in named:
        assert not any(f" {refusal.degrees} " in text for text in texts)


@pytest.mark.parametrize(
    ("change", "degrees"),
    [
        ({}, {1, 2, 4}),
        ({"sequence_length": 4 * CONTEXT_TOKENS - 2}, {1}),  # of 4094 tokens 4 are no divisor
        ({"sequence_length": 4 * CONTEXT_TOKENS - 4}, {1, 2}),  # a rank of 4 would get 1023
        ({"sequence_length": 8 * CONTEXT_TOKENS}, {1, 2, 4, 8}),
        ({"precision": "fp8"}, {1, 2, 4}),
        ({"precision": "fp8", "sequence_length": 4 * CONTEXT_TOKENS + 16}, {1}),
        ({"sequence_length": 4 * CONTEXT_TOKENS + 16}, {1, 2, 4}),
        ({"attention": "flash1"}, {1}),
        ({"stack": "megatron-2021"}, {1}),
        *[({"stack": stack}, {1, 2, 4}) for stack in RING_STACKS],
    ],
)
def test_context_degrees(change: dict[str, object], degrees: set[int]) -> None:
    """Powers of two, twice of which divide the sequence, with enough tokens for a rank."""
    found, refusals = enumerated(job=replace(JOB, **change))  # type: ignore[arg-type]
    assert {one.context for one in found} == degrees
    refused = {r.degrees for r in refusals if r.degrees.startswith("cp=")}
    assert refused == {f"cp={c}" for c in (1, 2, 4, 8) if c not in degrees}


def test_sequence_parallel_ranks_share_what_a_context_rank_has() -> None:
    found, _ = enumerated(job=replace(JOB, sequence_length=4096 + 8))
    with_both = {(one.tensor, one.context) for one in found if one.sequence_parallel}
    assert with_both == {(2, 1), (4, 1), (2, 2), (4, 2), (2, 4)}


@pytest.mark.parametrize(
    ("fixed", "forbidden"),
    [
        (("pp=2",), ()),
        (("pp=2", "pp=4"), ()),
        (("tp=2", "sp=on"), ()),
        ((), ("vpp=2", "dp=1")),
        (("schedule=interleaved",), ("mbs=1",)),
        (("microbatches=6",), ()),
        (("cp=2",), ("tp=2",)),
        ((), ("cp=1", "cp=4")),
    ],
)
def test_pins_are_a_filter(fixed: tuple[str, ...], forbidden: tuple[str, ...]) -> None:
    pins = Pins.parse(fixed, forbidden)
    pinned, refusals = enumerated(pins=pins)
    everything, _ = enumerated()
    assert pinned == [one for one in everything if pins.refuse(one) is None]
    assert 0 < len(pinned) < len(everything)
    by_pin = [refusal for refusal in refusals if refusal.code.startswith("PIN_")]
    assert len(by_pin) == len(everything) - len(pinned)


def test_pinned_zero_2_means_both_variants() -> None:
    strategies = [
        Strategy(zero, recompute) for zero in ZERO_VARIANTS for recompute in RECOMPUTE_SETS
    ]
    two = Pins.parse(("zero=2",), ())
    assert {s.zero for s in strategies if two.allow_strategy(s)} == {
        zero for zero in ZERO_VARIANTS if zero.startswith("2")
    }
    plain = Pins.parse((), ("recompute=full",))
    assert all(plain.allow_strategy(s) == (s.recompute != ("full",)) for s in strategies)


@pytest.mark.parametrize("text", ["pp", "colour=red", "pp=", "pp=x"])
def test_bad_pins(text: str) -> None:
    with pytest.raises(InputError, match=r"UNKNOWN_DECISION|BAD_DECISION_VALUE"):
        Pins.parse((text,), ())


def test_mixed_contains_the_other_spaces() -> None:
    mixed = SPACES["mixed"]
    assert mixed.freedom == "per-layer"
    for name, space in SPACES.items():
        assert set(space.zero) <= set(mixed.zero)
        assert set(space.recompute) <= set(mixed.recompute)
        assert mixed.context or not space.context
        assert set(enumerated(space=name)[0]) <= set(enumerated()[0])


def test_unknown_space() -> None:
    with pytest.raises(InputError, match="UNKNOWN_SPACE"):
        get_space("everything")


def test_nothing_left_names_the_rule_that_excludes_most() -> None:
    pins = Pins.parse(("tp=8",), ())
    found, refusals = enumerated(pins=pins)
    assert not found
    assert no_configuration(refusals, pins).code == "TP_CROSSES_NODE"


@pytest.mark.parametrize(
    ("pin", "space", "code"),
    [
        ("cp=8", "mixed", "CP_SHARE_TOO_SHORT"),
        ("cp=2", "uniform", "CP_NOT_IN_SPACE"),
        ("cp=3", "mixed", "NO_CONFIGURATION"),
        ("tp=8", "uniform", "TP_CROSSES_NODE"),
    ],
)
def test_context_rules_are_named_only_where_they_matter(pin: str, space: str, code: str) -> None:
    pins = Pins.parse((pin,), ())
    found, refusals = enumerated(space=space, pins=pins)
    assert not found
    assert no_configuration(refusals, pins).code == code


def test_versions() -> None:
    """A space whose rules change gets a new number, so certificates say which one they mean."""
    versions = {name: (space.version, space.context) for name, space in SPACES.items()}
    assert versions == {
        "uniform": (2, False),
        "megatron": (3, True),
        "torchtitan": (1, True),
        "deepspeed": (1, False),
        "mixed": (3, True),
    }


@pytest.mark.parametrize(
    ("space", "degrees", "zero"),
    [
        ("mixed", (2, 2, 1, 2), ZERO_VARIANTS),
        ("deepspeed", (1, 2, 1, 4), ("0", "1", "2-buffer", "2-scatter", "3-regather")),
        ("deepspeed", (2, 2, 1, 2), ("0", "1", "2-buffer")),
        ("torchtitan", (1, 1, 1, 8), ("0", "3-keep", "3-regather")),
        ("torchtitan", (1, 2, 1, 4), ("3-keep", "3-regather")),
        ("torchtitan", (1, 1, 2, 4), ("3-keep", "3-regather")),
        ("torchtitan", (2, 1, 1, 4), ("3-keep", "3-regather")),
        ("torchtitan", (4, 2, 1, 1), ("0",)),  # nothing to shard
    ],
)
def test_what_is_sharded_depends_on_the_other_degrees(
    space: str, degrees: tuple[int, int, int, int], zero: tuple[str, ...]
) -> None:
    p, t, c, d = degrees
    configuration = Configuration(p, t, d, 1, 8, 1, False, "1f1b", c)
    assert SPACES[space].zero_of(configuration) == zero
