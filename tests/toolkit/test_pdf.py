"""The book as one PDF: order, outline, page numbers, links; on small pages, printed by Chromium."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from pypdf import PdfReader

from toolkit import pdf

TOC = {
    "root": "index",
    "parts": [
        {"caption": "Chapters", "chapters": [
            {"file": "one/index", "sections": [{"file": "one/more"}]},
        ]},
        {"caption": "Reference", "chapters": [{"file": "words"}]},
    ],
}  # fmt: skip
LONG = "<p style='break-before: page' id='later'>On the second sheet.</p>"
FOOT = '<footer hidden><div class="extra_footer">Text: <b>CC BY 4.0</b>.</div></footer>'
PAGES = {
    "index": ("A small book", f"<p><a href='one/more.html#later'>ahead</a></p>{FOOT}"),
    "one/index": ("1. One’s &amp; all", f"{LONG}<a href='https://example.org/'>outside</a>"),
    "one/more": ("More of it", f"{LONG}<a href='#later'>here</a><a href='index.html'>up</a>"),
    "words": (
        "Words",
        "<a href='one/more.html#gone'>lost</a><a href='left-out.html'>left out</a>",
    ),
}


def page(title: str, body: str) -> str:
    return (
        "<!DOCTYPE html><html lang='en'><meta charset='utf-8'><style>@page { margin: 2cm }</style>"
        f"<title>{title} &#8212; A small book</title><h1>{title}</h1>{body}</html>"
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    for name, (title, body) in PAGES.items():
        file = folder / f"{name}.html"
        file.parent.mkdir(exist_ok=True)
        file.write_text(page(title, body), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def printed(browser: Any, site: Path, tmp_path_factory: pytest.TempPathFactory) -> PdfReader:
    target = tmp_path_factory.mktemp("printed") / "small.pdf"
    pdf.print_pages(browser, site, pdf.entries(TOC, site), target)
    return PdfReader(BytesIO(target.read_bytes()))


def lines(printed: PdfReader) -> list[list[str]]:
    """What stands on each sheet, line by line."""
    return [sheet.extract_text().splitlines() for sheet in printed.pages]


def leads_to(printed: PdfReader, sheet: int) -> list[int | str]:
    """Where the links of a sheet lead: the number of a sheet, or an address."""
    found: list[int | str] = []
    for note in printed.pages[sheet].get("/Annots", ()):
        link = note.get_object()
        if "/Dest" in link:
            found.append(printed.get_page_number(link["/Dest"][0].get_object()))
        else:
            found.append(link["/A"]["/URI"])
    return found


def test_the_contents_have_the_order_of_the_toc_and_the_titles_of_the_pages(site: Path) -> None:
    front, chapters, reference = pdf.entries(TOC, site)
    assert (front.title, front.page) == ("A small book", "index")
    assert [entry.title for entry in chapters.pages()] == ["1. One’s & all", "More of it"]
    assert (reference.title, reference.page, reference.below[0].page) == ("Reference", "", "words")


@pytest.mark.browser
def test_pages_come_in_the_order_of_the_contents_behind_the_title(printed: PdfReader) -> None:
    found = [" ".join(sheet) for sheet in lines(printed)]
    assert len(found) == 2 + 1 + 2 + 2 + 1
    assert "A small book" in found[0]
    assert "Text: CC BY 4.0." in found[0]
    assert found[1].startswith("Contents")
    assert found[6].startswith("1. One’s & all More of it")  # the head of a sheet
    for number, title in {2: "A small book", 3: "One’s & all", 5: "More of it", 7: "Words"}.items():
        assert title in found[number]


@pytest.mark.browser
def test_sheets_are_numbered_through_and_the_contents_name_these_numbers(
    printed: PdfReader,
) -> None:
    found = lines(printed)
    assert [str(number) in sheet for number, sheet in enumerate(found, 1)] == [
        False, False, *[True] * 6
    ]  # fmt: skip
    contents = " ".join(found[1])
    for title, number in {"1. One’s & all": 4, "More of it": 6, "Words": 8}.items():
        assert f"{title} {number}" in contents


@pytest.mark.browser
def test_the_outline_nests_pages_under_chapters_under_parts(printed: PdfReader) -> None:
    def titles(items: list[Any]) -> list[Any]:
        return [titles(item) if isinstance(item, list) else item.title for item in items]

    assert titles(printed.outline) == [
        "A small book", "Chapters", ["1. One’s & all", ["More of it"]], "Reference", ["Words"],
    ]  # fmt: skip
    chapters = printed.outline[2]
    assert printed.get_destination_page_number(chapters[1][0]) == 5


@pytest.mark.browser
def test_links_between_pages_lead_to_their_sheets(printed: PdfReader) -> None:
    assert leads_to(printed, 1) == [3, 5, 7]  # the contents
    assert leads_to(printed, 2) == [6]  # a section on the second sheet of its page
    assert leads_to(printed, 6) == [6, 3]  # on the page itself, and to the page above


@pytest.mark.browser
def test_links_lead_nowhere_on_this_machine_and_outside_where_they_did(printed: PdfReader) -> None:
    assert leads_to(printed, 4) == ["https://example.org/"]
    assert leads_to(printed, 7) == [5]  # a section that is not there: its page's beginning
    assert b"file:" not in printed.stream.getvalue()


def test_without_a_built_book_one_sentence_says_what_to_type(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pdf.main(["--out", str(tmp_path), "--edition", "course"]) == 1
    said = capsys.readouterr().err
    assert (
        said.strip() == f"There is no built book in {tmp_path}; make book EDITION=course makes it."
    )


def test_without_a_browser_one_sentence_says_what_to_install(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "_build").mkdir()
    (tmp_path / "_build" / "html").symlink_to(site)
    (tmp_path / "_build" / "toc-reader.yml").write_text("root: index\n")
    monkeypatch.setenv("PATH", "")
    assert pdf.main(["--out", str(tmp_path)]) == 1
    said = capsys.readouterr().err.strip()
    assert said == "Printing needs Chromium, which is not here; type: sudo apt-get install chromium"
