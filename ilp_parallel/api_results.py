"""What the Python interface gives back: typed, with tables, and readable in a notebook."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from ilp_parallel import notebook
from ilp_parallel.api_inputs import path_text
from ilp_parallel.errors import InputError
from ilp_parallel.notebook import Row, Table
from ilp_parallel.plan import Plan
from ilp_parallel.specs.documents import shown

if TYPE_CHECKING:
    from typing import TypeAlias

    from pandas import DataFrame

    from ilp_parallel.certificate import Certificate, SearchStatus
    from ilp_parallel.costs.breakdown import Prediction
    from ilp_parallel.export.base import Export
    from ilp_parallel.problems.check import Check
    from ilp_parallel.solving import Answer

    PlanLike: TypeAlias = "Plan | Result | PricedPlan | str | os.PathLike[str]"
    """A plan, what holds one, or a file written by ``save`` or ``solve -o``."""

PlanTable = Literal["stages", "terms", "shares"]
"""Tables of a plan: per device group; per term of time and memory; parts of the step."""

ResultTable = Literal["stages", "terms", "shares", "fates", "configurations"]
"""Those of a plan, and of its certificate: counts by fate; every configuration."""


@dataclass(frozen=True, slots=True, repr=False)
class PricedPlan:
    """A plan and what the cost model says of it (source: ``docs/cost_model.md``)."""

    plan: Plan
    prediction: Prediction

    @property
    def step_time_s(self) -> float:
        """Seconds of one optimizer step, not rounded up to ticks."""
        return self.prediction.step_time_s

    @property
    def fits(self) -> bool:
        """Whether every device group fits into the memory it may use."""
        return self.prediction.fits

    def table(self, name: PlanTable = "stages") -> Table:
        """A table: ``stages``, ``terms`` or ``shares``.

        Raises
        ------
        InputError
            ``UNKNOWN_TABLE``.
        """
        if name == "stages":
            return notebook.stage_table(self.plan, self.prediction)
        if name == "terms":
            return notebook.term_table(self.prediction)
        if name == "shares":
            return self._shares()
        raise _no_table(name, get_args(PlanTable))

    def to_frame(self, name: PlanTable = "stages") -> DataFrame | list[Row]:
        """The same as a pandas data frame; where pandas is not installed, as a list."""
        return self.table(name).to_frame()

    def document(self) -> dict[str, object]:
        """The JSON of ``predict``, as plain data."""
        from ilp_parallel.predicting import prediction_document

        return prediction_document(self.plan, self.prediction)

    def __repr__(self) -> str:
        return f"<PricedPlan {self.step_time_s:.6f} s, {self.plan.configuration.name}>"

    def _shares(self) -> Table:
        from ilp_parallel.predicting import step_shares

        rows: list[Row] = [
            {"term": s.term, "part": s.part, "share_s": s.seconds, "share": s.share}
            for s in step_shares(self.plan.configuration, self.prediction)
            if s.seconds
        ]
        return Table.of("where the time of a step goes", rows)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        title = f"{self.plan.model.name} on {self.plan.cluster.name}"
        facts = notebook.plan_facts(self.plan, self.prediction)
        return notebook.framed(
            notebook.facts_html(title, facts),
            notebook.table_html(self.table("stages")),
            notebook.table_html(self.table("shares")),
        )


@dataclass(frozen=True, slots=True, repr=False)
class Verification:
    """The checks of a certificate, made without any solver; true where all passed."""

    certificate: Certificate
    checks: tuple[Check, ...]

    @property
    def verified(self) -> bool:
        """Whether every check passed."""
        return not self.failed

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the checks that failed."""
        return tuple(check.name for check in self.checks if not check.passed)

    def __bool__(self) -> bool:
        return self.verified

    def __repr__(self) -> str:
        verdict = "accepted" if self.verified else f"REJECTED, {len(self.failed)} failed"
        return f"<Verification {verdict}: {len(self.checks)} checks>"

    def document(self) -> dict[str, object]:
        """The JSON of ``verify``, as plain data."""
        return {
            "schema": "ilp_parallel.verify/1",
            "verified": self.verified,
            "checks": len(self.checks),
            "failed": list(self.failed),
            "status": self.certificate.status,
            "objective": self.certificate.objective_ticks,
            "bound": self.certificate.bound_ticks,
        }

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        facts = {"checks": f"{len(self.checks):,}", "claim": self.certificate.status}
        if self.failed:
            facts["failed"] = ", ".join(self.failed[:10])
        title = "Accepted" if self.verified else "REJECTED"
        return notebook.framed(notebook.facts_html(title, facts))


