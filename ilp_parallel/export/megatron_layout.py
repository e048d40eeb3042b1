"""Megatron-LM's compact notation of pipeline stages (``--pipeline-model-parallel-layout``).

``E`` is the embedding, ``t`` a decoder layer, ``m`` one that predicts further tokens (after all
others), ``L`` the loss; ``|`` separates virtual stages in model order; commas mean nothing; ``x*n``
repeats a symbol and ``(...)*n`` a group, groups first.
Source: Megatron-LM commit d98e8a64, docs/user-guide/features/pipeline_parallel_layout.md and
megatron/core/transformer/pipeline_parallel_layer_layout.py, lines 283-321.
"""

from __future__ import annotations

import re
from itertools import groupby

from ilp_parallel.errors import InputError
from ilp_parallel.specs.documents import shown

_GROUP = re.compile(r"\(([^()]*)\)\*([0-9]{1,6})")
_SYMBOL = re.compile(r"([EtmL|])\*([0-9]{1,6})")
_LARGEST = 1_000_000  # symbols; far above any model, far below what hurts


def write_layout(sizes: tuple[int, ...], predicting: int = 0) -> str:
    """Layout of virtual stages with the given numbers of layers, equal neighbours folded.

    Needs at least two virtual stages, each with at least one layer; the last ``predicting`` layers
    predict further tokens and are on the last stage.
    """
    middle = ""
    for size, run in groupby(sizes[1:-1]):
        count = sum(1 for _ in run)
        middle += f"({_layers(size)}|)*{count}," if count > 1 else f"{_layers(size)}|"
    last = [(symbol, n) for symbol, n in (("t", sizes[-1] - predicting), ("m", predicting)) if n]
    return f"E{_layers(sizes[0])}|{middle}{''.join(_layers(n, symbol) for symbol, n in last)}L"


def read_layout(text: str) -> tuple[int, ...]:
    """Layers per virtual stage of a layout.

    Raises
    ------
    InputError
        ``MALFORMED_LAYOUT`` if the notation is broken, a stage is empty, or the embedding is not
        first or the loss not last.
    """
    expanded = _expand(_SYMBOL, _expand(_GROUP, text.replace(",", "")))
    if not re.fullmatch(r"Et+(\|t+)*(\|?m+)?L", expanded):
        raise InputError(
            "MALFORMED_LAYOUT",
            f"{shown(text)} is no list of non-empty stages from E to L",
            "write E, layers t, stage ends |, prediction layers m if there are any, then L",
        )
    return tuple(stage.count("t") + stage.count("m") for stage in expanded.split("|"))


def _layers(size: int, symbol: str = "t") -> str:
    return symbol if size == 1 else f"{symbol}*{size}"


def _expand(pattern: re.Pattern[str], text: str) -> str:
    """Write repetitions out, refusing texts that would grow absurdly long."""
    length = sum(len(m[1]) * int(m[2]) for m in pattern.finditer(text))
    if length > _LARGEST:
        raise InputError("MALFORMED_LAYOUT", f"layout of {length} symbols", "write a shorter one")
    return pattern.sub(lambda match: match[1] * int(match[2]), text)
