"""The report in a real browser: headless Chromium through its driver (Debian: chromium-driver)."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from ilp_parallel.pages.facts import gather
from ilp_parallel.pages.page import render_page
from tests.pages.results import NASTY, result_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

selenium = pytest.importorskip("selenium", reason="selenium is not installed (extra dev)")
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
pytestmark = [
    pytest.mark.skipif(
        BROWSER is None or DRIVER is None, reason="no chromium with chromedriver on the path"
    ),
    pytest.mark.xdist_group("browser"),
]

WIDE, NARROW = 1280, 400
LEAST_CONTRAST = 4.5
"""WCAG 2.1, 1.4.3, level AA, for text of usual size."""

CONTRASTS = r"""
const luminance = ([r, g, b]) => {
  const line = (c) => { c /= 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
  return 0.2126 * line(r) + 0.7152 * line(g) + 0.0722 * line(b);
};
const pen = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const rgba = (colour) => {  // whatever the notation, as the browser paints it
  if (!colour || colour === "none") return [0, 0, 0, 0];
  pen.clearRect(0, 0, 1, 1);
  pen.fillStyle = colour;
  pen.fillRect(0, 0, 1, 1);
  return [...pen.getImageData(0, 0, 1, 1).data];
};
const isShape = (e) => e instanceof SVGGeometryElement || e instanceof SVGUseElement;
const page = rgba(getComputedStyle(document.body).backgroundColor);
const found = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let text = walker.nextNode(); text; text = walker.nextNode()) {
  const element = text.parentElement;
  if (!text.textContent.trim() || element.closest("script, style, noscript")) continue;
  const range = document.createRange();
  range.selectNodeContents(text);
  element.scrollIntoView({ block: "center", inline: "center" });
  const r = range.getClientRects()[0];
  if (!r || r.width < 1 || element.classList.contains("skip")) continue;
  const x = Math.max(1, Math.min(r.left + r.width / 2, innerWidth - 1)), y = r.top + r.height / 2;
  const inSvg = element.namespaceURI.endsWith("svg");
  const style = getComputedStyle(element);
  const ink = rgba(inSvg ? style.fill : style.color);
  let paper = page;
  for (const below of document.elementsFromPoint(x, y)) {
    if (inSvg && (below === element || element.contains(below) || below.closest("text"))) continue;
    const dress = getComputedStyle(below);
    const colour = rgba(isShape(below) ? dress.fill : dress.backgroundColor);
    if (colour[3] > 250) { paper = colour; break; }
  }
  const [a, b] = [luminance(ink), luminance(paper)].sort((p, q) => q - p);
  const ratio = Math.round(100 * (a + 0.05) / (b + 0.05)) / 100;
  found.push([ratio, text.textContent.trim().slice(0, 40), ink, paper]);
}
return found;
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return written(tmp_path_factory.mktemp("page"), "tiny")


def written(folder: Path, name: str) -> str:
    """Address of the report of the small job."""
    result = folder / "result.json"
    result.write_text(result_text(name, "1f1b"), encoding="utf-8")
    report = folder / "report.html"
    report.write_text(render_page(gather(str(result))), encoding="utf-8")
    return report.as_uri()


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = BROWSER
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


