"""How long a page is and how much code it shows, of the pages that claim to be done."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from autograder.benchmarks.pages import WINDOW
from toolkit.book import SOURCE, done
from toolkit.browser import wait_for_formulas
from toolkit.legibility import BUDGETS, over_budget, source_figures

pytestmark = [pytest.mark.book, pytest.mark.browser]

# Code that a page includes, which no cell holds
INCLUDED = """[...document.querySelectorAll('.highlight-default pre, .highlight-python pre')]
  .filter(block => !block.closest('.cell')).map(block => block.textContent)"""


def browser_figures(browser: Any, file: Path) -> dict[str, float]:
    """What a page in a desktop's window holds once its formulas are set."""
    page = browser.new_page(viewport=WINDOW)
    page.goto(file.as_uri(), wait_until="load")
    wait_for_formulas(page)
    page.wait_for_load_state("networkidle")
    high = page.evaluate("document.documentElement.scrollHeight")
    elements = page.evaluate("document.querySelectorAll('*').length")
    included = page.evaluate(INCLUDED)
    page.close()
    return {
        "screens": high / WINDOW["height"],
        "elements": elements,
        "included classes": sum(bool(re.search(r"^class ", code, re.M)) for code in included),
        "lines of the longest included code": max(
            (len(c.splitlines()) for c in included), default=0
        ),
    }


@pytest.mark.parametrize("name", done())
def test_a_page_that_is_done_keeps_its_budgets(browser: Any, site: Path, name: str) -> None:
    figures = browser_figures(browser, site / f"{name}.html")
    figures |= source_figures(SOURCE / f"{name}.md")
    assert set(figures) == set(BUDGETS)
    assert over_budget(figures) == []


def test_a_page_is_measured_as_a_reader_sees_it(browser: Any, tmp_path: Path) -> None:
    block = "<div class='highlight-default'><pre>{}</pre></div>"
    file = tmp_path / "page.html"
    file.write_text(
        "<!DOCTYPE html><html><head></head><body style='margin: 0'>"
        f"{block.format('class A:' + 69 * chr(10) + '    x')}{block.format('def f():')}"
        f"<div class='cell'>{block.format('class B:')}</div>"
        "<details><summary>More</summary><p style='height: 9999px'>folded</p></details>"
        "<div style='position: absolute; top: 0; height: 1920px'>tall</div></body></html>"
    )
    assert browser_figures(browser, file) == {
        "screens": 2.5,
        "elements": 14,
        "included classes": 1,
        "lines of the longest included code": 70,
    }
