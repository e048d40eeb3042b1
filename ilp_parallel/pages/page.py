"""The page: sections put into the template, with style and script inside."""

from __future__ import annotations

import base64
import hashlib
from importlib import resources
from string import Template
from typing import TYPE_CHECKING

from ilp_parallel import __version__
from ilp_parallel.pages import about, evidence, snippets
from ilp_parallel.pages.html import Html, data_block, el, joined
from ilp_parallel.pages.timeline import timeline_data

if TYPE_CHECKING:
    from ilp_parallel.pages.facts import Facts


def render_page(facts: Facts) -> str:
    """One HTML document that needs nothing else: style, script, charts and data are inside.

    Its policy (CSP) lets only the page's own script run and nothing be loaded, so that a text from
    a file could do nothing even if it were not escaped.
    """
    drawn = None
    if facts.played is not None:
        drawn = timeline_data(facts.played, facts.prediction, facts.tick_s)
    sections = {
        "summary": ("Summary", about.summary(facts)),
        "proof": ("Certificate", about.proof(facts)),
        "cluster": ("Cluster and stages", joined((about.cluster(facts), about.stage_map(facts)))),
        "timeline": ("Timeline", evidence.timeline(facts, drawn)),
        "memory": ("Memory", evidence.memory(facts)),
        "time": ("Where the time goes", evidence.time_goes(facts)),
        "bounds": ("Bounds", evidence.ladder(facts)),
        "sensitivity": ("Sensitivity", evidence.sensitivity(facts)),
        "rivals": ("Runner-up plans", evidence.rivals(facts)),
        "exports": ("Run it", snippets.exports(facts.snippets)),
    }
    plan = facts.plan
    title = f"{plan.model.name} on {plan.cluster.name}"
    script = _file("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return Template(_file("page.html")).substitute(
        title=el("title", f"{title}: training plan"),
        heading=el("h1", title),
        configuration=el("p", plan.configuration.name, attrs={"class": "configuration"}),
        policy=f"sha256-{digest}",
        style=_file("page.css"),
        script=script,
        contents=joined(
            el("li", el("a", name, attrs={"href": f"#{key}"}))
            for key, (name, _) in sections.items()
        ),
        sections=joined(_section(key, *section) for key, section in sections.items()),
        data=data_block("timeline-data", {} if drawn is None else drawn.data),
        version=el("span", f"ilp-parallel {__version__}"),
    )


def _section(key: str, name: str, content: Html) -> Html:
    heading = el("h2", name, attrs={"id": f"{key}-heading"})
    return el("section", heading, content, attrs={"id": key, "aria-labelledby": f"{key}-heading"})


def _file(name: str) -> str:
    """A part of the page that comes with the package."""
    return resources.files("ilp_parallel.pages").joinpath(name).read_text(encoding="utf-8")
