"""Which cells of a notebook are run, and under which names."""

from __future__ import annotations

import nbformat
import pytest

from autograder.common.cells import Cell, cells_of, runs


def code(source="x = 1", **metadata):
    return nbformat.v4.new_code_cell(source, metadata=metadata)


def nbgrader(grade_id, *, grade=False, solution=False):
    return {"grade_id": grade_id, "grade": grade, "solution": solution, "locked": True}


def test_code_cells_come_in_order_with_their_names():
    notebook = nbformat.v4.new_notebook(
        cells=[
            nbformat.v4.new_markdown_cell("# title"),
            code("import torch"),
            code("def f(): ...", nbgrader=nbgrader("f", solution=True)),
            nbformat.v4.new_raw_cell("raw"),
            code("check('f')", nbgrader=nbgrader("check_f", grade=True)),
            code("  \n"),
            code("f()"),
        ]
    )
    cells = cells_of(notebook)
    assert [cell.name for cell in cells] == ["cell 2", "f", "cell 7"]
    assert [cell.source for cell in cells] == ["import torch", "def f(): ...", "f()"]
    assert [cell.id for cell in cells] == [notebook.cells[i].id for i in (1, 2, 6)]


@pytest.mark.parametrize(
    ("grade", "solution", "expected"),
    [(True, False, False), (True, True, True), (False, True, True), (False, False, True)],
)
def test_only_test_cells_are_left_out(grade, solution, expected):
    assert runs(code(nbgrader=nbgrader("a", grade=grade, solution=solution))) is expected


def test_plain_json_with_lists_of_lines_is_read():
    notebook = {"cells": [{"cell_type": "code", "source": ["a = 1\n", "b = 2"], "metadata": {}}]}
    assert cells_of(notebook) == [Cell("cell 1", "a = 1\nb = 2", "cell 1")]


@pytest.mark.parametrize(
    "notebook",
    [
        {},
        {"cells": None},
        {"cells": [None, 3, "code", {}]},
        {"cells": [{"cell_type": "code", "source": 5}]},
        {"cells": [{"cell_type": "code", "source": [None, {}]}]},
    ],
)
def test_damaged_notebooks_have_no_cells(notebook):
    assert cells_of(notebook) == []


def test_damaged_metadata_does_not_hide_a_cell():
    for metadata in (None, [], {"nbgrader": None}, {"nbgrader": {"grade": 1, "grade_id": 7}}):
        cells = cells_of({"cells": [{"cell_type": "code", "source": "x", "metadata": metadata}]})
        assert cells == [Cell("cell 1", "x", "cell 1")]
