"""Mutants change one thing, inside the solution region, and keep their names."""

from __future__ import annotations

import ast

from autograder.verification.mutants import mutants

CELL = '''import torch

# %% exercise="f" points=1
def f(x: "int" = 3):
    """Add 1."""
    scale = 7
    ### BEGIN SOLUTION
    if x < 0:
        raise ValueError("below 0")
    y = x + 1
    return torch.sum(y, dim=-1), x
    ### END SOLUTION

# %%
after = 5
'''


def test_every_mutant_is_valid_python_and_differs():
    made = list(mutants(CELL))
    assert len({mutant.source for mutant in made}) == len(made)
    for mutant in made:
        ast.parse(mutant.source)


def test_the_usual_mistakes_are_made():
    names = {mutant.name for mutant in mutants(CELL)}
    for expected in (
        "f: x + 1 -> x - 1",
        "f: x < 0 -> x <= 0",
        "f: y = x + 1 -> pass",
        "f: -1 -> -2",
        "f: torch.sum(y, dim=-1) -> torch.sum(y)",
        "f: return (torch.sum(y, dim=-1), x) -> return (x, torch.sum(y, dim=-1))",
    ):
        assert expected in names, expected


def test_nothing_outside_the_solution_region_changes():
    for mutant in mutants(CELL):
        assert "scale = 7" in mutant.source
        assert "after = 5" in mutant.source
        assert "def f(x: 'int'=3)" in mutant.source.replace('"', "'").replace(" = 3", "=3")
        assert "below 0" in mutant.source or "raise" not in mutant.source


def test_names_do_not_depend_on_what_stands_above():
    moved = CELL.replace("import torch\n", "import torch\nmore = 1\n\n", 1)
    assert [m.name for m in mutants(CELL)] == [m.name for m in mutants(moved)]
