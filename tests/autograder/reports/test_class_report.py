"""The class report: marks, mistakes, who needs attention, and a CSV that is only data."""

from __future__ import annotations

import csv
import io
import json
import re
import weakref
from collections.abc import Sequence
from dataclasses import replace

import pytest
from bs4 import BeautifulSoup
from rich.console import Console

from autograder.common import errors, escaping
from autograder.gradebook import classroom, standing
from autograder.grading import marker, regrade_diff, repair
from autograder.grading.regrade_diff import Change, ExerciseChange
from autograder.judging.results import ExerciseResult, SubmissionResult, TestResult
from autograder.reports import charts, class_report
from autograder.units.assignment import load
from tests.autograder.helpers import put, status_of

UNIT = "attention-self_attention"
ASSIGNMENT = load(UNIT)


def full(student: str) -> SubmissionResult:
    exercises = {
        exercise.name: ExerciseResult(
            exercise.name,
            exercise.points,
            exercise.points,
            tests=[TestResult("test_a", "Values.", False, 1.0, "passed")],
        )
        for exercise in ASSIGNMENT.exercises
    }
    return SubmissionResult(
        student, "graded", ASSIGNMENT.points, ASSIGNMENT.points, exercises=exercises
    )


def wrong(student: str, name: str, misconception: str | None, message: str) -> SubmissionResult:
    result = full(student)
    exercise = result.exercises[name]
    exercise.points, exercise.misconception, exercise.message = 0.0, misconception, message
    exercise.section = ASSIGNMENT.exercise(name).section
    exercise.tests = [TestResult("test_a", "Values of `x`.", False, 1.0, "failed", message)]
    result.score -= exercise.max_points
    return result


@pytest.fixture
def graded(tmp_path) -> classroom.Class:
    """Six students, in a course without a gradebook."""
    one, two = ASSIGNMENT.names[:2]
    broken = full("s4")
    broken.status, broken.repairs = "repaired", ["restored <b>the</b> cell"]
    results = [
        full("s1"),
        wrong("s2", one, "scaled", "You scale."),
        wrong("s3", one, "scaled", "You scale."),
        broken,
        wrong("=cmd|' /C calc'!A0", two, None, "It differs <script>alert(1)</script>."),
        marker.empty_result(ASSIGNMENT, "s<6>", "missing", "No notebook was handed in."),
    ]
    return classroom.Class(ASSIGNMENT, tmp_path, 7, "abc", results)


def read_csv(graded: classroom.Class) -> list[dict[str, str]]:
    class_report.write(graded)
    text = (graded.folder / "grades.csv").read_text(encoding="utf-8-sig")
    return list(csv.DictReader(io.StringIO(text)))


def section(soup: BeautifulSoup, title: str) -> str:
    heading = next(tag for tag in soup.find_all("h2") if tag.get_text() == title)
    return heading.find_next_sibling().get_text(" ", strip=True)


def test_the_page_tells_marks_mistakes_and_who_needs_attention(graded):
    soup = BeautifulSoup(class_report.write(graded).read_text(encoding="utf-8"), "html.parser")
    mistakes = section(soup, "Common mistakes")
    assert "You scale." in mistakes
    assert re.search(r"\b2\b", mistakes)
    attention = section(soup, "Who needs attention")
    assert "restored <b>the</b> cell" in attention
    assert "missing" in attention
    assert "s1" not in attention
    unnamed = section(soup, "Failed without a known mistake")
    assert ASSIGNMENT.exercises[1].title in unnamed
    assert "It differs" in unnamed
    assert soup.find("h1").get_text() == ASSIGNMENT.title
    marks = soup.find("table", class_="marks")
    assert len(marks.find_all("tr")) == 7


def test_names_and_messages_are_escaped_and_nothing_is_loaded(graded):
    page = class_report.write(graded).read_text(encoding="utf-8")
    soup = BeautifulSoup(page, "html.parser")
    assert soup.find("script") is None
    assert soup.find(["link", "img", "iframe", "object"]) is None
    assert "s<6>" in soup.get_text()
    assert "default-src 'none'" in page
    body = page.split("</head>")[1]
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", body.replace('xlink:href="#', ""))


