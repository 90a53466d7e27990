"""The lines of a student's cell in which a known mistake stands.

A misconception is a change of the reference: some of its statements became others. Those wrong
statements are looked for in the student's own cell, as tokens, so that spaces, comments, brackets
and annotations do not matter, first with the names as they are and then with names of one's own
taken for each other. What also stands in the reference is never taken for the mistake, and where
nothing is found with confidence, nothing is said.
"""

from __future__ import annotations

import ast
import difflib
import functools
import io
import itertools
import re
import tokenize
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from autograder.units.variants import (
    Misconception,
    cell_spans,
    changed_source,
    misconceptions,
    source_of,
    without_markers,
)

MOST_LINES = 6  # of an excerpt, after which no further statement begins
LONGEST = 10  # lines of an excerpt at all
WIDE = 160  # characters of a line
MAX_CELL = 20_000  # characters of a cell that is looked into
NEAR = 0.7  # share of tokens that a statement has in common with the wrong one
FEW = 8  # tokens; a shorter statement proves nothing without one beside it

Tokens = tuple[str, ...]

_TOKEN = re.compile(
    r"""[^\W\d]\w*|\d[\w.]*(?:e[+-]?\d+)?|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|\*\*|//|->"""
    r"""|[<>=!:@+\-*/|&]=|[^\s\w]"""
)
# Before a name in the tree that was parsed: no identifier has it, they are normalised to "l".
_LOCAL, _PARAMETER = "\u2113_", "\u2113p"
_INFINITY = re.compile(r"float\('-inf(?:inity)?'\)|(?<![\w)])-(?:math|torch|np|numpy)\.inf\b", re.I)


@dataclass(frozen=True)
class Statement:
    """A simple statement or the head of a compound one.

    Args:
        lines: its first and its last line, counted from 1.
        scope: the class and function in which it stands.
        marked: its tokens; names of the cell's own carry a mark.
        column: where it begins.
    """

    lines: tuple[int, int]
    scope: str
    marked: Tokens
    column: int = 0

    @functools.cached_property
    def exact(self) -> Tokens:
        """The tokens with the names as they are."""
        return tuple(_plain(token) for token in self.marked)

    @functools.cached_property
    def loose(self) -> Tokens:
        """The tokens with parameters by their place and without the names of other variables."""
        return tuple(
            token.split("_", 1)[0] if token.startswith(_PARAMETER) else
            "\u00b7" if token.startswith(_LOCAL) else token
            for token in self.marked
        )  # fmt: skip


def _plain(token: str) -> str:
    return token.split("_", 1)[1] if token.startswith("\u2113") else token


@dataclass(frozen=True)
class Excerpt:
    """Some lines of a cell.

    Args:
        text: the lines, without comments; where some are left out stands an ellipsis.
        key: equal for lines that are equal but for names and spaces.
        lines: the numbers of the lines.
        reference: the lines of the reference that stand in their place.
    """

    text: str
    key: Tokens
    lines: tuple[int, ...]
    reference: str = ""


@dataclass(frozen=True)
class Cell:
    """A cell's source and its statements; none where it cannot be read."""

    source: str
    statements: tuple[Statement, ...]

    @classmethod
    def read(cls, source: str) -> Cell:
        """The cell with that source."""
        if len(source) > MAX_CELL:
            return cls(source, ())
        try:
            tree = ast.parse(source)
            _Marks().visit(tree)
            return cls(source, tuple(_statements(tree.body, "")))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return cls(source, ())


