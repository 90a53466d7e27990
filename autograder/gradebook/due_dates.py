"""The settings of a course in nbgrader's gradebook: due dates, extensions, points, penalties.

nbgrader has a place for each of them, so that formgrader, feedback and export show them and its own
`nbgrader autograde` does what `python -m autograder grade` does. Both call `of_course` for the
settings and `bring` for what the gradebook must know before a student is graded.

What came out of the settings is noted in the course's `.grading.json`: a due date or an extension
that was set in nbgrader by hand stays until the file says something else, and a mark given by hand
for an exercise that is left out is set aside there and comes back with the exercise.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from nbgrader.api import (
    Assignment,
    Grade,
    Gradebook,
    SubmittedAssignment,
    SubmittedNotebook,
)
from nbgrader.plugins import LateSubmissionPlugin
from traitlets.config import Config

from autograder.common import cards
from autograder.common.errors import ClassroomError
from autograder.common.files import replacing
from autograder.grading import settings_file
from autograder.grading.settings import FILE, Settings
from autograder.units.assignment import load

STATE = ".grading.json"


# ---------------------------------------------------------------------------------------------
# Which settings


def use(course: Path, unit: str, settings: Settings) -> None:
    """Let nbgrader in this course go by the file of these settings, from now on.

    Their due date is set the next time that they are brought into the gradebook, whichever is
    there; after that nbgrader's own commands leave it until the file names another.
    """
    file = settings.source
    own = file is None or file.resolve() == (course / FILE).resolve()
    with _state(course, unit) as state:
        state["file"] = None if own else str(file.resolve())  # type: ignore[union-attr]
        state.pop("due", None)


def of_course(course: Path, unit: str) -> Settings:
    """The settings by which the course is graded: those of the file that `grade` used last."""
    with _state(course, unit) as state:
        named = state.get("file")
    file = Path(named) if named else course / FILE
    if not named and not file.is_file():
        return Settings()
    return settings_file.read(file, load(unit))


def root_of(config: Config) -> Path | None:
    """The course's folder in the configuration of one of nbgrader's parts."""
    root = config.get("CourseDirectory", {}).get("root")
    return Path(root) if isinstance(root, str) and root else None


@contextmanager
def _state(course: Path, unit: str) -> Iterator[dict[str, Any]]:
    """What is noted about one assignment; changes are written at the end."""
    file = course / STATE
    try:
        everything = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        everything = {}
    except ValueError as error:
        raise ClassroomError(
            f"{file} is damaged; restore it from a copy, or remove it: marks given by hand for "
            "exercises that are left out are then lost."
        ) from error
    state = everything.setdefault(unit, {})
    before = json.dumps(everything, sort_keys=True)
    yield state
    if json.dumps(everything, sort_keys=True) == before or not course.is_dir():
        return
    text = json.dumps(everything, sort_keys=True, indent=1)
    # nbgrader's own commands may run beside `grade`.
    with replacing(file, shared=True) as scratch, scratch.open("w", encoding="utf-8") as opened:
        opened.write(text + "\n")
        opened.flush()
        os.fsync(opened.fileno())


# ---------------------------------------------------------------------------------------------
# Into the gradebook


def bring(
    course: Path, unit: str, settings: Settings, url: str, student: str | None = None
) -> None:
    """Put due date and extensions into the gradebook, and set aside what does not count.

    Args:
        course: the course's folder.
        unit: the assignment, which the gradebook knows.
        settings: of the course.
        url: the gradebook's address.
        student: only this one's submission, if it is there; by default everybody's.
    """
    with _state(course, unit) as state:
        given = state.setdefault("extensions", {})
        if settings.due is not None or settings.extensions or given:
            with Gradebook(url) as book:
                assignment = book.find_assignment(unit)
                filed = settings.filed_due.isoformat() if settings.filed_due is not None else None
                if settings.due is not None and state.get("due", "") != filed:
                    assignment.duedate = settings.due.astimezone(UTC).replace(tzinfo=None)
                state["due"] = filed
                found = book.db.query(SubmittedAssignment).filter_by(assignment_id=assignment.id)
                if student is not None:
                    found = found.filter_by(student_id=student)
                for submission in found:
                    _extend(submission, assignment.duedate, settings, given)
                book.db.commit()
    if student is None:
        _set_aside(course, unit, settings, url)


def _extend(
    submission: SubmittedAssignment,
    due: datetime | None,
    settings: Settings,
    given: dict[str, float],
) -> None:
    """Give one student the extension of the settings; take back one that is no longer there."""
    student = submission.student_id
    wanted = settings.extension(student, due.replace(tzinfo=UTC) if due is not None else None)
    if wanted is not None:
        if submission.extension != wanted:
            submission.extension = wanted
        given[student] = wanted.total_seconds()
    elif student in given:
        if submission.extension == timedelta(seconds=given[student]):
            submission.extension = None
        del given[student]


def _grades(book: Gradebook, unit: str) -> Any:
    """A query for every student's name and grades."""
    return (
        book.db.query(SubmittedAssignment.student_id, Grade)
        .join(SubmittedNotebook, SubmittedNotebook.id == Grade.notebook_id)
        .join(SubmittedAssignment, SubmittedAssignment.id == SubmittedNotebook.assignment_id)
        .join(Assignment, Assignment.id == SubmittedAssignment.assignment_id)
        .filter(Assignment.name == unit)
    )


