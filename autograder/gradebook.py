"""nbgrader's gradebook: where it is, and how it is kept open while a whole class is entered.

It is a file, COURSE/gradebook.db, or a database on a PostgreSQL server. Which of them stands in
COURSE/nbgrader_config.py, so that nbgrader's own programs use the same one; `url_of` asks there.

nbgrader opens its gradebook a dozen times for every submission, each time with a new engine that
looks at all tables, compiles every query anew, and waits for the disk after each of some sixty
commits; and it asks for every cell's grade and comment by a query of its own. For one class in one
process, `kept_open` lets all of nbgrader's gradebooks share one engine, lets each answer from
what one query brought, and commit once; `together` lets those that are opened for one student
share a session, so that a new submission and its marks are sent in one go. What is written, and by
whom, stays nbgrader's own business.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from nbgrader.api import (
    Assignment,
    BaseCell,
    Comment,
    Course,
    Grade,
    Gradebook,
    GradeCell,
    Notebook,
    Student,
    SubmittedAssignment,
    SubmittedNotebook,
)
from sqlalchemy import (
    URL,
    Select,
    bindparam,
    create_engine,
    func,
    insert,
    inspect,
    make_url,
    select,
    text,
)
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.orm import Session, contains_eager, scoped_session, sessionmaker, undefer
from sqlalchemy.orm.attributes import set_committed_value
from traitlets.config import PyFileConfigLoader

from autograder import unfinished
from autograder.assignment import ClassroomError
from autograder.unfinished import Unfinished

# SQLAlchemy 2.1 takes another driver for a bare postgresql:// than the one we install.
DRIVER = "psycopg2"
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


def knows(url: str, assignment: str) -> bool:
    """Whether the gradebook is there and has an assignment of that name.

    Raises:
        ClassroomError: the database or its driver is not there.
    """
    if not exists(url):
        return False
    server = file_of(url) is None
    with _told(url):
        waits = {"connect_timeout": REACH_SECONDS} if server else {}
        engine = create_engine(url, connect_args=waits)
        try:
            with engine.connect() as connection:
                if not inspect(connection).has_table("assignment"):
                    return False
                query = text("SELECT count(*) FROM assignment WHERE name = :name")
                return bool(connection.execute(query, {"name": assignment}).scalar())
        finally:
            engine.dispose()


def make(url: str) -> None:
    """Make the tables of a gradebook on a server; nbgrader makes a file's when it needs them.

    nbgrader's courses have no name unless the exchange needs one. A server, unlike SQLite, insists
    that every assignment's course is in the table of courses, so the nameless one is put there.
    """
    if file_of(url):
        return
    from autograder.builder import schema_version

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


# What nbgrader sets in every grade and comment when it has marks.
MARK = {Grade: "auto_score", Comment: "auto_comment"}
INSERTS = {kind: insert(kind.__table__) for kind in MARK}


def _row(slip: Grade | Comment) -> dict[str, Any]:
    """A new grade or comment as a row; what the database would compute of it is noted in it."""
    row = {"cell_id": slip.cell_id, "notebook_id": slip.notebook.id}
    if isinstance(slip, Comment):
        set_committed_value(slip, "comment", slip.auto_comment)
        return {**row, "auto_comment": slip.auto_comment}
    score = 0.0 if slip.auto_score is None else slip.auto_score + 0.0
    set_committed_value(slip, "score", score)
    marks = {"auto_score": slip.auto_score, "needs_manual_grade": slip.needs_manual_grade}
    return {**row, **marks}


class _Patient(Session):
    """A session that puts off commits until its gradebook is closed.

    nbgrader commits after each cell. What is new or deleted is committed at once all the same:
    nbgrader wants to hear then and there if it is refused, and no more than that is undone then.
    Changes are sent before anything is asked that they could be part of. While `filling`, what is
    new is a submission whose marks are about to follow, and is sent together with them. Its grades
    and comments, two for every exercise, are kept out of the session as `slips` until they have
    their marks: following each of them would take most of the time.
    """

    waiting = False
    filling = False
    slips: tuple[Grade | Comment, ...] = ()

    def commit(self) -> None:
        if (self.new or self.deleted) and not self.filling:
            self.settle()
        else:
            self.waiting = True

    def add(self, instance: object, **options: Any) -> None:
        if self.new if self.filling else (self.waiting and not self.new):
            self.settle()
        if self.filling and isinstance(instance, SubmittedAssignment):
            self._take_slips(instance)
        super().add(instance, **options)

    def _take_slips(self, submission: SubmittedAssignment) -> None:
        if len(submission.notebooks) == 1:
            (notebook,) = submission.notebooks
            self.slips = (*notebook.grades, *notebook.comments)
            set_committed_value(notebook, "grades", [])
            set_committed_value(notebook, "comments", [])

    def send(self) -> None:
        """Send all that is new or changed to the database, the slips too."""
        slips, self.slips = self.slips, ()
        if not all(MARK[type(slip)] in vars(slip) for slip in slips):
            self.add_all(slips)  # Their marks will be changes, and have to be followed.
            slips = ()
        self.flush()
        for kind in (Grade, Comment):
            rows = [_row(slip) for slip in slips if type(slip) is kind]
            if rows:
                self.execute(INSERTS[kind], rows)

    def settle(self) -> None:
        """Commit."""
        self.send()
        self.waiting = self.filling = False
        super().commit()


class _Turn:
    """One session for all gradebooks that nbgrader opens in one go, and what they have found.

    Args:
        session: to be used for this turn alone.
        assignments: those that earlier turns have found, by name, with their notebooks and cells.
        entered: to be filled with the grades and comments of a new submission, once it is entered.
        reading: nothing is changed in this turn.
    """

    def __init__(
        self,
        session: _Patient,
        assignments: dict[str, Assignment],
        entered: dict[tuple[Any, ...], dict[str, Any]],
        reading: bool,
    ) -> None:
        self.session = session
        self.assignments = assignments
        self.entered = entered
        self.reading = reading
        self.db = scoped_session(lambda: session)
        self.rows: dict[tuple[Any, ...], dict[str, Any]] = {}
        self.found: dict[tuple[str, ...], Any] = {}

    def find(self, what: str, names: tuple[str, ...], search: Callable[[], Any]) -> Any:
        """What nbgrader's `search` finds, without asking for it twice."""
        key = (what, *names)
        if key not in self.found and what == "find_assignment":
            self.found[key] = self._assignment(*names, search)
        elif key not in self.found:
            self.found[key] = search()
        elif what in COMPUTED:
            # Its sums are the database's, which must know all marks first.
            self.session.send()
            self.session.expire(self.found[key], COMPUTED[what])
        return self.found[key]

    def _assignment(self, name: str, search: Callable[[], Assignment]) -> Assignment:
        """An assignment, whose notebooks then need not be searched for either."""
        assignment = self.assignments.get(name)
        if assignment is None:
            self.assignments[name] = assignment = search()
        else:
            self.session.add(assignment)
        for notebook in assignment.notebooks:
            self.found["find_notebook", notebook.name, name] = notebook
        return assignment

    def begin(self, submission: SubmittedAssignment) -> None:
        """A submission is new: its grades and comments are at hand, and go in with their marks."""
        self.session.waiting, self.session.filling = False, True
        place = (submission.assignment.name, submission.student.id)
        self.found["find_submission", *place] = submission
        for submitted in submission.notebooks:
            notebook = submitted.notebook
            self.found["find_submission_notebook", notebook.name, *place] = submitted
            cells = (*notebook.grade_cells, *notebook.solution_cells, *notebook.task_cells)
            names = {cell.id: cell.name for cell in cells}
            most = {cell.id: getattr(cell, "max_score", 0.0) for cell in cells}
            submitted.late_submission_penalty = None  # As it is; else it is written once more.
            slips = self.session.slips
            for kind, rows in ((Grade, submitted.grades), (Comment, submitted.comments)):
                rows = [slip for slip in slips if type(slip) is kind] or rows
                named = {names[row.cell_id]: row for row in rows}
                self.rows[kind, notebook.name, *place] = named
            for slip in slips:
                if isinstance(slip, Grade):
                    set_committed_value(slip, "max_score", most[slip.cell_id])

    def close(self) -> None:
        """A gradebook is closed: enter what was changed."""
        if self.session.waiting:
            slips = self.session.slips
            try:
                self.session.settle()
            except BaseException:
                self.session.rollback()
                raise
            else:
                if slips and slips[0] not in self.session:
                    self.entered |= self.rows
            finally:
                self.rows.clear()

    def end(self) -> None:
        """Enter what is left, if nbgrader stopped before it had marks."""
        try:
            session = self.session
            if session.waiting or session.new or session.dirty or session.slips:
                session.settle()
        finally:
            for assignment in self.assignments.values():
                if assignment in self.session:
                    # Else each would hold on to all that were ever handed in.
                    self.session.expire(assignment, ["submissions"])
                    for notebook in assignment.notebooks:
                        self.session.expire(notebook, ["submissions"])
            self.session.close()


