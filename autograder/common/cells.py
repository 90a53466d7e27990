"""The code cells of a notebook that are run to obtain a student's definitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# The first line of cells that are not graded: `%%ungraded`, in the notebook a magic that runs them.
UNGRADED = "ungraded"


@dataclass(frozen=True)
class Cell:
    """One code cell: its id, its source as the student wrote it, and a name for people."""

    id: str
    source: str
    name: str


def runs(cell: Mapping[str, Any]) -> bool:
    """Whether a notebook cell is run when its notebook is graded.

    Every code cell with something in it is run, in the order of the notebook, except nbgrader's
    test cells: the graders run outside the notebook and whatever stands in those cells is theirs.
    Cells that say themselves that they are not graded are left out too.
    """
    if cell.get("cell_type") != "code" or not source_of(cell).strip():
        return False
    if is_ungraded(source_of(cell)):
        return False
    nbgrader = _mapping(_mapping(cell.get("metadata")).get("nbgrader"))
    return not (nbgrader.get("grade") is True and nbgrader.get("solution") is not True)


def is_ungraded(source: str) -> bool:
    """Whether a cell's first line is `%%ungraded`."""
    return source.lstrip().partition("\n")[0].split() == [f"%%{UNGRADED}"]


def source_of(cell: Mapping[str, Any]) -> str:
    """The source of a notebook cell, which a file may hold as text or as a list of lines."""
    source = cell.get("source", "")
    if isinstance(source, str):
        return source
    if isinstance(source, list):
        return "".join(line for line in source if isinstance(line, str))
    return ""


def cells_of(notebook: Mapping[str, Any]) -> list[Cell]:
    """The cells of `notebook` (nbformat's object or plain JSON, format 4) that are run, in order.

    A cell's name is its nbgrader id where it has one, and its place in the notebook otherwise.
    """
    cells = notebook.get("cells", [])
    found: list[Cell] = []
    for number, cell in enumerate(cells if isinstance(cells, list) else [], start=1):
        if not isinstance(cell, Mapping) or not runs(cell):
            continue
        nbgrader = _mapping(_mapping(cell.get("metadata")).get("nbgrader"))
        grade_id = nbgrader.get("grade_id")
        name = grade_id if isinstance(grade_id, str) and grade_id else f"cell {number}"
        identity = cell.get("id")
        found.append(
            Cell(
                id=identity if isinstance(identity, str) and identity else name,
                source=source_of(cell),
                name=name,
            )
        )
    return found


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
