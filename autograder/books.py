"""An nbgrader course: its gradebook, autograded notebooks and feedback pages."""

from __future__ import annotations

import hashlib
import logging
import secrets
import shutil
import warnings
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from autograder import (
    notebooks,
    paths,
    repair,
    startup,  # isort: split  # noqa: F401
)
from autograder.assignment import ClassroomError
from autograder.collect import Person, Submission
from autograder.marker import Graded
from autograder.results import SubmissionResult

UNRECORDED = "nbgrader could not record the marks"


class Books:
    """An nbgrader course, and every student's place in it.

    Args:
        course: the course's folder; made if it is not there.
        chapter: the assignment.
        step: the folder, below the course, for the repaired copies of what was handed in.
    """

    def __init__(self, course: Path, chapter: str, step: str = "submitted") -> None:
        from nbgrader.apps.api import NbGraderAPI
        from nbgrader.coursedir import CourseDirectory
        from traitlets.config import Config

        from autograder import nbgrader_plugin

        self.course = course
        self.chapter = chapter
        self.step = step
        self.plugin = nbgrader_plugin
        config = Config()
        nbgrader_plugin.configure(config, course)
        config.CourseDirectory.submitted_directory = step
        # Lateness and failures are told in results.json; nbgrader's own log would only repeat it.
        log = logging.getLogger("traitlets")
        log.addHandler(logging.NullHandler())
        log.propagate = False
        self.directory = CourseDirectory(config=config)
        self.api = NbGraderAPI(coursedir=self.directory, config=config)

    def open(self) -> Any:
        """nbgrader's gradebook, as a context manager."""
        from nbgrader.api import Gradebook

        return Gradebook(self.directory.db_url)

    def enter(self, people: Iterable[Person]) -> None:
        """Put a class list into the gradebook."""
        with self.open() as gradebook:
            for person in people:
                traits = {key: value for key, value in asdict(person).items() if value}
                traits.pop("id")
                gradebook.update_or_create_student(person.id, **traits)

    def record(self, submission: Submission, graded: Graded, release: NotebookNode) -> None:
        """Autograde one student through nbgrader, with the marks that are known already."""
        student = graded.result.student
        folder = self.course / self.step / student / self.chapter
        if folder.is_symlink():
            folder.unlink()
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if submission.timestamp:
            (folder / "timestamp.txt").write_text(submission.timestamp + "\n", encoding="utf-8")
        key = (self.chapter, student)
        self.plugin.RESULTS[key] = graded.result
        try:
            failure = ""
            for notebook in (graded.notebook, ""):
                # The second try is with an empty notebook: the marks come from the result.
                notebook = notebook or notebooks.writes(repair.blank(release))
                (folder / f"{self.chapter}.ipynb").write_text(notebook, encoding="utf-8")
                with quiet_database():
                    said = self.api.autograde(self.chapter, student, force=True)
                if said["success"]:
                    break
                failure = _last_line(said)
            else:
                graded.result.notes.append(f"{UNRECORDED} ({failure})")
                return
        finally:
            del self.plugin.RESULTS[key]

    def due(self, date: str) -> None:
        """Set the assignment's due date, as nbgrader reads dates."""
        from nbgrader.utils import parse_utc

        try:
            parse_utc(date)
        except (ValueError, OverflowError, TypeError, AttributeError) as error:
            raise ClassroomError(
                f"{date!r} is no date; write it as 2030-01-31 18:00:00 UTC."
            ) from error
        with self.open() as gradebook:
            gradebook.update_or_create_assignment(self.chapter, duedate=date)

    def note_lateness(self, results: Iterable[SubmissionResult]) -> None:
        """Tell in the results who was late; penalties are left to nbgrader's plug-in."""
        from autograder.feedback import span

        with quiet_database(), self.open() as gradebook:
            late = {
                submission.student.id: submission.total_seconds_late
                for submission in gradebook.assignment_submissions(self.chapter)
            }
        for result in results:
            if late.get(result.student, 0) > 0:
                result.notes.append(f"handed in {span(late[result.student])} late")

    def kept_open(self) -> AbstractContextManager[None]:
        """Enter many students in less time; see `autograder.gradebook`."""
        from autograder.gradebook import kept_open

        return kept_open(self.course / "gradebook.db")

    def feedback(self, student: str) -> Path | None:
        """Write one student's page with nbgrader's generate_feedback; None if that failed."""
        with quiet_database():
            said = self.api.generate_feedback(self.chapter, student, force=True)
        page = self.course / "feedback" / student / self.chapter / f"{self.chapter}.html"
        return page if said["success"] and page.is_file() else None

    def export(self, path: Path) -> None:
        """nbgrader's own CSV export, safe for spreadsheets."""
        plugin = self.plugin.SafeCsv()
        plugin.to = str(path)
        plugin.assignment = [self.chapter]
        with self.open() as gradebook:
            plugin.export(gradebook)


@contextmanager
def quiet_database() -> Iterator[None]:
    """Without what SQLAlchemy has to say about nbgrader's way of using it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _last_line(said: dict[str, Any]) -> str:
    text = (said.get("log") or said.get("error") or "").strip()
    lines = [line for line in text.splitlines() if "Error" in line] or text.splitlines()
    return lines[-1][:300] if lines else "no reason given"


CONFIG = '''"""nbgrader's settings for this course; written by `python -m autograder grade`."""

import sys
from pathlib import Path

sys.path.insert(0, {root!r})

from autograder.nbgrader_plugin import configure  # noqa: E402

configure(get_config(), Path(__file__).resolve().parent)  # noqa: F821
'''


def prepare(course: Path, chapter: str) -> NotebookNode:
    """Make `course` an nbgrader course that knows the chapter; return its released notebook."""
    from autograder import assignment as builder

    course.mkdir(parents=True, exist_ok=True)
    source = paths.SOLUTIONS / f"{chapter}.py"
    released = course / "release" / chapter / f"{chapter}.ipynb"
    stamp = course / "release" / chapter / ".made-from"
    digest = hashlib.sha256()
    for file in (source, paths.PACKAGE / "builder.py"):
        digest.update(file.read_bytes() if file.is_file() else b"")
    known = stamp.is_file() and stamp.read_text(encoding="ascii") == digest.hexdigest()
    gradebook = course / "gradebook.db"
    if not (known and released.is_file() and gradebook.is_file()):
        from autograder.gradebook import unhindered

        with unhindered(gradebook):
            builder.prepare_course(course, [chapter])
        stamp.write_text(digest.hexdigest(), encoding="ascii")
    config = CONFIG.format(root=str(paths.ROOT))
    file = course / "nbgrader_config.py"
    if not file.is_file() or "python -m autograder grade" in file.read_text(encoding="utf-8"):
        file.write_text(config, encoding="utf-8")
    return nbformat.reads(released.read_text(encoding="utf-8"), as_version=4)


def course_seed(course: Path) -> int:
    """The seed of a course: drawn once and kept, so that nobody knows the inputs beforehand."""
    path = course / "seed.txt"
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        course.mkdir(parents=True, exist_ok=True)
        seed = secrets.randbelow(2**31)
        path.write_text(f"{seed}\n", encoding="ascii")
        return seed
