"""The class report: a page for the instructor, a table for the terminal, a CSV for the office.

Everything is made from the results of `grade`, from the repaired notebooks that the course keeps
and, where it exists, from nbgrader's gradebook, which knows the marks given by hand. Results and
notebooks are gone through one at a time. The page asks nobody for anything and runs no script.
"""

from __future__ import annotations

import csv
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autograder.common import cards, escaping
from autograder.common.escaping import one_line, reason_of, visible
from autograder.common.files import naming_disk_errors, replacing, require_room
from autograder.gradebook.course import UNSHOWN
from autograder.gradebook.standing import ABSENT, ByHand, Row, by_hand, points_of, rows_of
from autograder.judging.results import ExerciseResult, SubmissionResult
from autograder.reports import charts, teaching
from autograder.reports.feedback import css, environment, highlight
from autograder.reports.illustrations import illustrate
from autograder.reports.teaching import Study, Teaching

if TYPE_CHECKING:
    from rich.console import Console

    from autograder.gradebook.classroom import Class

MANY = 60  # students whose marks are shown without unfolding them
NAMED = 30  # students who are named with a common mistake or in need of attention, unfolded
COMMON = 12  # common mistakes that are shown unfolded
SECTIONS = 8  # sections in the picture
OPEN = 3  # sections of the book whose mistakes are shown unfolded
LISTED = 3  # mistakes of a section that are shown unfolded
GROUPS = 30  # groups of failed tests that are shown
TOLD = 20  # notebooks that are read for the lines of a mistake in the terminal
STYLES = {"good": "green", "warn": "yellow", "bad": "red"}


# ---------------------------------------------------------------------------------------------
# The page


class _Exercises:
    """Counts, exercise by exercise, how those who handed in did."""

    def __init__(self, graded: Class) -> None:
        self.exercises = graded.assignment.exercises
        self.kinds: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        self.points: dict[str, float] = defaultdict(float)
        self.count = 0

    def add(self, row: Row) -> None:
        self.count += 1
        for exercise in self.exercises:
            mine = points_of(row.result, exercise.name, row.hand)
            kind = _kind(row.result.exercises.get(exercise.name), mine, exercise.points)
            self.points[exercise.name] += mine
            self.kinds[exercise.name][kind] += 1

    def table(self) -> list[dict[str, Any]]:
        count = max(1, self.count)
        return [
            {
                "name": exercise.name,
                "title": exercise.title,
                "max_points": exercise.points,
                "mean": self.points[exercise.name] / count,
                **{kind: kinds[kind] for kind in ("full", "part", "none", "todo")},
                "widths": [
                    (kind, round(100 * kinds[kind] / count, 2)) for kind in ("full", "part", "none")
                ],
            }
            for exercise, kinds in ((one, self.kinds[one.name]) for one in self.exercises)
        ]


def _kind(exercise: ExerciseResult | None, points: float, most: float) -> str:
    if points >= most:
        return "full"
    if points > 0:
        return "part"
    if exercise and exercise.tests and all(test.outcome == "todo" for test in exercise.tests):
        return "todo"
    return "none"


def _marks(row: Row, graded: Class) -> list[tuple[str, str]]:
    """Look and text of one student's exercises."""
    marks = []
    for exercise in graded.assignment.exercises:
        if not row.present:
            marks.append(("blank", "–"))
            continue
        points = points_of(row.result, exercise.name, row.hand)
        kind = _kind(row.result.exercises.get(exercise.name), points, exercise.points)
        marks.append(("blank", "○") if kind == "todo" else (kind, cards.number(points)))
    return marks


ORDER = ("unreadable", "missing", "crashed", "timed out", "repaired", "note")


def _attention(row: Row, unit: str) -> dict[str, Any] | None:
    """What somebody should look at in one student's submission; None if there is nothing."""
    result = row.result
    lines = [visible(line, 400) for line in (*result.repairs, *result.notes)]
    if result.status in ("unreadable", "missing", "crashed") and result.exercises:
        reasons = {exercise.message for exercise in result.exercises.values()}
        if len(reasons) == 1:
            lines.insert(0, visible(reasons.pop(), 400))
    if result.status in ("timed_out", "crashed") and not lines:
        names = [name for name, exercise in result.exercises.items() if not exercise.passed]
        lines.append(f"points were lost in {', '.join(names[:6])}" if names else "")
    if result.status == "graded" and not lines:
        return None
    return {
        "student": row.student,
        "page": row.page(unit),
        "tone": row.tone,
        "status": row.status if result.status != "graded" else "note",
        "lines": [line for line in lines if line] or ["no more is known"],
    }


