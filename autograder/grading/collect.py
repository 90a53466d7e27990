"""What was handed in: finds everybody's notebook in a folder that is only ever read."""

from __future__ import annotations

import csv
import difflib
import functools
import hashlib
import io
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autograder.common import paths
from autograder.common.errors import ClassroomError

CHECKPOINTS = ".ipynb_checkpoints"
# What systems, editors and version control put beside people's work; no student is called so.
SYSTEM = re.compile(
    r"""\.(?: git.* | svn | hg | DS_Store | ipynb_checkpoints | Trash.* | Trashes | Spotlight-V100
        | fseventsd | TemporaryItems | localized | directory | dropbox.* | sync.* | nfs.*
        | fuse_hidden.* | venv | env | cache | config | local | jupyter | ipython | conda | npm
        | virtual_documents | idea | vscode | mypy_cache | pytest_cache | ruff_cache | nbgrader.*
        | grading\.lock | [_~\#].* )
    | __(?: MACOSX | pycache__ | init__\.py | main__\.py )""",
    re.VERBOSE | re.IGNORECASE,
)
ATTEMPT = re.compile(r"attempt[-_ ]?([0-9]+)", re.IGNORECASE)
MOST_ATTEMPTS = 9999
# Names under which browsers and mail programs save a notebook.
NEARLY = (".ipynb.txt", ".ipynb.json", ".json", ".ipynb.bak", ".ipynb~")
# Of a file, outputs included, which take next to nothing of the memory that reads them: the rest is
# bounded by `repair.MAX_BYTES`.
MAX_FILE_BYTES = 256 << 20
OTHER = (".py", ".zip", ".html", ".htm", ".pdf", ".txt", ".doc", ".docx", ".rar", ".7z", ".md")


@dataclass
class Submission:
    """One student's file. `path` is None when nothing was handed in or nothing can be graded.

    A student with several attempts has as many submissions, which differ in `attempt`; `digest`
    is the SHA-256 of the file's bytes as they were handed in, empty without a file.
    """

    student: str
    path: Path | None = None
    reason: str = ""  # Why there is nothing to grade although something was handed in.
    repairs: list[str] = field(default_factory=list)
    timestamp: str | None = None
    notes: list[str] = field(default_factory=list)
    attempt: int = 1
    digest: str = ""

    @property
    def runnable(self) -> bool:
        """Whether there is a notebook whose code can be run."""
        return self.path is not None and not self.reason


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
    # A pattern's `*` does not match a dot at the beginning.
    return re.sub(r"\A(?:\.|\Z)", "_", name)


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


def named(name: str) -> frozenset[str]:
    """The units that the name of a file or folder speaks of; empty where it could be any unit's.

    `attention-scores (2)` names one unit, `model` all that are called so, `homework` none. A name
    may be spelt a little wrong, and who writes a unit's name in full means that unit. The notebook
    that puts a chapter together, `attention-mine`, is no unit's: it names itself.
    """
    return _named(_spaced(name))


def _spaced(name: str) -> str:
    return re.sub(r"[\W_]+", " ", name.lower()).strip()


def _in_words(name: str) -> str:
    return re.sub(r"[-_]", " ", name)


def _joined(name: str) -> str:
    """A pattern of a name's words, however they are joined."""
    return _in_words(name).replace(" ", " ?")


_FULL = {_in_words(name): name for name in (*paths.UNITS, *(f"{c}-mine" for c in paths.CHAPTERS))}
# Not within other words: `relative` is not `relatives`.
_FULLY = {unit: re.compile(rf"(?<![^\W\d_]){_joined(unit)}(?![^\W\d_])") for unit in _FULL.values()}
# A chapter, or what a unit is called within its chapter, if the name says no more than that.
_PARTLY = {
    unit: re.compile(rf"[ \d]*(?:{'|'.join(map(_joined, unit.split('-')))})[ \d]*")
    for unit in paths.UNITS
}
NEAR = 0.85  # of 1, for names that are spelt wrong


