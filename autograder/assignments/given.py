"""What a unit is given of the chapter's earlier units: the source of its `given.py`.

A reference module imports names from earlier units; the students' notebook imports the same names
from `given`, which is written here: those functions and classes, what they need themselves, and
nothing else. The notebook that puts a whole chapter together is given parts in the same way.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from autograder.common import paths
from autograder.common.definitions import defined, first_line
from autograder.units.variants import cell_spans

HEAD = '''"""What earlier units of this chapter have built, as far as {unit} needs it.

From {sources}. Nothing in this file is yours to write.
"""

'''
HEAD_OF_CHAPTER = '''"""The course's own parts, for what you have not written before {last}.

From {sources}.
{notebook} takes them, and yours wherever there is one.
"""

# What each unit asks for.
EXERCISES = {{
{exercises}}}

'''
# The import in a notebook, and what is said where the file is not beside it.
IMPORT = """try:
    {line}
except ImportError:
    raise ImportError(
        "given.py is missing or another unit's: "
        "put the one that came with this notebook beside it and restart the kernel."
    ) from None"""
_MARKER = re.compile(r"^[ \t]*### (?:BEGIN|END) SOLUTION[ \t]*\n", re.MULTILINE)


@dataclass(frozen=True)
class _Statement:
    """One statement at the top of a reference module."""

    unit: str
    text: str
    names: frozenset[str]  # that it defines
    used: frozenset[str]


def imported(code: str) -> list[str]:
    """The names that `code` imports from reference modules, sorted."""
    return sorted(
        alias.name
        for node in ast.walk(ast.parse(code))
        if _of_solutions(node)
        for alias in node.names  # type: ignore[attr-defined]
    )


def for_notebook(code: str) -> str:
    """`code` with one import from `given` in place of those from reference modules."""
    found = [node for node in ast.parse(code).body if _of_solutions(node)]
    if not found:
        return code
    lines = code.splitlines()
    for node in reversed(found):
        del lines[node.lineno - 1 : node.end_lineno]
    while lines and not lines[-1].strip():
        lines.pop()
    names = imported(code)
    line = f"from given import {', '.join(names)}"
    if len(line) > 96:
        line = "from given import (\n" + "".join(f"        {name},\n" for name in names) + "    )"
    return "\n".join([*lines, *([""] if lines else []), IMPORT.format(line=line)])


def source(unit: str, solutions: Path = paths.SOLUTIONS) -> str:
    """The text of the unit's `given.py`; empty where it needs nothing of earlier units."""
    own = (solutions / paths.inside(unit, ".py")).read_text(encoding="utf-8")
    wanted = set(imported(_without_private(own)))
    if not wanted:
        return ""
    return _written(HEAD, wanted, texts_before(unit, solutions), unit=unit)


def of_chapter(chapter: str, wanted: Collection[str], solutions: Path = paths.SOLUTIONS) -> str:
    """The text of `<chapter>-given.py`: no answer of the last unit.

    Args:
        chapter: the chapter.
        wanted: names of the chapter that its last notebook uses itself. What units are given comes
            along, so that each unit's notebook can be read beside it.
        solutions: where the reference modules lie.
    """
    units = [f"{chapter}-{name}" for name in paths.CHAPTERS[chapter]]
    texts = texts_before(units[-1], solutions)
    last = (solutions / paths.inside(units[-1], ".py")).read_text(encoding="utf-8")
    names = set(wanted)
    asked = ""
    for unit, text in {**texts, units[-1]: last}.items():
        names |= set(imported(_without_private(text)))
        rows = "".join(f'        "{name}",\n' for name in cell_spans(text))
        asked += f'    "{unit}": [\n{rows}    ],\n'
    return _written(
        HEAD_OF_CHAPTER, names, texts, last=units[-1], notebook=f"{chapter}-mine.ipynb",
        exercises=asked,
    )  # fmt: skip


