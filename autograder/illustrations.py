"""The students' own lines for the mistakes of a class.

They come from the repaired notebooks that the course keeps, a bounded number for each mistake, read
one at a time: when the report is made, or, with an `Album`, while others are still being marked.
Nothing here names a student: these lines are made to be shown to the class.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from autograder import excerpts, variants
from autograder.assignment import Assignment
from autograder.cells import source_of
from autograder.excerpts import Excerpt
from autograder.harmless import visible
from autograder.results import SubmissionResult
from autograder.standing import ByHand
from autograder.teaching import FORBIDDEN, Form, Mistake, Teaching

LOOKED_AT = 60  # notebooks that are read for the lines of one mistake
FORMS = 3  # different lines that are shown of one mistake
KINDS = 40  # different lines of one mistake that are told apart
MAX_NOTEBOOK = 30 << 20  # bytes


class Album:
    """The lines of a class's mistakes, collected student by student before there is a report.

    Args:
        assignment: of the class.
        course: the nbgrader course, which must have a student's repaired notebook by the time that
            the student is added, and must not change it afterwards.
    """

    def __init__(self, assignment: Assignment, course: Path) -> None:
        self.assignment = assignment
        self.course = course
        self._looked: Counter[str] = Counter()
        self._found: dict[tuple[str, str, str], tuple[str, Excerpt | None]] = {}

    def add(self, result: SubmissionResult) -> None:
        """Look for the lines of one student's mistakes, of those that few have made so far."""
        chapter, known = self.assignment.chapter, excerpts.known(self.assignment.chapter)
        made = {one.misconception for one in result.exercises.values()}
        wanted = sorted(name for name in made & known.keys() if self._looked[name] < LOOKED_AT)
        if not wanted:
            return
        self._looked.update(wanted)
        sources = _sources(self.course, chapter, result.student)
        for name in wanted:
            source = sources.get(known[name].exercise, "")
            found = excerpts.find(chapter, name, source) if source.strip() else None
            self._found[result.student, name, known[name].exercise] = source, found

    def page(self, student: str, mistake: Mistake) -> tuple[str, Excerpt | None] | None:
        """The student's cell and what was found in it; None if nobody has looked."""
        return self._found.get((student, mistake.name, mistake.exercise))


def illustrate(
    teaching: Teaching,
    course: Path,
    mistakes: Iterable[Mistake] | None = None,
    *,
    people: Mapping[str, ByHand] | None = None,
    most: int = LOOKED_AT,
    album: Album | None = None,
) -> None:
    """Find the lines of the mistakes in at most `most` students' notebooks for each.

    Args:
        teaching: of the class.
        course: the nbgrader course that keeps the repaired notebooks.
        mistakes: those to look for; all of them if not given.
        people: whose names must not be shown where they stand in code.
        most: how many notebooks to read for one mistake.
        album: where lines of this class may have been collected before.
    """
    chapter = teaching.assignment.chapter
    wanted: dict[str, list[Mistake]] = defaultdict(list)
    kinds: dict[int, dict[tuple[str, ...], list[Any]]] = {}
    for mistake in teaching.mistakes if mistakes is None else mistakes:
        kinds[id(mistake)] = {}
        mistake.forms, mistake.whole = [], ""
        mistake.looked_at = mistake.inherited = mistake.not_found = 0
        for student in mistake.students[:most]:
            wanted[student].append(mistake)
    for student, theirs in wanted.items():
        sources = None
        hidden = _names(chapter, student, (people or {}).get(student))
        for mistake in theirs:
            page = album.page(student, mistake) if album is not None else None
            if page is None:
                if sources is None:
                    sources = _sources(course, chapter, student)
                source = sources.get(mistake.exercise, "")
                try:
                    found = _lines(teaching.assignment, mistake, source) if source.strip() else None
                except Exception:  # Others have made the mistake too.
                    continue
            else:
                source, found = page
            if not source.strip():
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
        return excerpts.find(assignment.chapter, mistake.name, source)
    forbids = next(
        (one.forbids for one in assignment.exercises if one.name == mistake.exercise), ()
    )
    return excerpts.calls(source, [name for name in forbids if name in mistake.says])


def _sources(course: Path, chapter: str, student: str) -> dict[str, str]:
    """A student's answers, by exercise, from the repaired notebook that the course keeps."""
    if Path(student).name != student:
        return {}
    for step in ("autograded", "repaired", "submitted"):
        file = course / step / student / chapter / f"{chapter}.ipynb"
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


def _names(chapter: str, student: str, person: ByHand | None) -> Callable[[str], str]:
    """A function that takes a student's names out of code.

    Who is called as something in the chapter's own code keeps their name: it says nothing there.
    """
    names = {student, *(person.person.values() if person is not None else ())}
    used = _words(chapter)
    told = sorted((name for name in names if len(name) > 2 and name not in used), key=len)
    if not told:
        return lambda text: text
    pattern = re.compile(
        rf"(?<!\w)(?:{'|'.join(map(re.escape, reversed(told)))})(?!\w)", re.IGNORECASE
    )
    return lambda text: pattern.sub("student", text)


@cache
def _words(chapter: str) -> frozenset[str]:
    try:
        return frozenset(re.findall(r"\w+", variants.source_of(chapter)))
    except OSError:
        return frozenset()
