"""How long a reader waits for a page: formulas set, and the first control answers.

Served from this machine, in Chromium whose processor is slowed down to a quarter, as on a phone.
"""

from __future__ import annotations

import functools
import http.server
import statistics
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from autograder.benchmarks.timing import Figure
from toolkit.browser import VIEWS, chromium, wait_for_formulas

SLOWER = 4
VISITS = 5
WINDOW = {"width": 1366, "height": 768}
PATIENCE = 120_000  # milliseconds until a page counts as one that never answers
# What a reader can move: handles of sliders, buttons that are not chosen yet, lists
CONTROLS = (
    ".bd-article .noUi-handle, .bd-article .widget-toggle-buttons button:not(.mod-active), "
    ".bd-article input[type=range], .bd-article select"
)
# Whether something outside the control itself has changed since this was asked first
ANSWERED = """control => {
  if (!control.waiting) {
    control.waiting = true;
    const own = control.closest('.widget-slider, .widget-toggle-buttons') || control;
    new MutationObserver(changes => {
      if (changes.some(({target}) => !own.contains(target) && !target.contains(own)))
        control.answered = true;
    }).observe(document.querySelector('.bd-article'),
      {subtree: true, childList: true, attributes: true, characterData: true});
  }
  return control.answered === true;
}"""


def page_seconds(site: Path, names: Iterable[str], visits: int = VISITS) -> list[Figure]:
    """Seconds from navigation until a page is ready, the median of some visits.

    Args:
        site: folder of the built book.
        names: its pages, such as `attention/index`.
        visits: how often each is visited, each time by a browser that knows nothing of it.

    Raises:
        RuntimeError: Chromium or a page is missing.
    """
    figures = []
    with _serving(site) as address, chromium() as browser:
        for name in names:
            if not (site / f"{name}.html").is_file():
                raise RuntimeError(f"The built book has no page {name}; run make book first.")
            seconds = [_visit(browser, f"{address}/{name}.html") for _ in range(visits)]
            figures.append(
                Figure(
                    name, statistics.median(seconds), "s",
                    f"formulas set, first control answers; processor {SLOWER} times slower, "
                    f"median of {visits}",
                )
            )  # fmt: skip
    return figures


def _visit(browser: Any, url: str) -> float:
    context = browser.new_context(viewport=WINDOW)
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    slow = context.new_cdp_session(page)
    slow.send("Emulation.setCPUThrottlingRate", {"rate": SLOWER})
    started = time.perf_counter()
    page.goto(url, wait_until="domcontentloaded")
    wait_for_formulas(page)
    if page.locator(f"{VIEWS}, {CONTROLS}").count():
        control = page.wait_for_selector(CONTROLS, state="attached")
        while not control.evaluate(ANSWERED):
            # Again and again: a control may be there before anything listens to it.
            _use(page, control)
            page.wait_for_timeout(20)
            if time.perf_counter() - started > PATIENCE / 1000:
                raise RuntimeError(f"Nothing on {url} follows its first control.")
    seconds = time.perf_counter() - started
    context.close()
    return seconds


def _use(page: Any, control: Any) -> None:
    """Move a control as a person with a keyboard does, to an end or to the next choice."""
    if control.evaluate("control => control.matches('button')"):
        control.evaluate("control => control.click()")
        return
    control.focus()
    for key in ("Home", "End"):
        page.keyboard.press(key)


@contextmanager
def _serving(folder: Path) -> Iterator[str]:
    """The address at which a folder is served meanwhile."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
