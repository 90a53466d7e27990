"""nbgrader's gradebook answers and stores the same in one transaction, and survives a kill."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time

import pytest
from nbgrader.api import Gradebook, InvalidEntry, MissingEntry

from autograder.assignments import builder
from autograder.common import paths
from autograder.common.errors import ClassroomError
from autograder.gradebook.course import prepare
from autograder.gradebook.database import alone, one_transaction

pytestmark = pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SAWarning")
PLACE = ("notes", "homework")


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A gradebook with one assignment of two graded cells and one student's submission."""
    monkeypatch.setattr("nbgrader.api.get_alembic_version", builder.schema_version)
    path = tmp_path / "gradebook.db"
    with Gradebook(f"sqlite:///{path}") as book:
        book.add_assignment("homework")
        book.add_notebook("notes", "homework")
        for name in ("one", "two"):
            book.add_grade_cell(name, *PLACE, max_score=2, cell_type="code")
            book.add_solution_cell(name, *PLACE)
            book.add_source_cell(name, *PLACE, cell_type="code", source=f"# {name}", locked=True)
        book.add_student("ada")
        book.add_submission("homework", "ada")
    return path


def url_to(path):
    return f"sqlite:///{path}"


def opened(path):
    return Gradebook(url_to(path))


def scores(path):
    with opened(path) as book:
        return {name: book.find_grade(name, *PLACE, "ada").score for name in ("one", "two")}


def test_what_is_asked_for_is_the_same_as_ever(file):
    def seen():
        with opened(file) as book:
            source = book.find_source_cell("one", *PLACE)
            return (
                source.source,
                source.locked,
                book.find_graded_cell("two", *PLACE).max_score,
                book.find_grade("two", *PLACE, "ada").max_score,
                book.find_comment("one", *PLACE, "ada").comment,
            )

    plain = seen()
    with one_transaction(url_to(file)):
        assert [seen(), seen()] == [plain, plain]


def test_what_is_not_there_is_missing(file):
    with one_transaction(url_to(file)), opened(file) as book:
        for find in (book.find_source_cell, book.find_graded_cell):
            with pytest.raises(MissingEntry):
                find("three", *PLACE)
        for find in (book.find_grade, book.find_comment):
            with pytest.raises(MissingEntry):
                find("three", *PLACE, "ada")
            with pytest.raises(MissingEntry):
                find("one", *PLACE, "nobody")


def test_a_student_who_comes_later_is_found(file):
    with one_transaction(url_to(file)), opened(file) as book:
        with pytest.raises(MissingEntry):
            book.find_grade("one", *PLACE, "bob")
        book.add_student("bob")
        book.add_submission("homework", "bob")
        book.find_grade("one", *PLACE, "bob").auto_score = 2
        book.db.commit()
    with opened(file) as book:
        assert book.find_submission("homework", "bob").score == 2


def test_other_gradebooks_are_none_of_its_business(file, tmp_path):
    other = tmp_path / "other.db"
    with one_transaction(url_to(file)):
        with opened(other) as book:
            book.add_student("eve")
        with opened(other) as book:
            assert [student.id for student in book.students] == ["eve"]
    assert "eve" not in [student.id for student in opened(file).students]


def test_nbgrader_is_as_before_afterwards(file):
    before = dict(vars(Gradebook))
    with pytest.raises(RuntimeError, match="stop"), one_transaction(url_to(file)):
        raise RuntimeError("stop")
    assert dict(vars(Gradebook)) == before


def enter(file, student, marks):
    """What nbgrader does with a submission, each step with a gradebook of its own."""
    with opened(file) as book:
        book.update_or_create_student(student)
    with opened(file) as book:
        book.find_assignment("homework")
        book.update_or_create_submission("homework", student, timestamp="2030-01-02 12:00:00 UTC")
    with opened(file) as book:
        assert book.find_notebook(*PLACE).name == "notes"
    with opened(file) as book:
        for name, mark in marks.items():
            grade = book.find_grade(name, *PLACE, student)
            grade.auto_score, grade.needs_manual_grade = mark, grade.manual_score is not None
            book.find_comment(name, *PLACE, student).auto_comment = f"got {mark}"
            book.db.commit()
    with opened(file) as book:
        submitted = book.find_submission_notebook(*PLACE, student)
        score = submitted.score
        assert score == book.find_submission("homework", student).score
        submitted.late_submission_penalty = score / 2
        book.db.commit()
    return score


def stored(file):
    """All that a gradebook has, without the ids that are drawn."""
    with sqlite3.connect(file) as database:
        return [
            sorted(map(repr, database.execute(query)))
            for query in (
                "SELECT id FROM student",
                "SELECT student_id, timestamp, late_submission_penalty, flagged, name"
                " FROM submitted_assignment s JOIN submitted_notebook n ON n.assignment_id = s.id"
                " JOIN notebook ON notebook.id = n.notebook_id",
                "SELECT student_id, c.name, auto_score, manual_score, extra_credit,"
                " needs_manual_grade FROM grade g JOIN base_cell c ON c.id = g.cell_id"
                " JOIN submitted_notebook n ON n.id = g.notebook_id"
                " JOIN submitted_assignment s ON s.id = n.assignment_id",
                "SELECT student_id, c.name, auto_comment, manual_comment FROM comment m"
                " JOIN base_cell c ON c.id = m.cell_id"
                " JOIN submitted_notebook n ON n.id = m.notebook_id"
                " JOIN submitted_assignment s ON s.id = n.assignment_id",
            )
        ]


CLASS = [("bob", {"one": 1, "two": 2}), ("ada", {"one": 0.5}), ("bob", {"two": 0}), ("cy", {})]


