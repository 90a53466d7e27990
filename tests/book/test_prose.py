"""The pages' sources and data: language, wording, and that the data files agree with each other."""

from __future__ import annotations

import csv
import re
from collections import Counter
from pathlib import Path

import pytest

from toolkit.book import SOURCE

PAGES = sorted(SOURCE.glob("*.md"))
PATTERNS = ("*.md", "*.csv", "*.bib", "*.yml", "_ext/*.py", "_assets/*.*")
PICTURES = (".png", ".jpg", ".ico", ".woff2")
TEXTS = sorted(
    path for pattern in PATTERNS for path in SOURCE.glob(pattern) if path.suffix not in PICTURES
)
CHINESE = re.compile(r"[\u3000-\u303f\u3400-\u9fff\uff00-\uffef]")
# What a finished book doesn't say: what is unfinished, where it was made, and words that make a
# reader who doesn't see it yet feel small, or that say nothing.
FORBIDDEN = [
    r"\bTODO\b", r"\bFIXME\b", r"\bXXX\b", r"\blorem ipsum\b", r"/work/", r"/tmp/", r"/root/",
    r"\bobviously\b", r"\btrivial(ly)?\b", r"\bit is easy to see\b", r"\bas everyone knows\b",
    r"\bdelve\b", r"\bleverag\w+\b", r"\bgame.chang\w+\b", r"\bcutting.edge\b", r"\bseamless",
]  # fmt: skip


def rows(name: str) -> list[dict[str, str]]:
    with (SOURCE / name).open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def prose(page: Path) -> str:
    """A page's text without front matter, code and directive options."""
    text = re.sub(r"\A---\n.*?\n---\n", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    text = re.sub(r"^(`{3,})\{?code-cell.*?^\1[ \t]*$", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"^(`{3,})\w+\n.*?^\1[ \t]*$", "", text, flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_chinese_is_only_in_the_glossary(path: Path) -> None:
    if path.name.startswith("glossary."):
        pytest.skip("the glossary gives the Chinese terms")
    lines = path.read_text(encoding="utf-8").splitlines()
    found = [f"{n}: {line[:80]}" for n, line in enumerate(lines, 1) if CHINESE.search(line)]
    assert not found


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_wording(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    found = [
        f"{number}: {match[0]}"
        for number, line in enumerate(lines, 1)
        for pattern in FORBIDDEN
        if (match := re.search(pattern, line, re.IGNORECASE))
    ]
    assert not found


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_a_page_has_one_title_and_no_heading_twice(page: Path) -> None:
    headings = re.findall(r"^(#+) (.+)$", prose(page), re.MULTILINE)
    assert [len(marks) for marks, _ in headings].count(1) == 1
    assert headings[0][0] == "#"
    twice = [title for title, count in Counter(title for _, title in headings).items() if count > 1]
    assert not twice


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_cited_works_are_in_the_bibliography(page: Path) -> None:
    known = set(
        re.findall(r"^@\w+\{([^,]+),", (SOURCE / "references.bib").read_text(), re.MULTILINE)
    )
    cited = {key.strip() for keys in re.findall(r"\{cite(?::\w+)?\}`([^`]+)`", prose(page))
             for key in keys.split(",")}  # fmt: skip
    assert cited <= known


def test_bibliography_entries_are_complete() -> None:
    entries = re.split(
        r"^@", (SOURCE / "references.bib").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    lacking = []
    for entry in entries[1:]:
        kind, key = re.match(r"(\w+)\{([^,]+),", entry).groups()
        place = {"article": "journal", "inproceedings": "booktitle", "techreport": "institution"}
        for name in ("author", "title", "year", place.get(kind, "howpublished")):
            if not re.search(rf"^\s*{name}\s*=\s*\{{.+\}}", entry, re.MULTILINE):
                lacking.append(f"{key}: {name}")
    assert not lacking


def test_every_erratum_belongs_to_a_topic_and_every_erratum_topic_has_one() -> None:
    topics = {row["id"]: row for row in rows("topics.csv")}
    errata = rows("errata.csv")
    assert len({row["id"] for row in errata}) == len(errata)
    named = {topic for row in errata for topic in row["row"].split()}
    assert named <= set(topics)
    assert {row["grade"] for row in errata} == {"A", "B", "C"}
    assert all(row["id"].startswith(f"E{row['document']}-") for row in errata)
    assert all(row["says"].strip() and row["correct"].strip() for row in errata)
    asked = {name for name, row in topics.items() if row["kind"] == "erratum"}
    assert asked <= named


def test_topics_belong_to_the_chapters_of_the_course() -> None:
    topics = rows("topics.csv")
    assert len({row["id"] for row in topics}) == len(topics) == 220
    assert {row["chapter"] for row in topics} == {row["name"] for row in rows("chapters.csv")}
    assert {row["id"] for row in rows("coverage.csv")} <= {row["id"] for row in topics}


def test_coverage_names_each_topic_once() -> None:
    ids = [row["id"] for row in rows("coverage.csv")]
    assert len(ids) == len(set(ids))


def test_the_glossary_gives_sixty_terms_or_more_in_order() -> None:
    terms = rows("glossary.csv")
    names = [row["term"] for row in terms]
    assert len(names) >= 60
    assert names == sorted(set(names), key=str.lower)
    assert sum(bool(CHINESE.search(row["chinese"])) for row in terms) >= 60
    assert all(row["meaning"].endswith(".") for row in terms)
