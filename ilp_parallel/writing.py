"""Writing results: whole or not at all."""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ilp_parallel.errors import InputError
from ilp_parallel.specs.documents import shown

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO


def require_target(path: str) -> None:
    """Refuse an output path that cannot work, before anything long is started.

    Raises
    ------
    InputError
        ``CANNOT_WRITE``.
    """
    if path == "-":
        return
    target = Path(path)
    try:
        directory, folder = target.is_dir(), target.parent.is_dir()
    except OSError as error:  # a name too long for the file system, for instance
        reason = error.strerror or "no usable name"
        raise InputError("CANNOT_WRITE", f"{shown(path)}: {reason}", "choose another -o") from None
    if directory or not folder:
        reason = "it is a directory" if directory else "no such folder"
        raise InputError("CANNOT_WRITE", f"{shown(path)}: {reason}", "choose another -o")


def write_text(path: str, text: str) -> None:
    """Write a file whole or not at all; ``-`` is standard output.

    Raises
    ------
    InputError
        ``CANNOT_WRITE``.
    """
    if path == "-":
        sys.stdout.write(text)
        return
    with replacing(path, "choose another -o") as file:
        file.write(text.encode())


@contextmanager
def replacing(path: str, fix: str) -> Iterator[IO[bytes]]:
    """A file to fill that takes the place of ``path`` at the end, and vanishes on an error.

    Raises
    ------
    InputError
        ``CANNOT_WRITE``, with the fix given.
    """
    target = Path(path)
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".ilp_parallel-")
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
            os.chmod(temporary, 0o644)
            os.replace(temporary, target)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError("CANNOT_WRITE", f"{path}: {reason}", fix) from None
