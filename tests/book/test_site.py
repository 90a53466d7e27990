"""The built book as files: links, anchors, addresses of other hosts, alternative texts, numbers."""

from __future__ import annotations

import csv
import re
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from bs4 import BeautifulSoup

from autograder.common import paths
from toolkit.book import SOURCE, contents

pytestmark = [pytest.mark.book]

# Attributes with which a page makes a browser fetch something by itself.
FETCHING = {
    "script": ["src"], "img": ["src", "srcset"], "iframe": ["src"], "embed": ["src"],
    "object": ["data"], "source": ["src", "srcset"], "video": ["src", "poster"],
    "audio": ["src"], "track": ["src"], "image": ["href", "xlink:href"], "use": ["href"],
    "form": ["action"],
}  # fmt: skip
FETCHING_LINKS = {"stylesheet", "icon", "preload", "prefetch", "preconnect", "dns-prefetch",
                  "modulepreload", "manifest", "apple-touch-icon", "shortcut"}  # fmt: skip


def rows(name: str) -> list[dict[str, str]]:
    """The rows of a data file of the book."""
    with (SOURCE / name).open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def written() -> set[str]:
    """The chapters that have pages."""
    return {row["name"] for row in rows("chapters.csv") if paths.pages(row["name"])}


@cache
def soup(page: Path) -> BeautifulSoup:
    """A page of the built book, parsed once."""
    return BeautifulSoup(page.read_text(encoding="utf-8"), "html.parser")


@cache
def ids(page: Path) -> frozenset[str]:
    """All anchors of a page."""
    names = {tag["id"] for tag in soup(page).find_all(id=True)}
    return frozenset(
        names | {tag["name"] for tag in soup(page).find_all("a", attrs={"name": True})}
    )


def is_foreign(address: str) -> bool:
    """Whether an address leads to a host, rather than to a file of the book."""
    return address.strip().startswith("//") or urlsplit(address.strip()).scheme in {
        "http", "https", "ftp", "ws", "wss",
    }  # fmt: skip


def test_every_page_of_the_contents_is_built(site: Path) -> None:
    missing = [name for name in contents() if not (site / f"{name}.html").exists()]
    assert not missing


def test_every_topic_of_a_written_chapter_has_an_anchor_that_exists(site: Path) -> None:
    covered = {row["id"]: row for row in rows("coverage.csv")}
    assert written(), "no chapter is written"
    lost = []
    for topic in rows("topics.csv"):
        if topic["chapter"] not in written():
            continue
        row = covered.get(topic["id"])
        if row is None:
            lost.append(f"{topic['id']} is in no row")
        elif row["anchor"] not in ids(site / f"{row['page'].removesuffix('.md')}.html"):
            lost.append(f"{topic['id']}: no {row['anchor']} on {row['page']}")
    assert not lost


def test_every_link_inside_the_book_leads_somewhere(site: Path) -> None:
    broken = []
    for page in sorted(site.rglob("*.html")):
        for link in soup(page).find_all("a", href=True):
            address = urlsplit(link["href"])
            if address.scheme or address.netloc:
                continue
            target = (page.parent / unquote(address.path)).resolve() if address.path else page
            if not target.exists():
                broken.append(f"{page.relative_to(site)}: {link['href']}")
                continue
            wanted = unquote(address.fragment) if target.suffix == ".html" else ""
            if wanted and wanted not in ids(target):
                broken.append(f"{page.relative_to(site)}: {link['href']}")
    assert not broken


def test_every_old_address_leads_to_a_page(site: Path) -> None:
    for row in rows("moved.csv"):
        page = site / f"{row['old']}.html"
        (link,) = soup(page).find_all("a")
        assert (page.parent / link["href"]).resolve() == site / f"{row['new']}.html"


def test_no_element_fetches_from_another_host(site: Path) -> None:
    foreign = []
    for page in sorted(site.rglob("*.html")):
        where = page.relative_to(site)
        for name, attributes in FETCHING.items():
            for tag in soup(page).find_all(name):
                for attribute in attributes:
                    if is_foreign(str(tag.get(attribute) or "")):
                        foreign.append(f"{where}: <{name} {attribute}={tag[attribute]}>")
        for tag in soup(page).find_all("link", href=True):
            if FETCHING_LINKS & set(tag.get("rel", [])) and is_foreign(tag["href"]):
                foreign.append(f"{where}: <link href={tag['href']}>")
    assert not foreign


