"""Where each student stands: the graders' points, and what nbgrader's gradebook adds to them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote

from autograder.common import cards
from autograder.common.escaping import one_line
from autograder.judging.results import SubmissionResult

if TYPE_CHECKING:
    from autograder.gradebook.classroom import Class

TONES = {
    "graded": "good",
    "repaired": "warn",
    "timed_out": "warn",
    "crashed": "warn",
    "unreadable": "bad",
    "missing": "bad",
}
WORDS = {"timed_out": "timed out"}
ABSENT = ("missing", "unreadable")


@dataclass
class ByHand:
    """What the gradebook adds: points for written answers and marks changed by a person."""

    written: dict[str, float | None] = field(default_factory=dict)  # None: still to be marked.
    penalty: float = 0.0
    changed: dict[str, float] = field(default_factory=dict)
    person: dict[str, str] = field(default_factory=dict)

    @property
    def waiting(self) -> int:
        return sum(points is None for points in self.written.values())


def by_hand(graded: Class) -> dict[str, ByHand]:
    """What nbgrader's gradebook says about each student; empty where there is none."""
    from nbgrader import api
    from sqlalchemy import select

    from autograder.gradebook import database
    from autograder.gradebook.course import quiet_database

    url = database.url_of(graded.course)
    found: dict[str, ByHand] = {}
    if not database.exists(url):
        return found
    unit = graded.assignment.unit
    questions = {question.name for question in graded.assignment.questions}
    handed_in = (
        select(
            api.SubmittedNotebook.id,
            api.SubmittedNotebook.late_submission_penalty,
            api.Student.id,
            api.Student.first_name,
            api.Student.last_name,
            api.Student.email,
        )
        .join(api.SubmittedAssignment, api.SubmittedNotebook.assignment)
        .join(api.Assignment, api.SubmittedAssignment.assignment)
        .join(api.Student, api.SubmittedAssignment.student)
        .join(api.Notebook, api.SubmittedNotebook.notebook)
        .where(api.Assignment.name == unit, api.Notebook.name == unit)
    )
    grade, cell = api.Grade, api.BaseCell
    grades = select(
        grade.notebook_id,
        cell.name,
        grade.score,
        grade.manual_score,
        grade.extra_credit,
        grade.needs_manual_grade,
    ).join(cell, grade.cell)
    notebooks: dict[str, ByHand] = {}
    with quiet_database(), database.opened(url) as gradebook:
        for notebook, penalty, student, first_name, last_name, email in gradebook.db.execute(
            handed_in
        ):
            person = {
                "first_name": first_name or "",
                "last_name": last_name or "",
                "email": email or "",
            }
            entry = ByHand(penalty=float(penalty or 0), person=person)
            found[student] = notebooks[notebook] = entry
        # Most marks are the graders' own: only those that a person has to do with are fetched.
        touched = grades.where(
            cell.name.in_(questions)
            | grade.manual_score.is_not(None)
            | (grade.extra_credit.is_not(None) & (grade.extra_credit != 0))
        )
        for notebook, name, score, manual, _, needed in gradebook.db.execute(touched):
            if notebook not in notebooks:
                continue
            entry = notebooks[notebook]
            if name in questions:
                entry.written[name] = None if needed and manual is None else float(score)
            else:
                entry.changed[name.removeprefix("check_")] = float(score)
    return found


def points_of(result: SubmissionResult, name: str, hand: ByHand | None) -> float:
    """The points that count for one exercise: the graders', or those a person put instead."""
    if hand is not None and name in hand.changed:
        return hand.changed[name]
    exercise = result.exercises.get(name)
    return exercise.points if exercise is not None else 0.0


@dataclass
class Row:
    """One student's line."""

    result: SubmissionResult
    hand: ByHand
    score: float
    total: float

    @property
    def student(self) -> str:
        return one_line(self.result.student, 200)

    @property
    def status(self) -> str:
        return WORDS.get(self.result.status, self.result.status)

    @property
    def tone(self) -> str:
        return TONES.get(self.result.status, "")

    @property
    def present(self) -> bool:
        """Whether there was a notebook that could be graded."""
        return self.result.status not in ABSENT

    @property
    def written(self) -> str:
        if not self.hand.written:
            return ""
        given = [points for points in self.hand.written.values() if points is not None]
        if self.hand.waiting:
            return f"{self.hand.waiting} to mark"
        return cards.number(sum(given))

    def page(self, unit: str) -> str:
        """The student's feedback, relative to the report."""
        return f"../../feedback/{quote(self.result.student)}/{quote(unit)}/{unit}.html"


def rows_of(graded: Class, hands: dict[str, ByHand] | None = None) -> Iterator[Row]:
    """Everybody's line, one at a time; `hands` saves asking the gradebook again."""
    hands = by_hand(graded) if hands is None else hands
    for result in graded.results:
        hand = hands.get(result.student) or ByHand()
        score = sum(points_of(result, name, hand) for name in graded.assignment.names)
        written = sum(points or 0 for points in hand.written.values())
        yield Row(result, hand, score, max(0.0, score + written - hand.penalty))
