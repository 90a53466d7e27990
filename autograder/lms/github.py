"""GitHub Classroom: the folder that `gh classroom clone student-repos` makes, and its CSV files.

`SLUG-submissions/SLUG-LOGIN/` is a repository each. When something was pushed is not read from the
repository, whose dates its owner chooses, but from `submission_timestamp` of the CSV that
`gh classroom assignment-grades` writes, if that is given as the class list.
"""

from __future__ import annotations

import os
from collections import defaultdict

from autograder.common.escaping import csv_text
from autograder.lms.archive import Archive, Entry, shown
from autograder.lms.base import Attempt, Found, Handed, People, utc
from autograder.lms.marks import Marks, fill, points
from autograder.lms.table import Table

EXPECTS = (
    "it is a folder SLUG-submissions with a folder SLUG-LOGIN each; make it with "
    "gh classroom clone student-repos"
)
COLUMNS = ("github_login", "roster_identifier")
HEAD = ("roster_identifier", "github_username", "points_awarded", "points_available")


def _repositories(archive: Archive) -> dict[str, list[Entry]]:
    """The files of each repository, whether the export is SLUG-submissions or holds it."""
    found: dict[str, list[Entry]] = defaultdict(list)
    outer = {entry.path.parts[0] for entry in archive.entries if len(entry.path.parts) > 1}
    inner = len(outer) == 1 and next(iter(outer)).endswith("-submissions")
    for entry in archive.entries:
        parts = entry.path.parts[1:] if inner else entry.path.parts
        found[parts[0] if len(parts) > 1 else ""].append(entry)
    return found


def _slug(archive: Archive) -> str:
    """What the names of all repositories begin with."""
    outer = {entry.path.parts[0] for entry in archive.entries if len(entry.path.parts) > 1}
    for name in (archive.name, *(outer if len(outer) == 1 else ())):
        if name.endswith("-submissions"):
            return name.removesuffix("-submissions")
    names = sorted(_repositories(archive).keys() - {""})
    if len(names) < 2:
        return ""
    common = os.path.commonprefix(names)  # noqa: RUF071  # of letters, which is what is wanted
    return common[: common.rfind("-")] if "-" in common else ""


def likeness(archive: Archive) -> float:
    """The share of files in folders that begin alike and are called neither as Moodle's nor
    as Gradescope's."""
    slug = _slug(archive)
    if not slug or not archive.entries:
        return 0.0
    repositories = _repositories(archive)
    inside = sum(len(files) for name, files in repositories.items() if name.startswith(f"{slug}-"))
    foreign = ("_assignsubmission_", "submission_")
    if any(mark in name for name in repositories for mark in foreign):
        return 0.0
    return 0.8 * inside / len(archive.entries)


def read(archive: Archive, people: People, assignment: str) -> Found:
    """Everybody's notebooks; the other files of a repository are the template's."""
    found = Found()
    slug = _slug(archive)
    for name, entries in sorted(_repositories(archive).items()):
        login = name.removeprefix(f"{slug}-")
        if not name or login == name or not login:
            found.problems += [
                f"{shown(entry.path)} lies in no repository called {slug}-LOGIN."
                for entry in (entries if not name else entries[:1])
            ]
            continue
        notebooks = [entry for entry in entries if entry.name.lower().endswith(".ipynb")]
        exact = [entry for entry in notebooks if entry.name == f"{assignment}.ipynb"]
        exact.sort(key=lambda entry: len(entry.path.parts))
        chosen = exact[:1] + [entry for entry in notebooks if entry not in exact[:1]]
        if not chosen:
            found.problems.append(f"{shown(login)} has no notebook in the repository.")
            continue
        handed = Handed({"github_login": login}, login)
        member = people.find(handed.ids)
        when = utc(member.timestamp) if member is not None and member.timestamp else None
        handed.attempts = [Attempt([(entry.name, entry) for entry in chosen], when)]
        found.handed.append(handed)
    return found


def export(marks: Marks, table: Table | None, column: str | None) -> bytes:
    """The grades' CSV of GitHub Classroom with points, or one of our own with the roster's ids."""
    if table is None:
        rows = [HEAD]
        for number, (student, mark) in enumerate(marks.of.items(), 1):
            ids = marks.ids(student)
            names = ids.get("roster_identifier", student), ids.get("github_login", "")
            rows.append((*names, points(mark.total), points(mark.max_total)))
            marks.written[number] = student
        return csv_text(rows).encode()
    head = table.head
    if "github_username" not in head:
        raise marks.error(
            f"{table.name} is no list of GitHub Classroom (it needs the column github_username); "
            "write one with gh classroom assignment-grades, or leave --template out."
        )
    awarded = [head.index("points_awarded")] if "points_awarded" in head else []
    titles = dict.fromkeys(awarded, marks.assignment.unit)
    place = marks.column(table, titles, column, "such as --column points_awarded")
    people = []
    for number in table.body:
        login = table.under(number, "github_username")
        own = table.under(number, "identifier") or table.under(number, "roster_identifier")
        people.append((number, {"github_login": login, "roster_identifier": own}, login))
    fill(marks, table, people, place)
    if "points_available" in head:
        for number, student in marks.written.items():
            table.put(number, head.index("points_available"), points(marks.of[student].max_total))
    return table.to_bytes()
