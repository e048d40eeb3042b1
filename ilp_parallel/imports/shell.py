"""Words of a shell script's launch command, without running anything.

Understood are comments, continued lines, quotes, assignments of texts and arrays, variables with
defaults, and integer arithmetic. Whatever else a shell can do is left as it stands, and only an
option whose value is needed complains about it.
"""

from __future__ import annotations

import ast
import operator
import re
import shlex
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ilp_parallel.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_SCRIPT = 1 << 18
"""Longest script read (characters, chosen): a thousand times a usual one."""

_MAX_EXPANDED = 1 << 16
"""Longest text a line may grow to (characters, chosen)."""

_ARRAY = re.compile(r"^[ \t]*([A-Za-z_]\w*)\+?=\(", re.MULTILINE)
_ASSIGNMENT = re.compile(r"^(?:export[ \t]+|declare[ \t]+(?:-\w+[ \t]+)?)?([A-Za-z_]\w*)=(.*)$")
_QUOTED_ARRAY = re.compile(r'"(\$\{[A-Za-z_]\w*\[@\]\})"')
"""``"${NAME[@]}"`` stands for several words although it is quoted."""
_VARIABLE = re.compile(
    r"\$\(\(([^()$]{1,200})\)\)"
    r"|\$\{([A-Za-z_]\w*)(?:\[[@*]\])?(?::?[-=]([^${}]{0,400}))?\}"
    r"|\$([A-Za-z_]\w*)"
)
_OPERATIONS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
}
_LAUNCHER = re.compile(r"--?(nnodes|nproc[-_]per[-_]node)[= ]([0-9]{1,9})(?=\s|$)")


@dataclass(frozen=True, slots=True)
class Launch:
    """A training command: what comes after the Python file, and where it runs."""

    words: tuple[str, ...]
    nodes: int | None
    devices_per_node: int | None

    @property
    def devices(self) -> int | None:
        """World size, where the launcher says it."""
        if self.devices_per_node is None:
            return None
        return self.devices_per_node * (self.nodes or 1)


def read_launch(text: str) -> Launch:
    """The launch command of a script, or the words themselves where the text begins with options.

    Raises
    ------
    InputError
        ``SCRIPT_TOO_LONG``, ``MALFORMED_SCRIPT`` or ``NO_LAUNCH_COMMAND``.
    """
    if len(text) > MAX_SCRIPT:
        raise InputError(
            "SCRIPT_TOO_LONG", f"{len(text)} characters", "give the launch script only"
        )
    joined = _QUOTED_ARRAY.sub(r"\1", re.sub(r"\\\r?\n", " ", text))
    if joined.lstrip().startswith("--"):
        return Launch(tuple(_split(_uncommented(joined))), None, None)
    values: dict[str, str] = {}
    found: Launch | None = None
    for line in _statements(_uncommented(joined)):
        assignment = _ASSIGNMENT.match(line)
        if assignment and not _is_command(assignment[2]):
            values[assignment[1]] = _unquoted(_expanded(assignment[2], values))
            continue
        command = _expanded(line, values)
        launch = _launch(command)
        if launch is not None and (found is None or len(launch.words) >= len(found.words)):
            found = launch
    if found is None:
        raise InputError(
            "NO_LAUNCH_COMMAND", "no line starts a .py file with options", "give such a script"
        )
    return found


def _uncommented(text: str) -> str:
    """The text without comments that begin a line or follow a space outside quotes."""
    lines = []
    for line in text.splitlines():
        quote = ""
        for position, character in enumerate(line):
            if quote:
                quote = "" if character == quote else quote
            elif character in "'\"":
                quote = character
            elif character == "#" and (position == 0 or line[position - 1] in " \t("):
                line = line[:position]
                break
        lines.append(line)
    return "\n".join(lines)


def _statements(text: str) -> list[str]:
    """Lines, an array or a quoted text over several lines being one."""
    statements: list[str] = []
    waiting = ""
    for line in text.splitlines():
        waiting = f"{waiting} {line}" if waiting else line
        open_array = bool(_ARRAY.match(waiting)) and not waiting.rstrip().endswith(")")
        open_quote = waiting.count('"') % 2 == 1
        if (open_array or open_quote) and len(waiting) < _MAX_EXPANDED:
            continue
        statements.append(waiting.strip())
        waiting = ""
    return [*statements, waiting.strip()] if waiting.strip() else statements


def _is_command(value: str) -> bool:
    """Whether an assignment is a prefix of a command, as in ``CUDA_VISIBLE_DEVICES=0 python``."""
    return ".py" in value and not value.startswith(('"', "'", "("))


def _unquoted(value: str) -> str:
    """An assigned text without the quotes or parentheses around it."""
    value = value.strip()
    if value.startswith("(") and value.endswith(")"):
        return value[1:-1].strip()
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1].strip()
    return value


def _expanded(line: str, values: dict[str, str]) -> str:
    """Known variables and arithmetic replaced, innermost first; unknown ones left."""

    def replace(match: re.Match[str]) -> str:
        if match[1] is not None:
            return _arithmetic(match[1], values)
        name = match[2] or match[4]
        if name in values:
            return values[name]
        return match[0] if match[3] is None else match[3]

    for _ in range(8):
        longer = _VARIABLE.sub(replace, line)
        if longer == line or len(longer) > _MAX_EXPANDED:
            break
        line = longer
    return line


def _arithmetic(text: str, values: dict[str, str]) -> str:
    """Value of an integer expression of numbers and names with ``+ - * /``; else the text."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd literals
            value = _value(ast.parse(text.strip(), mode="eval").body, values)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return f"$(({text} ))"
    return str(value)


def _value(node: ast.expr, values: dict[str, str]) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name) and values.get(node.id, "").isdecimal():
        return int(values[node.id][:18])
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        left, right = _value(node.left, values), _value(node.right, values)
        result = _OPERATIONS[type(node.op)](left, right)
        if abs(result) < 1 << 62:
            return result
    raise ValueError("no integer expression")


def _launch(command: str) -> Launch | None:
    """The command split at its Python file, if it has one and options after it."""
    if ".py" not in command or "--" not in command:
        return None
    words = _split(command)
    scripts = [i for i, word in enumerate(words) if word.endswith(".py")]
    if not scripts:
        return None
    before = " ".join(words[: scripts[0]])
    launcher = {name.replace("_", "-"): int(n) for name, n in _LAUNCHER.findall(before)}
    words = words[scripts[0] + 1 :]
    stop = next((i for i, word in enumerate(words) if _ends(word)), len(words))
    options = tuple(words[:stop])
    if not options or not options[0].startswith("-"):
        return None
    return Launch(options, launcher.get("nnodes"), launcher.get("nproc-per-node"))


def _ends(word: str) -> bool:
    """Whether a word ends the command: a pipe, a redirection or a separator."""
    return word in ("|", "&", "&&", "||", ";") or bool(re.match(r"[0-9]?>|<", word))


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=False)
    except ValueError as error:
        raise InputError("MALFORMED_SCRIPT", str(error).lower(), "mend the quotes") from None
