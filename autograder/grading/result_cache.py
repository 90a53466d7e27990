"""What was graded with what: a course's result cache, which outlives every interruption.

`COURSE/result_cache.db` holds, for each submission, the marks as the graders gave them, the
repaired notebook, and the key of what the marks depend on; for each student, whether nbgrader's
books have the marks; and for each assignment, the class as it was last written. Every entry is a
transaction of its own, so that a process that is killed leaves what it had finished and nothing by
halves. Results and notebooks are read when they are asked for: a class is never in memory as a
whole.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from autograder.common.errors import ClassroomError
from autograder.common.files import disk_error, naming_disk_errors
from autograder.judging.results import SubmissionResult
from autograder.units.assignment import Assignment

VERSION = 1
TABLES = """
CREATE TABLE marked (
    assignment TEXT, student TEXT, attempt INTEGER, key TEXT NOT NULL, result TEXT NOT NULL,
    notebook BLOB NOT NULL, markings INTEGER NOT NULL DEFAULT 1,
    PRIMARY KEY (assignment, student, attempt)
);
CREATE TABLE recorded (
    assignment TEXT, student TEXT, state TEXT NOT NULL, entry TEXT NOT NULL,
    PRIMARY KEY (assignment, student)
);
CREATE TABLE graded (
    assignment TEXT PRIMARY KEY, seed INTEGER NOT NULL, grader TEXT NOT NULL,
    settings TEXT NOT NULL, description TEXT NOT NULL
);
CREATE TABLE listed (
    assignment TEXT, student TEXT, position INTEGER, result TEXT NOT NULL,
    penalty REAL NOT NULL, settings TEXT NOT NULL,
    PRIMARY KEY (assignment, student)
);
CREATE INDEX listed_in_order ON listed (assignment, position);
"""


@contextmanager
def alone(course: Path) -> Iterator[None]:
    """Keep a second `grade` out of the course. The system lets go when the process ends."""
    try:
        course.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise ClassroomError(
            f"{error.filename} is a file; name a folder for the course with --course."
        ) from error
    lock = FileLock(course / ".grading.lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise ClassroomError(
            f"{course} is being graded by another process; wait until it has ended."
        ) from None
    try:
        yield
    finally:
        lock.release()


def digest_of(*parts: Any) -> str:
    """A short name for plain data: the same data, the same name."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Listed:
    """A student's result as it was last written.

    Args:
        result: with the course's settings applied.
        penalty: for being late, in points, on what the graders gave.
        settings: the digest of the course's settings then.
        present: False for those who were not in the class that was graded last.
    """

    result: SubmissionResult
    penalty: float
    settings: str
    present: bool


