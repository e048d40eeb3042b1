"""Published plans of Megatron-Bridge: read, valid under its rules, exported and read back.

The table is read in place from the folder that ILP_PARALLEL_CASES names.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from ilp_parallel.configuration import Configuration, Strategy
from ilp_parallel.errors import InputError
from ilp_parallel.export.bridge import read_settings
from ilp_parallel.export.megatron_blocks import predicted_layers
from ilp_parallel.export.megatron_flags import MegatronExport, MegatronFlags
from ilp_parallel.export.megatron_reader import parse_megatron
from ilp_parallel.export.megatron_reader import stage_sizes as stages_of
from ilp_parallel.export.megatron_rules import validate_megatron
from ilp_parallel.export.registry import export_plan
from ilp_parallel.imports.complete import job_from, plan_from
from ilp_parallel.imports.megatron import read_megatron
from ilp_parallel.imports.record import Imported
from ilp_parallel.measured.plans import stage_sizes
from ilp_parallel.plan import Plan
from ilp_parallel.spaces import Pins, enumerate_configurations, get_space
from ilp_parallel.specs.readers import load_cluster, load_model

FOLDER = os.environ.get("ILP_PARALLEL_CASES", "")
pytestmark = pytest.mark.skipif(
    not (Path(FOLDER) / "reference_plans.jsonl").is_file() or not FOLDER,
    reason="ILP_PARALLEL_CASES names no folder with reference_plans.jsonl",
)

DENSE = {"LLAMA3_8B": "llama3-8b", "LLAMA3.1_405B": "llama3-405b"}
MIXTURES = {
    "DeepSeekV3": "deepseek-v3",
    "Kimi_K2": "kimi-k2",
    "Qwen3_235B_a22B": "qwen3-235b-a22b",
    "Qwen3_30B_a3B": "qwen3-30b-a3b",
}
PRESETS = DENSE | MIXTURES
OTHERS = ("Nemotron_3",)
"""Without a preset: their experts work in a latent space."""
DEVICES = {"DGX-GB300": ("gb300", 4), "DGX-GB200": ("gb200", 4), "DGX-B300": ("b300", 8)}
DEVICES |= {"DGX-B200": ("b200", 8), "DGX-H100": ("h100", 8)}
CELL = re.compile(r"(\d+)(?: \((\d+)\))?")


@dataclass(frozen=True)
class Row:
    """One published plan; ``ga`` (gradient accumulation) is stated by some tables only."""

    model: str
    system: str
    precision: str
    gpus: int
    gbs: int
    mbs: int
    seq: int
    tp: int
    pp: int
    cp: int
    vpp: int
    ep: int
    fsdp: int
    ga: int | None

    @property
    def name(self) -> str:
        """The model, remarks in brackets left out."""
        return self.model.partition(" (")[0]


NUMBERS = ("gpus", "gbs", "mbs", "seq", "tp", "pp", "cp", "vpp", "ep", "fsdp", "ga")


def rows() -> list[Row]:
    """Every row; one whose cells state two precisions, as in ``2 (4)``, counts twice."""
    found = []
    with (Path(FOLDER) / "reference_plans.jsonl").open(encoding="utf-8") as lines:
        for line in lines:
            data = json.loads(line)
            cells = {name: str(data.get(name)) for name in NUMBERS}
            matches = {name: CELL.fullmatch(text) for name, text in cells.items()}
            twice = any(match and match[2] for match in matches.values())
            for variant in (1, 2) if twice else (1,):
                numbers = {
                    name: int(match[variant] or match[1]) if match else None
                    for name, match in matches.items()
                }
                default = {"vpp": 1, "ep": 1, "fsdp": 0, "ga": None}
                values = {k: default.get(k) if v is None else v for k, v in numbers.items()}
                kind = str(data.get("precision"))
                found.append(Row(data["model"], data["system"], kind, **values))  # type: ignore[arg-type]
    return found


def plan_of(row: Row) -> Plan:
    device, per_node = DEVICES[row.system]
    model = load_model(PRESETS[row.name])
    cluster = load_cluster(f"{device}:{row.gpus // per_node}x{per_node}")
    data = row.gpus // (row.tp * row.pp * row.cp)
    found = Imported(
        form="table",
        stack="megatron",
        devices=row.gpus,
        global_batch=row.gbs,
        sequence_length=row.seq,
        precision="fp8",
        optimizer="adam",
        attention="flash",
        pipeline=row.pp,
        tensor=row.tp,
        context=row.cp,
        data=data,
        microbatch=row.mbs,
        microbatches=row.ga,
        chunks=row.vpp,
        expert=row.ep,
        expert_tensor=1,
        sequence_parallel=row.tp > 1,
        schedule="interleaved" if row.vpp > 1 else "1f1b",
        sizes=stage_sizes(model.layers, row.pp * row.vpp),
        zero=("3-regather",) if row.fsdp else ("1",),
        recompute=((),),
    )
    return plan_from(found, job_from(found, model, cluster, {}))[0]


def test_every_row_is_read_and_of_a_known_kind() -> None:
    found = rows()
    assert len(found) >= 174
    for row in found:
        assert row.gpus % (row.tp * row.pp * row.cp) == 0
        assert row.name in PRESETS or row.name.startswith(OTHERS)


def dense_rows() -> list[Row]:
    return [row for row in rows() if row.model in DENSE]


def mixture_rows() -> list[Row]:
    return [row for row in rows() if row.name in MIXTURES]


def holds_layers_everywhere(row: Row) -> bool:
    """Whether no virtual stage holds the embedding or the loss alone, which no plan here says."""
    return min(stage_sizes(load_model(PRESETS[row.name]).layers, row.pp * row.vpp)) > 0


def options(row: Row) -> MegatronExport:
    """The row as Megatron-LM's options, ends counted as layers where the layers do not divide."""
    model = load_model(DENSE[row.model])
    switches = {
        "--sequence-parallel": row.tp > 1,
        "--account-for-embedding-in-pipeline-split": model.layers % (row.pp * row.vpp) > 0,
        "--account-for-loss-in-pipeline-split": model.layers % (row.pp * row.vpp) > 0,
        "--use-distributed-optimizer": True,
        "--group-query-attention": True,
    }
    values = {
        "--num-layers": model.layers,
        "--num-attention-heads": model.heads,
        "--num-query-groups": model.kv_heads,
        "--ffn-hidden-size": model.ffn_hidden,
        "--seq-length": row.seq,
        "--max-position-embeddings": row.seq,
        "--tensor-model-parallel-size": row.tp,
        "--pipeline-model-parallel-size": row.pp,
        "--context-parallel-size": row.cp,
        "--micro-batch-size": row.mbs,
        "--global-batch-size": row.gbs,
    }
    if row.vpp > 1:
        values["--num-virtual-stages-per-pipeline-rank"] = row.vpp
    words = [switch for switch, on in switches.items() if on]
    words += [word for name, value in values.items() for word in (name, str(value))]
    return MegatronExport(
        flags=MegatronFlags.from_arguments(words),
        environment=(("CUDA_DEVICE_MAX_CONNECTIONS", "1"),),
        nodes=row.gpus // DEVICES[row.system][1],
        devices_per_node=DEVICES[row.system][1],
        generation="hopper",
        warnings=(),
    )


