"""A page of the built book on paper: what is left out, what is open, that nothing is cut off."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.book.paper import SHEET, TOO_WIDE
from toolkit.browser import wait_for_formulas, wait_for_widgets

pytestmark = [pytest.mark.book, pytest.mark.browser]

# A page with widgets, a table, a whole class, formulas and folded answers
PAGE = "attention/masks"
VISIBLE = """selector => [...document.querySelectorAll(selector)]
  .filter(e => e.checkVisibility({opacityProperty: true, visibilityProperty: true}))
  .filter(e => e.getBoundingClientRect().height > 0)
  .map(e => (e.innerText || e.className || e.tagName).trim())"""


@pytest.fixture(scope="module")
def paper(browser: Any, site: Path) -> Iterator[Any]:
    """A page that was read in the dark, as the printer gets it."""
    page = browser.new_page(viewport={"width": SHEET, "height": 900}, color_scheme="dark")
    page.goto((site / f"{PAGE}.html").as_uri(), wait_until="load")
    wait_for_formulas(page)
    wait_for_widgets(page)
    page.emulate_media(media="print")
    yield page
    page.close()


def test_nothing_is_printed_that_one_would_click(paper: Any) -> None:
    navigation = "header, footer, nav, .bd-sidebar, .prev-next-footer, .bd-header-article"
    assert paper.evaluate(VISIBLE, navigation) == []
    assert paper.evaluate(VISIBLE, ".headerlink, .copybtn, .toggle-button, .noUi-handle") == []
    assert len(paper.evaluate(VISIBLE, "h1")) == 1


def test_a_widget_shows_one_frame_and_what_was_chosen_for_it(paper: Any) -> None:
    assert paper.evaluate(VISIBLE, ".widget-toggle-buttons button") == ["both", "−10⁹"]
    assert paper.evaluate(VISIBLE, ".widget-toggle-buttons > label") == ["mask", "write"]
    assert len(paper.evaluate(VISIBLE, ".widget-subarea table.heat")) == 1


def test_answers_are_open(paper: Any) -> None:
    (answer,) = paper.evaluate(VISIBLE, ".admonition.dropdown > :not(.admonition-title)")
    assert answer.startswith("Two keys are left")


def test_code_wraps_and_nothing_is_cut_off_at_the_right(paper: Any) -> None:
    assert paper.evaluate(TOO_WIDE) == []


def test_a_dark_page_prints_dark_on_white_and_is_dark_again_afterwards(paper: Any) -> None:
    theme = "document.documentElement.dataset.theme"
    paper.evaluate(f"{theme} = 'dark'")
    paper.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert paper.evaluate(theme) == "light"
    style = "getComputedStyle(document.body)"
    assert paper.evaluate(f"{style}.color") == "rgb(34, 37, 43)"
    assert paper.evaluate(f"{style}.backgroundColor") == "rgb(255, 255, 255)"
    paper.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert paper.evaluate(theme) == "dark"