def _set_aside(course: Path, unit: str, settings: Settings, url: str) -> None:
    """Let marks given by hand for what is left out not count, and those that came back again."""
    out = set(settings.leave_out)
    with _state(course, unit) as state:
        if not out and not state.get("aside"):
            return
    with Gradebook(url) as book:
        grades = {(student, grade.name): grade for student, grade in _grades(book, unit)}
        # First noted, then taken out of the gradebook: whatever happens between, nothing is lost.
        with _state(course, unit) as state:
            aside = state.setdefault("aside", {})
            for (student, cell), grade in grades.items():
                given = grade.manual_score is not None or grade.extra_credit
                if cell.removeprefix("check_") in out and given:
                    mark = [grade.manual_score, grade.extra_credit]
                    aside.setdefault(student, {})[cell] = mark
        back = []
        for student, cells in aside.items():
            for cell, (manual, extra) in cells.items():
                grade = grades.get((student, cell))
                if grade is None:
                    continue
                if cell.removeprefix("check_") in out:
                    grade.manual_score = grade.extra_credit = None
                else:
                    back.append((student, cell))
                    if grade.manual_score is None and not grade.extra_credit:
                        grade.manual_score, grade.extra_credit = manual, extra
        book.db.commit()
    with _state(course, unit) as state:
        for student, cell in back:
            state["aside"][student].pop(cell, None)
        state["aside"] = {student: cells for student, cells in state["aside"].items() if cells}


# ---------------------------------------------------------------------------------------------
# Late


class LatePenalty(LateSubmissionPlugin):
    """nbgrader's plug-in for late submissions, with the penalty of the course's settings.

    Where the settings name none, nbgrader's own `penalty_method` decides as ever.
    """

    def late_submission_penalty(
        self, student_id: str, score: float, total_seconds_late: float
    ) -> float | None:
        """What is taken off; `total_seconds_late` is counted with the student's extension."""
        root = root_of(self.config)
        settings = Settings() if root is None else of_course(root, self.parent.assignment_id)
        if settings.late.costs:
            return settings.penalty(score, total_seconds_late)
        return super().late_submission_penalty(student_id, score, total_seconds_late)


def penalise(unit: str, settings: Settings, url: str) -> None:
    """Count the penalties anew, from all marks there are by now, also those given by hand."""
    if not settings.late.costs:
        return
    with Gradebook(url) as book:
        for submission in book.assignment_submissions(unit):
            late = submission.total_seconds_late
            for notebook in submission.notebooks:
                penalty = settings.penalty(notebook.score, late) if late > 0 else None
                if (notebook.late_submission_penalty or 0) != (penalty or 0):
                    notebook.late_submission_penalty = penalty
        book.db.commit()


def remarks(unit: str, settings: Settings, url: str) -> dict[str, list[str]]:
    """What is to be told about each student besides the graders' marks, by the gradebook."""
    said: dict[str, list[str]] = {}
    with Gradebook(url) as book:
        for submission in book.assignment_submissions(unit):
            lines = said.setdefault(submission.student_id, [])
            late = settings.lateness(submission.total_seconds_late)
            if late > 0:
                lines.append(f"handed in {cards.span(late)} late")
        for student, grade in _grades(book, unit).filter(Grade.manual_score > Grade.max_score):
            said[student].append(
                f"the mark {cards.number(grade.manual_score)} given by hand for "
                f"{grade.name.removeprefix('check_')} is above its "
                f"{cards.number(grade.max_score)} points and counts as it is; "
                "change it in formgrader if it should not"
            )
    return {student: lines for student, lines in said.items() if lines}