class _Marks(ast.NodeTransformer):
    """Marks the names that a cell gives to parameters and variables; annotations go."""

    def __init__(self) -> None:
        self.known: list[dict[str, str]] = []

    def visit_FunctionDef(self, node: Any) -> Any:
        arguments = node.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        every += [one for one in (arguments.vararg, arguments.kwarg) if one is not None]
        # The parameters of exercises have their places by contract, those of helpers do not.
        outermost = not self.known
        names = {
            one.arg: f"{_PARAMETER}{place}_{one.arg}" if outermost else f"{_LOCAL}{one.arg}"
            for place, one in enumerate(every)
        }
        free = {name for part in self.known for name in part}
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                if inner.id not in free:
                    names.setdefault(inner.id, f"{_LOCAL}{inner.id}")
            elif isinstance(inner, ast.Lambda):
                for one in (*inner.args.args, *inner.args.kwonlyargs):
                    names.setdefault(one.arg, f"{_LOCAL}{one.arg}")
        self.known.append(names)
        for one in every:
            one.annotation = None
        node.returns = None
        self.generic_visit(node)
        self.known.pop()
        return node

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.arg = self._name(node.arg)
        node.annotation = None
        return node

    def visit_Name(self, node: ast.Name) -> ast.Name:
        node.id = self._name(node.id)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        if node.value is None:
            return ast.copy_location(ast.Pass(), node)
        plain = ast.Assign(targets=[node.target], value=node.value)
        return self.generic_visit(ast.copy_location(plain, node))

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        # Everybody has words of their own for it.
        if isinstance(node.exc, ast.Call):
            node.exc = ast.Call(func=node.exc.func, args=[], keywords=[])
        node.cause = None
        return self.generic_visit(node)

    def _name(self, name: str) -> str:
        for names in reversed(self.known):
            if name in names:
                return names[name]
        return name


_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")


def _statements(body: Sequence[Any], scope: str, nested: bool = False) -> Iterator[Statement]:
    for node in body:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue  # a docstring
        blocks = {name: getattr(node, name) for name in _BLOCKS if getattr(node, name, None)}
        last = node.end_lineno or node.lineno
        if blocks:
            first = next(iter(blocks.values()))[0]
            start = min([first.lineno, *(one.lineno for one in _decorators(first))])
            last = max(node.lineno, start - 1)
            for name in blocks:
                setattr(node, name, [])
        text = _INFINITY.sub("-INF", ast.unparse(node))
        inner = scope
        function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        if (function or isinstance(node, ast.ClassDef)) and not nested:
            inner = f"{scope}.{node.name}"
        yield Statement((node.lineno, last), inner, tuple(_TOKEN.findall(text)), node.col_offset)
        for block in blocks.values():
            yield from _inside(block, inner, nested or function)


def _inside(block: Sequence[Any], scope: str, nested: bool) -> Iterator[Statement]:
    for node in block:
        if isinstance(node, (ast.ExceptHandler, ast.match_case)):
            yield from _statements(node.body, scope, nested)
        else:
            yield from _statements([node], scope, nested)


def _decorators(node: Any) -> Sequence[Any]:
    return getattr(node, "decorator_list", ())


# ---------------------------------------------------------------------------------------------
# What is wrong


@dataclass(frozen=True)
class Change:
    """Statements of the reference's cell, and what a misconception makes of them."""

    right: tuple[int, int]
    wrong: tuple[int, int]


@dataclass(frozen=True)
class Mistake:
    """The reference's cell, the cell with the mistake, and what differs."""

    right: Cell
    wrong: Cell
    changes: tuple[Change, ...]


def _cell_of(source: str, exercise: str) -> Cell:
    start, end = cell_spans(source)[exercise]
    return Cell.read(without_markers(source[start:end]))


@functools.lru_cache(maxsize=512)
def mistake(unit: str, misconception: str) -> Mistake | None:
    """What a misconception changes in its exercise's cell; None if there is no such thing."""
    chosen = known(unit).get(misconception)
    if chosen is None:
        return None
    try:
        right = _cell_of(source_of(unit), chosen.exercise)
        wrong = _cell_of(changed_source(unit, chosen), chosen.exercise)
    except (OSError, ValueError, KeyError):
        return None
    compared = difflib.SequenceMatcher(
        None,
        [(one.scope, one.exact) for one in right.statements],
        [(one.scope, one.exact) for one in wrong.statements],
        autojunk=False,
    )
    changes = tuple(
        Change((right_from, right_to), (wrong_from, wrong_to))
        for kind, right_from, right_to, wrong_from, wrong_to in compared.get_opcodes()
        if kind != "equal"
    )
    return Mistake(right, wrong, changes)