def test_the_histogram_has_labelled_axes_and_a_description(graded):
    svg = BeautifulSoup(charts.histogram([1, 2, 30], 61), "html.parser").find("svg")
    words = svg.get_text(" ", strip=True)
    assert "points" in words
    assert "students" in words
    assert "median 2" in words
    assert "3 students" in svg["aria-label"]


@pytest.mark.parametrize("scores", [[], [0.0], [61.0] * 3, [-1.0, 100.0]])
def test_a_histogram_of_any_class(scores):
    assert charts.histogram(scores, 61).startswith("<svg")


def test_the_csv_has_everybody_and_their_marks(graded):
    rows = read_csv(graded)
    assert len(rows) == 6
    assert float(rows[0]["points"]) == ASSIGNMENT.points
    assert float(rows[1][ASSIGNMENT.names[0]]) == 0
    assert rows[3]["repairs"] == "restored <b>the</b> cell"
    assert rows[5]["status"] == "missing"


def test_the_csv_holds_no_formula(graded):
    graded.results[0].notes = ["+1", "fine"]
    graded.results[1].notes = [" @SUM(A1)"]
    rows = read_csv(graded)
    for row in rows:
        for value in row.values():
            assert value.lstrip()[:1] not in ("=", "+", "@")
            assert not re.match(r"\s*-(?!\d)", value)
    assert rows[4]["student"] == "'=cmd|' /C calc'!A0"


@pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SAWarning")
def test_what_a_person_marked_comes_from_the_gradebook(graded, monkeypatch):
    """Written answers, a changed mark, extra credit and a penalty; another assignment's don't."""
    from nbgrader.api import Gradebook

    from autograder.assignments import builder

    # In place of a process, alembic, that it would start.
    monkeypatch.setattr("nbgrader.api.get_alembic_version", builder.schema_version)
    one, two, three = ASSIGNMENT.names[:3]
    first, second = (question.name for question in ASSIGNMENT.questions)
    with Gradebook(f"sqlite:///{graded.course / 'gradebook.db'}") as book:
        book.add_student("s1", first_name="Ada", email="ada@example.org")
        for unit in (UNIT, "attention-scores"):
            book.add_assignment(unit)
            book.add_notebook(unit, unit)
            names = [f"check_{one}", f"check_{two}", f"check_{three}", first, second]
            for name in names:
                book.add_grade_cell(name, unit, unit, max_score=5, cell_type="code")
            book.add_submission(unit, "s1")
            notebook = book.find_submission_notebook(unit, unit, "s1")
            for grade in notebook.grades:
                grade.auto_score, grade.needs_manual_grade = 1.0, False
            if unit != UNIT:
                for grade in notebook.grades:
                    grade.manual_score = 4.0
                continue
            notebook.late_submission_penalty = 2.0
            grades = {grade.name: grade for grade in notebook.grades}
            grades[f"check_{one}"].manual_score = 0.5
            grades[f"check_{two}"].extra_credit = 0.25
            grades[first].manual_score = 3.0
            grades[second].auto_score, grades[second].needs_manual_grade = None, True
        book.db.commit()
    hands = standing.by_hand(graded)
    assert list(hands) == ["s1"]
    assert hands["s1"].changed == {one: 0.5, two: 1.25}
    assert hands["s1"].written == {first: 3.0, second: None}
    assert (hands["s1"].penalty, hands["s1"].person["first_name"]) == (2.0, "Ada")
    row = read_csv(graded)[0]
    most = {exercise.name: exercise.points for exercise in ASSIGNMENT.exercises}
    points = ASSIGNMENT.points - most[one] - most[two] + 0.5 + 1.25
    assert (float(row["points"]), float(row["total"])) == (points, points + 3 - 2)
    assert (row[f"written: {first}"], row[f"written: {second}"]) == ("3.0", "")
    assert "1 to mark" in class_report.write(graded).read_text(encoding="utf-8")


@pytest.mark.parametrize("cell", ["=1", "+1", "-1", "@x", "\t=1", "\r=1", "  =1", "\n1"])
def test_a_cell_that_could_be_a_formula_is_text(cell):
    assert escaping.cell(cell).startswith("'")


@pytest.mark.parametrize("cell", ["s01", "", "a=b", 3.5, -2, "Łukasz"])
def test_other_cells_stay_as_they_are(cell):
    assert escaping.cell(cell) == cell


