"""What an assignment asks for: its exercises, points and sections, read from `assignment.json`.

`builder` writes that file from `solutions/<chapter>/<unit>.py`; everything that checks, grades
or reports reads it through `load`, which needs neither the solutions nor nbgrader.
"""

from __future__ import annotations

import ast
import difflib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from autograder.common import paths
from autograder.common.errors import AssignmentError

QUESTION_MINUTES = 10
ANSWER_HERE = "*Your answer here.*"  # what a student writes over in the cell of a question


@dataclass(frozen=True)
class Exercise:
    """One function or class to write.

    `stub` is the cell a student starts from, `minutes` an estimate of how long it takes.
    """

    name: str
    title: str
    points: float
    section: str
    forbids: tuple[str, ...] = ()
    stub: str = ""
    needs: tuple[str, ...] = ()
    minutes: int = 0


@dataclass(frozen=True)
class Question:
    """One written question, marked by a person."""

    name: str
    title: str
    points: float
    section: str


@dataclass(frozen=True)
class Assignment:
    """A unit's exercises and questions, in the order of its notebook.

    `sections` gives the headings of the book's anchors, `pages` the page that each stands on;
    `book` is where the book can be read, a URL that the instructor may put into the bundle.
    """

    unit: str
    title: str
    exercises: tuple[Exercise, ...]
    questions: tuple[Question, ...] = ()
    sections: dict[str, str] = field(default_factory=dict)
    pages: dict[str, str] = field(default_factory=dict)
    book: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The exercises' names, in order."""
        return tuple(exercise.name for exercise in self.exercises)

    @property
    def points(self) -> float:
        """The points that the graders give; `written_points` come from a person."""
        return sum(exercise.points for exercise in self.exercises)

    @property
    def minutes(self) -> int:
        """How long it takes, written questions included."""
        coding = sum(exercise.minutes for exercise in self.exercises)
        return coding + QUESTION_MINUTES * len(self.questions)

    @property
    def written_points(self) -> float:
        return sum(question.points for question in self.questions)

    def page(self, anchor: str) -> str:
        """The page of the book that a section stands on; the chapter's first, if none is known."""
        return self.pages.get(anchor, paths.first_page(paths.chapter_of(self.unit)))

    def url(self, anchor: str) -> str:
        """Where a section can be read online; empty where the course names no such book."""
        page = f"{self.page(anchor)}.html#{quote(anchor)}"
        return f"{self.book.rstrip('/')}/{page}" if self.book else ""

    def exercise(self, name: str) -> Exercise:
        """The exercise called `name`; a KeyError names the nearest spelling."""
        for exercise in self.exercises:
            if exercise.name == name:
                return exercise
        raise KeyError(f"{self.unit} has no exercise called {name}.{did_you_mean(self, name)}")

    def to_json(self) -> str:
        """The text of `assignment.json`: sorted, indented, the same on every machine."""
        return json.dumps(asdict(self), indent=1, sort_keys=True, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Assignment:
        data: dict[str, Any] = json.loads(text)
        exercises = tuple(
            Exercise(**{**item, "forbids": tuple(item["forbids"]), "needs": tuple(item["needs"])})
            for item in data.pop("exercises")
        )
        questions = tuple(Question(**item) for item in data.pop("questions"))
        return cls(exercises=exercises, questions=questions, **data)


def did_you_mean(assignment: Assignment, name: str) -> str:
    """A question to append, such as "Did you mean softmax?"; empty when no name is near."""
    lowered = {known.lower(): known for known in assignment.names}
    near = difflib.get_close_matches(str(name).lower(), lowered, n=1, cutoff=0.5)
    return f" Did you mean {lowered[near[0]]}?" if near else ""


def units_of(names: Iterable[str]) -> list[str]:
    """`names` with its units in place of each chapter: each unit once, in the order given."""
    found: dict[str, None] = {}
    for name in names:
        parts = paths.CHAPTERS.get(name)
        found.update(dict.fromkeys([f"{name}-{part}" for part in parts] if parts else [name]))
    return list(found)


def require_unit(name: str) -> str:
    """`name`, where there is a unit of that name; else AssignmentError says which there are."""
    folder(name)
    return name


def folder(unit: str) -> Path:
    """The folder with the unit's `assignment.json`: the course's, or that of the notebook."""
    candidates = [paths.EXERCISES / unit, Path.cwd()]
    for candidate in candidates:
        file = candidate / "assignment.json"
        if file.is_file() and (candidate.name == unit or _is_about(file, unit)):
            return candidate
    raise AssignmentError(_unknown(unit))


@lru_cache
def given_names(unit: str) -> tuple[str, ...]:
    """The functions and classes that the unit is given of earlier units, where they are at hand."""
    try:
        file = folder(unit) / paths.GIVEN
    except AssignmentError:
        return ()
    if not file.is_file():
        return ()
    defined = (ast.FunctionDef, ast.ClassDef)
    parts = ast.parse(file.read_text(encoding="utf-8")).body
    return tuple(part.name for part in parts if isinstance(part, defined))


def _unknown(name: str) -> str:
    """What to say where `name` is no unit that is here."""
    if name in paths.CHAPTERS:
        *units, last = units_of([name])
        return (
            f"{name} is a chapter of {len(units) + 1} units; "
            f"name one of them: {', '.join(units)} or {last}."
        )
    said = f"There is no assignment called {name} here."
    if name in paths.UNITS:
        return (
            f"{said} Start Jupyter in the folder of the notebook, "
            f"or run python -m autograder build {name}."
        )
    known = paths.units()
    if near := difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5):
        return f"{said} Did you mean {near[0]}?"
    return f"{said} The assignments here are {', '.join(known)}." if known else said


def _is_about(file: Path, unit: str) -> bool:
    try:
        return json.loads(file.read_text(encoding="utf-8")).get("unit") == unit
    except (OSError, ValueError, AttributeError):
        return False


def load(unit: str) -> Assignment:
    """The unit's assignment; AssignmentError says what to do when there is none."""
    file = folder(unit) / "assignment.json"
    try:
        return _read(file.read_text(encoding="utf-8"))
    except (ValueError, KeyError, TypeError) as error:
        raise AssignmentError(
            f"{file} is damaged ({error}); write it anew with python -m autograder build {unit}."
        ) from error


@lru_cache(maxsize=32)
def _read(text: str) -> Assignment:
    return Assignment.from_json(text)
