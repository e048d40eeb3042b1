"""What a framework is known to do besides: each fact changes what it says and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ilp_parallel.costs.activations import Keeps
from ilp_parallel.measured import conventions as known
from ilp_parallel.measured.plans import plans_of
from ilp_parallel.measured.software import MeasuredCosts, software_of
from tests.measured.tables import run_of

if TYPE_CHECKING:
    from ilp_parallel.plan import Plan


def plan(**changes: object) -> Plan:
    return plans_of(run_of(**{"tp": 4, "dp": 8, "seq_par": 0, **changes}))[0]


def costs(software: known.Software, **changes: object) -> MeasuredCosts:
    return MeasuredCosts(plan(**changes), software)


PLAIN = known.Software()


def test_frameworks_are_known_by_a_part_of_their_name() -> None:
    assert software_of("AA-Scaling (Megatron-LM derived)").all_reduces
    assert software_of("Megatron-LM 1.0") == PLAIN


def test_nothing_known_changes_nothing() -> None:
    measured, of_plan = costs(PLAIN), plan()
    from ilp_parallel.costs.model import CostModel

    model = CostModel(of_plan.model, of_plan.cluster, of_plan.job)
    assert measured.prediction() == model.terms(of_plan)


def test_a_separate_gate_reduces_once_more_unless_sequence_parallel() -> None:
    gate = known.Software(separate_gate=True)
    g = plan().configuration
    once, twice = (costs(s).layer_part(g) for s in (PLAIN, gate))
    more = twice.backward.tensor_traffic_s - once.backward.tensor_traffic_s
    layer = costs(PLAIN)._costing(g, 0)
    assert more == pytest.approx(layer.group.all_reduce_s(layer.hidden_bytes))
    assert twice.backward_s > once.backward_s
    assert twice.forward == once.forward
    parallel = plan(seq_par=1).configuration
    assert (
        costs(gate, seq_par=1).layer_part(parallel).backward
        == costs(PLAIN, seq_par=1).layer_part(parallel).backward
    )


def test_all_reduced_gradients_move_twice_as_much_under_zero_1() -> None:
    reduced, scattered = (
        costs(s).zero_part(plan().configuration) for s in (known.Software(all_reduces=True), PLAIN)
    )
    k = scattered.variants.index("1")
    assert reduced.last_backward_traffic_s[k] == 2 * scattered.last_backward_traffic_s[k]
    others = [i for i in range(len(scattered.variants)) if i != k]
    assert (
        reduced.last_backward_traffic_s[others].tolist()
        == scattered.last_backward_traffic_s[others].tolist()
    )


def test_whole_logits_cost_time_and_memory_on_the_last_stage() -> None:
    whole = known.Software(whole_logits=True)
    g = plan().configuration
    ours, theirs = (costs(s).end_work(g) for s in (PLAIN, whole))
    assert theirs.head_forward_s > ours.head_forward_s
    assert theirs.head_backward_s > ours.head_backward_s
    assert theirs.head_bytes > ours.head_bytes
    assert (
        replace(
            theirs,
            **{
                name: getattr(ours, name)
                for name in (
                    "head_forward_s",
                    "head_backward_s",
                    "head_bytes",
                    "head_transient_bytes",
                )
            },
        )
        == ours
    )


def test_what_is_kept_besides_costs_no_time() -> None:
    keeps = known.Software(keeps=Keeps(gate_copies=1, whole_norms=True, unrotated=True))
    g = plan().configuration
    ours, theirs = (costs(s).layer_part(g) for s in (PLAIN, keeps))
    assert theirs.activation_bytes[0] > ours.activation_bytes[0]
    assert (theirs.forward_s, theirs.backward_s) == (ours.forward_s, ours.backward_s)
