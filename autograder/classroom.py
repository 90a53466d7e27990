"""Grades a class: finds what was handed in, runs it safely, and keeps nbgrader's books.

Three stages, each of which survives whatever one submission does:

1. `collect` looks through the folder of submissions, which is only ever read;
2. `Marker` repairs a notebook, runs its code once in the sandbox and asks the graders;
3. `Books` puts every student into an nbgrader course: gradebook, autograded notebook, feedback.

Everybody on the class list comes out with a result, if need be one that says why it is 0.
"""

from __future__ import annotations

import atexit
import csv
import difflib
import functools
import hashlib
import importlib.metadata
import io
import json
import logging
import os
import platform
import re
import secrets
import shutil
import stat
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autograder import startup  # isort: split

import nbformat
from nbformat import NotebookNode

from autograder import notebooks, paths, repair
from autograder.assignment import Assignment, AssignmentError, load
from autograder.cells import cells_of
from autograder.repair import RepairedNotebook
from autograder.results import ExerciseResult, SubmissionResult

if TYPE_CHECKING:
    from autograder.runner import Graders
    from autograder.sandbox import Answer, Limits, Sandbox

MAX_PRINTED = 20_000
CHECKPOINTS = ".ipynb_checkpoints"
# Names under which browsers and mail programs save a notebook.
NEARLY = (".ipynb.txt", ".ipynb.json", ".json", ".ipynb.bak", ".ipynb~")
OTHER = (".py", ".zip", ".html", ".htm", ".pdf", ".txt", ".doc", ".docx", ".rar", ".7z", ".md")


class ClassroomError(AssignmentError):
    """The class cannot be graded at all; the message is one sentence with the remedy."""


# ---------------------------------------------------------------------------------------------
# What was handed in


@dataclass
class Submission:
    """One student's file. `path` is None when nothing was handed in or nothing can be graded."""

    student: str
    path: Path | None = None
    reason: str = ""  # Why there is nothing to grade although something was handed in.
    repairs: list[str] = field(default_factory=list)
    timestamp: str | None = None
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Person:
    """One line of the class list."""

    id: str
    first_name: str = ""
    last_name: str = ""
    email: str = ""


def student_id(name: str) -> str:
    """A name that nbgrader's folders, patterns and database can hold."""
    name = name.encode("utf-8", "replace").decode("utf-8")
    # nbgrader looks for files by pattern and does not escape the student's name in it.
    name = name.translate(str.maketrans("[]", "()"))
    name = re.sub(r"[\x00-\x1f\x7f/\\*?<>]", "_", name).strip()
    return "_" if name in ("", ".", "..") else name


