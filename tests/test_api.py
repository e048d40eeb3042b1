"""The Python interface: what it gives, that it agrees with the command line, how it fails."""

from __future__ import annotations

import doctest
import inspect
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
from mypy import api as mypy

import ilp_parallel
from ilp_parallel import (
    InputError,
    JobSpec,
    PricedPlan,
    Result,
    api,
    api_inputs,
    bounds,
    compare,
    export,
    load_cluster,
    load_plan,
    plan,
    predict,
    training_job,
    verify,
)
from ilp_parallel.cli.app import main
from tests.costs.cases import gpt
from tests.usage_of_api import tour

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parent.parent
MODEL = replace(gpt(layers=4, hidden=2048, heads=8), name="tiny")
NODE = "a100-80gb:1x4"

Run = "Callable[..., dict[str, Any]]"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.json"
    path.write_bytes(msgspec.json.encode(MODEL))
    return path


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command line and gives its JSON, without what is timed."""

    def call(*words: object) -> dict[str, Any]:
        monkeypatch.setattr(sys, "argv", ["ilp-parallel", *map(str, words), "--format", "json"])
        try:
            main()
        except SystemExit as end:
            assert end.code in (0, 3, None)
        return untimed(json.loads(capsys.readouterr().out))

    return call


def untimed(document: Any) -> Any:
    """The same as read from JSON, without anything measured by a clock."""
    plain = json.loads(json.dumps(document))
    if isinstance(plain, list):
        return [untimed(value) for value in plain]
    if not isinstance(plain, dict):
        return plain
    return {k: untimed(v) for k, v in plain.items() if k not in ("timing", "seconds")}


def small(**words: Any) -> Result:
    return plan(MODEL, NODE, 8, 1024, **words)


# --- names, imports, documentation ------------------------------------------------------------


def test_importing_the_package_loads_neither_solver_nor_numpy() -> None:
    lines = "import ilp_parallel, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", lines], check=True, capture_output=True, text=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "ilp_parallel" in loaded
    assert loaded & {"highspy", "ortools", "pulp", "formulations", "numpy", "click"} == set()


def test_functions_are_not_hidden_by_modules_of_the_same_name() -> None:
    lines = (
        "import ilp_parallel.plan, ilp_parallel.bounds, ilp_parallel.verify, ilp_parallel.export;"
        "from ilp_parallel import plan, bounds, verify, export;"
        "from ilp_parallel.plan import Plan; from ilp_parallel.export.registry import EXPORTERS;"
        "import ilp_parallel.planner;"
        "print(*(f.__module__ for f in (plan, bounds, verify, export)), ilp_parallel.planner)"
    )
    done = subprocess.run([sys.executable, "-c", lines], check=True, capture_output=True, text=True)
    assert done.stdout.split()[:4] == ["ilp_parallel.api"] * 4
    assert "ilp_parallel.planner" in done.stdout


def public_objects() -> list[tuple[str, Any]]:
    found = []
    for name in ilp_parallel.__all__:
        value = getattr(ilp_parallel, name)
        if callable(value):
            found.append((name, value))
        if inspect.isclass(value):
            found += [
                (f"{name}.{part}", member)
                for part, member in vars(value).items()
                if not part.startswith("_") and (callable(member) or isinstance(member, property))
            ]
    return found


@pytest.mark.parametrize(("name", "value"), public_objects(), ids=[n for n, _ in public_objects()])
def test_everything_public_is_documented(name: str, value: Any) -> None:
    text = inspect.getdoc(value) or ""
    assert len(text) > 12, name
    assert not text.startswith(f"{name}("), "what dataclasses write is no documentation"
    assert "InputError" in text or not inspect.isfunction(value) or not raises(value), name


def raises(function: Any) -> bool:
    return "raise InputError" in inspect.getsource(function)


def test_public_functions_state_parameters_and_errors() -> None:
    for function in (plan, compare, bounds, predict, verify, export, training_job):
        text = inspect.getdoc(function) or ""
        assert {"Parameters\n", "Raises\n", "Examples\n"} <= set(text.splitlines(keepends=True))
        for name in inspect.signature(function).parameters:
            assert name in text or "so are all others" in text, (function.__name__, name)


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        ilp_parallel.nonsense  # type: ignore[attr-defined]  # noqa: B018
    assert set(ilp_parallel.__all__) <= set(dir(ilp_parallel))


@pytest.mark.parametrize("module", [api, api_inputs], ids=lambda m: m.__name__)
def test_examples_in_docstrings_run(module: Any) -> None:
    failed, tried = doctest.testmod(module)
    assert tried and not failed


def test_examples_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    failed, tried = doctest.testfile(
        str(ROOT / "docs" / "python.md"),
        module_relative=False,
        optionflags=doctest.ELLIPSIS,
        encoding="utf-8",
    )
    assert tried > 20 and not failed


def test_typed_programs_pass_mypy_and_wrong_ones_do_not(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        "from ilp_parallel import plan\nplan(5)\nplan('gpt3', batch='many')\nplan('gpt3').nothing\n"
    )
    usage = Path(__file__).parent / "usage_of_api.py"
    config = ["--config-file", str(ROOT / "pyproject.toml"), "--strict"]
    out, err, code = mypy.run([*config, str(usage)])
    assert code == 0, out + err
    out, _, _ = mypy.run([*config, str(wrong)])
    assert [line.split(":")[1] for line in out.splitlines() if ": error:" in line] == list("234")


# --- agreement with the command line ----------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), {}),
        (("--space", "mixed", "--formulation", "counts"), {"space": "mixed"}),
        (("--fix", "pp=2", "--fix", "tp=1", "--forbid", "zero=1"), {"fix": {"pp": 2, "tp": 1}}),
        (("--schedule", "gpipe", "--fix", "pp=4"), {"schedule": "gpipe", "fix": "pp=4"}),
    ],
    ids=["megatron", "mixed", "pinned", "gpipe"],
)
def test_plan_agrees_with_solve(
    command: Run, model: Path, options: tuple[str, ...], words: dict[str, Any]
) -> None:
    if "--formulation" in options:
        words = {**words, "formulation": "counts"}
    if "--forbid" in options:
        words = {**words, "forbid": ["zero=1"]}
    job = ("--cluster", NODE, "--batch", 8, "--seq", 1024)
    expected = command("solve", model, *job, *options)
    result = plan(model, NODE, 8, 1024, **words)
    assert untimed(result.document()) == expected
    assert (result.status, result.proof, result.gap) == ("optimal", "exact", 0.0)
    assert result.objective_ticks == expected["objective"] == result.bound_ticks
    assert result.step_time_s == expected["step_time_s"] and result.bound_s == expected["bound_s"]
    assert result.verified and result.assumed == tuple(expected["instance"]["assumed"])
    assert set(result.timing) == {"total_s", "search_s"}


def test_an_infeasible_job_agrees_with_solve(command: Run) -> None:
    expected = command("solve", "gpt3", "--cluster", NODE, "--batch", 4)
    result = plan("gpt3", NODE, 4)
    assert untimed(result.document()) == expected and "infeasibility" in expected
    assert (result.status, result.plan, result.gap) == ("infeasible", None, None)
    assert result.prediction is None and "infeasible" in result._repr_html_()
    for act in (result.export, result.table, lambda: export(result)):
        with pytest.raises(InputError, match="NO_PLAN"):
            act()


def test_saved_results_are_what_the_command_line_reads_and_writes(
    command: Run, tmp_path: Path
) -> None:
    result, path = small(fix="pp=2"), tmp_path / "plan.json"
    result.save(path)
    assert load_plan(path) == result.plan
    assert untimed(json.loads(path.read_text())) == untimed(result.document())
    assert untimed(verify(path).document()) == command("verify", path)
    assert untimed(predict(path).document()) == command("predict", path)
    written = command("export", path, "--to", "megatron")
    assert {file.name: file.text for file in export(path).files} == written["files"]
    assert result.export("megatron") == export(result) == export(path)


def test_predict_with_words_agrees_with_the_command_line(command: Run, model: Path) -> None:
    words = "pp=2 tp=2 mbs=1"
    job = ("--cluster", NODE, "--batch", 8, "--seq", 1024)
    expected = command("predict", model, "--plan", words, *job)
    priced = predict(model, words, NODE, 8, 1024)
    assert untimed(priced.document()) == expected
    assert priced.step_time_s == expected["step_time_s"] and priced.fits == expected["fits"]
    assert isinstance(priced, PricedPlan) and predict(priced) == priced == predict(priced.plan)


def test_compare_agrees_with_the_command_line(command: Run, model: Path) -> None:
    names = ["megatron_rules", "random"]
    job = ("--cluster", NODE, "--batch", 8, "--seq", 1024, "--seed", 3)
    effort = ("--heuristics", ",".join(names), "--evaluations", 50)
    expected = command("compare", model, *job, *effort)
    table = compare(str(model), NODE, 8, 1024, heuristics=names, evaluations=50, seed=3)
    assert untimed(list(table)) == expected["rows"]
    assert len(table) == 3 and table[0]["excess"] == 0.0
    both = [training_job(MODEL, NODE, batch, 1024) for batch in (8, 4)]
    several = compare(both, heuristics=names)
    assert [row["batch"] for row in several] == [8, 8, 8, 4, 4, 4]
    assert {row["job"] for row in several} == {MODEL.name}


def test_bounds_agree_with_the_command_line(command: Run, model: Path) -> None:
    job = ("--cluster", NODE, "--batch", 8, "--seq", 1024)
    expected = command("bounds", model, *job, "--space", "mixed")
    table = bounds(model, NODE, 8, 1024, space="mixed")
    assert untimed(list(table)) == expected["rungs"] + expected["beside"]


# --- what is taken and refused ----------------------------------------------------------------


def test_names_files_specifications_and_complete_jobs_are_the_same_job(model: Path) -> None:
    by_words = untimed(small(fix="pp=2").document())
    del by_words["instance"]["assumed"]
    job = JobSpec(global_batch=8, sequence_length=1024)
    complete = training_job(model, load_cluster(NODE), job=job)
    assert complete.model == MODEL and complete.job == job
    for found in (
        plan(str(model), NODE, 8, 1024, fix=["pp=2"]),
        plan(model, load_cluster(NODE), 8, 1024, fix={"pp": 2}),
        plan(MODEL, load_cluster(NODE), job=job, fix="pp=2"),
        plan(complete, fix="pp=2"),
    ):
        document = untimed(found.document())
        assert len(document["instance"].pop("assumed")) in (2, 7)  # a JobSpec leaves the links open
        assert document == by_words


def test_a_job_specification_is_taken_whole() -> None:
    job = JobSpec(8, 1024, "bf16-moments", "sgd", "unfused", "eager", "fsdp", 2**30, 2000)
    assert training_job(MODEL, NODE, job=job).job == job
    with pytest.raises(InputError, match="PRECISION_NOT_ON_DEVICE"):
        training_job(MODEL, NODE, job=replace(job, precision="fp8"))


def test_all_words_about_a_job_arrive() -> None:
    found = training_job(
        MODEL,
        NODE,
        8,
        1024,
        precision="bf16-moments",
        optimizer="sgd",
        attention="unfused",
        norm_kernel="eager",
        stack="fsdp",
        intra_bandwidth="100GB/s",
        inter_bandwidth="10GB/s",
        reserve_gib=1.0,
    )
    job = JobSpec(8, 1024, "bf16-moments", "sgd", "unfused", "eager", "fsdp", 2**30)
    assert (found.job, found.assumed) == (job, ())
    assert found.cluster.intra.bandwidth_bytes_per_s == 1e11
    assert found.cluster.inter.bandwidth_bytes_per_s == 1e10


def test_integers_of_numpy_are_integers_and_truth_values_are_not() -> None:
    found = training_job(MODEL, NODE, np.int64(8), np.int32(1024))  # type: ignore[arg-type]
    assert found == training_job(MODEL, NODE, 8, 1024) and type(found.job.global_batch) is int
    with pytest.raises(InputError, match="WRONG_TYPE"):
        training_job(MODEL, NODE, True, 1024)


BAD: list[tuple[str, Callable[[], object]]] = [
    ("UNKNOWN_MODEL", lambda: plan("no-such-model")),
    ("NO_SUCH_FILE", lambda: plan(Path("gpt3"))),  # a path is never a preset
    ("STANDARD_STREAM", lambda: plan("-")),
    ("WRONG_TYPE", lambda: plan(5)),  # type: ignore[arg-type]
    ("WRONG_TYPE", lambda: plan("gpt3", batch="64")),  # type: ignore[arg-type]
    ("WRONG_TYPE", lambda: plan("gpt3", batch=1.5)),  # type: ignore[arg-type]
    ("WRONG_TYPE", lambda: plan(replace(MODEL, layers="4"), NODE, 8)),  # type: ignore[arg-type]
    ("WRONG_TYPE", lambda: plan(MODEL, NODE, job={"batch": 8})),  # type: ignore[arg-type]
    ("WRONG_TYPE", lambda: small(time_limit_s="soon")),
    ("WRONG_TYPE", lambda: small(fix=[4])),
    ("WRONG_TYPE", lambda: small(progress=1)),
    ("OUT_OF_RANGE", lambda: plan(replace(MODEL, layers=0), NODE, 8, 1024)),
    ("OUT_OF_RANGE", lambda: small(time_limit_s=-1.0)),
    ("UNKNOWN_CLUSTER", lambda: plan("gpt3", "abacus:4x4")),
    ("UNKNOWN_SPACE", lambda: small(space="everything")),
    ("UNKNOWN_SCHEDULE", lambda: small(schedule="whenever")),
    ("UNKNOWN_FORMULATION", lambda: small(formulation="poem")),
    ("UNKNOWN_SOLVER", lambda: small(solver="oracle")),
    ("UNKNOWN_DECISION", lambda: small(fix="colour=8")),
    ("BAD_DECISION_VALUE", lambda: small(fix={"tp": "many"})),
    ("TWO_JOBS", lambda: plan(MODEL, NODE, 8, job=JobSpec(8, 1024))),
    ("TWO_JOBS", lambda: plan(training_job(MODEL, NODE, 8, 1024), batch=8)),
    ("BATCH_MISSING", lambda: plan(MODEL, NODE)),
    ("UNKNOWN_HEURISTIC", lambda: compare(MODEL, NODE, 8, 1024, heuristics=["wishing"])),
    ("OUT_OF_RANGE", lambda: compare(MODEL, NODE, 8, 1024, evaluations=0)),
    ("BAD_PLAN_WORD", lambda: predict(MODEL, "pp=two", NODE, 8, 1024)),
    ("NO_PLAN", lambda: predict("gpt3")),
    ("NO_PLAN", lambda: predict(MODEL)),
    ("PLAN_HAS_ITS_JOB", lambda: predict("plan.json", batch=8)),
    ("NO_SUCH_FILE", lambda: verify("no-such-file.json")),
    ("NO_SUCH_FILE", lambda: load_plan("no-such-file.json")),
    ("UNKNOWN_FRAMEWORK", lambda: export(predict(MODEL, "pp=2", NODE, 8, 1024), "abacus")),
]


@pytest.mark.parametrize(
    ("code", "act"), BAD, ids=[f"{i}-{code}" for i, (code, _) in enumerate(BAD)]
)
def test_bad_input_is_an_input_error_and_nothing_is_printed(
    code: str, act: Callable[[], object], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InputError) as caught:
        act()
    assert caught.value.code == code
    assert tuple(capsys.readouterr()) == ("", "")


def test_results_refuse_unknown_tables_and_bad_paths(tmp_path: Path) -> None:
    result = small(fix="pp=2")
    for path, code in ((tmp_path, "CANNOT_WRITE"), ("-", "STANDARD_STREAM")):
        with pytest.raises(InputError, match=code):
            result.save(path)
    for table in (result.table, predict(result).table):
        with pytest.raises(InputError, match="UNKNOWN_TABLE"):
            table("kitchen")  # type: ignore[arg-type]


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for fact in tour(tmp_path):
        assert fact not in (None, False, [])
    assert tuple(capfd.readouterr()) == ("", "")


def test_a_changed_certificate_is_rejected() -> None:
    certificate = small(fix="pp=2").certificate
    accepted = verify(certificate)
    assert accepted and accepted.verified and not accepted.failed
    assert certificate.objective_ticks is not None
    better = msgspec.structs.replace(
        certificate,
        objective_ticks=certificate.objective_ticks - 1,
        bound_ticks=certificate.objective_ticks - 1,
    )
    rejected = verify(better)
    assert not rejected and "plan_objective" in rejected.failed
    assert "REJECTED" in rejected._repr_html_() and "Accepted" in accepted._repr_html_()


def test_the_repr_of_a_result_is_a_line() -> None:
    assert repr(small(fix="pp=2")).startswith("<Result optimal: 0.")
    assert repr(small(time_limit_s=0)) == "<Result unknown: no plan>"
