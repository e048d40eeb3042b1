"""What a result file says beside its certificate, held against the certificate.

``verify`` proves a certificate; a result also holds the plan spelled out and a few figures, which
people read and which exporters use. They must follow from the certificate, or they prove nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ilp_parallel.costs.model import CostModel
from ilp_parallel.errors import InputError
from ilp_parallel.instances import plan_of
from ilp_parallel.plan_files import certificate_of_document, plan_of_document
from ilp_parallel.problems.check import Check
from ilp_parallel.spaces import SPACES, get_space
from ilp_parallel.specs.documents import MAX_RESULT_BYTES, read_document
from ilp_parallel.verify import verify

if TYPE_CHECKING:
    from ilp_parallel.certificate import Certificate
    from ilp_parallel.plan import Plan
    from ilp_parallel.specs.documents import Document


def verify_file(path: str) -> tuple[Certificate, tuple[Check, ...]]:
    """The certificate in a file and all checks: of the certificate, and of the file around it.

    Raises
    ------
    InputError
        If the file holds no certificate, or its specs are not valid input.
    """
    data = read_document(path, MAX_RESULT_BYTES)
    certificate = certificate_of_document(data, path)
    checks = tuple(verify(certificate))
    return certificate, (*checks, *claim_checks(data, certificate, path))


def claim_checks(data: Document, certificate: Certificate, path: str) -> tuple[Check, ...]:
    """One check for the plan and for each figure that the file states; none for a bare certificate.

    The simulated time, rates and shares are not checked: they follow from the plan by other means.
    """
    if "certificate" not in data:
        return ()
    figures = stated_figures(certificate)
    checks = [
        Check(f"file_{name}", _same(data[name], value), 0, "")
        for name, value in figures.items()
        if name in data
    ]
    if data.get("plan") is not None or certificate.plan is not None:
        checks.append(Check("file_plan", _same_plan(data, certificate, path), 0, ""))
    return tuple(checks)


def stated_figures(certificate: Certificate) -> dict[str, object]:
    """The figures of a result that its certificate decides, by name."""
    objective, bound = certificate.objective_ticks, certificate.bound_ticks
    figures: dict[str, object] = {
        "minimised": certificate.minimised,
        "status": certificate.status,
        "objective": objective,
        "bound": bound,
        "gap": certificate.gap,
        "step_time_s": certificate.seconds(objective),
        "bound_s": certificate.seconds(bound),
    }
    by_formula = certificate.minimised == "step-time"
    if certificate.status == "optimal" and by_formula:  # the dynamic program's value is the optimum
        figures["dp_step_time_s"] = figures["step_time_s"]
    return figures


def is_plan_of(certificate: Certificate, plan: Plan) -> bool:
    """Whether a plan is the one that the certificate is about."""
    chosen = certificate.plan
    if chosen is None or certificate.space not in SPACES:
        return False
    specs = (certificate.model, certificate.cluster, certificate.job, certificate.space)
    if specs != (plan.model, plan.cluster, plan.job, plan.space):
        return False
    costs, g = CostModel(plan.model, plan.cluster, plan.job), plan.configuration
    menu = len(costs.strategies(g))
    if chosen.configuration != g.name or not all(0 <= k < menu for k in chosen.solution.strategies):
        return False
    try:
        return plan_of(costs, get_space(plan.space), g, chosen.solution) == plan
    except ValueError:  # a solution that does not unfold into chunks
        return False


def _same_plan(data: Document, certificate: Certificate, path: str) -> bool:
    if data.get("plan") is None:
        return certificate.plan is None
    try:
        return is_plan_of(certificate, plan_of_document(data, path))
    except InputError:
        return False


def _same(stated: object, value: object) -> bool:
    """Equal and of one kind: true is not 1, and 1.0 is not 1."""
    return type(stated) is type(value) and stated == value
