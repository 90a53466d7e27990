"""What a statement of Python defines, and the line on which it begins."""

from __future__ import annotations

import ast

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def defined(node: ast.stmt) -> set[str]:
    """The names that a definition or an assignment gives a value."""
    if isinstance(node, DEFINITIONS):
        return {node.name}
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        return {
            one.id
            for one in ast.walk(node)
            if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
        }
    return set()


def first_line(node: ast.stmt) -> int:
    """The line of a definition's first decorator, or of the statement itself."""
    return min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", []))])
