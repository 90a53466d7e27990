"""Where the book explains what: the labelled sections on the pages of a chapter.

This is the one place that searches the book's sources. `builder` writes what it finds into
`assignment.json`, so that a student's notebook and a report name and link sections without them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from autograder.common import paths

LABELLED = re.compile(r"^\(([\w-]+)\)=\n+#+ +(.+?) *$", re.MULTILINE)
ROOT = re.compile(r"\\sqrt\{(\w+)\}")


class Section(NamedTuple):
    """A section of the book: its heading, and the page it stands on, such as `attention/index`."""

    heading: str
    page: str


def plain(heading: str) -> str:
    r"""A heading without marks, and with √d_k for $\sqrt{d_k}$, as a terminal shows it."""
    return ROOT.sub(r"√\1", heading).replace("`", "").replace("$", "")


def sections(chapter: str, root: Path = paths.ROOT) -> dict[str, Section]:
    """The sections of a chapter that have an anchor, by anchor; none where no page is written."""
    found = {}
    for page in paths.pages(chapter, root):
        name = f"{chapter}/{page.stem}"
        for anchor, heading in LABELLED.findall(page.read_text(encoding="utf-8")):
            found[anchor] = Section(plain(heading), name)
    return found