@functools.lru_cache(maxsize=4096)
def _named(words: str) -> frozenset[str]:
    full = frozenset(unit for unit, pattern in _FULLY.items() if pattern.search(words))
    partly = frozenset(unit for unit, pattern in _PARTLY.items() if pattern.fullmatch(words))
    if full or partly:
        return full or partly
    plain = " ".join(re.findall(r"(?:seq2seq|[^\W\d_])+", words))
    near = difflib.get_close_matches(plain, _FULL, n=1, cutoff=NEAR)
    return frozenset(_FULL[one] for one in near)


def _is_anothers(name: str, assignment: str) -> bool:
    """Whether a name speaks of other units than `assignment`."""
    return bool(named(name)) and assignment not in named(name)


def best_notebook(files: Sequence[Path], assignment: str) -> Path | None:
    """The file that is most likely the notebook of `assignment`; None if none can be.

    The exact name, else one that names the unit, else the only one, else the nearest name; never
    a notebook that names another unit.
    """
    files = [
        file
        for file in files
        if not _is_anothers(_stem(file), assignment) and CHECKPOINTS not in file.parts
    ]
    for file in files:
        if file.name == f"{assignment}.ipynb":
            return file

    def near(file: Path) -> tuple[Any, ...]:
        units = named(_stem(file))
        full = _in_words(assignment) in _spaced(_stem(file))
        ratio = 1 if units else difflib.SequenceMatcher(None, _stem(file), assignment).ratio()
        # Of equals the last copy: "attention-scores (10)" rather than "attention-scores (2)".
        last = file.suffix == ".ipynb", _natural(file.name), file.name
        return (bool(units), full, -len(units), ratio, *last)

    return max(files, key=near, default=None)


def _stem(file: Path) -> str:
    name = file.name.lower()
    for ending in (*NEARLY, ".ipynb"):
        if name.endswith(ending):
            return name[: -len(ending)]
    return name.rsplit(".", 1)[0]


def collect(
    submitted: Path,
    assignment: str,
    roster: Sequence[Person] = (),
    remarks: list[str] | None = None,
) -> list[Submission]:
    """Everybody on the class list or in `submitted`, sorted, with the file to grade.

    Understands DIR/<student>/<assignment>/<assignment>.ipynb as nbgrader has it,
    DIR/<student>/*.ipynb, and DIR/<student>.ipynb. Several attempts lie in DIR/<student>/attempt-1,
    attempt-2 and so on, each like a student's folder. Only reads, and changes nothing. What lies
    there and is nobody's work is named in `remarks`.
    """
    try:
        entries = sorted(submitted.iterdir())
    except OSError as error:
        raise ClassroomError(
            f"There is no folder of submissions at {submitted}; name it with --submitted."
        ) from error
    found: dict[tuple[str, int], Submission] = {}
    names: dict[str, str] = {}
    left_out: list[str] = []
    # Whose name can stay as it is comes first, and need not make room for one that cannot.
    for entry in sorted(entries, key=lambda entry: student_id(entry.name) != entry.name):
        if SYSTEM.fullmatch(entry.name):
            continue
        raw = _keep_case(entry) if _is_named_notebook(entry) else entry.name
        try:
            raw, submissions = _handed_in(entry, assignment)
        except Exception as error:  # Whatever one entry does, the others are graded.
            submissions = [Submission(student_id(raw), reason=_cannot_be_opened(error))]
        if not submissions:
            left_out.append(shown(raw))
            continue
        student = submissions[0].student
        while names.setdefault(student, raw) != raw:
            student += "-2"  # Two names that differ only in what nbgrader cannot hold.
        for submission in submissions:
            submission.student = student
            if student != raw:
                submission.notes.append(f"handed in under the name {shown(raw)}")
            earlier = found.get((student, submission.attempt))
            if earlier is None or (earlier.path is None and submission.path is not None):
                found[student, submission.attempt] = submission
            elif submission.path is not None:
                counts = shown(_relative(earlier.path, submitted), 200)
                earlier.notes.append(f"{shown(entry.name)} was handed in too; {counts} counts")
    if left_out and remarks is not None:
        left_out.sort()
        more = f" and {len(left_out) - 5} more" if len(left_out) > 5 else ""
        verb = "was" if len(left_out) == 1 else "were"
        remarks.append(
            f"{', '.join(left_out[:5])}{more} {verb} left out: no student's folder and no notebook "
            f"of {assignment}."
        )
    present = {submission.student for submission in found.values()}
    for person in roster:
        if person.id not in present:
            found.setdefault((person.id, 1), Submission(person.id))
    if not found:
        raise ClassroomError(
            f"{submitted} holds no submissions; put each at "
            f"STUDENT/{assignment}/{assignment}.ipynb or STUDENT.ipynb, or give a --roster."
        )
    return sorted(found.values(), key=lambda item: (_natural(item.student), item.attempt))


