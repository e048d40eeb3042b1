"""How a typed program uses the Python interface; test_api.py has mypy look at it, strictly."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ilp_parallel import (
    Certificate,
    Export,
    InputError,
    JobSpec,
    Plan,
    PricedPlan,
    Result,
    SearchProgress,
    Table,
    bounds,
    compare,
    export,
    load_cluster,
    load_model,
    load_plan,
    plan,
    predict,
    training_job,
    verify,
)

if TYPE_CHECKING:
    from pathlib import Path


def tour(folder: Path) -> list[object]:
    """Every public function once."""
    seen: list[SearchProgress] = []
    cluster = load_cluster("a100-80gb:1x4")
    model = replace(load_model("gpt2-xl"), layers=4)
    job = JobSpec(global_batch=8, sequence_length=1024)
    result: Result = plan(model, cluster, job=job, fix={"pp": 2}, progress=seen.append)
    step: float | None = result.step_time_s
    best: Plan | None = result.plan
    certificate: Certificate = result.certificate
    result.save(folder / "result.json")
    read: Plan = load_plan(folder / "result.json")
    priced: PricedPlan = predict(read)
    written: Export = export(result, "megatron")
    ladder: Table = bounds(training_job(model, cluster, 8, 1024), space="mixed")
    rows: Table = compare([model], cluster, 8, 1024, heuristics=["megatron_rules"])
    code = ""
    try:
        plan("gpt2-xl", "a100-80gb:1x4", batch=64, fix="tp=3")
    except InputError as error:
        code = error.code
    verified: bool = verify(certificate).verified
    return [step, best, priced.fits, written.text, len(ladder), rows[0], code, verified, seen]
