"""nbgrader's gradebook answers and stores the same while it is kept open."""

from __future__ import annotations

import sqlite3

import pytest
from nbgrader.api import Gradebook, InvalidEntry, MissingEntry
from sqlalchemy import event

from autograder import builder
from autograder.gradebook import kept_open, unhindered

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
    assert not copy.exists()
    assert waits() == usual != 0
    assert scores(file)["one"] == 1
    with pytest.raises(KeyError), unhindered(url_to(file)):
        raise KeyError
    assert copy.is_file()  # Nobody knows whether the gradebook is whole.
    assert not file.with_name("gradebook.db-journal").exists()


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