def test_no_style_sheet_fetches_from_another_host(site: Path) -> None:
    styles = {path.name: path.read_text(encoding="utf-8") for path in site.rglob("*.css")}
    for page in sorted(site.rglob("*.html")):
        for number, tag in enumerate(soup(page).find_all("style")):
            styles[f"{page.relative_to(site)} style {number}"] = tag.get_text()
        for number, tag in enumerate(soup(page).find_all(style=True)):
            styles[f"{page.relative_to(site)} attribute {number}"] = tag["style"]
    foreign = []
    for name, text in styles.items():
        text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
        for address in re.findall(r"""url\(\s*["']?([^"')]+)|@import\s+["']([^"']+)""", text):
            if is_foreign("".join(address)):
                foreign.append(f"{name}: {''.join(address)[:80]}")
    assert not foreign


def test_every_picture_says_what_it_shows(site: Path) -> None:
    silent = [
        f"{page.relative_to(site)}: {str(tag)[:100]}"
        for page in sorted(site.rglob("*.html"))
        for tag in soup(page).find_all("img")
        if not (tag.get("alt") or "").strip()
        or "image/png" in tag.get("alt", "")
        # MyST-NB names a picture after its file when nobody described it
        or re.search(r"[0-9a-f]{32,}", tag.get("alt", ""))
    ]
    assert not silent


def test_every_measured_number_is_on_the_page(site: Path) -> None:
    lost = []
    for name in contents():
        text = (SOURCE / f"{name}.md").read_text(encoding="utf-8")
        wanted = re.findall(r"\{glue:text\}`", text)
        page = site / f"{name}.html"
        if wanted:
            shown = [tag.get_text().strip() for tag in soup(page).select(".pasted-text")]
            if len(shown) < len(wanted) or not all(shown):
                lost.append(f"{name}: {len(wanted)} numbers wanted, {len(shown)} shown")
    assert not lost


def test_no_markup_is_left_in_the_text(site: Path) -> None:
    left = []
    for name in contents():
        article = BeautifulSoup(str(soup(site / f"{name}.html").find("article")), "html.parser")
        for tag in article.find_all(["code", "pre", "script", "style"]):
            tag.decompose()
        text = article.get_text(" ")
        left += [f"{name}: {m}" for m in re.findall(r"\{[a-z:]+\}`|\[\[|:::|```|\$\$|�", text)]
    assert not left


def test_the_errata_page_lists_every_erratum(site: Path) -> None:
    page = site / "appendix-errata.html"
    missing = [row["id"] for row in rows("errata.csv") if row["id"].lower() not in ids(page)]
    assert not missing


def test_errata_of_written_chapters_lead_to_their_section(site: Path) -> None:
    covered = {row["id"]: row for row in rows("coverage.csv")}
    page = soup(site / "appendix-errata.html")
    astray = []
    for row in rows("errata.csv"):
        targets = {
            f"{covered[topic]['page'].removesuffix('.md')}.html#{covered[topic]['anchor']}"
            for topic in row["row"].split() if topic in covered
        }  # fmt: skip
        links = {a["href"] for a in page.find(id=row["id"].lower()).find_parent("tr").find_all("a")}
        if not targets <= links:
            astray.append(f"{row['id']}: {targets - links}")
    assert not astray


def test_the_coverage_page_lists_every_topic(site: Path) -> None:
    page = site / "appendix-coverage.html"
    missing = [row["id"] for row in rows("topics.csv") if row["id"].lower() not in ids(page)]
    assert not missing


def test_the_table_of_units_says_what_each_unit_holds(site: Path) -> None:
    lines = soup(site / "howto-grade.html").select("table.course-units tbody tr")
    shown = [[cell.get_text(" ", strip=True) for cell in line.find_all("td")] for line in lines]
    assert [line[0] for line in shown] == paths.units() == list(paths.UNITS)
    by_unit = {line[0]: line for line in shown}
    scores, attention = by_unit["attention-scores"], by_unit["attention-self_attention"]
    assert scores[1:4] == ["8", "–", "21"]
    assert scores[5] == "–"
    assert attention[1:4] == ["6", "2", "21"]  # 15 points in code, 6 in words
    assert attention[5] == "scores"  # masked_softmax and attention_dropout are given


def test_the_cover_links_to_written_chapters_only(site: Path) -> None:
    table = soup(site / "index.html").select_one("table.course-chapters")
    linked = {a["href"].removesuffix(".html") for a in table.find_all("a")}
    assert linked == {paths.first_page(name) for name in written()}
    assert len(table.select("tbody tr")) == len(rows("chapters.csv"))


def test_vendored_scripts_come_with_their_licences(site: Path) -> None:
    for name in ("mathjax", "html-manager"):
        folder = site / "_static" / "vendor" / name
        assert (folder / "LICENSE").stat().st_size > 500
        assert list(folder.glob("*.js"))
