"""nbgrader's gradebook, kept open while a whole class is entered.

nbgrader opens its gradebook a dozen times for every submission, each time with a new engine that
looks at all tables, compiles every query anew, and waits for the disk after each of some sixty
commits; and it asks for every cell's grade and comment by a query of its own. For one class in one
process, `kept_open` lets all of nbgrader's gradebooks share one engine, lets each answer from
what one query brought, and commit once. What is written, and by whom, stays nbgrader's own
business.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from nbgrader.api import (
    Assignment,
    BaseCell,
    Comment,
    Grade,
    Gradebook,
    Notebook,
    Student,
    SubmittedAssignment,
    SubmittedNotebook,
)
from sqlalchemy import Engine, event
from sqlalchemy.orm import Session, scoped_session, sessionmaker, undefer


class _Patient(Session):
    """A session that puts off commits until its gradebook is closed.

    nbgrader commits after each cell. What is new or deleted is committed at once all the same:
    nbgrader wants to hear then and there if it is refused, and no more than that is undone then.
    Changes are sent before anything is asked that they could be part of.
    """

    waiting = False

    def commit(self) -> None:
        if self.new or self.deleted:
            self.settle()
        else:
            self.waiting = True

    def add(self, instance: object, **options: Any) -> None:
        if self.waiting and not self.new:
            self.settle()
        super().add(instance, **options)

    def settle(self) -> None:
        """Commit."""
        self.waiting = False
        super().commit()


class _Kept:
    """One gradebook file, open; and the methods that nbgrader's class gets in the meantime."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.first = Gradebook(url)
        self.courses = {self.first.course_id}
        self.cells: dict[tuple[str, str, str], dict[str, Any]] = {}

    def init(self, book: Gradebook, db_url: str, course_id: str, authenticator: Any) -> None:
        """A gradebook like any other, with a session of its own on the engine that is there."""
        book.engine = self.first.engine
        # Nobody else writes while the class is entered: what was read need not be read again.
        factory = sessionmaker(
            class_=_Patient,
            autoflush=True,
            bind=book.engine,
            future=True,
            expire_on_commit=False,
        )
        book.db = scoped_session(factory)
        book.course_id, book.authenticator = course_id, authenticator
        book.rows = {}
        if course_id not in self.courses:
            book.check_course(course_id=course_id)
            self.courses.add(course_id)

    def rows(
        self, book: Gradebook, kind: type, notebook: str, assignment: str, student: str
    ) -> dict[str, Any]:
        """All grades, or all comments, of one submitted notebook, by the name of their cell."""
        key = (kind, notebook, assignment, student)
        if key not in book.rows:
            query = (
                book.db.query(kind, BaseCell.name)
                .join(BaseCell, BaseCell.id == kind.cell_id)
                .join(SubmittedNotebook, SubmittedNotebook.id == kind.notebook_id)
                .join(Notebook, Notebook.id == SubmittedNotebook.notebook_id)
                .join(
                    SubmittedAssignment, SubmittedAssignment.id == SubmittedNotebook.assignment_id
                )
                .join(Assignment, Assignment.id == SubmittedAssignment.assignment_id)
                .join(Student, Student.id == SubmittedAssignment.student_id)
                .filter(
                    Notebook.name == notebook, Assignment.name == assignment, Student.id == student
                )
            )
            if kind is Grade:
                query = query.options(undefer(Grade.max_score))
            book.rows[key] = {name: row for row, name in query}
        return book.rows[key]

    def released(
        self, book: Gradebook, kind: str, notebook: str, assignment: str
    ) -> dict[str, Any]:
        """The cells of a released notebook by name; they stay as they are."""
        key = (kind, notebook, assignment)
        if key not in self.cells:
            found = book.find_notebook(notebook, assignment)
            self.cells[key] = {cell.name: cell for cell in getattr(found, kind)}
        return self.cells[key]


@contextmanager
def unhindered(file: Path) -> Iterator[None]:
    """Write the gradebook at `file` without waiting for the disk after each of its commits.

    A power cut could damage the gradebook, so a copy of it is kept until all is written.
    """
    copy = file.with_suffix(".db.before")
    if file.is_file():
        shutil.copyfile(file, copy)
    event.listen(Engine, "connect", _in_haste)
    try:
        yield
    finally:
        event.remove(Engine, "connect", _in_haste)
    if file.is_file():
        with file.open("rb+") as opened:
            os.fsync(opened.fileno())
    copy.unlink(missing_ok=True)


@contextmanager
def kept_open(file: Path) -> Iterator[None]:
    """Let all of nbgrader's gradebooks at `file` share one engine, `unhindered`."""
    with unhindered(file), _shared(_Kept(f"sqlite:///{file}")):
        yield


@contextmanager
def _shared(kept: _Kept) -> Iterator[None]:
    """Give nbgrader's class the methods that use what is kept."""
    plain_init, plain_close = Gradebook.__init__, Gradebook.close
    find_grade, find_comment = Gradebook.find_grade, Gradebook.find_comment
    find_source, find_graded = Gradebook.find_source_cell, Gradebook.find_graded_cell

    def init(
        self: Gradebook,
        db_url: str,
        course_id: str = "default_course",
        authenticator: Any = None,
    ) -> None:
        if db_url == kept.url:
            kept.init(self, db_url, course_id, authenticator)
        else:
            plain_init(self, db_url, course_id, authenticator)

    def shares(book: Gradebook) -> bool:
        return book.engine is kept.first.engine

    def close(self: Gradebook) -> None:
        if shares(self):
            try:
                self.db().settle()
            finally:
                self.db.remove()
        else:
            plain_close(self)

    def grade(self: Gradebook, cell: str, notebook: str, assignment: str, student: str) -> Any:
        rows = kept.rows(self, Grade, notebook, assignment, student) if shares(self) else {}
        return rows[cell] if cell in rows else find_grade(self, cell, notebook, assignment, student)

    def comment(self: Gradebook, cell: str, notebook: str, assignment: str, student: str) -> Any:
        rows = kept.rows(self, Comment, notebook, assignment, student) if shares(self) else {}
        if cell in rows:
            return rows[cell]
        return find_comment(self, cell, notebook, assignment, student)

    def source_cell(self: Gradebook, name: str, notebook: str, assignment: str) -> Any:
        cells = kept.released(self, "source_cells", notebook, assignment) if shares(self) else {}
        return cells[name] if name in cells else find_source(self, name, notebook, assignment)

    def graded_cell(self: Gradebook, name: str, notebook: str, assignment: str) -> Any:
        cells = kept.released(self, "grade_cells", notebook, assignment) if shares(self) else {}
        return cells[name] if name in cells else find_graded(self, name, notebook, assignment)

    changed = {
        "__init__": init,
        "close": close,
        "find_grade": grade,
        "find_comment": comment,
        "find_source_cell": source_cell,
        "find_graded_cell": graded_cell,
    }
    try:
        with mock.patch.multiple(Gradebook, **changed):
            yield
    finally:
        plain_close(kept.first)


def _in_haste(connection: Any, _: Any) -> None:
    if not isinstance(connection, sqlite3.Connection):
        return
    connection.execute("PRAGMA synchronous=OFF")
    connection.execute("PRAGMA journal_mode=MEMORY")
