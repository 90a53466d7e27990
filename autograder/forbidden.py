"""Which forbidden library functions does a student's source reach, read as text?

The worker watches PyTorch while the student's code runs, but it shares a process with that code.
This second look needs no execution: it follows names from an exercise through the notebook's own
functions and classes. A scratch cell that tries the library function costs nothing; only what the
exercise can reach counts.

Where text cannot say what is called, because a name is put together at run time or the watch is
interfered with, `evasions` names the means. No exercise needs them, and `check` says so too, so
that nobody learns of it only from the mark.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable
from dataclasses import dataclass, field

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
    read = _read(tuple(sources))
    modules, definitions = read.library, read.definitions
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
                own = isinstance(node, ast.Name) and node.id in definitions
                name = "" if own else _library_name(node, modules)
                if name in names and name not in found:
                    found.append(name)
                if isinstance(node, ast.Name) and node.id in definitions:
                    queue.append(node.id)
    return found


# Attributes that reach into the frames, objects and modules of a running program, or behind
# PyTorch's overrides. In an exercise they have no use.
PRYING = frozenset(
    [
        "_getframe",
        "_current_frames",
        "currentframe",
        "f_back",
        "f_locals",
        "f_globals",
        "tb_frame",
        "gi_frame",
        "cr_frame",
        "__globals__",
        "__builtins__",
        "__subclasses__",
        "__closure__",
        "__code__",
        "settrace",
        "setprofile",
        "get_objects",
        "get_referrers",
        "get_referents",
        "TorchFunctionMode",
        "TorchDispatchMode",
        "DisableTorchFunction",
        "DisableTorchFunctionSubclass",
        "_DisableTorchDispatch",
        "watched_functions",
    ]
)
# Modules with which code runs elsewhere, or the running program is changed.
WORKERS = frozenset(
    ("threading", "_thread", "concurrent", "multiprocessing", "subprocess", "asyncio")
)
CHANGERS = frozenset(("ctypes", "_ctypes", "cffi"))
OURS = ("autograder", "autograder.checks_for", "autograder.stock.points")  # in released cells
RUNS_TEXT = frozenset(("exec", "eval", "compile", "__import__", "import_module"))


def evasions(sources: Iterable[str], exercise: str, judged_apart: Iterable[str] = ()) -> list[str]:
    """Means by which `exercise` could call a forbidden function unseen, in words.

    Looks at what the exercise reaches, and at whatever runs when the cells do, since that could
    change the program for every exercise.

    Args:
        sources: the notebook's code cells, in order; cells that are not Python are skipped.
        exercise: the function or class that is judged.
        judged_apart: exercises that forbid something themselves, and so answer for themselves.
    """
    read = _read(tuple(sources))
    imports, definitions, loose = read.imports, read.definitions, read.loose
    apart = set(judged_apart) - {exercise}
    own = _reached(definitions.get(exercise, []), definitions, apart)
    found: list[str] = []
    for nodes in (own, _reached(loose, definitions, apart)):
        allowed = {
            id(right)
            for node in nodes
            if isinstance(node, ast.Compare)
            for operator, right in zip(node.ops, node.comparators, strict=True)
            if isinstance(operator, (ast.In, ast.NotIn))  # "google.colab" in sys.modules
        }
        for node in nodes:
            found += _changes(node, imports, allowed)
    for node in own:
        found += _computes(node, imports)
    return list(dict.fromkeys(found))


def _changes(node: ast.AST, imports: dict[str, str], allowed: set[int]) -> list[str]:
    """What in `node` could change the program that runs it."""
    if isinstance(node, ast.Attribute):
        if node.attr in PRYING:
            return [node.attr]
        if node.attr == "modules" and id(node) not in allowed:
            base = node.value
            if isinstance(base, ast.Name) and imports.get(base.id) == "sys":
                return ["sys.modules"]
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in PRYING:
        return [node.value]
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        modules = [item.name for item in node.names]
        if isinstance(node, ast.ImportFrom):
            modules = [f"{node.module}.{name}" for name in modules]
        return [
            name
            for name in modules
            if name.split(".")[0] in CHANGERS
            or name.split(".")[-1] in PRYING
            or name == "sys.modules"
            or (name.startswith("autograder") and name not in OURS)
        ]
    if isinstance(node, ast.Call):
        function = node.func
        name = getattr(function, "id", getattr(function, "attr", ""))
        method = isinstance(function, ast.Attribute) and name != "import_module"
        if name in RUNS_TEXT and not method:
            return [f"{name}(...)"]
    return []


def _computes(node: ast.AST, imports: dict[str, str]) -> list[str]:
    """What in `node` calls something that its text does not name, or calls it elsewhere."""
    if isinstance(node, ast.Name):
        module = imports.get(node.id, "")
        return [module] if module.split(".")[0] in WORKERS else []
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id in ("vars", "globals", "locals"):
            return [f"{node.func.id}(...)"]
        if node.func.id == "getattr" and len(node.args) > 1:
            whose, name = node.args[0], node.args[1]
            own = isinstance(whose, ast.Name) and whose.id == "self"
            if not own and not isinstance(name, ast.Constant):
                return ["getattr with a computed name"]
    if isinstance(node, ast.Attribute) and node.attr in ("__dict__", "__getattribute__"):
        return [node.attr]
    return []


def _reached(
    start: list[ast.AST], definitions: dict[str, list[ast.AST]], apart: set[str]
) -> list[ast.AST]:
    """Every node of `start` and of the definitions that it reaches by name."""
    nodes: list[ast.AST] = []
    seen, queue = set(apart), list(start)
    while queue:
        for node in ast.walk(queue.pop()):
            nodes.append(node)
            if isinstance(node, ast.Name) and node.id in definitions and node.id not in seen:
                seen.add(node.id)
                queue.extend(definitions[node.id])
    return nodes


@dataclass
class _Reading:
    """A notebook's code, read once for all exercises."""

    library: dict[str, str] = field(default_factory=dict)  # local name -> PyTorch's dotted name
    imports: dict[str, str] = field(default_factory=dict)  # local name -> any dotted name
    definitions: dict[str, list[ast.AST]] = field(default_factory=dict)
    loose: list[ast.AST] = field(default_factory=list)  # statements that run with their cell


@functools.lru_cache(maxsize=4)
def _read(sources: tuple[str, ...]) -> _Reading:
    read = _Reading()
    for tree in map(_parse, sources):
        if tree is None:
            continue
        for node in ast.walk(tree):
            _note_import(node, read.library)
            if isinstance(node, ast.Import):
                for item in node.names:
                    read.imports[item.asname or item.name.split(".")[0]] = item.name
            elif isinstance(node, ast.ImportFrom):
                for item in node.names:
                    read.imports[item.asname or item.name] = f"{node.module}.{item.name}"
        for statement in tree.body:
            for name in _defined(statement):
                read.definitions.setdefault(name, []).append(statement)
            if not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                read.loose.append(statement)
    return read


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
