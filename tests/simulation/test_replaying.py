"""Plans under other schedules and given orders: times, memory, and what is refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from ilp_parallel.costs.model import CostModel
from ilp_parallel.errors import InputError
from ilp_parallel.jobs import CompleteJob
from ilp_parallel.plan_words import plan_from_words
from ilp_parallel.playing import play
from ilp_parallel.schedules import WEIGHT
from ilp_parallel.simulation.order_files import order_document, read_order, words_of
from ilp_parallel.simulation.replaying import REPLAYABLE, Replayable, idle_share, replay
from tests.small_jobs import JOB, MODEL, NODE

if TYPE_CHECKING:
    from pathlib import Path

    from ilp_parallel.plan import Plan

P, M = 4, 8
OF_CHUNKS: dict[int, tuple[Replayable, ...]] = {
    1: ("1f1b", "gpipe", "zb-h1"),
    2: ("interleaved", "zb-v"),
}


def plan_with(words: str) -> Plan:
    return plan_from_words(CompleteJob(MODEL, NODE, JOB, ()), words)


def one_chunk() -> Plan:
    return plan_with(f"pp={P}")


def two_chunks() -> Plan:
    return plan_with("pp=2 tp=2 vpp=2")


@pytest.mark.parametrize("words", [f"pp={P}", "pp=2 tp=2 vpp=2", f"pp={P} schedule=gpipe"])
def test_own_schedule_is_that_of_the_plan(words: str) -> None:
    plan = plan_with(words)
    ours = replay(plan).simulation
    theirs = play(CostModel(plan.model, plan.cluster, plan.job), plan).simulation
    assert (ours.step_ticks, ours.makespan_ticks) == (theirs.step_ticks, theirs.makespan_ticks)
    peaks = [[curve.peak_bytes for curve in s.memory] for s in (ours, theirs)]
    assert peaks[0] == peaks[1]


@pytest.mark.parametrize("schedule", REPLAYABLE)
def test_work_is_the_same_under_every_schedule_and_bounds_hold(schedule: Replayable) -> None:
    plan = one_chunk() if schedule in OF_CHUNKS[1] else two_chunks()
    replayed, own = replay(plan, schedule), replay(plan)
    assert idle_share(replayed)[0].sum() == idle_share(own)[0].sum()
    assert replayed.bound_ticks <= replayed.simulation.makespan_ticks
    for curve in replayed.simulation.memory:
        assert curve.bytes_held[-1] <= curve.bytes_held.min()  # everything was given back


def test_splitting_fills_bubbles_and_gpipe_keeps_all_alive() -> None:
    makespan = {s: replay(one_chunk(), s).simulation.makespan_ticks for s in OF_CHUNKS[1]}
    assert makespan["zb-h1"] < makespan["1f1b"]
    peak = {
        s: [curve.peak_bytes for curve in replay(one_chunk(), s).simulation.memory]
        for s in OF_CHUNKS[1]
    }
    assert all(g >= f for g, f in zip(peak["gpipe"], peak["1f1b"], strict=True))
    assert peak["gpipe"][-1] > peak["1f1b"][-1]
    assert peak["zb-h1"][-1] > peak["1f1b"][-1]  # delayed W keeps inputs alive
    assert peak["zb-h1"][0] == peak["1f1b"][0]


def test_recomputed_activations_stay_until_their_weight_gradient() -> None:
    """With full recomputation what W needs is rebuilt by B and kept, so more is alive, not less."""
    plan = plan_with(f"pp={P} recompute=full")
    last = replay(plan, "zb-h1").simulation.memory[-1]
    whole = replay(plan, "1f1b").simulation.memory[-1]
    kept = replay(one_chunk(), "zb-h1").instance
    stored = int(kept.activation_bytes.max())
    assert last.peak_bytes - whole.peak_bytes >= (P - 1) * stored


def test_both_ends_share_a_device_in_a_v() -> None:
    plan = two_chunks()
    loop, folded = replay(plan).instance, replay(plan, "zb-v").instance
    assert folded.fixed_bytes[0] > loop.fixed_bytes[0]
    assert folded.fixed_bytes[1] < loop.fixed_bytes[1]
    assert folded.fixed_tail_ticks[1] == 0
    assert folded.cut_ticks.tolist() == [loop.cut_ticks[0], 0, loop.cut_ticks[0]]


@pytest.mark.parametrize("schedule", REPLAYABLE)
def test_a_saved_order_runs_as_the_schedule_did(schedule: Replayable, tmp_path: Path) -> None:
    plan = one_chunk() if schedule in OF_CHUNKS[1] else two_chunks()
    g, first = plan.configuration, replay(plan, schedule)
    path = tmp_path / "order.json"
    given = first.given
    path.write_text(json.dumps(order_document(given.orders, given.placement, g.chunks)))
    again = replay(plan, given=read_order(str(path), g.pipeline, g.chunks, g.microbatches))
    assert again.schedule == "given"
    assert again.simulation.finish_ticks == first.simulation.finish_ticks
    assert [c.peak_bytes for c in again.simulation.memory] == [
        c.peak_bytes for c in first.simulation.memory
    ]


def test_schedules_of_other_chunks_are_refused() -> None:
    for plan, wrong in ((one_chunk(), OF_CHUNKS[2]), (two_chunks(), OF_CHUNKS[1])):
        for schedule in wrong:
            with pytest.raises(InputError) as caught:
                replay(plan, schedule)
            assert caught.value.code == "SCHEDULE_NEEDS_CHUNKS"


# --- files of orders ------------------------------------------------------------------------------

GOOD = [["F0", "F1", "B0", "B1"], ["F0", "B0", "F1", "B1"]]


def code_of(tmp_path: Path, devices: object, chunks: int = 1, **more: object) -> str:
    path = tmp_path / "order.json"
    document = {"schema": "ilp_parallel.order/1", "devices": devices, **more}
    path.write_text(json.dumps(document))
    with pytest.raises(InputError) as caught:
        read_order(str(path), 2, chunks, 2)
    return caught.value.code


def test_a_given_order_is_read(tmp_path: Path) -> None:
    path = tmp_path / "order.json"
    path.write_text(json.dumps({"schema": "ilp_parallel.order/1", "devices": GOOD}))
    given = read_order(str(path), 2, 1, 2)
    assert [words_of(order, 1) for order in given.orders] == GOOD
    assert given.placement == "loop"
    assert given.orders[0].weight is None
    split = [["F0", "B0", "W0", "F1", "B1", "W1"]] * 2
    path.write_text(json.dumps({"schema": "ilp_parallel.order/1", "devices": split}))
    kinds = read_order(str(path), 2, 1, 2).orders[1].kind
    assert np.flatnonzero(kinds == WEIGHT).tolist() == [2, 5]


def test_what_is_wrong_with_an_order_is_named(tmp_path: Path) -> None:
    assert code_of(tmp_path, "F0") == "NOT_AN_ORDER"
    assert code_of(tmp_path, GOOD, schema="other") == "NOT_AN_ORDER"
    assert code_of(tmp_path, GOOD, placement="w") == "NOT_AN_ORDER"
    assert code_of(tmp_path, GOOD, placement="v") == "ORDER_NOT_OF_PLAN"
    assert code_of(tmp_path, GOOD[:1]) == "ORDER_NOT_OF_PLAN"
    assert code_of(tmp_path, [["F0", "X1"], GOOD[1]]) == "BAD_OPERATION"
    assert code_of(tmp_path, [["F0", 1], GOOD[1]]) == "BAD_OPERATION"
    assert code_of(tmp_path, [["F2"], GOOD[1]]) == "ORDER_NOT_OF_PLAN"
    assert code_of(tmp_path, [["F0.1"], GOOD[1]]) == "ORDER_NOT_OF_PLAN"
    assert code_of(tmp_path, [["F0", "F0"], GOOD[1]]) == "ORDER_INCOMPLETE"
    assert code_of(tmp_path, [["B0", "F0"], GOOD[1]]) == "ORDER_INCOMPLETE"
    assert code_of(tmp_path, [["F0", "B0", "F1"], GOOD[1]]) == "ORDER_INCOMPLETE"
    assert code_of(tmp_path, [[*GOOD[0], "W0"], GOOD[1]]) == "ORDER_INCOMPLETE"


def test_a_deadlock_is_refused_with_what_waits(tmp_path: Path) -> None:
    plan = plan_with("pp=2 tp=2 mbs=4")
    assert plan.configuration.microbatches == 2
    path = tmp_path / "order.json"
    crossed = [["F0", "B0", "F1", "B1"], ["F1", "B1", "F0", "B0"]]
    path.write_text(json.dumps({"schema": "ilp_parallel.order/1", "devices": crossed}))
    with pytest.raises(InputError, match="group 0 at B0, group 1 at F1") as caught:
        replay(plan, given=read_order(str(path), 2, 1, 2))
    assert caught.value.code == "ORDER_DEADLOCKS"
