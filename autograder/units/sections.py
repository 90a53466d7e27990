"""Where the book explains what: the labelled sections on the pages of a chapter.

This is the one place that searches the book's sources. `builder` writes what it finds into
`assignment.json`, so that a student's notebook and a report name and link sections without them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from autograder.common import paths

LABELLED = re.compile(r"((?:^\([\w-]+\)=\n+)+)#+ +(.+?) *$", re.MULTILINE)
LABEL = re.compile(r"\(([\w-]+)\)=")
TITLE = re.compile(r"^# +(.+?) *$", re.MULTILINE)
FENCED = re.compile(r"^(`{3,}).*?^\1", re.MULTILINE | re.DOTALL)
LINE = re.compile(r"^Book: .*$", re.MULTILINE)
ANCHOR = re.compile(r"`([\w-]+)`")
ROOT = re.compile(r"\\sqrt\{(\w+)\}")


class Section(NamedTuple):
    """A section of the book: its heading, its page (`attention/index`), and the page's title."""

    heading: str
    page: str
    title: str


def plain(heading: str) -> str:
    r"""A heading without marks, and with √d_k for $\sqrt{d_k}$, as a terminal shows it."""
    return ROOT.sub(r"√\1", heading).replace("`", "").replace("$", "")


def title_of(source: str) -> str:
    """The title of a page of the book, from its source; empty if it has none."""
    first = TITLE.search(FENCED.sub("", source))
    return plain(first[1]) if first else ""


def sections(chapter: str, root: Path = paths.ROOT) -> dict[str, Section]:
    """The sections of a chapter that have an anchor, by anchor; none where no page is written."""
    found = {}
    for page in paths.pages(chapter, root):
        name, text = f"{chapter}/{page.stem}", page.read_text(encoding="utf-8")
        title = title_of(text)
        for labels, heading in LABELLED.findall(text):
            for anchor in LABEL.findall(labels):
                found[anchor] = Section(plain(heading), name, title)
    return found


def named(text: str, explained: Mapping[str, Section]) -> str:
    """A text in which lines such as "Book: `att-scores`." name headings and pages, not anchors."""

    def words(anchor: re.Match[str]) -> str:
        section = explained.get(anchor[1])
        if section is None:
            return anchor[0]
        page = f"the page *{section.title}*"
        return page if section.heading == section.title else f"*{section.heading}* on {page}"

    return LINE.sub(lambda line: ANCHOR.sub(words, line[0]), text)
