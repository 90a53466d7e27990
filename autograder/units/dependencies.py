"""Which files the marks of an assignment depend on, worked out from the source."""

from __future__ import annotations

import ast
import functools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from autograder.common import paths

PACKAGES = ("autograder", "solutions", "toolkit")
# What marks a submission. The sandbox starts the last two by their path.
MACHINERY = ("grading/marker", "grading/pool_process", "sandbox/fork_server", "sandbox/worker")


def dependencies(unit: str, root: Path = paths.ROOT) -> list[Path]:
    """The files in the checkout at `root` on which the marks of a unit depend, sorted.

    The unit's graders, the reference, the misconceptions,
    `assignment.json`, whatever these and the marking itself import from the checkout, in a function
    or at the top, and what of the toolkit the handed out notebook imports.
    """
    package, notebook = root / "autograder", root / "exercises" / unit / f"{unit}.ipynb"
    waiting = [
        paths.graders(unit, root),
        paths.solution(unit, root),
        package / "misconceptions" / paths.inside(unit, ".py"),
        *(package / f"{name}.py" for name in MACHINERY),
    ]
    found = {notebook.with_name("assignment.json"), paths.given(unit, root)}
    for source in _cells(notebook):
        used = {name for name in _imported(source) if name.split(".")[0] == "toolkit"}
        waiting += _files(used, root)
    while waiting:
        file = waiting.pop()
        if file not in found and file.is_file():
            found.add(file)
            waiting += _files(_imported(file.read_text(encoding="utf-8")), root)
    return sorted(file for file in found if file.is_file())


def _cells(notebook: Path) -> Iterator[str]:
    """The code cells of a notebook that was handed out."""
    if not notebook.is_file():
        return
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            # Magic commands are no Python and import nothing of ours.
            lines = "".join(cell["source"]).splitlines()
            yield "\n".join(line for line in lines if not line.lstrip().startswith(("%", "!")))


@functools.lru_cache(maxsize=256)
def _imported(source: str) -> frozenset[str]:
    """The names of the modules that a source imports, here and there; not those for types only."""
    names: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.expr):
            return  # No import stands in an expression.
        if isinstance(node, ast.If) and "TYPE_CHECKING" in vars(node.test).values():
            for statement in node.orelse:
                visit(statement)
            return
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
        for child in ast.iter_child_nodes(node):
            visit(child)

    try:
        visit(ast.parse(source))
    except SyntaxError:  # A cell in which something is still to be written.
        return frozenset()
    return frozenset(names)


def _files(names: Iterable[str], root: Path) -> Iterator[Path]:
    """The files of the modules, with the packages around them; names of other things are none."""
    for name in names:
        parts = name.split(".")
        if parts[0] in PACKAGES:
            for length in range(1, len(parts) + 1):
                place = root.joinpath(*parts[:length])
                yield place / "__init__.py"
                yield place.with_suffix(".py")