@functools.lru_cache(maxsize=8)
def known(unit: str) -> dict[str, Misconception]:
    """The unit's misconceptions, by name; none if the unit has none."""
    try:
        return {item.name: item for item in misconceptions(unit)}
    except ImportError:
        return {}


# ---------------------------------------------------------------------------------------------
# Where it stands


def find(unit: str, misconception: str, source: str) -> Excerpt | None:
    """The lines of a student's cell in which the mistake stands; None without confidence."""
    wrong = mistake(unit, misconception)
    if wrong is None or not wrong.changes:
        return None
    cell = Cell.read(source)
    found: list[int] = []
    right: list[int] = []
    for change in wrong.changes:
        places = _places(wrong, change, cell)
        if places:
            found += [place for place in places if place not in found]
            first, last = change.right
            # Where the mistake only adds something: what comes after it.
            last = max(last, first + 1)
            right += [place for place in range(first, last) if place < len(wrong.right.statements)]
    if not found:
        return None
    shown = excerpt(cell, sorted(found))
    beside = excerpt(wrong.right, sorted(set(right)))
    return Excerpt(shown.text, shown.key, shown.lines, beside.text)


def _places(wrong: Mistake, change: Change, cell: Cell) -> list[int]:
    """The statements of `cell` that are as wrong as the changed ones of the misconception."""
    first, last = change.wrong
    if first == last:  # Something is left out: what stood before and after it stands together.
        first, last = max(0, first - 1), min(len(wrong.wrong.statements), last + 1)
        if last - first < 2:
            return []
    block = wrong.wrong.statements[first:last]
    beside = wrong.wrong.statements[max(0, first - 1) : first], wrong.wrong.statements[last:][:1]
    for view in (lambda one: one.exact, lambda one: one.loose):
        places = _together(block, wrong.right.statements, cell.statements, view)
        if not places:
            continue
        enough = len(block) > 1 or len(block[0].marked) >= FEW
        before = cell.statements[max(0, places[0] - 1) : places[0]]
        behind = cell.statements[places[-1] + 1 :][:1]
        if enough or _alike(before, beside[0]) or _alike(behind, beside[1]):
            return places
    if change.wrong[0] == change.wrong[1]:
        return []
    rights = wrong.right.statements[slice(*change.right)]
    places = []
    for one in block:
        place = _nearest(one, rights, wrong.right.statements, cell.statements)
        if place is not None and place not in places:
            places.append(place)
    return places


def _alike(own: Sequence[Statement], wrong: Sequence[Statement]) -> bool:
    return bool(own and wrong) and own[0].loose == wrong[0].loose


def _together(
    block: Sequence[Statement],
    right: Sequence[Statement],
    own: Sequence[Statement],
    view: Callable[[Statement], Tokens],
) -> list[int]:
    """Where the whole block stands, once, in a cell, if it does not in the reference."""
    wanted = [(one.scope, view(one)) for one in block]

    def starts(statements: Sequence[Statement]) -> list[int]:
        said = [(one.scope, view(one)) for one in statements]
        places = range(len(said) - len(wanted) + 1)
        return [place for place in places if said[place : place + len(wanted)] == wanted]

    if starts(right):
        return []
    found = starts(own)
    return list(range(found[0], found[0] + len(block))) if len(found) == 1 else []


def _nearest(
    wrong: Statement,
    rights: Sequence[Statement],
    right: Sequence[Statement],
    own: Sequence[Statement],
) -> int | None:
    """The one statement that has what is wrong in `wrong`, and nothing of what it replaced."""
    new = _pairs(wrong.loose) - {pair for one in right for pair in _pairs(one.loose)}
    if not new:
        return None
    gone = {pair for one in rights for pair in _pairs(one.loose)} - _pairs(wrong.loose)
    fine = {one.loose for one in right}
    best: list[tuple[float, int]] = []
    for place, one in enumerate(own):
        if one.scope != wrong.scope or one.loose in fine:
            continue
        pairs = _pairs(one.loose)
        if not new <= pairs or gone & pairs:
            continue
        likeness = _likeness(one.loose, wrong.loose)
        if likeness >= NEAR and likeness > max(
            (_likeness(one.loose, each.loose) for each in right), default=0.0
        ):
            best.append((likeness, place))
    best.sort(reverse=True)
    if not best or (len(best) > 1 and best[0][0] == best[1][0]):
        return None
    return best[0][1]


