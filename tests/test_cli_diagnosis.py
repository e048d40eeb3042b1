"""The verbs check, memory, explain and min-gpus, and predict on a foreign file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from ilp_parallel.cli.app import cli
from ilp_parallel.errors import InputError
from ilp_parallel.plan_files import read_certificate, read_plan
from tests.imports.runs import DEEPSPEED, SCRIPT, TITAN

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result

SMALL = ("megatron-1.7b", "--cluster", "a100-80gb:1x8", "--batch", "16")


def run(*words: object) -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words])


def code_of(result: Result) -> str:
    assert isinstance(result.exception, InputError), result.exception
    return result.exception.code


def document(result: Result) -> dict[str, object]:
    found: dict[str, object] = json.loads(result.stdout)
    return found


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    assert run("solve", *SMALL, "-o", path).exit_code == 0
    return path


# --- memory ---------------------------------------------------------------------------------------


def test_memory_of_a_plan_file_of_words_and_of_the_optimum(plan_file: Path) -> None:
    first = document(run("memory", plan_file, "--format", "json"))
    assert first["schema"] == "ilp_parallel.memory/1"
    assert first["fits"] is True
    optimum = document(run("memory", *SMALL, "--format", "json"))
    assert optimum["configuration"] == first["configuration"]
    assert optimum["stages"] == first["stages"]
    table = run("memory", *SMALL, "--plan", "pp=2 tp=2 mbs=2")
    assert table.exit_code == 0
    assert "weights" in table.stdout
    assert "fits: yes" in table.stdout


def test_memory_says_which_stages_do_not_fit(tmp_path: Path) -> None:
    picture = tmp_path / "bars.png"
    words = ("--plan", "pp=4 tp=2 mbs=2", "--plot", picture)
    cluster = ("--cluster", "v100-16gb:1x8", "--batch", "16", "--precision", "megatron-fp16")
    result = run("memory", "megatron-1.7b", *cluster, "--reserve-gib", "12", *words)
    assert result.exit_code == 6
    assert "fits: NO, stages 0" in result.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_pictures_are_the_same_twice_and_have_a_kind(plan_file: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "a.svg", tmp_path / "b.svg"
    for path in (first, second):
        assert run("memory", plan_file, "--plot", path).exit_code == 0
    assert first.read_bytes() == second.read_bytes()
    assert b"capacity" in first.read_bytes()
    assert code_of(run("memory", plan_file, "--plot", tmp_path / "a.jpg")) == "UNKNOWN_PICTURE"


def test_memory_of_a_job_that_fits_nowhere_points_to_explain() -> None:
    result = run("memory", "gpt3", "--cluster", "a100-80gb:1x8")
    assert code_of(result) == "NO_PLAN"
    assert "explain gpt3" in str(result.exception)


# --- min-gpus -------------------------------------------------------------------------------------


def test_fewest_nodes_with_every_smaller_number_refuted() -> None:
    words = ("--device", "a100-80gb", "--time-limit", "100")
    result = run("min-gpus", "llama2-70b", *words, "--format", "json")
    assert result.exit_code == 0
    found = document(result)
    assert found["proof"] == "exact"
    nodes = found["nodes"]
    assert isinstance(nodes, int)
    refuted = found["refuted"]
    assert isinstance(refuted, list)
    assert [entry["nodes"] for entry in refuted] == list(range(1, nodes))
    for entry in refuted:
        by_states = entry["states_bytes"] is not None
        assert by_states != (entry["configurations"] is not None)
        if by_states:
            assert entry["states_bytes"] > entry["usable_bytes"]
        else:
            assert all(held["most_layers"] < 80 for held in entry["configurations"])
    cluster = f"a100-80gb:{nodes}x8"
    solved = document(run("solve", "llama2-70b", "--cluster", cluster, "--format", "json"))
    assert solved["status"] == "optimal"
    assert solved["step_time_s"] == found["step_time_s"]
    smaller = run("solve", "llama2-70b", "--cluster", f"a100-80gb:{nodes - 1}x8")
    assert smaller.exit_code == 3


def test_a_step_time_that_is_not_proven_comes_with_its_bound() -> None:
    words = ("--device", "a100-80gb", "--time-limit", "0")
    result = run("min-gpus", "llama2-70b", *words)
    assert result.exit_code == 0
    assert "MINIMUM: 3 nodes" in result.stdout
    assert "stopped early, none is below" in result.stdout
    found = document(run("min-gpus", "llama2-70b", *words, "--format", "json"))
    assert found["step_time_status"] in ("unknown", "feasible")
    assert 0 < found["bound_s"] < found["step_time_s"]  # type: ignore[operator]


def test_an_answer_needs_enough_nodes() -> None:
    result = run("min-gpus", "gpt3", "--device", "a100-80gb", "--most-nodes", "3")
    assert result.exit_code == 5
    assert "stopped at 3 nodes" in result.stdout
    assert code_of(run("min-gpus", "gpt3", "--device", "x")) == "UNKNOWN_CLUSTER"
    two = run("min-gpus", "gpt3", "--device", "a100-80gb", "--cluster", "a100-80gb:2x8")
    assert code_of(two) == "TWO_CLUSTERS"


# --- explain --------------------------------------------------------------------------------------


def test_an_infeasible_job_is_explained_in_the_users_words() -> None:
    words = ("--cluster", "a100-80gb:2x8", "--fix", "zero=0", "--fix", "pp=1")
    result = run("explain", "llama2-70b", *words, "--format", "json")
    assert result.exit_code == 3
    found = document(result)
    assert found["status"] == "infeasible"
    conflict = found["conflict"]
    assert isinstance(conflict, dict)
    assert conflict["irreducible"] is True
    texts = {requirement["text"] for requirement in conflict["requirements"]}
    assert any("GiB per device" in text for text in texts)
    relaxations = found["relaxations"]
    assert isinstance(relaxations, list)
    assert relaxations
    assert all(r["plan"] and r["refuted"] for r in relaxations)
    text = run("explain", "llama2-70b", *words)
    assert text.stdout.startswith("INFEASIBLE (proven)")
    assert all(requirement in text.stdout for requirement in texts)
    assert "looking for a conflict" in text.stderr


def test_a_rule_behind_a_conflict_is_named() -> None:
    result = run("explain", *SMALL, "--fix", "tp=3")
    assert result.exit_code == 3
    assert "this requirement alone cannot be met" in result.stdout
    assert "--fix tp=3" in result.stdout
    assert "TP_CROSSES_NODE" in result.stdout


def test_a_feasible_job_has_nothing_to_explain() -> None:
    result = run("explain", *SMALL)
    assert result.exit_code == 0
    assert result.stdout.startswith("FEASIBLE")


def test_the_other_choice_and_its_cost_term_by_term(plan_file: Path) -> None:
    ours = read_plan(str(plan_file)).configuration.tensor
    other = 2 if ours != 2 else 4
    result = run("explain", plan_file, "--instead", f"tp={other}", "--format", "json")
    assert result.exit_code == 0
    (item,) = document(result)["alternatives"]  # type: ignore[misc]
    solved = document(run("solve", *SMALL, "--fix", f"tp={other}", "--format", "json"))
    assert item["step_time_s"] == pytest.approx(solved["step_time_s"])
    assert item["cost_ticks"] >= 0
    total = sum(term["other"] - term["plan"] for term in item["terms_s"].values())
    assert total == pytest.approx(item["cost_ticks"] * 1e-6, abs=2e-4)
    table = run("explain", plan_file, "--instead", f"tp={other}")
    assert "where the time goes" in table.stdout


def test_every_decision_is_taken_otherwise(plan_file: Path) -> None:
    result = run("explain", plan_file, "--format", "json")
    items = document(result)["alternatives"]
    assert isinstance(items, list)
    assert {item["choice"].split()[0] for item in items} >= {"pp", "tp", "mbs", "zero"}
    assert all(item["cost_ticks"] >= 0 for item in items if item["configuration"])


def test_an_impossible_choice_says_why(plan_file: Path) -> None:
    result = run("explain", plan_file, "--instead", "tp=3")
    assert result.exit_code == 0
    assert "impossible (NO_CONFIGURATION)" in result.stdout
    assert code_of(run("explain", plan_file, "--instead", "xx=3")) == "UNKNOWN_DECISION"


# --- check ----------------------------------------------------------------------------------------


def test_the_optimum_is_accepted(plan_file: Path) -> None:
    result = run("check", plan_file, "--format", "json")
    assert result.exit_code == 0
    found = document(result)
    assert found["schema"] == "ilp_parallel.check/1"
    assert (found["verdict"], found["framework"]) == ("accepted", "megatron")
    assert found["violations"] == []
    optimum = found["optimum"]
    assert isinstance(optimum, dict)
    assert optimum["excess"] == 0.0
    assert read_certificate(str(plan_file)).objective_ticks == round(optimum["step_time_s"] * 1e6)


def test_a_script_is_judged_and_mended(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(SCRIPT.replace("TP=2", "TP=3"))
    words = ("--format-in", "megatron", "--vocab", 50000, "--cluster", "a100-80gb:2x8")
    result = run("check", script, *words, "--format", "json")
    assert result.exit_code == 6
    found = document(result)
    violations = found["violations"]
    assert isinstance(violations, list)
    codes = {violation["code"] for violation in violations}
    assert {"TP_NOT_DIVIDING_HEADS", "DEVICES_NOT_DIVISIBLE"} <= codes
    assert all(violation["fix"] for violation in violations)
    mending = found["mending"]
    assert isinstance(mending, dict)
    assert [change["decision"] for change in mending["changes"]] == ["tp"]
    mended = tmp_path / "mended.json"
    mended.write_text(json.dumps(mending["plan"]))
    assert run("check", mended, "--for", "megatron").exit_code == 0
    text = run("check", script, *words)
    assert text.stdout.startswith("REJECTED")
    assert "smallest change: tp 3 -> " in text.stdout


def test_the_same_file_may_be_valid_for_one_framework_only(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(SCRIPT)
    words = ("--format-in", "megatron", "--vocab", 50000, "--cluster", "a100-80gb:2x8")
    assert run("check", script, *words).exit_code == 0
    other = run("check", script, *words, "--for", "accelerate")
    assert other.exit_code == 6
    assert "NOT_EXPRESSIBLE_IN_ACCELERATE: a pipeline of 4 stages" in other.stdout
    assert code_of(run("check", script, *words, "--for", "jax")) == "UNKNOWN_FRAMEWORK"


def test_files_of_other_frameworks(tmp_path: Path) -> None:
    toml, ds = tmp_path / "run.toml", tmp_path / "ds.json"
    toml.write_text(TITAN)
    ds.write_text(DEEPSPEED.replace('"train_batch_size": 64', '"train_batch_size": 63'))
    here = ("--cluster", "h100-80gb:1x8", "--model", "llama3-8b")
    first = run("check", toml, "--format-in", "torchtitan", *here)
    assert first.exit_code in (0, 6)
    assert "for torchtitan-toml" in first.stdout
    second = run("check", ds, "--format-in", "deepspeed", *here, "--format", "json")
    assert second.exit_code == 6
    assert [v["code"] for v in document(second)["violations"]] == [  # type: ignore[attr-defined]
        "BATCH_IDENTITY"
    ]


def test_words_that_do_not_fit_a_job_are_rejected() -> None:
    result = run("check", *SMALL, "--plan", "pp=8 tp=1 mbs=3")
    assert result.exit_code == 6
    assert "BATCH_NOT_DIVISIBLE" in result.stdout
    assert "smallest change: mbs 3 -> " in result.stdout
    assert code_of(run("check", *SMALL, "--plan", "pp=x")) == "BAD_PLAN_WORD"


@pytest.mark.parametrize("verb", ["check", "memory", "explain", "predict"])
def test_bad_input_is_one_line(verb: str, tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    result = run(verb, broken)
    assert code_of(result).startswith("MALFORMED")
    assert "\n" not in str(result.exception)
    run_with_both = run(verb, "x.sh", "--format-in", "megatron", "--plan", "pp=1")
    assert isinstance(run_with_both.exception, (InputError, SystemExit))


# --- predict --------------------------------------------------------------------------------------


def test_predict_reads_files_of_other_programs(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(SCRIPT)
    words = ("--format-in", "megatron", "--vocab", 50000, "--cluster", "a100-80gb:2x8")
    result = run("predict", script, *words, "--format", "json")
    assert result.exit_code == 0
    assert "ASSUMED: attention flash" in result.stderr
    found = document(result)
    checked = document(run("check", script, *words, "--format", "json"))
    assert checked["step_time_s"] == pytest.approx(found["step_time_s"], rel=1e-3)
