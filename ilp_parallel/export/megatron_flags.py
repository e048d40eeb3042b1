"""Megatron-LM command-line options as data: from words, to words, read by name."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ilp_parallel.errors import InputError
from ilp_parallel.specs.documents import shown

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class MegatronFlags:
    """Options in the order they are printed; of a repeated option the last counts, as argparse."""

    items: tuple[tuple[str, tuple[str, ...]], ...]

    @classmethod
    def from_arguments(cls, arguments: Sequence[str]) -> MegatronFlags:
        """Group shell words into options; ``--name value`` and ``--name=value`` both count.

        Raises
        ------
        InputError
            ``MALFORMED_MEGATRON_ARGUMENTS`` if a word comes before the first option.
        """
        items: list[tuple[str, tuple[str, ...]]] = []
        for word in arguments:
            if word.startswith("--"):
                name, equals, value = word.partition("=")
                items.append((name, (value,) if equals else ()))
            elif items:
                name, values = items[-1]
                items[-1] = (name, (*values, word))
            else:
                raise InputError(
                    "MALFORMED_MEGATRON_ARGUMENTS",
                    f"{shown(word)} comes before any option",
                    "begin with an option such as --num-layers",
                )
        return cls(tuple(items))

    @property
    def arguments(self) -> tuple[str, ...]:
        """All words, as a launcher passes them on."""
        return tuple(word for name, values in self.items for word in (name, *values))

    def values(self, name: str) -> tuple[str, ...] | None:
        """Values of an option, empty for a switch; None if it is absent."""
        return dict(self.items).get(name)

    def has(self, name: str) -> bool:
        """Whether an option is present."""
        return self.values(name) is not None

    def text(self, name: str, default: str) -> str:
        """Single value of an option, or the default if it is absent.

        Raises
        ------
        InputError
            ``MALFORMED_MEGATRON_ARGUMENTS`` if it has no value or more than one.
        """
        values = self.values(name)
        if values is None:
            return default
        if len(values) != 1:
            raise InputError(
                "MALFORMED_MEGATRON_ARGUMENTS",
                f"{shown(name)} has {len(values)} values",
                f"give {name} one value",
            )
        return values[0]

    def integer(self, name: str, default: int | None = None) -> int:
        """Positive integer value of an option, or the default if it is absent.

        Raises
        ------
        InputError
            ``MISSING_MEGATRON_FLAG`` if absent and there is no default;
            ``MALFORMED_MEGATRON_ARGUMENTS`` if the value is no integer above zero.
        """
        if not self.has(name) and default is None:
            raise InputError("MISSING_MEGATRON_FLAG", f"{name} is absent", f"add {name}")
        text = self.text(name, str(default))
        if not (text.isascii() and text.isdigit() and len(text) < 19 and int(text) > 0):
            raise InputError(
                "MALFORMED_MEGATRON_ARGUMENTS",
                f"{name} is {shown(text)}",
                f"give {name} an integer of at least 1",
            )
        return int(text)


@dataclass(frozen=True, slots=True)
class MegatronExport:
    """A Megatron-LM run: options, environment variables, and what the reader should know.

    ``generation`` is that of the device (``ampere``, ``hopper``, ``blackwell``, ...), on which
    one rule depends.
    """

    flags: MegatronFlags
    environment: tuple[tuple[str, str], ...]
    nodes: int
    devices_per_node: int
    generation: str
    warnings: tuple[str, ...]

    @property
    def devices(self) -> int:
        """World size."""
        return self.nodes * self.devices_per_node

    def render(self) -> str:
        """Shell lines to copy: warnings as comments, environment, and the launch command."""
        comments = [f"# {warning}" for warning in self.warnings]
        exports = [f"export {name}={shlex.quote(value)}" for name, value in self.environment]
        launcher = f"torchrun --nnodes {self.nodes} --nproc-per-node {self.devices_per_node}"
        options = [shlex.join((name, *values)) for name, values in self.flags.items]
        command = " \\\n    ".join((f"{launcher} pretrain_gpt.py", *options))
        return "\n".join((*comments, *exports, command)) + "\n"
