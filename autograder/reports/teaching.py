"""What to teach again: which mistakes a class made, and what they cost.

The counts come from the results, one student after the other; `illustrations` adds the lines.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from autograder.common import paths
from autograder.common.escaping import visible
from autograder.common.files import replacing
from autograder.gradebook.standing import ABSENT, ByHand, points_of
from autograder.judging.results import ExerciseResult, SubmissionResult
from autograder.reports import excerpts
from autograder.units.assignment import Assignment

MESSAGES = 40  # different messages of one group that are told apart
GROUPS = 200  # different sets of failed tests that are told apart
FORBIDDEN = "forbidden"
BOOK = paths.BUILD / "book" / "_build" / "html"


@dataclass
class Form:
    """Lines in which a mistake stands, and how many of the students looked at wrote them."""

    lines: str
    students: int


@dataclass
class Mistake:
    """A known mistake: who made it, what it cost, and how it looks.

    Args:
        name: of the misconception.
        exercise: in which it is made.
        title: the exercise's title.
        says: the sentence that the students were told.
        section: the anchor of the section to teach again.
        heading: that section's heading.
        students: who made it.
        tried: how many wrote something for the exercise.
        own: points lost in the exercise itself.
        later: points lost in later exercises that it cost.
        forms: the most common lines.
        reference: the reference's lines in their place.
        looked_at: how many students' cells were read.
        inherited: in how many of them no such line stands, and an exercise that this one builds
            on was wrong too: the mistake may come from there.
        not_found: in how many others the lines could not be told with confidence.
        whole: one of those cells.
        builds_on_wrong: the students with whom an exercise that this one builds on was wrong too.
    """

    name: str
    exercise: str
    title: str
    says: str = ""
    section: str = ""
    heading: str = ""
    students: list[str] = field(default_factory=list)
    tried: int = 0
    own: float = 0.0
    later: float = 0.0
    forms: list[Form] = field(default_factory=list)
    reference: str = ""
    looked_at: int = 0
    inherited: int = 0
    not_found: int = 0
    whole: str = ""
    builds_on_wrong: set[str] = field(default_factory=set)

    @property
    def count(self) -> int:
        return len(self.students)

    @property
    def lost(self) -> float:
        return self.own + self.later

    @property
    def share(self) -> float:
        """The share of those who tried the exercise."""
        return self.count / self.tried if self.tried else 0.0


@dataclass
class Unnamed:
    """An exercise in which the same tests failed for no known reason."""

    exercise: str
    title: str
    section: str
    tests: tuple[str, ...]
    purposes: tuple[str, ...]
    message: str = ""
    count: int = 0
    lost: float = 0.0


@dataclass
class Section:
    """A section of the book, and what the class lost for not having understood it."""

    anchor: str
    heading: str
    link: str = ""
    students: int = 0
    known: float = 0.0
    other: float = 0.0
    mistakes: list[Mistake] = field(default_factory=list)
    unnamed: list[Unnamed] = field(default_factory=list)

    @property
    def lost(self) -> float:
        return self.known + self.other


@dataclass
class Teaching:
    """A class's mistakes: by section, the costliest first, and in two lists."""

    assignment: Assignment
    students: int = 0
    handed_in: int = 0
    sections: list[Section] = field(default_factory=list)
    mistakes: list[Mistake] = field(default_factory=list)
    unnamed: list[Unnamed] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """What stands in `teaching.json`; it names no student."""
        return {
            "assignment": self.assignment.unit,
            "students": self.students,
            "handed_in": self.handed_in,
            "sections": [
                {
                    "section": section.anchor,
                    "heading": section.heading,
                    "link": section.link,
                    "points_lost": _round(section.lost),
                    "points_lost_unrecognised": _round(section.other),
                    "students": section.students,
                    "mistakes": [_mistake_json(mistake) for mistake in section.mistakes],
                    "unrecognised": [
                        {
                            "exercise": group.exercise,
                            "title": group.title,
                            "students": group.count,
                            "points_lost": _round(group.lost),
                            "tests": list(group.tests),
                            "purposes": list(group.purposes),
                            "message": group.message,
                        }
                        for group in section.unnamed
                    ],
                }
                for section in self.sections
            ],
        }

    def write(self, path: Path) -> None:
        """Write `teaching.json`."""
        text = json.dumps(self.to_json(), indent=1, ensure_ascii=False)
        with replacing(path) as scratch:
            scratch.write_bytes((text + "\n").encode("utf-8", "replace"))


