"""One page of feedback for each student, in nbgrader's generate_feedback.

The page is made from the graded notebook alone. Nothing of the notebook reaches the page as HTML:
the template escapes every value, code is highlighted token by token, and the page's own policy
forbids scripts and requests. Check cells, and with them all tests, are never copied.
"""

from __future__ import annotations

import base64
import keyword
import re
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup
from nbconvert.exporters import Exporter
from nbformat import NotebookNode
from traitlets import default

from autograder.common import cards, paths
from autograder.common.errors import AssignmentError
from autograder.common.escaping import MAX_PRINTED, visible
from autograder.gradebook import due_dates, plugin
from autograder.grading import repair
from autograder.judging.results import FOR_A_LOOK
from autograder.units.assignment import Assignment, load

TEMPLATES = paths.PACKAGE / "reports" / "templates"
MAX_CODE = 60_000

SIGNS = {"good": "✓", "part": "◐", "bad": "✗", "todo": "○", "warn": "…"}
LOOKS = {  # How a test ended: tone, sign, word.
    "passed": ("good", "✓", "passed"),
    "failed": ("bad", "✗", "failed"),
    "todo": ("warn", "○", "not written"),
}
# A failure behind another's, perhaps for the same reason (`TestResult.follows`).
FOLLOWS = ("warn", "○", "fails as an earlier one does")
STATUS = {
    "repaired": "Your notebook was damaged. It was repaired before it was graded:",
    "unreadable": "Your file could not be graded",
    "missing": "No notebook was handed in for this assignment.",
    "timed_out": "Your notebook reached a limit of time or memory, and some of it was stopped. "
    "All that ran before or beside it was graded.",
    "crashed": "Some of your code ended Python itself (a crash or an exit). "
    "All that ran beside it was graded.",
}


@dataclass
class Test:
    purpose: str
    hidden: bool
    message: str
    tone: str
    sign: str
    word: str


@dataclass
class Item:
    """An exercise or a written question, as the page shows it."""

    name: str
    title: str
    points: float
    max_points: float
    tone: str = ""
    sign: str = ""
    word: str = ""
    message: str = ""
    reread: str = ""
    link: str = ""
    tests: list[Test] = field(default_factory=list)
    code: Markup | str = ""
    printed: str = ""
    comment: str = ""
    by_hand: bool = False
    waiting: bool = False
    answer: str = ""
    pictures: list[dict[str, str]] = field(default_factory=list)

    @property
    def open(self) -> bool:
        """Whether a reader will want to see the code at once."""
        return self.sign in (SIGNS["part"], SIGNS["bad"])

    @property
    def anchor(self) -> str:
        return "item-" + re.sub(r"[^A-Za-z0-9_-]", "_", self.name)

    @property
    def share(self) -> int:
        most = self.max_points or 1
        return round(100 * min(max(self.points / most, 0), 1))


@dataclass
class Notice:
    text: str
    tone: str = ""
    items: list[str] = field(default_factory=list)


@dataclass
class Page:
    student: str
    title: str
    score: float
    max_score: float
    waiting: float = 0.0
    penalty: float = 0.0
    notices: list[Notice] = field(default_factory=list)
    exercises: list[Item] = field(default_factory=list)
    questions: list[Item] = field(default_factory=list)
    others: list[dict[str, str]] = field(default_factory=list)
    absent: bool = False  # There is no notebook whose exercises could be shown.


# ---------------------------------------------------------------------------------------------
# Text


# What is coloured, by the class of its colour. Written out rather than left to pygments, which
# takes as long for one page as nbgrader for everything else.
TOKENS = re.compile(
    r"""
    (?P<c> \#[^\n]* )
    | (?P<s> (?<!\w) [bBfFrRuU]{0,2} (?:
        \"{3} (?: \\[\s\S] | [^\\] )*? (?: \"{3} | \Z )
        | '{3} (?: \\[\s\S] | [^\\] )*? (?: '{3} | \Z )
        | " (?: \\. | [^"\\\n] )* "?
        | ' (?: \\. | [^'\\\n] )* '? ) )
    | (?P<f> (?<=\bdef\ )\w+ | (?<=\bclass\ )\w+ | ^[ \t]*@[\w.]+ )
    | (?P<n> (?<![\w.]) (?: 0[xXoObB][\da-fA-F_]+
        | (?: \d[\d_]* (?: \.[\d_]* )? | \.\d[\d_]* ) (?: [eE][+-]?\d+ )? [jJ]? ) )
    | (?P<k> \b (?: KEYWORDS ) \b )
    # Any other word, and what follows it in which none of these can begin.
    | \w+ (?: [\ \t]+ | [^\w\s\#"'.@]+ | \n[\ \t]*+(?!@) )*+
    """.replace("KEYWORDS", "|".join(keyword.kwlist)),
    re.VERBOSE | re.MULTILINE,
)


