"""Why this plan and not that one: the best plan with another choice, term by term against it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ilp_parallel.costs.model import CostModel
from ilp_parallel.errors import InputError
from ilp_parallel.instances import InstanceBuilder
from ilp_parallel.planner import search
from ilp_parallel.predicting import step_shares
from ilp_parallel.problems.pipeline import PipelineSolution, evaluate
from ilp_parallel.report import plan_text, render
from ilp_parallel.spaces import Pins, get_space

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ilp_parallel.costs.breakdown import Prediction
    from ilp_parallel.plan import Plan
    from ilp_parallel.planner import SearchOptions, SearchResult
    from ilp_parallel.report import Style

SCHEMA = "ilp_parallel.explain-plan/1"
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Contrast:
    """Two plans of one job. Seconds by term, in the order of ``terms``; differences are exact."""

    terms: tuple[str, ...]
    ours_s: tuple[float, ...]
    theirs_s: tuple[float, ...]
    ours_ticks: int
    theirs_ticks: int
    ours_bytes: float  # device peak of the fullest device
    theirs_bytes: float


@dataclass(frozen=True, slots=True)
class Alternative:
    """The best plan with another choice; ``plan`` and ``contrast`` are None where there is none."""

    choice: str  # in the words of the options
    status: str  # of the search, or the reason code of the rule that leaves no configuration
    plan: Plan | None
    contrast: Contrast | None


def plan_ticks(plan: Plan) -> int:
    """Step time of any plan in the ticks of its job, rounded as every search rounds."""
    costs = CostModel(plan.model, plan.cluster, plan.job)
    instance = InstanceBuilder(costs, get_space("mixed"), Pins()).unfolded(plan.configuration)
    index = {strategy: k for k, strategy in enumerate(costs.strategies(plan.configuration))}
    solution = PipelineSolution(plan.sizes, tuple(index[s] for s in plan.strategies))
    return evaluate(instance, solution).objective_ticks


def contrast(ours: Plan, theirs: Plan) -> Contrast:
    """Where the time of two plans goes."""
    first, second = _prediction(ours), _prediction(theirs)
    mine, other = _seconds(ours, first), _seconds(theirs, second)
    terms = tuple(dict.fromkeys((*mine, *other)))
    return Contrast(
        terms=terms,
        ours_s=tuple(mine.get(term, 0.0) for term in terms),
        theirs_s=tuple(other.get(term, 0.0) for term in terms),
        ours_ticks=plan_ticks(ours),
        theirs_ticks=plan_ticks(theirs),
        ours_bytes=first.device_bytes,
        theirs_bytes=second.device_bytes,
    )


def _prediction(plan: Plan) -> Prediction:
    return CostModel(plan.model, plan.cluster, plan.job).terms(plan)


def _seconds(plan: Plan, prediction: Prediction) -> dict[str, float]:
    """Seconds of the step by term; what a microbatch and a step have alike is told apart."""
    found: dict[str, float] = {}
    for share in step_shares(plan.configuration, prediction):
        name = share.term if share.part != "once per step" else f"{share.term}, once"
        found[name] = found.get(name, 0.0) + share.seconds
    return found


def best_with(plan: Plan, options: SearchOptions, pins: Pins, choice: str) -> Alternative:
    """The optimum of the plan's job under further pins."""
    merged = Pins(
        {**options.pins.fixed, **pins.fixed},
        {
            key: (*options.pins.forbidden.get(key, ()), *pins.forbidden.get(key, ()))
            for key in {**options.pins.forbidden, **pins.forbidden}
        },
    )
    try:
        found: SearchResult = search(
            plan.model, plan.cluster, plan.job, replace(options, pins=merged)
        )
    except InputError as error:
        return Alternative(choice, f"impossible ({error.code})", None, None)
    if found.plan is None:
        return Alternative(choice, found.status, None, None)
    return Alternative(choice, found.status, found.plan, contrast(plan, found.plan))


def every_other(
    plan: Plan, options: SearchOptions, say: Callable[[str], None]
) -> Iterable[Alternative]:
    """For each decision of the plan the best plan that decides otherwise."""
    for key, values in decisions_of(plan).items():
        choice = f"{key} other than {'/'.join(values)}"
        say(choice)
        yield best_with(plan, options, Pins({}, {key: values}), choice)


def decisions_of(plan: Plan) -> dict[str, tuple[str, ...]]:
    """What a plan decided, in the words of ``--fix``; several values where layers differ."""
    g = plan.configuration
    found = {
        "pp": str(g.pipeline),
        "tp": str(g.tensor),
        "cp": str(g.context),
        "dp": str(g.data),
        "mbs": str(g.microbatch),
        "vpp": str(g.chunks),
    }
    decided = {key: (value,) for key, value in found.items()}
    if g.tensor > 1:
        decided["sp"] = ("on" if g.sequence_parallel else "off",)
    zeros = dict.fromkeys(strategy.zero for strategy in plan.strategies)
    recomputed = dict.fromkeys("+".join(s.recompute) or "none" for s in plan.strategies)
    return {**decided, "zero": tuple(zeros), "recompute": tuple(recomputed)}


