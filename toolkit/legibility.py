"""How much a page of the book asks of its reader, and how much it may: the budgets of a page.

What is counted here is read from the page's source; its height and its elements are measured in a
browser, by the tests, and how long it takes to answer by `python -m autograder.benchmarks`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

# At least and at most. A screen is 768 pixels high, of a window 1366 wide.
BUDGETS: dict[str, tuple[float, float]] = {
    "screens": (0, 12),
    "elements": (0, 8000),
    "words": (600, 1800),
    "visible cells": (0, 12),
    "lines of the longest visible cell": (0, 15),
    "visible cells that check, glue, define or plot": (0, 0),
    "included classes": (0, 1),
    "lines of the longest included code": (0, 60),
}
HIDING = {"remove-cell", "remove-input", "hide-cell", "hide-input"}
# What is no prose: code and directives, formulas, rows of tables, labels, options, comments
FENCED = re.compile(r"^(`{3,}|~{3,})[^\n]*\n.*?^\1`*[ \t]*$", re.MULTILINE | re.DOTALL)
FORMULA = re.compile(
    r"\$\$.*?\$\$|^\\begin\{(\w+\*?)\}.*?\\end\{\1\}|(?<![\\$])\$[^$]+\$", re.MULTILINE | re.DOTALL
)
OTHER = re.compile(
    r"^\s*\|.*$|^\([\w-]+\)=$|^:{3,}.*$|^:\w[\w-]*:.*$|^%.*$|^\+\+\+.*$", re.MULTILINE
)
WORD = re.compile(r"\w")
MAGIC = re.compile(r"^\s*[%!].*$", re.MULTILINE)


def over_budget(figures: Mapping[str, float]) -> list[str]:
    """What of these figures a page may not have, a phrase each: `13.2 screens, at most 12`."""
    found = []
    for name, value in figures.items():
        least, most = BUDGETS[name]
        if not least <= value <= most:
            bound = f"at least {least:g}" if value < least else f"at most {most:g}"
            found.append(f"{round(value, 1):g} {name}, {bound}")
    return found


def source_figures(page: Path) -> dict[str, float]:
    """What the page's source says of the reader's work: words, and the cells whose code shows.

    Args:
        page: a MyST-Markdown notebook.
    """
    from myst_nb.core.read import myst_nb_reader_plugin

    cells = myst_nb_reader_plugin(str(page)).cells
    code = [cell for cell in cells if cell.cell_type == "code"]
    shown = [cell for cell in code if not HIDING & set(cell.metadata.get("tags", []))]
    run = [cell for cell in shown if "skip-execution" not in cell.metadata.get("tags", [])]
    names = set(_names(cell.source for cell in code))
    return {
        "words": sum(words(cell.source) for cell in cells if cell.cell_type == "markdown"),
        "visible cells": len(shown),
        "lines of the longest visible cell": max(
            (len(cell.source.splitlines()) for cell in run), default=0
        ),
        "visible cells that check, glue, define or plot": sum(
            is_machinery(cell.source, names) for cell in shown
        ),
    }


def words(text: str) -> int:
    """Words of prose in MyST text: code, directives, formulas and tables do not count."""
    for noise in (FENCED, FORMULA, OTHER):
        text = noise.sub("", text)
    return sum(WORD.search(word) is not None for word in text.split())


def is_machinery(source: str, names: Iterable[str] = ()) -> bool:
    """Whether a cell checks, glues, defines or plots, which a reader need not see.

    Args:
        source: the cell's code.
        names: what else than `glue` and `plt` the page calls `myst_nb.glue` and matplotlib.
    """
    known = {"glue", "plt", "ax", "axes", *names}
    for node in ast.walk(_tree(source)):
        if isinstance(node, ast.Assert | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return True
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called.split(".")[0].split("[")[0] in known or called.endswith("assert_close"):
                return True
    return False


def _names(sources: Iterable[str]) -> Iterator[str]:
    """What a page calls `myst_nb.glue` and the modules of matplotlib."""
    for source in sources:
        for node in ast.walk(_tree(source)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                module = getattr(node, "module", None) or ""
                for alias in node.names:
                    whole = f"{module}.{alias.name}".lstrip(".")
                    if whole == "myst_nb.glue" or whole.startswith("matplotlib"):
                        yield alias.asname or alias.name.split(".")[0]


def _tree(source: str) -> ast.Module:
    return ast.parse(MAGIC.sub("pass", source))
