"""What axe-core is asked finds what it should, in the setting where it is to be seen."""

from __future__ import annotations

from typing import Any

import pytest

from tests.book import axe

pytestmark = [pytest.mark.browser]

PAGE = """<!DOCTYPE html>
<html lang="en" data-theme="light">
<head><title>A page</title><style>
  body {{ background: #fff; color: #222; }}
  [data-theme=dark] body {{ background: #222; color: #ddd; }}
  [data-theme=dark] .faint {{ color: #444; transition: color 9s; }}
  @media (max-width: 700px) {{ .box {{ width: 90px; overflow-x: auto; }} }}
</style></head>
<body><main class="bd-main"><h1>A page</h1><p>Words.</p>{}</main></body></html>"""


def rules(browser: Any, content: str) -> dict[str, set[str]]:
    """The rules that a page with this content breaks, by setting."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_content(PAGE.format(content))
    axe.prepare(page)
    found = axe.findings(page, "light")
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    found += axe.findings(page, "dark", "colours")
    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_function("innerWidth === 390")
    found += axe.findings(page, "phone", "structure")
    page.close()
    return {name: {one.rule for one in found if one.setting == name}
            for name in ("light", "dark", "phone")}  # fmt: skip


def test_a_page_without_barriers_has_no_findings(browser: Any) -> None:
    content = "<label>Step <input type=range></label><p class=box>Short.</p>"
    assert rules(browser, content) == {"light": set(), "dark": set(), "phone": set()}


def test_a_slider_without_a_name_is_found_on_every_screen(browser: Any) -> None:
    found = rules(browser, "<input type=range>")
    assert found == {"light": {"label"}, "dark": set(), "phone": {"label"}}


def test_text_that_is_faint_in_the_dark_is_found_though_folded_away(browser: Any) -> None:
    content = "<details><summary>More</summary><p class=faint>Faint.</p></details>"
    assert rules(browser, content) == {"light": set(), "dark": {"color-contrast"}, "phone": set()}


def test_a_box_that_only_a_mouse_can_scroll_is_found_on_a_phone(browser: Any) -> None:
    found = rules(browser, "<pre class=box>softmax(QKᵀ / √d) V, a formula</pre>")
    assert found == {"light": set(), "dark": set(), "phone": {"scrollable-region-focusable"}}


def test_a_finding_says_where_it_is_and_what_helps(browser: Any) -> None:
    page = browser.new_page()
    page.set_content(PAGE.format("<img src='a.png' id=map>"))
    axe.prepare(page)
    (found,) = axe.findings(page, "light")
    page.close()
    assert (found.rule, found.impact, found.place) == ("image-alt", "critical", "#map")
    assert "alt attribute" in str(found)
    assert "<img" in str(found)