class _Page:
    """The class report, put together row by row."""

    def __init__(self, graded: Class) -> None:
        self.graded = graded
        self.counted = Study(graded.assignment, graded.folder)
        self.exercises = _Exercises(graded)
        self.scores: list[float] = []
        self.waiting = 0
        self.attention: list[dict[str, Any]] = []
        self.rows: list[dict[str, Any]] = []

    def add(self, row: Row) -> None:
        unit = self.graded.assignment.unit
        self.counted.add(row.result, row.hand)
        self.scores.append(row.score)
        self.waiting += row.hand.waiting
        if row.present:
            self.exercises.add(row)
        wanted = _attention(row, unit)
        if wanted is not None:
            self.attention.append(wanted)
        self.rows.append(
            {
                "student": row.student,
                "page": row.page(unit),
                "status": row.status,
                "tone": row.tone,
                "score": row.score,
                "written": row.written,
                "total": row.total,
                "marks": _marks(row, self.graded),
            }
        )

    def html(self, hands: dict[str, ByHand]) -> tuple[str, Teaching]:
        """The page, and what it says about the class's mistakes."""
        graded = self.graded
        found = self.counted.done()
        illustrate(found, graded.course, people=hands)
        facts: list[tuple[str, str]] = [
            ("students", str(len(self.rows))),
            ("gradable notebooks", str(self.exercises.count)),
        ]
        if self.scores:
            facts.append(("median", cards.number(statistics.median(self.scores))))
            facts.append(("mean", cards.number(statistics.fmean(self.scores))))
        if self.waiting:
            facts.append(("written answers to mark", str(self.waiting)))
        shown = [(one.heading, one.known, one.other) for one in found.sections if one.lost > 0]
        html = (
            environment()
            .get_template("report.html.j2")
            .render(
                title=graded.assignment.title,
                css=css(),
                facts=facts,
                lost=charts.lost_points(shown[:SECTIONS]) if shown else "",
                left_out=max(0, len(shown) - SECTIONS),
                teaching=found,
                highlight=highlight,
                listed=LISTED,
                opened=OPEN,
                groups=GROUPS,
                common=COMMON,
                histogram=charts.histogram(self.scores, graded.assignment.points),
                max_score=graded.assignment.points,
                written=graded.assignment.written_points,
                attention=sorted(self.attention, key=lambda item: ORDER.index(item["status"])),
                named=NAMED,
                visible=lambda name: visible(name, 200),
                exercises=self.exercises.table(),
                rows=self.rows,
                many=MANY,
                seed=graded.seed,
                grader=graded.grader,
            )
        )
        return html.encode("utf-8", "replace").decode("utf-8"), found


# ---------------------------------------------------------------------------------------------
# CSV


def _head(graded: Class) -> list[str]:
    questions = graded.assignment.questions
    head = ["student", "first_name", "last_name", "email", "status", "points", "max_points"]
    head += [f"written: {question.name}" for question in questions]
    head += ["late_penalty", "total", "max_total"]
    return [*head, *graded.assignment.names, "repairs", "notes"]


def _line(graded: Class, row: Row) -> list[Any]:
    most = graded.assignment.points
    line: list[Any] = [row.result.student]
    line += [row.hand.person.get(key, "") for key in ("first_name", "last_name", "email")]
    line += [row.result.status, round(row.score, 4), most]
    for question in graded.assignment.questions:
        points = row.hand.written.get(question.name)
        line.append("" if points is None else points)
    line += [row.hand.penalty, round(row.total, 4), most + graded.assignment.written_points]
    line += [round(points_of(row.result, name, row.hand), 4) for name in graded.assignment.names]
    line += ["; ".join(row.result.repairs), "; ".join(row.result.notes)]
    return line


@contextmanager
def _csv(graded: Class, path: Path) -> Iterator[Callable[[Row], None]]:
    """Write the marks as CSV that spreadsheets open without running anything, row by row."""
    with replacing(path) as scratch, scratch.open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([escaping.cell(cell) for cell in _head(graded)])
        yield lambda row: writer.writerow([escaping.cell(cell) for cell in _line(graded, row)])


