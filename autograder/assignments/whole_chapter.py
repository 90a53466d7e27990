"""The notebook that puts a student's units of a chapter together, `exercises/<chapter>-mine.ipynb`.

Its cells stand in `autograder/ungraded/<chapter>/mine.py`, as those of a unit do. There the chapter
is the reference's, `from solutions import gpt as mine`; in the notebook it is the student's. What
students have not written comes from `<chapter>-given.py` beside it: the names that the cells use,
and what the chapter's units are given.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from autograder.assignments import given, last_cells
from autograder.common import paths

TEXT = """# {title}: all that you have built

{does}

The next cell takes your answers from this chapter's notebooks: beside this one, or in their folders
beside this one or beside its folder, under the names that they came with. Save them first, and run
the cell again after a change. Nothing here is graded or handed in, so change what you like."""
FIRST = """from autograder.checking.together import put_together

mine = put_together("{chapter}")"""
_TITLE = re.compile(r"^# # (.+?):", re.MULTILINE)


def files(chapter: str) -> tuple[str, str]:
    """The names of the notebook and of what is given beside it."""
    return f"{chapter}-mine.ipynb", f"{chapter}-given.py"


def cells(chapter: str, root: Path = paths.ROOT) -> list[NotebookNode]:
    """The notebook's cells; none where there is no script of them."""
    if not paths.ungraded(f"{chapter}-mine", root).is_file():
        return []
    made = last_cells.of(f"{chapter}-mine", root, TEXT.replace("{title}", _title(chapter, root)))
    made.insert(1, nbformat.v4.new_code_cell(FIRST.format(chapter=chapter), id="mine"))
    return made


def given_parts(chapter: str, root: Path = paths.ROOT) -> str:
    """The source of what is given beside the notebook."""
    script = paths.ungraded(f"{chapter}-mine", root).read_text(encoding="utf-8")
    used = {
        node.attr
        for node in ast.walk(ast.parse(script))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "mine"
    }
    return given.of_chapter(chapter, used, root / "solutions")


def _title(chapter: str, root: Path) -> str:
    """What the headings of the chapter's units begin with: "The Transformer"."""
    first = paths.solution(f"{chapter}-{paths.CHAPTERS[chapter][0]}", root)
    found = _TITLE.search(first.read_text(encoding="utf-8"))
    return found[1] if found else chapter
