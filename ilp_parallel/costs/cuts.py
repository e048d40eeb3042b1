"""Delays of the cuts between the stages of a pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ilp_parallel.costs import constants as c

if TYPE_CHECKING:
    from ilp_parallel.configuration import Configuration
    from ilp_parallel.costs.ends import EndWork
    from ilp_parallel.costs.hardware import Machine
    from ilp_parallel.costs.layer import FloatArray


class CutCosting:
    """Prices what is sent between stages."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._crossings: dict[tuple[int, int, int], FloatArray] = {}

    def delays_s(self, configuration: Configuration, work: EndWork) -> FloatArray:
        """``[V - 1]`` one-way exposed delay of every cut between virtual stages.

        Each tensor-parallel rank sends its share (scatter/gather of Narayanan et al. 2021, section
        4.1; with sequence parallelism nothing else is there to send).
        """
        p, v = configuration.pipeline, configuration.chunks
        block = configuration.tensor * configuration.shards
        crosses = self._crossings.get((p, block, v))
        if crosses is None:
            crosses = self._crossings[p, block, v] = self._crossing(p, block, v)
        inside, outside = self._machine.pair(True), self._machine.pair(False)
        near = inside.latency_s + work.sent_bytes / inside.bandwidth_bytes_per_s
        far = outside.latency_s + work.sent_bytes / outside.bandwidth_bytes_per_s
        share = c.INTERLEAVED_SEND_EXPOSED if v > 1 else 1.0
        return (near + crosses * (far - near) + work.regather_s) * share

    def _crossing(self, pipeline: int, block: int, chunks: int) -> FloatArray:
        """``[V - 1]`` 1.0 where a cut's link leaves a node; the last group sends to the first."""
        node = self._machine.devices_per_node
        starts = np.arange(pipeline, dtype=np.int64) * block
        leaves = starts // node != (starts + 2 * block - 1) // node
        leaves[-1] = pipeline * block > node
        crossing: FloatArray = np.tile(leaves.astype(np.float64), chunks)[:-1]
        return crossing
