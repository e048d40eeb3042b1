"""Whatever a file holds, a reader gives a record or one line of error, quickly and in little room.

``--fuzz N`` sets how many mutated inputs are read.
"""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ilp_parallel.errors import InputError
from ilp_parallel.export.bridge import read_settings
from ilp_parallel.export.registry import EXPORTERS, export_plan
from ilp_parallel.imports.complete import job_from, model_from, plan_from
from ilp_parallel.imports.nccl import read_nccl
from ilp_parallel.imports.registry import read_texts
from ilp_parallel.specs.cluster_notations import from_hostfile, from_skypilot, from_slurm
from ilp_parallel.specs.documents import parse_document
from ilp_parallel.specs.huggingface import NOT_YET_SEARCHED, model_fields
from ilp_parallel.specs.huggingface_experts import EXPERT_IMPORTERS
from ilp_parallel.specs.huggingface_families import DENSE_IMPORTERS
from ilp_parallel.specs.huggingface_others import OTHER_IMPORTERS
from ilp_parallel.specs.readers import load_cluster, load_model
from ilp_parallel.specs.validate import to_model
from tests.imports import runs

if TYPE_CHECKING:
    from pathlib import Path

    from ilp_parallel.specs.model import ModelSpec

CLUSTER, NODE = load_cluster("a100-80gb:2x8"), load_cluster("a100-80gb:8")
MODELS = tuple(map(load_model, ("llama3-8b", "llama2-7b")))
SECONDS, PEAK_BYTES = 1.0, 1 << 30

BRIDGE = (
    "def apply_plan(cfg):\n    cfg.model.tensor_model_parallel_size = 2\n"
    "    cfg.train.micro_batch_size = 1\n    cfg.model.recompute_modules = ['mlp']\n"
    "    cfg.model.pipeline_model_parallel_layout = 'Et*2|(t|)*2,tL'\n"
)
HUGGING = (
    '{"model_type": "llama", "hidden_size": 64, "n_embd": 64, "d_model": 64, "n_head": 4, '
    '"n_heads": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, '
    '"n_layer": 2, "n_layers": 2, "intermediate_size": 128, "ffn_dim": 128, "vocab_size": 100, '
    '"n_positions": 64, "max_position_embeddings": 64, "sliding_window": null, '
    '"layer_types": ["full_attention", "full_attention"], "attn_config": {"alibi": true}, '
    '"hidden_act": "silu"}'
)
HUGGING_BLOCKS = (
    '{"model_type": "llama", "hidden_size": 64, "d_model": 64, "num_attention_heads": 4, '
    '"num_heads": 4, "num_key_value_heads": 4, "num_hidden_layers": 3, "num_layers": 2, '
    '"intermediate_size": 96, "d_ff": 96, "d_kv": 16, "head_dim": 16, "vocab_size": 100, '
    '"max_position_embeddings": 64, "sliding_window": 8, "num_local_experts": 4, "moe_k": 2, '
    '"num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 1, '
    '"shared_expert_intermediate_size": 32, "first_k_dense_replace": 1, "mlp_only_layers": [1], '
    '"decoder_sparse_step": 1, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 16, '
    '"qk_rope_head_dim": 8, "v_head_dim": 16, "num_nextn_predict_layers": 0, '
    '"intermediate_size_mlp": 96, "shared_intermediate_size": 32, "attn_layer_indices": [1], '
    '"mamba_n_heads": 8, "mamba_num_heads": 8, "mamba_head_dim": 16, "mamba_d_state": 16, '
    '"ssm_state_size": 16, "n_groups": 2, "hybrid_override_pattern": "M*-", '
    '"attn_config": {"kv_n_heads": 2}, "ffn_config": {"moe_num_experts": 4, "moe_top_k": 2, '
    '"ffn_hidden_size": 32}, "n_heads": 4, "n_layers": 3, "layer_types": null}'
)
SKY = "num_nodes: 4\nresources:\n  accelerators: H100:8\n"
HOSTS = "# hosts\nn1 slots=8\nn2 slots=8 max_slots=8\nn3:4\n"
SLURM = "--nodes=4 --gres=gpu:h100:8 --gpus-per-node=h100:8 -N 2 #SBATCH --nodes=3"
ARGUMENTS = (
    "--num-layers 12 --hidden-size 64 --num-attention-heads 4 --micro-batch-size 1 "
    "--global-batch-size 32 --seq-length 64 --max-position-embeddings 64 --vocab-size 100 "
    "--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout Et*2|(t*3|)*2,t*4L "
    "--recompute-granularity full --recompute-method block --recompute-num-layers 2"
)
PIECES = [
    *("", "0", "1", "-1", "2", "3", "8", "9" * 20, "9" * 5000, "1e9", "1.5", "nan", "null", "true"),
    *(
        '"',
        "'",
        "[",
        "]",
        "{",
        "}",
        "(",
        ")",
        "$",
        "${A}",
        "$((2**9))",
        "$((9*9))",
        "`",
        "\\",
        "\n",
    ),
    *("\x00", "\ud7ff", "é", "#", "|", "*", "=", ",", ":", "- ", "&a ", "*a", "!!python/object:x"),
    *("[" * 200, "(" * 200, "{" * 200, "t*999999", "(t|)*999999", "A=$A$A\n", "--num-layers 1"),
    *("\nif [ $TP = 2 ]; then\n", "\nfi\n", "\nelse ", "then " * 50, "\nA+=(", " || ", " && "),
    *('"auto"', '"full"', "[[]]", '[["layers.0"]]', '{"stage": 3}', "1,1,1,1,1", "4294967296"),
]


