"""Modelled times of a block scaled to measured ones.

The model says how the time of a block changes with the microbatch and the tensor degree, the
measurement how large it is: what is carried from measured to other cases is the ratio of the two,
for forward and for backward. ``docs/cost_model.md``, section 4b, has the formulas.
"""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import TYPE_CHECKING

import numpy as np

from ilp_parallel.costs.work import Work

if TYPE_CHECKING:
    from collections.abc import Callable

    from ilp_parallel.configuration import Configuration
    from ilp_parallel.costs.layer import FloatArray, LayerPart
    from ilp_parallel.specs.job import JobSpec
    from ilp_parallel.specs.layer_times import LayerTime


class MeasuredLayers:
    """Layer times of a job, as factors on the modelled ones.

    Arrays ``[2]`` hold forward and backward.

    Parameters
    ----------
    job
        Its layer times of other sequence lengths are not used.
    modelled
        The modelled block of a configuration.
    """

    def __init__(self, job: JobSpec, modelled: Callable[[Configuration], LayerPart]) -> None:
        self._modelled = modelled
        self._times: dict[int, dict[int, LayerTime]] = {}
        for time in job.layer_times:
            if time.sequence_length == job.sequence_length:
                self._times.setdefault(time.tensor, {})[time.microbatch] = time

    def scaled(self, part: LayerPart, configuration: Configuration) -> LayerPart:
        """A modelled block with the times that were measured, or that follow from those.

        All kinds of work of a pass are scaled alike, so that they still add up to it; what is
        recomputed is scaled as forward is. Without layer times the block itself.
        """
        if not self._times:
            return part
        degree = min(self._times, key=lambda t: (abs(math.log2(t / configuration.tensor)), t))
        # whole sequences are measured: under context parallelism their ratio is taken over
        ratios = self._ratios(replace(configuration, tensor=degree, context=1))
        seconds = ratios * _passes_s(part)
        if configuration.context == 1 and configuration.microbatch in self._times.get(
            configuration.tensor, {}
        ):
            seconds = self._measured_s(configuration)  # the same, but for rounding
        forward_s, backward_s = map(float, seconds)
        return replace(
            part,
            forward=_scaled(part.forward, float(ratios[0])),
            backward=_scaled(part.backward, float(ratios[1])),
            forward_s=forward_s,
            backward_s=backward_s,
            recompute_s=part.recompute_s / part.forward_s * forward_s,
        )

    def _ratios(self, at: Configuration) -> FloatArray:
        """``[2]`` measured over modelled seconds; the tensor degree of ``at`` is a measured one.

        Linear in the microbatch between two measured ones, but never so that the time leaves the
        range of those two; beyond the measured ones the ratio of the nearest.
        """
        row, microbatch = self._times[at.tensor], at.microbatch
        below = max((b for b in row if b <= microbatch), default=min(row))
        above = min((b for b in row if b >= microbatch), default=max(row))
        ends = [replace(at, microbatch=b) for b in (below, above)]
        measured = [self._measured_s(end) for end in ends]
        low, high = (
            seconds / _passes_s(self._modelled(end))
            for seconds, end in zip(measured, ends, strict=True)
        )
        if not below < microbatch < above:
            return low
        ratios: FloatArray = low + (microbatch - below) / (above - below) * (high - low)
        modelled = _passes_s(self._modelled(at))
        least, most = np.minimum(*measured) / modelled, np.maximum(*measured) / modelled
        return np.clip(ratios, least, most)

    def _measured_s(self, at: Configuration) -> FloatArray:
        """``[2]`` seconds at a measured tensor degree and microbatch."""
        time = self._times[at.tensor][at.microbatch]
        backward_s = time.backward_s
        if backward_s is None:
            modelled = self._modelled(at)
            backward_s = time.forward_s * (modelled.backward_s / modelled.forward_s)
        return np.array([time.forward_s, backward_s])


def _passes_s(part: LayerPart) -> FloatArray:
    """``[2]`` seconds of forward and backward."""
    return np.array([part.forward_s, part.backward_s])


def _scaled(work: Work, factor: float) -> Work:
    """Work whose every kind takes ``factor`` times as long, in as many kernels."""
    seconds = {f.name: getattr(work, f.name) * factor for f in fields(Work) if f.name != "kernels"}
    return replace(work, **seconds)
