"""The built book in a real browser, opened from disk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.book import axe
from tests.book.paper import SHEET, TOO_WIDE
from toolkit.book import contents
from toolkit.browser import VIEWS, wait_for_formulas, wait_for_widgets

pytestmark = [
    pytest.mark.book,
    pytest.mark.browser,
]


PAGES = [*contents(), "search"]

# What the page holds besides its controls: visible text, pictures and colours of widget `root`.
SHOWN = """root => {
  const controls = '.widget-slider, .widget-toggle-buttons, .widget-dropdown, .widget-play, ' +
    '.widget-checkbox, .widget-toggle-button, .widget-radio, .lm-TabBar';
  const out = [];
  const walk = node => {
    if (node.nodeType === 3) {
      if (node.textContent.trim()) out.push(node.textContent.trim());
      return;
    }
    if (node.nodeType !== 1 || node.matches(controls)) return;
    const style = getComputedStyle(node);
    if (style.display === 'none' || style.visibility === 'hidden') return;
    if (node.matches('img')) out.push(node.src);
    if (node.matches('canvas')) out.push(node.toDataURL());
    if (node.matches('td, rect, circle, path')) out.push(style.backgroundColor + style.fill);
    node.childNodes.forEach(walk);
  };
  walk(root);
  return out.join('|');
}"""

# Text whose contrast with what is behind it is too low, by WCAG's formula.
FAINT = """() => {
  const parse = c => (c.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
  const light = c => { const [r, g, b] = c.map(v => { v /= 255;
    return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const over = (top, below) => { const a = top.length > 3 ? top[3] : 1;
    return [0, 1, 2].map(i => top[i] * a + below[i] * (1 - a)); };
  const behind = node => { const layers = []; let at = node;
    for (; at; at = at.parentElement) {
      const style = getComputedStyle(at); const c = parse(style.backgroundColor);
      if (style.backgroundImage !== 'none') return null;
      if (c.length < 4 || c[3] > 0) { layers.push(c); if (c.length < 4 || c[3] === 1) break; }
      if (at.tagName === 'CAPTION') at = at.parentElement; }  // painted outside its table
    return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255]); };
  const faint = new Map(); let seen = 0;
  const main = document.querySelector('.bd-main');
  const walker = document.createTreeWalker(main, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || !node.checkVisibility()) continue;
    if (node.closest('svg, mjx-assistive-mml, script, .copybtn, [disabled]')) continue;
    const style = getComputedStyle(node), back = behind(node);
    if (!back || Number(style.opacity) < 0.1 || style.fontSize === '0px') continue;
    seen += 1;
    const front = over(parse(style.color), back);
    const [hi, lo] = [light(front), light(back)].sort((x, y) => y - x);
    const ratio = (hi + 0.05) / (lo + 0.05);
    const size = parseFloat(style.fontSize), bold = Number(style.fontWeight) >= 700;
    if (ratio < (size >= 24 || (bold && size >= 18.66) ? 3 : 4.5))
      faint.set(style.color + ' on ' + back.map(Math.round), ratio.toFixed(2) + ' <' +
        node.tagName.toLowerCase() + ' ' + node.className + '> ' +
        walker.currentNode.textContent.trim().slice(0, 30));
  }
  return [seen, [...faint].map(([k, v]) => k + ': ' + v)];
}"""


@dataclass
class Visit:
    """What one visit to a page showed."""

    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    formulas: int = 0
    typeset: int = 0
    broken_formulas: list[str] = field(default_factory=list)
    widgets: int = 0
    widgets_shown: int = 0
    unmoved: list[str] = field(default_factory=list)
    silent_pictures: list[str] = field(default_factory=list)
    faint: dict[str, list[str]] = field(default_factory=dict)
    texts: int = 0
    barriers: list[axe.Finding] = field(default_factory=list)
    width: int = 0
    too_wide: list[str] = field(default_factory=list)
    beyond_paper: list[str] = field(default_factory=list)


@pytest.fixture(scope="session")
def visit(browser: Any, site: Path) -> Iterator[Any]:
    """Visit a page, once."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light")
    visits: dict[str, Visit] = {}
    known: set[str] = set()

    def go(name: str) -> Visit:
        if name not in visits:
            visits[name] = look(context, site / f"{name}.html", known)
        return visits[name]

    yield go
    context.close()