def write(
    graded: Class,
    console: Console | None = None,
    each: Callable[[SubmissionResult], None] | None = None,
) -> Path:
    """Write report.html, teaching.json and grades.csv; returns the path of the page.

    Args:
        graded: the class, which is gone through once.
        console: on which to print the marks and what to teach again, if anywhere.
        each: told every result, in the order of the class.
    """
    with naming_disk_errors(graded.folder):
        return _write(graded, console, each)


def _write(
    graded: Class, console: Console | None, each: Callable[[SubmissionResult], None] | None
) -> Path:
    hands = by_hand(graded)
    made = _Page(graded)
    grid = _Grid(graded, console) if console is not None else None
    with _csv(graded, graded.folder / "grades.csv") as line:
        told = [made.add, *([grid.add] if grid is not None else []), line]
        for row in rows_of(graded, hands):
            for tell in told:
                try:
                    tell(row)
                except Exception as error:  # The others are shown.
                    require_room(graded.folder)
                    note = f"{UNSHOWN} ({reason_of(error)})"
                    row.result.notes.append(note)
                    graded.unshown.setdefault(row.result.student, []).append(note)
            if each is not None:
                each(row.result)
    html, found = made.html(hands)
    found.write(graded.folder / "teaching.json")
    path = graded.folder / "report.html"
    with replacing(path) as scratch:
        scratch.write_text(html, encoding="utf-8")
    if grid is not None:
        grid.show(found, hands)
    return path


# ---------------------------------------------------------------------------------------------
# Terminal


class _Grid:
    """The table of marks, put together row by row, and what stands below it."""

    def __init__(self, graded: Class, console: Console) -> None:
        from rich.table import Table

        self.graded = graded
        self.console = console
        self.written = bool(graded.assignment.questions)
        # One line for each student; the report has the remarks in full.
        self.room = max(console.width - 70, 10)
        self.table = Table(box=None, pad_edge=False, header_style="bold")
        self.table.add_column("Student", max_width=30, overflow="ellipsis", no_wrap=True)
        self.table.add_column("Status", no_wrap=True)
        points = f"Points of {cards.number(graded.assignment.points)}"
        self.table.add_column(points, justify="right", no_wrap=True)
        if self.written:
            self.table.add_column("Written", justify="right", no_wrap=True)
        self.table.add_column("Remarks", no_wrap=True)

    def add(self, row: Row) -> None:
        from rich.text import Text

        said = _remarks(row.result)
        cells = [
            Text(row.student),
            Text(row.status, style=STYLES.get(row.tone, "")),
            Text(cards.number(row.score)),
        ]
        if self.written:
            cells.append(Text(row.written))
        said = said if len(said) <= self.room else said[: self.room - 1] + "…"
        cells.append(Text(said, style="dim"))
        self.table.add_row(*cells)

    def show(self, found: Teaching, hands: dict[str, ByHand]) -> None:
        """Print both; the lines of the mistakes that are shown are looked for anew, in fewer."""
        graded = self.graded
        self.console.print(self.table)
        shown = teaching.top(found, OPEN, LISTED)
        illustrate(found, graded.course, shown, people=hands, most=TOLD)
        _show_teaching(found, self.console)


def _remarks(result: SubmissionResult) -> str:
    remarks = [*result.notes, *result.repairs]
    if result.status in ABSENT and result.exercises:
        remarks.insert(0, next(iter(result.exercises.values())).message)
    return "; ".join(one_line(remark, 200) for remark in remarks)


def _show_teaching(found: Teaching, console: Console) -> None:
    """The top of the report's first part."""
    from rich.text import Text

    sections = [section for section in found.sections if section.lost > 0][:OPEN]
    if not sections:
        return

    def say(*parts: str | tuple[str, str]) -> None:
        console.print(Text.assemble(*parts), soft_wrap=True)

    say(("\nWhat to teach again", "bold"))
    for section in sections:
        lost = cards.number(round(section.lost, 1))
        say((section.heading, "bold"), f": {lost} points lost by {_students(section.students)}")
        for mistake in section.mistakes[:LISTED]:
            say((f"{mistake.count:>3} × ", "bold"), f"{mistake.title}: {one_line(mistake.says)}")
            for form in mistake.forms[:1]:
                for line in form.lines.split("\n"):
                    say((f"      {line}", "cyan"))
        for group in section.unnamed[: max(0, LISTED - len(section.mistakes))]:
            said = f"{group.title}, not recognised: {one_line(group.message)}"
            say((f"{group.count:>3} × ", "bold"), said)


def _students(count: int) -> str:
    return f"{count} student" + ("" if count == 1 else "s")
