"""Typed access to the fields of a Hugging Face ``config.json``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ilp_parallel.errors import InputError
from ilp_parallel.specs.documents import shown

if TYPE_CHECKING:
    from ilp_parallel.specs.documents import Document

_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu",
    "gelu_fast": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "relu": "relu",
    "relu2": "relu",
    "silu": "silu",
    "swish": "silu",
}


def integer(data: Document, names: tuple[str, ...], default: int | None = None) -> int:
    """The first of the fields that is there and not null; required where there is no default."""
    for name in names:
        value = data.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            raise InputError("WRONG_TYPE", f"{name}={shown(value)}", "give a whole number")
        return value
    if default is None:
        raise InputError("MISSING_FIELD", f"no {' or '.join(names)}", f"add {names[0]}")
    return default


def number(data: Document, name: str, default: float) -> float:
    """A number; the default where absent or null. ``WRONG_TYPE`` otherwise."""
    value = data.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError("WRONG_TYPE", f"{name}={shown(value)}", "give a number")
    return value


def flag(data: Document, name: str, default: bool) -> bool:
    """True or false; the default where absent or null. ``WRONG_TYPE`` otherwise."""
    value = data.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise InputError("WRONG_TYPE", f"{name}={shown(value)}", "give true or false")
    return value


def activation(data: Document, name: str, default: str) -> str:
    """An activation by its name in ``ModelSpec``; ``UNKNOWN_ACTIVATION`` for any other."""
    value = data.get(name) or default
    if not isinstance(value, str) or value not in _ACTIVATIONS:
        known = ", ".join(_ACTIVATIONS)
        raise InputError("UNKNOWN_ACTIVATION", f"{name}={shown(value)}", f"use one of {known}")
    return _ACTIVATIONS[value]


def head_dim(hidden: int, heads: int) -> int:
    """Width of a head where none is given; ``HEADS_DO_NOT_DIVIDE_HIDDEN``."""
    if heads <= 0 or hidden % heads:
        raise InputError(
            "HEADS_DO_NOT_DIVIDE_HIDDEN",
            f"hidden={shown(hidden)}, heads={shown(heads)}",
            "give head_dim, or heads that divide hidden",
        )
    return hidden // heads
