"""Gradescope: the export of a programming assignment's submissions, and its grades.

`assignment_N_export/` holds a folder `submission_ID` each and `submission_metadata.yml`, which
tells of each submission who handed it in (several people in a group), when, and what was handed in
before. The files of earlier times are only there where a folder of theirs is.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

import yaml

from autograder.lms.archive import READING, Archive, Entry, shown
from autograder.lms.base import Attempt, Found, Handed, People, utc
from autograder.lms.marks import Marks, fill
from autograder.lms.table import Table

METADATA = "submission_metadata.yml"
MAX_METADATA = 32 << 20
EXPECTS = (
    f"it holds {METADATA} and folders submission_123; in Gradescope open the assignment, Review "
    "Grades, and press Export Submissions"
)
COLUMNS = ("gradescope_id", "sid")


def likeness(archive: Archive) -> float:
    """1 where the metadata is, a little where only folders are."""
    if any(entry.name == METADATA for entry in archive.entries):
        return 1.0
    inside = sum(_submission(entry) is not None for entry in archive.entries)
    return 0.9 * inside / len(archive.entries) if archive.entries else 0.0


def _submission(entry: Entry) -> int | None:
    """Where in the path the submission's folder stands."""
    for place, part in enumerate(entry.path.parts[:-1]):
        if re.fullmatch(r"submission_\d+", part):
            return place
    return None


def read(archive: Archive, people: People, assignment: str) -> Found:
    """Everybody's files; each member of a group gets the group's."""
    found = Found()
    folders: dict[str, list[tuple[str, Entry]]] = defaultdict(list)
    metadata = None
    for entry in archive.entries:
        place = _submission(entry)
        if place is not None:
            folders[entry.path.parts[place]].append((entry.name, entry))
        elif entry.name == METADATA:
            metadata = entry
        else:
            found.problems.append(f"{shown(entry.path)} belongs to no submission.")
    records = _metadata(metadata, found)
    used = set()
    for folder, record in records.items():
        used.add(folder)
        attempts = []
        history = _list(record.get(":history"))
        for number, earlier in enumerate(history):
            own = f"submission_{earlier.get(':id', '')}"
            if own in folders and own != folder:
                used.add(own)
                when = utc(str(earlier.get(":created_at", "")))
                attempts.append(Attempt(folders[own], when, (when or "", number)))
        when = utc(str(record.get(":created_at", "")))
        if folder in folders:
            attempts.append(Attempt(folders[folder], when, (when or "~", len(history))))
        submitters = _list(record.get(":submitters"))
        if not submitters:
            found.problems.append(f"{shown(folder)}: {METADATA} names nobody who handed it in.")
            submitters = [{}]
        if not attempts:
            found.problems.append(f"{shown(folder)}: the export holds no files of it.")
            continue
        if history and len(attempts) == 1:
            found.remarks.append(
                f"{shown(folder)} was handed in {len(history) + 1} times; only the last is there."
            )
        for submitter in submitters:
            told = {key: str(submitter.get(f":{key}") or "") for key in ("email", "sid", "name")}
            ids = {"gradescope_id": folder.removeprefix("submission_")}
            if len(submitters) > 1:
                ids = {"gradescope_id": ""}  # a group's number is nobody's own
            ids = {"email": told["email"], "sid": told["sid"], **ids}
            suggested = told["sid"] or told["email"] or folder
            ids = {key: value for key, value in ids.items() if value}
            found.handed.append(Handed(ids, suggested, told["name"], list(attempts)))
    for folder in sorted(set(folders) - used):
        found.problems.append(f"{shown(folder)} is not in {METADATA}, so that nobody owns it.")
        nobodys = Handed({"gradescope_id": folder.removeprefix("submission_")}, folder)
        nobodys.attempts = [Attempt(folders[folder])]
        found.handed.append(nobodys)
    return found


def _list(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _metadata(entry: Entry | None, found: Found) -> dict[str, dict[str, Any]]:
    """The records by their folder, all values as text; what is damaged is told."""
    if entry is None:
        found.problems.append(f"The export has no {METADATA}, which tells who handed in what.")
        return {}
    if entry.size > MAX_METADATA:
        found.problems.append(f"{METADATA} is {entry.size >> 20} MiB long and was not read.")
        return {}
    try:
        # Builds nothing but texts, lists and mappings.
        loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
        data = yaml.load(entry.read(), Loader=loader)
    except (*READING, yaml.YAMLError, RecursionError, UnicodeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        found.problems.append(f"{METADATA} is damaged ({shown(reason)}).")
        return {}
    records = data if isinstance(data, dict) else {}
    good = {
        str(key): value
        for key, value in records.items()
        if isinstance(value, dict) and re.fullmatch(r"submission_\d+", str(key))
    }
    for key in records:
        if str(key) not in good:
            found.problems.append(f"{METADATA}: {shown(key)} is no submission.")
    return good


def export(marks: Marks, table: Table, column: str | None) -> bytes:
    """The grades' CSV ("Download Grades") with the total score filled in."""
    head = table.head
    if not {"Email", "SID"} & set(head):
        raise marks.error(
            f"{table.name} is no list of Gradescope (it needs a column Email or SID); in "
            "Gradescope open Review Grades, Download Grades, and name that file."
        )
    titles = {}
    for name in ("Total Score", "Score"):
        if name in head:
            titles = {head.index(name): marks.assignment.unit}
            break
    place = marks.column(table, titles, column, "such as --column 'Total Score'")
    keys = {"email": "Email", "sid": "SID", "gradescope_id": "Submission ID"}
    people = []
    for number in table.body:
        cells = {kind: table.under(number, name) for kind, name in keys.items()}
        parts = (table.under(number, part) for part in ("Name", "First Name", "Last Name"))
        name = " ".join(filter(None, parts)) or cells["email"] or cells["sid"]
        people.append((number, cells, name))
    told = [most for number in table.body if (most := table.under(number, "Max Points"))]
    for most in told[:1]:
        marks.compare(most, head[place], "Gradescope")
    fill(marks, table, people, place)
    return table.to_bytes()