def alternatives_document(plan: Plan, found: list[Alternative], space: str) -> dict[str, object]:
    """The JSON of ``explain`` for a plan."""
    tick_s = plan.job.tick_ns * 1e-9
    return {
        "schema": SCHEMA,
        "model": plan.model.name,
        "cluster": plan.cluster.name,
        "space": space,
        "configuration": plan.configuration.name,
        "step_time_s": plan_ticks(plan) * tick_s,
        "alternatives": [_alternative_document(item, tick_s) for item in found],
    }


def _alternative_document(item: Alternative, tick_s: float) -> dict[str, object]:
    c = item.contrast
    if item.plan is None or c is None:
        return {"choice": item.choice, "status": item.status, "configuration": None}
    rows = zip(c.terms, c.ours_s, c.theirs_s, strict=True)
    return {
        "choice": item.choice,
        "status": item.status,
        "configuration": item.plan.configuration.name,
        "stages": list(item.plan.sizes),
        "step_time_s": c.theirs_ticks * tick_s,
        "cost_ticks": c.theirs_ticks - c.ours_ticks,
        "cost": (c.theirs_ticks - c.ours_ticks) / c.ours_ticks,
        "device_bytes": c.theirs_bytes,
        "plan_device_bytes": c.ours_bytes,
        "terms_s": {term: {"plan": ours, "other": theirs} for term, ours, theirs in rows},
    }


def alternatives_text(plan: Plan, found: list[Alternative], space: str, style: Style) -> str:
    """One alternative term by term, or several as a table of costs."""
    tick_s = plan.job.tick_ns * 1e-9
    lines = [f"{plan_text(plan)}\nstep time {plan_ticks(plan) * tick_s:.6f} s · space {space}"]
    if len(found) > 1:
        header = ("choice", "step time s", "cost", "best plan with it")
        return (
            "\n".join(lines)
            + "\n\n"
            + render(
                "the best plan with each decision taken otherwise",
                header,
                [_cost_row(item, tick_s) for item in found],
                style,
            )
        )
    (item,) = found
    if item.plan is None or item.contrast is None:
        return "\n".join(lines) + f"\nwith {item.choice}: {item.status}, no plan\n"
    return (
        "\n".join([*lines, *_one(item, tick_s)])
        + "\n\n"
        + contrast_table(item.contrast, ("plan", item.choice), style)
    )


def _one(item: Alternative, tick_s: float) -> list[str]:
    assert item.plan is not None and item.contrast is not None
    c = item.contrast
    change = c.theirs_ticks - c.ours_ticks
    return [
        f"best with {item.choice} ({item.status}): {plan_text(item.plan)}",
        f"step time {c.theirs_ticks * tick_s:.6f} s: {change * tick_s:+.6f} s, "
        f"{100 * change / c.ours_ticks:+.2f} %",
    ]


def _cost_row(item: Alternative, tick_s: float) -> tuple[str, ...]:
    if item.plan is None or item.contrast is None:
        return item.choice, "-", item.status, ""
    c = item.contrast
    cost = f"{100 * (c.theirs_ticks - c.ours_ticks) / c.ours_ticks:+.2f} %"
    return item.choice, f"{c.theirs_ticks * tick_s:.6f}", cost, item.plan.configuration.name


def contrast_table(c: Contrast, names: tuple[str, str], style: Style) -> str:
    """Terms of two plans side by side, the largest difference first."""
    rows = sorted(
        zip(c.terms, c.ours_s, c.theirs_s, strict=True), key=lambda row: -abs(row[2] - row[1])
    )
    shown = [
        (term, f"{1e3 * a:.2f}", f"{1e3 * b:.2f}", f"{1e3 * (b - a):+.2f}")
        for term, a, b in rows
        if a or b
    ]
    total_a, total_b = sum(c.ours_s), sum(c.theirs_s)
    shown.append(
        (
            "step",
            f"{1e3 * total_a:.2f}",
            f"{1e3 * total_b:.2f}",
            f"{1e3 * (total_b - total_a):+.2f}",
        )
    )
    shown.append(
        (
            "fullest device (GiB)",
            f"{c.ours_bytes / _GIB:.2f}",
            f"{c.theirs_bytes / _GIB:.2f}",
            f"{(c.theirs_bytes - c.ours_bytes) / _GIB:+.2f}",
        )
    )
    return render("where the time goes (ms)", ("term", *names, "difference"), shown, style)
