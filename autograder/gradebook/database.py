"""nbgrader's gradebook: where it is, and how a whole class is entered.

It is a file, COURSE/gradebook.db, or a database on a PostgreSQL server. Which of them stands in
COURSE/nbgrader_config.py, so that nbgrader's own programs use the same one; `url_of` asks there.

nbgrader opens its gradebook a dozen times for every submission, each time with a new engine that
looks at all tables and compiles every query anew, and commits after each cell. In `one_transaction`
all of this is one transaction on one connection: a student's marks are entered as a whole or, if
the process is killed, not at all. What is written, and by whom, stays nbgrader's own business.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from filelock import FileLock, Timeout
from nbgrader.api import (
    Assignment,
    BaseCell,
    Comment,
    Course,
    Grade,
    Gradebook,
    GradeCell,
    Notebook,
    SourceCell,
    SubmittedAssignment,
    SubmittedNotebook,
)
from sqlalchemy import (
    URL,
    Connection,
    Engine,
    NullPool,
    Select,
    bindparam,
    create_engine,
    func,
    inspect,
    make_url,
    select,
)
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.orm import scoped_session, sessionmaker, undefer
from traitlets.config.loader import PyFileConfigLoader

from autograder.common.errors import ClassroomError
from autograder.common.files import naming_disk_errors

# SQLAlchemy 2.1 takes another driver for a bare postgresql:// than the one we install.
DRIVER = "psycopg2"
OUR_CONFIG = "written by `python -m autograder grade`"  # in the nbgrader_config.py of a course
REACH_SECONDS = 10


# ---------------------------------------------------------------------------------------------
# Where it is


def url_of(course: Path, db_url: str | None = None) -> str:
    """The URL of a course's gradebook, in SQLAlchemy's words.

    Args:
        course: the course's folder.
        db_url: the gradebook that somebody asks for; without it, the one that the course's
            nbgrader_config.py names, else gradebook.db in the course's folder.

    Raises:
        ClassroomError: the URL is none that can be used, or the configuration cannot be read.
    """
    if db_url:
        return checked(db_url)
    return configured(course) or default_url(course)


def default_url(course: Path) -> str:
    """The URL of COURSE/gradebook.db."""
    return f"sqlite:///{course.resolve() / 'gradebook.db'}"


def configured(course: Path) -> str | None:
    """The gradebook that COURSE/nbgrader_config.py names, if it names one."""
    file = course / "nbgrader_config.py"
    if not file.is_file():
        return None
    path = list(sys.path)
    try:
        config = PyFileConfigLoader(file.name, path=str(course)).load_config()
    except ClassroomError:
        raise
    except Exception as error:  # The file is a program: whatever it does wrong ends up here.
        text = file.read_text(encoding="utf-8", errors="replace")
        if isinstance(error, ModuleNotFoundError) and OUR_CONFIG in text:
            found = re.search(r"db_url='([^']+)'", text)  # An earlier version of us has written it.
            return found[1] if found else None
        raise ClassroomError(f"{file} cannot be read ({error}); mend or remove it.") from error
    finally:
        sys.path[:] = path
    url = config.get("CourseDirectory", {}).get("db_url")
    return url if isinstance(url, str) and url else None


def checked(db_url: str) -> str:
    """The URL as nbgrader can use it.

    Raises:
        ClassroomError: it is none, or of a database that we do not know, or holds a password.
    """
    try:
        url = make_url(db_url)
    except ArgumentError as error:
        raise ClassroomError(
            f"{db_url!r} is no address of a database; write postgresql://USER@HOST/DATABASE."
        ) from error
    if url.password or "password" in url.query:
        plain = url._replace(password=None).difference_update_query(["password"])
        raise ClassroomError(
            f"The address {_text(plain)} was given with a password, which others could read where "
            "it is kept; leave it out and put it into ~/.pgpass or the file that PGPASSFILE names."
        )
    kind, _, driver = url.drivername.partition("+")
    if kind == "sqlite":
        if not url.database or not Path(url.database).is_absolute():
            raise ClassroomError(
                f"{db_url!r} names no file from the root of the disk; write "
                "sqlite:////folder/gradebook.db, or leave it out for gradebook.db in the course."
            )
        return db_url
    if kind not in ("postgresql", "postgres"):
        raise ClassroomError(
            f"The gradebook cannot be kept in {kind!r}; use postgresql://USER@HOST/DATABASE, or "
            "leave the address out for gradebook.db in the course."
        )
    return _text(url.set(drivername=f"postgresql+{driver or DRIVER}"))


def _text(url: URL) -> str:
    address, mark, options = url.render_as_string(hide_password=False).partition("?")
    # A socket's folder may be written as it is, and alembic takes no percent signs.
    return address + mark + options.replace("%2F", "/")


def shown(url: str) -> str:
    """A gradebook in words for people: its file, or its address without the password."""
    file = file_of(url)
    return str(file) if file else make_url(url).render_as_string()


def file_of(url: str) -> Path | None:
    """The file of a gradebook that is one."""
    parts = make_url(url)
    if parts.get_backend_name() != "sqlite" or not parts.database:
        return None
    return Path(parts.database)


def exists(url: str) -> bool:
    """Whether there is a gradebook to read; of a server this is not asked here."""
    file = file_of(url)
    return file is None or file.is_file()


def opened(url: str) -> Gradebook:
    """nbgrader's gradebook, a context manager.

    Raises:
        ClassroomError: the database or its driver is not there.
    """
    with _told(url):
        return Gradebook(url)


@functools.cache
def _engine(url: str) -> Engine:
    """The one engine of a gradebook, which has compiled its queries; it keeps no connection."""
    server = file_of(url) is None
    waits = {"connect_timeout": REACH_SECONDS} if server else {}
    return create_engine(url, connect_args=waits, poolclass=NullPool)


@contextmanager
def connected(url: str) -> Iterator[Connection]:
    """A connection to a gradebook, to read what SQL can say.

    Raises:
        ClassroomError: the database or its driver is not there.
    """
    with _told(url), _engine(url).connect() as connection:
        yield connection


def knows(url: str, assignment: str) -> bool:
    """Whether the gradebook is there and has an assignment of that name.

    Raises:
        ClassroomError: the database or its driver is not there.
    """
    if not exists(url):
        return False
    with connected(url) as connection:
        if not inspect(connection).has_table("assignment"):
            return False
        named = select(func.count(Assignment.id)).where(Assignment.name == assignment)
        return bool(connection.scalar(named))


def make(url: str) -> None:
    """Make the tables of a gradebook on a server; nbgrader makes a file's when it needs them.

    nbgrader's courses have no name unless the exchange needs one. A server, unlike SQLite, insists
    that every assignment's course is in the table of courses, so the nameless one is put there.
    """
    if file_of(url):
        return
    from autograder.assignments.builder import schema_version

    with mock.patch("nbgrader.api.get_alembic_version", schema_version), opened(url) as book:
        if book.db.get(Course, "") is None:
            book.db.add(Course(id=""))
            book.db.commit()


@contextmanager
def _told(url: str) -> Iterator[None]:
    """Say in one sentence why a gradebook cannot be opened."""
    try:
        yield
    except (ModuleNotFoundError, NoSuchModuleError) as error:
        driver = make_url(url).drivername.partition("+")[2]
        known = driver == DRIVER and importlib.util.find_spec(driver) is None
        remedy = (
            "type python -m pip install -r requirements.txt"
            if known
            else f"write postgresql://, for which {DRIVER} is used, or install what it names"
        )
        raise ClassroomError(f"There is no driver for {shown(url)} ({error}); {remedy}.") from error
    except DBAPIError as error:
        reason = " ".join(str(error.orig).split())[:300]
        remedy = (
            "put a backup in its place, or move it away and grade again"
            if file_of(url)
            else "start the server, or correct the address (--db-url, or db_url in grading.toml) "
            "or the password in ~/.pgpass"
        )
        raise ClassroomError(
            f"The gradebook {shown(url)} cannot be opened ({reason}); {remedy}."
        ) from error


# ---------------------------------------------------------------------------------------------
# Entering a class


@contextmanager
def alone(url: str) -> Iterator[None]:
    """Keep a second run from writing a gradebook that is a file.

    Other programs read and write it as ever; the database sees to that.

    Raises:
        ClassroomError: another run is writing it.
    """
    file = file_of(url)
    if file is None:
        yield
        return
    lock = FileLock(file.with_name(f".{file.name}.lock"), timeout=0)
    try:
        with naming_disk_errors(file):
            lock.acquire()
    except Timeout as error:
        raise ClassroomError(
            f"Another run is writing {file}; start again when it has ended."
        ) from error
    try:
        yield
    finally:
        lock.release()


def _in_place(statement: Select[Any]) -> Select[Any]:
    """Limit what belongs to notebooks to one of them, by the names of it and its assignment."""
    return statement.join(Assignment, Assignment.id == Notebook.assignment_id).where(
        Notebook.name == bindparam("notebook"), Assignment.name == bindparam("assignment")
    )


def _released(kind: Any) -> Select[Any]:
    """All cells of one kind in a released notebook, with their names."""
    return _in_place(select(kind, kind.name).join(Notebook, Notebook.id == kind.notebook_id))


def _submitted(kind: Any) -> Select[Any]:
    """All grades, or all comments, of one submitted notebook, with the names of their cells."""
    named = select(kind, BaseCell.name).join(BaseCell, BaseCell.id == kind.cell_id)
    return (
        _in_place(
            named.join(SubmittedNotebook, SubmittedNotebook.id == kind.notebook_id).join(
                Notebook, Notebook.id == SubmittedNotebook.notebook_id
            )
        )
        .join(SubmittedAssignment, SubmittedAssignment.id == SubmittedNotebook.assignment_id)
        .where(SubmittedAssignment.student_id == bindparam("student"))
    )


# nbgrader's methods that ask for one cell, and what asks for all cells of the notebook.
ALL_CELLS = {
    "find_grade": _submitted(Grade).options(undefer(Grade.max_score)),
    "find_comment": _submitted(Comment),
    "find_source_cell": _released(SourceCell),
    "find_graded_cell": _released(GradeCell),
}
PLACE = ("notebook", "assignment", "student")


def _finding_all(method: str, statement: Select[Any]) -> Callable[..., Any]:
    """nbgrader's method, with one query for a notebook instead of one for each of its cells.

    nbgrader asks for some two hundred cells of every submission, and with a query for each the
    books of a class take three times as long: in a class of 100, a fifth of the whole command.
    """
    plain = getattr(Gradebook, method)

    def find(self: Gradebook, cell: str, *place: str) -> Any:
        found = vars(self).setdefault("found", {})
        key = (method, *place)
        if key not in found:
            rows = self.db.execute(statement, dict(zip(PLACE, place, strict=False)))
            found[key] = {name: row for row, name in rows}
        # What is not there, nbgrader says is missing.
        return found[key].get(cell) or plain(self, cell, *place)

    return find


@contextmanager
def one_transaction(url: str) -> Iterator[None]:
    """Let all that nbgrader does with the gradebook at `url` meanwhile be one transaction.

    nbgrader's sessions join it: what they commit is sent at once, for the others to see, and
    committed in the end; what they roll back is rolled back as a whole.
    """
    engine = _engine(url)
    with engine.begin() as connection:
        session = sessionmaker(
            bind=connection, join_transaction_mode="rollback_only", expire_on_commit=False
        )
        plain = Gradebook.__init__

        def init(
            self: Gradebook,
            db_url: str,
            course_id: str = "default_course",
            authenticator: Any = None,
        ) -> None:
            if db_url != url:
                plain(self, db_url, course_id, authenticator)
                return
            self.engine, self.db = engine, scoped_session(session)
            self.course_id, self.authenticator = course_id, authenticator

        methods: dict[str, Any] = {"__init__": init}
        methods |= {name: _finding_all(name, statement) for name, statement in ALL_CELLS.items()}
        with mock.patch.multiple(Gradebook, **methods):
            yield


# What `Books.entries` asks: of everybody, and of one student.
ENTRIES = (
    select(
        SubmittedAssignment.student_id,
        SubmittedAssignment.timestamp,
        SubmittedAssignment.extension,
        Assignment.duedate,
        func.count(Grade.id),
        func.sum(Grade.auto_score),
        func.sum(GradeCell.max_score),
    )
    .select_from(SubmittedAssignment)
    .join(Assignment, Assignment.id == SubmittedAssignment.assignment_id)
    .join(SubmittedNotebook, SubmittedNotebook.assignment_id == SubmittedAssignment.id)
    .join(Grade, Grade.notebook_id == SubmittedNotebook.id)
    .join(GradeCell, GradeCell.id == Grade.cell_id)
    .where(Assignment.name == bindparam("assignment"))
    .group_by(SubmittedAssignment.id, Assignment.id, SubmittedNotebook.id)
)
ENTRY = ENTRIES.where(SubmittedAssignment.student_id == bindparam("student"))
