"""From a measured run to the plans it may have been.

What a row leaves blank is completed in every admissible way: a blank recomputation by none,
selective and full, a blank number of chunks or microbatch by whatever divides. The completions are
ordered so that the first is the assumed one: the fastest that the memory model lets fit, for
published runs are tuned runs. The measured time is never looked at.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ilp_parallel.configuration import Configuration, Strategy
from ilp_parallel.errors import InputError
from ilp_parallel.measured.naming import (
    NotCoveredError,
    device_of,
    family_of,
    habit_of,
    kernels_of,
    mixture_of,
    network_bytes_per_s,
    precision_of,
)
from ilp_parallel.measured.software import MeasuredCosts, software_of
from ilp_parallel.plan import Plan
from ilp_parallel.specs.job import JobSpec
from ilp_parallel.specs.model import ModelSpec
from ilp_parallel.specs.readers import load_cluster
from ilp_parallel.specs.validate import check_cluster, check_job, check_model

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ilp_parallel.configuration import Zero
    from ilp_parallel.measured.conventions import Habit
    from ilp_parallel.measured.runs import Run
    from ilp_parallel.specs.cluster import ClusterSpec


_MODULES: dict[str | None, tuple[tuple[str, ...], ...]] = {
    None: ((), ("core_attn",), ("mlp",), ("full",)),
    "none": ((),),
    "selective": (("core_attn",),),
    "full": (("full",),),
}
"""Modules that the column ``recompute`` may mean."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a row was completed to."""

    recompute: tuple[str, ...]
    microbatch: int
    chunks: int


def plans_of(run: Run) -> tuple[Plan, ...]:
    """Every plan the run may have been.

    Raises
    ------
    NotCoveredError
        If the cost model does not describe the run.
    """
    _require_covered(run)
    habit = habit_of(run.framework)
    model, cluster, job = model_of(run), cluster_of(run), job_of(run, habit)
    plans = tuple(_plan(run, habit, model, cluster, job, s) for s in _settings(run, habit, model))
    if not plans:
        raise NotCoveredError("batch does not divide")
    return plans


def _require_covered(run: Run) -> None:
    if run.arch_kind not in ("dense", "moe"):
        raise NotCoveredError(f"{run.arch_kind} model")
    if run.task == "lora":
        raise NotCoveredError("LoRA")
    sizes = (run.layers, run.hidden, run.vocab, run.seq_len, run.n_gpus, run.gbs, run.tp, run.pp)
    if None in sizes:
        raise NotCoveredError("shapes or degrees missing")


