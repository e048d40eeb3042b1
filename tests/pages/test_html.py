"""Markup that no text can break."""

from __future__ import annotations

import html
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ilp_parallel.pages.html import Html, data_block, el, table


@given(st.text(), st.text())
def test_text_and_attributes_come_back_as_they_went_in(text: str, value: str) -> None:
    made = el("p", text, attrs={"title": value})
    head, _, rest = made.partition('">')
    assert html.unescape(head.removeprefix('<p title="')) == value
    assert html.unescape(rest.removesuffix("</p>")) == text
    assert "<" not in rest.removesuffix("</p>")


def test_markup_is_kept_and_text_is_not() -> None:
    assert el("p", Html("<b>x</b>"), "<b>") == "<p><b>x</b>&lt;b&gt;</p>"


@given(st.recursive(st.text() | st.integers(), lambda inner: st.lists(inner)))
def test_data_comes_back_and_cannot_end_its_element(data: object) -> None:
    block = data_block("d", data)
    inside = block.removeprefix('<script type="application/json" id="d">')
    inside = inside.removesuffix("</script>")
    assert "<" not in inside
    assert json.loads(inside) == data


@pytest.mark.parametrize(
    ("column", "numeric"), [(("1.5", "-2,000", "-"), True), (("1.5", "x"), False)]
)
def test_columns_of_numbers_are_marked(column: tuple[str, ...], numeric: bool) -> None:
    made = table(("name", "value"), [("a", cell) for cell in column], "caption")
    assert ('class="number"' in made) == numeric
