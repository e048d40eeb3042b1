"""The anytime curve of a search: bound and incumbent over time, from its progress reports."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ilp_parallel.planner import SearchProgress
    from ilp_parallel.solving import Answer

COLUMNS = ("space", "elapsed_s", "bound_s", "incumbent_s", "open_configurations")


@dataclass(frozen=True, slots=True)
class Moment:
    """Where a search stood; bound and incumbent in ticks, None where there was none yet.

    The bound is that of the whole space, hence never above the incumbent.
    """

    elapsed_s: float
    bound: int | None
    incumbent: int | None
    open_configurations: int


@dataclass(frozen=True, slots=True)
class AnytimeCurve:
    """Moments of one search at which something had changed; the last is its end."""

    space: str
    tick_s: float
    moments: tuple[Moment, ...]


class Recorder:
    """Takes the progress reports of one search after another.

    A search's clock starts at zero, so a report that is earlier than the one before it begins the
    next search.
    """

    def __init__(self) -> None:
        self._searches: list[list[Moment]] = []
        self._last_s = float("inf")

    def __call__(self, progress: SearchProgress) -> None:
        """Keep a report if it says something new."""
        if progress.elapsed_s < self._last_s:
            self._searches.append([])
        self._last_s = progress.elapsed_s
        moments = self._searches[-1]
        best = [t for t in (progress.bound, progress.incumbent) if t is not None]
        moment = Moment(
            progress.elapsed_s,
            min(best, default=None),
            progress.incumbent,
            progress.open_configurations,
        )
        if not moments or (moments[-1].bound, moments[-1].incumbent) != (
            moment.bound,
            moment.incumbent,
        ):
            moments.append(moment)

    def curves(self, answer: Answer) -> tuple[AnytimeCurve, ...]:
        """The curves of an answer's searches, each closed by what the search ended with."""
        results = [r for r in (answer.superset, answer.result) if r is not None]
        recorded = self._searches[-len(results) :]
        recorded = [[]] * (len(results) - len(recorded)) + recorded
        curves = []
        for result, moments in zip(results, recorded, strict=True):
            certificate = result.certificate
            left = result.fates.get("open", 0)
            end = Moment(
                result.search_s, certificate.bound_ticks, certificate.objective_ticks, left
            )
            tick_s = certificate.job.tick_ns * 1e-9
            curves.append(AnytimeCurve(certificate.space, tick_s, (*moments, end)))
        return tuple(curves)


def curves_csv(curves: tuple[AnytimeCurve, ...]) -> str:
    """One row a moment; bound and incumbent as step times in seconds, empty where there is none."""
    text = io.StringIO()
    text.write(",".join(COLUMNS) + "\n")

    def seconds(ticks: int | None, tick_s: float) -> str:
        return "" if ticks is None else f"{ticks * tick_s:.9g}"

    for curve in curves:
        for moment in curve.moments:
            bound, best = (seconds(t, curve.tick_s) for t in (moment.bound, moment.incumbent))
            text.write(
                f"{curve.space},{moment.elapsed_s:.6f},{bound},{best},{moment.open_configurations}\n"
            )
    return text.getvalue()
