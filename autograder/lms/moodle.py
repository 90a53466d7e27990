"""Moodle: "Download all submissions", the grading worksheet, and feedback files.

A submission lies in a folder `Full name_NUMBER_assignsubmission_file` (before Moodle 4.1 with one
more `_`), or, where the site is set so, in a file whose name begins like that. NUMBER is the
participant's number in this assignment, which the worksheet calls "Participant NUMBER". The zip
tells no time of handing in.
"""

from __future__ import annotations

import io
import re
import zipfile
from pathlib import Path

from autograder.lms.archive import Archive, shown
from autograder.lms.base import Attempt, Found, Handed, People, by_person
from autograder.lms.marks import Marks, fill
from autograder.lms.table import Table

EXPECTS = (
    "its folders are called like Ada Lovelace_123_assignsubmission_file; in Moodle open the "
    "assignment, Submissions, and choose Download all submissions"
)
COLUMNS = ("moodle_id", "sid")
NAMED_REGEXP = (
    r"(?:.*/)?(?P<name>[^/_]+)_(?P<student_id>[0-9]+)_assignsubmission_"
    r"(?P<plugin>file|onlinetext|[a-z]+)(?:_?/(?:.*/)?|_)(?P<file_id>[^/]+?)(?P<ext>\.\w+)?$"
)


def likeness(archive: Archive) -> float:
    """The share of files below a folder or under a name of Moodle's."""
    told = sum(entry.told(NAMED_REGEXP) is not None for entry in archive.entries)
    return told / len(archive.entries) if archive.entries else 0.0


def read(archive: Archive, people: People, assignment: str) -> Found:
    """Everybody's files."""
    found = Found()
    items = []
    typed: dict[str, str] = {}
    for entry in archive.entries:
        told = entry.told(NAMED_REGEXP)
        if told is None:
            found.problems.append(
                f"{shown(entry.path)} lies in no folder that Moodle makes for a participant."
            )
            continue
        number, name = told["student_id"], told["name"].strip()
        if told["plugin"] != "file":
            typed[number] = name
            if told["plugin"] != "onlinetext":
                found.problems.append(
                    f"{shown(entry.path)} was handed in by {shown(told['plugin'])}, not as a file."
                )
            continue
        hidden = re.fullmatch(r"(?:.*-)?Participant", name) is not None
        slug = re.sub(r"\W+", "-", name).strip("-").casefold()
        handed = Handed({"moodle_id": number}, f"{slug}_{number}", "" if hidden else name)
        items.append((number, handed, Attempt([(f"{told['file_id']}{told['ext'] or ''}", entry)])))
    for handed in by_person(items):
        handed.attempts = [Attempt([file for one in handed.attempts for file in one.files])]
        found.handed.append(handed)
    for number in sorted(set(typed) - {one.ids["moodle_id"] for one in found.handed}):
        found.problems.append(
            f"{shown(typed[number])} ({number}) typed an answer into Moodle and handed in no file."
        )
    return found


def export(marks: Marks, table: Table, column: str | None) -> bytes:
    """The grading worksheet with grades, and a line of feedback where there is none yet."""
    head = table.head
    identifier = _identifier(table)
    if identifier is None:
        raise marks.error(
            f"{table.name} is no grading worksheet of Moodle (it needs a column with Participant "
            "123); in Moodle open the assignment's Submissions and choose Download grading "
            "worksheet, and name that file."
        )
    grade = head.index("Grade") if "Grade" in head else None
    titles = {} if grade is None else {grade: marks.assignment.unit}
    place = marks.column(table, titles, column, "such as --column Bewertung")
    most = head.index("Maximum Grade") if "Maximum Grade" in head else place + 1
    people = []
    for number in table.body:
        called = table.value(number, identifier)
        told = re.search(r"(\d+)$", called)
        if told:
            cells = {
                "moodle_id": told[1],
                "email": table.under(number, "Email address"),
                "sid": table.under(number, "ID number"),
            }
            people.append((number, cells, table.under(number, "Full name") or called))
    if people:
        marks.compare(table.value(people[0][0], most), head[place], "Moodle", refuses=True)
    for number, _, name in people:
        if table.under(number, "Grade can be changed").casefold() == "no":
            marks.problems.append(f"Moodle has locked the grade of {shown(name)}.")
    fill(marks, table, people, place)
    if "Feedback comments" in head:
        for number, student in marks.written.items():
            if not table.under(number, "Feedback comments"):
                table.put(number, head.index("Feedback comments"), marks.of[student].summary)
    return table.to_bytes()


def _identifier(table: Table) -> int | None:
    """The column in which every row ends with a participant's number, in whatever language."""
    if "Identifier" in table.head:
        return table.head.index("Identifier")
    for place in range(min(3, len(table.head))):
        cells = [table.value(number, place) for number in table.body]
        if cells and all(re.fullmatch(r"\D+ ?\d+", cell) for cell in cells):
            return place
    return None


def feedback(marks: Marks, table: Table, out: Path) -> int:
    """The zip that "Upload multiple feedback files in a zip" takes; how many pages it holds."""
    identifier = _identifier(table)
    data = io.BytesIO()
    count = 0
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for number, student in marks.written.items():
            page = marks.page(student)
            told = re.search(r"(\d+)$", table.value(number, identifier or 0))
            if page is None or told is None:
                marks.problems.append(f"There is no feedback page of {shown(student)}.")
                continue
            name = table.under(number, "Full name")
            # Moodle splits at `_` and wants the number second.
            name = re.sub(r'[_/\\:*?"<>|\x00-\x1f]', " ", name).strip(" .") or "Participant"
            folder = f"{name}_{told[1]}_assignsubmission_file"
            archive.write(page, f"{folder}/{marks.assignment.unit}-feedback.html")
            count += 1
    out.write_bytes(data.getvalue())
    return count