def _mistake_json(mistake: Mistake) -> dict[str, Any]:
    return {
        "misconception": mistake.name,
        "exercise": mistake.exercise,
        "title": mistake.title,
        "says": mistake.says,
        "students": mistake.count,
        "tried": mistake.tried,
        "share": round(mistake.share, 4),
        "points_lost": _round(mistake.lost),
        "points_lost_later": _round(mistake.later),
        "lines": [{"lines": form.lines, "students": form.students} for form in mistake.forms],
        "reference": mistake.reference,
        "cells_read": mistake.looked_at,
        "perhaps_inherited": mistake.inherited,
        "lines_not_found": mistake.not_found,
        "cell": mistake.whole,
    }


def _round(points: float) -> float:
    return round(points, 4)


# ---------------------------------------------------------------------------------------------
# Counting


class Study:
    """Takes a class in, one result after the other; `folder` is where its report will be."""

    def __init__(self, assignment: Assignment, folder: Path) -> None:
        self.assignment = assignment
        self.folder = folder
        self.titles = {exercise.name: exercise.title for exercise in assignment.exercises}
        self.sections = {exercise.name: exercise.section for exercise in assignment.exercises}
        self.builds_on: dict[str, frozenset[str]] = {}
        for exercise in assignment.exercises:
            needed = set(exercise.needs).union(*(self.builds_on.get(n, ()) for n in exercise.needs))
            self.builds_on[exercise.name] = frozenset(needed)
        self.teaching = Teaching(assignment)
        self._tried: Counter[str] = Counter()
        self._mistakes: dict[tuple[str, str], Mistake] = {}
        self._unnamed: dict[tuple[str, tuple[str, ...]], Unnamed] = {}
        self._messages: dict[int, Counter[str]] = defaultdict(Counter)
        self._students: Counter[str] = Counter()

    def add(self, result: SubmissionResult, hand: ByHand | None = None) -> None:
        """Take one student in; `hand` has the marks that a person changed."""
        self.teaching.students += 1
        if result.status in ABSENT:
            return
        self.teaching.handed_in += 1
        mine: dict[str, Mistake] = {}
        wrong: set[str] = set()
        touched: set[str] = set()
        for exercise in result.exercises.values():
            if exercise.tests and all(test.outcome == "todo" for test in exercise.tests):
                continue
            self._tried[exercise.name] += 1
            most = exercise.max_points
            lost = max(0.0, most - points_of(result, exercise.name, hand))
            name = exercise.misconception
            if name:
                mistake = mine.get(name) if name != FORBIDDEN else None
                if mistake is None:
                    mistake = mine[name] = self._mistake(exercise, name)
                    mistake.students.append(result.student)
                    touched.add(mistake.section)
                    if wrong & self.builds_on.get(mistake.exercise, frozenset()):
                        mistake.builds_on_wrong.add(result.student)
                if mistake.exercise == exercise.name:
                    mistake.own += lost
                else:  # What follows from an earlier mistake is that mistake once more.
                    mistake.later += lost
            else:
                group = self._group(result, exercise)
                if group is not None:
                    group.lost += lost
                    touched.add(group.section)
            if lost:
                wrong.add(exercise.name)
        self._students.update(touched)

    def _mistake(self, exercise: ExerciseResult, name: str) -> Mistake:
        key = (name, exercise.name if name == FORBIDDEN else "")
        if key not in self._mistakes:
            known = excerpts.known(self.assignment.unit).get(name)
            made_in = known.exercise if known is not None else exercise.name
            # A student may have been told more than this, or that it follows from another exercise.
            says = known.says if known is not None else exercise.message
            section = known.section if known is not None else exercise.section
            section = section or self.sections.get(made_in, "")
            self._mistakes[key] = Mistake(
                name,
                made_in,
                self.titles.get(made_in, made_in),
                visible(says, 500),
                section,
                self.assignment.sections.get(section, section),
            )
        return self._mistakes[key]

    def _group(self, result: SubmissionResult, exercise: ExerciseResult) -> Unnamed | None:
        failed = [test for test in exercise.tests if test.outcome == "failed"]
        # Code that did not come to an end is told elsewhere and says nothing about a mistake.
        if not failed or result.status in ("timed_out", "crashed"):
            return None
        tests = tuple(sorted({test.name for test in failed}))
        key = (exercise.name, tests)
        if key not in self._unnamed:
            if len(self._unnamed) >= GROUPS:  # What is rare counts together.
                tests = ()
                key = (exercise.name, tests)
            self._unnamed.setdefault(
                key,
                Unnamed(
                    exercise.name,
                    self.titles.get(exercise.name, exercise.name),
                    self.sections.get(exercise.name, exercise.section),
                    tests,
                    tuple(dict.fromkeys(visible(test.purpose, 300) for test in failed)),
                ),
            )
        group = self._unnamed[key]
        group.count += 1
        messages = self._messages[id(group)]
        message = visible(exercise.message or failed[0].message, 500)
        if message in messages or len(messages) < MESSAGES:
            messages[message] += 1
        return group

    def done(self) -> Teaching:
        """Everything in order: the costliest first."""
        teaching = self.teaching
        found: dict[str, Section] = {}

        def section(anchor: str) -> Section:
            if anchor not in found:
                heading = self.assignment.sections.get(anchor, anchor)
                link = book_link(self.assignment, anchor, self.folder)
                found[anchor] = Section(anchor, heading, link, self._students[anchor])
            return found[anchor]

        for mistake in self._mistakes.values():
            mistake.tried = self._tried[mistake.exercise]
            section(mistake.section).mistakes.append(mistake)
            section(mistake.section).known += mistake.lost
        for group in self._unnamed.values():
            for message, _ in self._messages[id(group)].most_common(1):
                group.message = message
            section(group.section).unnamed.append(group)
            section(group.section).other += group.lost
        for each in found.values():
            each.mistakes.sort(key=lambda item: (-item.lost, -item.count, item.name))
            each.unnamed.sort(key=lambda item: (-item.lost, -item.count, item.exercise))
        teaching.sections = sorted(found.values(), key=lambda item: (-item.lost, item.heading))
        teaching.mistakes = sorted(
            self._mistakes.values(), key=lambda item: (-item.count, item.title, item.name)
        )
        teaching.unnamed = sorted(
            self._unnamed.values(), key=lambda item: (-item.count, item.title, item.tests)
        )
        return teaching


def book_link(assignment: Assignment, anchor: str, folder: Path) -> str:
    """Where a section can be read: the URL that the course gives, or the book that was built.

    The built book is named as seen from `folder`, so that both can be moved together. Empty where
    the book has not been built or has no such section.
    """
    if assignment.book:
        return assignment.url(anchor)
    page = BOOK / f"{assignment.page(anchor)}.html"
    if anchor not in _anchors(page):
        return ""
    where = quote(os.path.relpath(page, folder.resolve()).replace(os.sep, "/"))
    return f"{where}#{quote(anchor)}"


@cache
def _anchors(page: Path) -> frozenset[str]:
    try:
        text = page.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return frozenset()
    return frozenset(re.findall(r'\bid="([^"]+)"', text))


def top(teaching: Teaching, sections: int, mistakes: int) -> Sequence[Mistake]:
    """The costliest mistakes of the costliest sections."""
    return [one for section in teaching.sections[:sections] for one in section.mistakes[:mistakes]]
