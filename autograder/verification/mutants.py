"""Small wrong changes to a reference's solution regions, made on its syntax tree.

A grader that does not notice a change of operator, constant, axis, comparison, argument order or
a dropped statement is too weak, or the change means nothing. `verify` finds out which.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass

from autograder.units.variants import cell_spans

BINARY: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
}
COMPARE: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
NAMES = {
    "tril": "triu",
    "triu": "tril",
    "ones": "zeros",
    "zeros": "ones",
    "ones_like": "zeros_like",
    "zeros_like": "ones_like",
    "amax": "amin",
    "max": "min",
    "min": "max",
    "sum": "mean",
    "mean": "sum",
    "tanh": "sigmoid",
    "sigmoid": "tanh",
    "exp": "cos",
    "sqrt": "log1p",
    "sin": "cos",
    "cos": "sin",
    "any": "all",
    "all": "any",
}


# Functions whose first two arguments may trade places.
SYMMETRIC = {"transpose", "maximum", "minimum"}


@dataclass(frozen=True)
class Mutant:
    """One changed module. `name` identifies the change however the file around it moves."""

    name: str
    exercise: str
    source: str


def regions(cell: str) -> list[tuple[int, int]]:
    """The line ranges (first, last; counted from 1) of the solution regions of one cell."""
    found = []
    begin = None
    for number, line in enumerate(cell.splitlines(), start=1):
        if line.strip() == "### BEGIN SOLUTION":
            begin = number
        elif line.strip() == "### END SOLUTION" and begin is not None:
            found.append((begin, number))
            begin = None
    return found


def mutants(source: str) -> Iterator[Mutant]:
    """Every mutant of every solution region of a percent script, in the file's order."""
    for exercise, (start, end) in cell_spans(source).items():
        cell = source[start:end]
        tree = ast.parse(cell)
        seen: dict[str, int] = {}
        sources = {cell}
        for path, node in _inside(tree, regions(cell)):
            for old, new, changed in _changes(node):
                mutated = _replaced(tree, path, changed) + "\n\n"
                if mutated in sources:
                    continue
                sources.add(mutated)
                text = f"{exercise}: {old} -> {new}"
                seen[text] = seen.get(text, 0) + 1
                name = text if seen[text] == 1 else f"{text} #{seen[text]}"
                yield Mutant(name, exercise, source[:start] + mutated + source[end:])


_Path = tuple[tuple[str, int | None], ...]


def _inside(tree: ast.AST, spans: list[tuple[int, int]]) -> Iterator[tuple[_Path, ast.AST]]:
    """The nodes within the line ranges, with the way to each from the root.

    Left out: error messages (what a ValueError says is free), annotations and docstrings.
    """

    def visit(node: ast.AST, path: _Path) -> Iterator[tuple[_Path, ast.AST]]:
        line = getattr(node, "lineno", None)
        if line is not None and any(first <= line <= last for first, last in spans):
            yield path, node
        if isinstance(node, ast.Raise):
            return
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "type_params"):
                continue
            if isinstance(value, list):
                for index, item in enumerate(value):
                    if isinstance(item, ast.AST):
                        yield from visit(item, (*path, (name, index)))
            elif isinstance(value, ast.AST):
                yield from visit(value, (*path, (name, None)))

    yield from visit(tree, ())


def _replaced(tree: ast.AST, path: _Path, node: ast.AST) -> str:
    """The cell's source with the node at `path` replaced."""
    clone = copy.deepcopy(tree)
    parent: ast.AST = clone
    for name, index in path[:-1]:
        child = getattr(parent, name)
        parent = child if index is None else child[index]
    name, index = path[-1]
    if index is None:
        setattr(parent, name, node)
    else:
        getattr(parent, name)[index] = node
    return ast.unparse(ast.fix_missing_locations(clone))


def _changes(node: ast.AST) -> Iterator[tuple[str, str, ast.AST]]:
    """The wrong versions of one node: what it was, what it becomes, and the new node."""
    for changed in _versions(node):
        old, new = _text(node), _text(changed)
        if old != new:
            yield old, new, changed


def _text(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 160 else text[:157] + "..."


def _with(node: ast.AST, **fields: object) -> ast.AST:
    changed = copy.deepcopy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _versions(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.BinOp():
            if type(node.op) in BINARY:
                yield _with(node, op=BINARY[type(node.op)]())
            if isinstance(node.op, (ast.MatMult, ast.Sub, ast.Div)):
                yield _with(node, left=node.right, right=node.left)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value))):
            # An axis such as -1: another axis. The sign is part of the number.
            yield ast.UnaryOp(ast.USub(), ast.Constant(value + 1))
            yield ast.Constant(0)
        case ast.UnaryOp(op=ast.USub() | ast.Not() | ast.Invert()):
            yield copy.deepcopy(node.operand)
        case ast.Compare(ops=[op], comparators=[_]):
            for other in COMPARE.get(type(op), ()):
                yield _with(node, ops=[other()])
        case ast.BoolOp():
            yield _with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(value + 1)
            if value:
                yield ast.Constant(value - 1)
        case ast.Constant(value=float(value)):
            yield ast.Constant(value * 2 if value else 1.0)
        case ast.Attribute(attr=name) if name in NAMES:
            yield _with(node, attr=NAMES[name])
        case ast.Call():
            symmetric = isinstance(node.func, ast.Attribute) and node.func.attr in SYMMETRIC
            for index in range(0 if symmetric else len(node.args) - 1):
                args = list(node.args)
                args[index], args[index + 1] = args[index + 1], args[index]
                yield _with(node, args=args)
            for index, keyword in enumerate(node.keywords):
                if keyword.arg is not None:
                    yield _with(node, keywords=node.keywords[:index] + node.keywords[index + 1 :])
        case ast.Return(value=ast.Tuple(elts=[first, second])):
            yield _with(node, value=ast.Tuple([second, first], ast.Load()))
        case ast.If():
            yield _with(node, test=ast.Constant(True))
            yield _with(node, test=ast.Constant(False))
        case ast.IfExp():
            yield copy.deepcopy(node.body)
            yield copy.deepcopy(node.orelse)
        case ast.Expr(value=ast.Constant(value=str())):
            return
        case ast.Expr() | ast.Assign() | ast.AugAssign():
            yield ast.Pass()
