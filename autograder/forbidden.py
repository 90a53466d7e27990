"""Which forbidden library functions does a student's source reach, read as text?

The worker watches PyTorch while the student's code runs, but it shares a process with that code.
This second look needs no execution: it follows names from an exercise through the notebook's own
functions and classes. A scratch cell that tries the library function costs nothing; only what the
exercise can reach counts.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from autograder.executor import MODULE_FUNCTIONS

# Where the library's functions live; anything reached through these names is the library's.
LIBRARY = ("torch",)


def forbidden_calls(sources: Iterable[str], exercise: str, forbids: Iterable[str]) -> list[str]:
    """The forbidden names that `exercise` reaches.

    Args:
        sources: the notebook's code cells, in order; cells that are not Python are skipped.
        exercise: the function or class that is judged.
        forbids: names such as "softmax" or "nn.MultiheadAttention".

    Returns:
        Names in the order in which they are met; empty if there are none.
    """
    names = {entry.split(".")[-1] for entry in forbids}
    for name in list(names):
        names.update(MODULE_FUNCTIONS.get(name, ()))
    modules: dict[str, str] = {}  # local name -> dotted name in the library
    definitions: dict[str, list[ast.AST]] = {}
    for source in sources:
        tree = _parse(source)
        if tree is None:
            continue
        for node in ast.walk(tree):
            _note_import(node, modules)
        for node in tree.body:
            for name in _defined(node):
                definitions.setdefault(name, []).append(node)

    found: list[str] = []
    seen: set[str] = set()
    queue = [exercise]
    while queue:
        current = queue.pop(0)
        if current in seen:
            continue
        seen.add(current)
        for definition in definitions.get(current, ()):
            for node in ast.walk(definition):
                _note_import(node, modules)
                own = isinstance(node, ast.Name) and node.id in definitions
                name = "" if own else _library_name(node, modules)
                if name in names and name not in found:
                    found.append(name)
                if isinstance(node, ast.Name) and node.id in definitions:
                    queue.append(node.id)
    return found


def _parse(source: str) -> ast.Module | None:
    lines = [
        "pass" if line.lstrip().startswith(("%", "!", "?")) else line
        for line in source.splitlines()
    ]
    try:
        return ast.parse("\n".join(lines))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _note_import(node: ast.AST, modules: dict[str, str]) -> None:
    if isinstance(node, ast.Import):
        for item in node.names:
            if item.name.split(".")[0] in LIBRARY:
                dotted = item.name if item.asname else item.name.split(".")[0]
                modules[item.asname or dotted] = dotted
    elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in LIBRARY:
        for item in node.names:
            modules[item.asname or item.name] = f"{node.module}.{item.name}"


def _defined(node: ast.AST) -> list[str]:
    """The names that a top-level statement binds to something of its own."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return [name.id for target in targets for name in ast.walk(target) if _is_name(name)]
    if isinstance(node, (ast.If, ast.Try, ast.With, ast.For, ast.While)):
        return [name for child in ast.iter_child_nodes(node) for name in _defined(child)]
    return []


def _is_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Name)


def _library_name(node: ast.AST, modules: dict[str, str]) -> str:
    """What a node names in the library: `softmax` for F.softmax, x.softmax and getattr's text."""
    if isinstance(node, ast.Attribute):
        base = node.value
        # An attribute of the student's own object, such as self.softmax, is looked at where it
        # is assigned.
        if isinstance(base, ast.Name) and base.id == "self":
            return ""
        return node.attr
    if isinstance(node, ast.Name) and node.id in modules:
        return modules[node.id].split(".")[-1]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
        texts = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
        return next((text for text in texts if isinstance(text, str)), "")
    return ""