def look(context: Any, file: Path, known: set[str]) -> Visit:
    """Open a page from disk, wait for what it loads, and write down what there is to see.

    Kinds of text that other pages had are in `known`, for `axe.findings`.
    """
    found, page = Visit(), context.new_page()
    page.on("request", lambda r: found.requests.append(r.url))
    page.on("requestfailed", lambda r: found.errors.append(f"not loaded: {r.url}"))
    page.on("pageerror", lambda e: found.errors.append(str(e)))
    page.on("console", lambda m: found.errors.append(m.text) if m.type == "error" else None)
    page.goto(file.as_uri(), wait_until="load")
    found.formulas = page.locator("span.math, div.math").count()
    wait_for_formulas(page)
    found.widgets = page.locator(VIEWS).count()
    wait_for_widgets(page)
    page.evaluate("window.scrollTo(0, document.body.scrollHeight)")  # lazy pictures too
    page.wait_for_load_state("networkidle")

    found.typeset = page.locator("span.math mjx-container, div.math mjx-container").count()
    found.broken_formulas = page.locator("mjx-merror").all_inner_texts()
    found.widgets_shown = page.locator(".widget-subarea .jupyter-widgets").count()
    found.silent_pictures = page.evaluate(
        "[...document.images].filter(i => !i.alt.trim()).map(i => i.src.slice(0, 60))"
    )
    found.unmoved = move_widgets(page)
    page.evaluate("document.activeElement.blur()")
    axe.prepare(page)
    for theme, only in (("light", ""), ("dark", "colours")):
        page.evaluate("theme => { document.documentElement.dataset.theme = theme; }", theme)
        found.texts, found.faint[theme] = page.evaluate(FAINT)
        found.barriers += axe.findings(page, theme, only, known)

    # The page's own listeners, which came first, have answered the new width by then.
    page.evaluate("""() => { window.narrowed = new Promise(done => addEventListener('resize',
        () => requestAnimationFrame(() => setTimeout(done)), {once: true})); }""")
    page.set_viewport_size({"width": 390, "height": 844})
    page.evaluate("window.narrowed")
    found.barriers += axe.findings(page, "phone", "structure")
    found.width = page.evaluate("document.documentElement.scrollWidth")
    if found.width > 390:
        found.too_wide = page.evaluate(
            """() => [...document.querySelectorAll('.bd-main *')]
              .filter(e => e.getBoundingClientRect().right > innerWidth + 1).slice(0, 5)
              .map(e => e.tagName + '.' + e.className + ' ' + e.getBoundingClientRect().right)"""
        )

    page.emulate_media(media="print")
    page.set_viewport_size({"width": SHEET, "height": 900})
    page.wait_for_timeout(100)
    found.beyond_paper = page.evaluate(TOO_WIDE)
    page.close()
    return found


def move_widgets(page: Any) -> list[str]:
    """Use every control of every widget; the controls that nothing followed."""
    unmoved = []
    for root in page.locator(".widget-subarea").all():
        root.scroll_into_view_if_needed()
        for group in root.locator(".widget-toggle-buttons").all():
            buttons, before = group.locator("button").all(), root.evaluate(SHOWN)
            seen = set()
            for button in buttons:
                button.click()
                page.wait_for_timeout(60)
                seen.add(root.evaluate(SHOWN))
            if len(seen | {before}) < 2:
                unmoved.append(f"buttons {group.inner_text()!r}")
        for handle in root.locator(".noUi-handle").all():
            before = root.evaluate(SHOWN)
            handle.focus()
            page.keyboard.press("Home")
            page.wait_for_timeout(60)
            low = root.evaluate(SHOWN)
            page.keyboard.press("End")
            page.wait_for_timeout(60)
            if root.evaluate(SHOWN) == low == before:
                unmoved.append("a slider")
    return unmoved


@pytest.mark.parametrize("name", PAGES)
def test_a_page_opened_from_disk_asks_no_other_host(visit: Any, name: str) -> None:
    foreign = [url for url in visit(name).requests
               if not url.startswith(("file:", "data:", "blob:"))]  # fmt: skip
    assert not foreign


@pytest.mark.parametrize("name", PAGES)
def test_a_page_loads_without_errors(visit: Any, name: str) -> None:
    assert visit(name).errors == []


@pytest.mark.parametrize("name", PAGES)
def test_every_formula_is_typeset(visit: Any, name: str) -> None:
    page = visit(name)
    assert page.typeset >= page.formulas
    assert page.broken_formulas == []


@pytest.mark.parametrize("name", PAGES)
def test_widgets_appear_and_move_without_a_kernel(visit: Any, name: str) -> None:
    page = visit(name)
    if not page.widgets:
        pytest.skip("no widget on this page")
    assert page.widgets_shown >= page.widgets
    assert page.unmoved == []


def test_some_page_has_a_widget_and_some_page_has_formulas(visit: Any) -> None:
    assert any(visit(name).widgets for name in PAGES)
    assert any(visit(name).formulas for name in PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_every_picture_in_the_running_page_has_a_text(visit: Any, name: str) -> None:
    assert visit(name).silent_pictures == []


@pytest.mark.parametrize("name", PAGES)
def test_a_phone_needs_no_sideways_scrolling(visit: Any, name: str) -> None:
    page = visit(name)
    assert page.width <= 390, page.too_wide


@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_cut_off_on_paper(visit: Any, name: str) -> None:
    assert visit(name).beyond_paper == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_text_stands_out_from_its_background(visit: Any, name: str, theme: str) -> None:
    page = visit(name)
    assert page.texts > 3
    assert page.faint[theme] == []


@pytest.mark.parametrize("setting", ["light", "dark", "phone"])
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing_that_keeps_people_out(visit: Any, name: str, setting: str) -> None:
    # What is left are head cells with a formula alone: axe does not read MathML, people hear it.
    barriers = [one for one in visit(name).barriers if one.impact != "minor"]
    found = [str(one) for one in barriers if one.setting == setting]
    assert not found, f"{name}, {len(found)} findings\n" + "\n".join(found)
