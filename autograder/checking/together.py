"""A chapter's units put together: what a student has written, and the course's parts for the rest.

    mine = put_together("gpt")
    mine.GPT

Of each unit's notebook the imports, functions and classes are taken, and the assignments that they
need: no check runs, no training, no cell with `%%ungraded`. Each notebook keeps names of its own,
so that two helpers of one name do not meet; what an exercise's code calls of earlier units is the
student's wherever there is one.
"""

from __future__ import annotations

import ast
import os
import symtable
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from autograder.checking import ungraded
from autograder.checking.notebook import read_cells, run_cell, without_magics
from autograder.common import paths
from autograder.common.definitions import DEFINITIONS, defined, first_line
from autograder.common.errors import AssignmentError
from autograder.sandbox.timelimit import TimeLimit

# Where a unit's notebook may lie, seen from the one that puts them together: beside it, in its
# folder there or one up, or in a folder of a folder, as Windows unpacks a zip.
PLACES = (".", "{unit}", "../{unit}", "../../{unit}/{unit}")
WIDTH = 80
_IMPORTS = (ast.Import, ast.ImportFrom)


@dataclass
class Part:
    """One unit: the names that its exercises define, by where they come from."""

    unit: str
    notebook: Path | None
    yours: list[str] = field(default_factory=list)
    given: list[str] = field(default_factory=list)
    open: list[str] = field(default_factory=list)  # neither written nor given
    troubles: list[str] = field(default_factory=list)


def put_together(chapter: str) -> ModuleType:
    """All functions and classes of a chapter in one module, the student's where there are any.

    Prints whose each is. What is neither written nor given says so when it is called.

    Raises:
        AssignmentError: there is no such chapter, or what is given of it is not here.
    """
    ungraded.register()
    mine, parts = assembled(chapter, Path())
    print(told(parts))
    return mine


def assembled(chapter: str, folder: Path) -> tuple[ModuleType, list[Part]]:
    """The module of a chapter's units, and where its parts come from.

    Args:
        chapter: its name.
        folder: where `<chapter>-given.py` lies, and from where the notebooks are looked for.
    """
    mine = ModuleType(f"{chapter}-mine")
    names = vars(mine)
    _take_given(chapter, folder, names)
    sys.modules[mine.__name__] = mine  # A dataclass looks for the module that it stands in.
    parts = [_taken(unit, asked, folder, names) for unit, asked in names["EXERCISES"].items()]
    return mine, parts


def told(parts: Iterable[Part]) -> str:
    """Whose each name is, unit by unit, and what did not run."""
    lines: list[str] = []
    troubles: list[str] = []
    for part in parts:
        lines.append(part.unit if part.notebook else f"{part.unit}: no {part.unit}.ipynb here")
        for head, found in (
            ("yours", part.yours), ("given", part.given), ("to write", part.open)
        ):  # fmt: skip
            if found:
                lines += textwrap.wrap(
                    ", ".join(found), WIDTH, initial_indent=f"  {head:10}",
                    subsequent_indent=" " * 12,
                )  # fmt: skip
        troubles += part.troubles
    return "\n".join([*lines, *troubles])


def _take_given(chapter: str, folder: Path, names: dict[str, Any]) -> None:
    if chapter not in paths.CHAPTERS:
        raise AssignmentError(
            f"There is no chapter {chapter!r}; there are {', '.join(paths.CHAPTERS)}."
        )
    file = folder / f"{chapter}-given.py"
    try:
        source = file.read_text(encoding="utf-8")
    except OSError:
        raise AssignmentError(
            f"{file.name} is missing: put the one that came with this notebook beside it."
        ) from None
    exec(compile(source, str(file), "exec", dont_inherit=True), names)


def _taken(unit: str, asked: Sequence[str], folder: Path, names: dict[str, Any]) -> Part:
    """Take what a unit's notebook defines into `names`, and say what that is."""
    part = Part(unit, _notebook(unit, folder))
    own = dict(names)  # the notebook's names: of earlier units, and then its own
    if part.notebook is not None:
        try:
            cells = _Notebook(read_cells(part.notebook), asked, names)
        except AssignmentError as error:
            part.troubles.append(str(error))
        else:
            part.troubles += cells.run(part.notebook.name, own)
            part.yours = [name for name in asked if name in cells.written
                          and own.get(name) is not names.get(name)]  # fmt: skip
    names.update((name, own[name]) for name in part.yours)
    part.given = [name for name in asked if name in names and name not in part.yours]
    part.open = [name for name in asked if name not in names]
    # The stub, which says whose it is to write.
    names.update((name, own.get(name) or _unwritten(name)) for name in part.open)
    return part