def opened(browser, address: str, width: int = WIDE, scheme: str = "light"):
    """The page at a width, in a colour scheme."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.get(address)
    browser.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    return browser


def settled(browser) -> None:
    browser.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")


def view_of(browser) -> tuple[float, float, int]:
    """What the timeline shows: first and last tick, chosen stage."""
    settled(browser)
    data = browser.execute_script("return {...document.querySelector('#timeline-view').dataset}")
    return float(data["from"]), float(data["to"]), int(data["stage"])


def press(browser, selector: str, *keys: str) -> None:
    element = browser.find_element("css selector", selector)
    for key in keys:
        element.send_keys(key)
    settled(browser)


@pytest.mark.parametrize("width", [WIDE, NARROW])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_renders_without_a_word_on_the_console(browser, page: str, width: int, scheme: str) -> None:
    opened(browser, page, width, scheme)
    assert browser.get_log("browser") == []
    sizes = browser.execute_script(
        "return [...document.querySelectorAll('figure')].map(f => {"
        " const r = f.getBoundingClientRect(); return [f.id, r.width, r.height]; })"
    )
    charts = {name: (w, h) for name, w, h in sizes}
    assert set(charts) == {
        f"chart-{name}"
        for name in ("map", "timeline", "curves", "bars", "waterfall", "ladder", "sensitivity")
    }
    assert all(w > 250 and h > 60 for w, h in charts.values()), charts
    assert (
        browser.execute_script("return document.querySelectorAll('#timeline-view path').length") > 4
    )
    wide = browser.execute_script("return document.documentElement.scrollWidth")
    assert wide <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_is_readable(browser, page: str, scheme: str) -> None:
    opened(browser, page, WIDE, scheme)
    browser.execute_script("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    press(browser, "#timeline-view", "+", "+")
    found = browser.execute_script(CONTRASTS)
    assert len(found) > 300
    poor = [entry for entry in found if entry[0] < LEAST_CONTRAST]
    assert poor == []


def test_contrast_check_sees_poor_contrast(browser, page: str) -> None:
    opened(browser, page)
    browser.execute_script("document.querySelector('h1').style.color = '#999999'")
    assert min(browser.execute_script(CONTRASTS))[0] < LEAST_CONTRAST


def test_text_in_charts_is_not_tiny_on_a_telephone(browser, page: str) -> None:
    opened(browser, page, NARROW)
    sizes = browser.execute_script(
        "return [...document.querySelectorAll('.chart text, #timeline-view text')].map(t =>"
        " parseFloat(getComputedStyle(t).fontSize)"
        " * Math.hypot(t.getScreenCTM().a, t.getScreenCTM().b))"
    )
    assert min(sizes) >= 9


def test_timeline_is_moved_by_keys(browser, page: str) -> None:
    from selenium.webdriver.common.keys import Keys

    opened(browser, page)
    low, high, stage = view_of(browser)
    assert (low, stage) == (0, 0)
    press(browser, "#timeline-view", "+", "+")
    zoomed = view_of(browser)
    assert zoomed[1] - zoomed[0] == pytest.approx((high - low) / 4)
    assert "stage 0 chosen" in browser.find_element("id", "timeline-readout").text
    press(browser, "#timeline-view", Keys.ARROW_RIGHT)
    moved = view_of(browser)
    assert moved[0] > zoomed[0]
    assert moved[1] - moved[0] == pytest.approx(zoomed[1] - zoomed[0])
    press(browser, "#timeline-view", Keys.END)
    assert view_of(browser)[1] == pytest.approx(high)
    press(browser, "#timeline-view", Keys.HOME)
    assert view_of(browser)[0] == 0
    press(browser, "#timeline-view", "n", "n")
    said = browser.find_element("id", "timeline-readout").text
    assert said.startswith("stage 0: forward of microbatch 1")
    assert "GiB" in said
    press(browser, "#timeline-view", "0")
    assert view_of(browser)[:2] == (0, pytest.approx(high))
    assert browser.get_log("browser") == []


def test_timeline_is_moved_by_buttons_and_drag(browser, page: str) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    opened(browser, page, NARROW)
    low, high, _ = view_of(browser)
    for act in ("in", "in"):
        browser.find_element("css selector", f"[data-act={act}]").click()
    before = view_of(browser)
    assert before[1] - before[0] == pytest.approx((high - low) / 4)
    view = browser.find_element("id", "timeline-view")
    ActionChains(browser).drag_and_drop_by_offset(view, -60, 0).perform()
    after = view_of(browser)
    assert after[0] > before[0]
    browser.find_element("css selector", "[data-act=all]").click()
    assert view_of(browser)[1] == pytest.approx(high)


def test_tab_key_reaches_everything_that_acts(browser, page: str) -> None:
    from selenium.webdriver.common.keys import Keys

    opened(browser, page)
    reached = []
    for _ in range(120):
        browser.switch_to.active_element.send_keys(Keys.TAB)
        reached.append(
            browser.execute_script(
                "const e = document.activeElement;"
                "return e.id || e.dataset.act || e.getAttribute('href') || e.className"
                " || e.tagName"
            )
        )
        if reached[-1] == "BODY":
            break
    wanted = {"skip", "#exports", "theme", "in", "out", "timeline-view", "tab-0", "copy"}
    assert wanted - {"skip"} <= set(reached), reached
    assert reached[0] == "#summary"


def test_tabs_and_copy_buttons(browser, page: str) -> None:
    from selenium.webdriver.common.keys import Keys

    opened(browser, page)
    browser.execute_cdp_cmd("Browser.grantPermissions", {"permissions": ["clipboardReadWrite"]})
    tabs = browser.find_elements("css selector", "[role=tab]")
    assert len(tabs) >= 2
    panel = browser.find_element("id", "panel-1")
    assert not panel.is_displayed()
    tabs[0].send_keys(Keys.ARROW_RIGHT)
    assert panel.is_displayed()
    assert tabs[1].get_attribute("aria-selected") == "true"
    button = panel.find_element("css selector", ".copy")
    button.click()
    copied = browser.execute_async_script(
        "navigator.clipboard.readText().then(arguments[0], () => arguments[0](null))"
    )
    text = browser.find_element("id", button.get_attribute("data-copy")).get_attribute(
        "textContent"
    )
    assert copied == text
    assert button.text == "Copied"


def test_the_button_changes_the_theme(browser, page: str) -> None:
    opened(browser, page)
    colour = "return getComputedStyle(document.body).backgroundColor"
    light = browser.execute_script(colour)
    browser.find_element("id", "theme").click()
    assert browser.execute_script(colour) != light
    browser.find_element("id", "theme").click()
    assert browser.execute_script(colour) == light


def test_a_hostile_name_does_nothing(browser, tmp_path: Path) -> None:
    opened(browser, written(tmp_path, NASTY))
    assert browser.get_log("browser") == []
    assert browser.find_element("css selector", "h1").text.startswith(NASTY)
    assert browser.title.startswith(NASTY)
    assert browser.execute_script("return document.scripts.length") == 2


def test_prints_in_light_colours_and_whole(browser, page: str) -> None:
    opened(browser, page, WIDE, "dark")
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": []})
    assert (
        browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        == "rgb(255, 255, 255)"
    )
    hidden = browser.execute_script(
        "return [...document.querySelectorAll('[role=tabpanel], .chart')]"
        ".filter(e => !e.offsetHeight).length"
    )
    assert hidden == 0
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
