"""Times of 1e9 ticks and memory of 1e10 bytes: float solvers must not lose the optimum."""

from __future__ import annotations

import numpy as np
import pytest

from formulations import PIPELINE
from ilp_parallel.baselines.two_level_dp import two_level_dp
from ilp_parallel.problems.pipeline import IntArray, PipelineInstance
from ilp_parallel.solvers.outcome import SolveOptions
from ilp_parallel.solvers.registry import SOLVERS, get_solver


def vector(*values: int) -> IntArray:
    return np.array(values, dtype=np.int64)


def instance() -> PipelineInstance:
    """HiGHS 1.16.0 claimed 57,663,846,558 here while maxima had bounds of 1e10."""
    return PipelineInstance(
        stages=4,
        chunks=1,
        microbatches=4,
        schedule="1f1b",
        layer_class=np.zeros(10, dtype=np.int64),
        strategy_names=("a", "b", "c", "d"),
        allowed=np.ones((1, 4), dtype=np.bool_),
        forward_ticks=vector(852134496, 12292698, 935272365, 658897658)[None],
        backward_ticks=vector(578942407, 384041585, 1679619659, 1866621092)[None],
        tail_ticks=vector(45261, 364245, 193917, 555384)[None],
        state_bytes=vector(9720333788, 4404705330, 7642178630, 327572217)[None],
        activation_bytes=vector(2483336337, 2498776561, 373999657, 780692890)[None],
        transient_bytes=vector(8051593391, 28976379064, 29665428638, 17452151258)[None],
        fixed_forward_ticks=vector(99595971, 761447415, 233970602, 710658855),
        fixed_backward_ticks=vector(764958317, 948023877, 3925380, 840521951),
        fixed_tail_ticks=vector(55286, 677079, 447069, 760160),
        fixed_bytes=vector(97293604, 122079977, 791486071, 590169394),
        cut_ticks=vector(80335506, 99616869, 60002892),
        capacity_bytes=vector(38509671725, 35158109307, 31806546888, 28454984470),
        min_layers=vector(1, 1, 1, 1),
        max_layers=vector(8, 7, 2, 8),
        in_flight=tuple(vector(alive)[None] for alive in (4, 3, 2, 1)),
    )


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("formulation", ["interval", "counts"])
def test_every_solver_finds_the_optimum_of_the_dynamic_program(
    formulation: str, solver: str
) -> None:
    optimum = two_level_dp(instance())
    assert optimum is not None
    outcome = get_solver(solver)(PIPELINE[formulation].build(instance()), SolveOptions())
    if solver == "cbc" and outcome.status == "unknown":  # it may give up, but not be wrong
        assert outcome.objective is None
    else:
        assert outcome.objective == optimum.numerator