def _handed_in(entry: Path, assignment: str) -> tuple[str, list[Submission]]:
    """Whose one entry of the folder of submissions is, and what it holds: nothing if nobody's."""
    name = entry.name
    if (name if entry.is_dir() else _keep_case(entry)) in {*paths.UNITS} - {assignment}:
        return name, []  # Somebody's folder of units was named as the folder of submissions.
    if entry.is_dir():
        submissions = _attempts(entry, assignment)
        someones = not _is_hidden(entry) or any(one.path or one.reason for one in submissions)
        return name, submissions if someones else []
    if _is_named_notebook(entry):
        name = _keep_case(entry)
        return name, [_checked(Submission(student_id(name), entry), entry.parent)]
    if entry.is_symlink() and not entry.exists():
        reason = f"{shown(name)} is a link that leads nowhere"
        return name, [Submission(student_id(name), reason=reason)]
    return name, []


def _is_named_notebook(path: Path) -> bool:
    return path.name.lower().endswith((".ipynb", *NEARLY))


def _is_hidden(path: Path) -> bool:
    """Whether a name is one that students rarely give to what they hand in."""
    return path.name.startswith((".", "__"))


def too_large(size: int) -> str:
    """Why a file of that many bytes is not read."""
    return (
        f"the file has {size >> 20} MB, more than the {MAX_FILE_BYTES >> 20} MB that are read; "
        "clear its outputs and hand it in again"
    )


def _cannot_be_opened(error: Exception, what: str = "the submission") -> str:
    why = error.strerror if isinstance(error, OSError) else str(error) or type(error).__name__
    return f"{what} cannot be opened ({shown(why or error, 200)})"


def _attempts(folder: Path, assignment: str) -> list[Submission]:
    """A student's attempts, which may be one: those that hold something for the assignment.

    A notebook beside the folders of the attempts is the first attempt, if no folder is.
    """
    if folder.is_symlink():
        return [_in_folder(folder, assignment)]
    student = student_id(folder.name)
    notes: list[str] = []
    attempts: dict[int, Submission] = {}
    places = [folder, folder / assignment]
    for child in sorted(
        child
        for place in places
        if place.is_dir() and (place == folder or not place.is_symlink())
        for child in place.iterdir()
        if ATTEMPT.fullmatch(child.name.strip()) and child.is_dir()
    ):
        number = int(ATTEMPT.fullmatch(child.name.strip())[1][:18])  # type: ignore[index]
        if not 1 <= number <= MOST_ATTEMPTS:
            notes.append(f"{shown(child.name)} was not graded; number the attempts from 1")
            continue
        try:
            submission = _in_folder(child, assignment)
        except Exception as error:  # The other attempts are graded.
            submission = Submission(student, reason=_cannot_be_opened(error))
        if submission.path is None and not submission.reason:
            continue  # Its attempt at another unit.
        if number in attempts:
            notes.append(f"{shown(child.name)} was not graded; there is another attempt {number}")
            continue
        submission.student, submission.attempt = student, number
        attempts[number] = submission
    beside = _in_folder(folder, assignment)
    if not attempts:
        beside.notes += notes
        return [beside]
    if beside.path is not None:
        if 1 not in attempts:
            attempts[1] = beside
        else:
            name = shown(beside.path.name)
            notes.append(f"{name} beside the folders of the attempts was not graded")
    for submission in attempts.values():
        submission.notes += notes
    return [attempts[number] for number in sorted(attempts)]


def _keep_case(file: Path) -> str:
    return file.name[: len(_stem(file))]


