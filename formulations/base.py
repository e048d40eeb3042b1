"""What every formulation offers: it refuses, builds or decodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ilp_parallel.problems.pipeline import PipelineInstance, PipelineSolution
    from ilp_parallel.program import Program


class Formulation(Protocol):
    """A way to write pipeline instances as integer programs.

    The objective of the Program is the numerator of the instance's objective.
    """

    @property
    def name(self) -> str:
        """Name in the registry."""
        ...

    @property
    def reference(self) -> str:
        """Where the idea comes from."""
        ...

    def refuses(self, instance: PipelineInstance) -> str | None:
        """None if the formulation applies; otherwise ``REASON_CODE: sentence``."""
        ...

    def build(self, instance: PipelineInstance, cutoff: int | None = None) -> Program:
        """The Program.

        With a cutoff only solutions with a numerator below it need to be kept: the optimum is
        unchanged if it is below the cutoff; otherwise the Program may be infeasible.
        """
        ...

    def decode(
        self,
        instance: PipelineInstance,
        values: npt.NDArray[np.int64],
        cutoff: int | None = None,
    ) -> PipelineSolution:
        """The solution a vector of the Program built with the same cutoff stands for."""
        ...
