"""What a model's blocks have besides dense decoders, as options of Megatron-LM.

Option names: Megatron-LM commit d98e8a64, megatron/training/arguments.py (``_add_moe_args``,
``_add_mla_args``). The other way round: :mod:`ilp_parallel.imports.megatron_blocks`.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ilp_parallel.configuration import Configuration
    from ilp_parallel.specs.model import ModelSpec


def predicted_layers(model: ModelSpec) -> int:
    """Blocks that predict further tokens, which ``--num-layers`` does not count."""
    return sum(view.layers for view in model.views if view.predicts)


def block_gaps(model: ModelSpec) -> Iterator[str]:
    """What the blocks have that no option says."""
    views = model.views
    widths = {view.ffn_hidden for view in views if view.experts is None}
    parts = {
        "a state space": model.state_space is not None
        or any(v.mixer != "attention" for v in views),
        "bidirectional attention": not all(view.causal for view in views),
        "attention over an encoder": any(view.cross_attention for view in views),
        "mixtures of experts that differ": len(model.all_experts) > 1,
        "dense blocks of different widths": len(widths) > 1,
        "windows of different lengths": len({view.window for view in views} - {0}) > 1,
        "a prediction block unlike the last one": not _predicts_with_last(model),
        "relative positions": model.position_buckets != 0,
        "token types": model.token_types != 0,
        "a transform before the output matrix": model.output_transform,
    }
    yield from (name for name, present in parts.items() if present)


def _predicts_with_last(model: ModelSpec) -> bool:
    """Whether prediction blocks are what the last other block is."""
    kinds = [model.kinds[index] for index in model.order]
    last = next((kind for kind in reversed(kinds) if not kind.predicts), None)
    return all(
        last is not None and replace(kind, name=last.name, predicts=False) == last
        for kind in kinds
        if kind.predicts
    )


def block_words(model: ModelSpec) -> Iterator[str]:
    """Options for experts, latents, windows, sinks and prediction blocks."""
    views = [model.of_kind(index) for index in model.layer_kinds]
    main = [view for view in views if not view.predicts]
    yield from _expert_words(model, [view.experts is not None for view in main])
    yield from _latent_words(model)
    yield from _window_words([view.window for view in main])
    if model.attention_sinks:
        yield from ("--softmax-type", "learnable")
    if len(main) < len(views):
        yield from ("--mtp-num-layers", str(len(views) - len(main)))


def degree_words(model: ModelSpec, configuration: Configuration) -> Iterator[str]:
    """Expert degrees, written out because the expert tensor degree is the tensor degree else."""
    if model.has_experts:
        yield from ("--expert-model-parallel-size", str(configuration.expert))
        yield from ("--expert-tensor-parallel-size", str(configuration.expert_tensor))


def module_words(model: ModelSpec, modules: tuple[str, ...]) -> tuple[str, ...]:
    """Recomputed modules: the second half of a block is ``mlp`` or ``moe``, by its kind."""
    if "mlp" not in modules or not model.has_experts:
        return modules
    dense = any(view.experts is None for view in model.views)
    halves = ("mlp", "moe") if dense else ("moe",)
    return (*(module for module in modules if module != "mlp"), *halves)


def _expert_words(model: ModelSpec, has: Sequence[bool]) -> Iterator[str]:
    if not model.has_experts:
        return
    experts = model.all_experts[0]
    yield from ("--num-experts", str(experts.count))
    yield from ("--moe-router-topk", str(experts.active))
    yield from ("--moe-ffn-hidden-size", str(experts.ffn_hidden))
    # what the cost model prices: one grouped kernel, copies sent by all-to-all
    yield from ("--moe-grouped-gemm", "--moe-token-dispatcher-type", "alltoall")
    if experts.shared_ffn_hidden:
        yield from ("--moe-shared-expert-intermediate-size", str(experts.shared_ffn_hidden))
    if experts.shared_gate:
        yield "--moe-shared-expert-gate"
    if experts.router_bias:  # only there with sigmoid scores
        yield from ("--moe-router-score-function", "sigmoid", "--moe-router-enable-expert-bias")
    if not all(has):
        yield from ("--moe-layer-freq", _pattern(has))


def _latent_words(model: ModelSpec) -> Iterator[str]:
    latent = model.latent
    if latent is None:
        return
    yield from ("--multi-latent-attention", "--qk-layernorm")
    if latent.query_rank:
        yield from ("--q-lora-rank", str(latent.query_rank))
    yield from ("--kv-lora-rank", str(latent.kv_rank))
    yield from ("--qk-head-dim", str(model.head_dim))
    yield from ("--qk-pos-emb-head-dim", str(latent.rope_head_dim))
    yield from ("--v-head-dim", str(latent.value_head_dim))


def _window_words(windows: Sequence[int]) -> Iterator[str]:
    if not any(windows):
        return
    yield from ("--window-size", f"{max(windows)},0")
    if not all(windows):
        yield from ("--window-attn-skip-freq", _pattern([window > 0 for window in windows]))


def _pattern(flags: Sequence[bool]) -> str:
    """A list of 0 and 1 as Megatron-LM evaluates it, runs folded: ``([0]*3+[1]*58)``."""
    runs = ((flag, sum(1 for _ in run)) for flag, run in groupby(flags))
    return "(" + "+".join(f"[{int(flag)}]*{count}" for flag, count in runs) + ")"
