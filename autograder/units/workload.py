"""How long units take, with what is to be read before them, and what builds on what.

A unit's minutes of writing stand in its `assignment.json`, those of reading at the top of the
book's pages. Which page belongs to which unit follows from the exercises that pages explain.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autograder.common import paths
from autograder.common.errors import AssignmentError
from autograder.units.assignment import given_names, load

MINUTES = re.compile(r"^\*[^*\n]*?(\d+) minutes", re.MULTILINE)
ASKS_FOR = re.compile(r"\bYou should know (.+?)$", re.MULTILINE)
CHAPTER = re.compile(r"\]\(\.\./(\w+)/index\.md\)")


@dataclass(frozen=True)
class Workload:
    """What a unit takes: pages to read first, minutes of reading and of writing, points.

    `given` names the earlier units of the chapter of which it comes with answers. The first page
    of the chapter, which belongs to all its units, is not among `pages`.
    """

    unit: str
    pages: tuple[str, ...]
    reading: int
    writing: int
    points: float
    given: tuple[str, ...]


@dataclass(frozen=True)
class Week:
    """A week of a course: its units, the pages to read, minutes, points and a remark."""

    number: str
    units: tuple[str, ...]
    pages: tuple[str, ...]
    reading: int
    writing: int
    points: float
    remark: str = ""


def minutes_of(page: str, book: Path = paths.BOOK) -> int:
    """How many minutes a page takes, as it says at its top."""
    found = MINUTES.search((book / f"{page}.md").read_text(encoding="utf-8"))
    if not found:
        raise AssignmentError(f"book/{page}.md does not say how many minutes it takes.")
    return int(found[1])


def pages_before(chapter: str, contents: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """For each unit of a chapter the pages to read first, in the order of the book.

    Pages and units have one order each, and as many exercises and questions as possible are to
    stand on pages of their own unit. A page without any belongs to the unit of the next one.
    """
    units = [unit for unit in paths.units() if paths.chapter_of(unit) == chapter]
    asked: dict[str, Counter[int]] = {}
    for number, unit in enumerate(units):
        assignment = load(unit)
        sections = [exercise.section for exercise in assignment.exercises]
        sections += [question.section for question in assignment.questions]
        for section in sections:
            asked.setdefault(assignment.page(section), Counter())[number] += 1
    first = paths.first_page(chapter)
    pages = [page for page in contents if page.startswith(f"{chapter}/") and page != first]
    explaining = [page for page in pages if page in asked]

    @functools.cache
    def best(at: int, least: int) -> tuple[int, tuple[int, ...]]:
        """From the page `at` on: how many parts stand where they belong, and the pages' units."""
        if at == len(explaining):
            return 0, ()
        ways = []
        for number in range(least, len(units)):
            count, rest = best(at + 1, number)
            ways.append((count + asked[explaining[at]][number], (number, *rest)))
        return max(ways, key=lambda way: way[0])  # of equal ones that with the earlier unit

    numbers = dict(zip(explaining, best(0, 0)[1], strict=True))
    found: dict[str, list[str]] = {unit: [] for unit in units}
    number = len(units) - 1
    for page in reversed(pages):
        number = numbers.get(page, number)
        found[units[number]].insert(0, page)
    return {unit: tuple(each) for unit, each in found.items()}


def given_of(unit: str) -> tuple[str, ...]:
    """The earlier units of the chapter of which a unit's `given.py` holds answers."""
    chapter, names = paths.chapter_of(unit), set(given_names(unit))
    units = paths.units()
    earlier = [u for u in units[: units.index(unit)] if paths.chapter_of(u) == chapter]
    return tuple(before for before in earlier if names & set(load(before).names))


def workloads(contents: Sequence[str]) -> dict[str, Workload]:
    """What each unit takes, by name, in the order of the book.

    Args:
        contents: the book's pages in their order.
    """
    pages = {
        unit: found
        for chapter in paths.CHAPTERS
        for unit, found in pages_before(chapter, contents).items()
    }
    return {
        unit: Workload(
            unit=unit,
            pages=pages[unit],
            reading=sum(map(minutes_of, pages[unit])),
            writing=load(unit).minutes,
            points=load(unit).points + load(unit).written_points,
            given=given_of(unit),
        )
        for unit in paths.units()
    }


def chapters_before(chapter: str, book: Path = paths.BOOK) -> tuple[str, ...]:
    """The chapters that a chapter's first page asks its reader to know."""
    text = (book / f"{paths.first_page(chapter)}.md").read_text(encoding="utf-8")
    found = [name for line in ASKS_FOR.findall(text)[:1] for name in CHAPTER.findall(line)]
    return tuple(dict.fromkeys(found))


def direct(needs: Mapping[str, Iterable[str]]) -> dict[str, tuple[str, ...]]:
    """`needs` without what follows from two others: of a → b → c and a → c only the first two."""

    def behind(name: str) -> set[str]:
        return {far for near in needs[name] for far in {near, *behind(near)}}

    return {
        name: tuple(one for one in each if not any(one in behind(o) for o in each if o != one))
        for name, each in ((name, tuple(wanted)) for name, wanted in needs.items())
    }


def weeks(rows: Iterable[Mapping[str, str]], path: str, contents: Sequence[str]) -> list[Week]:
    """The weeks of a path through the course.

    Args:
        rows: of `paths.csv`: `path`, `week`, `units`, `pages` and `remark`; units and pages are
            divided by spaces. The pages of the units are read, too, and the first page of a
            chapter with the first of its units, unless an earlier week has read it.
        path: which path.
        contents: the book's pages in their order.

    Raises:
        AssignmentError: an unknown unit or page, or a unit twice.
    """
    loads, taken, read = workloads(contents), set[str](), set[str]()
    found = []
    for row in rows:
        if row["path"] != path:
            continue
        units, pages = tuple(row["units"].split()), row["pages"].split()
        for unit in units:
            if unit not in loads or unit in taken:
                raise AssignmentError(f"paths.csv: {path} has {unit} twice, or there is none.")
            first = paths.first_page(paths.chapter_of(unit))
            if first not in read and paths.chapter_of(unit) not in map(paths.chapter_of, taken):
                pages.append(first)
            pages += loads[unit].pages
            taken.add(unit)
        if unknown := set(pages) - set(contents):
            raise AssignmentError(f"paths.csv: there is no page {', '.join(sorted(unknown))}.")
        read.update(pages)
        found.append(
            Week(
                number=row["week"],
                units=units,
                pages=tuple(pages),
                reading=sum(map(minutes_of, pages)),
                writing=sum(loads[unit].writing for unit in units),
                points=sum(loads[unit].points for unit in units),
                remark=row["remark"],
            )
        )
    return found
