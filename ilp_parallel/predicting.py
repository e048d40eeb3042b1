"""Everything one ``predict`` says of a plan beyond the cost model's terms: rates and shares."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

import msgspec

from ilp_parallel.costs.hardware import Machine
from ilp_parallel.plan_files import plan_document
from ilp_parallel.solving import versions

if TYPE_CHECKING:
    from ilp_parallel.configuration import Configuration
    from ilp_parallel.costs.breakdown import Prediction
    from ilp_parallel.plan import Plan

SCHEMA = "ilp_parallel.predict/1"

FLOP_CONVENTION = (
    "model FLOPs: 6 x matrix parameters (output matrix included, input embedding not) x tokens "
    "+ 12 x layers x query width x sequence x tokens, attention in full although it is causal",
    "hardware FLOPs: these and what is recomputed (not what flash attention recomputes inside)",
    "MFU, HFU: shares of the dense matrix peak of the precision recipe",
)
"""What is counted, in words."""


@dataclass(frozen=True, slots=True)
class Share:
    """A part of the step: seconds of it, and as a fraction of the step time."""

    term: str
    part: Literal["microbatches", "bubble", "once per step"]
    seconds: float
    share: float


@dataclass(frozen=True, slots=True)
class Throughput:
    """FLOP/s of one device, and the peak they are shares of."""

    peak_flops: float
    model_flops: float
    hardware_flops: float


def step_shares(configuration: Configuration, prediction: Prediction) -> tuple[Share, ...]:
    """Where the time of a step goes; the shares add up to one.

    The step is seen from the device group with the most work per microbatch, F' + B' = C: it works
    for ``m C``, and else waits for the pipeline to fill and to drain (the bubble). What comes once
    per step is that of the group for which it takes longest.

    With 1F1B or chunks (``v`` a device) the bubble is ``(sum (F' + B') - C) / v``. GPipe takes
    ``sum (F' + B') - C`` and, as it runs all forwards first,
    ``(m - 1) (max F' + max B' - C)`` more where the longest F' and B' are not of one group.
    """
    stages, m = prediction.stages, configuration.microbatches
    both = [stage.forward_s + stage.backward_s for stage in stages]
    longest = max(both)
    bubble = (sum(both) - longest) / configuration.chunks
    if configuration.schedule == "gpipe":
        apart = max(s.forward_s for s in stages) + max(s.backward_s for s in stages) - longest
        bubble += (m - 1) * apart
    heaviest = stages[both.index(longest)]
    last = max(stages, key=lambda stage: stage.tail_s)
    step = prediction.step_time_s

    def share(
        term: str, part: Literal["microbatches", "bubble", "once per step"], s: float
    ) -> Share:
        return Share(term, part, s, s / step)

    return (
        *(share(term.name, "microbatches", m * term.value) for term in heaviest.microbatch_terms),
        share("bubble", "bubble", bubble),
        *(share(term.name, "once per step", term.value) for term in last.step_terms),
    )


def throughput(plan: Plan, prediction: Prediction) -> Throughput:
    """FLOP/s per device over the whole step."""
    seconds = prediction.step_time_s * plan.configuration.devices
    return Throughput(
        peak_flops=Machine(plan.cluster, plan.job).peak_flops,
        model_flops=prediction.model_flops / seconds,
        hardware_flops=prediction.hardware_flops / seconds,
    )


def prediction_document(plan: Plan, prediction: Prediction) -> dict[str, object]:
    """The JSON of ``predict``."""
    document, rates = plan_document(plan), throughput(plan, prediction)
    encoded = msgspec.json.encode(document, order="sorted")
    return {
        "schema": SCHEMA,
        "versions": versions(),
        "instance": {
            "hash": hashlib.sha256(encoded).hexdigest(),
            "model": plan.model.name,
            "cluster": plan.cluster.name,
        },
        "fits": prediction.fits,
        **cast("dict[str, object]", msgspec.to_builtins(prediction)),
        "allocated_bytes": prediction.allocated_bytes,
        "device_bytes": prediction.device_bytes,
        "flop_convention": "; ".join(FLOP_CONVENTION),
        "peak_flops_per_s_per_device": rates.peak_flops,
        "model_flops_per_s_per_device": rates.model_flops,
        "hardware_flops_per_s_per_device": rates.hardware_flops,
        "step_shares": msgspec.to_builtins(step_shares(plan.configuration, prediction)),
        "plan": document,
    }
