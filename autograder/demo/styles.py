"""Right answers in many styles: a file for each style of a chapter, cut to the unit that is asked.

`autograder/demo/<chapter>_<style>.py` is one person's work on a whole chapter. A unit takes the
answers to its own exercises, and of the rest what these use: a helper that the person wrote for an
exercise of an earlier unit stands in the later unit's notebook too.
"""

from __future__ import annotations

import ast
import builtins
import functools
import json
import re
import symtable
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass

from autograder.common import paths
from autograder.common.cells import runs, source_of
from autograder.units.assignment import load
from autograder.units.variants import reference_answers

STYLES = paths.PACKAGE / "demo"
_CELL = re.compile(r'^# %%(?: (exercise|own)="([^"]+)".*)?$', re.MULTILINE)


@dataclass(frozen=True)
class Style:
    """One person's answers: a cell for each exercise, and cells of their own before some."""

    answers: dict[str, str]
    own: dict[str, tuple[str, ...]]


def styles(unit: str) -> dict[str, Style]:
    """The legitimate styles kept in `autograder/demo/<chapter>_<style>.py`, by name.

    Exercises that a style leaves out get the reference's answer.
    """
    chapter = paths.chapter_of(unit)
    return {
        path.stem.removeprefix(f"{chapter}_"): read_style(path.read_text(encoding="utf-8"), unit)
        for path in sorted(STYLES.glob(f"{chapter}_*.py"))
    }


def read_style(text: str, unit: str) -> Style:
    """What a style's file holds for a unit.

    Args:
        text: a percent script with `# %% exercise="..."` and `# %% own="..."`. What stands above
            its first cell is there for who reads it, and is taken where the unit's notebook does
            not give it.
        unit: whose exercises are answered.

    Raises:
        ValueError: a cell uses a name that nothing defines.
    """
    pieces = _pieces(text)
    right = reference_answers(unit)
    answers = {**right, **{one.exercise: one.source for one in pieces if one.exercise in right}}
    have = _in_notebook(unit) | set(right)
    own: dict[str, tuple[str, ...]] = {}
    for name in load(unit).names:
        here = {one for one in pieces if name in (one.exercise, one.before)}
        given, needed = _needed(here, pieces, have, _in_given(unit), f"{name} of {unit}")
        cells = [one for one in pieces if one in here | needed and one.exercise != name]
        imports = [f"from given import {', '.join(sorted(given))}\n"] if given else []
        own[name] = (*imports, *(one.source for one in cells))
        have |= given.union(*(one.defines for one in cells))
    return Style(answers, own)


@dataclass(frozen=True)
class _Piece:
    """One cell of a style's file, or one statement above the first cell.

    `exercise` is what it answers; or else `before` is the exercise that a cell stands before.
    """

    source: str
    exercise: str = ""
    before: str = ""

    @functools.cached_property
    def defines(self) -> frozenset[str]:
        return _names(self.source)[0]

    @functools.cached_property
    def uses(self) -> frozenset[str]:
        return _names(self.source)[1]


@functools.lru_cache(maxsize=32)
def _pieces(text: str) -> tuple[_Piece, ...]:
    """What a style's file is made of, in order."""
    marks = list(_CELL.finditer(text))
    head = text[: marks[0].start()] if marks else text
    found = [
        _Piece(ast.get_source_segment(head, node) + "\n")  # type: ignore[operator]
        for node in ast.parse(head).body
        if not (isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "solutions")
        and not isinstance(node, ast.Expr)
    ]
    exercise = ""  # that comes next
    cells = []
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    for mark, end in reversed(list(zip(marks, ends, strict=True))):
        source = text[mark.end() : end].strip("\n") + "\n"
        if mark[1] == "exercise":
            exercise = mark[2]
            cells.append(_Piece(source, exercise=exercise))
        elif mark[1] == "own":
            cells.append(_Piece(source, before=exercise))
    return (*found, *reversed(cells))


def _needed(
    cells: set[_Piece], pieces: Iterable[_Piece], have: Set[str], given: Set[str], whose: str
) -> tuple[set[str], set[_Piece]]:
    """What the cells need in a notebook that defines `have`: names of `given`, other pieces."""
    names: set[str] = set()
    found: set[_Piece] = set()
    while True:
        known = have.union(names, *(one.defines for one in cells | found))
        missing = set().union(*(one.uses for one in cells | found)) - known
        if not missing:
            return names, found
        name = min(missing)
        homes = [one for one in pieces if name in one.defines]
        if name in given and not any(one.before for one in homes):
            names.add(name)
        elif homes:
            found.add(homes[0])
        else:
            raise ValueError(f"nothing defines {name}, which {whose} uses")


def _names(source: str) -> tuple[frozenset[str], frozenset[str]]:
    """The names that a cell defines, and those that it uses without defining them."""
    top = symtable.symtable(source, "<cell>", "exec")
    defines = {
        one.get_name()
        for one in top.get_symbols()
        if one.is_assigned() or one.is_imported() or one.is_namespace()
    }
    used = {one.get_name() for one in top.get_symbols() if one.is_referenced()}
    used |= {
        one.get_name()
        for table in _inner(top)
        for one in table.get_symbols()
        if one.is_global() and one.is_referenced()
    }
    return frozenset(defines), frozenset(used - defines - set(vars(builtins)))


def _inner(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    for child in table.get_children():
        yield child
        yield from _inner(child)


@functools.cache
def _in_notebook(unit: str) -> frozenset[str]:
    """The names that the unit's notebook defines before anything is written into it."""
    path = paths.EXERCISES / unit / f"{unit}.ipynb"
    return frozenset().union(
        *(
            _names(source_of(cell))[0]
            for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]
            if runs(cell) and not cell["metadata"].get("nbgrader", {}).get("solution")
        )
    )


@functools.cache
def _in_given(unit: str) -> frozenset[str]:
    """The names that the unit's `given.py` defines; what it imports itself is not among them."""
    path = paths.given(unit)
    if not path.exists():
        return frozenset()
    top = symtable.symtable(path.read_text(encoding="utf-8"), path.name, "exec")
    return frozenset(one.get_name() for one in top.get_symbols() if not one.is_imported())
