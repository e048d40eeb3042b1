"""What solve does around a search: the superset, by another process if asked."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from msgspec import structs

from ilp_parallel.certificate import Solved
from ilp_parallel.jobs import CompleteJob
from ilp_parallel.planner import SearchOptions
from ilp_parallel.report import proof_text
from ilp_parallel.solving import SUPERSET, answer_document, solve
from tests.small_jobs import JOB, MODEL, node_with

SMALL = CompleteJob(MODEL, node_with(3.2), JOB, ())


def without_times(document: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in document.items() if name != "timing"}


def test_another_process_for_the_superset_changes_nothing() -> None:
    options = SearchOptions(space="megatron")
    alone = solve(SMALL, options, started=time.perf_counter())
    with ThreadPoolExecutor(1) as executor:
        both = solve(SMALL, options, started=time.perf_counter(), executor=executor)
    assert alone.superset is not None
    assert both.superset is not None
    assert both.superset.certificate == alone.superset.certificate
    assert alone.superset.certificate.space == SUPERSET
    assert without_times(answer_document(both)) == without_times(answer_document(alone))
    assert both.verified


def test_a_space_without_a_superset_needs_no_process() -> None:
    answer = solve(SMALL, SearchOptions(space=SUPERSET), started=time.perf_counter())
    assert answer.superset is None
    assert answer.proof == "exact"


def test_the_superset_is_left_out_if_asked() -> None:
    options = SearchOptions(space="megatron")
    started = time.perf_counter()
    alone = solve(SMALL, options, started=started, with_superset=False)
    both = solve(SMALL, options, started=started)
    assert alone.superset is None
    assert alone.result.certificate == both.result.certificate


def test_a_program_that_had_no_time_is_not_said_to_agree() -> None:
    answer = solve(SMALL, SearchOptions(space=SUPERSET), started=time.perf_counter())
    assert answer.result.confirmed
    assert "equal to interval" in proof_text(answer)
    certificate = answer.result.certificate
    alone = tuple(
        structs.replace(fate, by=fate.by[:1]) if isinstance(fate, Solved) else fate
        for fate in certificate.fates
    )
    changed = structs.replace(certificate, fates=alone)
    result = replace(answer.result, certificate=changed)
    said = proof_text(replace(answer, result=result))
    assert "equal to" not in said
    assert "no time for interval" in said
