"""The built book in a real browser, opened from disk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe

from autograder.benchmarks.pages import wait_for_formulas
from toolkit.book import contents

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

# Chapters of one long page, in which axe takes minutes
TOO_LARGE = {"bert/index", "gpt/index"}
GRAVE = {"serious", "critical"}


def findings(page: Any) -> list[str]:
    """What axe-core calls serious or critical in a page as it is shown now, a line each."""
    options = {"resultTypes": ["violations"], "preload": False}  # asks for no file again
    violations = Axe().run(page, options=options).response["violations"]
    return [
        f"{rule['id']}: {rule['help']}: {node['html'][:80]}"
        for rule in violations if rule["impact"] in GRAVE
        for node in rule["nodes"]
    ]  # fmt: skip


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
    findings: dict[str, list[str]] = field(default_factory=dict)
    width: int = 0
    too_wide: list[str] = field(default_factory=list)


@pytest.fixture(scope="session")
def visit(browser: Any, site: Path) -> Iterator[Any]:
    """Visit a page, once."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light")
    visits: dict[str, Visit] = {}

    def go(name: str) -> Visit:
        if name not in visits:
            visits[name] = look(context, site / f"{name}.html", name not in TOO_LARGE)
        return visits[name]

    yield go
    context.close()


def look(context: Any, file: Path, judged: bool = True) -> Visit:
    """Open a page from disk, wait for what it loads, and write down what there is to see."""
    found, page = Visit(), context.new_page()
    page.on("request", lambda r: found.requests.append(r.url))
    page.on("requestfailed", lambda r: found.errors.append(f"not loaded: {r.url}"))
    page.on("pageerror", lambda e: found.errors.append(str(e)))
    page.on("console", lambda m: found.errors.append(m.text) if m.type == "error" else None)
    page.goto(file.as_uri(), wait_until="load")
    found.formulas = page.locator("span.math, div.math").count()
    wait_for_formulas(page)
    views = 'script[type="application/vnd.jupyter.widget-view+json"]'
    found.widgets = page.locator(views).count()
    if found.widgets:
        page.wait_for_function(
            "n => document.querySelectorAll('.widget-subarea').length >= n"
            " && [...document.querySelectorAll('.widget-subarea')].every(e => e.children.length)",
            arg=found.widgets,
        )
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
    # Colours fade from one theme to the other; what counts is where they end.
    page.add_style_tag(content="*, *::before, *::after { transition: none !important }")
    for theme in ("light", "dark"):
        page.evaluate("theme => { document.documentElement.dataset.theme = theme; }", theme)
        found.findings[theme] = findings(page) if judged else []

    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_timeout(100)
    found.findings["phone"] = findings(page) if judged else []
    found.width = page.evaluate("document.documentElement.scrollWidth")
    if found.width > 390:
        found.too_wide = page.evaluate(
            """() => [...document.querySelectorAll('.bd-main *')]
              .filter(e => e.getBoundingClientRect().right > innerWidth + 1).slice(0, 5)
              .map(e => e.tagName + '.' + e.className + ' ' + e.getBoundingClientRect().right)"""
        )
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


@pytest.mark.parametrize("name", [page for page in PAGES if page not in TOO_LARGE])
def test_axe_has_nothing_serious_to_say_light_dark_or_on_a_phone(visit: Any, name: str) -> None:
    assert visit(name).findings == {"light": [], "dark": [], "phone": []}