def _pairs(tokens: Tokens) -> set[tuple[str, str]]:
    return set(itertools.pairwise(tokens))


def _likeness(left: Tokens, right: Tokens) -> float:
    return difflib.SequenceMatcher(None, left, right, autojunk=False).ratio()


def calls(source: str, names: Sequence[str]) -> Excerpt | None:
    """The lines of a cell that name one of the functions `names`."""
    cell = Cell.read(source)
    wanted = set(names)
    places = [
        place
        for place, one in enumerate(cell.statements)
        if wanted & set(one.marked) and one.marked[:1] not in (("def",), ("class",))
    ]
    return excerpt(cell, places) if places else None


# ---------------------------------------------------------------------------------------------
# How it is shown


def excerpt(cell: Cell, places: Sequence[int]) -> Excerpt:
    """The lines of some statements, about `MOST_LINES` of them, with the names' own key."""
    lines = without_comments(cell.source).split("\n")
    places = _with_head(cell, places)
    shown: list[str] = []
    numbers: list[int] = []
    key: list[str] = []
    names: dict[str, str] = {}
    for place in places:
        statement = cell.statements[place]
        for token in statement.marked:
            if token.startswith("\u2113"):
                key.append(names.setdefault(_plain(token), f"\u2113{len(names)}"))
            else:
                key.append(token)
        key.append("\n")
        first, last = statement.lines
        if len(numbers) >= MOST_LINES:
            shown.append(_indent(shown[-1]) + "…")
            break
        if numbers and any(line.strip() for line in lines[numbers[-1] : first - 1]):
            shown.append(_indent(lines[first - 1]) + "…")
        wanted = [n for n in range(first, last + 1) if n not in numbers and lines[n - 1].strip()]
        for number in wanted[: LONGEST - len(numbers)]:
            shown.append(lines[number - 1].rstrip())
            numbers.append(number)
        if wanted and wanted[-1] not in numbers:
            shown.append(_indent(shown[-1]) + "…")
            break
    return Excerpt(_dedented(shown), tuple(key), tuple(numbers))


def _with_head(cell: Cell, places: Sequence[int]) -> Sequence[int]:
    """The places, with the `if` or `for` before them whose last lines they begin with."""
    starts = [cell.statements[place].column for place in places]
    if not starts or starts[0] == min(starts):
        return places
    for place in range(places[0] - 1, -1, -1):
        if cell.statements[place].column < starts[0]:
            return [place, *places]
    return places


def whole(source: str, most: int = 60) -> str:
    """A cell without comments, docstrings and empty lines, and not without end."""
    cell = Cell.read(source)
    lines = without_comments(source[:MAX_CELL]).split("\n")
    if cell.statements:
        kept = sorted({n for one in cell.statements for n in range(one.lines[0], one.lines[1] + 1)})
        lines = [lines[number - 1] for number in kept]
    lines = [line.rstrip() for line in lines if line.strip()]
    return _dedented(lines[:most] + ["…"] * (len(lines) > most))


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _dedented(lines: Sequence[str]) -> str:
    lines = [line.expandtabs(4) for line in lines]
    least = min((len(_indent(line)) for line in lines if line.strip()), default=0)
    lines = [line[least:] for line in lines]
    return "\n".join(line if len(line) <= WIDE else line[: WIDE - 1] + "…" for line in lines)


def without_comments(source: str) -> str:
    """The same lines without what stands behind a `#`; as it is if it cannot be read."""
    lines = source.split("\n")
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                row, column = token.start
                lines[row - 1] = lines[row - 1][:column].rstrip()
    except (tokenize.TokenError, SyntaxError, ValueError, IndexError, RecursionError):
        return source
    return "\n".join(lines)
