"""Feedback pages: what a student reads, and that nothing of the student becomes HTML."""

from __future__ import annotations

import copy
import re
import shutil
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
from bs4 import BeautifulSoup

from autograder.common import cards
from autograder.gradebook import plugin
from autograder.gradebook.course import Books, prepare
from autograder.grading import repair
from autograder.grading.collect import Submission, student_id
from autograder.grading.marker import Graded, empty_result
from autograder.judging.results import ExerciseResult, SubmissionResult, TestResult
from autograder.reports import feedback
from autograder.units.assignment import load

UNIT = "attention-self_attention"
ABSENT = "quagga-7"
HOSTILE = "</code></pre></td><script>alert(1)</script><img src=x onerror=alert(2)>&amp;"
ANSI = "\x1b[31mred\x1b[0m \x1b]8;;http://evil.example\x07link\x1b]8;;\x07 \u202ereversed\x00"


BOOK = "https://example.org/book"


def result_for(student: str, **changes) -> SubmissionResult:
    """A result in which the first exercise fails, the second holds, and the others are open."""
    assignment = load(UNIT)
    exercises = {}
    for number, exercise in enumerate(assignment.exercises):
        outcome = ("failed", "passed", "todo")[min(number, 2)]
        tests = [
            TestResult("test_seen", "Values of a `small` case.", False, 1.0, outcome),
            TestResult("test_hidden_one", "Huge scores do not overflow.", True, 1.0, outcome),
        ]
        points = exercise.points if outcome == "passed" else 0.0
        exercises[exercise.name] = ExerciseResult(
            exercise.name, points, exercise.points, section=exercise.section, tests=tests
        )
    first = exercises[assignment.names[0]]
    first.message = f"You add the mean {HOSTILE}"
    first.misconception = "adds"
    first.tests[0].message = f"got {HOSTILE}"
    values = {"status": "graded", "score": 1.0, "max_score": assignment.points, **changes}
    return SubmissionResult(student, exercises=exercises, **values)


def hostile_notebook(release: nbformat.NotebookNode) -> nbformat.NotebookNode:
    nb = repair.blank(release)
    assignment = load(UNIT)
    for cell in nb.cells:
        name = cell.metadata.get("nbgrader", {}).get("grade_id")
        if name == assignment.names[0]:
            cell.source += f"\n# {HOSTILE}\nx = '''{HOSTILE}'''\n"
        if name == assignment.questions[0].name:
            cell.source = f"Because {HOSTILE} $x$ {ANSI}"
    nb.cells.insert(3, nbformat.v4.new_code_cell(f"mine = 1  # {HOSTILE}", id="mine"))
    return nb


@pytest.fixture(scope="module")
def course(tmp_path_factory, prepared):
    """A course with one hostile and one absent student, recorded through nbgrader."""
    root = Path(shutil.copytree(prepared, tmp_path_factory.mktemp("graded") / "course"))
    settings = root / "grading.toml"
    settings.write_text(f'book = "{BOOK}"\n{settings.read_text(encoding="utf-8")}')
    release = prepare(root, UNIT)
    books = Books(root, UNIT)
    name = "<script>alert(0)</script>"
    result = result_for(
        name,
        repairs=[f"renamed {HOSTILE}"],
        notes=[f"note {HOSTILE}"],
        printed={load(UNIT).names[0]: f"{ANSI} {HOSTILE}", "mine": f"mine printed {HOSTILE}"},
    )
    student = student_id(name)
    result.student = student
    submission = Submission(student)
    nb = hostile_notebook(release)
    nb.metadata[plugin.KEY] = {"own": ["mine"], "reason": ""}
    books.record(submission, Graded(result, nbformat.writes(nb)), release)
    assert result.notes == [f"note {HOSTILE}"]
    absent = empty_result(load(UNIT), ABSENT, "missing", "Nothing came.")
    blank = nbformat.writes(repair.blank(release))
    books.record(Submission(ABSENT), Graded(absent, blank), release)
    return books, student, release


@pytest.fixture(scope="module")
def page(course) -> str:
    books, student, _ = course
    path = books.feedback(student)
    assert path is not None
    return path.read_text(encoding="utf-8")


def test_no_text_of_the_student_becomes_markup(page):
    soup = BeautifulSoup(page, "html.parser")
    assert soup.find("script") is None
    assert soup.find("img") is None
    assert not [tag for tag in soup.find_all(True) if any(key[:2] == "on" for key in tag.attrs)]
    # The hostile text is all there, as text: message, test, code, printed, answer, notes, own.
    assert soup.get_text().count("<script>alert(1)</script>") >= 9
    assert "_script_alert(0)__script_" in soup.get_text()


def test_terminal_escapes_and_unseen_characters_are_gone(page):
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", page)
    text = BeautifulSoup(page, "html.parser").get_text()
    assert "[31m" not in text
    assert "evil.example" not in text
    assert "red link" in text


def test_the_page_asks_no_other_host_and_runs_no_script(page):
    soup = BeautifulSoup(page, "html.parser")
    assert soup.find(["link", "iframe", "object", "embed", "form"]) is None
    assert "url(" not in page.split("</style>")[0]
    policy = soup.find("meta", attrs={"http-equiv": "Content-Security-Policy"})["content"]
    assert "default-src 'none'" in policy
    assert "script" not in policy


