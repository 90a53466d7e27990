"""The class report: a page for the instructor, a table for the terminal, a CSV for the office.

Everything is made from the results of `grade` and, where it exists, nbgrader's gradebook, which
knows the marks given by hand. The page asks nobody for anything and runs no script.
"""

from __future__ import annotations

import csv
import io
import re
import statistics
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from autograder import render
from autograder.feedback import css, environment
from autograder.harmless import cell as safe_cell
from autograder.harmless import one_line, visible
from autograder.results import ExerciseResult, SubmissionResult

if TYPE_CHECKING:
    from rich.console import Console

    from autograder.classroom import Class

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
    from nbgrader.api import Gradebook, MissingEntry

    from autograder.books import quiet_database

    database = graded.course / "gradebook.db"
    found: dict[str, ByHand] = {}
    if not database.is_file():
        return found
    chapter = graded.assignment.chapter
    questions = {question.name for question in graded.assignment.questions}
    with quiet_database(), Gradebook(f"sqlite:///{database.resolve()}") as gradebook:
        for result in graded.results:
            try:
                notebook = gradebook.find_submission_notebook(chapter, chapter, result.student)
            except MissingEntry:
                continue
            person = notebook.assignment.student
            entry = ByHand(
                penalty=float(notebook.late_submission_penalty or 0),
                person={
                    key: getattr(person, key) or "" for key in ("first_name", "last_name", "email")
                },
            )
            for grade in notebook.grades:
                if grade.name in questions:
                    waiting = grade.needs_manual_grade and grade.manual_score is None
                    entry.written[grade.name] = None if waiting else float(grade.score)
                elif grade.manual_score is not None or grade.extra_credit:
                    entry.changed[grade.name.removeprefix("check_")] = float(grade.score)
            found[result.student] = entry
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
    def written(self) -> str:
        if not self.hand.written:
            return ""
        given = [points for points in self.hand.written.values() if points is not None]
        if self.hand.waiting:
            return f"{self.hand.waiting} to mark"
        return render.number(sum(given))

    def page(self, chapter: str) -> str:
        """The student's feedback, relative to the report."""
        return f"../../feedback/{quote(self.result.student)}/{quote(chapter)}/{chapter}.html"


def rows_of(graded: Class) -> list[Row]:
    hands = by_hand(graded)
    rows = []
    for result in graded.results:
        hand = hands.get(result.student, ByHand())
        score = sum(points_of(result, name, hand) for name in graded.assignment.names)
        written = sum(points or 0 for points in hand.written.values())
        rows.append(Row(result, hand, score, max(0.0, score + written - hand.penalty)))
    return rows


# ---------------------------------------------------------------------------------------------
# Mistakes


@dataclass
class Mistake:
    """A known mistake, or a failed test without one, and who made it."""

    name: str
    exercise: str
    title: str
    says: str = ""
    section: str = ""
    purposes: list[str] = field(default_factory=list)
    students: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self.students)


def mistakes_of(graded: Class) -> list[Mistake]:
    """The recognised mistakes, the most common first."""
    titles = {exercise.name: exercise.title for exercise in graded.assignment.exercises}
    found: dict[tuple[str, str], Mistake] = {}
    for result in graded.results:
        origin: set[str] = set()
        for exercise in result.exercises.values():
            name = exercise.misconception
            # What follows from an earlier mistake is that mistake once more.
            if not name or (name in origin and name != "forbidden"):
                continue
            origin.add(name)
            key = (name, exercise.name if name == "forbidden" else "")
            if key not in found:
                section = graded.assignment.sections.get(exercise.section, exercise.section)
                found[key] = Mistake(
                    name,
                    exercise.name,
                    titles.get(exercise.name, exercise.name),
                    visible(exercise.message, 500),
                    section,
                )
            found[key].students.append(visible(result.student, 200))
    return sorted(found.values(), key=lambda item: (-item.count, item.title))


def unnamed_of(graded: Class) -> list[Mistake]:
    """Exercises that failed without a known mistake, and what failed in them most often.

    Code that did not come to an end is told elsewhere and says nothing about a mistake.
    """
    titles = {exercise.name: exercise.title for exercise in graded.assignment.exercises}
    found: dict[str, Mistake] = {}
    failed: dict[str, Counter[str]] = defaultdict(Counter)
    for result in graded.results:
        for exercise in result.exercises.values():
            purposes = [test.purpose for test in exercise.tests if test.outcome == "failed"]
            stopped = result.status in ("timed_out", "crashed")
            if exercise.misconception or not purposes or stopped:
                continue
            title = titles.get(exercise.name, exercise.name)
            mistake = found.setdefault(exercise.name, Mistake("", exercise.name, title))
            mistake.students.append(result.student)
            failed[exercise.name].update(purposes)
    for name, mistake in found.items():
        mistake.purposes = [purpose for purpose, _ in failed[name].most_common(3)]
    return sorted(found.values(), key=lambda item: (-item.count, item.title))


