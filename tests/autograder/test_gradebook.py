"""nbgrader's gradebook answers and stores the same while it is kept open."""

from __future__ import annotations

import gc
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import suppress

import pytest
from nbgrader.api import Gradebook, InvalidEntry, MissingEntry, SubmittedAssignment
from sqlalchemy import event

from autograder import builder, gradebook, paths
from autograder.assignment import ClassroomError
from autograder.books import prepare
from autograder.gradebook import kept_open, mend, together, unhindered

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


def test_marks_and_comments_entered_in_haste_are_there_afterwards(file):
    with kept_open(url_to(file)):
        with opened(file) as book:
            book.find_grade("one", *PLACE, "ada").auto_score = 1.5
            book.find_comment("two", *PLACE, "ada").manual_comment = "well done"
            book.db.commit()
        assert scores(file) == {"one": 1.5, "two": 0}
    assert scores(file) == {"one": 1.5, "two": 0}
    with opened(file) as book:
        assert book.find_comment("two", *PLACE, "ada").comment == "well done"


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
    with kept_open(url_to(file)):
        assert [seen(), seen()] == [plain, plain]


def test_what_is_not_there_is_missing(file):
    with kept_open(url_to(file)), opened(file) as book:
        for find in (book.find_source_cell, book.find_graded_cell):
            with pytest.raises(MissingEntry):
                find("three", *PLACE)
        for find in (book.find_grade, book.find_comment):
            with pytest.raises(MissingEntry):
                find("three", *PLACE, "ada")
            with pytest.raises(MissingEntry):
                find("one", *PLACE, "nobody")


def test_a_student_who_comes_later_is_found(file):
    with kept_open(url_to(file)), opened(file) as book:
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
    with kept_open(url_to(file)):
        with opened(other) as book:
            book.add_student("eve")
        with opened(other) as book:
            assert [student.id for student in book.students] == ["eve"]
    assert "eve" not in [student.id for student in opened(file).students]


def test_nbgrader_is_as_before_afterwards(file):
    before = dict(vars(Gradebook))
    with pytest.raises(RuntimeError, match="stop"), kept_open(url_to(file)):
        raise RuntimeError("stop")
    assert dict(vars(Gradebook)) == before


def test_a_copy_is_kept_until_all_is_written(file):
    copy = file.with_suffix(".db.before")
    with kept_open(url_to(file)):
        assert sqlite3.connect(copy).execute("SELECT id FROM student").fetchall() == [("ada",)]
    assert not copy.exists()


def test_a_gradebook_that_is_written_unhindered_has_a_copy_until_it_is_complete(file):
    copy = file.with_suffix(".db.before")

    def waits():
        with opened(file) as book, book.engine.connect() as connection:
            return connection.exec_driver_sql("PRAGMA synchronous").scalar()

    usual = waits()
    with unhindered(url_to(file)):
        assert copy.is_file()
        assert waits() == 0
        with opened(file) as book:
            book.find_grade("one", *PLACE, "ada").auto_score = 1
            book.db.commit()
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    assert waits() == usual != 0
    assert scores(file)["one"] == 1
    with pytest.raises(KeyError), unhindered(url_to(file)):
        raise KeyError
    assert copy.is_file()  # Nobody knows whether the gradebook is whole.


def test_changes_wait_for_the_end_but_what_is_refused_is_refused_at_once(file):
    commits = []
    with kept_open(url_to(file)):
        with opened(file) as book:
            event.listen(book.engine, "commit", commits.append)
            for name in ("one", "two"):
                book.find_grade(name, *PLACE, "ada").auto_score = 2
                book.db.commit()
            assert not commits
            assert book.find_submission("homework", "ada").score == 4  # the sum, by the database
            with pytest.raises(InvalidEntry):
                book.add_assignment("homework")
        assert commits
        with opened(file) as book:
            book.add_student("bob")
            assert book.find_student("bob").id == "bob"
    with opened(file) as book:
        assert {student.id for student in book.students} == {"ada", "bob"}


