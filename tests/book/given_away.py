"""What code that is shown gives away of answers to exercises: statements, and points.

Statements are compared as syntax trees. Names of variables do not count, nor whether a value is
returned, assigned or printed; names of modules, functions, methods and attributes do.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from typing import Any

from bs4 import BeautifulSoup

from autograder.sandbox.executor import Executor
from autograder.units.variants import cell_spans, reference_namespace, source_of
from autograder.verification.verify import graders_of

# What stands in a solution and may be shown, and why.
IDIOMS = {
    "a / b": "a quotient does not say of what; a path looks like one",
    "a + b": "nor does a sum",
    "nn.Embedding(a, b)": "a layer of two sizes does not say what for",
    "nn.Linear(a, b)": "nor does this one",
    "optimizer.zero_grad()\nloss.backward()": "every training loop with PyTorch has both",
    "optimizer.step()\nlosses.append(loss.item())": "and every one that keeps its losses these",
}
BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
MODULES = {"torch", "nn", "F", "math", "self", "functional"}


def normal(*statements: ast.AST) -> str:
    """A text that is equal for statements that do the same with other variables."""
    names: dict[str, str] = {}

    class Rename(ast.NodeTransformer):
        def visit_Call(self, node: ast.Call) -> ast.AST:
            function = node.func if isinstance(node.func, ast.Name) else self.visit(node.func)
            return ast.Call(
                function,
                [self.visit(one) for one in node.args],
                [self.visit(one) for one in node.keywords],
            )

        def visit_Name(self, node: ast.Name) -> ast.AST:
            if node.id in MODULES:
                return node
            return ast.Name(names.setdefault(node.id, f"v{len(names)}"), ast.Load())

        def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
            return ast.Constant("text")

    return "; ".join(ast.dump(Rename().visit(deepcopy(value_of(one)))) for one in statements)


def value_of(statement: ast.AST) -> ast.AST:
    """What a statement computes, whatever it does with it."""
    if isinstance(statement, (ast.Return, ast.Assign, ast.AnnAssign, ast.Expr)):
        return ast.Expr(statement.value or ast.Constant(None))
    return ast.Expr(statement) if isinstance(statement, ast.expr) else statement


def computes(statement: ast.AST) -> bool:
    """Whether a statement does more than hand on names, attributes and constants."""
    work = (ast.Call, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Subscript, ast.If, ast.For)
    return any(isinstance(node, work) for node in ast.walk(statement))


def bodies(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    """All lists of statements in a tree, docstrings left out."""
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            body = getattr(node, field, None)
            if isinstance(body, list) and body and isinstance(body[0], ast.stmt):
                yield [one for one in body if not is_text(one)]


def is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def regions(unit: str) -> dict[str, list[ast.Module]]:
    """For each exercise of a unit, the code between the markers of its solution."""
    source, found = source_of(unit), {}
    for exercise, (start, end) in cell_spans(source).items():
        parts = [part.partition(END)[0] for part in source[start:end].split(BEGIN)[1:]]
        found[exercise] = [ast.parse(textwrap.dedent(part.partition("\n")[2])) for part in parts]
    return found


def secrets(unit: str) -> dict[str, str]:
    """What must not be shown of a unit's solutions, in normal form, and the exercise it is of.

    Two consecutive statements of a solution, and the last one, which may be the only one.
    """
    found = {}
    for exercise, trees in regions(unit).items():
        for tree in trees:
            for body in bodies(tree):
                for one, two in itertools.pairwise(body):
                    if computes(one) or computes(two):
                        found[normal(one, two)] = exercise
            if tree.body and computes(tree.body[-1]):
                found[normal(tree.body[-1])] = exercise
    return found


def shown(code: str) -> set[str]:
    """What a piece of code shows, in normal form: its expressions, statements, pairs of these."""
    tree = parsed(code)
    if tree is None:
        return set()
    expressions = (node for node in ast.walk(tree) if isinstance(node, ast.expr))
    found = {normal(node) for node in expressions if computes(node)}
    for body in bodies(tree):
        found |= {normal(one) for one in body}
        found |= {normal(one, two) for one, two in itertools.pairwise(body)}
    return found


def parsed(code: str) -> ast.Module | None:
    """The syntax tree; None for what is no Python, such as output."""
    try:
        return ast.parse(textwrap.dedent(code))
    except (SyntaxError, ValueError):
        return None


def code_of(page: str) -> list[str]:
    """All pieces of code of a page's HTML, output and inline code among them."""
    soup = BeautifulSoup(page, "html.parser")
    return [block.get_text() for block in soup.find_all(["pre", "code"])]


def given_away(pieces: Iterable[str], units: Sequence[str]) -> dict[str, set[str]]:
    """The exercises of which pieces of code give something away, and what."""
    known = {form: exercise for unit in units for form, exercise in secrets(unit).items()}
    for idiom in IDIOMS:
        known.pop(normal(*ast.parse(idiom).body), None)
    found: dict[str, set[str]] = {}
    for piece in pieces:
        for form in shown(piece) & known.keys():
            found.setdefault(known[form], set()).add(piece)
    return found


def defined(pieces: Sequence[str]) -> dict[str, Any]:
    """The functions and classes that pieces of code define, made with their imports alone."""
    definitions, imports = (ast.FunctionDef, ast.ClassDef), (ast.Import, ast.ImportFrom)
    trees = [tree for tree in map(parsed, pieces) if tree is not None]
    if not any(isinstance(one, definitions) for tree in trees for one in tree.body):
        return {}
    found: dict[str, Any] = {}
    names: dict[str, Any] = {}
    exec("import math\nimport torch\nfrom torch import Tensor, nn\n", names)
    for tree in trees:
        body = [one for one in tree.body if isinstance(one, (*definitions, *imports))]
        future = ast.parse("from __future__ import annotations").body
        module = ast.fix_missing_locations(ast.Module([*future, *body], []))
        code = compile(module, "<page>", "exec")
        while True:
            try:
                exec(code, names)
                break
            except NameError as error:  # the default of a parameter, which another piece holds
                names[error.name] = 0
        found |= {one.name: names[one.name] for one in body if isinstance(one, definitions)}
    return found


def under_the_name_of(right: Callable[..., Any], shown: Callable[..., Any]) -> Any:
    """`shown`, called with as many of the arguments of `right` as it takes, in their order."""
    if isinstance(shown, type) or isinstance(right, type):
        return shown
    takes = len(inspect.signature(shown).parameters)

    def answer(*args: Any, **kwargs: Any) -> Any:
        bound = inspect.signature(right).bind(*args, **kwargs)
        return shown(*list(bound.arguments.values())[:takes])

    return answer


def shares(definitions: dict[str, Any], unit: str) -> dict[tuple[str, str], float]:
    """What share of each exercise's points each definition earns under the exercise's name."""
    if not definitions:
        return {}
    graders, right = graders_of(unit), reference_namespace(unit)
    found = {}
    for name, shown in definitions.items():
        for exercise in graders.assignment.names:
            names = right | {exercise: under_the_name_of(right[exercise], shown)}
            result = graders.run(Executor(names).execute, exercises=[exercise], diagnose=False)
            found[name, exercise] = result[exercise].points / result[exercise].max_points
    return found
