"""The cells at the end of a unit's notebook, in which students use what they have built.

They stand in `autograder/ungraded/<chapter>/<unit>.py`, not in the unit's reference module: that
one is imported for grading and by the book, and these run a model or train one. There they are
code that ruff reads, and that runs as it stands:

    \"""What the cells do, in a sentence.\"""

    from solutions.bert.pretraining import mask_tokens   the notebook has its own

    # isort: split
    # %%
    from toolkit import own_models
    ...

Each cell begins with `%%ungraded` in the notebook and carries nothing of nbgrader's, so that no
grader runs it and a repair leaves it as the student has it.
"""

from __future__ import annotations

import ast
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from autograder.common import paths
from autograder.common.cells import UNGRADED
from autograder.common.errors import AssignmentError

TEXT = """## Train yours

{does}

This is not graded, and left out when your notebook is graded: change what you like. What goes
wrong is said in a sentence; `%tb` then shows where."""
_MARKER = "# %%\n"


def what_they_do(path: Path) -> str:
    """The first sentence of a script of ungraded cells: its docstring."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    if not text:
        raise AssignmentError(f"ungraded/{_place(path)} has no docstring; say what its cells do.")
    return " ".join(text.split())


def of(unit: str, root: Path = paths.ROOT, text: str = TEXT) -> list[NotebookNode]:
    """The last cells of a unit's notebook, below a text; none where there is no script of them."""
    path = paths.ungraded(unit, root)
    if not path.is_file():
        return []
    does = what_they_do(path)
    _, *sources = path.read_text(encoding="utf-8").split(_MARKER)
    if not sources:
        raise AssignmentError(f"ungraded/{_place(path)} has no cell; begin one with the line # %%.")
    cells = [nbformat.v4.new_markdown_cell(text.format(does=does), id=UNGRADED)]
    for number, source in enumerate(sources, 1):
        code = f"%%{UNGRADED}\n{source.strip()}"
        cells.append(nbformat.v4.new_code_cell(code, id=f"{UNGRADED}-{number}"))
    return cells


def _place(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"
