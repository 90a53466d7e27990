"""Chromium, driven by Playwright: for tests that look at pages, measurements, and the PDF."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# How a page of the book announces its widgets
VIEWS = 'script[type="application/vnd.jupyter.widget-view+json"]'


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser of Playwright's; it is closed afterwards.

    Raises:
        RuntimeError: there is none.
    """
    executable = next(filter(None, map(shutil.which, NAMES)), None)
    if executable is None:
        raise RuntimeError("No browser here: sudo apt-get install chromium.")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=executable, args=arguments)
        yield browser
        browser.close()


def wait_for_formulas(page: Any) -> None:
    """Return when MathJax has set all formulas of an open page; at once where there are none."""
    if page.locator("span.math, div.math").count():
        page.wait_for_function("window.MathJax?.startup?.promise !== undefined")
        page.evaluate("MathJax.startup.promise.then(() => true)")


def wait_for_widgets(page: Any) -> None:
    """Return when all widgets of an open page are drawn; at once where there are none."""
    if widgets := page.locator(VIEWS).count():
        page.wait_for_function(
            "n => document.querySelectorAll('.widget-subarea').length >= n"
            " && [...document.querySelectorAll('.widget-subarea')].every(e => e.children.length)",
            arg=widgets,
        )