def _notebook(unit: str, folder: Path) -> Path | None:
    """The unit's notebook: of several the one that was saved last."""
    found = [folder / place.format(unit=unit) / f"{unit}.ipynb" for place in PLACES]
    return max(filter(Path.is_file, found), key=os.path.getmtime, default=None)


def _unwritten(name: str) -> Callable[..., NoReturn]:
    def call(*_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(f"{name} is yours to write")

    return call


class _Notebook:
    """A notebook's code cells, without what defines nothing.

    Args:
        cells: their sources.
        asked: the names of the unit's exercises.
        given: what there is without it.
    """

    def __init__(self, cells: Sequence[str], asked: Sequence[str], given: dict[str, Any]) -> None:
        self.cells = [without_magics(source) for source in cells]
        self.trees = [_parsed(source) for source in self.cells]
        self.asked, self.given = asked, given
        statements = [node for tree in self.trees if tree for node in tree.body]
        self.written = {
            name
            for node in statements
            for name in defined(node)
            if name in asked and not _is_stub(node, name)
        }
        self._needed = set(asked)
        self._kept = [node for node in statements if self._is_kept(node)]
        while more := [  # Assignments may need others.
            node
            for node in statements
            if isinstance(node, (ast.Assign, ast.AnnAssign))
            and node not in self._kept
            and not self._needed.isdisjoint(defined(node))
        ]:
            self._kept += more
            self._needed.update(*map(_used, more))

    def run(self, name: str, namespace: dict[str, Any]) -> list[str]:
        """Execute what is taken; a sentence for each cell that fails.

        Args:
            name: the notebook's.
            namespace: what its cells find, and where they put their definitions.
        """
        sources = [self._source(*cell) for cell in zip(self.cells, self.trees, strict=True)]
        troubles = []
        for number in range(1, len(sources) + 1):
            file = ungraded.ELSEWHERE.format(notebook=name, number=number)
            with TimeLimit(namespace) as limit:
                trouble = run_cell(sources, number, namespace, limit, file)
            if trouble:
                troubles.append(f"In {name} {trouble[0].lower()}{trouble[1:]}")
        return troubles

    def _source(self, source: str, tree: ast.Module | None) -> str:
        """A cell with empty lines for what is left out; as it is where it can't be read."""
        if tree is None:
            return source
        kept = {
            number
            for node in tree.body
            if node in self._kept
            for number in range(first_line(node), (node.end_lineno or node.lineno) + 1)
        }
        lines = source.split("\n")
        return "\n".join(line if n in kept else "" for n, line in enumerate(lines, 1))

    def _is_kept(self, node: ast.stmt) -> bool:
        if isinstance(node, DEFINITIONS):
            name = node.name
            if name in self.asked and _is_stub(node, name):
                return name not in self.written and name not in self.given
            self._needed |= _used(node)
            return True
        inside = node.body if isinstance(node, (ast.Try, ast.If)) else [node]
        imports = [one for one in inside if isinstance(one, _IMPORTS)]
        return bool(imports) and not any(
            isinstance(one, ast.ImportFrom) and one.module == "given" for one in imports
        )


def _parsed(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError):
        return None


def _used(node: ast.stmt) -> set[str]:
    """The names of the notebook's that a statement uses, in its functions too."""

    def visit(table: symtable.SymbolTable) -> Iterator[str]:
        top = table.get_type() == "module"
        yield from (one.get_name() for one in table.get_symbols()
                    if one.is_global() or (top and one.is_referenced()))  # fmt: skip
        for child in table.get_children():
            yield from visit(child)

    return set(visit(symtable.symtable(ast.unparse(node), "<cell>", "exec")))


def _is_stub(node: ast.stmt, name: str) -> bool:
    """Whether a definition still raises, in a line that is reached, that it is to be written."""
    for part in ast.walk(node):
        body = getattr(part, "body", None)
        for statement in body if isinstance(body, list) else []:
            if isinstance(statement, ast.Return):
                break  # What stands below it is left from the stub.
            if isinstance(statement, ast.Raise) and statement.exc is not None:
                found = ungraded.YOURS.search(ast.unparse(statement.exc))
                if found and found[1] == name:
                    return True
    return False
