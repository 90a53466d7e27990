"""What the tools have in common: who handed in what, under which ids, and where it goes."""

from __future__ import annotations

import csv
import datetime
import hashlib
import io
import re
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from autograder.common import escaping
from autograder.common.errors import ClassroomError
from autograder.common.files import replacing
from autograder.grading.collect import NEARLY, best_notebook, student_id
from autograder.lms.archive import READING, Archive, Entry, shown
from autograder.lms.table import Table

# What a row of any list may tell about a person; the first known heading counts. `login`, `sid`
# and `email` mean the same everywhere, the others belong to one tool.
FIELDS = ("canvas_id", "moodle_id", "gradescope_id", "github_login", "login", "sid", "email")
OWN = ("student", "student_id", "username", "user", "login", "id")
TEST_STUDENT = "Student, Test"  # whom Canvas puts into every course
# Ids by which a class list of one's own may call its students.
PERSONAL = ("login", "sid", "email", "github_login", "roster_identifier")


@dataclass
class Attempt:
    """One time that somebody handed in: the files under the names that the student gave them."""

    files: list[tuple[str, Entry]] = field(default_factory=list)
    timestamp: str | None = None
    order: tuple[int | str, ...] = ()


@dataclass
class Handed:
    """One person's submission. `ids` are fields of a row of the roster, the tool's own first."""

    ids: dict[str, str]
    suggested: str
    name: str = ""
    attempts: list[Attempt] = field(default_factory=list)


@dataclass
class Found:
    """What an export was understood to hold."""

    handed: list[Handed] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


@dataclass
class Member:
    """A row of a class list, of ours or of a tool."""

    student: str
    name: str = ""
    first_name: str = ""
    last_name: str = ""
    ids: dict[str, str] = field(default_factory=dict)
    timestamp: str = ""


class People:
    """A class list, to find people by any id that it knows."""

    def __init__(self, members: Iterable[Member] = ()) -> None:
        self.members = list(members)
        self._index: dict[tuple[str, str], Member | None] = {}
        self._names: dict[str, Member | None] = {}
        for member in self.members:
            self._enter(member)

    def _enter(self, member: Member) -> None:
        keys = {(kind, value.casefold()) for kind, value in member.ids.items() if value}
        keys |= {(kind, member.student.casefold()) for kind in PERSONAL}
        for key in keys:
            # An id that two people share finds neither of them.
            known = self._index.setdefault(key, member)
            self._index[key] = member if known is member else None
        name = _name(member.name or f"{member.first_name} {member.last_name}")
        if name:
            known = self._names.setdefault(name, member)
            self._names[name] = member if known is member else None

    def find(self, ids: dict[str, str], name: str = "") -> Member | None:
        """The member with one of the ids, the first that is known; else with that full name."""
        for kind, value in ids.items():
            member = self._index.get((kind, value.strip().casefold())) if value.strip() else None
            if member is not None:
                return member
        return self._names.get(_name(name)) if name.strip() else None

    @classmethod
    def read(cls, path: Path) -> People:
        """Any list with headings: Canvas's gradebook, Moodle's worksheet, Gradescope's or GitHub
        Classroom's roster or grades, what `import` wrote, or one's own with a column `student`."""
        table = Table.read(path, "class list")
        head = [cell.strip().lower().replace(" ", "_") for cell in table.head]
        members = []
        for row in table.rows[1:]:
            cells = {
                name: escaping.plain(row[place].strip())
                for place, name in reversed(list(enumerate(head)))
                if place < len(row)
            }
            member = _member(cells)
            if member is not None:
                members.append(member)
        if not members:
            raise ClassroomError(
                f"The class list {path} names nobody; give it a column `student`, or name a list "
                "that Canvas, Moodle, Gradescope or GitHub Classroom exported."
            )
        return cls(members)


def _name(name: str) -> str:
    """A full name for comparison: "Lovelace, Ada" is "Ada Lovelace"."""
    last, comma, first = name.partition(",")
    return " ".join(f"{first} {last}".split() if comma else name.split()).casefold()


