"""Wrong reference modules: the reference's source with one exercise's cell changed, executed."""

from __future__ import annotations

import functools
import importlib
import itertools
import re
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from autograder.common import paths

Swap = tuple[str, str]  # a text of the cell, and what to put in its place

_CELL = re.compile(r"^# %%", re.MULTILINE)
_MARKER = re.compile(r"^[ \t]*### (?:BEGIN|END) SOLUTION[ \t]*\n", re.MULTILINE)
_OPTION = re.compile(r'\bexercise="([^"]+)"')
FILENAME = "<variant>"  # of the code of modules that are executed here


@dataclass(frozen=True)
class Misconception:
    """A known mistake in one exercise.

    Args:
        name: a snake_case name, unique in its unit.
        exercise: the exercise in which it is made.
        says: one or two sentences to the student: what it is, and what to do.
        section: the anchor of the book section to reread.
        swap: text replacements within the exercise's cell; each old text occurs exactly once.
        code: instead of `swap`, a whole replacement for the cell.
    """

    name: str
    exercise: str
    says: str
    section: str
    swap: list[Swap] = field(default_factory=list)
    code: str = ""


def mistakes_in(known: list[Misconception], exercise: str, section: str) -> Callable[..., None]:
    """A function that adds to `known` a mistake in `exercise`.

    It takes the mistake's name, what it says, the swaps, `code` instead of them, and `read`, the
    section to reread if it is not `section`.
    """

    def add(name: str, says: str, *swap: Swap, code: str = "", read: str = section) -> None:
        known.append(Misconception(name, exercise, says, read, list(swap), code))

    return add


@functools.cache
def source_of(unit: str) -> str:
    """The text of the unit's reference module."""
    return paths.solution(unit).read_text(encoding="utf-8")


@functools.lru_cache(maxsize=8)
def cell_spans(source: str) -> dict[str, tuple[int, int]]:
    """Where each exercise's solution cell stands in a percent script: first and last offset."""
    starts = [match.start() for match in _CELL.finditer(source)] + [len(source)]
    spans = {}
    for start, end in itertools.pairwise(starts):
        line_end = source.find("\n", start, end)
        option = _OPTION.search(source, start, line_end if line_end > 0 else end)
        if option:
            spans[option[1]] = (line_end + 1, end)
    return spans


def changed_source(unit: str, misconception: Misconception) -> str:
    """The reference's source with the mistake made.

    Raises:
        ValueError: the exercise does not exist, or a text to replace is not there exactly once.
    """
    source = source_of(unit)
    _, cell = changed_cell(unit, misconception)
    start, end = cell_spans(source)[misconception.exercise]
    return source[:start] + cell + source[end:]


def changed_cell(unit: str, misconception: Misconception) -> tuple[str, str]:
    """The exercise's cell in the reference's source, and with the mistake made.

    Raises:
        ValueError: the exercise does not exist, or a text to replace is not there exactly once.
    """
    source = source_of(unit)
    spans = cell_spans(source)
    if misconception.exercise not in spans:
        raise ValueError(
            f"misconception {misconception.name}: there is no exercise "
            f"{misconception.exercise!r} in solutions/{paths.inside(unit, '.py')}"
        )
    start, end = spans[misconception.exercise]
    right = cell = source[start:end]
    if misconception.code:
        cell = misconception.code.rstrip() + "\n\n"
    for old, new in misconception.swap:
        if cell.count(old) != 1:
            raise ValueError(
                f"misconception {misconception.name}: {old!r} occurs {cell.count(old)} times in "
                f"the cell of {misconception.exercise}; it must occur exactly once"
            )
        cell = cell.replace(old, new)
    return right, cell


def _cells(source: str) -> list[str]:
    """A percent script, cell by cell."""
    starts = [0, *(match.start() for match in _CELL.finditer(source)), len(source)]
    return [source[start:end] for start, end in itertools.pairwise(starts)]


@functools.lru_cache(maxsize=1024)
def _compiled(cell: str) -> types.CodeType:
    """One cell's code. Variants of a unit differ in one cell: the others are compiled once."""
    return compile(cell, FILENAME, "exec", dont_inherit=True)


def load_variant(source: str, name: str = "variant") -> dict[str, Any]:
    """Execute a module's source and return its names."""
    return load_code(map(_compiled, _cells(source)), name)


def load_code(
    cells: Iterable[types.CodeType], name: str, given: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Execute a module, cell by cell, and return its names, with those that it is given.

    The module is known to `sys.modules` while it executes, as dataclasses and annotations need.
    """
    module = types.ModuleType(f"solutions_{name}")
    module.__dict__.update(given or {})
    sys.modules[module.__name__] = module
    try:
        for cell in cells:
            exec(cell, module.__dict__)
    finally:
        del sys.modules[module.__name__]
    return module.__dict__


@functools.cache
def misconceptions(unit: str) -> tuple[Misconception, ...]:
    """The unit's known mistakes, in the order of their file.

    Raises:
        ValueError: two of them have one name.
    """
    module = importlib.import_module(paths.module("autograder.misconceptions", unit))
    found = tuple(module.MISCONCEPTIONS)
    names = [item.name for item in found]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"misconceptions of {unit} share a name: {', '.join(sorted(twice))}")
    return found


def misconception(unit: str, name: str) -> Misconception:
    """The unit's known mistake of that name."""
    return _by_name(unit)[name]


@functools.cache
def _by_name(unit: str) -> dict[str, Misconception]:
    return {item.name: item for item in misconceptions(unit)}


@functools.cache
def wrong_namespace(unit: str, name: str) -> dict[str, Any]:
    """The names defined by the wrong reference module `name`."""
    return load_variant(changed_source(unit, misconception(unit, name)), name)


@functools.cache
def reference_namespace(unit: str) -> dict[str, Any]:
    """The names defined by the reference module."""
    return vars(importlib.import_module(paths.module("solutions", unit)))


def without_markers(source: str) -> str:
    """A reference cell as a student would have written it."""
    return _MARKER.sub("", source).strip("\n") + "\n"


def cells_of_source(source: str) -> dict[str, str]:
    """The answers in a reference module's source, by exercise."""
    return {
        name: without_markers(source[start:end])
        for name, (start, end) in cell_spans(source).items()
    }


def given_code(unit: str) -> dict[str, str]:
    """The code that a student's notebook gives before each exercise, by exercise."""
    found: dict[str, str] = {}
    code: list[str] = []
    for cell in _cells(source_of(unit)):
        options, _, text = cell.removeprefix("# %%").partition("\n")
        if exercise := _OPTION.search(options):
            found[exercise[1]], code = "\n".join(code), []
        elif cell.startswith("# %%") and (not options or 'tags=["given"]' in options):
            code.append(text)
    return found


def reference_answers(unit: str) -> dict[str, str]:
    """The reference's answers, by exercise."""
    return cells_of_source(source_of(unit))
