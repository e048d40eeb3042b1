"""Writes the benchmark set ``datasets/benchmarks/pipeline.json``; same seed, same bytes.

Run ``python benchmarks/make_set.py`` to write it again, with ``--check`` to compare only. Jobs are
drawn per model preset: a device, whether half of its memory is taken, how many times the fewest
nodes that hold the states, a batch, and a sequence length. Nothing here knows what a job costs, so
that the set does not depend on the cost model: whether a job is feasible is for the search to say.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ilp_parallel.specs.readers import load_cluster, load_model

if TYPE_CHECKING:
    from ilp_parallel.specs.model import ModelSpec

SEED = 20240607
JOBS_PER_MODEL = 4
MODELS = (
    *("gpt2-xl", "megatron-1.7b", "megatron-3.6b", "llama2-7b", "megatron-7.5b", "llama3-8b"),
    *("llama2-13b", "megatron-18.4b", "megatron-39.1b", "llama2-70b", "llama3-70b"),
    *("megatron-76.1b", "megatron-145.6b", "gpt3", "bloom-176b", "megatron-310.1b"),
    *("llama3-405b", "megatron-529.6b", "turing-530b", "megatron-1t"),
)
DEVICES = ("v100-32gb", "a100-40gb", "a100-80gb", "h100-80gb", "h200-141gb")
PER_NODE = 8
STATE_BYTES = 18  # per parameter, mixed precision with Adam
SHARE = 0.6  # of the memory, for states
NODES = (1, 2, 4, 8)  # times the fewest that hold the states
MOST_DEVICES = 2048
BATCHES = (64, 128, 256, 512, 1024, 1536, 2048)
SEQUENCES = (1024, 2048, 4096, 8192)
TIGHT_SHARE = 1 / 3  # of the jobs
FILE = Path(__file__).resolve().parent.parent / "datasets/benchmarks/pipeline.json"


def main() -> None:
    text = document_text()
    if "--check" in sys.argv[1:]:
        raise SystemExit(0 if FILE.read_text(encoding="utf-8") == text else f"{FILE} differs")
    FILE.write_text(text, encoding="utf-8")


def document_text() -> str:
    """The set as JSON, one job a line."""
    lines = ",\n".join(f"  {json.dumps(job)}" for job in jobs())
    return (
        f'{{\n "schema": "ilp_parallel.benchmark/1",\n "seed": {SEED},\n'
        f' "jobs": [\n{lines}\n ]\n}}\n'
    )


def jobs() -> list[dict[str, object]]:
    """All jobs, by model and then in the order drawn; no two are the same."""
    rng = np.random.default_rng(SEED)
    result: list[dict[str, object]] = []
    for name in MODELS:
        model, drawn = load_model(name), []
        while len(drawn) < JOBS_PER_MODEL:
            job = draw(rng, name, model)
            if job is not None and job not in drawn:
                drawn.append(job)
        result += drawn
    return [{"id": f"p{i:02d}", **job} for i, job in enumerate(result, start=1)]


def draw(rng: np.random.Generator, name: str, model: ModelSpec) -> dict[str, object] | None:
    """One job, or None where the draw makes no sense."""
    device = str(rng.choice(DEVICES))
    tight = bool(rng.random() < TIGHT_SHARE)
    memory_bytes = load_cluster(device).device.memory_bytes
    taken_gib = round(memory_bytes / 2**31) if tight else None
    usable = memory_bytes / (2 if tight else 1)
    needed = model.parameters * STATE_BYTES / (usable * SHARE * PER_NODE)
    nodes = int(2 ** np.ceil(np.log2(max(1.0, needed)))) * int(rng.choice(NODES))
    batch, sequence = int(rng.choice(BATCHES)), int(rng.choice(SEQUENCES))
    devices = nodes * PER_NODE
    if devices > MOST_DEVICES or batch * 16 < devices or batch > 64 * devices:
        return None
    if model.learned_positions and sequence > model.learned_positions:
        return None
    job: dict[str, object] = {
        "model": name,
        "cluster": f"{device}:{nodes}x{PER_NODE}",
        "batch": batch,
        "sequence": sequence,
    }
    return job if taken_gib is None else {**job, "reserve_gib": taken_gib}


if __name__ == "__main__":
    main()
