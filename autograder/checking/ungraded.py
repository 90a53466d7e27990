"""`%%ungraded`: cells in which students use what they have built.

    %%ungraded
    greedy_decode(model, source)

Such a cell says in one sentence what went wrong in it, and `%tb` shows where. Where nbgrader
executes the notebook, nothing in it is run: it may train for a minute, and earns no points.
"""

from __future__ import annotations

import ast
import os
import re
import sys
import traceback
from typing import Any

from autograder.common.cells import UNGRADED

# nbgrader sets it while it executes a notebook, to "autograde" or "validate".
NBGRADER = "NBGRADER_EXECUTION"
YOURS = re.compile(r"(\w+) is yours to write")
# The file's name of code that a notebook beside this one holds.
ELSEWHERE = "{notebook}, code cell {number}"
_ELSEWHERE = re.compile(r".+\.ipynb, code cell \d+")


def register() -> None:
    """Let IPython know the magic, where there is IPython."""
    shell = _shell()
    if shell is not None:
        shell.register_magic_function(_magic, "cell", UNGRADED)


def _shell() -> Any:
    ipython = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()


def _magic(line: str, cell: str) -> Any:
    """Run a cell that is not graded; the value of its last line, as for any cell."""
    shell = _shell()
    if os.environ.get(NBGRADER):
        return None
    try:
        return run(shell.transform_cell(cell), shell.user_ns, shell.compile.cache)
    except KeyboardInterrupt:
        print("Stopped.")
    except Exception as error:
        # As IPython itself does, so that %tb and %debug work.
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        print(explained(error, shell.user_ns))
    return None


def run(source: str, namespace: dict[str, Any], named: Any = None) -> Any:
    """Execute a cell's code in a namespace.

    Args:
        source: Python, without magics.
        namespace: what the notebook defines; the cell's own names are added.
        named: keeps the source for tracebacks and returns the file's name; as IPython's does.

    Returns:
        The value of the last line if it is an expression, else None.
    """
    name = named(source) if named else "<ungraded>"
    tree = ast.parse(source, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), namespace)
    if last is None:
        return None
    assert isinstance(last, ast.Expr)
    return eval(compile(ast.Expression(last.value), name, "eval"), namespace)


def explained(error: Exception, namespace: dict[str, Any]) -> str:
    """One sentence on what stopped a cell, and what to do."""
    words = " ".join(str(error).split())
    if isinstance(error, NotImplementedError):
        found = YOURS.search(words)
        return (
            f"Write {found[1]} first: this cell uses it." if found else f"Not written yet: {words}"
        )
    if isinstance(error, NameError) and error.name:
        return f"{error.name} is not defined yet: run the cells above this one first."
    words = f"{type(error).__name__}: {words}" if words else type(error).__name__
    words = words if len(words) <= 300 else f"{words[:300]} …"
    part = _part(error, namespace)
    if part:
        return f"This cell stopped in your {part}: {words.rstrip('.')}. %tb shows where."
    return f"This cell stopped: {words.rstrip('.')}. %tb shows where."


def _part(error: Exception, namespace: dict[str, Any]) -> str:
    """The function or class of a student's in which an error was raised; or nothing."""
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        name, file = frame.f_code.co_qualname.partition(".")[0], frame.f_code.co_filename
        if frame.f_globals is namespace and name in namespace:
            return name
        if _ELSEWHERE.fullmatch(file):
            return f"{name} ({file})"
    return ""
