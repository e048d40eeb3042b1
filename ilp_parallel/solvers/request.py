"""What is common to every run: refusals before solving, the clock, progress and cancellation."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ilp_parallel.errors import InputError
from ilp_parallel.solvers.outcome import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ilp_parallel.program import Program
    from ilp_parallel.solvers.outcome import Features, SolveOptions

POLL_INTERVAL_S = 0.02
"""How often ``cancelled`` is polled for a solver that has no callback of its own."""


def check_request(name: str, features: Features, program: Program, options: SolveOptions) -> None:
    """Refuse what a solver cannot do, before solving.

    Raises
    ------
    InputError
        ``SOLVER_FEATURE_UNSUPPORTED`` if an option asks for a feature the solver lacks;
        ``SOLVER_OPTION_INVALID`` if an option has no meaning (zero threads, a negative limit, a
        warm start of another length).
    """
    wanted = {
        "warm_start": options.warm_start is not None,
        "progress": options.progress is not None,
        "cancellation": options.cancelled is not None,
        "seed": options.seed != 0,
    }
    for feature, asked in wanted.items():
        if asked and not getattr(features, feature):
            raise InputError(
                "SOLVER_FEATURE_UNSUPPORTED",
                f"solver {name} has no {feature}",
                "use solver highs",
            )
    limit = options.time_limit_s
    if limit is not None and not limit >= 0:
        raise InputError("SOLVER_OPTION_INVALID", f"time_limit_s={limit}", "use a limit >= 0")
    if options.threads < 1:
        raise InputError("SOLVER_OPTION_INVALID", f"threads={options.threads}", "use threads >= 1")
    if not 0 <= options.seed < 2**31:
        raise InputError("SOLVER_OPTION_INVALID", f"seed={options.seed}", "use 0 <= seed < 2**31")
    start = options.warm_start
    if start is not None and start.shape != (program.column_count,):
        raise InputError(
            "SOLVER_OPTION_INVALID",
            f"warm start has shape {start.shape}, the program {program.column_count} columns",
            "give one value per column",
        )


class Monitor:
    """Clock of one run and the caller's two callbacks.

    An exception that a callback raises stops the solver and is raised again by
    :meth:`raise_pending`, never through the solver's own (native) frames.
    """

    def __init__(self, options: SolveOptions) -> None:
        self._progress = options.progress
        self._cancelled = options.cancelled
        self._limit_s = options.time_limit_s
        self._start = time.monotonic()
        self._pending: BaseException | None = None
        self.was_cancelled = False

    @property
    def watches_cancellation(self) -> bool:
        """Whether the caller gave ``cancelled``."""
        return self._cancelled is not None

    @property
    def watches_progress(self) -> bool:
        """Whether the caller gave ``progress``."""
        return self._progress is not None

    @property
    def elapsed_s(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._start

    @property
    def time_left_s(self) -> float | None:
        """Seconds left, 0 if none; None without a limit."""
        return None if self._limit_s is None else max(0.0, self._limit_s - self.elapsed_s)

    @property
    def out_of_time(self) -> bool:
        """Whether the limit has passed."""
        return self.time_left_s == 0.0

    def should_stop(self) -> bool:
        """Poll ``cancelled``; once true, always true."""
        if not self.was_cancelled and self._cancelled is not None:
            try:
                self.was_cancelled = bool(self._cancelled())
            except BaseException as error:
                self._fail(error)
        return self.was_cancelled

    def report(self, incumbent: int | None, bound: float | None) -> None:
        """Pass the incumbent's value and the dual bound on to ``progress``."""
        if self._progress is not None and self._pending is None:
            try:
                self._progress(Progress(self.elapsed_s, incumbent, bound))
            except BaseException as error:
                self._fail(error)

    def raise_pending(self) -> None:
        """Raise what a callback raised during the run, if anything."""
        if self._pending is not None:
            raise self._pending

    def _fail(self, error: BaseException) -> None:
        self._pending = error
        self.was_cancelled = True

    @contextmanager
    def polling(self, stop: Callable[[], object]) -> Iterator[None]:
        """Poll ``cancelled`` from a second thread meanwhile; ``stop`` ends the solver."""
        if self._cancelled is None:
            yield
            return
        done = threading.Event()

        def watch() -> None:
            while not done.wait(POLL_INTERVAL_S):
                if self.should_stop():
                    stop()

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()
