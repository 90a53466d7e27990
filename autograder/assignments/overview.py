"""The words that a notebook gets besides its script's: how to work, what there is to do, how long.

Minutes are estimated, from the size of the reference's answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from nbformat import NotebookNode

from autograder.units.assignment import QUESTION_MINUTES, Assignment

TEXT = """**How to work.** Write your code in place of the line `raise NotImplementedError(...)`; a
class has such a line in each method that you write. Then run the cell below it, `check("...")`:
it says what holds, what does not, and which section of the book to reread. Exercises may use the
ones before them. You may add cells and helper functions of your own; keep the names, the parameters
and their order as they are. Every text ends with hints: open them one by one, only as far as you
need.

| | write | which is | points | minutes |
|---|---|---|---|---|
{rows}

About {minutes} minutes in all. They are estimated from the size of the answers: take them for a
measure of size, not of you."""

READING_MINUTES = 6
MINUTES_A_LINE = 0.8
STEP = 5  # minutes are given in multiples of this

_REGION = re.compile(r"### BEGIN SOLUTION\n(.*?)### END SOLUTION", re.DOTALL)
_HEADING = re.compile(r"^#+ +(?!BEGIN |END )(.+?) *#*$", re.MULTILINE)
_NUMBER = re.compile(r"(?:Exercise\s+)?(\d+)(?:\s*[.:)·–—-]+\s*|\s+)")
_FENCED = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Heading:
    """A heading in a markdown cell: its words without its number, and where its line ends."""

    words: str
    number: int | None
    end: int


def headings(text: str) -> list[Heading]:
    """The headings of a markdown cell, in order."""
    # Lines of code may begin with the same sign.
    plain = _FENCED.sub(lambda found: " " * len(found[0]), text)
    found = []
    for match in _HEADING.finditer(plain):
        number = _NUMBER.match(match[1])
        words = match[1][number.end() if number else 0 :].replace("`", "")
        if words:
            found.append(Heading(words, int(number[1]) if number else None, match.end()))
    return found


def put_below(cell: NotebookNode, heading: Heading, line: str) -> None:
    """Put a line of its own below a heading of a markdown cell."""
    cell.source = f"{cell.source[: heading.end]}\n\n{line}{cell.source[heading.end :]}"


def minutes(code: str) -> int:
    """How long an answer takes: some time to read what is asked, and some for each line."""
    lines = [line.strip() for region in _REGION.findall(code) for line in region.splitlines()]
    written = sum(bool(line) and not line.startswith("#") for line in lines)
    return max(STEP, STEP * round((READING_MINUTES + MINUTES_A_LINE * written) / STEP))


def worth(points: float, took: int) -> str:
    """`*2 points · about 10 minutes*`, below an exercise's heading."""
    return f"*{points:g} point{'s' * (points != 1)} · about {took} minutes*"


def text(assignment: Assignment) -> str:
    """How to work, and what there is to do."""
    rows = [
        f"| {number} | `{exercise.name}` | {exercise.title} | {exercise.points:g} | "
        f"{exercise.minutes} |"
        for number, exercise in enumerate(assignment.exercises, 1)
    ]
    rows += [
        f"| | | {question.title} (in words) | {question.points:g} | {QUESTION_MINUTES} |"
        for question in assignment.questions
    ]
    return TEXT.format(minutes=assignment.minutes, rows="\n".join(rows))