def test_the_terminal_shows_everybody_and_no_markup_of_theirs(graded):
    graded.results[0].student = "[red]s1[/red]"
    out = io.StringIO()
    class_report.write(graded, Console(file=out, width=140, color_system=None))
    said = out.getvalue()
    assert "[red]s1[/red]" in said
    assert "missing" in said
    assert "2 × " in said


BREAKING = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"


def lines_of_its_own(said: str) -> list[str]:
    """Lines that a terminal begins with what a student wrote."""
    return [line for line in re.split(f"[{BREAKING}]", said) if line.strip().startswith("FAKE")]


def test_what_a_student_wrote_begins_no_line_and_commands_no_terminal(tmp_path, capfd):
    """An exception's message, a file's name and a student's, through the commands themselves."""
    message = "".join(f"{char}FAKE" for char in BREAKING) + "\x1b[2J\x1b]0;FAKE\x07\u202e\t\ud800"
    notebook = repair.blank(repair.released(UNIT))
    for cell in notebook.cells:
        if cell.metadata.get("nbgrader", {}).get("grade_id") == "causal_mask":
            cell.source = f"def causal_mask(n):\n    raise ValueError({message!a})\n"
    put(tmp_path / "in" / "a" / "at\nFAKE\x1b[2J.ipynb", notebook)
    put(tmp_path / "in" / "b\nFAKE" / f"{UNIT}.ipynb", notebook)
    put(tmp_path / "in" / "c\u2028FAKE\x85FAKE.txt", "")
    place = ["--course", str(tmp_path / "course")]
    options = [*place, "--submitted", str(tmp_path / "in"), "--unsafe-no-sandbox", "--jobs", "1"]
    for command in (["grade", UNIT, *options, "--diff", "--yes"], ["report", UNIT, *place]):
        assert status_of(command) == 0
        said = "".join(capfd.readouterr())
        assert lines_of_its_own(said) == []
        assert "not recognised: Your causal_mask raised ValueError: " in said
        assert not set(said) & set("\x1b\x07\u202e\t")


def test_a_changed_exercises_message_begins_no_line():
    change = Change(
        "s1", 1.0, 0.0, (61.0, 61.0), ("graded", "graded"), ("marked again",),
        (ExerciseChange("causal_mask", 1.0, 0.0, "raised\nFAKE\x85FAKE"),),
    )  # fmt: skip
    out = io.StringIO()
    regrade_diff.show([change], 1, Console(file=out, width=140, color_system=None))
    assert "FAKE" in out.getvalue()
    assert lines_of_its_own(out.getvalue()) == []


def test_all_that_is_told_of_a_class_is_told_in_one_go(graded):
    def console():
        return Console(file=io.StringIO(), width=140, color_system=None)

    class_report.write(graded, before_that := console())
    before = {path.name: path.read_bytes() for path in graded.folder.iterdir()}
    results = list(graded.results)
    asked = []
    graded.results = Lazy(lambda place: asked.append(place) or results[place], len(results))
    seen = []
    class_report.write(graded, together := console(), seen.append)
    assert {path.name: path.read_bytes() for path in graded.folder.iterdir()} == before
    assert together.file.getvalue() == before_that.file.getvalue()
    assert seen == results
    assert asked == list(range(len(results)))


def test_the_page_begins_with_what_to_teach_again_and_names_nobody_there(graded):
    soup = BeautifulSoup(class_report.write(graded).read_text(encoding="utf-8"), "html.parser")
    titles = [tag.get_text() for tag in soup.find_all("h2")]
    assert titles[0] == "What to teach again"
    part = []
    for tag in soup.find("h2").find_next_siblings():
        if tag.name == "h2":
            break
        part.append(tag.get_text(" ", strip=True))
    said = " ".join(part)
    exercise = ASSIGNMENT.exercises[0]
    assert ASSIGNMENT.sections[exercise.section] in said
    assert "You scale." in said
    assert "2 of the 5 who tried (40 %)" in said
    assert not re.search(r"\bs[1-6]\b", said)