def _in_place(statement: Select) -> Select:
    """Limit what belongs to submitted notebooks to one student's."""
    return (
        statement.join(Notebook, Notebook.id == SubmittedNotebook.notebook_id)
        .join(SubmittedAssignment, SubmittedAssignment.id == SubmittedNotebook.assignment_id)
        .join(Assignment, Assignment.id == SubmittedAssignment.assignment_id)
        .join(Student, Student.id == SubmittedAssignment.student_id)
        .where(
            Notebook.name == bindparam("notebook"),
            Assignment.name == bindparam("assignment"),
            Student.id == bindparam("student"),
        )
    )


def _all_of(kind: Any) -> Select:
    """All grades, or all comments, of one submitted notebook, with the names of their cells."""
    named = select(kind, BaseCell.name).join(BaseCell, BaseCell.id == kind.cell_id)
    return _in_place(
        named.join(SubmittedNotebook, SubmittedNotebook.id == kind.notebook_id)
    ).execution_options(populate_existing=True)


# Put together once: SQLAlchemy takes longer for that than the database for its answer.
ROWS = {Grade: _all_of(Grade).options(undefer(Grade.max_score)), Comment: _all_of(Comment)}
SUBMITTED = _in_place(select(SubmittedNotebook)).options(
    undefer(SubmittedNotebook.score),
    undefer(SubmittedNotebook.max_score),
    contains_eager(SubmittedNotebook.assignment).contains_eager(SubmittedAssignment.assignment),
)
STUDENT = select(Student).where(Student.id == bindparam("student"))
REMEMBERED = (
    *("find_student", "find_assignment", "find_notebook"),
    *("find_submission", "find_submission_notebook"),
)
FOUND_BY = {
    "find_student": (STUDENT, ("student",)),
    "find_submission_notebook": (SUBMITTED, ("notebook", "assignment", "student")),
}
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
# What the database computes of that which each of nbgrader's methods finds.
COMPUTED = {
    method: [column.key for column in kind.__mapper__.column_attrs if column.deferred]
    for method, kind in (
        ("find_submission", SubmittedAssignment),
        ("find_submission_notebook", SubmittedNotebook),
    )
}


