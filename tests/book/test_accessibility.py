"""What the book adds to Sphinx and its theme for keyboards and screen readers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bs4 import BeautifulSoup

from tests.book.test_build import CONFIG, EXTENSIONS, SmallBook
from toolkit.book import SOURCE

pytestmark = [pytest.mark.book]

TABLES = """# Tables

| | base | large |
|---|---|---|
| layers | 12 | |
| heads | 12 | 16 |

| name | size |
|---|---|
| layers | 12 |

{cite}`vaswani`

```{bibliography}
```
"""
ENTRY = "@misc{vaswani, title = {Attention}, author = {Vaswani, A}, year = {2017}}"


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallBook:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    book = SmallBook(tmp_path)
    (book.root / "_config.yml").write_text(
        f"{CONFIG}bibtex_bibfiles: [a.bib]\n"
        f"sphinx: {{local_extensions: {{accessibility: {EXTENSIONS}}}}}\n"
    )
    (book.source / "a.bib").write_text(ENTRY)
    return book


def test_a_table_names_its_rows_and_columns_and_bibliographies_are_lists(small: SmallBook) -> None:
    small.page("tables", TABLES)
    soup = BeautifulSoup((small.build() / "tables.html").read_text(), "html.parser")
    named, plain = (
        [[(cell.name, cell.get("scope"), cell.get_text(strip=True)) for cell in row("th, td")]
         for row in (line.select for line in table.select("tr"))]
        for table in soup.select("table.table")
    )  # fmt: skip
    assert named == [
        [("td", None, ""), ("th", "col", "base"), ("th", "col", "large")],
        [("th", "row", "layers"), ("td", None, "12"), ("td", None, "")],
        [("th", "row", "heads"), ("td", None, "12"), ("td", None, "16")],
    ]
    assert plain == [
        [("th", "col", "name"), ("th", "col", "size")],
        [("td", None, "layers"), ("td", None, "12")],
    ]
    (entry,) = soup.select(".citation")
    assert entry["role"] == "listitem"
    assert entry.parent["role"] == "list"


@pytest.mark.browser
def test_what_scrolls_takes_focus_when_it_appears_and_when_the_window_narrows(
    browser: Any,
) -> None:
    page = browser.new_page(viewport={"width": 800, "height": 600})
    long = "<pre style='overflow-x: auto; width: 50vw'>" + 60 * "wide " + "</pre>"
    formula = (
        "<p style='width: 50vw'><span style='display: inline'><mjx-container>"
        "<mjx-math style='display: inline-block; width: 300px'>x</mjx-math>"
        "</mjx-container></span></p>"
    )
    script = (SOURCE / "_assets" / "shims.js").read_text(encoding="utf-8")
    page.set_content(
        f"<article class='bd-article'><details><summary>More</summary>{long}</details>"
        f"<div class='cell_output'><div id='frame'></div></div>{formula}</article>"
        f"<script>{script}</script>"
    )
    takes = "selector => document.querySelector(selector).tabIndex === 0"
    page.wait_for_function("document.readyState === 'complete'")
    assert not page.evaluate("document.querySelector('mjx-container').matches('.course-wide')")

    page.evaluate("document.querySelector('details').open = true")
    page.wait_for_function(takes, arg="details pre")
    page.evaluate("html => { document.querySelector('#frame').innerHTML = html; }", long)
    page.wait_for_function(takes, arg="#frame pre")
    page.set_viewport_size({"width": 390, "height": 600})
    page.wait_for_selector("mjx-container.course-wide")
    page.close()