def _natural(name: str) -> list[str | int]:
    """s2 before s10."""
    parts = re.split(r"([0-9]{1,18})", name)
    return [int(part) if place % 2 else part.lower() for place, part in enumerate(parts)]


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
        for child in sorted(folder.iterdir(), key=lambda child: (_is_hidden(child), child))
        if child.is_dir()
        and not child.is_symlink()
        and not SYSTEM.fullmatch(child.name)
        and not ATTEMPT.fullmatch(child.name.strip())
    ]
    homes = [child for child in inner if child.name == assignment]
    homes += [child for child in inner if child not in homes and named(child.name) == {assignment}]
    theirs = {folder, *homes}  # Whatever notebook is in one of them can be the one.
    homes.append(folder)
    homes += [
        child for child in inner if child not in homes and not _is_anothers(child.name, assignment)
    ]
    for home in homes:
        submission.timestamp = submission.timestamp or _timestamp(home, submission.notes)
    leftovers: list[str] = []
    # What is hidden counts where there is nothing else.
    for home, hidden in [*((home, False) for home in homes), *((home, True) for home in homes)]:
        if not hidden and home != folder and _is_hidden(home):
            continue
        files = [
            child
            for child in sorted(home.iterdir())
            if not SYSTEM.fullmatch(child.name) and (hidden or not _is_hidden(child))
        ]
        notebooks = [file for file in files if _is_named_notebook(file) and not file.is_dir()]
        best = best_notebook(notebooks, assignment)
        if best is not None and home not in theirs and assignment not in named(_stem(best)):
            continue  # Some other folder of theirs, with some other notebook.
        if best is not None:
            submission.path = best
            if best.name != f"{assignment}.ipynb":
                submission.repairs.append(f"renamed {shown(best.name)} to {assignment}.ipynb")
            if len(notebooks) > 1:
                count = len(notebooks)
                submission.notes.append(f"{shown(best.name)} was taken of {count} notebooks")
            return _checked(submission, folder)
        if hidden:
            leftovers += [
                file.name
                for file in files
                if file.name.lower().endswith(OTHER) and file.name != "timestamp.txt"
            ]
    if leftovers and not _is_hidden(folder):
        names = ", ".join(shown(name) for name in leftovers[:3])
        submission.reason = f"{names} was handed in, not a notebook; hand in {assignment}.ipynb"
    return submission


def shown(name: object, limit: int = 60) -> str:
    """A name that is safe to print, at most `limit` characters of it."""
    text = str(name).encode("utf-8", "replace").decode("utf-8")
    text = "".join(char if char.isprintable() else "?" for char in text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _checked(submission: Submission, base: Path) -> Submission:
    """The submission with its file's digest.

    Refused is what is no plain file of the student's own: links elsewhere, devices, pipes.
    """
    path = submission.path
    assert path is not None
    try:
        status = path.stat()  # First: `resolve` has no OSError for a link to itself.
        if not path.resolve().is_relative_to(base.resolve()):
            submission.reason = f"{shown(path.name)} is a link to a file outside the submission"
        elif not stat.S_ISREG(status.st_mode):
            submission.reason = f"{shown(path.name)} is not a file"
        elif not os.access(path, os.R_OK):
            submission.reason = f"{shown(path.name)} may not be read; check its permissions"
        elif status.st_size > MAX_FILE_BYTES:
            submission.reason = too_large(status.st_size)
        else:
            with path.open("rb") as file:
                submission.digest = hashlib.file_digest(file, "sha256").hexdigest()
    except Exception as error:  # Whatever it is, it is this submission's own.
        submission.reason = _cannot_be_opened(error, shown(path.name))
    if submission.reason:
        submission.path = None
    return submission


def _timestamp(home: Path, notes: list[str]) -> str | None:
    """The time in nbgrader's timestamp.txt, if it is one that nbgrader can read."""
    path = home / "timestamp.txt"
    if path.is_symlink() or not path.is_file():
        return None
    try:
        text = path.read_text(encoding="utf-8", errors="replace")[:200].strip()
        if text:
            from nbgrader.utils import parse_utc

            parse_utc(text)
            return text
    except (OSError, ValueError, OverflowError, TypeError, AttributeError):
        notes.append("timestamp.txt holds no time, so that lateness could not be judged")
    return None