class _Kept:
    """One gradebook, open; and the methods that nbgrader's class gets in the meantime."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.first = Gradebook(url)
        self.courses = {self.first.course_id}
        self.cells: dict[tuple[str, str, str], dict[str, Any]] = {}
        # Nobody else writes while the class is entered: what was read need not be read again.
        self.session = sessionmaker(
            class_=_Patient,
            autoflush=True,
            bind=self.first.engine,
            future=True,
            expire_on_commit=False,
        )
        self.assignments: dict[str, Assignment] = {}
        self.turn: _Turn | None = None
        # What the last new submission was entered with: its feedback follows and asks for it.
        self.entered: dict[tuple[Any, ...], dict[str, Any]] = {}

    def init(self, book: Gradebook, db_url: str, course_id: str, authenticator: Any) -> None:
        """A gradebook like any other, on the engine that is there.

        Its session is its own, or the one of this turn.
        """
        book.engine = self.first.engine
        book.db = self.turn.db if self.turn else scoped_session(self.session)
        book.course_id, book.authenticator = course_id, authenticator
        book.rows = self.turn.rows if self.turn else {}
        if course_id not in self.courses:
            book.check_course(course_id=course_id)
            self.courses.add(course_id)

    def rows(
        self, book: Gradebook, kind: type, notebook: str, assignment: str, student: str
    ) -> dict[str, Any]:
        """All grades, or all comments, of one submitted notebook, by the name of their cell."""
        key = (kind, notebook, assignment, student)
        if key in self.entered and self.turn is not None and self.turn.reading:
            book.rows[key] = self.entered[key]
        if key not in book.rows:
            place = {"notebook": notebook, "assignment": assignment, "student": student}
            book.rows[key] = {name: row for row, name in book.db.execute(ROWS[kind], place)}
        return book.rows[key]

    def released(
        self, book: Gradebook, kind: str, notebook: str, assignment: str
    ) -> dict[str, Any]:
        """The cells of a released notebook by name; they stay as they are."""
        key = (kind, notebook, assignment)
        if key not in self.cells:
            found = book.find_notebook(notebook, assignment)
            # All of them in one query, or each would ask for its own points.
            book.db.scalars(select(GradeCell).where(GradeCell.notebook_id == found.id)).all()
            self.cells[key] = {cell.name: cell for cell in getattr(found, kind)}
        return self.cells[key]


_kept: dict[str, _Kept] = {}
_untold: dict[str, Unfinished] = {}


def mend(url: str) -> Unfinished | None:
    """See to a gradebook whose last run did not end, and say what was done; None if it did.

    The answer is one sentence, and whether what that run entered is there. Only a file needs
    this: a server looks after itself. Whoever is the first to open the gradebook calls this; the
    next `kept_open` tells the answer once more, to whoever enters the class.
    """
    file = file_of(url)
    found = unfinished.mend(file) if file else None
    if found is not None:
        _untold[url] = found
    return found


@contextmanager
def unhindered(url: str) -> Iterator[None]:
    """Write a gradebook that is a file without waiting for the disk after each of its commits.

    What the last run left is mended before. A server's commits are as ever.
    """
    file = file_of(url)
    if file is None:
        yield
        return
    mend(url)
    with unfinished.in_haste(file):
        yield


@contextmanager
def kept_open(url: str) -> Iterator[Unfinished | None]:
    """Let all of nbgrader's gradebooks at `url` share one engine, `unhindered`.

    Yields what was done about a last run that did not end, if this process had to do something.
    """
    with unhindered(url):
        with _told(url):
            kept = _Kept(url)
        with _shared(kept):
            _kept[url] = kept
            try:
                yield _untold.pop(url, None)
            finally:
                del _kept[url]


@contextmanager
def together(url: str, *, reading: bool = False) -> Iterator[None]:
    """Let the gradebooks at `url` that are opened in the meantime share a session, if kept open.

    For what nbgrader does with one student in one go: it opens the gradebook for every step, and
    each time looks for the same assignment, notebook, student and submission. Who is only `reading`
    is given the grades and comments of a submission that was new the time before as they were sent.
    """
    kept = _kept.get(url)
    if kept is None or kept.turn is not None:
        yield
        return
    if not reading:
        kept.entered.clear()
    kept.turn = turn = _Turn(kept.session(), kept.assignments, kept.entered, reading)
    try:
        yield
    finally:
        kept.turn = None
        if reading:
            kept.entered.clear()
        turn.end()


@contextmanager
def _shared(kept: _Kept) -> Iterator[None]:
    """Give nbgrader's class the methods that use what is kept."""
    plain_init, plain_close = Gradebook.__init__, Gradebook.close
    find_grade, find_comment = Gradebook.find_grade, Gradebook.find_comment
    find_source, find_graded = Gradebook.find_source_cell, Gradebook.find_graded_cell
    plain_add = Gradebook.add_submission

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

    def turn_of(book: Gradebook) -> _Turn | None:
        return kept.turn if kept.turn is not None and book.db is kept.turn.db else None

    def close(self: Gradebook) -> None:
        turn = turn_of(self)
        if turn is not None:
            turn.close()
        elif shares(self):
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

    def remembering(method: str) -> Callable[..., Any]:
        plain = getattr(Gradebook, method)
        statement, parameters = FOUND_BY.get(method, (None, ()))

        def find(self: Gradebook, *names: str) -> Any:
            turn = turn_of(self)

            def search() -> Any:
                found = None
                if statement is not None:
                    place = dict(zip(parameters, names, strict=True))
                    found = self.db.scalars(statement, place).one_or_none()
                return found or plain(self, *names)  # Which tells what is missing.

            return plain(self, *names) if turn is None else turn.find(method, names, search)

        return find

    def add_submission(self: Gradebook, assignment: str, student: str, **values: Any) -> Any:
        turn = turn_of(self)
        if turn is None:
            return plain_add(self, assignment, student, **values)
        turn.session.settle()
        turn.session.filling = True
        with turn.session.no_autoflush:
            submission = plain_add(self, assignment, student, **values)
            turn.begin(submission)
        return submission

    changed = {
        "__init__": init,
        "close": close,
        "find_grade": grade,
        "find_comment": comment,
        "find_source_cell": source_cell,
        "find_graded_cell": graded_cell,
        "add_submission": add_submission,
        **{method: remembering(method) for method in REMEMBERED},
    }
    try:
        with mock.patch.multiple(Gradebook, **changed):
            yield
    finally:
        plain_close(kept.first)
