"""Blocks of a Hugging Face model one by one: how many, of which kind, with which window."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ilp_parallel.errors import InputError
from ilp_parallel.specs.documents import shown
from ilp_parallel.specs.huggingface_fields import flag, integer

if TYPE_CHECKING:
    from ilp_parallel.specs.documents import Document

MAX_BLOCKS = 10**4
"""Most blocks written down one by one (chosen), as many as a model may have."""

_SLIDING = ("sliding_attention", "chunked_attention")
_ATTENTION = (*_SLIDING, "full_attention")
_OFF_UNLESS_SAID = ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe")
"""Families whose ``use_sliding_window`` is off where it is absent; elsewhere a window counts."""

_FULL_EVERY = {"gemma2": 2, "gpt_oss": 2, "cohere2": 4, "gemma3_text": 6}
"""Every how many blocks one sees all tokens, where ``layer_types`` is absent."""


def block_count(data: Document, *names: str) -> int:
    """Number of blocks; ``OUT_OF_RANGE`` where it could not be written down one by one."""
    count = integer(data, names)
    if not 0 < count <= MAX_BLOCKS:
        raise InputError("OUT_OF_RANGE", f"{names[0]}={shown(count)}", f"use 1 to {MAX_BLOCKS}")
    return count


def block_types(data: Document, name: str, layers: int) -> list[str] | None:
    """One word for each block, None where absent; ``BLOCKS_DIFFER`` or ``WRONG_TYPE``."""
    types = data.get(name)
    if types is None:
        return None
    if not isinstance(types, list) or not all(isinstance(word, str) for word in types):
        raise InputError("WRONG_TYPE", f"{name}={shown(types)}", "give a list of words")
    if len(types) != layers:
        raise InputError(
            "BLOCKS_DIFFER",
            f"{name} has {len(types)} entries, there are {layers} blocks",
            "mend it",
        )
    return types


def windows(data: Document, layers: int) -> list[int]:
    """[layers] tokens that a query sees, 0 where it sees all.

    A window as long as the longest sequence is none.

    Raises
    ------
    InputError
        ``BLOCKS_DIFFER``, ``WRONG_TYPE`` or ``UNKNOWN_BLOCK``.
    """
    model_type = data.get("model_type")
    name = "attention_chunk_size" if model_type == "llama4_text" else "sliding_window"
    window = integer(data, (name,), 0)
    longest = integer(data, ("max_position_embeddings",), 0)
    types = block_types(data, "layer_types", layers)
    used = flag(data, "use_sliding_window", model_type not in _OFF_UNLESS_SAID)
    if types is not None:
        for word in types:
            if word not in _ATTENTION:
                raise InputError(
                    "UNKNOWN_BLOCK",
                    f"layer_types has {shown(word)}",
                    f"use {', '.join(_ATTENTION)}",
                )
        slides = [word in _SLIDING for word in types]
    else:
        slides = _default_slides(data, layers)
    if not used or window <= 0 or 0 < longest <= window:
        return [0] * layers
    return [window * slide for slide in slides]


def _default_slides(data: Document, layers: int) -> list[bool]:
    """Which blocks have the window where ``layer_types`` does not say, as the classes do."""
    model_type = data.get("model_type")
    if model_type == "llama4_text":
        rope = data.get("no_rope_layers")  # 1 where positions are rotated
        if isinstance(rope, list) and rope:
            if len(rope) != layers:
                message = f"no_rope_layers has {len(rope)} entries, there are {layers} blocks"
                raise InputError("BLOCKS_DIFFER", message, "mend it")
            return [bool(entry) for entry in rope]
        every = integer(data, ("no_rope_layer_interval",), 4)
    elif isinstance(model_type, str) and model_type in _FULL_EVERY:
        pattern = ("sliding_window_pattern", "_sliding_window_pattern")
        every = integer(data, pattern, _FULL_EVERY[model_type])
    elif model_type in _OFF_UNLESS_SAID:
        first = integer(data, ("max_window_layers",), 0)
        return [layer >= first for layer in range(layers)]
    else:
        return [True] * layers
    return [every > 0 and (layer + 1) % every != 0 for layer in range(layers)]