def _member(cells: dict[str, str]) -> Member | None:
    def first(*names: str) -> str:
        return next((cells[name] for name in names if cells.get(name)), "")

    ids = {kind: cells[kind] for kind in FIELDS if cells.get(kind)}
    own = ""
    if "sis_login_id" in cells or ("section" in cells and "student" in cells):  # Canvas
        if not cells.get("id", "").isdecimal():
            return None  # the row of possible points
        if cells.get("student") == TEST_STUDENT:
            return None
        ids |= {"canvas_id": cells["id"], "login": cells.get("sis_login_id", "")}
        ids["sid"] = cells.get("sis_user_id", "")
        name = cells.get("student", "") or f"{cells.get('firstname')} {cells.get('lastname')}"
    elif "github_username" in cells:  # GitHub Classroom: roster or grades
        ids |= {"github_login": cells["github_username"]}
        ids["roster_identifier"] = first("roster_identifier", "identifier")
        name = cells.get("name", "")
    elif "identifier" in cells:  # Moodle
        number = re.search(r"(\d+)$", cells["identifier"])
        ids |= {"moodle_id": number[1]} if number else {}
        ids |= {"sid": cells.get("id_number", ""), "email": first("email_address", "email")}
        name = cells.get("full_name", "")
    else:
        ids |= {"email": first("email", "email_address"), "sid": cells.get("sid", "")}
        name = first("name", "full_name")
        known = any(key in cells for key in ("sid", "submission_id", "role"))  # Gradescope
        own = first(*OWN) if any(key in cells for key in OWN) or not known else ""
    ids = {kind: value for kind, value in ids.items() if value}
    order = ("roster_identifier", "login", "sid", "email", "github_login", "canvas_id", "moodle_id")
    student = own or next((ids[kind] for kind in order if kind in ids), "")
    if not student:
        return None
    return Member(
        safe_student(student),
        name,
        cells.get("first_name", ""),
        cells.get("last_name", ""),
        ids,
        cells.get("submission_timestamp", ""),
    )


def safe_student(name: str) -> str:
    """A name for folders and gradebook that no spreadsheet takes for a formula."""
    name = student_id(name)
    return re.sub(r"^[\s=+@.'-]+", "_", name)[:120]


def utc(text: str) -> str | None:
    """A time as nbgrader keeps it; None if it is none."""
    from dateutil.parser import parse

    try:
        when = parse(text.strip())
        # A time without zone is UTC, as nbgrader takes it.
        when = when.astimezone(datetime.UTC) if when.tzinfo else when
    except (ValueError, OverflowError, TypeError, AttributeError):
        return None
    return f"{when:%Y-%m-%d %H:%M:%S.%f} UTC"


# ---------------------------------------------------------------------------------------------
# Placing


@dataclass
class Placed:
    """What `place` did."""

    students: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    roster: Path | None = None


def place(
    found: Found, assignment: str, to: Path, people: People, columns: Iterable[str]
) -> Placed:
    """Write DIR/STUDENT/ASSIGNMENT/ASSIGNMENT.ipynb for everybody, and the roster beside DIR.

    Nothing that exists is changed: what is there with other bytes is a problem, told by name.
    """
    placed = Placed(problems=list(found.problems), remarks=list(found.remarks))
    members: dict[str, Member] = {}
    for handed in found.handed:
        known = people.find(handed.ids, handed.name)
        if people.members and known is None:
            placed.remarks.append(
                f"{shown(handed.name or handed.suggested)} is not on the class list."
            )
        student = known.student if known else safe_student(handed.suggested)
        if student in members:
            own = next(iter(handed.ids.values()), "2")
            placed.problems.append(
                f"{shown(student)} handed in twice under two ids; the second is "
                f"{shown(student)}-{shown(own)}."
            )
            student = safe_student(f"{student}-{own}")
        member = Member(student, handed.name, ids=dict(handed.ids))
        if known:
            member.first_name, member.last_name = known.first_name, known.last_name
            member.name = known.name or handed.name
            member.ids = {**known.ids, **handed.ids}
        members[student] = member
        if _place_one(handed, student, assignment, to, placed):
            placed.students.append(student)
    for member in people.members:
        members.setdefault(member.student, member)
    placed.roster = _write_roster(to, members.values(), columns, placed)
    return placed


def _place_one(handed: Handed, student: str, assignment: str, to: Path, placed: Placed) -> bool:
    """Write one student's folder as a whole, or not at all."""
    to.mkdir(parents=True, exist_ok=True)
    attempts = sorted(handed.attempts, key=lambda attempt: attempt.order)
    with tempfile.TemporaryDirectory(prefix=".import-", dir=to) as scratch:
        ready = Path(scratch) / "student"
        for number, attempt in enumerate(attempts, 1):
            folder = ready / f"attempt-{number}" if len(attempts) > 1 else ready
            _write_attempt(attempt, folder / assignment, student, assignment, placed)
        target = to / student
        new = _contents(ready)
        if not new:
            return False
        if target.is_symlink() or target.exists():
            if not target.is_symlink() and _contents(target) == new:
                return True
            placed.problems.append(
                f"{shown(student)} has another submission in {to} already, which stays; import "
                "into a new folder."
            )
            return False
        ready.rename(target)
    return True