def highlight(source: str) -> Markup:
    """Python code as HTML: all of it escaped, five kinds of tokens coloured."""
    source = visible(source, MAX_CODE)
    parts = []
    end = 0
    for match in TOKENS.finditer(source):
        kind = match.lastgroup
        if kind is not None:
            start, stop = match.span()
            # All is escaped in one go below; the signs between are none that `visible` lets pass.
            parts.append(f"{source[end:start]}\0{kind}\1{source[start:stop]}\2")
            end = stop
    parts.append(source[end:])
    html = escape("".join(parts))
    html = html.replace("\0", '<span class="').replace("\1", '">').replace("\2", "</span>")
    return Markup(html)


def ticks(text: Any) -> Markup:
    """Escaped text in which `code` between backticks is set as code."""
    return Markup(re.sub(r"`([^`\n]+)`", r"<code>\1</code>", escape(visible(text))))


@cache
def environment() -> jinja2.Environment:
    """Jinja with escaping on everywhere."""
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters["number"] = lambda value: cards.number(float(value or 0))
    env.filters["ticks"] = ticks
    return env


def css() -> str:
    """The style that all pages share."""
    return (TEMPLATES / "base.css").read_text(encoding="utf-8")


# ---------------------------------------------------------------------------------------------
# From the graded notebook to the page


def page_of(nb: NotebookNode, course: dict[str, Any], root: Path | None = None) -> Page:
    """What the page says.

    Args:
        nb: an autograded notebook, after nbgrader's GetGrades and our GetReview.
        course: nbgrader's resources: student, assignment, score, max_score, late_penalty.
        root: the course's folder, whose settings name the book that links lead to.
    """
    unit = str(course["assignment"])
    try:
        assignment: Assignment = load(unit)
    except AssignmentError:
        assignment = Assignment(unit, unit, ())
    # A mistake in the settings is told by whatever grades; this page then has no links.
    with suppress(AssignmentError):
        if root is not None:
            assignment = due_dates.of_course(root, unit).with_book(assignment)
    titles = {exercise.name: exercise.title for exercise in assignment.exercises}
    titles |= {question.name: question.title for question in assignment.questions}
    state = nb.metadata.get(plugin.KEY, {})
    page = Page(
        student=visible(course["student"], 200),
        title=assignment.title,
        score=float(course.get("score") or 0),
        max_score=float(course.get("max_score") or 0),
        penalty=float(course.get("late_penalty") or 0),
    )
    page.absent = state.get("status") in ("missing", "unreadable")
    page.notices = _notices(state, float(course.get("seconds_late") or 0))
    solutions = {
        cell.metadata.nbgrader.grade_id: cell
        for cell in nb.cells
        if cell.metadata.get("nbgrader", {}).get("solution")
    }
    own = set(state.get("own", []))
    left_out: list[str] = []
    for cell in nb.cells:
        marks = cell.metadata.get("nbgrader", {})
        name = plugin.check_name(cell)
        if marks.get("grade") and not marks.get("points"):  # Released with points, now without.
            left_out.append(titles.get(name or marks.grade_id, str(name or marks.grade_id)))
            continue
        if name is not None:
            page.exercises.append(_exercise(name, cell, solutions.get(name), titles, assignment))
        elif marks.get("grade") and marks.get("solution"):
            page.questions.append(_question(cell, titles))
        elif cell.get("id") in own and cell.source.strip():
            page.others.append(
                {
                    "source": visible(plugin.written_by_student(cell), MAX_CODE),
                    "printed": _printed(cell),
                }
            )
    if left_out:
        page.notices.append(
            Notice("Left out of the grading, so that it does not count:", items=left_out)
        )
    page.waiting = sum(item.max_points for item in page.questions if item.waiting)
    return page


def _notices(state: dict[str, Any], seconds_late: float) -> list[Notice]:
    notices = []
    status = state.get("status", "graded")
    repairs = [visible(line, 400) for line in state.get("repairs", [])]
    if status == "unreadable":
        reason = visible(state.get("reason") or "no notebook was found in it", 400)
        notices.append(Notice(f"{STATUS[status]}: {reason}.", "bad"))
    elif status in STATUS and status != "repaired":
        notices.append(Notice(STATUS[status], "bad"))
    if repairs:
        notices.append(Notice(STATUS["repaired"], "warn", repairs))
    if seconds_late > 0:
        notices.append(Notice(f"Handed in {cards.span(seconds_late)} after the due date.", "warn"))
    notices += [
        Notice(visible(note, 400), "warn")
        for note in state.get("notes", [])
        if not note.startswith(FOR_A_LOOK)
    ]
    return notices


