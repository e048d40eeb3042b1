r"""Bounds on the simulated time of a pipeline, each proven in ``docs/time_model.md``.

All are about the pipeline part, without tails, in the ticks of
:class:`~ilp_parallel.simulate.StageTimes`: forward :math:`F_s`, backward :math:`B_s`, one-way delay
:math:`c_s` of the cut ``s | s+1`` (:math:`c_{-1} = c_{p-1} = 0`), ``m`` microbatches. Python
integers throughout, so nothing rounds or overflows. With

.. math::
    S = \sum_j (F_j + B_j + 2 c_j), \qquad
    W_{st} = \sum_{j=s}^{t} (F_j + B_j) + 2 \sum_{j=s}^{t-1} c_j, \qquad R_s = W_{s,p-1},

``S - R_s`` is the way from the start to stage ``s`` and from there to the end, and ``R_s`` the
round trip from ``s`` to the last stage and back.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from ilp_parallel.schedules import placed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ilp_parallel.problems.pipeline import Schedule
    from ilp_parallel.simulate import StageTimes


def lower_bound(times: StageTimes, schedule: Schedule, microbatches: int) -> int:
    """Best bound here for the schedule's order; exact for ``gpipe``."""
    if schedule == "gpipe":
        return gpipe_makespan(times, microbatches)
    bound = work_bound(times, microbatches)
    if schedule == "1f1b":
        in_flight = [min(microbatches, times.stages - s) for s in range(times.stages)]
        bound = max(
            bound,
            in_flight_bound(times, microbatches, in_flight),
            zigzag_bound(times, microbatches),
        )
    return bound


def work_bound(times: StageTimes, microbatches: int) -> int:
    r"""Any schedule, any number of chunks: the work of one device group, and the way to it.

    With sums over the virtual stages of device group ``s`` in any placement,
    :math:`LB_1 = \max(S, \max_s [\sum_{j<s} (F_j + B_j + 2 c_j) + m \sum_{j \in s} (F_j + B_j)])`.
    Where backwards are split, :math:`W_0` is added to all of this, and
    :math:`\sum_{j<s} (F_j + c_j) + m \sum_{j \in s} (F_j + B_j + W_j)` is another bound.
    """
    work, cuts = _work_and_cuts(times)
    way = list(accumulate((w + 2 * c for w, c in zip(work, cuts, strict=True)), initial=0))
    forward = times.forward_ticks.tolist()
    into = list(accumulate((f + c for f, c in zip(forward, cuts, strict=True)), initial=0))
    split = times.weight_ticks is not None
    weight = [0] * len(work) if times.weight_ticks is None else times.weight_ticks.tolist()
    best = way[-1] + weight[0]
    for s, own in enumerate(placed(times.placement, times.stages, times.chunks).tolist()):
        busy, weights = sum(work[j] for j in own), sum(weight[j] for j in own)
        best = max(best, way[s] + microbatches * busy + weight[0])
        if split:
            best = max(best, into[s] + microbatches * (busy + weights))
    return best


