"""What a little more of something would buy: the job solved again, exactly, on a changed cluster.

Duals of a relaxation would answer for the plan as it is and for infinitesimal changes. Here every
change has its own search, proof and verification, so another plan may win, and whole gibibytes and
lanes are what can be bought. The change of a rate that shortens the step most is the bottleneck.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, cast

import msgspec

from ilp_parallel.errors import InputError
from ilp_parallel.planner import search
from ilp_parallel.report import render
from ilp_parallel.verify import verify

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from concurrent.futures import Executor

    from ilp_parallel.jobs import CompleteJob
    from ilp_parallel.planner import SearchOptions
    from ilp_parallel.report import Style
    from ilp_parallel.specs.cluster import ClusterSpec

SHARE = 0.1
"""By which rates are raised (chosen)."""

NVLINK_LANE_BYTES_PER_S = {
    "volta": 25e9,
    "ampere": 25e9,
    "hopper": 25e9,
    "blackwell": 50e9,
    "blackwell-ultra": 50e9,
}
"""One NVLink, per direction: V100 has 6 of 25 GB/s, A100 12, H100 18 (NVIDIA whitepapers of Tesla
V100, A100 and H100, NVLink), B200 18 of 50 GB/s (NVIDIA Blackwell architecture brief)."""

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Change:
    """A changed cluster; ``is_rate`` where it is a rate raised by ``SHARE``."""

    name: str
    cluster: ClusterSpec
    is_rate: bool


@dataclass(frozen=True, slots=True)
class Effect:
    """The optimum under a change. Gains are shares of the step time as it is."""

    name: str
    is_rate: bool
    status: str
    step_time_s: float | None
    gain: float | None
    configuration: str | None
    verified: bool


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """Effects of all changes, the largest gain first, beside the optimum as it is."""

    step_time_s: float
    configuration: str
    optimal: bool
    effects: tuple[Effect, ...]

    @property
    def bottleneck(self) -> Effect | None:
        """The rate of which a tenth more buys most; None if none buys anything."""
        rates = [e for e in self.effects if e.is_rate and e.gain is not None and e.gain > 0]
        return rates[0] if rates else None

    @property
    def verified(self) -> bool:
        """Whether every certificate passed its checks."""
        return all(effect.verified for effect in self.effects)


def changes(cluster: ClusterSpec) -> Iterator[Change]:
    """What could be bought, links only where they are used."""
    device, more = cluster.device, 1 + SHARE
    percent = f"{100 * SHARE:.0f} % more"

    def with_device(**fields: object) -> ClusterSpec:
        return replace(cluster, device=replace(device, **fields))  # type: ignore[arg-type]

    yield Change("1 GiB more memory", with_device(memory_bytes=device.memory_bytes + _GIB), False)
    peaks = {name: more * peak for name, peak in device.peak_flops.items()}
    yield Change(f"{percent} matrix FLOP/s", with_device(peak_flops=peaks), True)
    bandwidth = more * device.memory_bandwidth_bytes_per_s
    faster = with_device(memory_bandwidth_bytes_per_s=bandwidth)
    yield Change(f"{percent} memory bandwidth", faster, True)
    if cluster.devices_per_node > 1:
        intra, lane = cluster.intra, NVLINK_LANE_BYTES_PER_S.get(device.generation)
        raised = replace(intra, bandwidth_bytes_per_s=more * intra.bandwidth_bytes_per_s)
        yield Change(f"{percent} bandwidth in node", replace(cluster, intra=raised), True)
        if lane is not None:
            wider = replace(intra, bandwidth_bytes_per_s=intra.bandwidth_bytes_per_s + lane)
            name = f"1 NVLink more ({lane / 1e9:g} GB/s)"
            yield Change(name, replace(cluster, intra=wider), False)
    if cluster.nodes > 1:
        inter = cluster.inter
        raised = replace(inter, bandwidth_bytes_per_s=more * inter.bandwidth_bytes_per_s)
        yield Change(f"{percent} bandwidth between nodes", replace(cluster, inter=raised), True)


def sensitivity(
    job: CompleteJob,
    options: SearchOptions,
    say: Callable[[str], None],
    executor: Executor | None = None,
) -> Sensitivity | None:
    """Solve the job as it is and under every change; None if it has no plan as it is.

    Parameters
    ----------
    job, options
        What to plan, and how; the time limit is that of each search.
    say
        Is told what is done.
    executor
        Runs the searches of the changes, several at a time, without ``options``' progress and
        cancellation, which may not reach other processes. The result does not depend on it.
    """
    as_it_is = _effect(job, options, Change("as it is", job.cluster, False), None)
    if as_it_is.step_time_s is None or as_it_is.configuration is None:
        return None
    base = as_it_is.step_time_s
    listed = list(changes(job.cluster))
    if executor is None:
        found = []
        for change in listed:
            say(change.name)
            found.append(_effect(job, options, change, base))
    else:
        say(f"{len(listed)} changes at once")
        alone = replace(options, progress=None, cancelled=None)
        task = partial(_effect, job, alone, base_s=base)
        found = list(executor.map(task, listed))
    found.sort(key=lambda effect: -(effect.gain if effect.gain is not None else -1.0))
    optimal = as_it_is.status == "optimal" and as_it_is.verified
    return Sensitivity(base, as_it_is.configuration, optimal, tuple(found))


def _effect(
    job: CompleteJob, options: SearchOptions, change: Change, base_s: float | None
) -> Effect:
    result = search(job.model, change.cluster, job.job, options)
    certificate = result.certificate
    step = certificate.seconds(certificate.objective_ticks)
    return Effect(
        name=change.name,
        is_rate=change.is_rate,
        status=certificate.status,
        step_time_s=step,
        gain=None if step is None or base_s is None else (base_s - step) / base_s,
        configuration=None if result.plan is None else result.plan.configuration.name,
        verified=all(check.passed for check in verify(certificate)),
    )


def sensitivity_document(found: Sensitivity) -> dict[str, object]:
    """As part of a JSON."""
    bottleneck = found.bottleneck
    return {
        "step_time_s": found.step_time_s,
        "configuration": found.configuration,
        "optimal": found.optimal,
        "verified": found.verified,
        "bottleneck": None if bottleneck is None else bottleneck.name,
        "changes": [
            {
                "change": effect.name,
                "status": effect.status,
                "step_time_s": effect.step_time_s,
                "gain": effect.gain,
                "configuration": effect.configuration,
            }
            for effect in found.effects
        ],
    }


@dataclass(frozen=True, slots=True)
class RecordedChange:
    """A change in a result file."""

    change: str
    status: str
    step_time_s: float | None
    gain: float | None
    configuration: str | None


@dataclass(frozen=True, slots=True)
class Recorded:
    """A sensitivity in a result file: what ``solve`` found, not checked again."""

    step_time_s: float
    configuration: str
    optimal: bool
    verified: bool
    bottleneck: str | None
    changes: tuple[RecordedChange, ...]


def read_sensitivity(document: Mapping[str, object]) -> Recorded | None:
    """The sensitivity in the document of a result; None where there is none.

    Raises
    ------
    InputError
        ``BAD_SENSITIVITY``.
    """
    found = document.get("sensitivity")
    if found is None:
        return None
    try:
        return msgspec.convert(found, Recorded)
    except msgspec.ValidationError as error:
        fix = "write the file again with solve --sensitivity -o"
        raise InputError("BAD_SENSITIVITY", str(error)[:200], fix) from None


def sensitivity_text(found: Sensitivity, style: Style) -> str:
    """For reading: the bottleneck, and what each change buys."""
    bottleneck = found.bottleneck
    if bottleneck is None:
        first = "bottleneck: none of these rates; a tenth more of any buys nothing"
    else:
        share = 100 * cast("float", bottleneck.gain)
        first = f"bottleneck: {bottleneck.name} would save {share:.2f} % of the step"
    rows = [
        (
            effect.name,
            "-" if effect.step_time_s is None else f"{effect.step_time_s:.6f}",
            "-" if effect.gain is None else f"{100 * effect.gain:+.2f} %",
            "the same"
            if effect.configuration == found.configuration
            else effect.configuration or "",
            effect.status,
        )
        for effect in found.effects
    ]
    title = f"what more would buy (step time now {found.step_time_s:.6f} s, each solved exactly)"
    header = ("change", "step time s", "saves", "configuration", "status")
    return f"{first}\n\n{render(title, header, rows, style)}"
