"""Proves optimal parallel training plans for large models with integer programming.

``from ilp_parallel import plan, compare, ...`` is described in :mod:`ilp_parallel.api`. Importing
the package alone loads nothing else: each name is fetched when it is first used.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ilp_parallel.api import bounds, compare, export, load_plan, plan, predict, verify
    from ilp_parallel.api_inputs import training_job
    from ilp_parallel.api_results import PricedPlan, Result, Verification
    from ilp_parallel.certificate import Certificate
    from ilp_parallel.costs.breakdown import Prediction
    from ilp_parallel.errors import InputError
    from ilp_parallel.export.base import Export
    from ilp_parallel.jobs import CompleteJob
    from ilp_parallel.notebook import Table
    from ilp_parallel.plan import Plan
    from ilp_parallel.planner import SearchProgress
    from ilp_parallel.specs.cluster import ClusterSpec
    from ilp_parallel.specs.job import JobSpec
    from ilp_parallel.specs.model import ModelSpec
    from ilp_parallel.specs.readers import cluster_names, load_cluster, load_model, model_names

__version__ = "0.1.0"

_HOMES = {
    "bounds": "api",
    "compare": "api",
    "export": "api",
    "load_plan": "api",
    "plan": "api",
    "predict": "api",
    "verify": "api",
    "training_job": "api_inputs",
    "PricedPlan": "api_results",
    "Result": "api_results",
    "Verification": "api_results",
    "Certificate": "certificate",
    "Prediction": "costs.breakdown",
    "InputError": "errors",
    "Export": "export.base",
    "CompleteJob": "jobs",
    "Table": "notebook",
    "Plan": "plan",
    "SearchProgress": "planner",
    "ClusterSpec": "specs.cluster",
    "JobSpec": "specs.job",
    "ModelSpec": "specs.model",
    "cluster_names": "specs.readers",
    "load_cluster": "specs.readers",
    "load_model": "specs.readers",
    "model_names": "specs.readers",
}
"""Module that each public name is fetched from."""

__all__ = [
    "Certificate",
    "ClusterSpec",
    "CompleteJob",
    "Export",
    "InputError",
    "JobSpec",
    "ModelSpec",
    "Plan",
    "Prediction",
    "PricedPlan",
    "Result",
    "SearchProgress",
    "Table",
    "Verification",
    "__version__",
    "bounds",
    "cluster_names",
    "compare",
    "export",
    "load_cluster",
    "load_model",
    "load_plan",
    "model_names",
    "plan",
    "predict",
    "training_job",
    "verify",
]


class _Package(ModuleType):
    """The package, in which ``plan``, ``bounds``, ``verify`` and ``export`` are functions.

    There are modules of the same names. Importing one of those would put it in the function's
    place; ``from ilp_parallel.plan import Plan`` does not need it there.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> object:
    """A public name, fetched from its module at first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
