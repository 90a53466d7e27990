"""Which files the marks of an assignment depend on, worked out from the source."""

from __future__ import annotations

import ast
import functools
import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from autograder.common import paths
from autograder.common.cells import runs, source_of

PACKAGES = ("autograder", "solutions", "toolkit")
# What marks a submission. The sandbox starts the last two by their path.
MACHINERY = ("grading/marker", "grading/pool_process", "sandbox/fork_server", "sandbox/worker")


def dependencies(
    unit: str, root: Path = paths.ROOT, machinery: Iterable[str] = MACHINERY
) -> list[Path]:
    """The files in the checkout at `root` on which the marks of a unit depend, sorted.

    The unit's graders, the reference, the misconceptions, `assignment.json`, `given.py`, whatever
    these and the marking itself import from the checkout, in a function or at the top, and what of
    the toolkit the handed out notebook imports. Of other units only what is imported from them: a
    package's `__init__` that hands on the names of all its modules does not bring them along.

    Args:
        unit: the unit's name.
        root: the checkout.
        machinery: the modules of `autograder` that do the work.
    """
    package, notebook = root / "autograder", root / "exercises" / unit / f"{unit}.ipynb"
    waiting = [
        (paths.graders(unit, root), True),
        (paths.solution(unit, root), True),
        (package / "misconceptions" / paths.inside(unit, ".py"), True),
        *((package / f"{name}.py", True) for name in machinery),
    ]
    found = dict.fromkeys([notebook.with_name("assignment.json"), paths.given(unit, root)], True)
    for source in _cells(notebook):
        used = {name for name in _imported(source) if name.split(".")[0] == "toolkit"}
        waiting += _files(used, root)
    while waiting:
        file, whole = waiting.pop()
        if file.is_file() and found.get(file) not in (True, whole):
            found[file] = whole
            waiting += _files(_imported(file.read_text(encoding="utf-8"), whole), root)
    return sorted(file for file in found if file.is_file())


def digest(files: Iterable[Path], root: Path = paths.ROOT) -> str:
    """One hash of the names and contents of files in the checkout at `root`."""
    found = hashlib.sha256()
    for file in files:
        content = file.read_bytes()
        found.update(f"{file.relative_to(root).as_posix()} {len(content)}\n".encode() + content)
    return found.hexdigest()


def _cells(notebook: Path) -> Iterator[str]:
    """The cells of a notebook that was handed out which are run when it is graded."""
    if not notebook.is_file():
        return
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        if runs(cell):
            # Magic commands are no Python and import nothing of ours.
            lines = source_of(cell).splitlines()
            yield "\n".join(line for line in lines if not line.lstrip().startswith(("%", "!")))


@functools.lru_cache(maxsize=256)
def _imported(source: str, whole: bool = True) -> frozenset[str]:
    """The names of the modules that a source imports; not those for types only.

    Args:
        source: the code.
        whole: also what its functions import, and not only what importing it does.
    """
    names: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.expr):
            return  # No import stands in an expression.
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not whole:
            return
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


def _files(names: Iterable[str], root: Path) -> Iterator[tuple[Path, bool]]:
    """The files of the modules, and of the packages around them; names of other things are none.

    With each whether it is used, and not only executed because it stands around another.
    """
    for name in names:
        parts = name.split(".")
        if parts[0] not in PACKAGES:
            continue
        place = root.joinpath(*parts)
        yield place.with_suffix(".py"), True
        yield place / "__init__.py", True
        for around in list(place.parents)[: len(parts) - 1]:
            file = around / "__init__.py"
            if file.is_file() and not _hands_on(file.read_text(encoding="utf-8")):
                yield file, False


@functools.lru_cache(maxsize=256)
def _hands_on(source: str) -> bool:
    """Whether a package's `__init__` imports names of its modules and does nothing else.

    It is executed wherever one of the modules is imported, and changes nothing there.
    """
    rest = [
        node
        for node in ast.parse(source).body
        if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    ]
    return any(isinstance(node, ast.ImportFrom) for node in rest) and all(
        isinstance(node, ast.ImportFrom)
        or (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__")
        for node in rest
    )