def test_every_dense_row_keeps_the_rules_of_megatron() -> None:
    for row in dense_rows():
        export = options(row)
        assert validate_megatron(export) == ()
        model = load_model(DENSE[row.model])
        assert stages_of(export.flags) == stage_sizes(model.layers, row.pp * row.vpp)
        configuration, _, _ = parse_megatron(export.flags.arguments, row.gpus)
        assert configuration.chunks == row.vpp
        assert row.ga is None or configuration.microbatches == row.ga


def test_dense_plans_are_exported_and_read_back() -> None:
    found = [row for row in dense_rows() if holds_layers_everywhere(row)]
    assert len(found) >= 30
    for row in found:
        plan = plan_of(row)
        expected = (plan.configuration, plan.sizes, plan.strategies)
        text = export_plan(plan, "megatron-bridge").text
        words = read_settings(text, plan.model.layers).arguments
        assert parse_megatron(words, row.gpus) == expected
        script = export_plan(plan, "megatron").text
        assert "--pipeline-model-parallel-size" in script


def test_plans_with_experts_are_exported_and_read_back() -> None:
    found = [row for row in mixture_rows() if holds_layers_everywhere(row)]
    assert len(found) >= 80
    for row in found:
        plan = plan_of(row)
        assert plan.configuration.expert == row.ep
        expected = (plan.configuration, plan.sizes, plan.strategies)
        words = export_plan(plan, "megatron").text
        flags = read_megatron(words, "run.sh", row.gpus)
        assert (flags.expert, flags.expert_tensor, flags.sizes) == (row.ep, 1, plan.sizes)
        settings = export_plan(plan, "megatron-bridge").text
        layers = plan.model.layers - predicted_layers(plan.model)
        experts = plan.model.all_experts[0].count
        read = read_settings(settings, layers, experts).arguments
        assert parse_megatron((*read, *predicting(plan)), row.gpus) == expected


def predicting(plan: Plan) -> tuple[str, ...]:
    """The prediction layers of a recipe's model."""
    count = predicted_layers(plan.model)
    return ("--mtp-num-layers", str(count)) if count else ()


def outside(plan: Plan) -> str:
    """Why the ``megatron`` space does not search a plan; empty where it does."""
    g = plan.configuration
    if g.chunks > 1 and len(set(plan.sizes)) > 1:
        return "unequal chunks of a device"
    space = get_space("megatron")
    found = enumerate_configurations(
        plan.model, plan.cluster, plan.job, space, Pins(), ("1f1b", "interleaved")
    )
    assert g in [entry for entry in found if isinstance(entry, Configuration)]
    assert {strategy.zero for strategy in plan.strategies} <= set(space.zero)
    return ""


def test_dense_plans_are_inside_the_space_or_named_outside() -> None:
    found = [row for row in dense_rows() if holds_layers_everywhere(row)]
    counts = Counter(outside(plan_of(row)) for row in found)
    assert counts[""] > 0
    assert set(counts) <= {"", "unequal chunks of a device"}


def test_a_plan_that_breaks_a_rule_would_be_noticed() -> None:
    row = next(row for row in dense_rows() if row.vpp > 1)
    plan = plan_of(row)
    broken = Strategy("2-scatter", ())
    with pytest.raises(InputError):
        export_plan(
            Plan(
                *(plan.model, plan.cluster, plan.job, plan.space),
                plan.configuration,
                plan.sizes,
                (broken,) * plan.model.layers,
            ),
            "megatron-bridge",
        )