def _exercise(
    name: str,
    check: NotebookNode,
    solution: NotebookNode | None,
    titles: dict[str, str],
    assignment: Assignment,
) -> Item:
    marks = check.metadata.nbgrader
    data: dict[str, Any] = next(
        (
            out.data[plugin.RESULT]
            for out in check.get("outputs", [])
            if plugin.RESULT in out.get("data", {})
        ),
        {},
    )
    item = Item(
        name=name,
        title=titles.get(name, name),
        points=float(marks.get("score") or 0),
        max_points=float(marks.get("points") or 0),
        message=data.get("message", ""),
        by_hand=bool(marks.get("by_hand")),
    )
    for test in data.get("tests", []):
        tone, sign, word = LOOKS.get(test["outcome"], LOOKS["failed"])
        if test.get("follows"):
            tone, sign, word = FOLLOWS
        item.tests.append(Test(test["purpose"], test["hidden"], test["message"], tone, sign, word))
    todo = bool(item.tests) and all(test.sign == "○" for test in item.tests)
    failed = any(test.tone != "good" for test in item.tests) or not item.tests
    if item.points >= item.max_points and (item.by_hand or not failed):
        item.tone, item.sign, item.word = "good", SIGNS["good"], "all passed"
    elif todo:
        item.tone, item.sign, item.word = "warn", SIGNS["todo"], "not written"
        item.message = item.message or "Nothing was written here."
    elif item.points > 0:
        item.tone, item.sign, item.word = "warn", SIGNS["part"], "partly right"
    else:
        item.tone, item.sign, item.word = "bad", SIGNS["bad"], "not right yet"
    if todo:
        item.tests = []
    elif failed and data.get("section"):
        item.reread, item.link = _section(assignment, data["section"])
    if solution is not None:
        item.code = highlight(solution.source) if solution.source.strip() else ""
        item.printed = _printed(solution)
        comment = solution.metadata.nbgrader.get("comment")
        item.comment = "" if comment == "No response." else visible(comment, MAX_PRINTED)
    return item


def _section(assignment: Assignment, anchor: str) -> tuple[str, str]:
    heading = assignment.sections.get(anchor)
    words = f"“{heading}”" if heading else f"the section {anchor}"
    return words, assignment.url(anchor)


def _question(cell: NotebookNode, titles: dict[str, str]) -> Item:
    marks = cell.metadata.nbgrader
    name = str(marks.grade_id)
    comment = visible(marks.get("comment"), MAX_PRINTED)
    item = Item(
        name=name,
        title=titles.get(name, name),
        points=float(marks.get("score") or 0),
        max_points=float(marks.get("points") or 0),
        answer=""
        if comment == "No response."
        else visible(plugin.written_by_student(cell), MAX_CODE),
        comment="" if comment == "No response." else comment,
        by_hand=bool(marks.get("by_hand")),
        waiting=bool(marks.get("waiting")),
    )
    for bundle in cell.get("attachments", {}).values():
        for kind, data in bundle.items():
            if kind in repair.IMAGES and isinstance(data, str):
                try:  # Written anew, so that nothing but base64 can stand in the page.
                    clean = base64.b64encode(base64.b64decode(data)).decode("ascii")
                except ValueError:
                    continue
                item.pictures.append({"kind": kind, "data": clean})
    if item.waiting:
        item.tone, item.sign = "soft", SIGNS["warn"]
    elif item.points >= item.max_points:
        item.tone, item.sign = "good", SIGNS["good"]
    elif item.points > 0:
        item.tone, item.sign = "warn", SIGNS["part"]
    else:
        item.tone, item.sign = "bad", SIGNS["todo"] if not item.answer else SIGNS["bad"]
    return item


def _printed(cell: NotebookNode) -> str:
    texts = [out.text for out in cell.get("outputs", []) if out.output_type == "stream"]
    return visible("".join(texts)).strip("\n")


class FeedbackExporter(plugin.Unguarded, Exporter):  # type: ignore[misc]
    """nbgrader's generate_feedback with our page in place of nbconvert's."""

    output_mimetype = "text/html"

    @default("file_extension")
    def _file_extension_default(self) -> str:
        return ".html"

    def _text(self, nb: NotebookNode, resources: dict[str, Any]) -> str:
        page = page_of(nb, resources["nbgrader"], due_dates.root_of(self.config))
        html = environment().get_template("feedback.html.j2").render(page=page, css=css())
        # A page can hold what a file cannot be written with: lone surrogates in a name.
        return html.encode("utf-8", "replace").decode("utf-8")
