"""Verbs and options that take what users have and give what their frameworks read."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

if TYPE_CHECKING:
    from ilp_parallel.export.base import Export

FRAMEWORKS = (
    "megatron",
    "megatron-bridge",
    "torchtitan",
    "torchtitan-toml",
    "deepspeed",
    "accelerate",
    "colossalai",
    "galvatron",
)
"""Names of ``ilp_parallel.export.registry.EXPORTERS``, written out so that help needs no import."""


@click.command()
@click.argument("file")
@click.option("--to", "target", type=click.Choice(FRAMEWORKS), required=True)
@click.option("-o", "output", default="-", metavar="FILE", help="File, or a folder for all files.")
@click.option("--format", "style", type=click.Choice(("text", "json")), default="text")
def export(file: str, target: str, output: str, style: Literal["text", "json"]) -> None:
    """Write the plan in FILE as the options or files of a training framework.

    Warnings name what the framework cannot express; they go to standard error, and into the file
    where its format has comments.
    """
    from ilp_parallel.export.registry import export_plan
    from ilp_parallel.plan_files import read_plan, write_text

    found = export_plan(read_plan(file), target)
    if style == "json":
        write_text(output, json.dumps(_document(found), ensure_ascii=False, indent=1) + "\n")
        return
    for note in found.notes:
        sys.stderr.write(f"{note.code}: {note.text}\n")
    if output != "-" and Path(output).is_dir():
        for part in found.files:
            write_text(str(Path(output) / part.name), part.text)
        return
    write_text(output, found.text)
    for part in found.files[1:]:
        sys.stderr.write(f"COMPANION_FILE: {part.name} is needed too; give -o FOLDER\n")


def _document(found: Export) -> dict[str, object]:
    from ilp_parallel.plan_files import plan_document

    return {
        "schema": "ilp_parallel.export/1",
        "framework": found.framework,
        "files": {part.name: part.text for part in found.files},
        "warnings": [{"code": note.code, "text": note.text} for note in found.notes],
        "plan": plan_document(found.plan),
    }
