"""The Python interface while it searches: progress, cancellation, interrupts, time limits."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING

import pytest

from ilp_parallel import Result, SearchProgress, plan, verify
from tests.test_api import small

if TYPE_CHECKING:
    from collections.abc import Callable

OPEN_JOB = ("megatron-18.4b", "a100-40gb:4x8", 64, 2048)
"""A job whose first plan is not its best one."""


def test_progress_tells_bound_and_incumbent() -> None:
    seen: list[SearchProgress] = []
    result = small(space="mixed", progress=seen.append)
    known = [event.bound for event in seen if event.bound is not None]
    assert result.objective_ticks is not None
    assert known == sorted(known) and known[0] <= result.objective_ticks <= known[-1]
    assert [event.elapsed_s for event in seen] == sorted(event.elapsed_s for event in seen)
    assert seen[-1].incumbent == result.objective_ticks


def test_what_progress_raises_reaches_the_caller_and_interrupts_work_again() -> None:
    def fail(event: SearchProgress) -> None:
        raise LookupError("mine")

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(LookupError, match="mine"):
        small(progress=fail)
    assert signal.getsignal(signal.SIGINT) is before


def check_stopped(result: Result) -> None:
    """Stopped early, with a plan and a bound that a verifier accepts."""
    assert result.status == "feasible" and result.plan is not None and result.verified
    assert result.objective_ticks is not None and result.bound_ticks is not None
    assert result.bound_ticks < result.objective_ticks
    assert result.gap == 1 - result.bound_ticks / result.objective_ticks or result.gap
    assert verify(result) and result.answer.options.cancelled is None


class Stop:
    """Progress that acts once there is a plan that is not yet proven."""

    def __init__(self, act: Callable[[], object]) -> None:
        self.act, self.wanted = act, False

    def __call__(self, event: SearchProgress) -> None:
        if event.incumbent and event.bound and event.bound < event.incumbent and not self.wanted:
            self.wanted = True
            self.act()


def test_cancelling_leaves_the_best_plan_so_far() -> None:
    stop = Stop(lambda: None)
    check_stopped(plan(*OPEN_JOB, space="mixed", progress=stop, cancel=lambda: stop.wanted))


@pytest.fixture
def main_thread() -> None:
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("signals reach the main thread only")
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        pytest.skip("the test runner handles interrupts itself")


@pytest.mark.usefixtures("main_thread")
def test_the_first_interrupt_leaves_the_best_plan_so_far() -> None:
    stop = Stop(lambda: signal.raise_signal(signal.SIGINT))
    check_stopped(plan(*OPEN_JOB, space="mixed", progress=stop))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("main_thread")
def test_the_second_interrupt_ends_at_once() -> None:
    def twice(event: SearchProgress) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        small(progress=twice)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_programs_that_handle_interrupts_keep_their_handler() -> None:
    handler = signal.getsignal(signal.SIGINT)
    seen: list[object] = []

    def mine(number: int, frame: object) -> None:
        seen.append(number)

    signal.signal(signal.SIGINT, mine)
    try:
        small(progress=Stop(lambda: signal.raise_signal(signal.SIGINT)))
        assert signal.getsignal(signal.SIGINT) is mine
    finally:
        signal.signal(signal.SIGINT, handler)


def test_other_threads_may_plan() -> None:
    found: list[Result] = []
    thread = threading.Thread(target=lambda: found.append(small(fix="pp=2")))
    thread.start()
    thread.join()
    assert found[0].status == "optimal"


def test_a_time_limit_of_nothing_leaves_no_plan() -> None:
    result = small(time_limit_s=0)
    assert (result.status, result.plan, result.objective_ticks) == ("unknown", None, None)
    assert result.bound_ticks is not None and "unknown" in result._repr_html_()
