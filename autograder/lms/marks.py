"""The marks of a graded class, and how they are put into another tool's table."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from autograder.common.errors import ClassroomError
from autograder.gradebook.standing import rows_of
from autograder.lms.archive import shown
from autograder.lms.base import Member, People
from autograder.lms.table import Table

if TYPE_CHECKING:
    from autograder.gradebook.classroom import Class

Row = tuple[int, dict[str, str], str]  # number in the table, ids, name


@dataclass(frozen=True)
class Mark:
    """One student's marks; `total` is what counts."""

    student: str
    total: float
    max_total: float
    summary: str
    waiting: int


def points(value: float) -> str:
    """Points with at most two decimals, which is what these tools keep."""
    return f"{value:.2f}".rstrip("0").rstrip(".") or "0"


class Marks:
    """Marks by student, the ids by which tools know them, and what is to be told.

    Attributes:
        of: each student's mark.
        written: row of the table: the student whose mark it got.
        problems: what did not find its way; the export is then not complete.
        remarks: what is worth knowing.
    """

    error = ClassroomError

    def __init__(self, graded: Class, people: People) -> None:
        self.assignment = graded.assignment
        self.course = graded.course
        self.problems: list[str] = []
        self.remarks: list[str] = []
        self.written: dict[int, str] = {}
        self.of: dict[str, Mark] = {}
        for row in rows_of(graded):
            most = row.result.max_score + graded.assignment.written_points
            parts = [f"exercises {points(row.score)} of {points(row.result.max_score)}"]
            if row.hand.written:
                given = sum(value or 0 for value in row.hand.written.values())
                of = points(graded.assignment.written_points)
                parts.append(f"written answers {points(given)} of {of}")
            if row.hand.penalty:
                parts.append(f"handed in late {points(-row.hand.penalty)}")
            self.of[row.result.student] = Mark(
                row.result.student,
                row.total,
                most,
                f"{points(row.total)} of {points(most)} points: {', '.join(parts)}",
                row.hand.waiting,
            )
        waiting = [student for student, mark in self.of.items() if mark.waiting]
        if waiting:
            self.remarks.append(
                f"Written answers of {len(waiting)} students are still to be marked; their marks "
                "count what is there."
            )
        self._members = {member.student: member for member in people.members}
        known = [self._members[name] for name in self.of if name in self._members]
        # Whoever is not on the list is known by the student's name alone.
        known += [Member(name) for name in self.of if name not in self._members]
        self._people = People(known)

    def ids(self, student: str) -> dict[str, str]:
        """The ids that the roster has for a student."""
        member = self._members.get(student)
        return member.ids if member is not None else {}

    def find(self, ids: dict[str, str], name: str) -> str | None:
        """The student that a row of a tool is about."""
        member = self._people.find(ids, name)
        return member.student if member is not None else None

    def page(self, student: str) -> Path | None:
        """The student's feedback page."""
        unit = self.assignment.unit
        page = self.course / "feedback" / student / unit / f"{unit}.html"
        return page if page.is_file() else None

    def column(self, table: Table, titles: dict[int, str], wanted: str | None, example: str) -> int:
        """The column to fill: the one asked for, else the only one about this assignment."""
        if wanted is not None:
            if table.head.count(wanted) != 1:
                choice = ", ".join(shown(table.head[place]) for place in titles) or "none"
                raise self.error(
                    f"{table.name} has no column {wanted!r}; those for marks are {choice}."
                )
            return table.head.index(wanted)
        names = (self.assignment.unit, self.assignment.title)
        near = [place for place, title in titles.items() if _plain(title) in map(_plain, names)]
        near = near or [
            place
            for place, title in titles.items()
            if any(_plain(name) in _plain(title) for name in names)
        ]
        if len(near) == 1:
            return near[0]
        choice = ", ".join(shown(table.head[place]) for place in (near or titles)) or "none"
        raise self.error(
            f"Which column of {table.name[:1].lower()}{table.name[1:]} is "
            f"{self.assignment.unit}? Say it with --column, {example}; there are: {choice}."
        )

    def compare(self, told: str, column: str, tool: str, refuses: bool = False) -> None:
        """Whether the tool's maximum is ours."""
        try:
            most = float(told.replace(",", "."))
        except ValueError:
            return
        ours = max((mark.max_total for mark in self.of.values()), default=most)
        if abs(most - ours) > 0.005:
            self.remarks.append(
                f"{tool} counts {points(most)} points for {shown(column)}, the assignment has "
                f"{points(ours)}; set {points(ours)} there before you import."
            )
            over = [mark.student for mark in self.of.values() if mark.total > most + 0.005]
            if refuses and over:
                self.problems.append(
                    f"{tool} leaves out marks above its maximum of {points(most)}: "
                    f"{', '.join(map(shown, over))}."
                )


def _plain(text: str) -> str:
    return re.sub(r"[\W_]+", " ", text).strip().casefold()


def fill(
    marks: Marks, table: Table, people: list[Row], place: int, kept: tuple[str, ...] = ()
) -> None:
    """Put everybody's mark in its row; tell by name whoever has no row, and rows without a mark.

    Cells of the column at `place` that hold one of `kept` stay as they are.
    """
    around = [table.value(number, at) for number in table.body for at in (place, place + 1)]
    comma = any(re.fullmatch(r"\d+,\d{1,5}", cell) for cell in around)  # in the tool's numbers
    without = []
    for number, ids, name in people:
        student = marks.find({key: value for key, value in ids.items() if value}, name)
        if student is None:
            without.append(name)
            continue
        if student in marks.written.values():
            marks.problems.append(
                f"{shown(name)} stands in {table.name[:1].lower()}{table.name[1:]} twice."
            )
        marks.written[number] = student
        text = points(marks.of[student].total)
        held = table.value(number, place)
        if held in kept:
            marks.problems.append(
                f"{shown(name)} has {held} there, which stays; the mark is {text}."
            )
        else:
            table.put(number, place, text.replace(".", ",") if comma else text)
    if without:
        marks.remarks.append(f"In the table without a mark: {', '.join(map(shown, without))}.")
    for student in marks.of:
        if student not in marks.written.values():
            marks.problems.append(
                f"{shown(student)} has {points(marks.of[student].total)} points and no row in the "
                "table; give the roster that import wrote with --roster."
            )