def finish(form: str, *texts: str) -> None:
    """Read, complete with a model and a cluster if need be, and export."""
    found = read_texts([(text, "file") for text in texts], form, None)
    rng = random.Random(len(texts[0]))
    model: ModelSpec | None = None
    if "hidden" not in found.shapes:
        model = rng.choice(MODELS)
        layers = found.shapes.get("layers", model.layers)
        model = replace(model, layers=layers if isinstance(layers, int) else 1)
    cluster = found.cluster or (NODE if found.devices == NODE.devices else CLUSTER)
    given = {
        "sequence_length": found.sequence_length or 64,
        "global_batch": found.global_batch or 64,
    }
    spec = model_from(found, model, None if model else 100)
    plan, _ = plan_from(found, job_from(found, spec, cluster, given))
    with suppress(InputError):  # not every framework can say every plan
        export_plan(plan, rng.choice(list(EXPORTERS)))


def hugging_face(text: str, kinds: Sequence[str] = (*DENSE_IMPORTERS, *NOT_YET_SEARCHED)) -> None:
    kind = random.Random(len(text) + sum(map(ord, text[:200]))).choice(kinds)
    data = parse_document(text.replace('"llama"', f'"{kind}"').encode(), "config.json")
    model = to_model(model_fields(data, "config.json"), "config.json")
    assert 0 < model.main_parameters <= model.parameters


def calculon(text: str) -> None:
    """One of the three files is mutated; which one, its fields say."""
    others = {"hidden": runs.APPLICATION, "num_procs": runs.EXECUTION, "networks": runs.SYSTEM}
    rest = [other for key, other in others.items() if key not in text]
    finish("calculon", text, *rest)


def skypilot(text: str) -> None:
    data = parse_document(text.encode(), "task.yaml")
    if isinstance(data.get("resources"), dict):
        from_skypilot(data)


Reader = Callable[[str], object]
READERS: list[tuple[str, Reader]] = [
    (runs.SCRIPT, lambda text: finish("megatron", text)),
    (ARGUMENTS, lambda text: finish("megatron", text)),
    (runs.TITAN, lambda text: finish("torchtitan", text)),
    (runs.DEEPSPEED, lambda text: finish("deepspeed", text)),
    (runs.GALVATRON, lambda text: finish("galvatron", text)),
    (runs.APPLICATION, calculon),
    (runs.EXECUTION, calculon),
    (runs.SYSTEM, calculon),
    (runs.NCCL_HEADER + runs.NCCL_ROWS, lambda text: read_nccl(text, "file")),
    (SLURM, from_slurm),
    (SKY, skypilot),
    (HUGGING, hugging_face),
    (HUGGING_BLOCKS, lambda text: hugging_face(text, (*EXPERT_IMPORTERS, *OTHER_IMPORTERS))),
    (BRIDGE, lambda text: read_settings(text, 8)),
]


def mutated(rng: random.Random, text: str) -> str:
    """A text with pieces put in, taken out, repeated or exchanged."""
    for _ in range(rng.randint(1, 5)):
        start = rng.randrange(len(text) + 1)
        stop = min(len(text), start + rng.choice((0, 1, 1, 2, 5, 20, 100)))
        kind = rng.random()
        if kind < 0.4:
            numbers = [i for i, c in enumerate(text) if c.isdigit()]
            start = rng.choice(numbers) if numbers else start
            stop = start + 1
        piece = text[start:stop] * rng.randint(2, 4) if kind > 0.9 else rng.choice(PIECES)
        text = text[:start] + piece + text[stop:]
    return text


def survives(reader: Reader, text: str) -> bool:
    """Whether the reader took the text; any error but ``InputError``, or a long wait, fails."""
    started = time.perf_counter()
    try:
        reader(text)
        taken = True
    except InputError as error:
        assert error.code.replace("_", "").isalnum()
        assert str(error).isprintable(), str(error)
        assert len(str(error)) < 1000
        taken = False
    assert time.perf_counter() - started < SECONDS, text
    return taken


def test_the_seeds_themselves_are_taken() -> None:
    assert [survives(reader, text) for text, reader in READERS] == [True] * len(READERS)


def test_mutated_inputs(seeds: range) -> None:
    taken = 0
    for seed in seeds:
        rng = random.Random(seed)
        text, reader = READERS[seed % len(READERS)]
        taken += survives(reader, mutated(rng, text))
    assert 0 < taken < len(seeds)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 < PEAK_BYTES


def test_mutated_hostfiles(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    for seed in range(200):
        path.write_text(mutated(random.Random(seed), HOSTS), encoding="utf-8")
        survives(lambda text: from_hostfile("h100", text), str(path))


@pytest.mark.parametrize("form", ["megatron", "torchtitan", "deepspeed", "galvatron", "calculon"])
def test_random_characters(form: str) -> None:
    rng = random.Random(form)
    for _ in range(300):
        text = "".join(
            chr(rng.choice((10, 32, 34, 36, 40, 91, 123, rng.randrange(1, 0xD7FF))))
            for _ in range(rng.randrange(80))
        )
        assert not survives(lambda t: read_texts([(t, "file")], form, None), f"{text}!")
