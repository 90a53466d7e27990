"""An nbgrader course: its gradebook, autograded notebooks and feedback pages."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import secrets
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from autograder.assignments import given
from autograder.common import paths
from autograder.common.errors import ClassroomError
from autograder.common.files import replacing, require_room
from autograder.grading import repair
from autograder.grading.collect import Person, Submission
from autograder.grading.marker import Graded
from autograder.grading.settings import FILE, Settings
from autograder.units.assignment import load

UNRECORDED = "nbgrader could not record the marks"
UNSHOWN = "the report could not show everything"
SECRET = "submission_secret.txt"
LONGEST = 128  # Characters of a name in nbgrader's tables, on which a server insists.


class Books:
    """An nbgrader course, and every student's place in it.

    Args:
        course: the course's folder; made if it is not there.
        unit: the assignment.
        step: the folder, below the course, for the repaired copies of what was handed in.
        db_url: the gradebook, where it is not the course's own; see `database`.
    """

    def __init__(
        self, course: Path, unit: str, step: str = "submitted", db_url: str | None = None
    ) -> None:
        from nbgrader.apps.api import NbGraderAPI
        from nbgrader.coursedir import CourseDirectory
        from traitlets.config import Config

        from autograder.gradebook import database, plugin

        self.course = course
        self.unit = unit
        self.step = step
        self.plugin = plugin
        config = Config()
        plugin.configure(config, course)
        config.CourseDirectory.db_url = database.url_of(course, db_url)
        config.CourseDirectory.submitted_directory = step
        # Lateness and failures are told in results.json; nbgrader's own log would only repeat it.
        config.NbGraderAPI.log_level = logging.ERROR
        log = logging.getLogger("traitlets")
        log.addHandler(logging.NullHandler())
        log.propagate = False
        self.directory = CourseDirectory(config=config)
        self.api = NbGraderAPI(coursedir=self.directory, config=config)

    def open(self) -> Any:
        """nbgrader's gradebook, as a context manager."""
        from autograder.gradebook.database import opened

        return opened(self.directory.db_url)

    def alone(self) -> AbstractContextManager[None]:
        """Keep a second run from writing the gradebook meanwhile."""
        from autograder.gradebook.database import alone

        return alone(self.directory.db_url)

    def enter(self, people: Iterable[Person]) -> None:
        """Put a class list into the gradebook; whom it refuses, `record` tells."""
        from nbgrader.api import InvalidEntry

        with quiet_database(), self.open() as gradebook:
            for person in people:
                traits = {key: value[:LONGEST] for key, value in asdict(person).items() if value}
                traits.pop("id")
                try:
                    gradebook.update_or_create_student(person.id, **traits)
                except InvalidEntry:
                    continue
                except Exception:  # `record` tells of this person, too.
                    require_room(self.course)
                    gradebook.db.rollback()

    def record(self, submission: Submission, graded: Graded, release: NotebookNode) -> None:
        """Autograde one student through nbgrader, with the marks that are known already."""
        student = graded.result.student
        folder = self.course / self.step / student / self.unit
        if folder.is_symlink():
            folder.unlink()
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if submission.timestamp:
            (folder / "timestamp.txt").write_text(submission.timestamp + "\n", encoding="utf-8")
        secret = _secret(submission)
        if secret:  # With it nbgrader's exchange gives the feedback back to this student alone.
            (folder / SECRET).write_text(secret, encoding="ascii")
        key = (self.unit, student)
        self.plugin.RESULTS[key] = graded.result
        try:
            failure = ""
            for notebook in (graded.notebook, ""):
                # The second try is with an empty notebook: the marks come from the result.
                notebook = notebook or nbformat.writes(repair.blank(release), version=4)
                (folder / f"{self.unit}.ipynb").write_text(notebook, encoding="utf-8")
                said = self._tell(self.api.autograde, student)
                if said["success"]:
                    break
                failure = _last_line(said)
            else:
                graded.result.notes.append(f"{UNRECORDED} ({failure})")
                return
        finally:
            del self.plugin.RESULTS[key]

    def _tell(self, command: Callable[..., dict[str, Any]], student: str) -> dict[str, Any]:
        """Have nbgrader do something with one student; what it has to say."""
        from sqlalchemy.exc import SQLAlchemyError

        from autograder.gradebook.database import one_transaction

        try:
            with quiet_database(), one_transaction(self.directory.db_url):
                said = command(self.unit, student, force=True)
        except SQLAlchemyError as error:  # Refused when nbgrader had done its part.
            said = {"success": False, "error": f"{type(error).__name__}: {error}"}
        if not said["success"]:
            require_room(self.course)
        return said

    def entries(self, student: str | None = None) -> dict[str, str]:
        """What the gradebook has of everybody's submission, or of one student's.

        The graders' points, the maxima and the lateness, in one line, to see whether they are still
        the same. What a person decided, and the penalty that follows from it, is not in it.
        """
        from autograder.gradebook.database import ENTRIES, ENTRY, connected

        found: dict[str, str] = {}
        with connected(self.directory.db_url) as connection:
            asked = {"assignment": self.unit, "student": student}
            rows = connection.execute(ENTRIES if student is None else ENTRY, asked)
            for name, handed_in, extension, due, count, *sums in rows:
                late = 0.0
                if handed_in is not None and due is not None:
                    until = due + extension if extension is not None else due
                    late = max(0.0, (handed_in - until).total_seconds())
                found[name] = repr([late, count, *(round(float(sum or 0), 6) for sum in sums)])
        return found

    def settle(self, settings: Settings) -> dict[str, list[str]]:
        """Count the penalties anew, with all marks given by hand; what is to be told about whom."""
        from autograder.gradebook import due_dates

        with quiet_database():
            due_dates.penalise(self.unit, settings, self.directory.db_url)
            return due_dates.remarks(self.unit, settings, self.directory.db_url)

    def feedback(self, student: str) -> Path | None:
        """Write one student's page with nbgrader's generate_feedback; None if that failed."""
        said = self._tell(self.api.generate_feedback, student)
        folder = self.course / "feedback" / student / self.unit
        page = folder / f"{self.unit}.html"
        if not said["success"] or not page.is_file():
            return None
        # nbgrader release_feedback stops at the first student without these.
        for name, content in ((SECRET, secrets.token_hex(64)), ("timestamp.txt", "")):
            if not (folder / name).is_file():
                (folder / name).write_text(content, encoding="ascii")
        return page

    def export(self, path: Path) -> None:
        """nbgrader's own CSV export, safe for spreadsheets."""
        plugin = self.plugin.SafeCsv()
        plugin.to = str(path)
        plugin.assignment = [self.unit]
        with self.open() as gradebook:
            plugin.export(gradebook)