def statements(book):
    """A list to which every statement is added that the gradebook's database is sent."""
    sent = []
    event.listen(book.engine, "before_cursor_execute", lambda *args: sent.append(args[2]))
    return sent


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


def test_what_is_entered_together_is_stored_as_by_nbgrader_alone(file, tmp_path):
    plain = tmp_path / "plain.db"
    plain.write_bytes(file.read_bytes())
    scores = [enter(plain, *one) for one in CLASS]
    assert scores == [3, 0.5, 1, 0]
    with kept_open(url_to(file)):
        for number, one in enumerate(CLASS):
            with together(url_to(file)):
                assert enter(file, *one) == scores[number]
    assert stored(file) == stored(plain)


def test_a_new_submission_goes_in_with_its_marks(file):
    with kept_open(url_to(file)):
        for student in ("bob", "cy"):
            with together(url_to(file)):
                with opened(file) as book:
                    sent = statements(book)
                enter(file, student, {"one": 1, "two": 2})
                assert len([one for one in sent if one.startswith("INSERT INTO grade")]) == 1
                assert not [one for one in sent if one.startswith("UPDATE grade")]
        # The second time, the assignment and its cells are known.
        again = ("SELECT assignment.", "SELECT notebook.", "SELECT base_cell.")
        assert not [one for one in sent if one.startswith(again)]


def read(file, student):
    """What nbgrader's feedback asks of a submission."""
    with opened(file) as book:
        grades = [book.find_grade(name, *PLACE, student) for name in ("one", "two")]
        comments = [book.find_comment(name, *PLACE, student) for name in ("one", "two")]
        told = [(one.score, one.max_score, one.manual_score) for one in grades]
        told += [(one.needs_manual_grade,) for one in grades]
        told += [(one.comment,) for one in comments]
    with opened(file) as book:
        submitted = book.find_submission_notebook(*PLACE, student)
        return [*told, (submitted.score, submitted.max_score)]


def test_feedback_on_a_new_submission_reads_what_was_entered_without_asking(file):
    marks = {"one": 1, "two": None}
    with kept_open(url_to(file)):
        with together(url_to(file)):
            with opened(file) as book:
                book.add_student("bob")
            with opened(file) as book:
                sent = statements(book)
                book.update_or_create_submission("homework", "bob")
            with opened(file) as book:
                for name, mark in marks.items():
                    grade = book.find_grade(name, *PLACE, "bob")
                    grade.auto_score, grade.needs_manual_grade = mark, mark is None
                    book.find_comment(name, *PLACE, "bob").auto_comment = f"got {mark}"
                    book.db.commit()
        sent.clear()
        with together(url_to(file), reading=True):
            entered = read(file, "bob")
        assert not [one for one in sent if one.startswith("SELECT") and "FROM comment" in one]
        with together(url_to(file), reading=True):
            asked = read(file, "bob")
        assert [one for one in sent if one.startswith("SELECT") and "FROM comment" in one]
        assert entered == asked
    assert entered == read(file, "bob")


def test_who_enters_a_submission_anew_changes_what_is_stored(file):
    with kept_open(url_to(file)):
        for mark in (1, 2):
            with together(url_to(file)):
                enter(file, "bob", {"one": mark, "two": mark})
    assert read(file, "bob")[0][0] == 2
    assert read(file, "bob")[-1][0] == 4


def test_a_submission_without_marks_is_there_all_the_same(file):
    with kept_open(url_to(file)):
        with together(url_to(file)), opened(file) as book:
            book.add_student("bob")
            book.add_submission("homework", "bob")
        assert Gradebook(url_to(file)).find_grade("one", *PLACE, "bob").needs_manual_grade


