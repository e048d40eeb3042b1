"""Reading a JSON or YAML document without trusting it.

Whatever the bytes are, the caller gets a mapping with string keys or an ``InputError``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ilp_parallel.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable

Document = dict[str, object]

MAX_DOCUMENT_BYTES = 1 << 20
"""Largest document read (bytes, chosen): a thousand times a usual one."""

MAX_RESULT_BYTES = 1 << 26
"""Largest result or certificate read (bytes, chosen): one with 100,000 configurations fits."""

MAX_YAML_BYTES = 1 << 16
"""Largest YAML document read (bytes, chosen): its parser is slow, and no cluster needs more."""

MAX_YAML_DEPTH = 50
"""Deepest nesting of a YAML document (levels, chosen): its parser slows down with depth."""

MAX_SHOWN = 60
"""Longest piece of the user's text repeated in a message (characters, chosen)."""

_YAML_EXTENSIONS = (".yaml", ".yml")
_EXTENSIONS = (".json", *_YAML_EXTENSIONS)


def shown(text: object) -> str:
    """The user's text on one line, shortened and escaped, for messages."""
    whole = str(text)
    short = whole if len(whole) <= MAX_SHOWN else f"{whole[: MAX_SHOWN - 3]}..."
    return short if short.isprintable() and short else ascii(short)


def did_you_mean(word: str, known: Iterable[str], otherwise: str) -> str:
    """A fix: the known words nearest to ``word``, or ``otherwise`` where none is near."""
    from difflib import get_close_matches

    near = get_close_matches(word[:MAX_SHOWN].lower(), list(known), n=3, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else otherwise


def is_path(text: str) -> bool:
    """Whether a text means a file: ``-``, a separator, a known extension, or something there."""
    if text == "-" or "/" in text or "\\" in text or text.lower().endswith(_EXTENSIONS):
        return True
    try:
        return bool(text) and Path(text).exists()
    except (OSError, ValueError):  # too long, or a null byte: no such file
        return False


def read_document(path: str, limit_bytes: int = MAX_DOCUMENT_BYTES) -> Document:
    """The mapping in a JSON or YAML file; ``-`` reads JSON from standard input.

    Raises
    ------
    InputError
        If the file cannot be read, is too large, or is not a mapping in its format.
    """
    return parse_document(_read_bytes(path, limit_bytes), path)


def read_text(path: str, limit_bytes: int = MAX_DOCUMENT_BYTES) -> str:
    """The text of a file; ``-`` reads standard input.

    Raises
    ------
    InputError
        If the file cannot be read, is too large, is not UTF-8 or is empty.
    """
    return _text(_read_bytes(path, limit_bytes), shown(path))


def parse_document(content: bytes, origin: str) -> Document:
    """The mapping in ``content``; YAML if ``origin`` ends so, else JSON.

    Raises
    ------
    InputError
        If the content is empty, binary, malformed, or not a mapping with string keys.
    """
    name = shown(origin)
    text = _text(content, name)
    is_yaml = origin.lower().endswith(_YAML_EXTENSIONS)
    data = _parse_yaml(text, name) if is_yaml else _parse_json(text, name)
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise InputError(
            "NOT_A_MAPPING",
            f"{name} does not hold one object with named fields",
            "start from a file of datasets/",
        )
    return data


def _text(content: bytes, name: str) -> str:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            "NOT_TEXT", f"{name} is not UTF-8 text (byte {error.start})", "give a JSON file"
        ) from None
    if not text.strip():
        raise InputError("EMPTY_FILE", f"{name} is empty", "give a JSON file with the fields")
    return text


def _read_bytes(path: str, limit_bytes: int) -> bytes:
    """Content of a file or of standard input, at most ``limit_bytes`` long."""
    name = shown(path)
    try:
        if path == "-":
            content = sys.stdin.buffer.read(limit_bytes + 1)
        else:
            file = Path(path)
            if file.is_dir():
                raise InputError("IS_A_DIRECTORY", f"{name} is a directory", "name a file in it")
            if file.exists() and not file.is_file():
                raise InputError("NOT_A_FILE", f"{name} is not a regular file", "name a file")
            with file.open("rb") as stream:
                content = stream.read(limit_bytes + 1)
    except FileNotFoundError:
        raise InputError("NO_SUCH_FILE", f"{name} does not exist", "check the path") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "bad path"
        raise InputError(
            "UNREADABLE_FILE", f"{name} cannot be read: {reason}", "check the path and its rights"
        ) from None
    if len(content) > limit_bytes:
        raise _too_large(name, limit_bytes)
    return content


def _too_large(name: str, limit: int) -> InputError:
    return InputError(
        "FILE_TOO_LARGE", f"{name} is larger than {limit >> 10} KiB", "give the specification only"
    )


def _parse_json(text: str, name: str) -> object:
    try:
        data: object = msgspec.json.decode(text.encode())
    except (msgspec.DecodeError, RecursionError) as error:
        raise _malformed("JSON", name, error) from None
    return data


def _parse_yaml(text: str, name: str) -> object:
    """YAML by its safe loader, once its tokens are known to be harmless."""
    import yaml

    if len(text) > MAX_YAML_BYTES:
        raise _too_large(name, MAX_YAML_BYTES)
    try:
        _refuse_yaml_bombs(text, name)
        data: object = yaml.safe_load(text)
    except (
        yaml.YAMLError,
        ArithmeticError,  # this and below: the safe loader on odd scalars, such as !!int ""
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        raise _malformed("YAML", name, error) from None
    return data


def _refuse_yaml_bombs(text: str, name: str) -> None:
    """No aliases (they grow without bound) and no deep nesting; scans no further than needed."""
    import yaml

    opening = (
        yaml.FlowSequenceStartToken,
        yaml.FlowMappingStartToken,
        yaml.BlockSequenceStartToken,
        yaml.BlockMappingStartToken,
    )
    closing = (yaml.FlowSequenceEndToken, yaml.FlowMappingEndToken, yaml.BlockEndToken)
    depth = 0
    for token in yaml.scan(text):
        if isinstance(token, yaml.AliasToken):
            raise InputError("YAML_ALIAS", f"{name} uses YAML aliases", "write the values out")
        depth += isinstance(token, opening) - isinstance(token, closing)
        if depth > MAX_YAML_DEPTH:
            raise InputError(
                "NESTED_TOO_DEEPLY", f"{name} has over {MAX_YAML_DEPTH} levels", "flatten it"
            )


def _malformed(form: str, name: str, error: Exception) -> InputError:
    lines = str(error).splitlines() or [type(error).__name__]
    reason = "nested too deeply" if isinstance(error, RecursionError) else shown(lines[0])
    mark = getattr(error, "problem_mark", None)
    line = getattr(mark, "line", None)
    where = f" (line {line + 1})" if isinstance(line, int) else ""
    return InputError(f"MALFORMED_{form}", f"{name}: {reason}{where}", f"mend the {form}")