def _secret(submission: Submission) -> str:
    """What nbgrader submit drew for this submission; nothing for what came another way."""
    if submission.path is None:
        return ""
    file = submission.path.with_name(SECRET)
    if file.is_symlink() or not file.is_file():
        return ""
    with suppress(OSError, UnicodeDecodeError), file.open(encoding="ascii") as opened:
        text = opened.read(LONGEST + 1).strip()
        if re.fullmatch(rf"[0-9a-f]{{1,{LONGEST}}}", text):
            return text
    return ""


@contextmanager
def quiet_database() -> Iterator[None]:
    """Without what SQLAlchemy has to say about nbgrader's way of using it.

    Nor what nbgrader prints of a database's refusal: it raises it too, and we tell it.
    """
    log = logging.getLogger("tornado.application")
    before = log.disabled
    log.disabled = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.disabled = before


def _last_line(said: dict[str, Any]) -> str:
    text = (said.get("log") or said.get("error") or "").strip()
    lines = [line for line in text.splitlines() if "Error" in line] or text.splitlines()
    return lines[-1][:300] if lines else "no reason given"


CONFIG = '''"""nbgrader's settings for this course; written by `python -m autograder grade`."""

import sys
from pathlib import Path

sys.path.insert(0, {root!r})

from autograder.gradebook.plugin import configure  # noqa: E402

configure(get_config(), Path(__file__).resolve().parent{db_url})  # noqa: F821
'''


