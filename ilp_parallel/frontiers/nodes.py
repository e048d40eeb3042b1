"""The best step time on any number of whole nodes, as far as a question needs to know it.

Every number of nodes is a search of its own. Cheap bounds come first: states that exceed all
memory, and the least work of any configuration. A search stops as soon as its bound refutes the
number or its incumbent is good enough; what it proved by then is in its certificate, which is
verified.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from ilp_parallel.configuration import Configuration
from ilp_parallel.costs.model import CostModel
from ilp_parallel.diagnosis.explaining import question_of
from ilp_parallel.diagnosis.feasibility import states_and_room
from ilp_parallel.errors import InputError
from ilp_parallel.instances import InstanceBuilder
from ilp_parallel.planner import search
from ilp_parallel.spaces import enumerate_configurations, get_space
from ilp_parallel.verify import verify

if TYPE_CHECKING:
    from collections.abc import Callable

    from ilp_parallel.jobs import CompleteJob
    from ilp_parallel.planner import SearchOptions, SearchProgress, SearchResult

Reason = Literal["memory", "rules", "work", "search"]


def never(bound_ticks: int) -> bool:
    """For a search that nothing is to stop."""
    del bound_ticks
    return False


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """What is known of one number of nodes."""

    nodes: int
    devices: int
    reason: Reason
    bound_ticks: int | None  # no plan takes less; None: there is no plan
    result: SearchResult | None  # where it was searched
    verified: bool  # every check of the certificate passed, or the bound needs none
    refuted: bool = False  # the search ended because its bound settled the question

    @property
    def ticks(self) -> int | None:
        """Step time of the best plan found."""
        return None if self.result is None else self.result.certificate.objective_ticks

    @property
    def proven(self) -> bool:
        """Whether the best plan found is optimal on so many nodes."""
        return self.ticks is not None and self.ticks == self.bound_ticks


class Nodes:
    """A job on other numbers of the same nodes.

    Parameters
    ----------
    job
        Its own number of nodes does not matter.
    options
        Of every search; the time limit is that of each.
    """

    def __init__(self, job: CompleteJob, options: SearchOptions) -> None:
        self._job, self._options = job, options
        self._question = question_of(job, options)
        self._floors: dict[int, NodeAnswer] = {}

    @property
    def per_node(self) -> int:
        """Devices of a node."""
        return self._job.cluster.devices_per_node

    def job_on(self, nodes: int) -> CompleteJob:
        """The job on so many nodes."""
        return replace(self._job, cluster=self._question.on_nodes(nodes).cluster)

    def states_and_room(self, nodes: int) -> tuple[int, int]:
        """Bytes of all blocks' states, rounded up, and what all devices may allocate together."""
        needed, usable = states_and_room(self._question.on_nodes(nodes))
        return -int(-needed // 1), usable

    def floor(self, nodes: int) -> NodeAnswer:
        """What follows from memory and work alone, without a search."""
        if nodes not in self._floors:
            self._floors[nodes] = self._floor(nodes)
        return self._floors[nodes]

    def _floor(self, nodes: int) -> NodeAnswer:
        question, devices = self._question.on_nodes(nodes), nodes * self.per_node
        needed, usable = states_and_room(question)
        if needed > usable:
            return NodeAnswer(nodes, devices, "memory", None, None, True)
        q = question
        builder = InstanceBuilder(
            CostModel(q.model, q.cluster, q.job), get_space(self._options.space), q.pins
        )
        found = enumerate_configurations(q.model, q.cluster, q.job, q.space, q.pins, q.schedules)
        floors = (builder.work_floor(g) for g in found if isinstance(g, Configuration))
        least = min((ticks for ticks in floors if ticks is not None), default=None)
        reason: Reason = "rules" if least is None else "work"
        return NodeAnswer(nodes, devices, reason, least, None, True)

    def search(
        self,
        nodes: int,
        refuted: Callable[[int], bool] = never,
        enough: Callable[[int], bool] = never,
    ) -> NodeAnswer:
        """Search on so many nodes.

        Parameters
        ----------
        nodes
            How many.
        refuted
            Whether a bound in ticks settles the question; the search stops then.
        enough
            Whether the step time of a plan does.
        """
        job, watch = self.job_on(nodes), _Watch(self._options, refuted, enough)
        try:
            result = search(job.model, job.cluster, job.job, watch.options)
        except InputError:  # the rules leave nothing on so many devices
            if self.floor(nodes).reason != "rules":
                raise
            return self.floor(nodes)
        certificate = result.certificate
        passed = all(check.passed for check in verify(certificate))
        bound = certificate.bound_ticks
        settled = bound is not None and refuted(bound)
        return NodeAnswer(nodes, job.cluster.devices, "search", bound, result, passed, settled)


class _Watch:
    """Stops a search once its bound or its incumbent settles the question."""

    def __init__(
        self,
        options: SearchOptions,
        refuted: Callable[[int], bool],
        enough: Callable[[int], bool],
    ) -> None:
        self._refuted, self._enough = refuted, enough
        self._shown, self._cancelled = options.progress, options.cancelled
        self._settled = False
        self.options = replace(options, progress=self._progress, cancelled=self._stop)

    def _progress(self, progress: SearchProgress) -> None:
        incumbent, bound = progress.incumbent, progress.bound
        if incumbent is not None and self._enough(incumbent):
            self._settled = True
        known = [ticks for ticks in (incumbent, bound) if ticks is not None]
        if known and self._refuted(min(known)):
            self._settled = True
        if self._shown is not None:
            self._shown(progress)

    def _stop(self) -> bool:
        return self._settled or (self._cancelled is not None and self._cancelled())
