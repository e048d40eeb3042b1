"""A complete training plan: specs, configuration, and what every layer does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ilp_parallel.configuration import Configuration, Strategy
    from ilp_parallel.notebook import Printer
    from ilp_parallel.specs.cluster import ClusterSpec
    from ilp_parallel.specs.job import JobSpec
    from ilp_parallel.specs.model import ModelSpec


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything needed to predict, export, simulate or verify.

    ``sizes`` has one entry per virtual stage in model order (virtual stage ``j`` lives on pipeline
    rank ``j mod p`` as its chunk ``j div p``); ``strategies`` one per layer.
    """

    model: ModelSpec
    cluster: ClusterSpec
    job: JobSpec
    space: str
    configuration: Configuration
    sizes: tuple[int, ...]
    strategies: tuple[Strategy, ...]

    def _repr_pretty_(self, printer: Printer, cycle: bool) -> None:
        """A line where there is no HTML; ``repr`` has everything."""
        printer.text(
            f"<Plan of {self.model.name} on {self.cluster.name}: {self.configuration.name}>"
        )

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from ilp_parallel.notebook import plan_html

        return plan_html(self)
