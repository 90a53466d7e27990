"""The students' own lines for the mistakes of a class.

They come from the repaired notebooks that the course keeps, a bounded number for each mistake, read
one at a time. Nothing here names a student: these lines are made to be shown to the class.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from autograder.common.cells import source_of
from autograder.common.escaping import visible
from autograder.gradebook.standing import ByHand
from autograder.reports import excerpts
from autograder.reports.excerpts import Excerpt
from autograder.reports.teaching import FORBIDDEN, Form, Mistake, Teaching
from autograder.units import variants
from autograder.units.assignment import Assignment

LOOKED_AT = 60  # notebooks that are read for the lines of one mistake
FORMS = 3  # different lines that are shown of one mistake
KINDS = 40  # different lines of one mistake that are told apart
MAX_NOTEBOOK = 30 << 20  # bytes


def illustrate(
    teaching: Teaching,
    course: Path,
    mistakes: Iterable[Mistake] | None = None,
    *,
    people: Mapping[str, ByHand] | None = None,
    most: int = LOOKED_AT,
) -> None:
    """Find the lines of the mistakes in at most `most` students' notebooks for each.

    Args:
        teaching: of the class.
        course: the nbgrader course that keeps the repaired notebooks.
        mistakes: those to look for; all of them if not given.
        people: whose names must not be shown where they stand in code.
        most: how many notebooks to read for one mistake.
    """
    unit = teaching.assignment.unit
    wanted: dict[str, list[Mistake]] = defaultdict(list)
    kinds: dict[int, dict[tuple[str, ...], list[Any]]] = {}
    for mistake in teaching.mistakes if mistakes is None else mistakes:
        kinds[id(mistake)] = {}
        mistake.forms, mistake.whole = [], ""
        mistake.looked_at = mistake.inherited = mistake.not_found = 0
        for student in mistake.students[:most]:
            wanted[student].append(mistake)
    for student, theirs in wanted.items():
        sources = _sources(course, unit, student)
        hidden = _names(unit, student, (people or {}).get(student))
        for mistake in theirs:
            source = sources.get(mistake.exercise, "")
            if not source.strip():
                continue
            try:
                found = _lines(teaching.assignment, mistake, source)
            except Exception:  # Others have made the mistake too.
                continue
            mistake.looked_at += 1
            known = kinds[id(mistake)]
            if found is None and student in mistake.builds_on_wrong:
                mistake.inherited += 1
            elif found is None:
                mistake.not_found += 1
                if not mistake.whole or len(source) < len(mistake.whole):
                    mistake.whole = hidden(visible(excerpts.whole(source)))
            elif found.key in known:
                known[found.key][1] += 1
            elif len(known) < KINDS:
                known[found.key] = [hidden(visible(found.text)), 1, found.reference]
    for mistake in teaching.mistakes:
        ranked = sorted(kinds.get(id(mistake), {}).values(), key=lambda kind: -kind[1])
        if ranked:
            mistake.forms = [Form(lines, count) for lines, count, _ in ranked[:FORMS]]
            mistake.reference = ranked[0][2]


def _lines(assignment: Assignment, mistake: Mistake, source: str) -> Excerpt | None:
    if mistake.name != FORBIDDEN:
        return excerpts.find(assignment.unit, mistake.name, source)
    forbids = next(
        (one.forbids for one in assignment.exercises if one.name == mistake.exercise), ()
    )
    return excerpts.calls(source, [name for name in forbids if name in mistake.says])


def _sources(course: Path, unit: str, student: str) -> dict[str, str]:
    """A student's answers, by exercise, from the repaired notebook that the course keeps."""
    if Path(student).name != student:
        return {}
    for step in ("autograded", "repaired", "submitted"):
        file = course / step / student / unit / f"{unit}.ipynb"
        try:
            if file.is_symlink() or file.stat().st_size > MAX_NOTEBOOK:
                continue
            cells = json.loads(file.read_bytes()).get("cells", [])
        except (OSError, ValueError, AttributeError, RecursionError):
            continue
        found: dict[str, str] = {}
        for cell in cells if isinstance(cells, list) else []:
            try:
                marks = cell["metadata"]["nbgrader"]
                if cell["cell_type"] == "code" and marks["solution"] and not marks["grade"]:
                    found[str(marks["grade_id"])] = source_of(cell)
            except (KeyError, TypeError):
                continue
        return found
    return {}


def _names(unit: str, student: str, person: ByHand | None) -> Callable[[str], str]:
    """A function that takes a student's names out of code.

    Who is called as something in the unit's own code keeps their name: it says nothing there.
    """
    names = {student, *(person.person.values() if person is not None else ())}
    used = _words(unit)
    told = sorted((name for name in names if len(name) > 2 and name not in used), key=len)
    if not told:
        return lambda text: text
    pattern = re.compile(
        rf"(?<!\w)(?:{'|'.join(map(re.escape, reversed(told)))})(?!\w)", re.IGNORECASE
    )
    return lambda text: pattern.sub("student", text)


@cache
def _words(unit: str) -> frozenset[str]:
    try:
        return frozenset(re.findall(r"\w+", variants.source_of(unit)))
    except OSError:
        return frozenset()