def test_the_sections_chart_says_in_words_what_it_shows(graded):
    drawn = charts.lost_points([("Masks & <more>", 12.5, 0.0), ("Heads", 3.0, 1.25)])
    svg = BeautifulSoup(drawn, "html.parser").find("svg")
    assert "Masks & <more>: 12.5; Heads: 4.2" in svg["aria-label"]
    words = svg.get_text(" ", strip=True)
    assert "points lost by the class" in words
    assert "section of the book" in words
    assert "Masks & <more>" in words
    assert "currentColor" in drawn
    assert "#000000" not in drawn


def test_two_pictures_on_a_page_share_no_id(graded):
    soup = BeautifulSoup(class_report.write(graded).read_text(encoding="utf-8"), "html.parser")
    ids = [tag["id"] for tag in soup.find_all(id=True)]
    assert len(soup.find_all("svg")) == 2
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize(
    "results",
    [
        [],
        [full("s1"), full("s2")],
        [marker.empty_result(ASSIGNMENT, f"s{n}", "missing", "Nothing.") for n in range(3)],
    ],
    ids=["nobody", "all perfect", "nobody handed in"],
)
def test_classes_without_a_mistake(tmp_path, results):
    graded = classroom.Class(ASSIGNMENT, tmp_path, 7, "abc", results)
    page = class_report.write(graded).read_text(encoding="utf-8")
    assert "the class lost no points by a mistake" in page
    assert json.loads((graded.folder / "teaching.json").read_text())["sections"] == []
    out = io.StringIO()
    class_report.write(graded, Console(file=out, width=140, color_system=None))
    assert "teach again" not in out.getvalue()


class Lazy(Sequence):
    """A thousand results, none of which is there before it is asked for."""

    def __init__(self, make, count):
        self.make, self.count, self.alive, self.most = make, count, 0, 0

    def __len__(self):
        return self.count

    def __getitem__(self, place):
        if place >= self.count:
            raise IndexError(place)
        result = self.make(place)
        self.alive += 1
        self.most = max(self.most, self.alive)
        weakref.finalize(result, self._gone)
        return result

    def _gone(self):
        self.alive -= 1


def test_what_cannot_be_finished_leaves_the_old_files(tmp_path):
    def make(place):
        if place:
            raise KeyError(place)
        return full("s1")

    graded = classroom.Class(ASSIGNMENT, tmp_path, 7, "abc", [full("s1"), full("s2")])
    class_report.write(graded)
    before = {path.name: path.read_bytes() for path in graded.folder.iterdir()}
    assert set(before) == {"grades.csv", "report.html", "teaching.json"}
    graded.results = Lazy(make, 2)
    with pytest.raises(KeyError):
        class_report.write(graded)
    assert {path.name: path.read_bytes() for path in graded.folder.iterdir()} == before


def test_a_large_class_is_never_in_memory_and_its_page_stays_small(tmp_path):
    names = ASSIGNMENT.names

    def make(place):
        student, name = f"student-{place:04}", names[place % len(names)]
        if place % 3:
            return full(student)
        return wrong(student, name, "scaled" if place % 2 else None, f"You scale {place % 50}.")

    results = Lazy(make, 1000)
    graded = classroom.Class(ASSIGNMENT, tmp_path, 7, "abc", results)
    path = class_report.write(graded)
    assert results.most <= 5
    assert path.stat().st_size < 2_000_000
    page = path.read_text(encoding="utf-8")
    assert "All 1000 students" in page
    assert page.count('<td title="student-') == 1000
    text = (graded.folder / "grades.csv").read_text(encoding="utf-8-sig")
    assert len(list(csv.reader(io.StringIO(text)))) == 1001


def test_a_class_that_was_written_can_be_read_again(graded):
    graded.write()
    again = classroom.Class.read(graded.course, UNIT)
    assert again.results == graded.results
    assert (again.seed, again.grader) == (7, "abc")


def test_a_class_that_was_not_graded_is_one_sentence(tmp_path):
    with pytest.raises(errors.ClassroomError, match="has not been graded"):
        classroom.Class.read(tmp_path, UNIT)


def test_a_chapters_name_is_no_class_even_where_one_was_graded_under_it(graded):
    graded.assignment = replace(ASSIGNMENT, unit="attention")
    graded.write()
    with pytest.raises(errors.AssignmentError, match="attention is a chapter of 3 units"):
        classroom.Class.read(graded.course, "attention")