@dataclass(frozen=True, slots=True, repr=False)
class Result:
    """What ``plan`` found out.

    ``answer`` holds everything, the search's own objects included; what is usually wanted are the
    properties. Values are None where there is nothing to tell, never 0.
    """

    answer: Answer

    @property
    def status(self) -> SearchStatus:
        """``optimal``, ``feasible`` (stopped early), ``infeasible`` or ``unknown``."""
        return self.answer.result.status

    @property
    def proof(self) -> str | None:
        """``exact`` where every bound was derived again in integers, else None."""
        return self.answer.proof

    @property
    def objective_ticks(self) -> int | None:
        """Step time of the plan in ticks of ``job.tick_ns`` nanoseconds."""
        return self.certificate.objective_ticks

    @property
    def bound_ticks(self) -> int | None:
        """No plan of the space takes fewer ticks."""
        return self.certificate.bound_ticks

    @property
    def step_time_s(self) -> float | None:
        """Step time of the plan in seconds, rounded up to ticks."""
        return self.answer.seconds(self.objective_ticks)

    @property
    def bound_s(self) -> float | None:
        """The bound in seconds."""
        return self.answer.seconds(self.bound_ticks)

    @property
    def gap(self) -> float | None:
        """(objective - bound) / objective, a fraction; 0 only where they are equal."""
        return self.answer.gap

    @property
    def plan(self) -> Plan | None:
        """The best plan found."""
        return self.answer.result.plan

    @property
    def certificate(self) -> Certificate:
        """What became of every configuration; ``verify`` checks it."""
        return self.answer.result.certificate

    @property
    def prediction(self) -> Prediction | None:
        """Times and memory of the plan by device group and term."""
        return self.answer.prediction

    @property
    def verified(self) -> bool:
        """Whether the plan and every bound passed the verifier, which uses no solver."""
        return self.answer.verified

    @property
    def assumed(self) -> tuple[str, ...]:
        """What was not given and therefore assumed, in words."""
        return self.answer.job.assumed

    @property
    def timing(self) -> dict[str, float]:
        """Seconds: ``total_s``, and ``search_s`` for everything after reading the input."""
        return {"total_s": self.answer.total_s, "search_s": self.answer.search_s}

    def table(self, name: ResultTable = "stages") -> Table:
        """A table: of the plan (``stages``, ``terms``, ``shares``) or of the certificate.

        ``fates`` counts configurations by what became of them, ``configurations`` lists them.

        Raises
        ------
        InputError
            ``UNKNOWN_TABLE``, or ``NO_PLAN`` for a table of the plan where there is none.
        """
        if name == "fates":
            return notebook.fate_table(self.certificate)
        if name == "configurations":
            return notebook.configuration_table(self.certificate)
        if name not in get_args(PlanTable):
            raise _no_table(name, get_args(ResultTable))
        return self._priced().table(name)

    def to_frame(self, name: ResultTable = "stages") -> DataFrame | list[Row]:
        """The same as a pandas data frame; where pandas is not installed, as a list."""
        return self.table(name).to_frame()

    def export(self, target: str = "megatron") -> Export:
        """The plan in the words of a training framework; ``text`` is its main file.

        Raises
        ------
        InputError
            ``NO_PLAN``, or what :func:`ilp_parallel.export.registry.export_plan` raises.
        """
        from ilp_parallel.export.registry import export_plan

        return export_plan(self.require_plan(), target)

    def document(self) -> dict[str, object]:
        """The JSON of ``solve``, as plain data; the same for the same input except ``timing``."""
        from ilp_parallel.solving import answer_document

        document = answer_document(self.answer)
        if self.status == "infeasible":
            from ilp_parallel.diagnosis.explaining import explain_infeasible

            found, _ = explain_infeasible(self.answer.job, self.answer.options)
            document["infeasibility"] = found
        return document

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the JSON of ``solve``, whole or not at all; the command line reads it.

        Raises
        ------
        InputError
            ``CANNOT_WRITE``, or ``STANDARD_STREAM`` for ``-``.
        """
        from ilp_parallel.cli.options import json_text
        from ilp_parallel.plan_files import write_text

        write_text(path_text(path), json_text(self.document()))

    def require_plan(self) -> Plan:
        """The plan.

        Raises
        ------
        InputError
            ``NO_PLAN`` where there is none.
        """
        if self.plan is None:
            raise InputError("NO_PLAN", f"the search is {self.status}", "give more devices or time")
        return self.plan

    def _priced(self) -> PricedPlan:
        plan, prediction = self.require_plan(), self.prediction
        assert prediction is not None  # every plan is priced
        return PricedPlan(plan, prediction)

    def __repr__(self) -> str:
        step = "no plan" if self.step_time_s is None else f"{self.step_time_s:.6f} s"
        name = "" if self.plan is None else f", {self.plan.configuration.name}"
        return f"<Result {self.status}: {step}{name}>"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        certificate, job = self.certificate, self.answer.job
        facts = {
            "claim": notebook.claim_text(
                self.status, self.objective_ticks, self.bound_ticks, job.job.tick_ns * 1e-9
            ),
            "gap": "-" if self.gap is None else f"{100 * self.gap:.3g} %",
            "proof": f"{self.proof or 'none'}, verified: {'yes' if self.verified else 'NO'}",
            "space": certificate.space,
        }
        superset = self.answer.superset
        if superset is not None:
            ticks = superset.certificate.objective_ticks
            best = "no plan" if ticks is None else f"{self.answer.seconds(ticks):.6f} s"
            facts[f"superset {superset.certificate.space}"] = f"{best}, {superset.status}"
        tables = [notebook.table_html(self.table("fates"))]
        if self.plan is not None and self.prediction is not None:
            facts |= notebook.plan_facts(self.plan, self.prediction)
            tables.insert(0, notebook.table_html(self.table("stages")))
        facts["assumed"] = "; ".join(self.assumed) or "nothing"
        facts["time"] = f"{self.answer.total_s:.2f} s"
        title = f"{job.model.name} on {job.cluster.name}"
        return notebook.framed(notebook.facts_html(title, facts), *tables)


def plan_of(source: PlanLike) -> Plan:
    """The plan of whatever holds one.

    Raises
    ------
    InputError
        ``NO_PLAN``, or what is wrong with the file.
    """
    from ilp_parallel.plan_files import read_plan

    if isinstance(source, Result):
        return source.require_plan()
    if isinstance(source, PricedPlan):
        return source.plan
    if isinstance(source, Plan):
        return source
    text = path_text(source)
    if not os.path.exists(text):
        raise InputError("NO_PLAN", f"{shown(text)} is no plan file", "give words or a plan")
    return read_plan(text)


def _no_table(name: str, known: tuple[str, ...]) -> InputError:
    return InputError("UNKNOWN_TABLE", f"no table {shown(name)}", f"use one of {', '.join(known)}")