# ---------------------------------------------------------------------------------------------
# The page


def histogram(scores: list[float], most: float) -> str:
    """The distribution of points as an SVG that follows the page's colours."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    most = max(most, 1.0)
    # The text stays text: readable for machines, and in the page's own colour and font.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "report"}):
        figure = Figure(figsize=(7.2, 2.9), layout="constrained")
        axes = figure.subplots()
        bins = [most * step / 10 for step in range(11)]
        axes.hist(
            [min(max(score, 0.0), most) for score in scores],
            bins=bins,
            color="#5b7fc7",
            edgecolor="none",
            rwidth=0.92,
        )
        if scores:
            middle = statistics.median(scores)
            axes.axvline(middle, color="#c2571a", linewidth=1.6, linestyle="--")
            left = middle < 0.8 * most
            axes.annotate(
                f"median {render.number(middle)}",
                (middle, 1),
                xytext=(4 if left else -4, 2),
                textcoords="offset points",
                xycoords=("data", "axes fraction"),
                color="#c2571a",
                fontsize=9,
                ha="left" if left else "right",
            )
        axes.set_xlim(0, most)
        axes.set_xlabel("points")
        axes.set_ylabel("students")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.spines[["top", "right"]].set_visible(False)
        figure.patch.set_alpha(0)
        axes.patch.set_alpha(0)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    svg = out.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    # Axes and their text in the colour of the page, light or dark.
    svg = svg.replace("#000000", "currentColor")
    svg = re.sub(r"(<text style=\")(?![^\"]*fill)", r"\1fill: currentColor; ", svg)
    label = f'<svg role="img" aria-label="Histogram of the points of {len(scores)} students" '
    return svg.replace("<svg ", label, 1)


def _exercise_rows(graded: Class, rows: list[Row]) -> list[dict[str, Any]]:
    present = [row for row in rows if row.result.status not in ABSENT]
    table = []
    for exercise in graded.assignment.exercises:
        kinds: dict[str, int] = defaultdict(int)
        points = []
        for row in present:
            mine = points_of(row.result, exercise.name, row.hand)
            points.append(mine)
            kinds[_kind(row.result.exercises.get(exercise.name), mine, exercise.points)] += 1
        count = max(1, len(present))
        table.append(
            {
                "name": exercise.name,
                "title": exercise.title,
                "max_points": exercise.points,
                "mean": statistics.fmean(points) if points else 0.0,
                **{kind: kinds[kind] for kind in ("full", "part", "none", "todo")},
                "widths": [
                    (kind, round(100 * kinds[kind] / count, 2)) for kind in ("full", "part", "none")
                ],
            }
        )
    return table


def _kind(exercise: ExerciseResult | None, points: float, most: float) -> str:
    if points >= most:
        return "full"
    if points > 0:
        return "part"
    if exercise and exercise.tests and all(test.outcome == "todo" for test in exercise.tests):
        return "todo"
    return "none"


def _marks(row: Row, graded: Class) -> list[dict[str, str]]:
    marks = []
    for exercise in graded.assignment.exercises:
        if row.result.status in ABSENT:
            marks.append({"tone": "blank", "text": "–"})
            continue
        points = points_of(row.result, exercise.name, row.hand)
        kind = _kind(row.result.exercises.get(exercise.name), points, exercise.points)
        text = "○" if kind == "todo" else render.number(points)
        marks.append({"tone": "blank" if kind == "todo" else kind, "text": text})
    return marks


def _attention(rows: list[Row], chapter: str) -> list[dict[str, Any]]:
    found = []
    for row in rows:
        result = row.result
        lines = [visible(line, 400) for line in (*result.repairs, *result.notes)]
        if result.status in ("unreadable", "missing", "crashed") and result.exercises:
            reasons = {exercise.message for exercise in result.exercises.values()}
            if len(reasons) == 1:
                lines.insert(0, visible(reasons.pop(), 400))
        if result.status in ("timed_out", "crashed") and not lines:
            names = [name for name, exercise in result.exercises.items() if not exercise.passed]
            lines.append(f"points were lost in {', '.join(names[:6])}" if names else "")
        if result.status != "graded" or lines:
            found.append(
                {
                    "student": row.student,
                    "page": row.page(chapter),
                    "tone": row.tone,
                    "status": row.status if result.status != "graded" else "note",
                    "lines": [line for line in lines if line] or ["no more is known"],
                }
            )
    order = ["unreadable", "missing", "crashed", "timed out", "repaired", "note"]
    return sorted(found, key=lambda item: order.index(item["status"]))


def page(graded: Class) -> str:
    """The class report as HTML."""
    rows = rows_of(graded)
    chapter = graded.assignment.chapter
    scores = [row.score for row in rows]
    waiting = sum(row.hand.waiting for row in rows)
    present = [row for row in rows if row.result.status not in ABSENT]
    facts: list[tuple[str, str]] = [
        ("students", str(len(rows))),
        ("gradable notebooks", str(len(present))),
    ]
    if scores:
        facts.append(("median", render.number(statistics.median(scores))))
        facts.append(("mean", render.number(statistics.fmean(scores))))
    if waiting:
        facts.append(("written answers to mark", str(waiting)))
    template = environment().get_template("report.html.j2")
    html = template.render(
        title=graded.assignment.title,
        css=css(),
        facts=facts,
        histogram=histogram(scores, graded.assignment.points),
        max_score=graded.assignment.points,
        written=graded.assignment.written_points,
        attention=_attention(rows, chapter),
        mistakes=mistakes_of(graded),
        unnamed=unnamed_of(graded),
        exercises=_exercise_rows(graded, rows),
        rows=[
            {
                "student": row.student,
                "page": row.page(chapter),
                "status": row.status,
                "tone": row.tone,
                "score": row.score,
                "written": row.written,
                "total": row.total,
                "marks": _marks(row, graded),
            }
            for row in rows
        ],
        seed=graded.seed,
        grader=graded.grader,
    )
    return html.encode("utf-8", "replace").decode("utf-8")


# ---------------------------------------------------------------------------------------------
# CSV


def table(graded: Class) -> tuple[list[str], list[list[Any]]]:
    """The CSV's head and rows: one row a student, one column an exercise and question."""
    questions = graded.assignment.questions
    head = ["student", "first_name", "last_name", "email", "status", "points", "max_points"]
    head += [f"written: {question.name}" for question in questions]
    head += ["late_penalty", "total", "max_total"]
    head += [*graded.assignment.names, "repairs", "notes"]
    lines = []
    most = graded.assignment.points
    for row in rows_of(graded):
        line: list[Any] = [row.result.student]
        line += [row.hand.person.get(key, "") for key in ("first_name", "last_name", "email")]
        line += [row.result.status, round(row.score, 4), most]
        for question in questions:
            points = row.hand.written.get(question.name)
            line.append("" if points is None else points)
        line += [row.hand.penalty, round(row.total, 4), most + graded.assignment.written_points]
        line += [
            round(points_of(row.result, name, row.hand), 4) for name in graded.assignment.names
        ]
        line += ["; ".join(row.result.repairs), "; ".join(row.result.notes)]
        lines.append(line)
    return head, lines


