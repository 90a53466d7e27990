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
from collections.abc import Iterable
from dataclasses import dataclass, field

from autograder.executor import MODULE_FUNCTIONS
from autograder.kept_texts import kept_for
from autograder.syntax import parsed

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
    found: list[str] = []
    queue = [exercise]
    met = {exercise}
    read_already: set[_Statement] = set()  # One statement may define many names.
    for current in queue:
        for statement in read.definitions.get(current, ()):
            if statement in read_already:
                continue
            read_already.add(statement)
            for text, is_name in statement.mentions:
                if not is_name:
                    meant = [text] if text in names else []
                elif text in read.definitions:
                    if text not in met:
                        met.add(text)
                        queue.append(text)
                    continue
                else:
                    meant = read.library(text)
                found += [name for name in meant if name in names and name not in found]
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
    judged = frozenset(judged_apart)
    own = _reached(read.definitions.get(exercise, []), read.definitions, judged - {exercise})
    found = [means for statement in own for means in _changes(statement, read.imports)]
    found += _loose_changes(tuple(sources), judged)
    for statement in own:
        found += _computes(statement, read.imports)
    return list(dict.fromkeys(found))


@kept_for(characters=200_000)
def _loose_changes(sources: tuple[str, ...], apart: frozenset[str]) -> list[str]:
    """The means in what runs when the cells do, found once for all exercises."""
    read = _read(sources)
    reached = _reached(read.loose, read.definitions, apart)
    return [means for statement in reached for means in _changes(statement, read.imports)]


def _changes(statement: _Statement, imports: dict[str, list[str]]) -> list[str]:
    """What in a statement could change the program that runs it."""
    allowed = {
        id(right)
        for node in statement.suspects
        if isinstance(node, ast.Compare)
        for operator, right in zip(node.ops, node.comparators, strict=True)
        if isinstance(operator, (ast.In, ast.NotIn))  # "google.colab" in sys.modules
    }
    return [means for node in statement.suspects for means in _change(node, imports, allowed)]


def _computes(statement: _Statement, imports: dict[str, list[str]]) -> list[str]:
    """What in a statement calls something that its text does not name, or calls it elsewhere."""
    found = [
        dotted
        for name in statement.names
        for dotted in imports.get(name, ())
        if dotted.split(".")[0] in WORKERS
    ]
    for node in statement.suspects:
        found += _computed(node)
    return found


def _change(node: ast.AST, imports: dict[str, list[str]], allowed: set[int]) -> list[str]:
    if isinstance(node, ast.Attribute):
        if node.attr in PRYING:
            return [node.attr]
        if node.attr == "modules" and id(node) not in allowed:
            base = node.value
            if isinstance(base, ast.Name) and "sys" in imports.get(base.id, ()):
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


def _computed(node: ast.AST) -> list[str]:
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
    start: list[_Statement], definitions: dict[str, list[_Statement]], apart: frozenset[str]
) -> list[_Statement]:
    """`start` and the definitions that it reaches by name."""
    statements: dict[_Statement, None] = {}
    seen, queue = set(apart), list(start)
    while queue:
        statement = queue.pop()
        if statement in statements:
            continue
        statements[statement] = None
        for name in statement.names:
            if name in definitions and name not in seen:
                seen.add(name)
                queue.extend(definitions[name])
    return list(statements)


@dataclass(frozen=True, eq=False)
class _Statement:
    """A statement at the top level of a cell.

    Args:
        names: the names in it, each once.
        mentions: what may name a function of the library, in order: attributes and texts, and
            names (True), which mean what they were imported as.
        suspects: the nodes at which `evasions` looks.
    """

    names: tuple[str, ...]
    mentions: tuple[tuple[str, bool], ...]
    suspects: tuple[ast.AST, ...]


@dataclass(frozen=True, eq=False)
class _Cell:
    """A cell's code, read once for a whole class: many hand in the same cell."""

    imports: tuple[tuple[str, str], ...]  # local name, dotted name
    defined: tuple[tuple[str, _Statement], ...]
    loose: tuple[_Statement, ...]  # statements that run with their cell


@dataclass
class _Reading:
    """A notebook's code. A name that is imported twice may mean either."""

    imports: dict[str, list[str]] = field(default_factory=dict)
    definitions: dict[str, list[_Statement]] = field(default_factory=dict)
    loose: list[_Statement] = field(default_factory=list)

    def library(self, name: str) -> list[str]:
        """The last parts of what a name can mean in the library."""
        meanings = [dotted.split(".") for dotted in self.imports.get(name, ())]
        return [parts[-1] for parts in meanings if parts[0] in LIBRARY]


@kept_for(characters=200_000)
def _read(sources: tuple[str, ...]) -> _Reading:
    read = _Reading()
    for source in sources:
        cell = _read_cell(source)
        for name, dotted in cell.imports:
            read.imports.setdefault(name, []).append(dotted)
        for name, statement in cell.defined:
            read.definitions.setdefault(name, []).append(statement)
        read.loose += cell.loose
    return read


@kept_for(characters=300_000)
def _read_cell(source: str) -> _Cell:
    tree = _parse(source)
    imports: list[tuple[str, str]] = []
    defined: list[tuple[str, _Statement]] = []
    loose: list[_Statement] = []
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Import):
            for item in node.names:
                first = item.name.split(".")[0]
                imports.append((item.asname, item.name) if item.asname else (first, first))
        elif isinstance(node, ast.ImportFrom):
            for item in node.names:
                imports.append((item.asname or item.name, f"{node.module}.{item.name}"))
    for body in tree.body if tree is not None else ():
        statement = _read_statement(body)
        defined += [(name, statement) for name in _defined(body)]
        if not isinstance(body, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            loose.append(statement)
    return _Cell(tuple(imports), tuple(defined), tuple(loose))


SUSPECT = (ast.Attribute, ast.Import, ast.ImportFrom, ast.Call, ast.Compare)


def _read_statement(body: ast.stmt) -> _Statement:
    names: dict[str, None] = {}
    mentions: dict[tuple[str, bool], None] = {}
    suspects = []
    for node in ast.walk(body):
        if isinstance(node, ast.Name):
            names[node.id] = None
            mentions[node.id, True] = None
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, str) and node.value in PRYING:
                suspects.append(node)
        elif isinstance(node, SUSPECT):
            suspects.append(node)
            text = _mentioned(node)
            if text:
                mentions[text, False] = None
    return _Statement(tuple(names), tuple(mentions), tuple(suspects))


def _parse(source: str) -> ast.Module | None:
    lines = [
        "pass" if line.lstrip().startswith(("%", "!", "?")) else line
        for line in source.splitlines()
    ]
    text = "\n".join(lines)
    return parsed(source if text == source.removesuffix("\n") else text)


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


def _mentioned(node: ast.AST) -> str:
    """What a node may name in the library: `softmax` for F.softmax, x.softmax, getattr's text."""
    if isinstance(node, ast.Attribute):
        base = node.value
        # An attribute of the student's own object, such as self.softmax, is looked at where it
        # is assigned.
        return "" if isinstance(base, ast.Name) and base.id == "self" else node.attr
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
        texts = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
        return next((text for text in texts if isinstance(text, str)), "")
    return ""
