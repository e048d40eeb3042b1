"""Words of a shell script's launch command, without running anything.

Understood are comments, continued lines, quotes, assignments of texts and arrays, variables with
defaults, integer arithmetic, and branches on comparisons; the environment counts as empty. Whatever
else a shell can do is left as it stands, and only an option whose value is needed complains.
"""

from __future__ import annotations

import ast
import operator
import re
import shlex
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ilp_parallel.errors import InputError
from ilp_parallel.specs.documents import shown

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_SCRIPT = 1 << 18
"""Longest script read (characters, chosen): a thousand times a usual one."""

_MAX_EXPANDED = 1 << 16
"""Longest text a line may grow to (characters, chosen)."""

_ARRAY = re.compile(r"^[ \t]*([A-Za-z_]\w*)\+?=\(", re.MULTILINE)
_ASSIGNMENT = re.compile(
    r"^(?:export[ \t]+|local[ \t]+|declare[ \t]+(?:-\w+[ \t]+)?)?([A-Za-z_]\w*)(\+?)=(.*)$"
)
_TEST = re.compile(r"\[\[?\s+(.*?)\s+\]\]?", re.DOTALL)
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
_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-gt": operator.gt,
    "-ge": operator.ge,
    "-lt": operator.lt,
    "-le": operator.le,
}
_LAUNCHER = re.compile(r"--?(nnodes|nproc[-_]per[-_]node)[= ]([0-9]{1,9})(?=\s|$)")


@dataclass(frozen=True, slots=True)
class Launch:
    """A training command: what comes after the Python file, and where it runs."""

    words: tuple[str, ...]
    nodes: int | None
    devices_per_node: int | None
    notes: tuple[str, ...] = ()

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
    script = _Script()
    for line in _statements(_uncommented(joined)):
        for command in _commands(line):
            script.run(command)
    if script.launch is None:
        raise InputError(
            "NO_LAUNCH_COMMAND", "no line starts a .py file with options", "give such a script"
        )
    return replace(script.launch, notes=tuple(script.notes))


class _Script:
    """Variables, open branches and the longest launch command so far.

    A branch is True (taken), False (not taken) or None (only a shell would know). What an unknown
    branch assigns is forgotten, so that it is asked for where it is needed; options that it adds
    to an array are taken, and said.
    """

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.branches: list[bool | None] = []
        self.earlier: list[list[bool | None]] = []  # conditions of the branches before, per block
        self.launch: Launch | None = None
        self.notes: list[str] = []

    def run(self, command: str) -> None:
        """One command; keywords before it only steer."""
        word, _, rest = command.partition(" ")
        while word in ("then", "do", "else"):
            if word == "else" and self.branches:
                self._next(True)
            word, _, rest = rest.strip().partition(" ")
        if word == "if":
            self._open(_condition(_expanded(rest, self.values)))
        elif word in ("for", "while", "until", "case"):
            self._open(None)
        elif word == "elif" and self.branches:
            self._next(_condition(_expanded(rest, self.values)))
        elif word in ("fi", "done", "esac") and self.branches:
            self.branches.pop()
            self.earlier.pop()
        elif False not in self.branches:
            self._plain(f"{word} {rest}".strip())

    def _open(self, condition: bool | None) -> None:
        self.branches.append(condition)
        self.earlier.append([condition])

    def _next(self, condition: bool | None) -> None:
        """The next branch of a block: taken only if those before it were not."""
        before = self.earlier[-1]
        if True in before or condition is False:
            self.branches[-1] = False
        else:
            self.branches[-1] = None if None in before else condition
        before.append(condition)

    def _plain(self, command: str) -> None:
        assignment = _ASSIGNMENT.match(command)
        if assignment is None or _is_command(assignment[3]):
            launch = _launch(_expanded(command, self.values))
            known = self.launch
            if launch is not None and (known is None or len(launch.words) >= len(known.words)):
                self.launch = launch
            return
        name, value = assignment[1], _unquoted(_expanded(assignment[3], self.values))
        unknown = None in self.branches
        if assignment[2]:
            value = f"{self.values.get(name, '')} {value}"
            self.values[name] = value[:_MAX_EXPANDED]
            if unknown:
                self.notes.append(f"options added to {shown(name)} under a condition are taken")
        elif unknown:
            self.values.pop(name, None)
        else:
            self.values[name] = value


def _condition(text: str) -> bool | None:
    """Truth of a comparison of texts or integers; None where only a shell would know."""
    whole = text.strip()
    for operator_, unit in (("||", True), ("&&", False)):
        parts = whole.split(operator_)
        if len(parts) > 1:
            found = [_condition(part) for part in parts[:20]]
            return unit if unit in found else None if None in found else not unit
    match = _TEST.fullmatch(whole)
    if match is None or re.search(r"\$[0-9(@*#?]|\$\{[0-9]|`", match[1]):
        return None
    try:
        words = shlex.split(re.sub(r"\$\{\w+\}|\$\w+", "", match[1]))
    except ValueError:
        return None
    if len(words) in (1, 2) and words[0] in ("-z", "-n"):
        return (words[1:] in ([], [""])) == (words[0] == "-z")
    if len(words) != 3:
        return None
    left, sign, right = words
    if sign in ("==", "=", "!="):
        return (left == right) == (sign != "!=")
    if sign in _COMPARISONS and left.isdecimal() and right.isdecimal():
        return _COMPARISONS[sign](int(left[:18]), int(right[:18]))
    return None


def _commands(line: str) -> list[str]:
    """A line cut at semicolons outside quotes and parentheses."""
    parts, quote, depth, start = [], "", 0, 0
    for position, character in enumerate(line):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in "()":
            depth += 1 if character == "(" else -1
        elif character == ";" and depth <= 0:
            parts.append(line[start:position])
            start = position + 1
    return [part.strip() for part in (*parts, line[start:]) if part.strip()]


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
    options = tuple(part for word in words[:stop] for part in _option(word))
    if not options or not options[0].startswith("-"):
        return None
    return Launch(options, launcher.get("nnodes"), launcher.get("nproc-per-node"))


def _option(word: str) -> list[str]:
    """An option and its value, also where an array holds both as one quoted text."""
    return word.split() if word.startswith("--") else [word]


def _ends(word: str) -> bool:
    """Whether a word ends the command: a pipe, a redirection or a separator."""
    return word in ("|", "&", "&&", "||", ";") or bool(re.match(r"[0-9]?>|<", word))


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=False)
    except ValueError as error:
        raise InputError("MALFORMED_SCRIPT", str(error).lower(), "mend the quotes") from None