def _write_attempt(
    attempt: Attempt, folder: Path, student: str, assignment: str, placed: Placed
) -> None:
    names = [Path(name) for name, _ in attempt.files if name.lower().endswith((".ipynb", *NEARLY))]
    best = best_notebook(names, assignment)
    count = 0
    for name, entry in sorted(attempt.files, key=lambda item: Path(item[0]) != best):
        if best is not None and Path(name) == best and not count:
            target = folder / f"{assignment}.ipynb"
            count += 1
        else:
            target = folder / student_id(name)
        place = 2
        while target.exists():
            target = folder / f"{Path(name).stem}-{place}{Path(name).suffix}"
            place += 1
        folder.mkdir(parents=True, exist_ok=True)
        try:
            entry.write(target)
        except READING as error:
            why = str(error) or type(error).__name__
            placed.problems.append(f"{shown(entry.path)} cannot be read ({shown(why)}).")
    if not count:
        files = ", ".join(shown(name) for name, _ in attempt.files[:3])
        placed.remarks.append(f"{shown(student)} handed in no notebook ({files or 'nothing'}).")
    elif len(names) > 1:
        placed.remarks.append(
            f"{shown(student)}: {shown(best)} was taken of {len(names)} notebooks."
        )
    if attempt.timestamp and folder.is_dir():
        (folder / "timestamp.txt").write_text(attempt.timestamp + "\n", encoding="utf-8")


def _contents(folder: Path) -> dict[str, str]:
    """The files below a folder, and the hash of each."""
    return {
        file.relative_to(folder).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file() and not file.is_symlink()
    }


def _write_roster(
    to: Path, members: Iterable[Member], columns: Iterable[str], placed: Placed
) -> Path:
    """Add to DIR/../roster.csv whoever is not in it; rows that are there stay."""
    path = to.parent / "roster.csv"
    head = ["student", "first_name", "last_name", "name", "email", *columns]
    rows: list[dict[str, str]] = []
    if path.exists():
        table = Table.read(path, "roster")
        if "student" not in table.head:
            placed.problems.append(
                f"{path} is no roster of ours and stays as it is; see roster-import.csv beside it."
            )
            path = path.with_name("roster-import.csv")
        else:
            head = list(dict.fromkeys([*table.head, *head]))
            rows = [dict(zip(table.head, row, strict=False)) for row in table.rows[1:]]
    known = {row.get("student", ""): row for row in rows}
    for member in members:
        row = {key: getattr(member, key) for key in ("student", "first_name", "last_name", "name")}
        row |= member.ids
        cells = {
            key: str(escaping.cell(value)) for key, value in row.items() if key in head and value
        }
        if member.student in known:
            for key, value in cells.items():
                known[member.student][key] = known[member.student].get(key) or value
        else:
            rows.append(cells)
            known[member.student] = cells
    out = io.StringIO()
    writer = csv.DictWriter(out, head, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    with replacing(path) as scratch:
        scratch.write_text(out.getvalue(), encoding="utf-8")
    return path


def by_person(items: Iterable[tuple[str, Handed, Attempt]]) -> Iterator[Handed]:
    """Put what belongs to one id together."""
    people: dict[str, Handed] = {}
    for key, handed, attempt in items:
        people.setdefault(key, handed).attempts.append(attempt)
    yield from people.values()


def read_export(tool: str, archive: Archive, people: People, assignment: str) -> Found:
    """What `tool` exported; a sentence if it was another tool that did.

    Raises:
        ClassroomError: nothing in it is an export of `tool`.
    """
    from autograder.lms import TITLES, Tool, module

    likeness = {each: module(each).likeness(archive) for each in Tool}
    chosen = Tool(tool)
    if not archive.entries:
        said = f" {archive.refused[0]}" if archive.refused else ""
        raise ClassroomError(f"{archive.path} holds no files that could be taken.{said}")
    best = max(likeness, key=lambda each: likeness[each])
    if likeness[chosen] == 0 or (best != chosen and likeness[best] > 2 * likeness[chosen]):
        if likeness[best] > 0.5:
            raise ClassroomError(
                f"{archive.path} looks like an export of {TITLES[best]}; type import {best}."
            )
        if likeness[chosen] == 0:
            raise ClassroomError(
                f"{archive.path} is no export of {TITLES[chosen]}: {module(chosen).EXPECTS}."
            )
    found: Found = module(chosen).read(archive, people, assignment)
    found.problems[:0] = archive.refused
    return found