def test_what_is_entered_in_one_transaction_is_stored_as_by_nbgrader_alone(file, tmp_path):
    plain = tmp_path / "plain.db"
    plain.write_bytes(file.read_bytes())
    scores = [enter(plain, *one) for one in CLASS]
    assert scores == [3, 0.5, 1, 0]
    for number, one in enumerate(CLASS):
        with one_transaction(url_to(file)):
            assert enter(file, *one) == scores[number]
    assert stored(file) == stored(plain)


def test_what_is_refused_is_refused_as_a_whole_and_stops_nobody(file):
    with one_transaction(url_to(file)), opened(file) as book:
        book.add_student("bob")
        with pytest.raises(InvalidEntry):
            book.add_assignment("homework")
    with one_transaction(url_to(file)):
        enter(file, "cy", {"one": 1})
    with opened(file) as book:
        assert {student.id for student in book.students} == {"ada", "cy"}


def test_nothing_is_seen_by_others_before_all_of_it_is_entered(file):
    with one_transaction(url_to(file)):
        enter(file, "bob", {"one": 1})
        with sqlite3.connect(file) as other:
            assert other.execute("SELECT id FROM student").fetchall() == [("ada",)]
    with opened(file) as book:
        assert book.find_submission("homework", "bob").score == 1


# ---------------------------------------------------------------------------------------------
# A run that does not end


@pytest.fixture
def child():
    """Starts Python on a text, and kills what is still running in the end."""
    running = []

    def start(text, *arguments):
        process = subprocess.Popen(
            [sys.executable, "-c", text, *map(str, arguments)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(paths.ROOT), "OMP_NUM_THREADS": "1"},
        )
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.wait()
        process.stdout.close()


HALF_ENTERED = """
import sys, time
from autograder.gradebook.database import one_transaction
from nbgrader.api import Gradebook

url = sys.argv[1]
with one_transaction(url), Gradebook(url) as book:
    book.find_grade("one", "notes", "homework", "ada").auto_score = 2
    book.db.commit()
    connection = book.db.connection()
    connection.exec_driver_sql("PRAGMA cache_size=2")
    # More than two pages: they reach the file before the commit.
    for number in range(300):
        book.db.execute(Student.__table__.insert().values(id=f"s{number}", last_name="undone" * 20))
    print("half entered", flush=True)
    time.sleep(60)
""".replace("import Gradebook", "import Gradebook, Student")


def test_what_a_killed_process_half_entered_is_undone(file, child):
    process = child(HALF_ENTERED, url_to(file))
    assert process.stdout.readline() == "half entered\n"
    assert b"undone" in file.read_bytes()  # Without SQLite's journal it would stay there.
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert scores(file) == {"one": 0, "two": 0}
    with opened(file) as book:
        assert [student.id for student in book.students] == ["ada"]
    with sqlite3.connect(file) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_two_runs_do_not_write_one_gradebook(file):
    with alone(url_to(file)):
        with pytest.raises(ClassroomError, match="Another run is writing"), alone(url_to(file)):
            pass
        assert scores(file) == {"one": 0, "two": 0}  # Other programs may read it.
    with alone(url_to(file)):
        pass


def test_a_damaged_gradebook_is_one_sentence(tmp_path):
    course = tmp_path / "course"
    prepare(course, "attention-scores")
    (course / "gradebook.db").write_bytes(b"no database at all, but long enough" * 100)
    with pytest.raises(ClassroomError, match="put a backup in its place"):
        prepare(course, "attention-scores")


ENTERING = """
import sys
from pathlib import Path
import nbformat
from autograder.grading import repair
from autograder.units.assignment import load
from autograder.gradebook.course import Books, prepare
from autograder.grading.collect import Person, Submission
from autograder.grading.marker import Graded, empty_result

course, people = Path(sys.argv[1]), sys.argv[2:]
print("began", flush=True)
release = prepare(course, "attention-scores")
text = nbformat.writes(repair.blank(release))
books = Books(course, "attention-scores")
with books.alone():
    books.enter(map(Person, people))
    for number, person in enumerate(people):
        result = empty_result(load("attention-scores"), person, "graded", "")
        result.exercises["context_vector"].points = 0.5
        result.exercises["DotScore"].points = 1.0
        books.record(Submission(person), Graded(result, text), release)
        assert result.notes == [], result.notes
        print(person, flush=True)
"""


@pytest.mark.slow
def test_a_class_that_is_killed_again_and_again_is_complete_in_the_end(tmp_path, child):
    """SIGKILL wherever it meets the process; what was entered before is there afterwards."""
    course = tmp_path / "course"
    people = [f"s{number}" for number in range(24)]  # More than can be entered in the meantime.
    entered = []
    for wait in (0.02, 0.08):
        process = child(ENTERING, course, *(one for one in people if one not in entered))
        began = process.stdout.readline()
        assert began == "began\n"
        for _ in range(2):
            entered.append(process.stdout.readline().strip())
        time.sleep(wait)
        process.send_signal(signal.SIGKILL)
        entered += process.communicate()[0].split()
        assert process.returncode == -signal.SIGKILL
        with sqlite3.connect(course / "gradebook.db") as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        with opened(course / "gradebook.db") as book:
            for person in entered:
                assert book.find_submission("attention-scores", person).score == 1.5, person
    process = child(ENTERING, course, *(one for one in people if one not in entered))
    said = process.communicate()[0].splitlines()
    assert process.returncode == 0
    assert [*entered, *said[1:]] == people  # nobody twice, nobody lost
    with opened(course / "gradebook.db") as book:
        scores = {
            one.student.id: one.score for one in book.assignment_submissions("attention-scores")
        }
    assert scores == dict.fromkeys(people, 1.5)
