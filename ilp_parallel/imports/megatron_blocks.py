"""Blocks from Megatron-LM's arguments: experts, latent attention, windows, prediction layers.

Option names and defaults: Megatron-LM, megatron/training/arguments.py (``_add_moe_args``,
``_add_mla_args``); which layers have experts: megatron/core/models/gpt/gpt_layer_specs.py; which
have windows: megatron/core/transformer/utils.py, ``is_layer_window_attention``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from ilp_parallel.errors import InputError
from ilp_parallel.export.megatron_reader import prediction_layers
from ilp_parallel.specs.block_lists import attention_blocks, with_blocks
from ilp_parallel.specs.documents import shown
from ilp_parallel.specs.model import Experts, Kind, LatentAttention

if TYPE_CHECKING:
    from ilp_parallel.export.megatron_flags import MegatronFlags
    from ilp_parallel.specs.documents import Document

_MOST = 10**4
"""Longest pattern of layers (chosen), as many as a model may have."""

_TOKEN = re.compile(r"[0-9]{1,6}|[\[\]()*+,]")


def with_megatron_blocks(shapes: Document, flags: MegatronFlags) -> Document:
    """Fields of a dense model of equal layers, changed to what the options say of its blocks.

    Raises
    ------
    InputError
        ``MEGATRON_SIZES_DISAGREE``, ``MALFORMED_MEGATRON_ARGUMENTS``, ``MEGATRON_FLAG_NOT_READ``.
    """
    if flags.text("--softmax-type", "vanilla") == "learnable":
        shapes = shapes | {"attention_sinks": True}
    if flags.has("--multi-latent-attention"):
        shapes = shapes | _latent(shapes, flags)
    elif flags.has("--qk-layernorm"):
        shapes = shapes | {"qk_norm": True}
    predicting = prediction_layers(flags)
    if not (flags.has("--num-experts") or flags.has("--window-size") or predicting):
        return shapes
    layers, ffn = flags.integer("--num-layers"), shapes["ffn_hidden"]
    if layers > _MOST:
        raise InputError("MEGATRON_SIZES_DISAGREE", f"{layers} layers", f"use at most {_MOST}")
    assert isinstance(ffn, int)
    blocks = attention_blocks(_mixtures(flags, layers, ffn), ffn, _windows(flags, layers))
    last = blocks[-1] | {"name": "mtp", "predicts": True}
    return _typed(with_blocks(shapes, blocks + [last] * predicting))


def _latent(shapes: Document, flags: MegatronFlags) -> Document:
    """Latent attention; heads and their widths are options of their own."""
    rank = flags.integer("--q-lora-rank") if flags.has("--q-lora-rank") else 0
    return {
        "kv_heads": shapes["heads"],
        "head_dim": flags.integer("--qk-head-dim", 128),
        "latent": LatentAttention(
            query_rank=rank,
            kv_rank=flags.integer("--kv-lora-rank", 32),
            rope_head_dim=flags.integer("--qk-pos-emb-head-dim", 64),
            value_head_dim=flags.integer("--v-head-dim", 128),
        ),
    }


def _mixtures(flags: MegatronFlags, layers: int, ffn: int) -> list[Document | None]:
    """[layers] experts, None where a layer has a dense MLP."""
    if not flags.has("--num-experts"):
        return [None] * layers
    shared = "--moe-shared-expert-intermediate-size"
    experts: Document = {
        "count": flags.integer("--num-experts"),
        "active": flags.integer("--moe-router-topk", 2),
        "ffn_hidden": flags.integer("--moe-ffn-hidden-size", ffn),
        "shared_ffn_hidden": flags.integer(shared) if flags.has(shared) else 0,
        "shared_gate": flags.has("--moe-shared-expert-gate"),
        "router_bias": flags.has("--moe-router-enable-expert-bias"),
    }
    text = flags.text("--moe-layer-freq", "1")
    if "[" in text:
        pattern = layer_pattern(text, layers, "--moe-layer-freq")
    else:
        every = flags.integer("--moe-layer-freq", 1)
        pattern = [layer % every == 0 for layer in range(layers)]
    return [experts if has else None for has in pattern]


def _windows(flags: MegatronFlags, layers: int) -> list[int]:
    """[layers] tokens before its own that a query sees, 0 for all."""
    if not flags.has("--window-size"):
        return [0] * layers
    text = "".join(flags.values("--window-size") or ())
    match = re.fullmatch(r"\(?(-1|[0-9]{1,9}),(-1|0)\)?", text.replace(" ", "").strip("'\""))
    if match is None:
        raise InputError(
            "MEGATRON_FLAG_NOT_READ", f"--window-size {shown(text)}", "write it as 4096,0"
        )
    window = max(0, int(match[1]))
    if not flags.has("--window-attn-skip-freq"):
        return [window] * layers
    text = flags.text("--window-attn-skip-freq", "")
    if "[" in text:
        pattern = layer_pattern(text, layers, "--window-attn-skip-freq")
    else:
        every = flags.integer("--window-attn-skip-freq")
        pattern = [(layer + 1) % every != 0 for layer in range(layers)]
    return [window * slides for slides in pattern]


def layer_pattern(text: str, layers: int, option: str) -> list[bool]:
    """One flag for each layer of a list written with ``*`` and ``+``, as ``([0]*3+[1]*58)``.

    Raises
    ------
    InputError
        ``MALFORMED_MEGATRON_ARGUMENTS``; ``MEGATRON_SIZES_DISAGREE`` if it is not one a layer.
    """
    bare = text.replace(" ", "").strip("'\"")
    tokens = _TOKEN.findall(bare)
    found = _Pattern(tokens).whole() if "".join(tokens) == bare else None
    if found is None or not {*found} <= {0, 1}:
        raise InputError(
            "MALFORMED_MEGATRON_ARGUMENTS",
            f"{option} is {shown(text)}",
            "write lists of 0 and 1 with * and +, as ([0]*3+[1]*58)",
        )
    if len(found) != layers:
        raise InputError(
            "MEGATRON_SIZES_DISAGREE",
            f"{option} is for {len(found)} layers, there are {layers}",
            "give one entry for each layer",
        )
    return [bool(entry) for entry in found]


class _Pattern:
    """A reader of sums and multiples of lists of numbers; None where the tokens are no such."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._at = 0

    def whole(self) -> list[int] | None:
        found = self._sum(0)
        return found if self._at == len(self._tokens) else None

    def _take(self, token: str) -> bool:
        taken = self._tokens[self._at : self._at + 1] == [token]
        self._at += taken
        return taken

    def _number(self) -> int | None:
        word = "".join(self._tokens[self._at : self._at + 1])
        self._at += word.isdigit()
        return int(word) if word.isdigit() else None

    def _sum(self, depth: int) -> list[int] | None:
        total = self._product(depth)
        while total is not None and self._take("+"):
            term = self._product(depth)
            total = None if term is None or len(total + term) > _MOST else total + term
        return total

    def _product(self, depth: int) -> list[int] | None:
        found = self._list(depth)
        while found is not None and self._take("*"):
            times = self._number()
            found = None if times is None or len(found) * times > _MOST else found * times
        return found

    def _list(self, depth: int) -> list[int] | None:
        if self._take("("):
            inner = self._sum(depth + 1) if depth < 20 else None
            return inner if self._take(")") else None
        if not self._take("["):
            return None
        entries: list[int] = []
        while True:
            number = self._number()
            if number is None:
                return None
            entries.append(number)
            if self._take("]"):
                return entries
            if not self._take(","):
                return None


def _typed(fields: Document) -> Document:
    """The same with the types of a ``ModelSpec``, which compare with those of a preset."""
    types: dict[str, object] = {
        "experts": Experts,
        "kinds": tuple[Kind, ...],
        "order": tuple[int, ...],
    }
    for name, kind in types.items():
        if name in fields:
            fields = fields | {name: msgspec.convert(fields[name], kind)}
    return fields
