"""What ``simulate`` prints: a replayed plan as JSON, table and curves."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from ilp_parallel.certificate import relative_gap
from ilp_parallel.diagnosis.alternatives import plan_ticks
from ilp_parallel.report import plan_text, render
from ilp_parallel.simulation.replaying import idle_share

if TYPE_CHECKING:
    from ilp_parallel.plan import Plan
    from ilp_parallel.report import Style
    from ilp_parallel.simulation.replaying import Replay

SCHEMA = "ilp_parallel.simulate/1"
CURVE_COLUMNS = ("device_group", "time_s", "bytes")
_GIB = 1 << 30


def replay_document(plan: Plan, replayed: Replay) -> dict[str, object]:
    """The JSON of ``simulate``."""
    done, tick_s = replayed.simulation, plan.job.tick_ns * 1e-9
    busy, finish = (ticks.tolist() for ticks in idle_share(replayed))
    step = plan_ticks(plan)
    return {
        "schema": SCHEMA,
        "model": plan.model.name,
        "cluster": plan.cluster.name,
        "configuration": plan.configuration.name,
        "schedule": replayed.schedule,
        "placement": replayed.given.placement,
        "split_backward": replayed.times.weight_ticks is not None,
        "unit": "ticks",
        "tick_ns": plan.job.tick_ns,
        "objective": step,
        "step_time_s": step * tick_s,
        "simulated_step": done.step_ticks,
        "simulated_step_time_s": done.step_ticks * tick_s,
        "makespan": done.makespan_ticks,
        "makespan_bound": replayed.bound_ticks,
        "makespan_gap": relative_gap(done.makespan_ticks, replayed.bound_ticks),
        "fits": replayed.fits,
        "device_groups": [
            {
                "busy_s": busy[s] * tick_s,
                "finish_s": finish[s] * tick_s,
                "idle": 1 - busy[s] / finish[s] if finish[s] else 0.0,
                "tail_s": done.tail_ticks[s] * tick_s,
                "peak_bytes": done.memory[s].peak_bytes,
                "capacity_bytes": int(replayed.instance.capacity_bytes[s]),
            }
            for s in range(replayed.instance.stages)
        ],
    }


def replay_text(plan: Plan, replayed: Replay, style: Style) -> str:
    """The same for reading."""
    done, tick_s = replayed.simulation, plan.job.tick_ns * 1e-9
    busy, finish = (ticks.tolist() for ticks in idle_share(replayed))
    step = plan_ticks(plan)
    split = ", backwards split" if replayed.times.weight_ticks is not None else ""
    gap = relative_gap(done.makespan_ticks, replayed.bound_ticks) or 0.0
    above = 100 * (step - done.step_ticks) / done.step_ticks
    lines = [
        plan_text(plan),
        f"schedule {replayed.schedule} (placement {replayed.given.placement}{split})",
        f"simulated step {done.step_ticks * tick_s:.6f} s · objective of the plan "
        f"{step * tick_s:.6f} s ({above:+.2f} %)",
        f"pipeline part {done.makespan_ticks * tick_s:.6f} s, bound "
        f"{replayed.bound_ticks * tick_s:.6f} s, gap {100 * gap:.3g} % · fits: "
        f"{'yes' if replayed.fits else 'NO'}",
    ]
    rows = [
        (
            str(s),
            f"{busy[s] * tick_s:.4f}",
            f"{finish[s] * tick_s:.4f}",
            f"{100 * (1 - busy[s] / finish[s]) if finish[s] else 0:.2f}",
            f"{done.tail_ticks[s] * tick_s:.4f}",
            f"{done.memory[s].peak_bytes / _GIB:.2f}",
            f"{int(replayed.instance.capacity_bytes[s]) / _GIB:.2f}",
        )
        for s in range(replayed.instance.stages)
    ]
    header = ("group", "busy s", "last end s", "idle %", "tail s", "peak GiB", "usable GiB")
    return "\n".join(lines) + "\n\n" + render("device groups", header, rows, style)


def curves_csv(plan: Plan, replayed: Replay) -> str:
    """Memory of a device of every group from each time on, as CSV."""
    tick_s, text = plan.job.tick_ns * 1e-9, io.StringIO()
    text.write(",".join(CURVE_COLUMNS) + "\n")
    for group, curve in enumerate(replayed.simulation.memory):
        for ticks, held in zip(curve.times_ticks.tolist(), curve.bytes_held.tolist(), strict=True):
            text.write(f"{group},{ticks * tick_s:.9g},{held}\n")
    return text.getvalue()