def read_roster(path: Path) -> list[Person]:
    """The class list in a CSV file: a column `student` (or id, or the first), names if given."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ClassroomError(
            f"The class list {path} cannot be opened ({error.strerror or error})."
        ) from error
    except UnicodeDecodeError as error:
        raise ClassroomError(f"Save the class list {path} as CSV in UTF-8.") from error
    try:
        dialect: Any = csv.Sniffer().sniff(text[:4096], delimiters=",;\t")
    except csv.Error:
        dialect = csv.excel
    rows = [row for row in csv.reader(io.StringIO(text), dialect) if any(map(str.strip, row))]
    known = ("student", "student_id", "id", "username", "user", "login")
    head = [cell.strip().lower().replace(" ", "_") for cell in rows[0]] if rows else []
    column = next((head.index(name) for name in known if name in head), None)
    fields = {
        name: head.index(name) for name in ("first_name", "last_name", "email") if name in head
    }
    people: dict[str, Person] = {}
    for row in rows if column is None else rows[1:]:
        place = column or 0
        if place < len(row) and row[place].strip():
            name = student_id(row[place])
            extra = {key: row[at].strip() for key, at in fields.items() if at < len(row)}
            people[name] = Person(name, **(extra if column is not None else {}))
    if not people:
        raise ClassroomError(f"The class list {path} names nobody; give it a column `student`.")
    return list(people.values())


def best_notebook(files: Sequence[Path], assignment: str) -> Path | None:
    """The file that is most likely the notebook of `assignment`; None if none can be.

    The exact name, else the only one, else the nearest name; never another chapter's notebook.
    """
    others = {name for name in paths.CHAPTERS if name != assignment}
    files = [file for file in files if _stem(file) not in others and CHECKPOINTS not in file.parts]
    for file in files:
        if file.name == f"{assignment}.ipynb":
            return file

    def near(file: Path) -> tuple[float, bool, str]:
        ratio = difflib.SequenceMatcher(None, _stem(file), assignment).ratio()
        inside = assignment in _stem(file)
        # Of equals the one whose name is longest: "attention (2)", "attention-final".
        return (max(ratio, 0.9 if inside else 0), file.suffix == ".ipynb", file.name)

    return max(files, key=near, default=None)


def _stem(file: Path) -> str:
    name = file.name.lower()
    for ending in (*NEARLY, ".ipynb"):
        if name.endswith(ending):
            return name[: -len(ending)]
    return name.rsplit(".", 1)[0]


def collect(submitted: Path, assignment: str, roster: Sequence[Person] = ()) -> list[Submission]:
    """Everybody on the class list or in `submitted`, sorted, with the file to grade.

    Understands DIR/<student>/<assignment>/<assignment>.ipynb as nbgrader has it,
    DIR/<student>/*.ipynb, and DIR/<student>.ipynb. Reads names only, and changes nothing.
    """
    try:
        entries = sorted(submitted.iterdir())
    except OSError as error:
        raise ClassroomError(
            f"There is no folder of submissions at {submitted}; name it with --submitted."
        ) from error
    found: dict[str, Submission] = {}
    names: dict[str, str] = {}
    for entry in entries:
        if entry.name.startswith((".", "__")):
            continue
        try:
            if entry.is_dir():
                submission = _in_folder(entry, assignment)
            elif entry.name.lower().endswith((".ipynb", *NEARLY)) and entry.is_file():
                submission = _checked(Submission(student_id(_keep_case(entry)), entry), submitted)
            else:
                continue
        except OSError as error:
            reason = f"the submission cannot be opened ({error.strerror or error})"
            submission = Submission(student_id(entry.name), reason=reason)
        raw = entry.name if submission.path != entry else _keep_case(entry)
        while names.setdefault(submission.student, raw) != raw:
            submission.student += "-2"  # Two names that differ only in what nbgrader cannot hold.
        earlier = found.get(submission.student)
        if earlier is None or (earlier.path is None and submission.path is not None):
            found[submission.student] = submission
        elif submission.path is not None:
            note = f"{entry.name} was handed in too; {_relative(earlier.path, submitted)} counts"
            earlier.notes.append(note)
    for person in roster:
        found.setdefault(person.id, Submission(person.id))
    if not found:
        raise ClassroomError(
            f"{submitted} holds no submissions; put each at "
            f"STUDENT/{assignment}/{assignment}.ipynb or STUDENT.ipynb, or give a --roster."
        )
    return sorted(found.values(), key=lambda item: _natural(item.student))


def _keep_case(file: Path) -> str:
    return file.name[: len(_stem(file))]


def _natural(name: str) -> list[tuple[int, int, str]]:
    """s2 before s10."""
    parts = re.findall(r"[0-9]{1,18}|[^0-9]+|[0-9]+", name)
    return [
        (0, int(part), "")
        if part.isdecimal() and part.isascii() and len(part) < 19
        else (1, 0, part.lower())
        for part in parts
    ]


def _relative(path: Path | None, base: Path) -> str:
    return path.relative_to(base).as_posix() if path and path.is_relative_to(base) else str(path)


def _in_folder(folder: Path, assignment: str) -> Submission:
    """One student's folder."""
    submission = Submission(student_id(folder.name))
    if folder.is_symlink():
        submission.reason = "the folder is a link to another place"
        return submission
    inner = [
        child
        for child in sorted(folder.iterdir())
        if child.is_dir() and not child.is_symlink() and not child.name.startswith((".", "__"))
    ]
    others = {name for name in paths.CHAPTERS if name != assignment}
    homes = [child for child in inner if child.name == assignment]
    homes += [
        child
        for child in inner
        if child not in homes
        and child.name not in others
        and assignment in child.name.strip().lower().replace(" ", "_")
    ]
    homes.append(folder)
    homes += [child for child in inner if child not in homes and child.name not in others]
    for home in homes:
        submission.timestamp = submission.timestamp or _timestamp(home, submission.notes)
    leftovers: list[str] = []
    for home in homes:
        files = [child for child in sorted(home.iterdir()) if not child.name.startswith(".")]
        notebooks = [
            file
            for file in files
            if file.name.lower().endswith((".ipynb", *NEARLY)) and not file.is_dir()
        ]
        best = best_notebook(notebooks, assignment)
        if (
            best is not None
            and home not in homes[:1]
            and home != folder
            and (best.name != f"{assignment}.ipynb")
            and home.name != assignment
            and assignment not in home.name.lower()
        ):
            continue  # Some other folder of theirs, with some other notebook.
        if best is not None:
            submission.path = best
            if best.name != f"{assignment}.ipynb":
                submission.repairs.append(f"renamed {_shown(best.name)} to {assignment}.ipynb")
            if len(notebooks) > 1:
                count = len(notebooks)
                submission.notes.append(f"{_shown(best.name)} was taken of {count} notebooks")
            return _checked(submission, folder)
        leftovers += [
            file.name
            for file in files
            if file.name.lower().endswith(OTHER) and file.name != "timestamp.txt"
        ]
    if leftovers:
        names = ", ".join(_shown(name) for name in leftovers[:3])
        submission.reason = f"{names} was handed in, not a notebook; hand in {assignment}.ipynb"
    return submission


def _shown(name: str) -> str:
    name = name.encode("utf-8", "replace").decode("utf-8")
    name = "".join(char if char.isprintable() else "?" for char in name)
    return name if len(name) <= 60 else name[:57] + "…"


def _checked(submission: Submission, base: Path) -> Submission:
    """Refuse what is not a plain file of the student's own: links elsewhere, devices, pipes."""
    path = submission.path
    assert path is not None
    try:
        if not path.resolve().is_relative_to(base.resolve()):
            submission.reason = f"{_shown(path.name)} is a link to a file outside the submission"
        elif not stat.S_ISREG(path.stat().st_mode):
            submission.reason = f"{_shown(path.name)} is not a file"
        elif not os.access(path, os.R_OK):
            submission.reason = f"{_shown(path.name)} may not be read; check its permissions"
    except OSError as error:
        submission.reason = f"{_shown(path.name)} cannot be opened ({error.strerror or error})"
    if submission.reason:
        submission.path = None
    return submission


def _timestamp(home: Path, notes: list[str]) -> str | None:
    """The time in nbgrader's timestamp.txt, if it is one that nbgrader can read."""
    from nbgrader.utils import parse_utc

    path = home / "timestamp.txt"
    if path.is_symlink() or not path.is_file():
        return None
    try:
        text = path.read_text(encoding="utf-8", errors="replace")[:200].strip()
        if text:
            parse_utc(text)
            return text
    except (OSError, ValueError, OverflowError, TypeError, AttributeError):
        notes.append("timestamp.txt holds no time, so that lateness could not be judged")
    return None


# ---------------------------------------------------------------------------------------------
# Marks


def grader_hash(chapter: str) -> str:
    """What the marks depend on besides the submission: graders, reference, machinery, versions."""
    digest = hashlib.sha256()
    files = [
        paths.GRADERS / f"test_{chapter}.py",
        *sorted(set(paths.GRADERS.glob("*.py")) - set(paths.GRADERS.glob("test_*.py"))),
        paths.SOLUTIONS / f"{chapter}.py",
        paths.PACKAGE / "misconceptions" / f"{chapter}.py",
        paths.EXERCISES / chapter / "assignment.json",
        *sorted(paths.PACKAGE.glob("*.py")),
    ]
    for file in files:
        digest.update(file.name.encode())
        if file.is_file():
            digest.update(file.read_bytes())
    versions = [importlib.metadata.version(name) for name in ("torch", "numpy", "pytest")]
    digest.update(repr((versions, sys.version_info[:2], platform.machine())).encode())
    return digest.hexdigest()[:16]


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


def empty_result(
    assignment: Assignment, student: str, status: str, reason: str
) -> SubmissionResult:
    """A result of 0 points with one reason for everything."""
    exercises = {
        exercise.name: ExerciseResult(exercise.name, 0.0, exercise.points, message=reason)
        for exercise in assignment.exercises
    }
    return SubmissionResult(student, status, 0.0, assignment.points, exercises=exercises)


class Marker:
    """Grades notebooks one after the other, with one sandbox and one set of graders.

    Args:
        chapter: the assignment.
        seed: of the inputs that the graders draw.
        unsafe: run student code without a sandbox.
        limits: what one submission may use.
        cache: a folder for results of code that was graded before; None for none.
        hide: folders that student code must not see.

    Sandbox and graders start with the first notebook that has to be run. `mark` then raises
    SandboxUnavailable when there is no sandbox and `unsafe` is not set.
    """

    def __init__(
        self,
        chapter: str,
        *,
        seed: int = 0,
        unsafe: bool = False,
        limits: Limits | None = None,
        cache: Path | None = None,
        hide: Iterable[Path] = (),
        graders: Graders | None = None,
    ) -> None:
        self.assignment = graders.assignment if graders is not None else load(chapter)
        self.chapter = chapter
        self.seed = seed
        self.unsafe = unsafe
        self.limits = limits
        self.cache = cache
        self.hide = tuple(hide)
        self.grader = grader_hash(chapter)
        self._graders = graders
        self._sandbox: Sandbox | None = None

    def __enter__(self) -> Marker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Import PyTorch, collect the graders, start the sandbox."""
        from autograder.runner import Graders
        from autograder.sandbox import Sandbox

        if self._sandbox is None:
            sandbox = Sandbox(self.limits, unsafe=self.unsafe, hide=self.hide)
            sandbox.start()
            self._sandbox = sandbox
        if self._graders is None:
            self._graders = Graders(self.chapter)

    def close(self) -> None:
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None

    def mark(self, student: str, mended: RepairedNotebook) -> SubmissionResult:
        """The result of one repaired notebook. Whatever the student's code does, there is one."""
        began = time.monotonic()
        if mended.status == "unreadable":
            reason = f"Nothing could be graded: {mended.reason}."
            result = empty_result(self.assignment, student, "unreadable", reason)
        else:
            result = self._cached(mended.nb) or self._run(mended.nb)
            result.student = student
            if mended.repairs and result.status == "graded":
                result.status = "repaired"
        result.repairs = [*mended.repairs, *result.repairs]
        result.seconds = round(time.monotonic() - began, 3)
        return result

    def _key(self, nb: NotebookNode) -> str:
        cells = [(cell.id, cell.source) for cell in cells_of(nb)]
        state = [cells, self.seed, self.grader, asdict(self.limits) if self.limits else None]
        return hashlib.sha256(json.dumps(state).encode()).hexdigest()

    def _cached(self, nb: NotebookNode) -> SubmissionResult | None:
        if self.cache is None:
            return None
        try:
            text = (self.cache / f"{self._key(nb)}.json").read_text(encoding="utf-8")
            return SubmissionResult.from_dict(json.loads(text))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _run(self, nb: NotebookNode) -> SubmissionResult:
        from autograder.innocent import innocent

        self.start()
        assert self._sandbox is not None
        seen: set[str] = set()
        cells = cells_of(nb)
        forbids = [name for exercise in self.assignment.exercises for name in exercise.forbids]
        watched = not innocent([cell.source for cell in cells], forbids)
        with self._sandbox.session(cells, self.limits, watched=watched) as session:

            def ask(*question: Any) -> Answer:
                answer = session.ask(*question)
                seen.add(answer.kind)
                return answer

            reports = session.load()
            seen |= {report.status for report in reports}
            sources = [cell.source for cell in cells]
            exercises, notes = self._judge(ask, sources)
        result = SubmissionResult(
            "",
            status=(
                "timed_out"
                if "timeout" in seen
                else "crashed"
                if seen & {"crash", "memory"}
                else "graded"
            ),
            score=round(sum(exercise.points for exercise in exercises.values()), 6),
            max_score=self.assignment.points,
            exercises=exercises,
            notes=notes,
        )
        for report in reports:
            said = report.printed[:MAX_PRINTED]
            if report.error and report.status != "ok":
                said = f"{said.rstrip()}\n{report.error}".lstrip()
            if said.strip():
                # Printed text can hold what no file can: lone surrogates.
                result.printed[report.cell.id] = said.encode("utf-8", "replace").decode("utf-8")
        # What depends on the machine's load or memory is tried afresh another time.
        if self.cache is not None and result.status == "graded" and not notes:
            self.cache.mkdir(parents=True, exist_ok=True)
            path = self.cache / f"{self._key(nb)}.json"
            scratch = path.with_suffix(f".{os.getpid()}.part")
            scratch.write_text(json.dumps(result.to_dict()), encoding="utf-8")
            scratch.replace(path)
        return result

    def _judge(
        self, ask: Callable[..., Answer], sources: Sequence[str]
    ) -> tuple[dict[str, ExerciseResult], list[str]]:
        """All exercises; where a grader itself fails, all the others."""
        from autograder.sandbox import SandboxUnavailable, request_frame

        assert self._graders is not None

        def execute(request: dict[str, Any]) -> dict[str, Any]:
            return ask(request, request_frame(request)).outcome

        try:
            return self._graders.run(execute, ask=ask, seed=self.seed, sources=sources), []
        except (KeyboardInterrupt, SandboxUnavailable):
            raise
        except Exception:
            exercises, notes = {}, []
            for exercise in self.assignment.exercises:
                name = exercise.name
                try:
                    exercises |= self._graders.run(
                        execute, ask=ask, seed=self.seed, exercises=[name], sources=sources
                    )
                except (KeyboardInterrupt, SandboxUnavailable):
                    raise
                except Exception as error:
                    reason = f"{type(error).__name__}: {error}".splitlines()[0][:300]
                    notes.append(f"{UNJUDGED} {name}: the grader failed ({reason})")
                    message = "The grader failed on this; your instructor has been told."
                    exercises[name] = ExerciseResult(name, 0.0, exercise.points, message=message)
            return exercises, notes


UNJUDGED = "could not judge"


@functools.cache
def shared_marker(chapter: str, *, seed: int, unsafe: bool) -> Marker:
    """The marker of this process, for nbgrader's own autograde; ends with the process."""
    marker = Marker(chapter, seed=seed, unsafe=unsafe)
    atexit.register(marker.close)
    return marker


# ---------------------------------------------------------------------------------------------
# One submission in one of several processes


@dataclass
class Graded:
    """A result and the notebook that nbgrader will keep."""

    result: SubmissionResult
    notebook: str


def grade_one(marker: Marker, submission: Submission, release: NotebookNode) -> Graded:
    """Repair and mark one submission. Raises only SandboxUnavailable."""
    from autograder.sandbox import SandboxUnavailable

    assignment = marker.assignment
    nb = repair.blank(release)
    try:
        if submission.reason:
            mended = RepairedNotebook(nb, [], "unreadable", submission.reason)
        elif submission.path is None:
            mended = None
        else:
            mended = repair.repair_file(submission.path, assignment, release)
            mended.repairs[:0] = submission.repairs
        if mended is None:
            result = empty_result(
                assignment, submission.student, "missing", "No notebook was handed in."
            )
        else:
            nb = mended.nb
            result = marker.mark(submission.student, mended)
    except SandboxUnavailable:
        raise
    except Exception as error:  # No submission may end the batch.
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        result = empty_result(
            assignment, submission.student, "crashed", "This submission could not be graded."
        )
        result.notes.append(f"{UNJUDGED} the submission ({reason})")
    result.notes[:0] = submission.notes
    own = {cell.get("id") for cell in release.cells}
    nb.metadata["transformers_by_hand"] = {
        "own": [cell.id for cell in nb.cells if cell.id not in own],
        "reason": mended.reason if mended is not None else "",
    }
    return Graded(result, notebooks.writes(nb))


_worker: tuple[Marker, NotebookNode] | None = None


def _start_worker(options: dict[str, Any], release: str) -> None:
    """Begin a process of the pool."""
    global _worker
    startup.collect_seldom()
    marker = Marker(**options)
    atexit.register(marker.close)
    _worker = (marker, nbformat.reads(release, as_version=4))


def _work(submission: Submission) -> tuple[dict[str, Any], str]:
    assert _worker is not None
    graded = grade_one(_worker[0], submission, _worker[1])
    return graded.result.to_dict(), graded.notebook


def _grade_all(
    submissions: Sequence[Submission], options: dict[str, Any], release: NotebookNode, jobs: int
) -> Iterator[tuple[Submission, Graded]]:
    """Each submission with its result, as they are finished."""
    if jobs <= 1 or len(submissions) == 1:
        with Marker(**options) as marker:
            for submission in submissions:
                yield submission, grade_one(marker, submission, release)
        return
    text = nbformat.writes(release)
    left = list(submissions)
    alone = False
    while left:
        # A process that dies takes the others of its pool along: go on with those unfinished,
        # one by one, so that whoever ends the process is found.
        size = 1 if alone else min(jobs, len(left))
        pool = ProcessPoolExecutor(
            size,
            mp_context=get_context("spawn"),
            initializer=_start_worker,
            initargs=(options, text),
        )
        try:
            if alone:
                submission = left[0]
                try:
                    data, notebook = pool.submit(_work, submission).result()
                    graded = Graded(SubmissionResult.from_dict(data), notebook)
                except BrokenProcessPool:
                    graded = _lost(submission, options["chapter"], release)
                left.remove(submission)
                alone = False
                yield submission, graded
                continue
            waiting: dict[Future, Submission] = {pool.submit(_work, one): one for one in left}
            while waiting:
                done, _ = wait(waiting, return_when=FIRST_COMPLETED)
                for future in done:
                    submission = waiting.pop(future)
                    try:
                        data, notebook = future.result()
                    except BrokenProcessPool:
                        alone = True
                        continue
                    left.remove(submission)
                    yield submission, Graded(SubmissionResult.from_dict(data), notebook)
        finally:
            pool.shutdown(cancel_futures=True)


def _lost(submission: Submission, chapter: str, release: NotebookNode) -> Graded:
    result = empty_result(
        load(chapter), submission.student, "crashed", "This submission could not be graded."
    )
    result.notes = [*submission.notes, f"{UNJUDGED} the submission (the grading process ended)"]
    return Graded(result, nbformat.writes(repair.blank(release)))


# ---------------------------------------------------------------------------------------------
# nbgrader's books


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
        """nbgrader's own CSV export."""
        from nbgrader.plugins.export import CsvExportPlugin

        plugin = CsvExportPlugin()
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


UNRECORDED = "nbgrader could not record the marks"


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


# ---------------------------------------------------------------------------------------------
# The whole class


@dataclass
class Class:
    """A graded class: what `grade` returns and the report shows."""

    assignment: Assignment
    course: Path
    seed: int
    grader: str
    results: list[SubmissionResult]
    seconds_grading: float = 0.0
    seconds_books: float = 0.0

    @property
    def folder(self) -> Path:
        return self.course / "graded" / self.assignment.chapter

    @property
    def complete(self) -> bool:
        """Every submission has a result, and nbgrader knows it."""
        told = (UNJUDGED, UNRECORDED)
        return not any(note.startswith(told) for one in self.results for note in one.notes)

    def write(self) -> None:
        """Write results.json, and details.json with messages and purposes for the report."""
        self.folder.mkdir(parents=True, exist_ok=True)
        head = {"assignment": self.assignment.chapter, "seed": self.seed, "grader": self.grader}
        for name, submissions in (
            ("results.json", [result.to_json() for result in self.results]),
            ("details.json", [result.to_dict() for result in self.results]),
        ):
            text = json.dumps({**head, "submissions": submissions}, indent=1, ensure_ascii=False)
            text = text.encode("utf-8", "replace").decode("utf-8")
            (self.folder / name).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def read(cls, course: Path, chapter: str) -> Class:
        """A class that was graded before."""
        path = course / "graded" / chapter / "details.json"
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            results = [SubmissionResult.from_dict(item) for item in data["submissions"]]
            return cls(load(chapter), course, data["seed"], data["grader"], results)
        except FileNotFoundError as error:
            raise ClassroomError(
                f"{chapter} has not been graded in {course}; "
                f"run python -m autograder grade {chapter} --submitted DIR first."
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            raise ClassroomError(f"{path} is damaged; grade the class again.") from error


def usable_cores() -> int:
    """Processor cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


@startup.collecting_seldom()
def grade(
    assignment: Assignment | str,
    submitted: Path,
    course: Path = paths.BUILD / "course",
    *,
    roster: Sequence[Person] = (),
    due: str | None = None,
    jobs: int = 1,
    seed: int | None = None,
    unsafe: bool = False,
    limits: Limits | None = None,
    cache: bool = True,
    progress: Callable[[str, int, int], None] | None = None,
) -> Class:
    """Grade everybody and keep nbgrader's books.

    Args:
        assignment: the assignment or its chapter.
        submitted: the folder of submissions; it is only read.
        course: the nbgrader course to fill.
        roster: the class list; whoever is on it without a notebook is "missing".
        due: when the work was due, such as "2030-01-31 18:00:00 UTC"; kept in the gradebook.
        jobs: how many submissions to run at a time, each in a process of its own.
        seed: of the graders' inputs; the course's own if not given.
        unsafe: run student code without a sandbox.
        limits: what one submission may use.
        cache: take over the results of code that was graded before in this course.
        progress: told the stage ("grading", "books"), how many are done, and how many there are.

    Raises:
        ClassroomError: there is nothing to grade, or no course to grade it in.
        SandboxUnavailable: there is no sandbox and `unsafe` is not set.
    """
    assignment = load(assignment) if isinstance(assignment, str) else assignment
    chapter = assignment.chapter
    course = course.resolve()
    submissions = collect(submitted, chapter, roster)
    release = prepare(course, chapter)
    step = "submitted"
    if submitted.resolve() == course / step or (course / step) in submitted.resolve().parents:
        step = "repaired"  # Never touch what was handed in, even in the course's own folder.
    seed = course_seed(course) if seed is None else seed
    options = {
        "chapter": chapter,
        "seed": seed,
        "unsafe": unsafe,
        "limits": limits,
        "cache": course / "cache" / chapter if cache else None,
        "hide": (submitted.resolve(), course),
    }
    tell = progress or (lambda stage, done, total: None)
    done: dict[str, tuple[Submission, Graded]] = {}
    began = time.monotonic()
    tell("grading", 0, len(submissions))
    for submission, graded in _grade_all(submissions, options, release, jobs):
        done[submission.student] = (submission, graded)
        tell("grading", len(done), len(submissions))
    middle = time.monotonic()
    books = Books(course, chapter, step)
    tell("books", 0, len(submissions))
    results = []
    with books.kept_open():
        if due is not None:
            books.due(due)
        books.enter([*(Person(one.student) for one in submissions), *roster])
        for count, one in enumerate(submissions, 1):
            submission, graded = done[one.student]
            books.record(submission, graded, release)
            if books.feedback(one.student) is None:
                graded.result.notes.append(f"{UNRECORDED}: no feedback page could be written")
            results.append(graded.result)
            tell("books", count, len(submissions))
    books.note_lateness(results)
    graded_class = Class(
        assignment,
        course,
        seed,
        grader_hash(chapter),
        results,
        middle - began,
        time.monotonic() - middle,
    )
    graded_class.write()
    books.export(graded_class.folder / "nbgrader.csv")
    return graded_class


@contextmanager
def showing_progress(quiet: bool = False) -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar on stderr that counts submissions."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    words = {
        "grading": "Running and grading",
        "books": "Gradebook and feedback",
        "feedback": "Feedback",
    }
    columns = (TextColumn("{task.description:<22}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, TimeElapsedColumn(), console=Console(stderr=True), disable=quiet
    ) as bar:
        tasks: dict[str, Any] = {}

        def tell(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(words.get(stage, stage), total=total)
            bar.update(tasks[stage], completed=done)

        yield tell
