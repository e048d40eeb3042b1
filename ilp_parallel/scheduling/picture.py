"""A schedule as SVG: what every device does when, and what it holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ilp_parallel.problems.schedule import device_orders, operation_ticks

if TYPE_CHECKING:
    from ilp_parallel.problems.schedule import Evaluation, ScheduleInstance, ScheduleSolution

_COLOURS = ("#4878a8", "#e08a3c", "#6aa56a", "#999999")  # F, B, W, transfers
_WIDTH, _LANE, _LEFT, _TOP = 1200.0, 18.0, 48.0, 28.0
_MOST_LABELLED = 2000
"""Operations up to which microbatches are written into the boxes (chosen)."""


def gantt_svg(
    instance: ScheduleInstance, solution: ScheduleSolution, evaluation: Evaluation, title: str
) -> str:
    """A lane and a memory curve per device; memory is drawn as a share of the capacity."""
    makespan = max(evaluation.makespan_ticks or 0, 1)
    scale = (_WIDTH - _LEFT - 8) / makespan
    step = 2 * _LANE + 6
    height = _TOP + step * instance.devices + 24
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:g} {height:g}" '
        'font-family="sans-serif" font-size="10">',
        f'<rect width="{_WIDTH:g}" height="{height:g}" fill="white"/>',
        f'<text x="{_LEFT:g}" y="16" font-size="12">{_escaped(title)}</text>',
    ]
    for d, order in enumerate(device_orders(instance, solution)):
        y = _TOP + d * step
        parts.append(f'<text x="4" y="{y + 12:g}">dev {d}</text>')
        parts += _boxes(instance, solution, order, y, scale)
        parts.append(_curve(instance, evaluation, d, y + _LANE + 1, scale, makespan))
    x, y = _LEFT, height - 8
    for name, colour in zip(("F", "B", "W", "memory"), _COLOURS, strict=True):
        parts.append(f'<rect x="{x:g}" y="{y - 8:g}" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{x + 14:g}" y="{y:g}">{name}</text>')
        x += 60
    return "\n".join([*parts, "</svg>"]) + "\n"


def _boxes(
    instance: ScheduleInstance,
    solution: ScheduleSolution,
    order: list[int],
    y: float,
    scale: float,
) -> list[str]:
    """The operations of one device."""
    ticks = operation_ticks(instance, solution)
    first, stage = instance.first_pair, instance.pair_stage
    labelled = instance.kinds * instance.pairs <= _MOST_LABELLED
    found = []
    for op in order:
        kind, pair = divmod(op, instance.pairs)
        x = _LEFT + scale * float(solution.start_ticks[kind, pair])
        width = max(scale * float(ticks[kind, pair]) - 0.4, 0.2)
        found.append(
            f'<rect x="{x:.2f}" y="{y:g}" width="{width:.2f}" height="{_LANE - 2:g}" '
            f'fill="{_COLOURS[kind]}"/>'
        )
        if labelled and width > 8:
            number = pair - int(first[stage[pair]])
            found.append(f'<text x="{x + 1:.2f}" y="{y + 11:g}" fill="white">{number}</text>')
    return found


def _curve(
    instance: ScheduleInstance, evaluation: Evaluation, d: int, y: float, scale: float, end: int
) -> str:
    """Memory of one device as a filled step curve."""
    use, room = evaluation.memory[d], max(int(instance.capacity[d]), 1)
    low = y + _LANE
    path = [f"M{_LEFT:g} {low:g}"]
    for when, held in zip(use.times_ticks.tolist(), use.held.tolist(), strict=True):
        level = low - (_LANE - 1) * held / room
        path.append(f"H{_LEFT + scale * when:.2f}V{level:.2f}")
    path.append(f"H{_LEFT + scale * end:.2f}V{low:g}Z")
    return f'<path d="{"".join(path)}" fill="{_COLOURS[3]}" fill-opacity="0.5"/>'


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
