"""Models from a list of their blocks: equal ones become a kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ilp_parallel.specs.documents import Document


def with_blocks(fields: Document, blocks: Sequence[Document]) -> Document:
    """Fields of a model whose blocks have these fields of a ``Kind``.

    Equal blocks are one kind; where all are, the model has their fields itself.
    """
    kinds: list[Document] = []
    order: list[int] = []
    for block in blocks:
        if block not in kinds:
            kinds.append(block)
        order.append(kinds.index(block))
    fields = fields | {"layers": len(blocks)}
    if len(kinds) == 1:
        return fields | {name: value for name, value in kinds[0].items() if name != "name"}
    dense = [kind["ffn_hidden"] for kind in kinds if kind["ffn_hidden"]]
    return fields | {"ffn_hidden": dense[0] if dense else 0, "kinds": kinds, "order": order}


def attention_blocks(
    experts: Sequence[Document | None], ffn_hidden: int, seen: Sequence[int], word: str = "sliding"
) -> list[Document]:
    """Blocks of attention: [layers] experts (None: a dense MLP) and window.

    Their names say in what they differ: for instance ``dense`` and ``moe``, or ``sliding`` and
    ``full``.
    """
    by_mlp = len({block is None for block in experts}) > 1
    by_window = len(set(seen)) > 1
    blocks: list[Document] = []
    for mixture, window in zip(experts, seen, strict=True):
        mlp = "dense" if mixture is None else "moe"
        reach = word if window else "full"
        parts = ([reach] if by_window else []) + ([mlp] if by_mlp or not by_window else [])
        block: Document = {"name": "-".join(parts), "ffn_hidden": 0 if mixture else ffn_hidden}
        if mixture is not None:
            block["experts"] = mixture
        if window:
            block["window"] = window
        blocks.append(block)
    return blocks
