"""The section with the plan in the words of training frameworks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ilp_parallel.pages.html import Html, details, el, joined, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ilp_parallel.pages.facts import Snippet


def exports(snippets: Sequence[Snippet]) -> Html:
    """Tabs with the plan in the words of each framework; those that refuse it say why."""
    written = [s for s in snippets if s.export is not None]
    refused = [(s.title, s.framework, s.refusal or "") for s in snippets if s.export is None]
    parts: list[Html] = []
    if written:
        tabs = [_tab(i, snippet) for i, snippet in enumerate(written)]
        parts.append(
            el("div", *tabs, attrs={"role": "tablist", "aria-label": "Frameworks", "class": "tabs"})
        )
        parts += [_panel(i, snippet) for i, snippet in enumerate(written)]
    else:
        parts.append(el("p", "No framework can express this plan."))
    if refused:
        header = ("framework", "name", "why it cannot run this plan")
        rows = table(header, refused, "frameworks that cannot run this plan")
        parts.append(details(f"{len(refused)} frameworks cannot run this plan", rows))
    return joined(parts)


def _tab(index: int, snippet: Snippet) -> Html:
    first = index == 0
    attrs = {
        "type": "button",
        "role": "tab",
        "id": f"tab-{index}",
        "aria-controls": f"panel-{index}",
        "aria-selected": "true" if first else "false",
        "tabindex": "0" if first else "-1",
    }
    return el("button", snippet.title, attrs=attrs)


def _panel(index: int, snippet: Snippet) -> Html:
    export = snippet.export
    assert export is not None
    files = []
    for number, file in enumerate(export.files):
        name = f"snippet-{index}-{number}"
        copy = {"type": "button", "class": "copy", "data-copy": name}
        head = el("div", el("code", file.name), el("button", "Copy", attrs=copy),
                  attrs={"class": "file"})  # fmt: skip
        text = el("pre", el("code", file.text, attrs={"id": name}),
                  attrs={"tabindex": "0", "role": "region", "aria-label": file.name})  # fmt: skip
        files += [head, text]
    notes = el("ul", *(el("li", el("code", n.code), " ", n.text) for n in export.notes))
    attrs = {"role": "tabpanel", "id": f"panel-{index}", "aria-labelledby": f"tab-{index}"}
    return el("div", *files, notes, attrs=attrs)
