"""What an assignment asks for: its exercises, points and sections, read from `assignment.json`.

`builder` writes that file from `solutions/<chapter>.py`; everything that checks, grades
or reports reads it through `load`, which needs neither the solutions nor nbgrader.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from autograder.common import paths
from autograder.common.errors import AssignmentError


@dataclass(frozen=True)
class Exercise:
    """One function or class to write. `stub` is the cell a student starts from."""

    name: str
    title: str
    points: float
    section: str
    forbids: tuple[str, ...] = ()
    stub: str = ""
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Question:
    """One written question, marked by a person."""

    name: str
    title: str
    points: float
    section: str


@dataclass(frozen=True)
class Assignment:
    """A chapter's exercises and questions, in the order of its notebook.

    `sections` gives the headings of the book's anchors; `book` is where the book can be read, a
    URL that the instructor may put into the bundle.
    """

    chapter: str
    title: str
    exercises: tuple[Exercise, ...]
    questions: tuple[Question, ...] = ()
    sections: dict[str, str] = field(default_factory=dict)
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
    def written_points(self) -> float:
        return sum(question.points for question in self.questions)

    def exercise(self, name: str) -> Exercise:
        """The exercise called `name`; a KeyError names the nearest spelling."""
        for exercise in self.exercises:
            if exercise.name == name:
                return exercise
        raise KeyError(f"{self.chapter} has no exercise called {name}.{did_you_mean(self, name)}")

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
    import difflib

    lowered = {known.lower(): known for known in assignment.names}
    near = difflib.get_close_matches(str(name).lower(), lowered, n=1, cutoff=0.5)
    return f" Did you mean {lowered[near[0]]}?" if near else ""


def folder(chapter: str) -> Path:
    """The folder with the chapter's `assignment.json`: the course's, or that of the notebook."""
    candidates = [paths.EXERCISES / chapter, Path.cwd()]
    for candidate in candidates:
        file = candidate / "assignment.json"
        if file.is_file() and (candidate.name == chapter or _is_about(file, chapter)):
            return candidate
    known = paths.chapters()
    choice = f" The assignments here are {', '.join(known)}." if known else ""
    raise AssignmentError(
        f"There is no assignment called {chapter} here.{choice} "
        f"Start Jupyter in the folder of the notebook, or run python -m autograder build {chapter}."
    )


def _is_about(file: Path, chapter: str) -> bool:
    try:
        return json.loads(file.read_text(encoding="utf-8")).get("chapter") == chapter
    except (OSError, ValueError, AttributeError):
        return False


def load(chapter: str) -> Assignment:
    """The chapter's assignment; AssignmentError says what to do when there is none."""
    file = folder(chapter) / "assignment.json"
    try:
        return _read(file.read_text(encoding="utf-8"))
    except (ValueError, KeyError, TypeError) as error:
        raise AssignmentError(
            f"{file} is damaged ({error}); write it anew with python -m autograder build {chapter}."
        ) from error


@lru_cache(maxsize=32)
def _read(text: str) -> Assignment:
    return Assignment.from_json(text)