def test_hidden_tests_appear_by_purpose_and_no_check_cell_is_shown(page):
    text = BeautifulSoup(page, "html.parser").get_text()
    assert "Huge scores do not overflow." in text
    assert "not in your notebook" in text
    assert "test_hidden_one" not in page
    assert "HIDDEN TESTS" not in page
    assert "autograder.assignments.stock" not in page


def test_marks_diagnosis_section_code_and_output_are_on_the_page(page):
    assignment = load(UNIT)
    soup = BeautifulSoup(page, "html.parser")
    first = soup.find(id=f"item-{assignment.names[0]}")
    said = first.get_text()
    assert "You add the mean" in said
    assert f"0 of {assignment.exercises[0].points:g} points" in said
    heading = assignment.sections.get(assignment.exercises[0].section)
    assert (heading or assignment.exercises[0].section) in said
    section = assignment.exercises[0].section
    address = f"{BOOK}/{assignment.page(section)}.html#{section}"
    assert first.find("a", href=address), "the course's own edition of the book"
    assert "What your code printed" in said
    assert first.find("span", class_="k") is not None  # Highlighted.
    second = soup.find(id=f"item-{assignment.names[1]}").get_text()
    assert "all passed" in second
    assert "mine printed" in soup.get_text()
    assert "not written" in soup.find(id=f"item-{assignment.names[2]}").get_text()


def test_a_written_answer_waits_until_a_person_has_marked_it(course):
    books, student, _ = course
    question = load(UNIT).questions[0]
    page = BeautifulSoup(books.feedback(student).read_text(encoding="utf-8"), "html.parser")
    assert "to be marked" in page.find(id=f"item-{question.name}").get_text()
    with books.open() as gradebook:
        grade = gradebook.find_grade(question.name, UNIT, UNIT, student)
        grade.manual_score = 2.5
        grade.needs_manual_grade = False
        comment = gradebook.find_comment(question.name, UNIT, UNIT, student)
        comment.manual_comment = f"Well said {HOSTILE}"
        gradebook.db.commit()
    page = BeautifulSoup(books.feedback(student).read_text(encoding="utf-8"), "html.parser")
    said = page.find(id=f"item-{question.name}").get_text()
    assert f"2.5 of {question.points:g} points" in said
    assert f"Well said {HOSTILE}" in said
    assert page.find("script") is None


def test_an_absent_student_is_told_so_and_sees_no_stubs(course):
    books, _, _ = course
    page = books.feedback(ABSENT).read_text(encoding="utf-8")
    assert "No notebook was handed in" in page
    assert "NotImplementedError" not in page


def test_pages_hold_no_other_student(course, page):
    books, _, _ = course
    assert ABSENT not in page
    assert "alert" not in books.feedback(ABSENT).read_text(encoding="utf-8")


def test_nbgraders_own_command_writes_the_same_page(course, page):
    """The formgrader's button and `nbgrader generate_feedback` go the same way."""
    books, student, _ = course
    said = books.api.generate_feedback(UNIT, force=True)
    assert said["success"], said
    path = books.course / "feedback" / student / UNIT / f"{UNIT}.html"
    assert "Content-Security-Policy" in path.read_text(encoding="utf-8")


def test_long_output_is_cut():
    assert len(feedback.visible("x" * 10**6)) < feedback.MAX_PRINTED + 100


def test_a_progress_bar_shows_what_stayed():
    assert feedback.visible("10%\r50%\r100%\ndone\r\n") == "100%\ndone\n"


@pytest.mark.parametrize(
    "source",
    ["", "def f(:\n  '", "\x00", "'''", HOSTILE, "f'{x!r:>{w}}'", "ключ = 'ß'", "\tx\n" * 300],
)
def test_any_code_is_shown_as_it_is(source):
    html = str(feedback.highlight(source))
    assert BeautifulSoup(f"<pre>{html}</pre>", "html.parser").get_text() == feedback.visible(source)


def test_a_picture_in_an_answer_is_shown_and_other_data_is_not():
    nb = nbformat.v4.new_notebook()
    marks = {"grade": True, "solution": True, "grade_id": "q", "points": 3, "score": 0}
    cell = nbformat.v4.new_markdown_cell("see", metadata={"nbgrader": marks})
    cell.attachments = {
        "a.png": {"image/png": "QUJD"},
        "b.png": {"image/png": '"><script>'},
        "c.svg": {"image/svg+xml": "<svg/>"},
    }
    nb.cells = [copy.deepcopy(cell)]
    page = feedback.page_of(nb, {"student": "s", "assignment": "none such"})
    assert page.questions[0].pictures == [{"kind": "image/png", "data": "QUJD"}]


def test_a_section_is_linked_on_the_page_it_stands_on():
    pages = {"att-masks": "attention/masks"}
    online = replace(load(UNIT), book="https://example.org/book/", pages=pages)
    words, link = feedback._section(online, "att-masks")
    assert online.sections["att-masks"] in words
    assert link == "https://example.org/book/attention/masks.html#att-masks"
    assert feedback._section(load(UNIT), "att-masks") == (words, "")


def test_the_page_is_titled_as_the_unit(page):
    title = load(UNIT).title
    soup = BeautifulSoup(page, "html.parser")
    assert title in soup.find("title").get_text()
    assert title in soup.find("h1").get_text()


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(5, "1 minute"), (3600, "1 hour"), (90061, "1 day 1 hour"), (7380, "2 hours 3 minutes")],
)
def test_lateness_in_words(seconds, words):
    assert cards.span(seconds) == words
