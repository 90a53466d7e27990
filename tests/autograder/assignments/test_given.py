"""What a unit is given: all that it needs of earlier units, and nothing else."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from autograder.assignments import builder, given
from autograder.common import paths
from autograder.units.assignment import load
from tests.autograder.helpers import put

GIVEN = [unit for unit in builder.sources() if given.source(unit)]

FIRST = '''# %%
import math
from typing import Any

import torch
from torch import Tensor, nn

WIDTH = 3
OTHER = 4

# %% exercise="deep" points=1 section="s"
def deep(x: Tensor) -> Any:
    """Deep."""
    ### BEGIN SOLUTION
    return x * WIDTH
    ### END SOLUTION

# %% exercise="used" points=1 section="s"
@torch.no_grad()
def used(x):
    ### BEGIN SOLUTION
    return deep(x)
    ### END SOLUTION

# %% exercise="idle" points=1 section="s"
def idle(x):
    return math.sqrt(x)

# %% tags=["instructor"]
def secret():
    return used(1)
'''
SECOND = """# %%
import torch

from solutions.seq2seq.text import (
    used,  # as it was
)

# %% tags=["instructor"]
from solutions.seq2seq.text import idle
"""


@pytest.fixture
def solutions(tmp_path: Path) -> Path:
    put(tmp_path / "seq2seq" / "text.py", FIRST)
    put(tmp_path / "seq2seq" / "recurrent.py", SECOND)
    return tmp_path


def test_what_is_needed_comes_with_what_that_needs(solutions: Path) -> None:
    text = given.source("seq2seq-recurrent", solutions)
    assert text.startswith('"""What earlier units of this chapter have built, as far as seq2seq-')
    names = {node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
    assert names == {"used", "deep"}
    assert "WIDTH = 3" in text
    assert "@torch.no_grad()" in text
    for gone in ("OTHER", "idle", "math", "secret", "SOLUTION", "nn", "solutions."):
        assert gone not in text.split('"""', 2)[2], gone
    assert given.source("seq2seq-text", solutions) == ""


def test_a_notebook_imports_it_in_place_of_the_reference() -> None:
    code = given.for_notebook("import torch\n\nfrom solutions.seq2seq.text import used, deep\n")
    assert "solutions" not in code
    assert "    from given import deep, used\n" in code
    compile(code, "cell", "exec")
    many = [f"a_rather_long_name_{number}" for number in range(8)]
    code = given.for_notebook(f"from solutions.seq2seq.text import {', '.join(many)}")
    assert max(map(len, code.splitlines())) <= 100
    assert given.imported("from solutions.a.b import x, y\nfrom c import z") == ["x", "y"]
    assert given.for_notebook("import math") == "import math"


@pytest.mark.parametrize("found", ["", "other = 1\n"])
def test_where_it_is_missing_or_anothers_the_cell_says_what_to_do(
    tmp_path: Path, found: str
) -> None:
    if found:
        put(tmp_path / "given.py", found)
    code = given.for_notebook("from solutions.seq2seq.text import used")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stderr.splitlines()[-1] == (
        "ImportError: given.py is missing or another unit's: put the one that came with this "
        "notebook beside it and restart the kernel."
    )
    assert "During handling" not in done.stderr


def test_some_units_are_given_something() -> None:
    assert "attention-self_attention" in GIVEN
    assert "attention-scores" not in GIVEN


def asked_for(unit: str) -> set[str]:
    """The names that the unit's notebook imports from `given`."""
    notebook = nbformat.read(paths.EXERCISES / unit / f"{unit}.ipynb", as_version=4)
    code = [cell.source for cell in notebook.cells if cell.id.startswith("setup")]
    return {
        alias.name
        for source in code
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and node.module == "given"
        for alias in node.names
    }


@pytest.mark.parametrize("unit", GIVEN)
def test_it_works_alone_and_has_what_the_notebook_imports(unit: str) -> None:
    text = (paths.EXERCISES / unit / paths.GIVEN).read_text(encoding="utf-8")
    namespace: dict[str, object] = {"__name__": "given"}
    exec(compile(text, "given.py", "exec"), namespace)
    assert asked_for(unit)
    assert asked_for(unit) <= namespace.keys()


@pytest.mark.parametrize("unit", GIVEN)
def test_it_holds_no_exercise_of_this_or_a_later_unit_and_nothing_unused(unit: str) -> None:
    tree = ast.parse((paths.EXERCISES / unit / paths.GIVEN).read_text(encoding="utf-8"))
    used = {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    } | asked_for(unit)
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            defined = {(alias.asname or alias.name).split(".")[0] for alias in node.names}
            assert defined <= used
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            defined = {node.name}
        else:
            parts = [node.targets[0]] if isinstance(node, ast.Assign) else []
            defined = {
                one.id for part in parts for one in ast.walk(part) if isinstance(one, ast.Name)
            }
        assert defined & used or isinstance(node, ast.Expr), ast.unparse(node)  # its docstring
        names |= defined
    chapter = paths.chapter_of(unit)
    units = [f"{chapter}-{name}" for name in paths.CHAPTERS[chapter]]
    place = units.index(unit)
    earlier = {name for one in units[:place] for name in load(one).names}
    later = {name for one in units[place:] for name in load(one).names}
    assert not names & (later - earlier)