def model_of(run: Run) -> ModelSpec:
    """The run's model from its shapes; with experts, the preset it names.

    Raises
    ------
    NotCoveredError
        If there is no such preset.
    """
    if run.arch_kind == "moe":
        return mixture_of(run.model)
    family = family_of(run.family, run.model, bool(run.gated_mlp))
    assert run.layers and run.hidden and run.vocab and run.seq_len
    heads = run.heads or max(1, run.hidden // 128)
    ffn = run.ffn or 4 * run.hidden
    return ModelSpec(
        name=run.model,
        layers=run.layers,
        hidden=run.hidden,
        heads=heads,
        kv_heads=run.kv_heads or heads,
        head_dim=run.hidden // heads,
        ffn_hidden=ffn,
        vocab=run.vocab,
        gated_mlp=bool(run.gated_mlp),
        norm=family.norm,
        activation="silu" if run.gated_mlp else "gelu",
        qkv_bias=family.bias,
        projection_bias=family.bias,
        mlp_bias=family.bias,
        learned_positions=run.seq_len if family.positions else 0,
        embedding_norm=family.embedding_norm,
        tied_embeddings=family.tied,
        dropout=family.dropout,
    )


def cluster_of(run: Run) -> ClusterSpec:
    """The devices of the run, with the network its source states or else the usual one."""
    device = device_of(run.gpu, run.gpu_mem_gb)
    assert run.n_gpus is not None
    cluster = load_cluster(device)
    node = cluster.devices_per_node
    if node == 8 and run.gpus_per_node:
        node = run.gpus_per_node
    node = max(size for size in range(1, node + 1) if run.n_gpus % size == 0)
    inter = cluster.inter
    bandwidth = network_bytes_per_s(run.inter_node_net, run.gpus_per_node or node)
    if bandwidth is not None:
        inter = replace(inter, bandwidth_bytes_per_s=bandwidth)
    return replace(
        cluster,
        name=f"{device}:{run.n_gpus // node}x{node}",
        nodes=run.n_gpus // node,
        devices_per_node=node,
        inter=inter,
    )


def job_of(run: Run, habit: Habit) -> JobSpec:
    """Batch, kernels, precision and stack of the run."""
    assert run.gbs and run.seq_len
    attention, norm_kernel = kernels_of(run.attn_kernel, habit)
    return JobSpec(
        global_batch=run.gbs,
        sequence_length=run.seq_len,
        precision=precision_of(run.precision, habit),
        attention=attention,
        norm_kernel=norm_kernel,
        stack=habit.stack,
    )


def _settings(run: Run, habit: Habit, model: ModelSpec) -> Iterator[Setting]:
    """Every admissible completion of what the row leaves blank."""
    assert run.gbs and run.pp
    data = _data(run)
    share = run.gbs // data
    microbatches = (run.mbs,) if run.mbs else tuple(b for b in (1, 2, 4, 8, 16) if share % b == 0)
    chunks: tuple[int, ...] = (run.vpp or 1,)
    if run.vpp is None and habit.interleaved and run.pp > 1:
        chunks = tuple(v for v in range(1, 9) if model.layers % (run.pp * v) == 0)
    if run.recompute not in _MODULES:
        raise NotCoveredError(f"recomputation {run.recompute}")
    for b, v, recompute in itertools.product(microbatches, chunks, _MODULES[run.recompute]):
        count = share // b
        if share % b == 0 and (v == 1 or (run.pp > 1 and count % run.pp == 0)):
            yield Setting(recompute, b, v)


def _data(run: Run) -> int:
    assert run.n_gpus and run.tp and run.pp
    replica = run.tp * run.pp * (run.cp or 1)
    data = run.dp or run.n_gpus // replica
    if replica * data != run.n_gpus:
        raise NotCoveredError("degrees do not multiply to the devices")
    return data


def _plan(
    run: Run,
    habit: Habit,
    model: ModelSpec,
    cluster: ClusterSpec,
    job: JobSpec,
    setting: Setting,
) -> Plan:
    assert run.gbs and run.tp and run.pp
    data, context = _data(run), run.cp or 1
    parallel = habit.sequence_parallel if run.seq_par is None else run.seq_par
    strategy = Strategy(_zero(run, habit, data * context), setting.recompute)
    configuration = Configuration(
        pipeline=run.pp,
        tensor=run.tp,
        data=data,
        microbatch=setting.microbatch,
        microbatches=run.gbs // data // setting.microbatch,
        chunks=setting.chunks,
        sequence_parallel=parallel and run.tp > 1,
        schedule="interleaved" if setting.chunks > 1 else "1f1b",
        context=context,
        expert=run.ep or 1,
    )
    return Plan(
        model=model,
        cluster=cluster,
        job=job,
        space="mixed",
        configuration=configuration,
        sizes=stage_sizes(model.layers, run.pp * setting.chunks),
        strategies=(strategy,) * model.layers,
    )


def _zero(run: Run, habit: Habit, shards: int) -> Zero:
    if shards == 1:
        return "0"
    if run.zero is None:
        return habit.zero
    # FSDP's SHARD_GRAD_OP, printed as stage 2, keeps gathered weights after forward
    two: Zero = "3-keep" if habit.stack == "fsdp" else "2-scatter"
    return {0: "0", 1: "1", 2: two, 3: "3-regather"}[run.zero]  # type: ignore[return-value]


def stage_sizes(layers: int, stages: int) -> tuple[int, ...]:
    """Layers of each virtual stage: equal, or both ends one lighter, or as equal as possible.

    Megatron counts the embedding and the head as a layer each where that divides and the layers
    alone do not.
    """
    if layers % stages and (layers + 2) % stages == 0:
        size = (layers + 2) // stages
        return (size - 1, *(size,) * (stages - 2), size - 1)
    size, more = divmod(layers, stages)
    return tuple(size + (s < more) for s in range(stages))


def require_valid_specs(plan: Plan) -> None:
    """A plan made from a row obeys the limits of any other input.

    Raises
    ------
    NotCoveredError
        If it does not.
    """
    try:
        check_model(plan.model)
        check_cluster(plan.cluster)
        check_job(plan.model, plan.cluster, plan.job)
    except InputError as error:
        raise NotCoveredError(f"{error.code}: {error.message}") from None


def predicted(run: Run, plan: Plan) -> tuple[float, float]:
    """Step time (s) of a run's plan, and memory of its heaviest stage over what is usable."""
    prediction = MeasuredCosts(plan, software_of(run.framework)).prediction()
    heaviest = max(stage.memory_bytes / stage.usable_bytes for stage in prediction.stages)
    return prediction.step_time_s, heaviest


def ordered(run: Run, plans: tuple[Plan, ...]) -> tuple[Plan, ...]:
    """Plans with the assumed one first.

    That is the fastest of those that follow the framework's habit of recomputation, if it has one,
    and else of those that fit; where none fits, the lightest.
    """
    if len(plans) == 1:
        return plans
    habit = habit_of(run.framework).recompute if run.recompute is None else None
    usual = _MODULES[habit][0] if habit else None
    followed = [usual in (None, plan.strategies[0].recompute) for plan in plans]
    priced = [(predicted(run, plan), i) for i, plan in enumerate(plans) if followed[i]]
    fitting = [(time, i) for (time, load), i in priced if habit or load <= 1]
    first = min(fitting)[1] if fitting else min((load, i) for (_, load), i in priced)[1]
    return (plans[first], *(plan for i, plan in enumerate(plans) if i != first))
