"""The instance of a plan is what the event simulator plays."""

from __future__ import annotations

import numpy as np
import pytest

from ilp_parallel.jobs import JobRequest, complete_job
from ilp_parallel.planner import SearchOptions, search
from ilp_parallel.planner_schedule import periodic_schedule
from ilp_parallel.problems.schedule import evaluate
from ilp_parallel.scheduling.bounds import lower_bounds
from ilp_parallel.scheduling.from_plan import instance_of_plan
from ilp_parallel.scheduling.named import named_schedules
from ilp_parallel.scheduling.placements import StageNumbers, instance_of
from ilp_parallel.simulation.replaying import replay
from ilp_parallel.spaces import Pins


@pytest.mark.parametrize("name", ["zb-h1", "1f1b"])
def test_named_schedules_take_as_long_and_as_much_as_the_simulator_says(name: str) -> None:
    request = JobRequest(model="gpt2-xl", cluster="v100-16gb:1x4", batch=16, sequence=1024)
    job = complete_job(request)
    options = SearchOptions(space="megatron", schedules=("1f1b",), pins=Pins.parse(("pp=4",), ()))
    plan = search(job.model, job.cluster, job.job, options).plan
    assert plan is not None
    instance = instance_of_plan(plan, fused=name == "1f1b")
    played = replay(plan, name)  # type: ignore[arg-type]
    (named,) = (n for n in named_schedules(instance) if n.name == name)
    assert named.evaluation.makespan_ticks == played.simulation.makespan_ticks
    for device, curve in enumerate(played.simulation.memory):
        standing, peak = int(curve.bytes_held[-1]), named.evaluation.memory[device].peak
        left = int(played.instance.capacity_bytes[device]) - curve.peak_bytes
        assert left >= int(instance.capacity[device]) - peak
        assert curve.peak_bytes >= standing + peak
    starts = np.sort(played.simulation.timelines[0].start_ticks)
    ours = named.solution.start_ticks[:, instance.pair_stage == 0]
    assert np.array_equal(np.sort(ours.ravel()), starts)


def test_a_steady_state_serves_any_number_of_microbatches() -> None:
    """Within the bounds, and as good as ZB-H1 where that is best."""
    for capacity in (4, 8, 16):
        instance = instance_of(StageNumbers(10, 11, 8, 1), 4, 60, capacity)
        found = periodic_schedule(instance, float("inf"))
        assert found is not None
        evaluation = evaluate(instance, found)
        assert evaluation.feasible
        assert evaluation.makespan_ticks is not None
        assert evaluation.makespan_ticks >= lower_bounds(instance)[0].ticks