def in_flight_bound(times: StageTimes, microbatches: int, in_flight: Sequence[int]) -> int:
    r"""Any schedule (one chunk) that holds at most ``in_flight[s]`` microbatches on stage ``s``.

    :math:`LB_2 = \max_s \max(S + (m - w_s)(F_s + B_s) + (w_s - 1) \max(F_s, B_s),\;
    S - R_s + \lceil m R_s / w_s \rceil)`.
    """
    _require_one_chunk(times)
    whole, round_trip = _round_trips(times)
    best = whole
    for s, trip in enumerate(round_trip):
        forward, backward = int(times.forward_ticks[s]), int(times.backward_ticks[s])
        held = min(microbatches, in_flight[s])
        filled = (microbatches - held) * (forward + backward)
        best = max(
            best,
            whole + filled + (held - 1) * max(forward, backward),
            whole - trip - (-microbatches * trip // held),
        )
    return best


def zigzag_bound(times: StageTimes, microbatches: int) -> int:
    r"""The 1F1B order (one chunk): steady cycles between any two stages ``s <= t``, delays paid.

    In the steady state every ``t - s + 1`` microbatches cost stage ``s`` at least
    :math:`W_{st}`. With :math:`\ell = t - s + 1` and :math:`M_s = \max_{j \le s} \max(F_j, B_j)`,
    for ``m > p - s``,

    .. math::
        LB_3 = \max_{s \le t} \max(
            & S + (p - t - 1) M_s + k W_{st} + r (F_s + B_s), \;
              k \ell + r = m - p + t, \\
            & S + R_s + k' W_{st} + r' (F_s + B_s), \; k' \ell + r' = m - 1 - p + s).
    """
    _require_one_chunk(times)
    stages, m = times.stages, microbatches
    work, cuts = _work_and_cuts(times)
    way = list(accumulate((w + 2 * c for w, c in zip(work, cuts, strict=True)), initial=0))
    whole, best, slowest = way[-1], way[-1], 0
    for s in range(stages):
        slowest = max(slowest, int(times.forward_ticks[s]), int(times.backward_ticks[s]))
        if m <= stages - s:
            continue
        for t in range(s, stages):
            cycle = way[t] + work[t] - way[s]
            k, r = divmod(m - stages + t, t - s + 1)
            best = max(best, whole + (stages - t - 1) * slowest + k * cycle + r * work[s])
            k, r = divmod(m - 1 - stages + s, t - s + 1)
            best = max(best, 2 * whole - way[s] + k * cycle + r * work[s])
    return best


def one_f_one_b_upper_bound(times: StageTimes, microbatches: int) -> int:
    r"""The 1F1B order (one chunk): the objective's pipeline part plus what an uneven fill can add.

    :math:`UB = \sum_s (F'_s + B'_s) + (m-1) C + \delta` with :math:`F'_s = F_s + c_s`,
    :math:`B'_s = B_s + c_{s-1}`, :math:`C = \max_s (F'_s + B'_s)` and :math:`\delta = \max(0,
    \max_s [(w_s - 1) \max_{j \le s} F'_j - \sum_{j>s} (F'_j + B'_j)])`, :math:`w_s = \min(m, p-s)`.
    """
    _require_one_chunk(times)
    work, cuts = _work_and_cuts(times)
    forward = [int(f) + c for f, c in zip(times.forward_ticks, cuts, strict=True)]
    busy = [w + out + into for w, out, into in zip(work, cuts, [0, *cuts[:-1]], strict=True)]
    late, slowest, ahead = 0, 0, sum(busy)
    for s in range(times.stages):
        slowest, ahead = max(slowest, forward[s]), ahead - busy[s]
        late = max(late, (min(microbatches, times.stages - s) - 1) * slowest - ahead)
    return sum(busy) + (microbatches - 1) * max(busy) + late


def gpipe_makespan(times: StageTimes, microbatches: int) -> int:
    r"""The GPipe order (one chunk), exactly: :math:`S + (m - 1)(\max_s F_s + \max_s B_s)`."""
    _require_one_chunk(times)
    whole, _ = _round_trips(times)
    slowest = int(times.forward_ticks.max()) + int(times.backward_ticks.max())
    return whole + (microbatches - 1) * slowest


def _work_and_cuts(times: StageTimes) -> tuple[list[int], list[int]]:
    """F + B and the outgoing delay of every virtual stage, as Python integers."""
    work = (times.forward_ticks + times.backward_ticks).tolist()
    return work, [*times.cut_ticks.tolist(), 0]


def _round_trips(times: StageTimes) -> tuple[int, list[int]]:
    """S and R_s of every stage."""
    work, cuts = _work_and_cuts(times)
    legs = [w + 2 * c for w, c in zip(work, cuts, strict=True)]
    backwards = list(accumulate(reversed(legs)))
    return backwards[-1], backwards[::-1]


def _require_one_chunk(times: StageTimes) -> None:
    if times.chunks != 1:
        raise ValueError(f"the bound is for one chunk per device group, not {times.chunks}")
