"""The Python interface: what the verbs of the command line do, as typed functions.

Everything here is reached as ``from ilp_parallel import plan, compare, ...``. Nothing prints and
nothing exits: bad input raises :class:`~ilp_parallel.errors.InputError`, whose ``code`` is the
reason code of the command line. Numbers are those of the command line, from the same code.

Sizes are sequences and tokens, times seconds or ticks (integers of ``job.tick_ns`` nanoseconds),
memory bytes. Where the costs come from is in ``docs/cost_model.md``.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from ilp_parallel.api_inputs import (
    Interruptible,
    comparison_methods,
    given_job,
    path_text,
    search_options,
)
from ilp_parallel.api_results import PricedPlan, Result, Verification, plan_of
from ilp_parallel.certificate import Certificate
from ilp_parallel.costs.model import CostModel
from ilp_parallel.errors import InputError
from ilp_parallel.jobs import CompleteJob
from ilp_parallel.notebook import Table
from ilp_parallel.plan import Plan
from ilp_parallel.specs.model import ModelSpec

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from ilp_parallel.api_inputs import ClusterLike, Decisions, ModelLike
    from ilp_parallel.api_results import PlanLike
    from ilp_parallel.export.base import Export
    from ilp_parallel.planner import SearchProgress
    from ilp_parallel.specs.job import JobSpec


def plan(
    model: ModelLike | CompleteJob,
    cluster: ClusterLike | None = None,
    batch: int | None = None,
    sequence: int | None = None,
    *,
    job: JobSpec | None = None,
    space: str = "megatron",
    objective: str = "step-time",
    schedule: str = "any",
    fix: Decisions = (),
    forbid: Decisions = (),
    formulation: str = "interval",
    solver: str = "highs",
    time_limit_s: float | None = None,
    seed: int = 0,
    threads: int = 1,
    progress: Callable[[SearchProgress], None] | None = None,
    cancel: Callable[[], bool] | None = None,
) -> Result:
    """Prove the optimal plan of a job, as the verb ``solve`` does.

    Parameters
    ----------
    model, cluster, batch, sequence, job
        The job, as :func:`~ilp_parallel.api_inputs.training_job` takes it, or the complete job
        that it returns.
    space
        ``uniform``, ``megatron`` or ``mixed``. For another space than ``mixed`` that is searched
        first, for comparison.
    objective
        ``step-time`` by formula, or ``simulated``: of the schedule played event by event, with
        status ``feasible`` and a gap where no bound meets it.
    schedule
        ``any``, ``1f1b``, ``gpipe`` or ``interleaved``.
    fix, forbid
        Decisions such as ``"tp=8"``, ``["tp=8", "zero=1"]`` or ``{"tp": 8}``; several values of a
        key are alternatives.
    formulation, solver
        The integer program, and what solves it; every optimum is also found by the dynamic
        program.
    time_limit_s
        Seconds after which the search stops with the best plan so far; None for no limit.
    seed, threads
        Of the solver. The same input and seed give the same result.
    progress
        Is called with a ``SearchProgress`` (values in ticks) for every configuration looked at.
        Each search counts its seconds from zero. What it raises reaches the caller.
    cancel
        Is asked between configurations; once it says true the search stops with the best plan so
        far.

    Returns
    -------
    Result
        With status ``optimal``, ``infeasible``, or, stopped early, ``feasible`` or ``unknown``.
        How it is proven: :mod:`ilp_parallel.planner`, :mod:`ilp_parallel.certificate`.

    Raises
    ------
    InputError
        For anything unknown, malformed, out of range or inconsistent.
    KeyboardInterrupt
        At the second interrupt; the first stops the search with the best plan so far.

    Examples
    --------
    >>> from ilp_parallel import plan
    >>> result = plan("gpt2-xl", "a100-80gb:1x4", batch=64, space="mixed")
    >>> result.status, result.proof, result.gap, result.verified
    ('optimal', 'exact', 0.0, True)
    """
    started = time.perf_counter()
    complete = given_job(model, cluster, batch, sequence, job)
    options = search_options(
        space=space,
        schedule=schedule,
        fix=fix,
        forbid=forbid,
        formulation=formulation,
        solver=solver,
        time_limit_s=time_limit_s,
        seed=seed,
        threads=threads,
        progress=progress,
        cancel=cancel,
    )
    from ilp_parallel.solving import MINIMISED, solve

    if objective not in MINIMISED:
        known = ", ".join(MINIMISED)
        raise InputError("UNKNOWN_OBJECTIVE", f"no objective {objective!r}", f"use one of {known}")
    with Interruptible(options) as running:
        answer = solve(complete, running, started=started, minimised=MINIMISED[objective])
    return Result(replace(answer, options=replace(options, progress=None, cancelled=None)))


def compare(
    models: ModelLike | CompleteJob | Sequence[ModelLike | CompleteJob],
    cluster: ClusterLike | None = None,
    batch: int | None = None,
    sequence: int | None = None,
    *,
    job: JobSpec | None = None,
    heuristics: Sequence[str] | None = None,
    evaluations: int = 5000,
    heuristic_limit_s: float | None = None,
    time_limit_s: float | None = None,
    seed: int = 0,
    progress: Callable[[SearchProgress], None] | None = None,
    cancel: Callable[[], bool] | None = None,
) -> Table:
    """The proven optimum of space ``mixed`` beside the plans of named heuristics.

    Parameters
    ----------
    models
        One model or complete job, or several.
    cluster, batch, sequence, job, time_limit_s, seed, progress, cancel
        As for :func:`plan`; the time limit is that of each search.
    heuristics
        Names of some of them; None for all.
    evaluations, heuristic_limit_s
        Plans that a sampling heuristic prices, and seconds that any of them may take.

    Returns
    -------
    Table
        A row per job and method, as
        :func:`ilp_parallel.comparison.comparing.compare_models` describes:
        ``objective`` in ticks, ``step_time_s``, ``excess`` as the fraction (value - optimum) /
        optimum, ``seconds`` of the method. None where a method found no plan, or the optimum is
        not proven. Each heuristic cites its source.

    Raises
    ------
    InputError
        As :func:`plan`.
    KeyboardInterrupt
        At the second interrupt; the first stops the search, and the heuristics still run.

    Examples
    --------
    >>> from ilp_parallel import compare
    >>> table = compare("gpt2-xl", "a100-80gb:1x4", batch=64, heuristics=["megatron_rules"])
    >>> table[0]["method"], table[0]["excess"]
    ('mixed, optimal', 0.0)
    """
    several = isinstance(models, (list, tuple))
    each = cast("Sequence[ModelLike | CompleteJob]", models if several else (models,))
    jobs = [given_job(model, cluster, batch, sequence, job) for model in each]
    options = search_options(time_limit_s=time_limit_s, seed=seed, progress=progress, cancel=cancel)
    methods = comparison_methods(heuristics, evaluations, heuristic_limit_s, seed)
    from ilp_parallel.comparison.comparing import compare_models

    with Interruptible(options) as running:
        found = compare_models(jobs, running, methods)
    names = [
        given if isinstance(given, str) else jobs[i].model.name for i, given in enumerate(each)
    ]
    rows = [{**row, "job": names[cast("int", row["job"])]} for row in found]
    return Table.of("proven optimum and heuristics", rows)


def bounds(
    model: ModelLike | CompleteJob,
    cluster: ClusterLike | None = None,
    batch: int | None = None,
    sequence: int | None = None,
    *,
    job: JobSpec | None = None,
    space: str = "megatron",
    schedule: str = "any",
    fix: Decisions = (),
    forbid: Decisions = (),
    formulation: str = "interval",
    solver: str = "highs",
    time_limit_s: float | None = None,
    progress: Callable[[SearchProgress], None] | None = None,
    cancel: Callable[[], bool] | None = None,
) -> Table:
    """The ladder of bounds on the winning configuration, up to its optimum and beyond.

    Parameters
    ----------
    model, cluster, batch, sequence, job
        As for :func:`plan`; so are all others.

    Returns
    -------
    Table
        A row per ``kind``: bounds, then the optimum, then heuristics and the simulated time beside
        them. ``value`` is a numerator (ticks times the divisor of the objective), ``seconds`` what
        it took, ``below_optimum`` a fraction, ``note`` the reason code where a formulation does not
        apply. Sources: :mod:`ilp_parallel.bounds` and the formulations.

    Raises
    ------
    InputError
        As :func:`plan`, and ``NO_PLAN`` if the search finds none.
    KeyboardInterrupt
        At the second interrupt; the first stops the search.

    Examples
    --------
    >>> from ilp_parallel import bounds
    >>> ladder = bounds("gpt2-xl", "a100-80gb:1x4", batch=64, space="mixed")
    >>> [rung["below_optimum"] for rung in ladder if rung["kind"] == "optimum"]
    [0.0, 0.0]
    """
    complete = given_job(model, cluster, batch, sequence, job)
    options = search_options(
        space=space,
        schedule=schedule,
        fix=fix,
        forbid=forbid,
        formulation=formulation,
        solver=solver,
        time_limit_s=time_limit_s,
        progress=progress,
        cancel=cancel,
    )
    from ilp_parallel.ladder import ladder

    with Interruptible(options) as running:
        found = ladder(complete, running)
    return Table.of(
        "bounds on the winning configuration (ticks x divisor)", [*found.rungs, *found.beside]
    )


def predict(
    source: PlanLike | ModelLike | CompleteJob,
    words: str | None = None,
    cluster: ClusterLike | None = None,
    batch: int | None = None,
    sequence: int | None = None,
    *,
    job: JobSpec | None = None,
) -> PricedPlan:
    """Where the time and the memory of a plan go.

    Parameters
    ----------
    source
        A plan, a result or the file of one; with ``words``, a model or complete job.
    words
        The plan of a model: ``"pp=8 tp=8 mbs=1 vpp=3 recompute=full"``.
    cluster, batch, sequence, job
        The job of a model, as for :func:`plan`.

    Returns
    -------
    PricedPlan
        ``prediction`` has seconds and bytes by device group and term.

    Raises
    ------
    InputError
        For an unknown word, a plan that contradicts itself or its job, or a file that holds none;
        ``PLAN_HAS_ITS_JOB`` where a job is given beside a plan.

    Examples
    --------
    >>> from ilp_parallel import predict
    >>> priced = predict("gpt2-xl", "pp=2 mbs=4", "a100-80gb:1x4", batch=64)
    >>> priced.fits, priced.table("stages")[0]["layers"]
    (True, 24)
    """
    if words is not None:
        from ilp_parallel.plan_words import plan_from_words

        if isinstance(source, (Plan, Result, PricedPlan)):
            raise InputError("TWO_PLANS", "a plan and words for one", "give one of them")
        found = plan_from_words(given_job(source, cluster, batch, sequence, job), words)
    else:
        if (cluster, batch, sequence, job) != (None, None, None, None):
            raise InputError("PLAN_HAS_ITS_JOB", "a plan and a job", "leave the job out")
        if isinstance(source, (ModelSpec, CompleteJob)):
            raise InputError("NO_PLAN", "a model and no plan", "give words such as 'pp=8 tp=8'")
        found = plan_of(source)
    return PricedPlan(found, CostModel(found.model, found.cluster, found.job).terms(found))


def verify(source: Result | Certificate | str | os.PathLike[str]) -> Verification:
    """Check a certificate without any solver, as :mod:`ilp_parallel.verify` describes.

    Parameters
    ----------
    source
        A result, a certificate, or the file of one.

    Returns
    -------
    Verification
        True where every check passed; ``failed`` names those that did not.

    Raises
    ------
    InputError
        If a file holds no certificate, or the specs in it are not valid input.

    Examples
    --------
    >>> from ilp_parallel import plan, verify
    >>> bool(verify(plan("gpt2-xl", "a100-80gb:1x4", batch=64, space="mixed")))
    True
    """
    from ilp_parallel.claims import verify_file
    from ilp_parallel.verify import verify as check

    if isinstance(source, Result):
        source = source.certificate
    if isinstance(source, Certificate):
        return Verification(source, check(source))
    return Verification(*verify_file(path_text(source)))


def export(source: PlanLike, target: str = "megatron") -> Export:
    """A plan as the options or files of a training framework.

    Parameters
    ----------
    source
        A plan, a result or the file of one.
    target
        ``megatron``, ``megatron-bridge``, ``torchtitan``, ``torchtitan-toml``, ``deepspeed``,
        ``accelerate``, ``colossalai`` or ``galvatron``.

    Returns
    -------
    Export
        ``text`` is the main file, ``files`` are all, ``notes`` name what differs.

    Raises
    ------
    InputError
        ``UNKNOWN_FRAMEWORK``, ``NO_PLAN``, or a reason why the framework cannot run the plan.
        Sources of its rules: ``docs/exports.md``.

    Examples
    --------
    >>> from ilp_parallel import export, predict
    >>> priced = predict("gpt2-xl", "pp=2 mbs=4", "a100-80gb:1x4", batch=64)
    >>> "--pipeline-model-parallel-size 2" in export(priced, "megatron").text
    True
    """
    from ilp_parallel.export.registry import export_plan

    return export_plan(plan_of(source), target)


def load_plan(path: str | os.PathLike[str]) -> Plan:
    """The plan in a file written by ``Result.save`` or ``solve -o``, read strictly.

    Raises
    ------
    InputError
        If the file holds no plan, or one that contradicts itself.
    """
    from ilp_parallel.plan_files import read_plan

    return read_plan(path_text(path))
