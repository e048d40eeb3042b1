"""The verbs export and import, and solve on a run in a foreign file."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from ilp_parallel.cli.app import cli
from ilp_parallel.configuration import Strategy
from ilp_parallel.errors import InputError
from ilp_parallel.plan_files import plan_document, read_plan
from tests.export.plans import plan_of
from tests.imports.runs import APPLICATION, EXECUTION, NCCL_ROWS, SCRIPT, SYSTEM

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result


def run(*words: object) -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words])


def code_of(result: Result) -> str:
    assert isinstance(result.exception, InputError)
    return result.exception.code


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    plan = plan_of((2, 2), (Strategy("1", ()),) * 4, pipeline=2)
    path = tmp_path / "plan.json"
    path.write_text(
        json.dumps(plan_document(replace(plan, cluster=replace(plan.cluster, nodes=2))))
    )
    return path


def test_warnings_go_to_standard_error_and_companions_beside(
    plan_file: Path, tmp_path: Path
) -> None:
    result = run("export", plan_file, "--to", "deepspeed")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["train_batch_size"] == 48
    assert "STAGES_IN_CODE: " in result.stderr
    assert "COMPANION_FILE: pipeline_stages.py" in result.stderr
    folder = tmp_path / "out"
    folder.mkdir()
    assert run("export", plan_file, "--to", "deepspeed", "-o", folder).exit_code == 0
    assert {path.name for path in folder.iterdir()} == {"ds_config.json", "pipeline_stages.py"}


def test_export_as_json_has_files_warnings_and_the_plan(plan_file: Path) -> None:
    result = run("export", plan_file, "--to", "colossalai", "--format", "json")
    document = json.loads(result.stdout)
    assert document["schema"] == "ilp_parallel.export/1"
    assert list(document["files"]) == ["plugin.py"]
    assert document["warnings"][0]["code"] == "PRECISION_RECIPE_DIFFERS"
    assert document["plan"]["job"]["precision"] == "deepspeed-bf16"


def test_what_cannot_be_expressed_is_refused(plan_file: Path) -> None:
    assert (
        code_of(run("export", plan_file, "--to", "accelerate")) == "NOT_EXPRESSIBLE_IN_ACCELERATE"
    )


def test_a_script_becomes_a_plan_file(tmp_path: Path) -> None:
    script, out = tmp_path / "run.sh", tmp_path / "plan.json"
    script.write_text(SCRIPT)
    words = ("import", script, "--format-in", "megatron", "--vocab", 50000)
    assert code_of(run(*words)) == "CLUSTER_OPEN"
    result = run(*words, "--cluster", "--nodes=2 --gres=gpu:a100:8", "-o", out)
    assert result.exit_code == 0
    assert result.stderr == "ASSUMED: attention flash\n"
    assert read_plan(str(out)).configuration.name == "pp4 tp2 dp2 mbs1 m32 sp 1f1b"
    assert run("predict", out).exit_code == 0
    assert "pretrain_gpt.py" in run("export", out, "--to", "megatron").stdout


def test_calculon_takes_three_files(tmp_path: Path) -> None:
    paths = []
    for name, text in (("app", APPLICATION), ("exe", EXECUTION), ("sys", SYSTEM)):
        paths.append(tmp_path / f"{name}.json")
        paths[-1].write_text(text)
    also = ("--also", paths[1], "--also", paths[2])
    result = run("import", paths[0], "--format-in", "calculon", *also)
    assert result.exit_code == 0
    assert json.loads(result.stdout)["configuration"]["chunks"] == 3


def test_solve_takes_model_and_job_from_the_file(tmp_path: Path) -> None:
    script, nccl = tmp_path / "run.sh", tmp_path / "nccl.txt"
    script.write_text(SCRIPT)
    nccl.write_text(NCCL_ROWS)
    words = ("--format-in", "megatron", "--vocab", 50000, "--cluster", "a100:2x8")
    result = run("solve", script, *words, "--nccl-intra", nccl, "--format", "json")
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert document["status"] == "optimal"
    assert document["plan"]["model"]["layers"] == 12
    assert document["plan"]["job"]["global_batch"] == 64


@pytest.mark.parametrize("words", [("--vocab", "5"), ("--model", "gpt3"), ("--also", "x")])
def test_options_of_a_foreign_file_need_its_format(words: tuple[str, ...]) -> None:
    assert code_of(run("solve", "gpt3", *words)) == "FORMAT_MISSING"


def test_import_needs_a_format(tmp_path: Path) -> None:
    assert code_of(run("import", tmp_path / "run.sh")) == "FORMAT_MISSING"


def test_what_a_model_leaves_out_is_said(tmp_path: Path) -> None:
    config = {
        "model_type": "olmo2",
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "num_hidden_layers": 4,
        "vocab_size": 1000,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    result = run("solve", path, "--cluster", "a100:2", "--batch", 4, "--seq", 256)
    assert result.exit_code == 0
    assert "approximated: no norms of queries and keys" in result.stdout
