"""Canvas: "Download Submissions" and the gradebook's CSV.

A downloaded file is called `NAME[_LATE]_USER_FILE_own-name.ipynb`: the sortable name in small
letters without signs, Canvas's number of the person and of the file, and the name that the student
gave, to which Canvas adds `-1`, `-2` when it is handed in again. Anonymous grading puts
`anon_LETTERS` for name and number. The zip tells who was late and not when.
"""

from __future__ import annotations

import re

from autograder.lms.archive import Archive, Entry, shown
from autograder.lms.base import TEST_STUDENT, Attempt, Found, Handed, People, by_person
from autograder.lms.marks import Marks, fill
from autograder.lms.table import Table

EXPECTS = (
    "its files are called like lovelaceada_1234_56789_attention-scores.ipynb; in Canvas open the "
    "assignment and press Download Submissions"
)
COLUMNS = ("canvas_id", "login", "sid")
# For nbgrader's FileNameCollectorPlugin; `nbgrader zip_collect` takes it too.
NAMED_REGEXP = (
    r"(?:.*/)?(?:(?P<name>(?!anon_)[^/]+?)_)?(?:(?P<late>LATE)_)?"
    r"(?P<student_id>anon_[A-Za-z0-9]+|[0-9]+)_(?:question_[0-9]+_)?(?P<file>[0-9]+)_"
    r"(?P<file_id>[^/]+?)(?:-(?P<number>[0-9]{1,4}))?(?P<ext>\.[A-Za-z0-9.]+)?$"
)
TYPED = re.compile(r"(?:.*/)?(?:\w+?_)?(?:LATE_)?(?:anon_\w+|[0-9]+)_(?:text|link)\.html$")


def likeness(archive: Archive) -> float:
    """The share of files that are called as Canvas calls them."""
    count = sum(_ours(entry) for entry in archive.entries)
    return count / len(archive.entries) if archive.entries else 0.0


def _ours(entry: Entry) -> bool:
    text = str(entry.path)
    known = TYPED.match(text) or entry.told(NAMED_REGEXP)
    return "_assignsubmission_" not in text and bool(known)


def read(archive: Archive, people: People, assignment: str) -> Found:
    """Everybody's files; a name that came several times is as many attempts."""
    found = Found()
    items = []
    late = set()
    for entry in archive.entries:
        told = entry.told(NAMED_REGEXP)
        if told is None:
            if TYPED.match(str(entry.path)):
                found.problems.append(
                    f"{shown(entry.path)} was typed into Canvas, not handed in as a notebook."
                )
            else:
                found.problems.append(
                    f"{shown(entry.path)} is not called as Canvas calls a submission."
                )
            continue
        key = told["student_id"]
        name = told["name"] or ""
        anonymous = key.startswith("anon_")
        handed = Handed({"canvas_id": key}, key if anonymous or not name else f"{name}_{key}", name)
        number = int(told["number"] or 0)
        attempt = Attempt(
            [(f"{told['file_id']}{told['ext'] or ''}", entry)],
            order=(number, int(told["file"])),
        )
        items.append((key, handed, attempt))
        if told["late"]:
            late.add(handed.suggested)
    for handed in by_person(items):
        handed.attempts = _attempts(handed.attempts)
        found.handed.append(handed)
    if late:
        found.remarks.append(
            f"Canvas marks as late, without saying when: {', '.join(map(shown, sorted(late)))}."
        )
    return found


def _attempts(single: list[Attempt]) -> list[Attempt]:
    """Files of different names are one attempt; the same notebook again is the next one."""
    notebooks: dict[str, list[Attempt]] = {}
    others = []
    for attempt in sorted(single, key=lambda one: one.order):
        name = attempt.files[0][0]
        if name.lower().endswith(".ipynb"):
            notebooks.setdefault(name, []).append(attempt)
        else:
            others += attempt.files
    count = max((len(group) for group in notebooks.values()), default=1)
    attempts = [Attempt(order=(number,)) for number in range(count)]
    for group in notebooks.values():
        for attempt, target in zip(reversed(group), reversed(attempts), strict=False):
            target.files += attempt.files
    attempts[-1].files += others
    return attempts


def export(marks: Marks, table: Table, column: str | None) -> bytes:
    """The gradebook's CSV with one column filled in."""
    head = table.head
    wanted = {"ID", "Section"} & set(head)
    if wanted != {"ID", "Section"}:
        raise marks.error(
            f"{table.name} is no gradebook of Canvas (it needs the columns ID and Section); "
            "in Canvas open Grades, Export, Export Entire Gradebook, and name that file."
        )
    first = 1 + max(head.index(name) for name in head if name in ("ID", "Section", "SIS Login ID"))
    titles = {
        place: match[1]
        for place, name in enumerate(head)
        if place >= first and (match := re.fullmatch(r"(.*) \(\d+\)", name))
    }
    place = marks.column(table, titles, column, "such as --column 'attention-scores (4321)'")
    keys = {
        "canvas_id": "ID",
        "login": "SIS Login ID",
        "sid": "SIS User ID",
        "email": "Integration ID",
    }
    people = []
    for number in table.body:
        cells = {kind: table.under(number, name) for kind, name in keys.items()}
        name = table.under(number, "Student") or " ".join(
            table.under(number, part) for part in ("FirstName", "LastName")
        )
        if table.value(number, 0) == "Points Possible":
            marks.compare(table.value(number, place), head[place], "Canvas")
        if cells["canvas_id"].isdecimal() and name != TEST_STUDENT:
            people.append((number, cells, name))
    fill(marks, table, people, place, kept=("EX", "N/A"))
    return table.to_bytes()
