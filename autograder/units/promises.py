"""The promises of an exercise's text: each has an id, which the tests that keep it name.

In the text above an exercise, and in the conventions, an id follows the sentence that it names, in
a comment that students' notebooks don't hold:

    # * `ValueError` if the widths of `query` and `key` differ. <!-- id: other-widths -->

A test names what it keeps: `@promises("other-widths")`.
"""

from __future__ import annotations

import re

from autograder.common import paths

# Kept in every exercise that forbids calls, by the machinery and not by a test.
NOT_CALLED = "not-called"

_COMMENT = re.compile(r"\s*<!--\s*id\b(.*?)-->", re.DOTALL)
_ID = re.compile(r": ([a-z0-9]+(?:-[a-z0-9]+)*) ")
_CELL = re.compile(r"^# %%(.*)$", re.MULTILINE)
_NAMED = re.compile(r"^@promises\((.*?)\)$", re.MULTILINE | re.DOTALL)
_KIND = re.compile(r'\b(exercise|question)="([^"]+)"')


def without_ids(text: str) -> str:
    """A text as students read it."""
    return _COMMENT.sub("", text)


def ids(text: str, where: str) -> tuple[str, ...]:
    """The ids in a text, in order.

    Raises:
        ValueError: one is not of the form `<!-- id: words-with-hyphens -->`, or is there twice.
    """
    found: list[str] = []
    for comment in _COMMENT.findall(text):
        match = _ID.fullmatch(comment)
        if match is None:
            raise ValueError(f"{where}: write <!-- id: like-this -->, not <!-- id{comment}-->")
        if match[1] in found:
            raise ValueError(f"{where}: the id {match[1]} is there twice; rename one of the two")
        found.append(match[1])
    return tuple(found)


def by_exercise(source: str) -> dict[str, tuple[str, ...]]:
    """The ids in the text above each exercise of a percent script; () where there are none.

    Raises:
        ValueError: an id belongs to no exercise, has another form, or is there twice.
    """
    found: dict[str, tuple[str, ...]] = {}
    waiting = ""
    _, *cells = _CELL.split(source)
    for options, body in zip(cells[::2], cells[1::2], strict=True):
        kind = _KIND.search(options)
        if kind is not None and kind[1] == "exercise":
            found[kind[2]], waiting = ids(waiting, kind[2]), ""
        elif kind is not None:
            _require_none(waiting + body, f"question {kind[2]}")
            waiting = ""
        elif "[markdown]" in options:
            waiting += body
    _require_none(waiting, "the end")
    return found


def named_by(unit: str) -> set[str]:
    """The ids that the tests of a unit name."""
    text = paths.graders(unit).read_text(encoding="utf-8")
    return {one for ids in _NAMED.findall(text) for one in re.findall(r'"([^"]+)"', ids)}


def _require_none(text: str, where: str) -> None:
    if left := ids(text, where):
        raise ValueError(f"{where}: no exercise follows the id {left[0]}")


def of_conventions(unit: str) -> tuple[str, ...]:
    """The ids in the conventions of a unit's chapter, and of all chapters."""
    found: list[str] = []
    for file in (paths.SOLUTIONS / paths.chapter_of(unit) / "conventions.md", paths.CONVENTIONS):
        if file.is_file():
            found += ids(file.read_text(encoding="utf-8"), file.parent.name)
    return tuple(found)