class ResultCache:
    """The result cache of one course. Use it as a context manager, or `close` it.

    Raises:
        ClassroomError: the file is damaged or of another version.
    """

    def __init__(self, course: Path) -> None:
        self.path = course / "result_cache.db"
        with self._usable():
            self._db = sqlite3.connect(self.path, isolation_level=None, timeout=60)
            self._prepare()

    @contextmanager
    def _usable(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            told = disk_error(error, self.path)
            if told is not None:
                raise told from error
            raise ClassroomError(
                f"The result cache {self.path} cannot be used ({error}); move it away and grade "
                "again: everybody is marked anew, and marks given by hand stay in the gradebook."
            ) from error

    def check(self) -> None:
        """Look through the whole file for damage.

        Raises:
            ClassroomError: there is some.
        """
        with self._usable():
            found = self._db.execute("PRAGMA quick_check(1)").fetchone()[0]
            if found != "ok":
                raise sqlite3.DatabaseError(found)

    def _prepare(self) -> None:
        # A process that is killed loses nothing that way; a power cut could damage the file, which
        # SQLite notices and which costs no more than marking again.
        self._db.execute("PRAGMA synchronous=OFF")
        self._db.execute("PRAGMA journal_mode=TRUNCATE")
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            with self._writing():
                for statement in TABLES.split(";"):
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version={VERSION}")
        elif version != VERSION:
            raise sqlite3.DatabaseError(f"it is of version {version}, not {VERSION}")

    def __enter__(self) -> ResultCache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with naming_disk_errors(self.path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # SQLite itself ends it when the disk is full.
                    self._db.execute("ROLLBACK")
                raise

    # What was marked

    def keys(self, unit: str) -> dict[tuple[str, int], str]:
        """The key under which each attempt of each student was marked."""
        rows = self._db.execute(
            "SELECT student, attempt, key FROM marked WHERE assignment = ?", (unit,)
        )
        return {(student, attempt): key for student, attempt, key in rows}

    def keep(self, unit: str, key: str, result: SubmissionResult, notebook: str) -> None:
        """Keep the marks of one attempt, in the place of any earlier ones.

        Args:
            unit: the assignment.
            key: of all that the marks depend on; "" to have the attempt marked again next time.
            result: as the graders gave it, without the course's settings.
            notebook: the repaired notebook.
        """
        packed = zlib.compress(notebook.encode("utf-8", "surrogatepass"), 1)
        values = (unit, result.student, result.attempt, key, _packed(result), packed)
        with self._writing():
            self._db.execute(
                "INSERT INTO marked (assignment, student, attempt, key, result, notebook)"
                " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET key = excluded.key,"
                " result = excluded.result, notebook = excluded.notebook, markings = markings + 1",
                values,
            )

    def result(self, unit: str, student: str, attempt: int) -> SubmissionResult:
        """The marks of an attempt that was kept, without the course's settings."""
        (text,) = self._one("result", unit, student, attempt)
        return _unpacked(text)

    def notebook(self, unit: str, student: str, attempt: int) -> str:
        """The repaired notebook of an attempt that was kept."""
        (packed,) = self._one("notebook", unit, student, attempt)
        return zlib.decompress(packed).decode("utf-8", "surrogatepass")

    def markings(self, unit: str) -> dict[tuple[str, int], int]:
        """How often marks of each attempt were kept."""
        rows = self._db.execute(
            "SELECT student, attempt, markings FROM marked WHERE assignment = ?", (unit,)
        )
        return {(student, attempt): count for student, attempt, count in rows}

    def _one(self, column: str, unit: str, student: str, attempt: int) -> tuple[Any, ...]:
        found = self._db.execute(
            f"SELECT {column} FROM marked WHERE assignment = ? AND student = ? AND attempt = ?",
            (unit, student, attempt),
        ).fetchone()
        if found is None:
            raise KeyError((unit, student, attempt))
        return found

    # What nbgrader's books have

    def recorded(self, unit: str) -> dict[str, tuple[str, str]]:
        """What of each student went into nbgrader's books, and what stood there afterwards."""
        rows = self._db.execute(
            "SELECT student, state, entry FROM recorded WHERE assignment = ?", (unit,)
        )
        return {student: (state, entry) for student, state, entry in rows}

    def record(self, unit: str, student: str, state: str, entry: str) -> None:
        """nbgrader's books have a student's marks."""
        with self._writing():
            self._db.execute(
                "INSERT OR REPLACE INTO recorded VALUES (?, ?, ?, ?)",
                (unit, student, state, entry),
            )

    # The class as it was last written

    def write_class(
        self,
        assignment: Assignment,
        seed: int,
        grader: str,
        settings: str,
        rows: Iterable[tuple[SubmissionResult, float]],
    ) -> None:
        """Write a whole class in its order, with late penalties, all of it or nothing."""
        unit = assignment.unit
        with self._writing():
            self._db.execute(
                "INSERT OR REPLACE INTO graded VALUES (?, ?, ?, ?, ?)",
                (unit, seed, grader, settings, assignment.to_json()),
            )
            self._db.execute("UPDATE listed SET position = NULL WHERE assignment = ?", (unit,))
            for position, (result, penalty) in enumerate(rows):
                self._db.execute(
                    "INSERT OR REPLACE INTO listed VALUES (?, ?, ?, ?, ?, ?)",
                    (unit, result.student, position, _packed(result), penalty, settings),
                )

    def head(self, unit: str) -> tuple[Assignment, int, str] | None:
        """The assignment with the settings applied, the seed and the graders of the class."""
        found = self._db.execute(
            "SELECT description, seed, grader FROM graded WHERE assignment = ?", (unit,)
        ).fetchone()
        return None if found is None else (Assignment.from_json(found[0]), found[1], found[2])

    def listed(self, unit: str, student: str) -> Listed | None:
        """One student's result as it was last written; None if there never was one."""
        found = self._db.execute(
            "SELECT result, penalty, settings, position FROM listed"
            " WHERE assignment = ? AND student = ?",
            (unit, student),
        ).fetchone()
        if found is None:
            return None
        return Listed(_unpacked(found[0]), found[1], found[2], found[3] is not None)

    def students(self, unit: str) -> list[str]:
        """Everybody in the class that was written last, in its order."""
        rows = self._db.execute(
            "SELECT student FROM listed WHERE assignment = ? AND position IS NOT NULL"
            " ORDER BY position",
            (unit,),
        )
        return [student for (student,) in rows]


class Results(Sequence[SubmissionResult]):
    """The results of the class that was written last, read from the result cache when asked for."""

    def __init__(self, course: Path, unit: str) -> None:
        self.course = course
        self.unit = unit
        with ResultCache(course) as cache:
            self._students = cache.students(unit)

    def __len__(self) -> int:
        return len(self._students)

    def __getitem__(self, index: int) -> SubmissionResult:  # type: ignore[override]
        return next(self._read([self._students[index]]))

    def __iter__(self) -> Iterator[SubmissionResult]:
        return self._read(self._students)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Sequence)
            and len(self) == len(other)
            and all(mine == theirs for mine, theirs in zip(self, other, strict=True))
        )

    def _read(self, students: list[str]) -> Iterator[SubmissionResult]:
        with ResultCache(self.course) as cache:
            for student in students:
                found = cache.listed(self.unit, student)
                assert found is not None  # Nothing is ever taken out of the result cache.
                yield found.result


def _packed(result: SubmissionResult) -> str:
    return json.dumps(result.to_dict())


def _unpacked(text: str) -> SubmissionResult:
    return SubmissionResult.from_dict(json.loads(text))