def write_csv(graded: Class, path: Path) -> None:
    """Write the marks as CSV that spreadsheets open without running anything."""
    head, lines = table(graded)
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([safe_cell(cell) for cell in head])
        for line in lines:
            writer.writerow([safe_cell(cell) for cell in line])


def write(graded: Class) -> Path:
    """Write report.html and grades.csv beside results.json; returns the path of the page."""
    graded.folder.mkdir(parents=True, exist_ok=True)
    write_csv(graded, graded.folder / "grades.csv")
    path = graded.folder / "report.html"
    path.write_text(page(graded), encoding="utf-8")
    return path


# ---------------------------------------------------------------------------------------------
# Terminal


def show(graded: Class, console: Console | None = None) -> None:
    """Print the table of marks and the most common mistakes."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = console or Console()
    styles = {"good": "green", "warn": "yellow", "bad": "red"}
    rows = rows_of(graded)
    written = bool(graded.assignment.questions)
    grid = Table(box=None, pad_edge=False, header_style="bold")
    grid.add_column("Student", max_width=30, overflow="ellipsis", no_wrap=True)
    grid.add_column("Status", no_wrap=True)
    grid.add_column(
        f"Points of {render.number(graded.assignment.points)}", justify="right", no_wrap=True
    )
    if written:
        grid.add_column("Written", justify="right", no_wrap=True)
    grid.add_column("Remarks", no_wrap=True)
    # One line for each student; the report has the remarks in full.
    room = max(console.width - 70, 10)
    for row in rows:
        remarks = [*row.result.notes, *row.result.repairs]
        if row.result.status in ABSENT and row.result.exercises:
            remarks.insert(0, next(iter(row.result.exercises.values())).message)
        said = "; ".join(one_line(remark, 200) for remark in remarks)
        cells = [
            Text(row.student),
            Text(row.status, style=styles.get(row.tone, "")),
            Text(render.number(row.score)),
        ]
        if written:
            cells.append(Text(row.written))
        cells.append(Text(said if len(said) <= room else said[: room - 1] + "…", style="dim"))
        grid.add_row(*cells)
    console.print(grid)
    mistakes = mistakes_of(graded)[:5]
    if mistakes:
        console.print(Text("\nMost common mistakes", style="bold"))
        for mistake in mistakes:
            console.print(
                Text.assemble(
                    (f"{mistake.count:>3} × ", "bold"), f"{mistake.title}: {mistake.says}"
                ),
                soft_wrap=True,
            )
