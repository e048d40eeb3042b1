"""All importers by name, and the one function that uses them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ilp_parallel.errors import InputError
from ilp_parallel.imports.calculon import read_calculon
from ilp_parallel.imports.deepspeed import read_deepspeed
from ilp_parallel.imports.galvatron import read_galvatron
from ilp_parallel.imports.megatron import read_megatron
from ilp_parallel.imports.torchtitan import read_torchtitan
from ilp_parallel.specs.documents import read_text, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ilp_parallel.imports.record import Imported

SINGLE: dict[str, Callable[[str, str, int | None], Imported]] = {
    "megatron": read_megatron,
    "torchtitan": read_torchtitan,
    "deepspeed": read_deepspeed,
    "galvatron": read_galvatron,
}
"""Formats of one file each; Calculon's has up to three."""

FORMS = (*SINGLE, "calculon")

PROBLEMS = ("piper",)
"""Formats of whole problems rather than of runs: they have readers and verbs of their own."""


def read_texts(files: Sequence[tuple[str, str]], form: str, devices: int | None) -> Imported:
    """What files (text and origin) of a format state about a run.

    Parameters
    ----------
    devices
        World size, where the user gave a cluster; the files may state it themselves.

    Raises
    ------
    InputError
        ``NOT_A_RUN``, ``UNKNOWN_FORMAT``, ``ONE_FILE_ONLY``, or what the format's reader raises.
    """
    if form in PROBLEMS:
        message = f"a file of format {form} states a problem, not a run"
        raise InputError("NOT_A_RUN", message, "use solve")
    if form == "calculon":
        return read_calculon(files, devices)
    if form not in SINGLE:
        raise InputError("UNKNOWN_FORMAT", f"no format {shown(form)}", f"use one of {FORMS}")
    if len(files) != 1:
        raise InputError("ONE_FILE_ONLY", f"{len(files)} files of format {form}", "give one file")
    return SINGLE[form](*files[0], devices)


def read_files(paths: Sequence[str], form: str, devices: int | None) -> Imported:
    """The same for files by path; ``-`` is standard input. Also raises what reading a file does."""
    return read_texts([(read_text(path), path) for path in paths], form, devices)
