"""Pools of processes on this machine."""

from __future__ import annotations

import multiprocessing
import signal
from concurrent.futures import ProcessPoolExecutor


def spawned(workers: int) -> ProcessPoolExecutor:
    """A pool of fresh processes that leave Ctrl-C to the one that made them.

    Forking a process with threads of a solver may hang; and a terminal tells all of its processes
    of Ctrl-C, of which only the first one knows what to do.
    """
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, context, _ignore_interrupts)


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