def test_what_is_added_meanwhile_is_refused_at_once(file):
    with kept_open(url_to(file)), together(url_to(file)):
        with opened(file) as book:
            book.add_student("bob")
            book.add_submission("homework", "bob")
            with pytest.raises(InvalidEntry):
                book.add_assignment("homework")
        with opened(file) as book:
            book.find_grade("one", *PLACE, "bob").auto_score = 2
            book.db.commit()
    with opened(file) as book:
        assert book.find_submission("homework", "bob").score == 2


def test_no_student_stays_in_memory(file):
    def alive():
        gc.collect()
        return [one for one in gc.get_objects() if isinstance(one, SubmittedAssignment)]

    before = len(alive())
    with kept_open(url_to(file)):
        for number in range(3):
            with together(url_to(file)):
                enter(file, f"s{number}", {"one": 1, "two": 2} if number else {"one": 1})
            with together(url_to(file), reading=True):
                read(file, f"s{number}")
        assert len(alive()) == before


def test_a_gradebook_that_is_not_kept_open_is_as_ever(file):
    with together(url_to(file)):
        assert enter(file, "bob", {"one": 1}) == 1


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


HALF_WRITTEN = """
import sys, time
from autograder.gradebook import kept_open
from nbgrader.api import Gradebook

url = sys.argv[1]
with kept_open(url), Gradebook(url) as book:
    book.find_grade("one", "notes", "homework", "ada").auto_score = 2
    book.db().settle()
    with book.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA cache_size=2")
        add = "INSERT INTO student (id, last_name) VALUES (?, ?)"
        for number in range(300):
            connection.exec_driver_sql(add, (f"s{number}", "before" * 20))
        connection.commit()
        # More than two pages: they reach the file before the commit.
        connection.exec_driver_sql("UPDATE student SET last_name = ?", ("undone" * 20,))
        print("half written", flush=True)
        time.sleep(60)
"""


def test_what_a_killed_process_half_wrote_is_undone(file, child):
    process = child(HALF_WRITTEN, url_to(file))
    assert process.stdout.readline() == "half written\n"
    before = file.read_bytes()
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert b"undone" in before  # It was in the file, and without the journal would stay there.
    found = mend(url_to(file))
    assert found.entered
    assert "did not end" in found.said
    assert scores(file) == {"one": 2, "two": 0}
    with opened(file) as book:
        names = [student.last_name for student in book.students if student.id != "ada"]
    assert names == ["before" * 20] * 300
    assert mend(url_to(file)) is None
    with sqlite3.connect(file) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def left_over_by(file, write):
    """A run that does not end after it has called `write`."""
    with suppress(KeyError), unhindered(url_to(file)):
        write()
        raise KeyError
    assert file.with_name("gradebook.db.before").is_file()
    return file


def left_over(file):
    """The copy that a run leaves which did not end; it had entered a mark."""

    def write():
        with opened(file) as book:
            book.find_grade("one", *PLACE, "ada").auto_score = 1
            book.db.commit()

    return left_over_by(file, write).with_name("gradebook.db.before")


def test_a_damaged_gradebook_is_as_before_the_run_that_did_not_end(file):
    copy = left_over(file)
    whole = file.read_bytes()
    file.write_bytes(whole[:5000] + bytes(8000) + whole[13000:])
    damaged = file.read_bytes()
    file.with_name("gradebook.db-journal").write_bytes(b"of the damaged one")
    found = mend(url_to(file))
    assert not found.entered
    assert "damaged" in found.said
    assert scores(file) == {"one": 0, "two": 0}
    assert not copy.exists()
    assert not file.with_name("gradebook.db-journal").exists()
    assert file.with_name("gradebook.db.damaged").read_bytes() == damaged


def test_the_next_run_mends_by_itself_and_says_so(file):
    left_over(file)
    with kept_open(url_to(file)) as found:
        assert found.entered
        assert scores(file)["one"] == 1
    with kept_open(url_to(file)) as found:
        assert found is None


