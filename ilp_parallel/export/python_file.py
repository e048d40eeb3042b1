"""Python files that set attributes: written here, and read back without running them."""

from __future__ import annotations

import ast
import warnings
from typing import TYPE_CHECKING

from ilp_parallel.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ilp_parallel.export.base import Note

Value = object
"""A Python literal, or the source text of an expression wrapped in :class:`Expression`."""

_LINE = 96


class Expression(str):
    """Source text that is written as it stands, for instance ``torch.bfloat16``."""

    __slots__ = ()


def comments(notes: Iterable[Note]) -> str:
    """Notes as comment lines."""
    return "".join(f"# {note.text}\n" for note in notes)


def assignments(root: str, settings: Mapping[str, Value], indent: int = 4) -> str:
    """Statements that set dotted attributes of ``root``, ``indent`` spaces deep."""
    lead = f"{' ' * indent}{root}"
    return "".join(f"{lead}.{k} = {source(v, indent)}\n" for k, v in settings.items())


def source(value: Value, indent: int) -> str:
    """Source of a literal; a long list of lists gets a line per entry."""
    if isinstance(value, Expression):
        return str(value)
    text = repr(value)
    if isinstance(value, list) and len(text) + indent > _LINE and len(value) > 1:
        pad = " " * (indent + 4)
        entries = "".join(f"{pad}{entry!r},\n" for entry in value)
        return f"[\n{entries}{' ' * indent}]"
    return text


def read_assignments(text: str, root: str) -> dict[str, Value]:
    """Dotted attributes of ``root`` that a Python file sets, as literals or expressions.

    Nothing is executed: only assignments whose target is an attribute of ``root`` are looked at.

    Raises
    ------
    InputError
        ``MALFORMED_PYTHON`` if the text is no Python.
    """
    found: dict[str, Value] = {}
    for node in _nodes(text):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            name = _dotted(node.targets[0])
            if name is not None and name[0] == root and len(name) > 1:
                found[".".join(name[1:])] = _literal(node.value)
    return found


def read_call(text: str, function: str) -> dict[str, Value]:
    """Keyword arguments of the first call of ``function`` in a Python file; same errors."""
    for node in _nodes(text):
        if isinstance(node, ast.Call):
            name = _dotted(node.func)
            if name is not None and name[-1] == function:
                return {key.arg: _literal(key.value) for key in node.keywords if key.arg}
    raise InputError("MALFORMED_PYTHON", f"no call of {function}", f"call {function}(...)")


def read_constant(text: str, name: str) -> Value:
    """Value of a name assigned at the top of a Python file; same errors."""
    for node in _nodes(text):
        if isinstance(node, ast.Assign) and _dotted(node.targets[0]) == (name,):
            return _literal(node.value)
    raise InputError("MALFORMED_PYTHON", f"no {name}", f"assign {name}")


def _nodes(text: str) -> Sequence[ast.AST]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd literals
            return list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise InputError("MALFORMED_PYTHON", "the text is no Python", "mend the file") from None


def _dotted(node: ast.AST) -> tuple[str, ...] | None:
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute):
        inner = _dotted(node.value)
        return None if inner is None else (*inner, node.attr)
    return None


def _literal(node: ast.AST) -> Value:
    try:
        value: object = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return Expression(ast.unparse(node))
    return value
