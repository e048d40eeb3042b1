"""HTML that cannot be broken by the texts in it: what is not :class:`Html` is escaped."""

from __future__ import annotations

import html
import json
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


def escaped(part: str) -> Html:
    """Markup as it is, anything else escaped."""
    return part if isinstance(part, Html) else Html(html.escape(part, quote=True))


def joined(parts: Iterable[str]) -> Html:
    """Parts one after the other."""
    return Html("".join(escaped(part) for part in parts))


def el(tag: str, *children: str, attrs: Mapping[str, str] | None = None) -> Html:
    """An element. Tag and names of attributes are the program's own, all else is escaped."""
    words = "".join(
        f' {name}="{html.escape(value, quote=True)}"' for name, value in (attrs or {}).items()
    )
    return Html(f"<{tag}{words}>{joined(children)}</{tag}>")


_NUMBER = re.compile(r"[-+]?[\d,.]+|-")


def table(header: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> Html:
    """A table that scrolls by itself where it is wide; columns of numbers are right-aligned."""
    numbers = [
        all(_NUMBER.fullmatch(row[i]) for row in rows) and len(rows) > 0 for i in range(len(header))
    ]

    def cells(tag: str, row: Sequence[str]) -> list[Html]:
        return [
            el(tag, cell, attrs={"class": "number"} if is_number else {})
            for cell, is_number in zip(row, numbers, strict=True)
        ]

    head = el("thead", el("tr", *cells("th", header)))
    body = el("tbody", *(el("tr", *cells("td", row)) for row in rows))
    inner = el("table", el("caption", caption), head, body)
    return el(
        "div",
        inner,
        attrs={"class": "scroll", "tabindex": "0", "role": "region", "aria-label": caption},
    )


def beside(*parts: Html) -> Html:
    """Parts in two columns where there is room."""
    return el("div", *parts, attrs={"class": "pair"})


def details(summary: str, *children: str) -> Html:
    """Something that is folded away."""
    return el("details", el("summary", summary), *children)


def definitions(pairs: Iterable[tuple[str, str]]) -> Html:
    """Names and what they stand for."""
    return el("dl", *(el("div", el("dt", name), el("dd", text)) for name, text in pairs))


def data_block(identity: str, data: object) -> Html:
    """Data for the page's script; nothing in it can end the element."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    text = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return Html(f'<script type="application/json" id="{identity}">{text}</script>')