def prepare(
    course: Path, unit: str, settings: Settings | None = None, *, db_url: str | None = None
) -> NotebookNode:
    """Make `course` an nbgrader course that knows the unit; return its released notebook.

    Its gradebook then has the points, the due date and the extensions of the settings, by default
    those in the course's grading.toml, which is put there if there is none. A `db_url` is kept in
    the course's nbgrader_config.py: from then on it is the course's own.
    """
    from autograder.gradebook import database, due_dates

    course.mkdir(parents=True, exist_ok=True)
    if not (course / FILE).exists():
        with replacing(course / FILE) as scratch:
            shutil.copyfile(paths.PACKAGE / "grading" / FILE, scratch)
    url = database.url_of(course, db_url)
    config = _config(course, url)
    assignment = load(unit)
    if settings is None:
        settings = due_dates.of_course(course, unit)
    else:
        due_dates.use(course, unit, settings)
    points = settings.maxima(assignment)
    released = course / "release" / unit / f"{unit}.ipynb"
    stamp = released.with_name(".made-from")
    digest = _made_from(unit, points, "" if url == database.default_url(course) else url)
    known = stamp.is_file() and stamp.read_text(encoding="ascii") == digest
    there = all(file.is_file() for file in _files_of(course, unit))
    if not (database.knows(url, unit) and known and there):
        from autograder.assignments import builder

        database.make(url)
        try:
            builder.prepare_course(course, [unit], db_url=url, points=points)
        except Exception:
            require_room(course)
            raise
        stamp.write_text(digest, encoding="ascii")
    file = course / "nbgrader_config.py"
    if not file.is_file() or file.read_text(encoding="utf-8") != config:
        with replacing(file) as scratch:
            scratch.write_text(config, encoding="utf-8")
    with quiet_database():
        due_dates.bring(course, unit, settings, url)
    return nbformat.reads(released.read_text(encoding="utf-8"), as_version=4)


def _made_from(unit: str, points: dict[str, float], url: str) -> str:
    """All that a release is made from, as one hash: made anew when any of it is another."""
    source = paths.solution(unit)
    machinery = paths.PACKAGE / "assignments"
    digest = hashlib.sha256()
    for file in (
        source,
        source.with_name("conventions.md"),
        paths.CONVENTIONS,
        paths.ungraded(unit, source.parents[2]),
        *(
            machinery / f"{name}.py"
            for name in ("builder", "given", "last_cells", "overview", "picture")
        ),
    ):
        content = file.read_bytes() if file.is_file() else b""
        digest.update(b"%d " % len(content) + content)
    if source.is_file():
        digest.update(given.source(unit).encode())
    digest.update(url.encode() + json.dumps(points, sort_keys=True).encode())
    return digest.hexdigest()


def _files_of(course: Path, unit: str) -> list[Path]:
    """What a course has of a unit: the notebooks, and beside each what the unit is given."""
    names = [f"{unit}.ipynb"]
    if paths.solution(unit).is_file() and given.source(unit):
        names.append(paths.GIVEN)
    return [course / step / unit / name for step in ("source", "release") for name in names]


def _config(course: Path, url: str) -> str:
    """What is to stand in the course's nbgrader_config.py: an instructor's own, or ours.

    With it nbgrader's programs work in the course as `grade` does, with the same gradebook.
    """
    from autograder.gradebook import database

    file = course / "nbgrader_config.py"
    usual = database.default_url(course)
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    if not text or database.OUR_CONFIG in text:
        place = "" if url == usual else f", db_url={url!r}"
        return CONFIG.format(root=str(paths.ROOT), db_url=place)
    if url != (database.configured(course) or usual):
        raise ClassroomError(
            f"{file} is your own and names another gradebook; write c.CourseDirectory.db_url = "
            f"{database.shown(url)!r} into it, or leave the address out elsewhere."
        )
    return text


def course_seed(course: Path) -> int:
    """The seed of a course: drawn once and kept, so that nobody knows the inputs beforehand."""
    path = course / "seed.txt"
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        seed = secrets.randbelow(2**31)
        with replacing(path) as scratch:
            scratch.write_text(f"{seed}\n", encoding="ascii")
        return seed
