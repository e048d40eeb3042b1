"""A plan from a few words, for ``predict``: ``pp=8 tp=8 cp=2 ep=4 mbs=1 vpp=3 recompute=full``."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast, get_args

from ilp_parallel.configuration import (
    RECOMPUTE_SETS,
    ZERO_VARIANTS,
    Configuration,
    Strategy,
    Zero,
)
from ilp_parallel.errors import InputError
from ilp_parallel.plan import Plan
from ilp_parallel.plan_files import check_plan
from ilp_parallel.problems.pipeline import Schedule

if TYPE_CHECKING:
    from ilp_parallel.jobs import CompleteJob

_KEYS = (
    *("pp", "tp", "cp", "ep", "etp", "mbs", "vpp"),
    *("sp", "schedule", "zero", "recompute", "stages"),
)


def plan_from_words(job: CompleteJob, words: str) -> Plan:
    """The plan that uses all devices, with one strategy for all layers.

    Not given: pp=1, tp=1, cp=1, ep=1, etp=1, mbs=1, vpp=1, sp=on if tp > 1, schedule by vpp, zero=0
    if dp cp = 1 else 1, recompute=none, stages nearly even (the first ones larger).

    Raises
    ------
    InputError
        For an unknown word, or a plan that contradicts itself or the job.
    """
    given = _parse(words)
    pipeline, tensor = _number(given, "pp", 1), _number(given, "tp", 1)
    context = _number(given, "cp", 1)
    microbatch, chunks = _number(given, "mbs", 1), _number(given, "vpp", 1)
    devices = job.cluster.devices
    data, left = divmod(devices, pipeline * tensor * context)
    if left:
        what = f"{devices} devices, pp={pipeline} tp={tensor} cp={context}"
        raise InputError("DEVICES_NOT_DIVISIBLE", what, "change them")
    if job.job.global_batch % (data * microbatch):
        raise InputError(
            "BATCH_NOT_DIVISIBLE",
            f"batch={job.job.global_batch}, dp={data} mbs={microbatch}",
            "use a batch that is a multiple of dp x mbs",
        )
    configuration = Configuration(
        pipeline=pipeline,
        tensor=tensor,
        data=data,
        microbatch=microbatch,
        microbatches=job.job.global_batch // (data * microbatch),
        chunks=chunks,
        sequence_parallel=_choice(given, "sp", ("on", "off"), "on" if tensor > 1 else "off")
        == "on",
        schedule=cast(
            "Schedule",
            _choice(given, "schedule", get_args(Schedule), "interleaved" if chunks > 1 else "1f1b"),
        ),
        context=context,
        expert=_number(given, "ep", 1),
        expert_tensor=_number(given, "etp", 1),
    )
    zero = cast("Zero", _choice(given, "zero", ZERO_VARIANTS, "1" if data * context > 1 else "0"))
    sets = {"+".join(modules) or "none": modules for modules in RECOMPUTE_SETS}
    recompute = sets[_choice(given, "recompute", tuple(sets), "none")]
    plan = Plan(
        model=job.model,
        cluster=job.cluster,
        job=job.job,
        space="given",
        configuration=configuration,
        sizes=_sizes(given, job.model.layers, pipeline * chunks),
        strategies=(Strategy(zero, recompute),) * job.model.layers,
    )
    check_plan(plan)
    return plan


def _parse(words: str) -> dict[str, str]:
    given: dict[str, str] = {}
    for word in words.split():
        key, _, value = word.partition("=")
        if key not in _KEYS or not value or key in given:
            raise InputError("BAD_PLAN_WORD", repr(word)[:100], f"use {'=.. '.join(_KEYS)}=..")
        given[key] = value
    return given


def _number(given: dict[str, str], key: str, default: int) -> int:
    text = given.get(key, str(default))
    if not text.isdecimal() or not 0 < int(text[:12]) < 10**7 or len(text) > 7:
        raise InputError("BAD_PLAN_WORD", f"{key}={text[:100]}", "use a positive integer")
    return int(text)


def _choice(given: dict[str, str], key: str, choices: tuple[str, ...], default: str) -> str:
    value = given.get(key, default)
    if value not in choices:
        fix = f"use one of {', '.join(choices)}"
        raise InputError("BAD_PLAN_WORD", f"{key}={value[:100]}", fix)
    return value


def _sizes(given: dict[str, str], layers: int, stages: int) -> tuple[int, ...]:
    if "stages" not in given:
        each, extra = divmod(layers, stages)
        return tuple(each + (j < extra) for j in range(stages))
    parts = given["stages"].split(",")
    if not all(part.isdecimal() and len(part) < 6 for part in parts):
        raise InputError("BAD_PLAN_WORD", f"stages={given['stages'][:100]}", "use stages=12,12,...")
    return tuple(int(part) for part in parts)
