"""How far a student is: all units' notebooks that lie in a folder, each checked as `check` does."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autograder.checking.notebook import NAMED, check_notebook, read_notebook, unit_of
from autograder.common import paths
from autograder.common.cells import source_of
from autograder.common.errors import AssignmentError
from autograder.units.assignment import ANSWER_HERE, Question, load

# Folders in which nobody keeps their notebooks.
PASSED_OVER = re.compile(r"\..*|__pycache__|node_modules|site-packages")
# What a question's cell says besides the answer: "**Your answer:**".
_LABEL = re.compile(r"^\s*\*\*[^*\n]*:\*\*\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Progress:
    """One notebook: what of its unit is right, and how many questions have no answer.

    Where it is not `checked`, `trouble` says in one sentence why; otherwise what did not run.
    """

    path: Path
    unit: str = ""  # empty where the notebook cannot be read
    right: int = 0
    exercises: int = 0
    points: float = 0.0
    max_points: float = 0.0
    open: int = 0
    questions: int = 0
    checked: bool = False
    trouble: str = ""


def progress(
    folder: Path,
    seconds: float | None = None,
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> list[Progress]:
    """Check all units' notebooks in a folder, in the order of the book.

    Args:
        folder: where to look, at any depth.
        seconds: how long a cell, or a call of an exercise, may take; as for `check` by default.
        tell: is told how many notebooks are checked, and of how many.

    Raises:
        AssignmentError: there is no such folder, or no unit's notebook in it.
    """
    if not folder.is_dir():
        raise AssignmentError(f"There is no folder {folder}; name the one with your notebooks.")
    found = [entry for path in notebooks(folder) if (entry := _about(path)) is not None]
    if not found:
        raise AssignmentError(f"No notebook of a unit lies in {folder}; name another folder.")
    found.sort(key=lambda entry: (_place(entry.unit), entry.path))
    done: list[Progress] = []
    for entry in found:
        tell(len(done), len(found))
        done.append(_checked(entry, seconds) if entry.unit and not entry.trouble else entry)
    tell(len(done), len(found))
    return done


def notebooks(folder: Path) -> Iterator[Path]:
    """The notebooks in a folder, at any depth, those that Jupyter keeps as copies apart."""
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not PASSED_OVER.fullmatch(name)]
        for name in names:
            if name.endswith(".ipynb") and not name.startswith("."):
                yield Path(place, name)


def _about(path: Path) -> Progress | None:
    """The notebook as it is before it is checked; None if it is no unit's."""
    named = [unit for unit in paths.units() if path.stem.lower().startswith(unit)]
    try:
        cells = read_notebook(path)
    except AssignmentError as error:
        return Progress(path, named[0] if named else "", trouble=str(error))
    code = [source_of(cell) for cell in cells if cell.get("cell_type") == "code"]
    if not named and not any(map(NAMED.search, code)):
        return None
    try:
        assignment = load(unit_of(path, code))
    except AssignmentError as error:
        return Progress(path, trouble=str(error))
    return Progress(
        path,
        assignment.unit,
        exercises=len(assignment.exercises),
        max_points=assignment.points,
        open=len(unanswered(cells, assignment.questions)),
        questions=len(assignment.questions),
    )


def unanswered(cells: Sequence[Mapping[str, Any]], questions: Sequence[Question]) -> list[Question]:
    """The questions to which a notebook's cells hold no answer."""
    answered = set()
    for cell in cells:
        metadata = cell.get("metadata")
        marks = metadata.get("nbgrader") if isinstance(metadata, Mapping) else None
        name = marks.get("grade_id") if isinstance(marks, Mapping) else None
        if (
            isinstance(name, str)
            and _LABEL.sub("", source_of(cell).replace(ANSWER_HERE, "")).strip()
        ):
            answered.add(name)
    return [question for question in questions if question.name not in answered]


def _checked(entry: Progress, seconds: float | None) -> Progress:
    """The notebook with what its check says."""
    try:
        report = check_notebook(entry.path, unit=entry.unit, seconds=seconds)
    except AssignmentError as error:
        return replace(entry, trouble=str(error))
    more = len(report.troubles) - 1
    trouble = report.troubles[0] + (f" And {more} more." if more else "") if more >= 0 else ""
    return replace(
        entry,
        right=sum(card.status == "passed" for card in report.cards),
        points=sum(card.points or 0.0 for card in report.cards),
        checked=True,
        trouble=trouble,
    )


def _place(unit: str) -> int:
    """A unit's place in the book; whatever is none comes last."""
    return paths.UNITS.index(unit) if unit in paths.UNITS else len(paths.UNITS)