def test_a_course_with_a_damaged_gradebook_is_mended_before_anything_asks_it(tmp_path):
    course = tmp_path / "course"
    prepare(course, "attention")
    url = gradebook.url_of(course)
    file = left_over_by(course / "gradebook.db", lambda: None)
    file.write_bytes(file.read_bytes()[:2000] + bytes(60_000))
    prepare(course, "attention")
    assert gradebook.knows(url, "attention")
    with kept_open(url) as found:  # Whoever enters the class is told.
        assert not found.entered


def test_after_a_power_cut_what_was_entered_may_be_missing(file):
    copy = left_over(file)
    os.utime(copy, (1000, 1000))  # Long before the machine was started.
    found = mend(url_to(file))
    assert not found.entered
    assert scores(file)["one"] == 1


def test_without_a_whole_copy_nothing_is_touched(file):
    copy = left_over(file)
    for path in (file, copy):
        path.write_bytes(b"no database at all, but long enough to be looked at" * 100)
    with pytest.raises(ClassroomError, match="and so is its copy"):
        mend(url_to(file))
    assert copy.read_bytes() == file.read_bytes()


def test_a_gradebook_that_was_only_begun_is_begun_again(tmp_path):
    path = tmp_path / "gradebook.db"
    left_over_by(path, lambda: path.write_bytes(b"half of the first page" * 300))
    assert not mend(url_to(path)).entered
    assert path.read_bytes() == b""
    assert not gradebook.knows(url_to(path), "homework")


def test_two_runs_do_not_write_one_gradebook(file):
    with unhindered(url_to(file)):
        for second in (lambda: mend(url_to(file)), lambda: unhindered(url_to(file)).__enter__()):
            with pytest.raises(ClassroomError, match="Another run is writing"):
                second()
    assert mend(url_to(file)) is None


ENTERING = """
import sys
from pathlib import Path
from autograder import notebooks, repair
from autograder.assignment import load
from autograder.books import Books, prepare
from autograder.collect import Person, Submission
from autograder.gradebook import mend, url_of
from autograder.marker import Graded, empty_result

course, people = Path(sys.argv[1]), sys.argv[2:]
found = mend(url_of(course))
print("began", found and found.entered, flush=True)
release = prepare(course, "attention")
text = notebooks.writes(repair.blank(release))
books = Books(course, "attention")
with books.kept_open():
    books.enter(map(Person, people))
    for number, person in enumerate(people):
        result = empty_result(load("attention"), person, "graded", "")
        result.exercises["causal_mask"].points = 0.5
        result.exercises["DotScore"].points = 1.0
        books.record(Submission(person), Graded(result, text), release)
        assert result.notes == [], result.notes
        print(person, flush=True)
"""


@pytest.mark.slow
def test_a_class_that_is_killed_again_and_again_is_complete_in_the_end(tmp_path, child):
    """SIGKILL wherever it meets the process; what was entered before is there afterwards."""
    course = tmp_path / "course"
    url = gradebook.url_of(course)
    people = [f"s{number}" for number in range(24)]  # More than can be entered in the meantime.
    entered = []
    for kills, wait in enumerate((0.02, 0.08)):
        process = child(ENTERING, course, *(one for one in people if one not in entered))
        began = process.stdout.readline()
        assert began == ("began True\n" if kills else "began None\n")
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
                assert book.find_submission("attention", person).score == 1.5, person
    process = child(ENTERING, course, *(one for one in people if one not in entered))
    said = process.communicate()[0].splitlines()
    assert process.returncode == 0
    assert said[0] == "began True"
    assert [*entered, *said[1:]] == people  # nobody twice, nobody lost
    assert mend(url) is None
    with opened(course / "gradebook.db") as book:
        scores = {one.student.id: one.score for one in book.assignment_submissions("attention")}
    assert scores == dict.fromkeys(people, 1.5)