def texts_before(unit: str, solutions: Path) -> dict[str, str]:
    """The reference modules of the units before `unit` in its chapter, by unit."""
    chapter = paths.chapter_of(unit)
    found = {}
    for name in paths.CHAPTERS.get(chapter, ()):
        if unit == f"{chapter}-{name}":
            break
        path = solutions / paths.inside(f"{chapter}-{name}", ".py")
        if path.is_file():
            found[f"{chapter}-{name}"] = path.read_text(encoding="utf-8")
    return found


def _written(head: str, wanted: Collection[str], texts: Mapping[str, str], **said: str) -> str:
    """A file that holds the wanted names and what they need, from reference modules by unit."""
    statements: list[_Statement] = []
    imports: list[ast.stmt] = []
    for unit, text in texts.items():
        more, found = _statements(unit, text)
        statements += found
        imports += more
    homes = {name: statement for statement in statements for name in statement.names}
    needed: set[_Statement] = set()
    waiting = [homes[name] for name in wanted if name in homes]
    while waiting:
        statement = waiting.pop()
        if statement not in needed:
            needed.add(statement)
            waiting += [homes[name] for name in statement.used if name in homes]
    kept = [statement for statement in statements if statement in needed]
    used = frozenset().union(*(statement.used for statement in kept))
    files = dict.fromkeys(f"solutions/{paths.inside(one.unit, '.py')}" for one in kept)
    said["sources"] = " and ".join(files)
    return head.format(**said) + _imports(imports, used) + _joined(kept)


def _of_solutions(node: ast.AST) -> bool:
    return isinstance(node, ast.ImportFrom) and (node.module or "").startswith("solutions.")


def _without_private(text: str) -> str:
    """A percent script without the cells that students never get."""
    cells = re.split(r"(?m)^(?=# ?%%)", text)
    return "".join(cell for cell in cells if '"instructor"' not in cell.partition("\n")[0])


def _statements(unit: str, text: str) -> tuple[list[ast.stmt], list[_Statement]]:
    """The imports and the other statements of a reference module."""
    code = _MARKER.sub("", _without_private(text))
    lines = code.splitlines()
    imports: list[ast.stmt] = []
    found: list[_Statement] = []
    for node in ast.parse(code).body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            if not _of_solutions(node):
                imports.append(node)
        elif names := defined(node):
            source = "\n".join(lines[first_line(node) - 1 : node.end_lineno])
            found.append(_Statement(unit, source, frozenset(names), frozenset(_used(node))))
    return imports, found


def _used(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def _imports(nodes: list[ast.stmt], used: frozenset[str]) -> str:
    """The import statements for the names in `used`, the standard library's first."""
    lines: dict[str, None] = {}
    for node in nodes:
        assert isinstance(node, (ast.Import, ast.ImportFrom))
        names = [one for one in node.names if (one.asname or one.name).split(".")[0] in used]
        for one in names:
            name = one.name + (f" as {one.asname}" if one.asname else "")
            if isinstance(node, ast.Import):
                lines[f"import {name}"] = None
            else:
                lines[f"from {node.module} import {name}"] = None
    ours = sorted((one for one in lines if "torch" in one), key=_as_isort)
    theirs = sorted((one for one in lines if "torch" not in one), key=_as_isort)
    return "".join("\n".join(_together(block)) + "\n\n" for block in (theirs, ours) if block)


def _as_isort(line: str) -> tuple[bool, str]:
    return line.startswith("from"), line


def _together(lines: list[str]) -> list[str]:
    """Lines of one module in one: `from torch import Tensor, nn`."""
    found: dict[str, list[str]] = {}
    for line in lines:
        head, _, name = line.partition(" import ")
        found.setdefault(head if name else line, []).append(name)
    return [
        f"{head} import {', '.join(sorted(names))}" if names[0] else head
        for head, names in found.items()
    ]


def _joined(statements: list[_Statement]) -> str:
    """Definitions two lines apart, constants one below the other."""
    text = "\n"
    block = False
    for statement in statements:
        was, block = block, statement.text.startswith(("def ", "class ", "@"))
        text += ("\n\n" if was or (block and text != "\n") else "") + statement.text + "\n"
    return text
