"""The notebooks that put a chapter together: opened as a student opens them, beside their units."""

from __future__ import annotations

import ast
import importlib
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

from autograder.assignments import bundle, whole_chapter
from autograder.common import paths
from autograder.units.assignment import load, units_of

SHORT = {"seconds = 30": "seconds = 2", "steps = 800": "steps = 60"}


def ran(notebook: Path) -> list[str]:
    """What each code cell of a notebook prints and shows, in Jupyter; training is short."""
    opened = nbformat.read(notebook, as_version=4)
    for cell in opened.cells:
        for long, short in SHORT.items():
            cell.source = cell.source.replace(long, short)
    where = {"metadata": {"path": str(notebook.parent)}}
    NotebookClient(opened, timeout=600, resources=where).execute()
    said = []
    for cell in opened.cells:
        if cell.cell_type == "code":
            shown = [one.get("text") or str(one.get("data", one)) for one in cell.outputs]
            said.append("".join(shown))
    return said


def unpacked(chapter: str, folder: Path) -> Path:
    """The zip of a chapter's last unit in a folder; the notebook in it that puts all together."""
    last = units_of([chapter])[-1]
    with zipfile.ZipFile(bundle.bundle(last, folder / f"{last}.zip")) as archive:
        archive.extractall(folder)
    return folder / last / whole_chapter.files(chapter)[0]


def save(folder: Path, unit: str, notebook: NotebookNode) -> None:
    (folder / unit).mkdir(exist_ok=True)
    text = nbformat.writes(notebook)
    (folder / unit / f"{unit}.ipynb").write_text(text, encoding="utf-8")


@pytest.mark.slow
def test_a_student_who_has_written_all_runs_a_chapter_of_their_own(
    tmp_path: Path, solved: Callable[..., NotebookNode]
) -> None:
    notebook = unpacked("gpt", tmp_path)
    for unit in units_of(["gpt"]):
        save(tmp_path, unit, solved(unit))
    assert f"`{notebook.name}`" in (notebook.parent / "README.md").read_text(encoding="utf-8")
    whose, writes, curve, learned, scores = ran(notebook)
    assert "given" not in whose
    assert "to write" not in whose
    assert whose.startswith("gpt-model\n  yours     causal_mask, window_mask, CausalSelfAttention,")
    assert writes.startswith("def is_empty(self):\n    return ")
    assert "image/png" in curve
    assert learned.count("def ") >= 3
    assert "a token  len(self._data)" in scores


@pytest.mark.slow
def test_given_parts_do_for_what_is_not_written_and_the_rest_is_named(
    tmp_path: Path, solved: Callable[..., NotebookNode]
) -> None:
    """One answer of the first unit is wrong, and of the last unit nothing is written."""
    notebook = unpacked("attention", tmp_path)
    first = units_of(["attention"])[0]
    wrong = "def masked_softmax(scores, mask=None, dim=-1):\n    return scores.no_such_thing()"
    save(tmp_path, first, solved(first, masked_softmax=wrong))
    whose, looks_back, translates, curve, maps = ran(notebook)
    assert "self_attention: no attention-self_attention.ipynb here\n  given     scaled" in whose
    assert "attention-multi_head\n  to write  split_heads" in whose
    in_cell = rf"This cell stopped in your masked_softmax \({first}\.ipynb, code cell \d+\): "
    assert re.match(in_cell + "AttributeError: .* %tb shows where", looks_back)
    assert translates == "Write MultiHeadAttention first: this cell uses it.\n"
    assert re.match(in_cell, curve)  # the given self-attention uses the student's softmax
    assert re.match(in_cell, maps)


@pytest.mark.parametrize("chapter", paths.CHAPTERS)
def test_what_the_cells_use_is_an_exercise_of_the_last_unit_or_given(chapter: str) -> None:
    script = paths.ungraded(f"{chapter}-mine").read_text(encoding="utf-8")
    used = set(re.findall(r"\bmine\.(\w+)", script))
    reference = importlib.import_module(f"solutions.{chapter}")
    given: dict[str, object] = {}
    file = paths.EXERCISES / whole_chapter.files(chapter)[1]
    exec(compile(file.read_text(encoding="utf-8"), str(file), "exec"), given)
    units = units_of([chapter])
    assert given["EXERCISES"] == {unit: list(load(unit).names) for unit in units}
    assert used <= set(dir(reference))
    assert used <= set(given) | set(load(units[-1]).names)
    assert set(given).isdisjoint(load(units[-1]).names)
    for unit in units:  # and what their notebooks import is there
        assert imported(unit) <= set(given), unit


def imported(unit: str) -> set[str]:
    """The names that a unit's notebook imports from `given`."""
    cells = nbformat.read(paths.EXERCISES / unit / f"{unit}.ipynb", as_version=4).cells
    nodes = [
        node
        for cell in cells
        if cell.cell_type == "code" and "from given import" in cell.source
        for node in ast.walk(ast.parse(cell.source))
        if isinstance(node, ast.ImportFrom) and node.module == "given"
    ]
    return {alias.name for node in nodes for alias in node.names}
